//! What stands in a hub cluster before the first request, written as `portolanctl` and people would, and the agent's end of
//! its stream. For tests of the hub's program alone, and for the benchmark of what it tells routers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret as KubeSecret};
use kube::Client;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use portolan_crds::labels::{SERVICE_ACCOUNT_PROOF, SYSTEM_NAMESPACE, proof_audience};
use portolan_crds::{MemberCluster, ShardingConfig};
use portolan_runtime::Secret;
use portolan_runtime::pki::{self, CertificateAuthority, LeafSpec, Usage};
use portolan_runtime::tls::{Identity as TlsIdentity, IdentityStore};
use portolan_wire::identity::Identity;
use portolan_wire::protocol::PROTOCOL;
use portolan_wire::subscription::Subscription;
use portolan_wire::v1;
use portolan_wire::v1::agent_control_client::AgentControlClient;
use portolan_wire::v1::agent_message::Kind;
use portolan_wire::v1::enroll_response::Outcome;
use portolan_wire::v1::enrollment_client::EnrollmentClient;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

/// Namespace of ShardingConfigs and of their callers.
pub const NAMESPACE: &str = "ops";
/// In tokens of every kind: must never be seen again.
pub const CANARY: &str = "canary0token0must0not0be0seen";
/// Its SHA-256.
const CANARY_HASH: &str = "cfeac4d244d1a4765f627adfb5b7679aa92799b1ae7f69a21389557fb9db2928";
/// Of certificates that are issued here.
const TTL: Duration = Duration::from_hours(1);
/// When tokens that are made here expire.
const NEVER: &str = "2099-01-01T00:00:00Z";
/// Messages under way to the hub.
const OUTBOX: usize = 16;
/// More tries of one enrolment.
const ENROLMENTS: u32 = 5;

/// The hub's CA, key included.
pub async fn ca(client: &Client) -> anyhow::Result<CertificateAuthority> {
    let secrets = Api::<KubeSecret>::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let data = secrets.get("portolan-ca").await?.data.context("a Secret with data")?;
    let text = |key: &str| anyhow::Ok(String::from_utf8(data.get(key).context("a key")?.0.clone())?);
    Ok(CertificateAuthority::from_pem(
        &text("tls.crt")?,
        &Secret::new(text("tls.key")?),
    )?)
}

/// A certificate as the hub would issue it; a router's is for everything, and of one that has not enrolled.
pub fn identity(ca: &CertificateAuthority, identity: &Identity) -> anyhow::Result<Arc<IdentityStore>> {
    let gateway = matches!(identity, Identity::Router(_)).then(|| Subscription::Everything.to_uris());
    let issued = ca.issue(&LeafSpec {
        common_name: identity.common_name(),
        organization: identity.organizations().into_iter().next(),
        hosts: Vec::new(),
        uris: gateway.unwrap_or_default(),
        ttl: TTL,
        usage: Usage::Client,
    })?;
    Ok(IdentityStore::new(TlsIdentity::from_pem(
        &issued.cert_pem,
        &issued.key_pem,
    )?))
}

/// The certificate of a router that enrols, which sees everything, and its key.
pub async fn enroll_router(channel: Channel, client: &Client, name: &str) -> anyhow::Result<Arc<IdentityStore>> {
    let token = bootstrap_token(client, "router", name, NEVER).await?;
    let key = pki::new_private_key()?;
    let request = v1::EnrollRequest {
        proof: Some(v1::enroll_request::Proof::BootstrapToken(token)),
        csr: pki::signing_request(&key)?,
        ..v1::EnrollRequest::default()
    };
    let mut client = EnrollmentClient::new(channel);
    let mut tries = 0;
    // A hub whose watch lags says so, and routers try again.
    let answer = loop {
        match client.enroll(request.clone()).await {
            Err(status) if status.code() == Code::Unavailable && tries < ENROLMENTS => tries += 1,
            answer => break answer?.into_inner(),
        }
    };
    match answer.outcome.context("an outcome")? {
        Outcome::Issued(issued) => Ok(IdentityStore::new(TlsIdentity::from_pem(
            &issued.certificate_pem,
            &key,
        )?)),
        Outcome::Pending(pending) => bail!("pending: {}", pending.reason),
    }
}

