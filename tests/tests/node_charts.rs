//! Portolan as people install it: the charts of hub, agent and router on a real cluster, by images of test builds, where Pod security
//! `restricted` is enforced; then a person and an operator's Pod that use it.
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

use std::path::Path;

use k8s_openapi::api::core::v1::Service;
use kube::Api;
use portolan_testbed::{Cluster, Image, Options, Release, Testbed, eventually, inside, tool};
use portolan_tests::ctl;
use portolan_tests::helm::{self, SYSTEM, chart};
use portolan_tests::kubectl::Kubectl;
use portolan_tests::programs::{argument, program};
use serde_json::json;

/// As values of the charts have it, with the version that they are of.
const PREFIX: &str = "registry.example.com/portolan";
/// By this name the cluster of the hub is a member as well.
const MEMBER: &str = "home";
const ROUTERS: &str = "portolan-routers";
const PERSON: &str = "jane";
/// The Pod of an operator as people are shown it.
const OPERATOR: &str = include_str!("../../examples/operator-pod.yaml");
const KUBECTL: &str = "registry.example.com/kubectl:1";
const ACCOUNT: &str = "operators/my-operator";
const SHARD: &str = "
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: ShardingConfig
metadata: {name: demo, namespace: operators}
spec:
  selector: {matchLabels: {app: my-operator}}
  controller: {leaderElectionName: my-operator}
  callerClusters: [home]
  clusters:
    - name: home
      namespaces: [shop]
";

struct Install {
    testbed: Testbed,
}

#[test]
fn charts_install_all_of_it() {
    inside(async {
        let install = Install::begin().await;
        install.hub().await;
        install.agent().await;
        install.routers().await;
        install.a_check_finds_all_well().await;
        install.a_person_uses_a_router().await;
        install.a_pod_sees_its_shard().await;
        install.a_member_is_taken_out_and_registered_anew().await;
        install.only_what_people_wrote_outlives_the_charts().await;
    });
}

impl Install {
    async fn begin() -> Self {
        let mut images = vec![Image::new(KUBECTL, tool("kubectl"))];
        images.extend(
            ["portolan-hub", "portolan-router", "portolan-agent", "portolanctl"].map(|name| {
                let image = format!("{PREFIX}/{name}:{}", env!("CARGO_PKG_VERSION"));
                Image::new(&image, program(name).unwrap()).released(Release::default())
            }),
        );
        let testbed = Testbed::start_with(Options {
            clusters: vec!["hub".to_owned()],
            nodes: [("hub".to_owned(), images)].into(),
            ..Options::default()
        });
        let install = Self {
            testbed: testbed.await.unwrap(),
        };
        for namespace in [SYSTEM, ROUTERS] {
            let kubectl = install.kubectl();
            kubectl.ok(&["create", "namespace", namespace]).await.unwrap();
            let restricted = "pod-security.kubernetes.io/enforce=restricted";
            kubectl
                .ok(&["label", "namespace", namespace, restricted])
                .await
                .unwrap();
        }
        install
    }

    fn cluster(&self) -> &Cluster {
        self.testbed.cluster("hub")
    }

    fn kubeconfig(&self) -> &Path {
        self.cluster().direct_kubeconfig_path()
    }

    fn kubectl(&self) -> Kubectl {
        Kubectl::new(self.kubeconfig())
    }

    async fn helm(&self, arguments: &[&str]) {
        helm::ok(Some(self.kubeconfig()), arguments).await.unwrap();
    }

    async fn ctl(&self, arguments: &[&str]) -> String {
        ctl::ok(arguments).await.unwrap()
    }

    /// Waits until all Pods of a Deployment are ready; says what they are if they are not.
    async fn rolled_out(&self, namespace: &str, name: &str) {
        let deployment = format!("deployment/{name}");
        let status = ["rollout", "status", "-n", namespace, &deployment, "--timeout=5s"];
        eventually(&format!("{name} is rolled out"), || async {
            let ended = self.kubectl().run(&status, "").await.unwrap();
            if ended.ok {
                return Ok(());
            }
            let pods = self.kubectl().ok(&["get", "pods", "-n", namespace, "-o", "wide"]).await;
            let logs = self
                .kubectl()
                .ok(&["logs", "-n", namespace, &deployment, "--tail=20"])
                .await;
            Err(format!("{}{pods:?}\n{logs:?}", ended.stderr))
        })
        .await;
    }

