//! Three control planes, a node of east, a fleet whose router is a Service there, and two operators with shards of their own.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use portolan_testbed::{Cluster, Image, Lan, Options, Testbed, eventually};
use portolan_tests::kubectl::Kubectl;
use portolan_tests::programs::{argument, program};
use portolan_tests::world::create_namespace;
use portolan_tests::{Fleet, FleetOptions, ctl};
use serde_json::{Value, json};

pub(crate) const ASKS: &str = "ctrlmesh.kusionstack.io/enable-proxy";
pub(crate) const KEEPS: &str = "ctrlmesh.kusionstack.io/keep-account-token";
pub(crate) const GATEWAY: &str = "portolan-router.portolan-system.svc";
/// Namespace of the operators.
pub(crate) const HOME: &str = "operators";
/// The operator in kube-rs; also its ServiceAccount.
pub(crate) const OPERATOR: &str = "greeting-operator";
/// The one in controller-runtime.
pub(crate) const GO: &str = "greeting-operator-go";
pub(crate) const PROBE: &str = "registry.example.com/probe:1";
const CRD: &str = include_str!("../../../examples/greeting-crd.yaml");
const RBAC: &str = include_str!("../../../examples/greeting-rbac.yaml");
const DEPLOYMENT: &str = include_str!("../../../examples/injected-operator.yaml");
const MEMBERS: [&str; 2] = ["east", "west"];
/// Who works where.
const PLACES: [(&str, &str, &str); 4] = [
    (OPERATOR, "east", "shop-a"),
    (OPERATOR, "west", "shop-b"),
    (GO, "east", "shop-c"),
    (GO, "west", "shop-d"),
];
/// Who asks for metrics may get them; the operator may ask who that is.
const METRICS: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: scraper, namespace: operators}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: scraper}
rules: [{nonResourceURLs: [/metrics], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: scraper}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: scraper}
subjects: [{kind: ServiceAccount, name: scraper, namespace: operators}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: greeting-operator-metrics}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:auth-delegator}
subjects: [{kind: ServiceAccount, name: greeting-operator, namespace: operators}]
";
const AUDIT: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
";

pub(crate) struct World {
    pub(crate) fleet: Fleet,
    testbed: Testbed,
    _policy: tempfile::TempDir,
}

impl World {
    /// With more images on the node.
    pub(crate) async fn start(more: Vec<Image>) -> anyhow::Result<Self> {
        let policy = tempfile::tempdir()?;
        let file = policy.path().join("audit.yaml");
        std::fs::write(&file, AUDIT)?;
        let image = |name: &str| format!("registry.example.com/{name}:1.0");
        let mut images = vec![
            Image::new(&image(OPERATOR), program(OPERATOR)?),
            Image::new(&image(GO), program(GO)?),
            Image::new(PROBE, program("pod-program")?),
        ];
        images.extend(more);
        let testbed = Testbed::start_with(Options {
            clusters: ["hub"].into_iter().chain(MEMBERS).map(str::to_owned).collect(),
            nodes: [("east".to_owned(), images)].into(),
            apiserver_args: vec![
                format!("--audit-policy-file={}", file.display()),
                "--audit-log-path=-".to_owned(),
            ],
            ..Options::default()
        })
        .await?;
        for member in MEMBERS {
            let kubectl = Kubectl::new(testbed.cluster(member).direct_kubeconfig_path());
            for manifest in [CRD, RBAC, METRICS] {
                kubectl.ok_with(&["apply", "-f", "-"], manifest).await?;
            }
        }
        for (_, member, namespace) in PLACES {
            create_namespace(testbed.cluster(member), namespace).await?;
        }
        let options = FleetOptions {
            hub: "hub",
            members: &MEMBERS,
            router_address: Lan::here().map(|lan| lan.address().into()),
            gateway: Some(GATEWAY),
            ..FleetOptions::default()
        };
        let fleet = Fleet::start(&testbed, options).await?;
        let world = Self {
            fleet,
            testbed,
            _policy: policy,
        };
        world.install().await?;
        Ok(world)
    }

    /// As somebody does it who has read the docs.
    async fn install(&self) -> anyhow::Result<()> {
        for member in MEMBERS {
            let file = argument(self.cluster(member).direct_kubeconfig_path());
            let account = format!("{HOME}/{OPERATOR}");
            ctl::ok(&["allow", "--member-kubeconfig", &file, &account]).await?;
        }
        self.kubectl("east")
            .ok_with(&["apply", "-f", "-"], &self.service()?)
            .await?;
        let shards = [OPERATOR, GO].map(|operator| shard(operator, OPERATOR)).join("---\n");
        let namespace = ["create", "namespace", HOME];
        self.kubectl("hub").ok(&namespace).await?;
        self.kubectl("hub").ok_with(&["apply", "-f", "-"], &shards).await?;
        for operator in [OPERATOR, GO] {
            let deployment = of(DEPLOYMENT, operator);
            self.kubectl("east").ok_with(&["apply", "-f", "-"], &deployment).await?;
        }
        for (_, member, namespace) in PLACES {
            let greeting = json!({
                "apiVersion": "example.com/v1", "kind": "Greeting",
                "metadata": {"name": "hello", "namespace": namespace}, "spec": {"message": "0", "replicas": 0},
            });
            let create = ["create", "-f", "-"];
            self.kubectl(member).ok_with(&create, &greeting.to_string()).await?;
        }
        Ok(())
    }