/// Makes a bootstrap token that is good until `expires`; a router's is for everything.
pub async fn bootstrap_token(client: &Client, kind: &str, name: &str, expires: &str) -> anyhow::Result<String> {
    let secrets = Api::<KubeSecret>::namespaced(client.clone(), SYSTEM_NAMESPACE);
    loop {
        let id: String = format!("{:06x}", rand::random::<u32>() & 0x00ff_ffff);
        let secret = bootstrap_secret(&id, kind, name, expires);
        match secrets.create(&PostParams::default(), &secret).await {
            // Of some thousand two may have the same id.
            Err(kube::Error::Api(refused)) if refused.code == 409 => {}
            made => return made.map(|_| format!("{id}.{CANARY}")).map_err(Into::into),
        }
    }
}

fn bootstrap_secret(id: &str, kind: &str, name: &str, expires: &str) -> KubeSecret {
    let data = [
        ("kind", kind),
        ("name", name),
        ("token-hash", CANARY_HASH),
        ("expires", expires),
        ("subscription", "everything"),
    ];
    let data = data.map(|(key, value)| (key.to_owned(), ByteString(value.as_bytes().to_vec())));
    KubeSecret {
        metadata: ObjectMeta {
            name: Some(format!("portolan-bootstrap-{id}")),
            ..ObjectMeta::default()
        },
        type_: Some("ctrlmesh.kusionstack.io/bootstrap-token".to_owned()),
        data: Some(data.into()),
        ..KubeSecret::default()
    }
}

/// Creates or changes a MemberCluster.
pub async fn put_member(client: &Client, name: &str, spec: Value) -> anyhow::Result<()> {
    let object = json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "MemberCluster",
        "metadata": {"name": name}, "spec": spec,
    });
    let api = Api::<MemberCluster>::all(client.clone());
    api.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(object))
        .await?;
    Ok(())
}

/// Creates or changes a ShardingConfig in [`NAMESPACE`].
pub async fn put_shard(client: &Client, name: &str, spec: Value) -> anyhow::Result<()> {
    put_shard_of(client, (NAMESPACE, name), spec).await
}

/// The same in any namespace, which it creates.
pub async fn put_shard_of(client: &Client, (author, name): (&str, &str), spec: Value) -> anyhow::Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": author}});
    Api::<Namespace>::all(client.clone())
        .patch(author, &PatchParams::apply("test"), &Patch::Apply(namespace))
        .await?;
    let object = json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "ShardingConfig",
        "metadata": {"name": name, "namespace": author}, "spec": spec,
    });
    let api = Api::<ShardingConfig>::namespaced(client.clone(), author);
    api.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(object))
        .await?;
    Ok(())
}

/// By which the member of this name signs tokens, as long as the process lives.
fn key_of(cluster: &str) -> EncodingKey {
    static KEYS: Mutex<BTreeMap<String, EncodingKey>> = Mutex::new(BTreeMap::new());
    let new_key = || {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key of a curve that is supported");
        EncodingKey::from_ec_der(&key.serialize_der())
    };
    KEYS.lock().entry(cluster.to_owned()).or_insert_with(new_key).clone()
}

fn jwk_of(cluster: &str) -> Jwk {
    let mut jwk = Jwk::from_encoding_key(&key_of(cluster), Algorithm::ES256).expect("a key of P-256");
    jwk.common.key_id = Some(cluster.to_owned());
    jwk
}

/// What the member's agent shows of its key on the stream of this nonce.
pub fn proof_of(cluster: &str, nonce: &str) -> v1::SigningKeys {
    let header = Header {
        kid: Some(cluster.to_owned()),
        ..Header::new(Algorithm::ES256)
    };
    let account = format!("system:serviceaccount:{SYSTEM_NAMESPACE}:{SERVICE_ACCOUNT_PROOF}");
    let claims = json!({"sub": account, "aud": [proof_audience(nonce)]});
    v1::SigningKeys {
        jwks: facts_of(cluster).jwks,
        proof: jsonwebtoken::encode(&header, &claims, &key_of(cluster)).expect("a key that signs"),
    }
}

/// What a member cluster of this name pins at join.
pub fn facts_of(cluster: &str) -> v1::MemberFacts {
    v1::MemberFacts {
        cluster_uid: format!("uid-of-{cluster}"),
        jwks: json!({"keys": [jwk_of(cluster)]}).to_string(),
        kubernetes_version: "v1.36.3".to_owned(),
    }
}

