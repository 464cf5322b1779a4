//! A member with the RBAC that `portolanctl join` installs, and agents that run there by exactly that.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt as _};
use portolan_agent::app::{Bound, build};
use portolan_agent::args::{AgentArgs, Config, UninstallConfig};
use portolan_crds::policy::{Policy, PolicyInput};
use portolan_crds::{GroupResource, LabelKeys};
use portolan_runtime::{Telemetry, TelemetryArgs, telemetry, tls};
use portolan_testbed::{Cluster, Options, Testbed, kubectl};
use portolan_wire::v1 as wire;
use serde_json::json;

use crate::hub::{Hub, TOKEN};

/// The agent's user name in every member.
pub(crate) const AGENT: &str = "system:serviceaccount:portolan-system:portolan-agent";
pub(crate) const PREFIX: &str = "ctrlmesh.kusionstack.io/";

/// What a hub asks for by default in these tests.
pub(crate) fn config(kinds: &[(&str, &str)]) -> wire::AgentConfig {
    wire::AgentConfig {
        label_prefix: PREFIX.to_owned(),
        bucketing: Some(wire::Bucketing {
            algorithm: wire::BucketAlgorithm::Legacy.into(),
            buckets: 32,
        }),
        labelled_kinds: kinds
            .iter()
            .map(|(group, resource)| wire::KindRef {
                group: (*group).to_owned(),
                resource: (*resource).to_owned(),
            })
            .collect(),
        caller_selectors: Vec::new(),
        fences: Vec::new(),
        term: 0,
        routers: Some(wire::Routers {
            routers: vec![wire::RouterRef {
                name: "gateway".to_owned(),
                uid: "0a1b".to_owned(),
            }],
        }),
    }
}

pub(crate) struct Scene {
    pub(crate) testbed: Testbed,
    pub(crate) hub: Hub,
    /// Administrator.
    pub(crate) client: Client,
    /// The administrator under the agent's name: what it writes passes the policies.
    pub(crate) as_agent: Client,
    folder: tempfile::TempDir,
}

impl Scene {
    pub(crate) async fn start(config: wire::AgentConfig, ttl: Duration) -> anyhow::Result<Self> {
        Self::start_with(config, ttl, &[]).await
    }

    /// With more flags for the member's API server.
    pub(crate) async fn start_with(config: wire::AgentConfig, ttl: Duration, flags: &[&str]) -> anyhow::Result<Self> {
        tls::install_crypto_provider();
        let testbed = Testbed::start_with(Options {
            clusters: vec!["east".to_owned()],
            apiserver_args: flags.iter().map(|&flag| flag.to_owned()).collect(),
            ..Options::default()
        })
        .await?;
        let hub = Hub::start(config, ttl).await?;
        let client = testbed.cluster("east").client().await?;
        let as_agent = impersonating(testbed.cluster("east"), AGENT).await?;
        let folder = tempfile::tempdir()?;
        let scene = Self {
            testbed,
            hub,
            client,
            as_agent,
            folder,
        };
        scene
            .kubectl(&["apply", "-f", &repository("deploy/member/rbac.yaml")])
            .await?;
        scene.policies(&[]).await?;
        let token = scene
            .member()
            .issue_token("portolan-system", "portolan-agent", &[], None)
            .await?;
        scene.write_kubeconfig(&scene.member().url(), &token)?;
        Ok(scene)
    }

    /// Agents that start from now on reach the member by this address.
    pub(crate) async fn reach_by(&self, url: &str) -> anyhow::Result<()> {
        let issue = self
            .member()
            .issue_token("portolan-system", "portolan-agent", &[], None);
        self.write_kubeconfig(url, &issue.await?)
    }

    pub(crate) fn member(&self) -> &Cluster {
        self.testbed.cluster("east")
    }