    async fn hub(&self) {
        self.helm(&["install", "portolan", &argument(&chart("portolan"))]).await;
        self.rolled_out(SYSTEM, "portolan-hub").await;
    }

    async fn agent(&self) {
        let kubeconfig = argument(self.kubeconfig());
        let hub = [
            "--hub-kubeconfig",
            &kubeconfig,
            "--member-kubeconfig",
            &kubeconfig,
            "--accept",
        ];
        let address = ["--hub-address", "portolan-hub.portolan-system.svc:7443"];
        self.ctl(&[&["join", MEMBER, "--allow-user", PERSON][..], &hub, &address].concat())
            .await;
        let agent = argument(&chart("portolan-agent"));
        // What join has applied becomes the chart's.
        let install = ["install", "portolan-agent", &agent];
        self.helm(&[&install[..], &helm::take_over()].concat()).await;
        self.rolled_out(SYSTEM, "portolan-agent").await;
        let joined = [
            "wait",
            "--for=condition=Available",
            "membercluster",
            MEMBER,
            "--timeout=120s",
        ];
        self.kubectl().ok(&joined).await.unwrap();
    }

    async fn routers(&self) {
        let router = format!("router.enabled=true,router.cluster={MEMBER},hub.routersOf={{{MEMBER}}}");
        let upgrade = ["upgrade", "portolan", &argument(&chart("portolan")), "--set", &router];
        self.helm(&upgrade).await;
        self.rolled_out(SYSTEM, "portolan-hub").await;
        self.rolled_out(ROUTERS, "portolan-router").await;
    }

    /// The explicit view, by the address and the name of the routers' Service.
    async fn a_person_uses_a_router(&self) {
        let kubectl = self.kubectl();
        for (name, role) in [("jane-proxy", "portolan-person"), ("jane-view", "view")] {
            let bind = [
                "create",
                "clusterrolebinding",
                name,
                "--user",
                PERSON,
                "--clusterrole",
                role,
            ];
            kubectl.ok(&bind).await.unwrap();
        }
        let services = Api::<Service>::namespaced(self.cluster().client().await.unwrap(), ROUTERS);
        let address = services
            .get("portolan-router")
            .await
            .unwrap()
            .spec
            .unwrap()
            .cluster_ip
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = argument(&folder.path().join("jane.kubeconfig"));
        let (router, hub) = (format!("https://{address}:443"), argument(self.kubeconfig()));
        let person = [
            "kubeconfig",
            PERSON,
            "--router",
            &router,
            "--cluster",
            MEMBER,
            "--hub-kubeconfig",
            &hub,
            "-o",
            &file,
        ];
        self.ctl(&person).await;
        let jane = Kubectl::new(Path::new(&file)).with("--tls-server-name=portolan-router.portolan-routers.svc");
        eventually("a person sees Pods through a router", || async {
            let pods = jane.ok(&["get", "pods", "-n", ROUTERS, "-o", "name"]).await?;
            anyhow::ensure!(pods.matches("pod/portolan-router-").count() == 2, "{pods}");
            anyhow::Ok(())
        })
        .await;
    }

