//! The Secret of the CA, and how it goes through a rotation: with a new CA beside it, then by the new one with the old one's
//! certificate beside it, then alone.
//!
//! Each step is one write with a resourceVersion, and safe to repeat: a hub that starts reads what the last one had decided.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret as KubeSecret;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error as KubeError};
use portolan_crds::labels::SECRET_CA;
use portolan_runtime::Secret;
use portolan_runtime::pki::{CertificateAuthority, PkiError};
use portolan_runtime::tls::TrustStore;
use thiserror::Error;

use super::{COMMON_NAME, CaError};

/// Keys of a `kubernetes.io/tls` Secret: the CA that the hub issues by.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// The CA that is to come.
const NEXT_CERTIFICATE: &str = "next.crt";
const NEXT_KEY: &str = "next.key";
/// The certificate of the CA before; its key is gone.
const PREVIOUS_CERTIFICATE: &str = "previous.crt";
/// Attempts against concurrent writers.
const ATTEMPTS: usize = 5;

/// The hub's CAs: the one it issues by, and the one beside it while they change.
#[derive(Debug, Clone)]
pub(crate) struct Roots {
    pub(super) issuing: Arc<CertificateAuthority>,
    pub(super) other: Option<Other>,
}

#[derive(Debug, Clone)]
pub(super) enum Other {
    Next(Arc<CertificateAuthority>),
    /// PEM.
    Previous(String),
}

/// How far a rotation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// There is one CA.
    One,
    /// The new one is trusted too, and the old one issues.
    Both,
    /// The new one issues, and the old one is trusted too.
    New,
}

impl Phase {
    /// As in the ConfigMap of the rotation.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Both => "both",
            Self::New => "new",
        }
    }
}

/// What a person may want of a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A new CA beside the old one, trusted by all.
    Begin,
    /// Certificates by the new one from now on.
    Issue,
    /// The old one is trusted no more.
    Finish,
    /// The new one, of which there are no certificates, is trusted no more.
    Abort,
}

impl Step {
    /// As in the ConfigMap of the rotation.
    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "begin" => Self::Begin,
            "issue" => Self::Issue,
            "finish" => Self::Finish,
            "abort" => Self::Abort,
            _ => return None,
        })
    }
}

/// Why a step is not taken: for the person who wants it.
#[derive(Debug, Error)]
pub(crate) enum StepError {
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Ca(#[from] CaError),
}

impl Roots {
    #[cfg(test)]
    pub(crate) fn alone(ca: CertificateAuthority) -> Self {
        Self {
            issuing: Arc::new(ca),
            other: None,
        }
    }

    pub(super) fn phase(&self) -> Phase {
        match &self.other {
            None => Phase::One,
            Some(Other::Next(_)) => Phase::Both,
            Some(Other::Previous(_)) => Phase::New,
        }
    }

    /// Whether these are the CAs of this phase and bundle, in the same places.
    pub(super) fn is_of(&self, phase: Phase, bundle: &str) -> bool {
        self.phase() == phase && self.bundle() == bundle
    }

    /// The certificates of all that are trusted, PEM, the one that issues first.
    pub(super) fn bundle(&self) -> String {
        let issuing = self.issuing.pem();
        let other = match &self.other {
            None => return issuing.to_owned(),
            Some(Other::Next(next)) => next.pem(),
            Some(Other::Previous(pem)) => pem,
        };
        format!("{}\n{}\n", issuing.trim_end(), other.trim_end())
    }
}

/// What the Secret holds; an unusable CA beside the one that issues is no reason for a hub not to start.
pub(super) fn read(secret: &KubeSecret, namespace: &str) -> Result<Roots, CaError> {
    let required = |key: &'static str| {
        text(secret, key).ok_or_else(|| CaError::Incomplete {
            namespace: namespace.to_owned(),
            key,
        })
    };
    let issuing = CertificateAuthority::from_pem(&required(CERTIFICATE)?, &Secret::new(required(KEY)?));
    let issuing = issuing.map_err(|source| CaError::Unusable {
        namespace: namespace.to_owned(),
        source,
    })?;
    let other = if let Some(previous) = text(secret, PREVIOUS_CERTIFICATE) {
        Some(Other::Previous(previous))
    } else {
        next(secret).unwrap_or_else(|error| {
            tracing::error!(%error, secret = SECRET_CA, "{NEXT_CERTIFICATE} and {NEXT_KEY} are left out");
            None
        })
    };
    Ok(Roots {
        issuing: Arc::new(issuing),
        other,
    })
}

/// The CA that is to come, if there is one.
fn next(secret: &KubeSecret) -> Result<Option<Other>, PkiError> {
    let (Some(certificate), Some(key)) = (text(secret, NEXT_CERTIFICATE), text(secret, NEXT_KEY)) else {
        return Ok(None);
    };
    let next = CertificateAuthority::from_pem(&certificate, &Secret::new(key))?;
    TrustStore::from_pem(&certificate).map_err(|error| PkiError::Certificate(error.to_string()))?;
    Ok(Some(Other::Next(Arc::new(next))))
}

fn text(secret: &KubeSecret, key: &str) -> Option<String> {
    let bytes = secret.data.as_ref()?.get(key)?;
    String::from_utf8(bytes.0.clone()).ok()
}

