//! Two members, of which one has a Node that runs hub, routers and its agent, by the charts; and an operator.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt as _};
use portolan_testbed::{Cluster, Image, Options, Release, Testbed, eventually};
use portolan_tests::daemon::{Daemon, Launch};
use portolan_tests::helm::{self, SYSTEM, chart, take_over};
use portolan_tests::kubectl::Kubectl;
use portolan_tests::programs::{argument, program};
use portolan_tests::watch::{Held, held};
use portolan_tests::world::AUDIENCE;
use portolan_tests::{ctl, door::Door};
use serde_json::json;

const PREFIX: &str = "registry.example.com/portolan";
/// By this name the cluster of the hub is a member as well.
pub(crate) const HOME: &str = "home";
/// It has an agent that runs beside the test.
pub(crate) const EAST: &str = "east";
/// What the operator has: a namespace of each member.
pub(crate) const PLACES: [(&str, &str); 2] = [(HOME, "shop-home"), (EAST, "shop-east")];
/// ConfigMaps that are in each of them from the first moment to the last.
pub(crate) const STAY: usize = 10;
/// Tags of the images.
pub(crate) const OLD: &str = "1.0";
pub(crate) const NEW: &str = "2.0";
const ROUTERS: &str = "portolan-routers";
const ROUTER_NAME: &str = "portolan-router.portolan-routers.svc";
/// Of release `portolan` when all ran for the first time, and of `portolan-agent`.
const INSTALLED: (&str, &str) = ("2", "1");
/// What replicas of the hub must agree on.
const SETTING: &str = "--longest-lease-seconds=150";
const SHARDS: &str = "
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: ShardingConfig
metadata: {name: demo, namespace: operators}
spec:
  selector: {matchLabels: {app: my-operator}}
  controller: {leaderElectionName: my-operator}
  callerClusters: [home]
  clusters:
    - {name: home, namespaces: [shop-home]}
    - {name: east, namespaces: [shop-east]}
---
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: ShardingConfig
metadata: {name: edited, namespace: operators}
spec:
  selector: {matchLabels: {app: nobody}}
  controller: {leaderElectionName: nobody}
  callerClusters: [home]
  clusters: [{name: east, namespaces: [edited-0]}]
";

/// What is upgraded by itself.
#[derive(Clone, Copy)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    namespace: &'static str,
    release: &'static str,
    /// The value of its release that names its tag.
    tag: &'static str,
    replicas: usize,
}

pub(crate) const HUB: Program = Program {
    name: "portolan-hub",
    namespace: SYSTEM,
    release: "portolan",
    tag: "image.tag",
    replicas: 2,
};
pub(crate) const AGENT: Program = Program {
    name: "portolan-agent",
    namespace: SYSTEM,
    release: "portolan-agent",
    tag: "image.tag",
    replicas: 2,
};
pub(crate) const ROUTER: Program = Program {
    name: "portolan-router",
    namespace: ROUTERS,
    release: "portolan",
    tag: "router.image.tag",
    replicas: 2,
};

pub(crate) struct Ground {
    _agent: Daemon,
    /// Of the operator, by the routers' Service.
    operator: PathBuf,
    testbed: Testbed,
}

impl Ground {
    /// Everything runs, of the old images, and the operator is answered.
    pub(crate) async fn begin() -> Self {
        let images = [HUB, AGENT, ROUTER].iter().flat_map(|program_of| {
            [OLD, NEW].map(|tag| {
                let version = Release {
                    version: tag.to_owned(),
                    ..Release::default()
                };
                let name = format!("{PREFIX}/{}:{tag}", program_of.name);
                Image::new(&name, program(program_of.name).unwrap()).released(version)
            })
        });
        let testbed = Testbed::start_with(Options {
            clusters: vec!["hub".to_owned(), EAST.to_owned()],
            nodes: [("hub".to_owned(), images.collect())].into(),
            ..Options::default()
        });
        let testbed = testbed.await.unwrap();
        prepare(&testbed).await;
        let hub = install_hub(&testbed).await;
        install_home(&testbed).await;
        let agent = join_east(&testbed, &hub).await;
        let operator = operator(&testbed).await;
        let ground = Self {
            _agent: agent,
            operator,
            testbed,
        };
        ground.answers().await;
        ground
    }

