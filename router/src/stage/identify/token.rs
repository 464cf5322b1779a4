//! What a ServiceAccount token says, judged without asking anybody: signature against one pinned key, times, audience,
//! binding to a Pod. Pure; the clock is an argument. Says nothing about whether the Pod still lives: `review` asks its
//! member. Caller: `identify`.

use std::sync::Arc;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm};
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation};
use serde::Deserialize;
use thiserror::Error;

use crate::value::snapshot::CallerKey;
use crate::value::snapshot::keys::{KeyIndex, KeyOwner};

/// Real ones have about a kilobyte; nobody may make us hash or parse more.
pub(super) const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// Clocks of members may be ahead of ours by as much. Expiry gets no such grace: the token is the member's to prolong.
const NOT_BEFORE_LEEWAY_SECONDS: u64 = 60;

/// Why a token identifies nobody. None of the texts repeats any part of the token but names that were verified.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum TokenError {
    #[error("the bearer token is no ServiceAccount token: not a signed JWT with a key id")]
    NotAToken,
    #[error("the token's signature does not verify against the key that it names, which member {0} published")]
    Signature(String),
    #[error("the token names the algorithm {0:?}, which its key is not for")]
    Algorithm(Algorithm),
    #[error("the token expired {0} s ago: read it anew from its projected volume for each request")]
    Expired(u64),
    #[error("the token is not valid for another {0} s: check the clocks")]
    NotYet(u64),
    #[error("the token is for another audience; mount a projected token with audience {wanted:?}")]
    Audience { wanted: String },
    #[error(
        "the token is not bound to a Pod: use the projected token of the operator's Pod, or a TokenRequest with a \
         boundObjectRef to it"
    )]
    NotBound,
    #[error("the signing key that member {0} published cannot be used")]
    Key(String),
}

/// The parts of a JWT header that choose the key.
pub(super) struct Named {
    pub(super) kid: String,
    header: Header,
}

/// What a token says of its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reviewed {
    /// Member and Pod.
    pub(super) key: CallerKey,
    pub(super) namespace: String,
    pub(super) service_account: String,
    pub(super) pod: String,
    /// Unix seconds.
    pub(super) expires: u64,
    /// What the member is asked to review it for; `None`: the API server's own audience.
    pub(super) audience: Option<String>,
}

/// Whose tokens are taken.
#[derive(Debug, Clone)]
pub(super) struct Audiences<'a> {
    pub(super) wanted: &'a str,
    pub(super) api_server: bool,
}

#[derive(Debug, Deserialize)]
struct Claims {
    /// Tokens from before TokenRequest have none; they are bound to nothing either.
    exp: Option<u64>,
    #[serde(default)]
    nbf: u64,
    #[serde(default)]
    aud: OneOrMany,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Option<KubernetesClaims>,
}

#[derive(Debug, Deserialize)]
struct KubernetesClaims {
    namespace: String,
    pod: Option<ObjectClaims>,
    serviceaccount: ObjectClaims,
}

#[derive(Debug, Deserialize)]
struct ObjectClaims {
    name: String,
    uid: String,
}

/// RFC 7519 allows both forms.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl Default for OneOrMany {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl OneOrMany {
    fn contains(&self, wanted: &str) -> bool {
        match self {
            Self::One(one) => one == wanted,
            Self::Many(many) => many.iter().any(|one| one == wanted),
        }
    }
}

/// Reads the header. `alg: none` and symmetric algorithms are no tokens of an API server.
pub(super) fn parse_header(token: &str) -> Result<Named, TokenError> {
    let header = jsonwebtoken::decode_header(token).map_err(|_| TokenError::NotAToken)?;
    let symmetric = matches!(header.alg, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512);
    match header.kid.clone() {
        Some(kid) if !symmetric && !kid.is_empty() => Ok(Named { kid, header }),
        _ => Err(TokenError::NotAToken),
    }
}

