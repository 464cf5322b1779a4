//! The keys that sign callers' tokens, over all member clusters: which cluster does a token come from?
//!
//! Every cluster's issuer is usually the same string, so the key decides. A key that two clusters publish identifies
//! nobody: whoever holds it could be a Pod of either. Equality is by thumbprint over the decoded key material, because a
//! member could publish another's key in another spelling. `identify` verifies signatures; this is only the index.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{AlgorithmParameters, Jwk};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::MemberIdentity;
use crate::value::hashed::HashMap;

/// All usable signing keys.
#[derive(Debug, Default)]
pub(crate) struct KeyIndex {
    keys: Vec<SigningKey>,
    by_kid: HashMap<String, Vec<usize>>,
}

/// One public key and who publishes it.
#[derive(Debug, Clone)]
pub(crate) struct SigningKey {
    /// Whose tokens it signs.
    pub(crate) owner: KeyOwner,
    /// The key.
    pub(crate) jwk: Jwk,
}

/// Who publishes a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyOwner {
    /// Exactly one member cluster.
    Cluster(Arc<str>),
    /// Several, sorted: tokens signed by it are refused, naming them.
    Conflict(Vec<Arc<str>>),
}

/// What a key is, whatever its spelling.
type Thumbprint = [u8; 32];

/// A JSON Web Key that cannot be one.
#[derive(Debug, Error)]
#[error("not a public JSON Web Key: {0}")]
pub(crate) struct KeyError(#[from] serde_json::Error);

/// Whether `text` is one JSON Web Key. Algorithms this router cannot verify are let through, and identify nobody.
pub(crate) fn check(text: &str) -> Result<(), KeyError> {
    serde_json::from_str::<Jwk>(text)?;
    Ok(())
}

impl KeyIndex {
    /// The index over the keys of all members. Keys that cannot be read or are not public keys are left out.
    pub(crate) fn new<'a>(members: impl IntoIterator<Item = (&'a Arc<str>, &'a Arc<MemberIdentity>)>) -> Self {
        let mut found: HashMap<Thumbprint, (Vec<Jwk>, Vec<Arc<str>>)> = HashMap::default();
        for (cluster, identity) in members {
            for text in &identity.signing_keys {
                let Some((thumbprint, jwk)) = public_key(text) else {
                    continue;
                };
                let (spellings, clusters) = found.entry(thumbprint).or_default();
                if !spellings.contains(&jwk) {
                    spellings.push(jwk);
                }
                if !clusters.contains(cluster) {
                    clusters.push(cluster.clone());
                }
            }
        }
        let mut index = Self::default();
        for (spellings, mut clusters) in found.into_values() {
            clusters.sort();
            let owner = match clusters.as_slice() {
                [cluster] => KeyOwner::Cluster(cluster.clone()),
                _ => KeyOwner::Conflict(clusters),
            };
            for jwk in spellings {
                index.push(SigningKey {
                    owner: owner.clone(),
                    jwk,
                });
            }
        }
        index
    }

    fn push(&mut self, key: SigningKey) {
        if let Some(kid) = &key.jwk.common.key_id {
            self.by_kid.entry(kid.clone()).or_default().push(self.keys.len());
        }
        self.keys.push(key);
    }

    /// The keys that may have signed a token with this `kid` in its header, conflicting ones included; without a `kid`,
    /// all of them. The one that verifies the signature decides.
    pub(crate) fn candidates(&self, kid: Option<&str>) -> Vec<&SigningKey> {
        match kid {
            Some(kid) => self
                .by_kid
                .get(kid)
                .into_iter()
                .flatten()
                .filter_map(|index| self.keys.get(*index))
                .collect(),
            None => self.keys.iter().collect(),
        }
    }

    /// The keys that several clusters publish.
    pub(crate) fn conflicts(&self) -> impl Iterator<Item = &[Arc<str>]> {
        self.keys.iter().filter_map(|key| match &key.owner {
            KeyOwner::Conflict(clusters) => Some(clusters.as_slice()),
            KeyOwner::Cluster(_) => None,
        })
    }
}

/// The key and its identity; `None` for secrets and for what this router cannot verify.
fn public_key(text: &str) -> Option<(Thumbprint, Jwk)> {
    let jwk: Jwk = serde_json::from_str(text).ok()?;
    let (kind, parts) = match &jwk.algorithm {
        AlgorithmParameters::RSA(key) => ("RSA".to_owned(), [key.n.as_str(), key.e.as_str()]),
        AlgorithmParameters::EllipticCurve(key) => (format!("{:?}", key.curve), [key.x.as_str(), key.y.as_str()]),
        AlgorithmParameters::OctetKeyPair(key) => (format!("{:?}", key.curve), [key.x.as_str(), ""]),
        _ => return None,
    };
    let mut hash = Sha256::new();
    hash.update(kind.as_bytes());
    for part in parts {
        let bytes = URL_SAFE_NO_PAD.decode(part.trim_end_matches('=')).ok()?;
        let number: Vec<u8> = bytes.into_iter().skip_while(|byte| *byte == 0).collect();
        hash.update(u64::try_from(number.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(&number);
    }
    Some((hash.finalize().into(), jwk))
}
