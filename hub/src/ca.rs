//! The hub's certificate authority: made once, kept in a Secret (`stored`), replaced by another while both are trusted, and the
//! hub's own serving certificate from it.
//!
//! Not here: who may have which identity (`enroll`), when a step of a rotation is due (`rotation`). Caller: `app`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret as KubeSecret};
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error as KubeError};
use portolan_crds::labels::{CONFIG_MAP_CA, SECRET_CA};
use portolan_runtime::Tasks;
use portolan_runtime::pki::{CertificateAuthority, PkiError};
use portolan_runtime::tls::{Identity as TlsIdentity, IdentityStore, TlsError, TrustStore};
use portolan_wire::identity::Identity;
use thiserror::Error;
use tokio::sync::watch;

use crate::pins::{self, CONFIG_MAP_PINS};

mod holders;
mod stored;
mod webhooks;

use self::holders::Holders;
pub(crate) use self::holders::{Holder, Waits};
#[cfg(test)]
pub(crate) use self::stored::secret_of;
pub(crate) use self::stored::{Phase, Roots, Step, StepError, advance};
pub(crate) use self::webhooks::keep_webhooks_trusting;

/// Common name of the CA.
const COMMON_NAME: &str = "portolan hub CA";
/// Life of the serving certificate; renewed at half of it.
const SERVING_TTL: Duration = Duration::from_hours(30 * 24);
/// Key of the ConfigMap with the CA's certificate.
const CA_CERTIFICATE: &str = "ca.crt";