/// The Secret of a CA alone.
pub(crate) fn secret_of(ca: &CertificateAuthority) -> KubeSecret {
    KubeSecret {
        metadata: ObjectMeta {
            name: Some(SECRET_CA.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(pair(ca, [CERTIFICATE, KEY])),
        ..KubeSecret::default()
    }
}

fn pair(ca: &CertificateAuthority, keys: [&str; 2]) -> BTreeMap<String, ByteString> {
    let texts = [ca.pem(), ca.key_pem().expose()].map(|text| ByteString(text.as_bytes().to_vec()));
    keys.map(ToOwned::to_owned).into_iter().zip(texts).collect()
}

/// Takes a step from where the caller judged it, or finds that it was taken.
pub(crate) async fn advance(client: &Client, namespace: &str, (from, step): (Phase, Step)) -> Result<Roots, StepError> {
    let secrets = Api::<KubeSecret>::namespaced(client.clone(), namespace);
    let failed = |action| {
        move |source| CaError::Kube {
            action,
            namespace: namespace.to_owned(),
            source,
        }
    };
    let mut lost = None;
    for _ in 0..ATTEMPTS {
        let secret = secrets.get(SECRET_CA).await.map_err(failed("get"))?;
        if read(&secret, namespace)?.phase() != from {
            let why = "another hub, or a person, has gone on with the rotation meanwhile: look at it, and ask again";
            return Err(StepError::Refused(why.to_owned()));
        }
        let Some(next) = after(&secret, step, namespace)? else {
            return Ok(read(&secret, namespace)?);
        };
        match secrets.replace(SECRET_CA, &PostParams::default(), &next).await {
            Ok(stored) => return Ok(read(&stored, namespace)?),
            Err(KubeError::Api(status)) if status.code == 409 => lost = Some(KubeError::Api(status)),
            Err(error) => return Err(failed("update")(error).into()),
        }
    }
    let lost = lost.expect("each attempt that is not the last was lost");
    Err(failed("update")(lost).into())
}

/// The Secret after a step; `None` if it was taken already.
fn after(secret: &KubeSecret, step: Step, namespace: &str) -> Result<Option<KubeSecret>, StepError> {
    let refused = |why: &str| Err(StepError::Refused(why.to_owned()));
    let roots = read(secret, namespace)?;
    let mut after = secret.clone();
    let data = after.data.get_or_insert_default();
    match (step, &roots.other) {
        (Step::Begin, Some(Other::Next(_)))
        | (Step::Issue, Some(Other::Previous(_)))
        | (Step::Finish | Step::Abort, None) => return Ok(None),
        (Step::Begin, Some(Other::Previous(_))) => {
            return refused(
                "the CA of the last rotation is still trusted: end that rotation with portolanctl ca rotate --finish",
            );
        }
        (Step::Begin, None) => data.extend(pair(
            &successor(secret, &roots, namespace)?,
            [NEXT_CERTIFICATE, NEXT_KEY],
        )),
        (Step::Issue, None) => return refused("there is no new CA yet: run portolanctl ca rotate first"),
        (Step::Issue, Some(Other::Next(next))) => {
            let previous = data.insert(CERTIFICATE.to_owned(), ByteString(next.pem().as_bytes().to_vec()));
            data.insert(PREVIOUS_CERTIFICATE.to_owned(), previous.unwrap_or_default());
            // The old key is gone with this: nothing more is to be issued by it.
            let key = data.remove(NEXT_KEY).unwrap_or_default();
            data.insert(KEY.to_owned(), key);
            data.remove(NEXT_CERTIFICATE);
        }
        (Step::Finish, Some(Other::Next(_))) => {
            return refused("certificates are by the old CA still: run portolanctl ca rotate --issue first");
        }
        (Step::Finish, Some(Other::Previous(_))) => drop(data.remove(PREVIOUS_CERTIFICATE)),
        (Step::Abort, Some(Other::Previous(_))) => {
            return refused("there are certificates of the new CA already: go on with portolanctl ca rotate --finish");
        }
        (Step::Abort, Some(Other::Next(_))) => {
            data.remove(NEXT_CERTIFICATE);
            data.remove(NEXT_KEY);
        }
    }
    Ok(Some(after))
}

/// A new CA of our own in place of one of our own; one of somebody else's is replaced by nobody else.
fn successor(secret: &KubeSecret, roots: &Roots, namespace: &str) -> Result<CertificateAuthority, StepError> {
    if let Err(error) = next(secret) {
        return Err(StepError::Refused(format!(
            "{NEXT_CERTIFICATE} and {NEXT_KEY} of Secret {namespace}/{SECRET_CA} are no CA that can be used: {error}"
        )));
    }
    let name = &roots.issuing.subject().common_name;
    if name != COMMON_NAME {
        return Err(StepError::Refused(format!(
            "the hub's CA ({name:?}) is one of your own: put the one that is to replace it into Secret \
             {namespace}/{SECRET_CA} as {NEXT_CERTIFICATE} and {NEXT_KEY}, beside {CERTIFICATE} and {KEY}, and run this again"
        )));
    }
    Ok(CertificateAuthority::generate(COMMON_NAME).map_err(CaError::Serving)?)
}

#[cfg(test)]
mod tests;