    /// The router's, which runs beside the node.
    fn service(&self) -> anyhow::Result<String> {
        let url = self.fleet.router_url()?;
        let (address, port) = url
            .strip_prefix("https://")
            .and_then(|at| at.rsplit_once(':'))
            .context("a URL")?;
        let port: u16 = port.parse()?;
        let metadata = json!({
            "name": "portolan-router", "namespace": "portolan-system",
            "labels": {"kubernetes.io/service-name": "portolan-router"},
        });
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"ports": [{"name": "https", "port": 443}]},
        });
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4",
            "ports": [{"name": "https", "port": port}], "endpoints": [{"addresses": [address]}],
        });
        Ok(json!({"apiVersion": "v1", "kind": "List", "items": [service, slice]}).to_string())
    }

    /// The folder that goes in the end.
    pub(crate) fn testbed(&self) -> &Path {
        self.testbed.dir()
    }

    pub(crate) fn cluster(&self, name: &str) -> &Cluster {
        self.testbed.cluster(name)
    }

    /// As administrator, past the router.
    pub(crate) fn kubectl(&self, cluster: &str) -> Kubectl {
        Kubectl::new(self.cluster(cluster).direct_kubeconfig_path())
    }

    /// Changes each Greeting, and waits until the operators have followed.
    pub(crate) async fn works(&self, what: &str) {
        for (operator, member, namespace) in PLACES {
            let kubectl = self.kubectl(member);
            let greeting = ["greeting", "hello", "-n", namespace];
            let patch = format!(r#"{{"spec":{{"message":"{what}"}}}}"#);
            let arguments = [&["patch"], &greeting[..], &["--type=merge", "-p", &patch]].concat();
            kubectl.ok(&arguments).await.unwrap();
            eventually(&format!("{operator} {what}: {member}/{namespace}"), || async {
                let arguments = [&["get"], &greeting[..], &["-o", "json"]].concat();
                let found: Value = serde_json::from_str(&kubectl.ok(&arguments).await?)?;
                let generation = &found["metadata"]["generation"];
                ensure!(
                    found["status"]["observedGeneration"] == *generation,
                    "{}",
                    found["status"]
                );
                Ok(())
            })
            .await;
        }
    }

    /// The one Pod of an operator, once there is one alone.
    pub(crate) async fn try_pod(&self, operator: &str) -> anyhow::Result<Value> {
        let label = format!("app={operator}");
        let get = ["get", "pods", "-n", HOME, "-l", &label, "-o", "json"];
        let pods: Value = serde_json::from_str(&self.kubectl("east").ok(&get).await?)?;
        let items = pods["items"].as_array().context("a list")?;
        ensure!(items.len() == 1, "{} Pods", items.len());
        Ok(items[0].clone())
    }

    pub(crate) async fn pod(&self, operator: &str) -> Value {
        self.try_pod(operator).await.unwrap()
    }

    /// Deletes the Pod of an operator, and waits until the next one has run.
    pub(crate) async fn renew(&self, operator: &str) {
        self.scale(operator, 0).await;
        self.scale(operator, 1).await;
        eventually(&format!("a new Pod of {operator} runs"), || async {
            let pod = self.try_pod(operator).await?;
            let container = &pod["status"]["containerStatuses"][0];
            let has_run = !container["state"]["running"].is_null() || container["restartCount"].as_u64() > Some(0);
            ensure!(has_run, "{}", pod["status"]);
            Ok(())
        })
        .await;
    }

    /// Returns when there are so many Pods of an operator.
    pub(crate) async fn scale(&self, operator: &str, replicas: usize) {
        let (name, replicas) = (format!("deployment/{operator}"), format!("--replicas={replicas}"));
        let kubectl = self.kubectl("east");
        kubectl.ok(&["scale", "-n", HOME, &name, &replicas]).await.unwrap();
        eventually("there are so many", || async {
            let label = format!("app={operator}");
            let get = ["get", "pods", "-n", HOME, "-l", &label, "-o", "name"];
            let found = kubectl.ok(&get).await?.lines().count();
            ensure!(replicas.ends_with(&format!("={found}")), "{found}");
            Ok(())
        })
        .await;
    }

    /// How many requests east's API server has had of clients whose User-Agent begins so.
    pub(crate) fn audited(&self, agent: &str) -> anyhow::Result<usize> {
        let file: PathBuf = self.testbed.dir().join("east/kube-apiserver.log");
        let log = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        Ok(log.matches(&format!("\"userAgent\":\"{agent}")).count())
    }
}

/// A manifest of the greeting operator, for another one; the one in controller-runtime serves metrics as kubebuilder has it.
fn of(manifest: &str, operator: &str) -> String {
    let manifest = manifest.replace("app: greeting-operator", &format!("app: {operator}"));
    let manifest = manifest.replace("greeting-operator:1.0", &format!("{operator}:1.0"));
    let manifest = manifest.replace("  name: greeting-operator\n", &format!("  name: {operator}\n"));
    let image = format!("{GO}:1.0\n");
    manifest.replace(
        &image,
        &format!("{image}          args: [\"--metrics-bind-address=:8443\"]\n"),
    )
}

/// Of an operator, in the places of its own: those of the greeting operator in kube-rs if it has none.
pub(crate) fn shard(operator: &str, lease: &str) -> String {
    let has = PLACES.iter().any(|(of, ..)| *of == operator);
    let of = if has { operator } else { OPERATOR };
    let places = PLACES.iter().filter(|(one, ..)| *one == of);
    let clusters: Vec<_> = places
        .map(|(_, name, namespace)| json!({"name": name, "namespaces": [namespace]}))
        .collect();
    let shard = json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "ShardingConfig",
        "metadata": {"name": operator, "namespace": HOME},
        "spec": {
            "selector": {"matchLabels": {"app": operator}}, "controller": {"leaderElectionName": lease}, "operator": operator,
            "callerClusters": ["east"], "clusters": clusters,
        },
    });
    format!("{shard}\n")
}