    /// Of an operator that is kubectl and asks for all namespaces: by the name of the routers' Service, with a token of its own.
    async fn a_pod_sees_its_shard(&self) {
        let kubectl = self.kubectl();
        for namespace in ["operators", "shop"] {
            kubectl.ok(&["create", "namespace", namespace]).await.unwrap();
        }
        let account = ["--serviceaccount", "operators:my-operator", "--clusterrole", "view"];
        let bind = [&["create", "clusterrolebinding", "operator-view"], &account[..]].concat();
        kubectl.ok(&bind).await.unwrap();
        let kubeconfig = argument(self.kubeconfig());
        self.ctl(&["allow", "--member-kubeconfig", &kubeconfig, ACCOUNT]).await;
        // The webhook is asked about it.
        kubectl.ok_with(&["apply", "-f", "-"], SHARD).await.unwrap();
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
        kubectl.ok_with(&["apply", "-f", "-"], &operator(&ca)).await.unwrap();
        let logs = ["logs", "-n", "operators", "my-operator-0"];
        let phase = [
            "get",
            "pod",
            "-n",
            "operators",
            "my-operator-0",
            "-o",
            "jsonpath={.status.phase}",
        ];
        eventually("the Pod has got an answer", || async {
            let phase = kubectl.ok(&phase).await?;
            anyhow::ensure!(phase == "Succeeded", "{phase}: {:?}", kubectl.ok(&logs).await);
            anyhow::Ok(())
        })
        .await;
        // Its shard alone: each namespace has a ConfigMap with the cluster's CA.
        assert_eq!(kubectl.ok(&logs).await.unwrap(), "shop");
    }

    /// By portolanctl alone, whoever installed the agent.
    async fn a_member_is_taken_out_and_registered_anew(&self) {
        let kubectl = self.kubectl();
        let labelled = [
            "get",
            "namespaces",
            "-o",
            "name",
            "-l",
            "ctrlmesh.kusionstack.io/sharding-hash",
        ];
        assert!(kubectl.ok(&labelled).await.unwrap().contains("namespace/shop"));
        kubectl
            .ok(&["delete", "shardingconfig", "demo", "-n", "operators"])
            .await
            .unwrap();
        let kubeconfig = argument(self.kubeconfig());
        let clusters = ["--hub-kubeconfig", &kubeconfig, "--kubeconfig", &kubeconfig];
        let told = self.ctl(&[&["unregister", MEMBER][..], &clusters].concat()).await;
        for word in [
            "taken its labels back",
            "a hub is in it",
            "routers run by it",
            "a member no more",
        ] {
            assert!(told.contains(word), "{word}: {told}");
        }
        assert_eq!(kubectl.ok(&labelled).await.unwrap(), "");
        let deployments = ["get", "deployments", "-n", SYSTEM, "-o", "name"];
        assert_eq!(
            kubectl.ok(&deployments).await.unwrap(),
            "deployment.apps/portolan-hub\n"
        );
        let address = ["--hub-address", "portolan-hub.portolan-system.svc:7443"];
        let told = self
            .ctl(&[&["register", MEMBER][..], &clusters, &address].concat())
            .await;
        for word in [
            "the agent is installed, registry.example.com/portolan/portolan-agent:",
            "member cluster home serves",
        ] {
            assert!(told.contains(word), "{word}: {told}");
        }
        assert!(kubectl.ok(&labelled).await.unwrap().contains("namespace/shop"));
    }

    /// By accounts that may read what it looks at and nothing else.
    async fn a_check_finds_all_well(&self) {
        let words = [
            ("portolan", "✓ whoever runs this may look at all of it"),
            ("portolan-agent", "the admission policies are there"),
        ];
        for (release, word) in words {
            let ended = helm::helm(Some(self.kubeconfig()), &["test", release]).await.unwrap();
            // What the Pod said is told beside.
            let told = format!("{}{}", ended.stdout, ended.stderr);
            assert!(ended.ok && told.contains(word), "{release}: {told}");
            assert!(told.contains(" 0 wrong"), "{release}: {told}");
            assert!(!told.contains("forbidden"), "{release}: {told}");
        }
        let accounts = ["get", "serviceaccounts", "-n", SYSTEM, "-o", "name"];
        let left = self.kubectl().ok(&accounts).await.unwrap();
        assert!(!left.contains("-check"), "{left}");
    }