/// Asks for an agent's certificate for the key that `csr` is of.
pub async fn enroll(channel: Channel, token: &str, csr: &[u8], facts: v1::MemberFacts) -> Result<Outcome, Status> {
    let request = v1::EnrollRequest {
        proof: Some(v1::enroll_request::Proof::BootstrapToken(token.to_owned())),
        csr: csr.to_vec(),
        member: Some(facts),
        pod: None,
    };
    let answer = EnrollmentClient::new(channel).enroll(request).await?.into_inner();
    answer
        .outcome
        .ok_or_else(|| Status::internal("an answer without outcome"))
}

/// The certificate of an agent that joins with this token, and its key.
pub async fn join(channel: Channel, token: &str, cluster: &str) -> anyhow::Result<Arc<IdentityStore>> {
    let key = pki::new_private_key()?;
    let csr = pki::signing_request(&key)?;
    match enroll(channel, token, &csr, facts_of(cluster)).await? {
        Outcome::Issued(issued) => Ok(IdentityStore::new(TlsIdentity::from_pem(
            &issued.certificate_pem,
            &key,
        )?)),
        Outcome::Pending(pending) => bail!("pending: {}", pending.reason),
    }
}

/// An agent's end of its stream, of a healthy member.
#[derive(Debug)]
pub struct Agent {
    outbox: mpsc::Sender<v1::AgentMessage>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Agent {
    /// Opens the stream of the agent whose certificate `channel` offers, and that gives each router this token.
    pub async fn connect(channel: Channel, cluster: &str, token: &str) -> anyhow::Result<Self> {
        let facts = facts_of(cluster);
        let hello = v1::AgentHello {
            protocol: PROTOCOL,
            version: "v0-test".to_owned(),
            cluster_uid: facts.cluster_uid,
            kubernetes_version: facts.kubernetes_version,
            jwks: facts.jwks,
            ..v1::AgentHello::default()
        };
        let (outbox, messages) = mpsc::channel(OUTBOX);
        outbox.send(message(Kind::Hello(hello))).await?;
        let mut client = AgentControlClient::new(channel);
        let updates = client.connect(ReceiverStream::new(messages)).await?.into_inner();
        Ok(Self {
            tasks: vec![
                beat_on(outbox.clone()),
                answer_on(updates, outbox.clone(), cluster.to_owned(), token.to_owned()),
            ],
            outbox,
        })
    }

    /// Sends one report.
    pub async fn say(&self, kind: Kind) -> anyhow::Result<()> {
        self.outbox.send(message(kind)).await.context("the stream has ended")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

#[expect(clippy::disallowed_methods, reason = "ends with the agent that it is a part of")]
fn answer_on(
    mut updates: Streaming<v1::AgentUpdate>,
    outbox: mpsc::Sender<v1::AgentMessage>,
    cluster: String,
    token: String,
) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        while let Ok(Some(update)) = updates.message().await {
            let config = match update.kind {
                Some(v1::agent_update::Kind::Config(config)) => config,
                Some(v1::agent_update::Kind::KeyChallenge(asked)) => {
                    let shown = proof_of(&cluster, &asked.nonce);
                    let _ = outbox.send(message(Kind::SigningKeys(shown))).await;
                    continue;
                }
                _ => continue,
            };
            for router in config.routers.unwrap_or_default().routers {
                let minted = v1::MemberToken {
                    token: token.clone(),
                    expires_unix_seconds: 4_000_000_000,
                    router: Some(router),
                };
                let _ = outbox.send(message(Kind::MemberToken(minted))).await;
            }
        }
    })
}

fn message(kind: Kind) -> v1::AgentMessage {
    v1::AgentMessage { kind: Some(kind) }
}

#[expect(clippy::disallowed_methods, reason = "ends with the agent that it is a part of")]
fn beat_on(outbox: mpsc::Sender<v1::AgentMessage>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let beat = message(Kind::Heartbeat(v1::Heartbeat {
            api_ready: true,
            latency_milliseconds: 3,
            ..v1::Heartbeat::default()
        }));
        while outbox.send(beat.clone()).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    })
}