/// Verifies the token with one pinned key (a JSON Web Key) of `cluster`, then what it says.
pub(super) fn verify(
    token: &str,
    named: &Named,
    (cluster, jwk): (&Arc<str>, &Jwk),
    audiences: &Audiences<'_>,
    now: u64,
) -> Result<Reviewed, TokenError> {
    let claims = verify_signature(token, named, cluster, jwk)?;
    let expires = claims.exp.ok_or(TokenError::NotBound)?;
    if expires <= now {
        return Err(TokenError::Expired(now - expires));
    }
    if claims.nbf > now + NOT_BEFORE_LEEWAY_SECONDS {
        return Err(TokenError::NotYet(claims.nbf - now));
    }
    let for_us = claims.aud.contains(audiences.wanted);
    if !for_us && !audiences.api_server {
        return Err(TokenError::Audience {
            wanted: audiences.wanted.to_owned(),
        });
    }
    let kubernetes = claims.kubernetes.ok_or(TokenError::NotBound)?;
    let pod = kubernetes.pod.ok_or(TokenError::NotBound)?;
    Ok(Reviewed {
        key: CallerKey {
            home_cluster: cluster.clone(),
            pod_uid: pod.uid.into(),
        },
        namespace: kubernetes.namespace,
        service_account: kubernetes.serviceaccount.name,
        pod: pod.name,
        expires,
        audience: for_us.then(|| audiences.wanted.to_owned()),
    })
}

/// The one member whose key signed it, if any did. Nothing else of it is looked at: it may be out of date, or for others.
pub(crate) fn signer(token: &str, keys: &KeyIndex) -> Option<Arc<str>> {
    if token.len() > MAX_TOKEN_BYTES {
        return None;
    }
    let named = parse_header(token).ok()?;
    let candidates = keys.candidates(Some(&named.kid)).into_iter();
    let mut signed = candidates.filter(|key| is_signed_by(token, &named, &key.jwk));
    match &signed.next()?.owner {
        KeyOwner::Cluster(cluster) => Some(cluster.clone()),
        KeyOwner::Conflict(_) => None,
    }
}

/// Whether the token was signed by this key, whatever it says.
pub(super) fn is_signed_by(token: &str, named: &Named, jwk: &Jwk) -> bool {
    verify_signature(token, named, "", jwk).is_ok()
}

fn verify_signature(token: &str, named: &Named, cluster: &str, jwk: &Jwk) -> Result<Claims, TokenError> {
    let bad_key = || TokenError::Key(cluster.to_owned());
    let algorithm = named.header.alg;
    if !fits(jwk, algorithm) {
        return Err(TokenError::Algorithm(algorithm));
    }
    let key = DecodingKey::from_jwk(jwk).map_err(|_| bad_key())?;
    // Times and audience are judged above, with messages that help.
    let mut validation = Validation::new(algorithm);
    validation.validate_exp = false;
    validation.validate_aud = false;
    validation.required_spec_claims.clear();
    jsonwebtoken::decode::<Claims>(token, &key, &validation)
        .map(|data| data.claims)
        .map_err(|_| TokenError::Signature(cluster.to_owned()))
}

/// The algorithm must be one that the key is for: the token's own word for it counts for nothing.
fn fits(jwk: &Jwk, algorithm: Algorithm) -> bool {
    let by_type = match (&jwk.algorithm, algorithm) {
        (AlgorithmParameters::RSA(_), Algorithm::RS256 | Algorithm::RS384 | Algorithm::RS512) => true,
        (AlgorithmParameters::EllipticCurve(key), Algorithm::ES256) => key.curve == EllipticCurve::P256,
        (AlgorithmParameters::EllipticCurve(key), Algorithm::ES384) => key.curve == EllipticCurve::P384,
        _ => false,
    };
    by_type
        && jwk
            .common
            .key_algorithm
            .is_none_or(|named| named == KeyAlgorithm::from(algorithm))
}

#[cfg(test)]
impl Reviewed {
    pub(super) fn of_pod(cluster: &str, namespace: &str, service_account: &str, (pod, uid): (&str, &str)) -> Self {
        Self {
            key: CallerKey {
                home_cluster: cluster.into(),
                pod_uid: uid.into(),
            },
            namespace: namespace.to_owned(),
            service_account: service_account.to_owned(),
            pod: pod.to_owned(),
            expires: u64::MAX,
            audience: Some("portolan".to_owned()),
        }
    }
}
