//! The hub's certificate authority: made once, kept in a Secret, and the hub's own serving certificate from it.
//!
//! Not here: who may have which identity (`enroll`). Caller: `app`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret as KubeSecret};
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error as KubeError};
use portolan_crds::labels::{CONFIG_MAP_CA, SECRET_CA};
use portolan_runtime::pki::{CertificateAuthority, PkiError};
use portolan_runtime::tls::{Identity as TlsIdentity, IdentityStore, TlsError};
use portolan_runtime::{Secret, Tasks};
use portolan_wire::identity::Identity;
use thiserror::Error;

use crate::pins::CONFIG_MAP_PINS;

/// Common name of the CA.
const COMMON_NAME: &str = "portolan hub CA";
/// Life of the serving certificate; renewed at half of it.
const SERVING_TTL: Duration = Duration::from_hours(30 * 24);
/// Keys of a `kubernetes.io/tls` Secret.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
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
         to begin anew, delete ConfigMap {namespace}/{CONFIG_MAP_PINS}, join every member again and enrol every router again"
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
    #[error("cannot use the serving certificate")]
    Tls(#[from] TlsError),
}

/// The hub's CA, and one below it for each kind of identity: made anew at each start, known to nobody else, good for one kind
/// of name only ([`Identity::of_certificate`]). Whoever signs for people could not name a program if it wanted to.
pub(crate) struct Authorities {
    root: Arc<CertificateAuthority>,
    /// For agents, routers and people, in the order of [`Identity::ISSUERS`]; the hub's own where that is of an age when it
    /// had none below it.
    kinds: [Arc<CertificateAuthority>; 3],
}

impl Authorities {
    pub(crate) fn new(root: CertificateAuthority) -> Result<Self, CaError> {
        let root = Arc::new(root);
        let below = |name: &str| {
            let made = root.intermediate(name).map_err(CaError::Intermediate)?;
            Ok::<_, CaError>(made.map_or_else(|| root.clone(), Arc::new))
        };
        let [agents, routers, people] = Identity::ISSUERS;
        Ok(Self {
            kinds: [below(agents)?, below(routers)?, below(people)?],
            root,
        })
    }

    /// What programs and people verify each other by.
    pub(crate) fn root(&self) -> &Arc<CertificateAuthority> {
        &self.root
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

/// Reads the CA, or makes it. Two hubs that start at once agree: the loser of the create reads the winner's.
pub(crate) async fn load_or_create(client: &Client, namespace: &str) -> Result<CertificateAuthority, CaError> {
    let secrets = Api::<KubeSecret>::namespaced(client.clone(), namespace);
    let failed = |action| {
        move |source| CaError::Kube {
            action,
            namespace: namespace.to_owned(),
            source,
        }
    };
    if let Some(secret) = secrets.get_opt(SECRET_CA).await.map_err(failed("get"))? {
        return from_secret(&secret, namespace);
    }
    check_nobody_joined(client, namespace).await?;
    ensure_namespace(client, namespace).await;
    let ca = CertificateAuthority::generate(COMMON_NAME)?;
    match secrets.create(&PostParams::default(), &to_secret(&ca)).await {
        Ok(_) => {
            tracing::info!(secret = SECRET_CA, namespace, "made a new CA");
            Ok(ca)
        }
        Err(KubeError::Api(status)) if status.is_already_exists() => {
            from_secret(&secrets.get(SECRET_CA).await.map_err(failed("get"))?, namespace)
        }
        Err(error) => Err(failed("create")(error)),
    }
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
    let pins = Api::<ConfigMap>::namespaced(client.clone(), namespace)
        .get_opt(CONFIG_MAP_PINS)
        .await
        .map_err(|source| CaError::Pins {
            namespace: namespace.to_owned(),
            source,
        })?;
    match pins.and_then(|pins| pins.data).map_or(0, |data| data.len()) {
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

fn to_secret(ca: &CertificateAuthority) -> KubeSecret {
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    KubeSecret {
        metadata: ObjectMeta {
            name: Some(SECRET_CA.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(BTreeMap::from([
            (CERTIFICATE.to_owned(), bytes(ca.pem())),
            (KEY.to_owned(), bytes(ca.key_pem().expose())),
        ])),
        ..KubeSecret::default()
    }
}

fn from_secret(secret: &KubeSecret, namespace: &str) -> Result<CertificateAuthority, CaError> {
    let text = |key: &'static str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key));
        let text = bytes.and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
        text.ok_or_else(|| CaError::Incomplete {
            namespace: namespace.to_owned(),
            key,
        })
    };
    CertificateAuthority::from_pem(&text(CERTIFICATE)?, &Secret::new(text(KEY)?)).map_err(|source| CaError::Unusable {
        namespace: namespace.to_owned(),
        source,
    })
}

/// Issues the serving certificate for `hosts`.
pub(crate) fn serving_identity(ca: &CertificateAuthority, hosts: &[String]) -> Result<TlsIdentity, CaError> {
    let hosts: Vec<_> = hosts.iter().map(String::as_str).collect();
    let issued = ca.issue_server("portolan-hub", &hosts, SERVING_TTL)?;
    Ok(TlsIdentity::from_pem(&issued.cert_pem, &issued.key_pem)?)
}

/// Renews the serving certificate for ever; connections that are open keep theirs.
pub(crate) async fn keep_serving_identity(
    ca: Arc<CertificateAuthority>,
    hosts: Vec<String>,
    store: Arc<IdentityStore>,
    tasks: Tasks,
) {
    let token = tasks.token();
    loop {
        let left = store.load().map(|identity| {
            identity
                .not_after()
                .duration_since(SystemTime::now())
                .unwrap_or_default()
        });
        // Half of what is left, so that a failed attempt has time for more; an hour at least between attempts.
        let wait = (left.unwrap_or_default() / 2).max(Duration::from_hours(1));
        if token.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
            return;
        }
        match serving_identity(&ca, &hosts) {
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
        assert_eq!(made.pem(), again.pem());
        for pem in [made.pem(), "another", made.pem()] {
            publish(&client, "n", pem).await.unwrap();
            let map = objects.lock()["/api/v1/namespaces/n/configmaps/portolan-ca"].clone();
            assert_eq!(map["data"], json!({"ca.crt": pem}));
        }

        let pins = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "portolan-pins"}, "data": {"east": "{}"}});
        objects.lock().insert(PINS.to_owned(), pins);
        assert_eq!(load_or_create(&client, "n").await.unwrap().pem(), made.pem());
        objects.lock().remove(SECRET);
        let error = load_or_create(&client, "n").await.err().unwrap().to_string();
        assert!(
            error.contains("restore it") && error.contains("delete ConfigMap n/portolan-pins"),
            "{error}"
        );
        assert!(!objects.lock().contains_key(SECRET));

        objects.lock().remove(PINS);
        assert_ne!(load_or_create(&client, "n").await.unwrap().pem(), made.pem());
    }
}