#[derive(Debug, Error)]
pub(crate) enum CaError {
    #[error("cannot {action} Secret {namespace}/{SECRET_CA}")]
    Kube {
        action: &'static str,
        namespace: String,
        #[source]
        source: KubeError,
    },
    #[error(
        "Secret {namespace}/{SECRET_CA} is gone, and {members} members have joined by it: restore it from a backup; or, \
         to begin anew, delete ConfigMap {namespace}/{CONFIG_MAP_PINS} and its pages ({CONFIG_MAP_PINS}-00 and so on), join \
         every member again and enrol every router again"
    )]
    Lost { namespace: String, members: usize },
    #[error("cannot read ConfigMap {namespace}/{CONFIG_MAP_PINS}, which tells whether a CA was there before")]
    Pins {
        namespace: String,
        #[source]
        source: KubeError,
    },
    #[error("cannot write ConfigMap {namespace}/{CONFIG_MAP_CA}")]
    Publish {
        namespace: String,
        #[source]
        source: KubeError,
    },
    #[error("Secret {namespace}/{SECRET_CA} has no {key}: restore it from a backup; or delete it to begin anew")]
    Incomplete { namespace: String, key: &'static str },
    #[error("Secret {namespace}/{SECRET_CA} holds no usable CA")]
    Unusable {
        namespace: String,
        #[source]
        source: PkiError,
    },
    #[error("cannot make the CAs for agents, routers and people")]
    Intermediate(#[source] PkiError),
    #[error("cannot make the serving certificate")]
    Serving(#[from] PkiError),
    #[error("cannot use the certificate")]
    Tls(#[from] TlsError),
}

/// The hub's CAs, as they are now. While one replaces the other, both are trusted, and one issues.
pub(crate) struct Authorities {
    current: watch::Sender<Arc<Current>>,
    trust: Arc<TrustStore>,
    holders: Holders,
}

/// The CA that issues, and one below it for each kind of identity: made anew at each start, known to nobody else, good for one
/// kind of name only ([`Identity::of_certificate`]). Whoever signs for people could not name a program if it wanted to.
pub(crate) struct Current {
    root: Arc<CertificateAuthority>,
    /// For agents, routers and people, in the order of [`Identity::ISSUERS`]; the hub's own where that is of an age when it
    /// had none below it.
    kinds: [Arc<CertificateAuthority>; 3],
    /// Its number in the life of this hub.
    serial: u64,
    phase: Phase,
    /// All that are trusted, PEM.
    bundle: String,
    fingerprint: String,
    /// The same for verification, and the one that issues alone.
    trust: Arc<TrustStore>,
    issuer: Arc<TrustStore>,
}

impl Current {
    fn new(roots: &Roots, before: Option<&Self>) -> Result<Self, CaError> {
        let root = roots.issuing.clone();
        let below = |name: &str| {
            let made = root.intermediate(name).map_err(CaError::Intermediate)?;
            Ok::<_, CaError>(made.map_or_else(|| root.clone(), Arc::new))
        };
        let same = before.filter(|before| before.root.pem() == root.pem());
        let kinds = if let Some(before) = same {
            before.kinds.clone()
        } else {
            let [agents, routers, people] = Identity::ISSUERS;
            [below(agents)?, below(routers)?, below(people)?]
        };
        let bundle = roots.bundle();
        let trust = TrustStore::from_pem(&bundle)?;
        Ok(Self {
            kinds,
            serial: before.map_or(0, |before| before.serial + 1),
            phase: roots.phase(),
            fingerprint: trust.fingerprint(),
            issuer: TrustStore::from_pem(root.pem())?,
            root,
            bundle,
            trust,
        })
    }

    /// What the hub itself shows, and what is below it is issued by.
    pub(crate) fn root(&self) -> &Arc<CertificateAuthority> {
        &self.root
    }

    /// What programs and people verify each other by, PEM.
    pub(crate) fn bundle(&self) -> &str {
        &self.bundle
    }

    /// How far a rotation is.
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Who issues for this kind of identity.
    pub(crate) fn of(&self, identity: &Identity) -> &Arc<CertificateAuthority> {
        let [agents, routers, people] = &self.kinds;
        match identity {
            Identity::Agent(_) => agents,
            Identity::Router(_) => routers,
            Identity::Person { .. } => people,
        }
    }

    /// Who issues for people.
    pub(crate) fn of_people(&self) -> &Arc<CertificateAuthority> {
        &self.kinds[2]
    }
}

impl Authorities {
    pub(crate) fn new(roots: &Roots) -> Result<Self, CaError> {
        let current = Arc::new(Current::new(roots, None)?);
        Ok(Self {
            trust: TrustStore::from_pem(&current.bundle)?,
            current: watch::Sender::new(current),
            holders: Holders::default(),
        })
    }

    /// Takes these from now on: clients are verified by them, and programs are told.
    pub(crate) fn apply(&self, roots: &Roots) -> Result<(), CaError> {
        let current = Current::new(roots, Some(&self.current()))?;
        self.trust.set_pem(&current.bundle)?;
        self.current.send_replace(Arc::new(current));
        Ok(())
    }

    /// As they are now.
    pub(crate) fn current(&self) -> Arc<Current> {
        self.current.borrow().clone()
    }

    /// What the hub verifies its clients by; follows changes.
    pub(crate) fn trust(&self) -> &Arc<TrustStore> {
        &self.trust
    }
}

/// Reads the CA, or makes it. Two hubs that start at once agree: the loser of the create reads the winner's.
pub(crate) async fn load_or_create(client: &Client, namespace: &str) -> Result<Roots, CaError> {
    let secrets = Api::<KubeSecret>::namespaced(client.clone(), namespace);
    let failed = |action| {
        move |source| CaError::Kube {
            action,
            namespace: namespace.to_owned(),
            source,
        }
    };
    if let Some(secret) = secrets.get_opt(SECRET_CA).await.map_err(failed("get"))? {
        return stored::read(&secret, namespace);
    }
    check_nobody_joined(client, namespace).await?;
    ensure_namespace(client, namespace).await;
    let ca = CertificateAuthority::generate(COMMON_NAME)?;
    match secrets.create(&PostParams::default(), &stored::secret_of(&ca)).await {
        Ok(secret) => {
            tracing::info!(secret = SECRET_CA, namespace, "made a new CA");
            stored::read(&secret, namespace)
        }
        Err(KubeError::Api(status)) if status.is_already_exists() => {
            stored::read(&secrets.get(SECRET_CA).await.map_err(failed("get"))?, namespace)
        }
        Err(error) => Err(failed("create")(error)),
    }
}

/// What the Secret holds, if that is not what `current` is.
pub(crate) async fn changed(client: &Client, namespace: &str, current: &Current) -> Result<Option<Roots>, CaError> {
    let secrets = Api::<KubeSecret>::namespaced(client.clone(), namespace);
    let secret = secrets.get(SECRET_CA).await.map_err(|source| CaError::Kube {
        action: "get",
        namespace: namespace.to_owned(),
        source,
    })?;
    let roots = stored::read(&secret, namespace)?;
    Ok((!roots.is_of(current.phase, &current.bundle)).then_some(roots))
}

/// Writes the CA's certificate where everybody may read it who may read nothing else here.
pub(crate) async fn publish(client: &Client, namespace: &str, pem: &str) -> Result<(), CaError> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let failed = |source| CaError::Publish {
        namespace: namespace.to_owned(),
        source,
    };
    let mut map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(CONFIG_MAP_CA.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(CA_CERTIFICATE.to_owned(), pem.to_owned())])),
        ..ConfigMap::default()
    };
    let present = maps.get_opt(CONFIG_MAP_CA).await.map_err(failed)?;
    let params = PostParams::default();
    let Some(present) = present else {
        return maps.create(&params, &map).await.map(drop).map_err(failed);
    };
    if present.data == map.data {
        return Ok(());
    }
    map.metadata.resource_version = present.metadata.resource_version;
    maps.replace(CONFIG_MAP_CA, &params, &map)
        .await
        .map(drop)
        .map_err(failed)
}

