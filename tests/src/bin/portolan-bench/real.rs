//! The real place: hub and one member on the testbed's control planes, joined and routed by `portolanctl dev up`.
//!
//! Router and direct client are the same ServiceAccount, so that the API server does the same for both but for the
//! impersonation.

use std::sync::Arc;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, Patch, PatchParams};
use portolan_runtime::pki::CertificateAuthority;
use portolan_runtime::tls::{self, ALPN_GRPC, Identity, IdentityStore, TrustStore};
use portolan_runtime::{Secret, files};
use portolan_testbed::Testbed;
use portolan_tests::programs::argument;
use portolan_tests::{Fleet, FleetOptions, shard};
use rustls::ClientConfig;
use serde_json::{Value, json};

use crate::backend::config_map;
use crate::child::Child;
use crate::hub::TTL;
use crate::load::Route;
use crate::place::{Subject, bearer};
use crate::scripted::{start_forwarder, write_identity};

const MEMBER: &str = "east";
const SHARD: &str = "bench";
/// The caller that `portolanctl dev up` makes for the shard.
const CALLER: (&str, &str) = ("operators", "portolan-dev-bench");

/// Everything of the real place, running.
pub(crate) struct Real {
    testbed: Testbed,
    fleet: Fleet,
    forwarder: Child,
    forwarder_address: String,
    forwarder_ca: String,
    _dir: tempfile::TempDir,
}

impl Real {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir().context("no temporary folder")?;
        let testbed = Testbed::start(&["hub", MEMBER]).await?;
        objects(&testbed).await?;
        let options = FleetOptions {
            hub: "hub",
            members: &[MEMBER],
            manifests: &shard::federated(SHARD, MEMBER, &[(MEMBER, &["bench"])]),
            past_stage: true,
            ..FleetOptions::default()
        };
        let fleet = Fleet::start(&testbed, options).await?;
        let ca = CertificateAuthority::generate("bench forwarder CA")?;
        let identity = argument(&dir.path().join("server.pem"));
        write_identity(&identity, &ca.issue_server("bench", &["127.0.0.1"], TTL)?)?;
        let backend_ca = argument(&dir.path().join("member-ca.pem"));
        files::write_public(&backend_ca, testbed.cluster(MEMBER).ca_pem())?;
        let backend = testbed.cluster(MEMBER).direct_url();
        let backend = backend.trim_start_matches("https://");
        let mut forwarder = start_forwarder(dir.path(), &identity, &backend_ca, backend)?;
        Ok(Self {
            forwarder_address: forwarder.address("bind").await?,
            forwarder_ca: ca.pem().to_owned(),
            testbed,
            fleet,
            forwarder,
            _dir: dir,
        })
    }

    /// Process of the API server.
    pub(crate) fn server(&self) -> anyhow::Result<i32> {
        self.testbed.cluster(MEMBER).apiserver_pid().context("no API server")
    }

    /// Direct, forwarder, router by explicit and by merged view.
    pub(crate) async fn subjects(&self) -> anyhow::Result<Vec<Subject>> {
        let member = self.testbed.cluster(MEMBER);
        let own = bearer(&member.issue_token(CALLER.0, CALLER.1, &[], None).await?)?;
        let router = self.fleet.router_url()?;
        let router_pid = Some(self.fleet.process("router")?.pid);
        let hub_ca = self.fleet.ca_pem()?;
        let merged = bearer(&self.fleet.merged_token(SHARD)?)?;
        let direct = route(&member.direct_url(), trusting(member.ca_pem(), None)?, "", &own)?;
        let forwarder = route(&self.forwarder_address, trusting(&self.forwarder_ca, None)?, "", &own)?;
        let person = trusting(&hub_ca, Some(person(&self.fleet)?))?;
        let explicit = route(&router, person, &format!("/clusters/{MEMBER}"), &HeaderMap::new())?;
        let merged = route(&router, trusting(&hub_ca, None)?, "", &merged)?;
        Ok(vec![
            Subject::new("direct", direct, None),
            Subject::new("forwarder", forwarder, Some(self.forwarder.pid())),
            Subject::new("router, explicit", explicit, router_pid),
            Subject::new("router, merged", merged, router_pid),
        ])
    }

    /// A watch that is silent until [`Self::emit`].
    pub(crate) async fn watch_path(&self) -> anyhow::Result<String> {
        let list = self.config_maps().await?.list_metadata(&ListParams::default()).await?;
        let version = list.metadata.resource_version.context("a list has a resourceVersion")?;
        Ok(format!(
            "/api/v1/namespaces/bench/configmaps?watch=true&resourceVersion={version}"
        ))
    }

    /// Changes the ConfigMap, straight at the API server.
    pub(crate) async fn emit(&self) -> anyhow::Result<()> {
        let change = json!({"metadata": {"annotations": {"example.com/touched": "now"}}});
        let maps = self.config_maps().await?;
        maps.patch("settings", &PatchParams::default(), &Patch::Merge(&change))
            .await?;
        Ok(())
    }

    async fn config_maps(&self) -> anyhow::Result<Api<ConfigMap>> {
        Ok(Api::namespaced(self.testbed.cluster(MEMBER).client().await?, "bench"))
    }
}

async fn objects(testbed: &Testbed) -> anyhow::Result<()> {
    let client = testbed.cluster(MEMBER).client().await?;
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bench"}});
    let by = PatchParams::apply("portolan-bench");
    namespaces.patch("bench", &by, &Patch::Apply(&namespace)).await?;
    let mut wanted = config_map("bench", "settings");
    // What the API server sets itself.
    wanted["metadata"] = json!({"name": "settings", "namespace": "bench"});
    let maps: Api<ConfigMap> = Api::namespaced(client, "bench");
    maps.patch("settings", &by, &Patch::Apply(&wanted)).await?;
    Ok(())
}

/// The client certificate that `dev up` wrote.
pub(crate) fn person(fleet: &Fleet) -> anyhow::Result<Arc<IdentityStore>> {
    let yaml = std::fs::read_to_string(fleet.explicit_kubeconfig()).context("no explicit kubeconfig")?;
    let kubeconfig: Value = serde_yaml_ng::from_str(&yaml)?;
    let user = &kubeconfig["users"][0]["user"];
    let certificate = text(&user["client-certificate-data"])?;
    let key = text(&user["client-key-data"])?;
    Ok(IdentityStore::new(Identity::from_pem(&certificate, &Secret::new(key))?))
}

pub(crate) fn trusting(ca_pem: &str, identity: Option<Arc<IdentityStore>>) -> anyhow::Result<Arc<ClientConfig>> {
    Ok(tls::client_config(TrustStore::from_pem(ca_pem)?, identity, ALPN_GRPC)?)
}

pub(crate) fn route(url: &str, tls: Arc<ClientConfig>, prefix: &str, headers: &HeaderMap) -> anyhow::Result<Route> {
    Ok(Route {
        address: url.trim_start_matches("https://").parse()?,
        tls,
        prefix: prefix.to_owned(),
        headers: headers.clone(),
    })
}

fn text(base64: &Value) -> anyhow::Result<String> {
    let base64 = base64
        .as_str()
        .context("no client certificate in the explicit kubeconfig")?;
    String::from_utf8(STANDARD.decode(base64)?).context("the client certificate is not text")
}