    async fn only_what_people_wrote_outlives_the_charts(&self) {
        let kubectl = self.kubectl();
        kubectl.ok_with(&["apply", "-f", "-"], SHARD).await.unwrap();
        let finalizers = [
            "get",
            "shardingconfig",
            "demo",
            "-n",
            "operators",
            "-o",
            "jsonpath={.metadata.finalizers}",
        ];
        eventually("the hub holds the shard", || async {
            let finalizers = kubectl.ok(&finalizers).await?;
            anyhow::ensure!(finalizers.contains("ctrlmesh.kusionstack.io/shard"), "{finalizers}");
            anyhow::Ok(())
        })
        .await;
        for release in ["portolan-agent", "portolan"] {
            self.helm(&["uninstall", release]).await;
        }
        let kinds = kubectl.ok(&["get", "crd", "-o", "name"]).await.unwrap();
        assert_eq!(kinds.matches(".ctrlmesh.kusionstack.io").count(), 5, "{kinds}");
        assert_eq!(kubectl.ok(&finalizers).await.unwrap(), "");
        eventually("nothing says it was there", || async {
            let marked = self.marked().await?;
            anyhow::ensure!(marked.is_empty(), "{marked:#?}");
            anyhow::Ok(())
        })
        .await;
        let named = [
            "mutatingadmissionpolicies,mutatingadmissionpolicybindings,validatingadmissionpolicies",
            "validatingadmissionpolicybindings,validatingwebhookconfigurations",
            "clusterroles,clusterrolebindings,roles,rolebindings,jobs,deployments",
        ];
        let named = ["get", &named.join(","), "--all-namespaces", "-o", "name"];
        let named = kubectl.ok(&named).await.unwrap();
        let left: Vec<_> = named.lines().filter(|line| line.contains("portolan")).collect();
        assert_eq!(left, Vec::<&str>::new());
        // By what it kept, the hub goes on where it was.
        self.hub().await;
    }

    /// Objects with labels, annotations or finalizers of Portolan, but for what the hub keeps of its own.
    async fn marked(&self) -> anyhow::Result<Vec<String>> {
        let kubectl = self.kubectl();
        let kinds = ["api-resources", "--verbs=list", "-o", "name"];
        let kinds = kubectl.ok(&kinds).await?.lines().collect::<Vec<_>>().join(",");
        let all = kubectl.ok(&["get", &kinds, "--all-namespaces", "-o", "json"]).await?;
        let all: serde_json::Value = serde_json::from_str(&all)?;
        let is_marked = |object: &&serde_json::Value| {
            let metadata = &object["metadata"];
            let is_kept = metadata["namespace"] == SYSTEM && object["kind"] == "ConfigMap";
            let keys = ["labels", "annotations"].map(|field| metadata[field].as_object().into_iter().flatten());
            let keys = keys.into_iter().flatten().map(|(key, _)| key.as_str());
            let finalizers = metadata["finalizers"].as_array().into_iter().flatten();
            let mut marks = keys.chain(finalizers.filter_map(serde_json::Value::as_str));
            !is_kept && marks.any(|mark| mark.contains("ctrlmesh.kusionstack.io/"))
        };
        let marked = all["items"].as_array().into_iter().flatten().filter(is_marked);
        Ok(marked
            .map(|object| format!("{} {}", object["kind"], object["metadata"]))
            .collect())
    }
}

/// The example, with this CA and kubectl, which asks once.
fn operator(ca: &str) -> String {
    let address = "portolan-router.portolan-routers.svc";
    let example = OPERATOR.replace("portolan-router.example.com:8443", address);
    let mut objects = helm::objects(&example).unwrap();
    for object in &mut objects {
        match object["kind"].as_str() {
            Some("ConfigMap") => object["data"]["ca.crt"] = json!(ca),
            Some("Pod") => {
                let container = &mut object["spec"]["containers"][0];
                container["image"] = json!(KUBECTL);
                let namespaces = "jsonpath={.items[*].metadata.namespace}";
                container["args"] = json!(["get", "configmaps", "--all-namespaces", "-o", namespaces]);
                object["spec"]["restartPolicy"] = json!("OnFailure");
            }
            _ => {}
        }
    }
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}