    pub(crate) fn cluster(&self, member: &str) -> &Cluster {
        cluster(&self.testbed, member)
    }

    /// Of the operator, by the address of the routers' Service.
    pub(crate) fn operator(&self) -> &Path {
        &self.operator
    }

    /// The operator as an operator in Rust.
    pub(crate) async fn client(&self) -> Client {
        let kubeconfig = Kubeconfig::read_from(&self.operator).unwrap();
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
        Client::try_from(config.unwrap()).unwrap()
    }

    /// The operator, byte for byte.
    pub(crate) async fn door(&self) -> Door {
        Door::of_kubeconfig(&self.operator, None).await.unwrap()
    }

    /// What both members have, past the routers.
    pub(crate) async fn truth(&self) -> Held {
        let mut all = Held::new();
        for (member, namespace) in PLACES {
            let kubeconfig = self.cluster(member).direct_kubeconfig_path();
            let door = Door::of_kubeconfig(kubeconfig, None).await.unwrap();
            let path = format!("/api/v1/namespaces/{namespace}/configmaps");
            all.extend(held(&door.get(&path, &[]).await.unwrap().json()).unwrap());
        }
        all
    }

    async fn answers(&self) {
        let door = self.door().await;
        eventually("the operator sees both members", || async {
            let list = door.get("/api/v1/configmaps", &[]).await?;
            anyhow::ensure!(list.status == 200, "{}", list.message());
            let (seen, truth) = (held(&list.json())?, self.truth().await);
            anyhow::ensure!(seen.keys().eq(truth.keys()), "{seen:?}");
            Ok(())
        })
        .await;
    }

    /// `helm upgrade` to the new image of this program alone.
    pub(crate) async fn upgrade(&self, program: Program) {
        let set = format!("{}={NEW}", program.tag);
        let chart = argument(&chart(program.release));
        helm(
            &self.testbed,
            &[
                "upgrade",
                program.release,
                &chart,
                "--reset-then-reuse-values",
                "--set",
                &set,
            ],
        )
        .await;
    }

    /// Other settings of the hub, which its replicas must agree on.
    pub(crate) async fn settings(&self) {
        let set = format!("hub.extraArgs={{{SETTING}}}");
        let chart = argument(&chart("portolan"));
        helm(
            &self.testbed,
            &[
                "upgrade",
                "portolan",
                &chart,
                "--reset-then-reuse-values",
                "--set",
                &set,
            ],
        )
        .await;
        runs(&self.testbed, HUB, (NEW, Some(SETTING))).await;
    }

    /// All releases at once.
    pub(crate) async fn roll_back(&self) {
        for (release, revision) in [("portolan", INSTALLED.0), ("portolan-agent", INSTALLED.1)] {
            helm(&self.testbed, &["rollback", release, revision]).await;
        }
    }

    /// Waits until a program runs by this image alone: nothing of the other one is left.
    pub(crate) async fn runs(&self, program: Program, tag: &str) {
        runs(&self.testbed, program, (tag, None)).await;
    }
}

/// The one of the hub is called otherwise as a member.
fn cluster<'a>(testbed: &'a Testbed, member: &str) -> &'a Cluster {
    testbed.cluster(if member == HOME { "hub" } else { member })
}

fn kubectl(testbed: &Testbed, member: &str) -> Kubectl {
    Kubectl::new(cluster(testbed, member).direct_kubeconfig_path())
}

async fn helm(testbed: &Testbed, arguments: &[&str]) {
    let kubeconfig = cluster(testbed, HOME).direct_kubeconfig_path();
    helm::ok(Some(kubeconfig), arguments).await.unwrap();
}