    /// kubectl as administrator; its output, or its error text.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = kubectl(self.member().direct_kubeconfig_path())
            .args(arguments)
            .output()
            .await?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        anyhow::ensure!(
            output.status.success(),
            "kubectl {arguments:?}: {}",
            text(&output.stderr)
        );
        Ok(text(&output.stdout))
    }

    /// The policies as `portolanctl join` writes them, with `--label-kind` for more kinds.
    pub(crate) async fn policies(&self, more: &[GroupResource]) -> anyhow::Result<()> {
        let input = PolicyInput {
            keys: LabelKeys::default(),
            kinds: more
                .iter()
                .cloned()
                .chain([GroupResource::new("", "configmaps")])
                .collect(),
        };
        for manifest in Policy::ALL.into_iter().flat_map(|policy| policy.manifests(&input)) {
            let file = tempfile::NamedTempFile::new()?;
            std::fs::write(file.path(), manifest.to_string())?;
            let file = file.path().to_str().context("a path in UTF-8")?;
            self.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", file])
                .await?;
        }
        Ok(())
    }

    /// What `portolanctl join` leaves in the member.
    pub(crate) async fn bootstrap(&self, token: &str) -> anyhow::Result<()> {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": "portolan-agent-bootstrap", "namespace": "portolan-system" },
            "stringData": { "token": token, "hub": self.hub.address.to_string(), "ca.crt": self.hub.ca_pem },
        });
        let secrets = Api::<Secret>::namespaced(self.client.clone(), "portolan-system");
        secrets
            .patch(
                "portolan-agent-bootstrap",
                &PatchParams::apply("test").force(),
                &Patch::Apply(secret),
            )
            .await?;
        Ok(())
    }

    /// Joined and accepted.
    pub(crate) async fn joined_agent(&self) -> anyhow::Result<Bound> {
        self.hub.accept();
        self.bootstrap(TOKEN).await?;
        self.agent().await
    }

    pub(crate) async fn agent(&self) -> anyhow::Result<Bound> {
        let kubeconfig = self.kubeconfig();
        let addresses = self.folder.path().join("addresses.json");
        let flags = [
            "portolan-agent".as_ref(),
            "--kubeconfig".as_ref(),
            kubeconfig.as_os_str(),
            "--admin-bind=127.0.0.1:0".as_ref(),
            "--labels-per-second=1000".as_ref(),
            "--addresses-file".as_ref(),
            addresses.as_os_str(),
        ];
        let config =
            Config::try_from(AgentArgs::try_parse_from(flags)?.run).map_err(|faults| anyhow::anyhow!("{faults:?}"))?;
        build(config, telemetry()).await
    }

    /// What `portolan-agent uninstall` does, as administrator.
    pub(crate) async fn uninstall(&self) -> anyhow::Result<()> {
        let kubeconfig = self.member().direct_kubeconfig_path().as_os_str();
        let flags = [
            "portolan-agent".as_ref(),
            "uninstall".as_ref(),
            "--kubeconfig".as_ref(),
            kubeconfig,
        ];
        let Some(portolan_agent::args::Command::Uninstall(args)) = AgentArgs::try_parse_from(flags)?.command else {
            anyhow::bail!("no uninstall")
        };
        let config = UninstallConfig::try_from(args).map_err(|faults| anyhow::anyhow!("{faults:?}"))?;
        portolan_agent::uninstall::run(config).await
    }

    pub(crate) fn config_maps(&self, namespace: &str) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) async fn namespace(&self, name: &str) -> anyhow::Result<()> {
        let namespace = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
        Api::<Namespace>::all(self.client.clone())
            .create(&PostParams::default(), &namespace)
            .await?;
        Ok(())
    }

    /// Objects of a kind in all namespaces, as `namespace/name: bucket namespace control`.
    pub(crate) async fn labels(&self, group: &str, version: &str, kind: &str) -> anyhow::Result<Vec<String>> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let objects = Api::<DynamicObject>::all_with(self.client.clone(), &resource);
        let objects = objects.list(&ListParams::default()).await?;
        Ok(objects
            .iter()
            .map(|object| {
                format!(
                    "{}/{}: {}",
                    object.namespace().unwrap_or_default(),
                    object.name_any(),
                    ours(object.labels())
                )
            })
            .collect())
    }

    fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("agent.kubeconfig")
    }

    /// By the ServiceAccount's own token and nothing more.
    fn write_kubeconfig(&self, url: &str, token: &str) -> anyhow::Result<()> {
        use base64::Engine as _;
        let ca = base64::engine::general_purpose::STANDARD.encode(self.member().ca_pem());
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "agent",
            "clusters": [{ "name": "agent", "cluster": { "server": url, "certificate-authority-data": ca } }],
            "users": [{ "name": "agent", "user": { "token": token } }],
            "contexts": [{ "name": "agent", "context": { "cluster": "agent", "user": "agent" } }],
        });
        std::fs::write(self.kubeconfig(), kubeconfig.to_string()).context("writing the agent's kubeconfig")
    }
}

/// The values of our three labels, `-` for one that is not there.
pub(crate) fn ours(labels: &std::collections::BTreeMap<String, String>) -> String {
    let value = |key: &str| labels.get(&format!("{PREFIX}{key}")).map_or("-", String::as_str);
    format!("{} {} {}", value("sharding-hash"), value("namespace"), value("control"))
}

async fn impersonating(cluster: &Cluster, user: &str) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(cluster.direct_kubeconfig_path())?;
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.auth_info.impersonate = Some(user.to_owned());
    config.auth_info.impersonate_groups = Some(vec!["system:masters".to_owned()]);
    Ok(Client::try_from(config)?)
}

pub(crate) fn repository(path: &str) -> String {
    let root = option_env!("PORTOLAN_REPOSITORY")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), PathBuf::from);
    root.join(path).to_string_lossy().into_owned()
}

/// One for the process, as telemetry is.
fn telemetry() -> Telemetry {
    static TELEMETRY: OnceLock<Telemetry> = OnceLock::new();
    let args = TelemetryArgs {
        log_format: telemetry::LogFormat::Text,
        log_level: "info,kube=off".to_owned(),
        ..TelemetryArgs::default()
    };
    TELEMETRY
        .get_or_init(|| telemetry::init("portolan-agent", &args).expect("telemetry starts once"))
        .clone()
}