/// A new CA in place of a lost one would lock everybody out who has a certificate, at once and for good.
async fn check_nobody_joined(client: &Client, namespace: &str) -> Result<(), CaError> {
    let counted = pins::count(client, namespace).await;
    match counted.map_err(|source| CaError::Pins {
        namespace: namespace.to_owned(),
        source,
    })? {
        0 => Ok(()),
        members => Err(CaError::Lost {
            namespace: namespace.to_owned(),
            members,
        }),
    }
}

/// Best effort: where the hub may not create namespaces, the create of the Secret says what is missing.
async fn ensure_namespace(client: &Client, name: &str) {
    let namespace = Namespace {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    if let Err(error) = Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
    {
        tracing::debug!(namespace = name, %error, "namespace not created");
    }
}

/// Issues the serving certificate for `hosts`.
pub(crate) fn serving_identity(ca: &CertificateAuthority, hosts: &[String]) -> Result<TlsIdentity, CaError> {
    let hosts: Vec<_> = hosts.iter().map(String::as_str).collect();
    let issued = ca.issue_server("portolan-hub", &hosts, SERVING_TTL)?;
    Ok(TlsIdentity::from_pem(&issued.cert_pem, &issued.key_pem)?)
}

/// Renews the serving certificate for ever; connections that are open keep theirs.
pub(crate) async fn keep_serving_identity(
    ca: Arc<Authorities>,
    hosts: Vec<String>,
    store: Arc<IdentityStore>,
    tasks: Tasks,
) {
    let token = tasks.token();
    let mut changes = ca.current.subscribe();
    loop {
        let left = store.load().map(|identity| {
            identity
                .not_after()
                .duration_since(SystemTime::now())
                .unwrap_or_default()
        });
        // Half of what is left, so that a failed attempt has time for more; an hour at least between attempts.
        let wait = (left.unwrap_or_default() / 2).max(Duration::from_hours(1));
        // By another CA at once. The sender is in `ca`, so this fails only when nobody is served any more.
        let due = tokio::time::timeout(wait, changes.changed());
        if token.run_until_cancelled(due).await.is_none() {
            return;
        }
        match serving_identity(ca.current().root(), &hosts) {
            Ok(identity) => store.set(identity),
            Err(error) => tracing::error!(%error, "the serving certificate is not renewed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Objects, scripted_api};

    #[tokio::test]
    async fn a_lost_ca_is_not_remade_while_members_rely_on_it() {
        const SECRET: &str = "/api/v1/namespaces/n/secrets/portolan-ca";
        const PINS: &str = "/api/v1/namespaces/n/configmaps/portolan-pins";
        let objects = Objects::default();
        let client = scripted_api(objects.clone());
        let made = load_or_create(&client, "n").await.unwrap();
        let again = load_or_create(&client, "n").await.unwrap();
        let made = made.bundle();
        assert_eq!(made, again.bundle());
        for pem in [made.as_str(), "another", made.as_str()] {
            publish(&client, "n", pem).await.unwrap();
            let map = objects.lock()["/api/v1/namespaces/n/configmaps/portolan-ca"].clone();
            assert_eq!(map["data"], json!({"ca.crt": pem}));
        }

        let pins = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "portolan-pins"}, "data": {"east": "{}"}});
        objects.lock().insert(PINS.to_owned(), pins);
        assert_eq!(load_or_create(&client, "n").await.unwrap().bundle(), made);
        objects.lock().remove(SECRET);
        let error = load_or_create(&client, "n").await.err().unwrap().to_string();
        assert!(
            error.contains("restore it") && error.contains("delete ConfigMap n/portolan-pins"),
            "{error}"
        );
        assert!(!objects.lock().contains_key(SECRET));

        objects.lock().remove(PINS);
        assert_ne!(load_or_create(&client, "n").await.unwrap().bundle(), made);
    }
}