/// By an image and, if it is told, with a flag; without it if not.
async fn runs(testbed: &Testbed, program: Program, (tag, flag): (&str, Option<&str>)) {
    let client = cluster(testbed, HOME).client().await.unwrap();
    let pods = Api::<Pod>::namespaced(client, program.namespace);
    let ours = ListParams::default().labels(&format!("app.kubernetes.io/name={}", program.name));
    let image = format!("{PREFIX}/{}:{tag}", program.name);
    eventually(&format!("{} runs by image {tag}", program.name), || async {
        let found = pods.list(&ours).await?.items;
        let good = found
            .iter()
            .all(|pod| is_ready(pod, &image) && is_told(pod) == flag.is_some());
        if good && found.len() == program.replicas {
            return Ok(());
        }
        let deployment = format!("deployment/{}", program.name);
        let logs = ["logs", "-n", program.namespace, &deployment, "--tail=20", "--all-pods"];
        let logs = kubectl(testbed, HOME).ok(&logs).await;
        let told: Vec<_> = found.iter().map(|pod| (pod.name_any(), &pod.status)).collect();
        anyhow::bail!("{told:?}\n{}", logs.unwrap_or_default())
    })
    .await;
}

fn is_ready(pod: &Pod, image: &str) -> bool {
    let containers = pod
        .status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten());
    let mut containers = containers.filter(|container| container.ready && container.image.ends_with(image));
    pod.metadata.deletion_timestamp.is_none() && containers.next().is_some()
}

fn is_told(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut args = containers.flat_map(|container| container.args.iter().flatten());
    args.any(|arg| arg == SETTING)
}

/// What people have before Portolan: namespaces, what is in them, and an operator's account with its rights.
async fn prepare(testbed: &Testbed) {
    for namespace in [SYSTEM, ROUTERS] {
        kubectl(testbed, HOME)
            .ok(&["create", "namespace", namespace])
            .await
            .unwrap();
    }
    for namespace in [SYSTEM, ROUTERS] {
        let restricted = "pod-security.kubernetes.io/enforce=restricted";
        let label = ["label", "namespace", namespace, restricted];
        kubectl(testbed, HOME).ok(&label).await.unwrap();
    }
    for (member, namespace) in PLACES {
        let kubectl = kubectl(testbed, member);
        for namespace in ["operators", namespace] {
            kubectl.ok(&["create", "namespace", namespace]).await.unwrap();
        }
        let stay = (0..STAY).map(|number| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("stays-{number}"), "namespace": namespace}}));
        let all = json!({"apiVersion": "v1", "kind": "List", "items": stay.collect::<Vec<_>>()}).to_string();
        kubectl.ok_with(&["create", "-f", "-"], &all).await.unwrap();
        let account = ["--serviceaccount", "operators:my-operator", "--clusterrole", "edit"];
        let bind = [&["create", "clusterrolebinding", "my-operator"], &account[..]].concat();
        kubectl.ok(&bind).await.unwrap();
    }
}

/// Two replicas that agents of other clusters reach at the Node, by the returned address.
async fn install_hub(testbed: &Testbed) -> String {
    let client = cluster(testbed, HOME).client().await.unwrap();
    let node = Api::<Node>::all(client.clone())
        .list(&ListParams::default())
        .await
        .unwrap();
    let addresses = node.items[0].status.clone().unwrap().addresses.unwrap();
    let address = addresses
        .into_iter()
        .find(|one| one.type_ == "InternalIP")
        .unwrap()
        .address;
    let chart = argument(&chart("portolan"));
    let values = format!(
        "image.tag={OLD},hub.replicas=2,hub.routersOf={{{HOME}}},hub.service.type=NodePort,hub.advertise={{{address}}}"
    );
    helm(testbed, &["install", "portolan", &chart, "--set", &values]).await;
    runs(testbed, HUB, (OLD, None)).await;
    let service = Api::<Service>::namespaced(client, SYSTEM)
        .get("portolan-hub")
        .await
        .unwrap();
    let ports = service.spec.unwrap().ports.unwrap();
    let port = ports.iter().find(|port| port.name.as_deref() == Some("grpc")).unwrap();
    format!("{address}:{}", port.node_port.unwrap())
}

async fn join(testbed: &Testbed, member: &str, hub: &str) {
    let home = argument(cluster(testbed, HOME).direct_kubeconfig_path());
    let file = argument(cluster(testbed, member).direct_kubeconfig_path());
    let clusters = [
        "--hub-kubeconfig",
        &home,
        "--member-kubeconfig",
        &file,
        "--hub-address",
        hub,
    ];
    let allow = ["--accept", "--allow", "operators/my-operator"];
    ctl::ok(&[&["join", member], &clusters[..], &allow].concat())
        .await
        .unwrap();
}

/// The agent of the hub's cluster, and routers there.
async fn install_home(testbed: &Testbed) {
    join(testbed, HOME, "portolan-hub.portolan-system.svc:7443").await;
    let agent = argument(&chart("portolan-agent"));
    let tag = format!("image.tag={OLD}");
    let install = ["install", "portolan-agent", &agent, "--set", &tag];
    helm(testbed, &[&install[..], &take_over()].concat()).await;
    runs(testbed, AGENT, (OLD, None)).await;
    available(testbed, HOME).await;
    let router = format!("router.enabled=true,router.cluster={HOME},router.image.tag={OLD}");
    let chart = argument(&chart("portolan"));
    helm(
        testbed,
        &[
            "upgrade",
            "portolan",
            &chart,
            "--reset-then-reuse-values",
            "--set",
            &router,
        ],
    )
    .await;
    runs(testbed, ROUTER, (OLD, None)).await;
}

/// A member whose agent runs elsewhere.
async fn join_east(testbed: &Testbed, hub: &str) -> Daemon {
    join(testbed, EAST, hub).await;
    let kubeconfig = argument(cluster(testbed, EAST).direct_kubeconfig_path());
    let agent = Daemon::start(Launch {
        name: "agent-east".to_owned(),
        program: "portolan-agent".to_owned(),
        arguments: vec!["--kubeconfig".to_owned(), kubeconfig],
        env: Vec::new(),
        dir: testbed.dir().to_owned(),
    });
    let agent = agent.await.unwrap();
    available(testbed, EAST).await;
    agent
}

async fn available(testbed: &Testbed, member: &str) {
    let condition = "--for=condition=Available";
    let wait = ["wait", condition, "membercluster", member, "--timeout=120s"];
    kubectl(testbed, HOME).ok(&wait).await.unwrap();
}

/// The operator's Pod, which nothing runs, and a kubeconfig with a token of it.
async fn operator(testbed: &Testbed) -> PathBuf {
    let (kubectl, home) = (kubectl(testbed, HOME), cluster(testbed, HOME));
    // The webhook is asked about them.
    kubectl.ok_with(&["apply", "-f", "-"], SHARDS).await.unwrap();
    kubectl
        .ok(&["create", "serviceaccount", "my-operator", "-n", "operators"])
        .await
        .unwrap();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "my-operator-0", "namespace": "operators", "labels": {"app": "my-operator"}},
        "spec": {
            "serviceAccountName": "my-operator", "automountServiceAccountToken": false, "schedulerName": "none",
            "containers": [{"name": "main", "image": "registry.example.com/operator:1"}],
        },
    });
    kubectl.ok_with(&["create", "-f", "-"], &pod.to_string()).await.unwrap();
    let client = home.client().await.unwrap();
    let pod = Api::<Pod>::namespaced(client.clone(), "operators")
        .get("my-operator-0")
        .await
        .unwrap();
    let uid = pod.uid().unwrap();
    let token = home.issue_token("operators", "my-operator", &[AUDIENCE], Some(("my-operator-0", &uid)));
    let token = token.await.unwrap();
    let ca = [
        "get",
        "configmap",
        "portolan-ca",
        "-n",
        SYSTEM,
        "-o",
        "jsonpath={.data.ca\\.crt}",
    ];
    let ca = kubectl.ok(&ca).await.unwrap();
    let file = |name: &str, content: &str| {
        let file = testbed.dir().join(name);
        std::fs::write(&file, content).unwrap();
        file
    };
    let service = Api::<Service>::namespaced(client, ROUTERS)
        .get("portolan-router")
        .await
        .unwrap();
    let server = format!("https://{}:443", service.spec.unwrap().cluster_ip.unwrap());
    let ca = file("portolan-ca.crt", &ca);
    let cluster = json!({"server": server, "tls-server-name": ROUTER_NAME, "certificate-authority": ca});
    let token = file("operator.token", &token);
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "portolan",
        "clusters": [{"name": "portolan", "cluster": cluster}],
        "users": [{"name": "operator", "user": {"tokenFile": token}}],
        "contexts": [{"name": "portolan", "context": {"cluster": "portolan", "user": "operator"}}],
    });
    file("operator.kubeconfig", &config.to_string())
}
