//! Pods that ask for a gateway by label, as the API server of a member makes them: what they come out as, that `portolanctl inject`
//! makes the same of their manifests, and what is refused, in which words. Whether it works where Pods run is in `node_injected`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

use std::fmt::Write as _;

use portolan_testbed::{Cluster, Testbed, eventually};
use portolan_tests::kubectl::{Ended, Kubectl};
use portolan_tests::programs::{argument, program};
use portolan_tests::{Fleet, FleetOptions};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::OnceCell;

const ASKS: &str = "ctrlmesh.kusionstack.io/enable-proxy";
const KEEPS: &str = "ctrlmesh.kusionstack.io/keep-account-token";
const CA: &str = "ctrlmesh.kusionstack.io/gateway-ca";
const GATEWAY: &str = "portolan-router.portolan-system.svc";
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// A namespace that the policies never touch.
const UNTOUCHED: &str = "portolan-untouched";

static GROUND: OnceCell<Ground> = OnceCell::const_new();

struct Ground {
    testbed: Testbed,
    fleet: Fleet,
}

/// East names a gateway, and so does west until a test takes that away.
async fn ground() -> &'static Ground {
    let start = || async {
        let testbed = Testbed::start(&["hub", "east", "west"]).await.unwrap();
        let options = FleetOptions {
            hub: "hub",
            members: &["east", "west"],
            gateway: Some(GATEWAY),
            ..FleetOptions::default()
        };
        let fleet = Fleet::start(&testbed, options).await.unwrap();
        let ground = Ground { testbed, fleet };
        for cluster in ["east", "west"] {
            ground
                .kubectl(cluster)
                .ok(&["create", "namespace", UNTOUCHED])
                .await
                .unwrap();
            let accounts = ["default", UNTOUCHED].map(|namespace| ground.has_account(cluster, namespace));
            for account in accounts {
                account.await;
            }
        }
        let plain = pod("plain", json!({}));
        eventually("the policies work", || async {
            let made = ground.create("east", "default", &plain).await;
            anyhow::ensure!(made.ok && made.stdout.contains(GATEWAY), "{made:?}");
            Ok(())
        })
        .await;
        ground
    };
    GROUND.get_or_init(start).await
}

impl Ground {
    fn cluster(&self, name: &str) -> &Cluster {
        self.testbed.cluster(name)
    }

    fn kubectl(&self, cluster: &str) -> Kubectl {
        Kubectl::new(self.cluster(cluster).direct_kubeconfig_path())
    }

    async fn has_account(&self, cluster: &str, namespace: &str) {
        eventually("the namespace has an account", || async {
            let get = ["get", "serviceaccount", "default", "-n", namespace];
            self.kubectl(cluster).ok(&get).await.map(drop)
        })
        .await;
    }

    /// As the API server makes it, and stores it not.
    async fn create(&self, cluster: &str, namespace: &str, pod: &Value) -> Ended {
        let create = ["create", "-n", namespace, "--dry-run=server", "-o", "json", "-f", "-"];
        self.kubectl(cluster).run(&create, &pod.to_string()).await.unwrap()
    }

    async fn made(&self, cluster: &str, namespace: &str, pod: &Value) -> Value {
        let made = self.create(cluster, namespace, pod).await;
        assert!(made.ok, "{}", made.stderr);
        plain(serde_json::from_str(&made.stdout).unwrap())
    }

    /// What `portolanctl inject` prints of a manifest, or why it does not.
    async fn inject(&self, pod: &Value) -> Result<Value, String> {
        let mut child = tokio::process::Command::new(program("portolanctl").unwrap())
            .args(["inject", "-f", "-", "--member-kubeconfig"])
            .arg(argument(self.cluster("east").direct_kubeconfig_path()))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(pod.to_string().as_bytes()).await.unwrap();
        drop(stdin);
        let ended = child.wait_with_output().await.unwrap();
        if !ended.status.success() {
            return Err(String::from_utf8(ended.stderr).unwrap());
        }
        Ok(serde_yaml_ng::from_slice(&ended.stdout).unwrap())
    }
}

/// A Pod that asks, with one container; `more` is merged into it.
fn pod(name: &str, more: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {ASKS: "true"}},
        "spec": {"containers": [{"name": "main", "image": "example.com/main:1"}]},
    });
    merge(&mut pod, more);
    pod
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

/// Without what differs from one creation to another: identity, place, the agent's labels, and the random part of names of volumes.
fn plain(mut pod: Value) -> Value {
    for key in ["uid", "creationTimestamp", "namespace"] {
        pod["metadata"].as_object_mut().unwrap().remove(key);
    }
    pod["metadata"]["labels"]
        .as_object_mut()
        .unwrap()
        .retain(|key, _| key == ASKS);
    let text = pod.to_string();
    let mut short = String::new();
    for (number, part) in text.split("kube-api-access-").enumerate() {
        let rest = if number == 0 {
            part
        } else {
            &part[part.find('"').unwrap()..]
        };
        write!(short, "{}{rest}", if number == 0 { "" } else { "kube-api-access" }).unwrap();
    }
    let mut pod: Value = serde_json::from_str(&short).unwrap();
    if let Some(volumes) = pod["spec"]["volumes"].as_array_mut() {
        volumes.sort_by_key(|volume| volume["name"].to_string());
    }
    pod
}

fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let lists = ["containers", "initContainers"].map(|list| pod["spec"][list].as_array());
    let mut all = lists.into_iter().flatten().flatten();
    all.find(|container| container["name"] == name).unwrap()
}

fn mount(pod: &Value, name: &str) -> String {
    let mounts = container(pod, name)["volumeMounts"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let found: Vec<_> = mounts.iter().filter(|mount| mount["mountPath"] == ACCOUNT).collect();
    assert_eq!(found.len(), 1, "{mounts:?}");
    found[0]["name"].as_str().unwrap().to_owned()
}

/// What Pods are like that fit.
fn fitting() -> Vec<Value> {
    let own = json!({"name": "data", "emptyDir": {}});
    let at = |name: &str, path: &str| json!({"name": name, "mountPath": path});
    let copied = json!({"name": "kube-api-access-abcde", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}});
    vec![
        pod("plain", json!({})),
        pod(
            "variables",
            json!({"spec": {"containers": [{"name": "main", "image": "x", "env": [
                {"name": "URL", "value": "https://$(KUBERNETES_SERVICE_HOST)"},
                {"name": "KUBERNETES_SERVICE_HOST", "value": "10.0.0.1"},
                {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            ]}]}}),
        ),
        pod(
            "several",
            json!({
                "metadata": {"annotations": {"of": "another", KEEPS: "vault, init"}},
                "spec": {
                    "initContainers": [
                        {"name": "init", "image": "x"},
                        {"name": "sidecar", "image": "x", "restartPolicy": "Always", "volumeMounts": [at("data", "/data")]},
                    ],
                    "containers": [
                        {"name": "vault", "image": "x"},
                        {"name": "main", "image": "x", "volumeMounts": [at("data", "/data"), at("data", "/var/run/secrets")]},
                    ],
                    "volumes": [own],
                },
            }),
        ),
        pod(
            "copied",
            json!({"spec": {
                "containers": [{"name": "main", "image": "x", "volumeMounts": [at("kube-api-access-abcde", ACCOUNT)]}],
                "volumes": [own, copied],
            }}),
        ),
        pod(
            "elsewhere-too",
            json!({"spec": {
                "containers": [{"name": "main", "image": "x", "volumeMounts": [
                    at("kube-api-access-abcde", ACCOUNT), at("kube-api-access-abcde", "/account"),
                ]}],
                "volumes": [copied],
            }}),
        ),
    ]
}

/// Pods that ask and do not fit, and a part of the sentence that says why, in the policy's words and in those of `inject`.
fn unfitting() -> Vec<(Value, &'static str, &'static str)> {
    let mounted = |path: &str| {
        json!({"spec": {
            "containers": [{"name": "main", "image": "x", "volumeMounts": [{"name": "own", "mountPath": path}]}],
            "volumes": [{"name": "own", "emptyDir": {}}],
        }})
    };
    let own = "has a volume of its own at /var/run/secrets/kubernetes.io/serviceaccount in main";
    let windows = "is for Windows, which is not supported";
    vec![
        (
            pod("host", json!({"spec": {"hostNetwork": true}})),
            "is of its Node's network",
            "is of its Node's network",
        ),
        (
            pod("windows", json!({"spec": {"os": {"name": "windows"}}})),
            windows,
            windows,
        ),
        (
            pod(
                "windows-node",
                json!({"spec": {"nodeSelector": {"kubernetes.io/os": "windows"}}}),
            ),
            windows,
            windows,
        ),
        (pod("own", mounted(ACCOUNT)), own, own),
        (pod("own-slash", mounted(&format!("{ACCOUNT}/"))), own, own),
        (pod("own-file", mounted(&format!("{ACCOUNT}/token"))), own, own),
        (
            pod("no-token", json!({"spec": {"automountServiceAccountToken": false}})),
            "has spec.automountServiceAccountToken: false",
            "has spec.automountServiceAccountToken: false",
        ),
        (
            pod("keeps-nobody", json!({"metadata": {"annotations": {KEEPS: "mian"}}})),
            "names no container of this Pod: mian",
            "has no container mian",
        ),
        (
            pod("keeps-all", json!({"metadata": {"annotations": {KEEPS: "main"}}})),
            "all its containers keep the account's token",
            "keeps the account's token in all its containers",
        ),
        (
            pod("neither", json!({"metadata": {"labels": {ASKS: "yes"}}})),
            "is yes: it says true or false",
            "of yes: it says true or false",
        ),
    ]
}

#[tokio::test]
async fn a_pod_that_asks_comes_out_pointed_at_the_gateway() {
    let ground = ground().await;
    let [_, variables, several, ..] = &fitting()[..] else {
        panic!("five Pods")
    };
    let made = ground.made("east", "default", variables).await;
    let env = &container(&made, "main")["env"];
    assert_eq!(env[0], json!({"name": "KUBERNETES_SERVICE_HOST", "value": GATEWAY}));
    assert_eq!(env[1], json!({"name": "KUBERNETES_SERVICE_PORT", "value": "443"}));
    let names: Vec<_> = env
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names[2..],
        ["URL", "NAME"],
        "each once, and ours first: others may refer to them"
    );
    assert_eq!(made["metadata"]["annotations"][CA], ground.fleet.ca_pem().unwrap());
    assert_eq!(mount(&made, "main"), "portolan-account");
    let volumes = made["spec"]["volumes"].as_array().unwrap();
    assert_eq!(
        volumes.len(),
        1,
        "the account's own token is not in the Pod: {volumes:?}"
    );
    let token = &volumes[0]["projected"]["sources"][0]["serviceAccountToken"];
    assert_eq!(token["audience"], "portolan");

    let made = ground.made("east", "default", several).await;
    for (name, volume) in [
        ("main", "portolan-account"),
        ("sidecar", "portolan-account"),
        ("vault", "kube-api-access"),
        ("init", "kube-api-access"),
    ] {
        assert_eq!(mount(&made, name), volume, "{name}");
        let pointed = container(&made, name)["env"].to_string().contains(GATEWAY);
        assert_eq!(pointed, volume == "portolan-account", "{name}");
    }
}

#[tokio::test]
async fn inject_makes_the_same_of_a_manifest() {
    let ground = ground().await;
    for pod in fitting() {
        let by_policy = ground.made("east", "default", &pod).await;
        let manifest = ground.inject(&pod).await.unwrap();
        assert_eq!(ground.made("east", UNTOUCHED, &manifest).await, by_policy);
        assert_eq!(
            ground.made("east", "default", &manifest).await,
            by_policy,
            "once more changes nothing"
        );
        let stored = ground.inject(&by_policy).await.unwrap();
        assert_eq!(plain(stored)["spec"], by_policy["spec"], "nor does inject");
    }
    for (pod, _, why) in unfitting() {
        let told = ground.inject(&pod).await.unwrap_err();
        assert!(told.contains(why), "{told}");
    }
}

#[tokio::test]
async fn what_does_not_fit_is_refused_in_a_sentence() {
    let ground = ground().await;
    for (pod, why, _) in unfitting() {
        let made = ground.create("east", "default", &pod).await;
        assert!(!made.ok, "{}", made.stdout);
        assert!(made.stderr.contains(why), "{}", made.stderr);
    }
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "mute"}, "automountServiceAccountToken": false});
    let kubectl = ground.kubectl("east");
    kubectl
        .ok_with(&["apply", "-f", "-"], &account.to_string())
        .await
        .unwrap();
    let made = ground
        .create(
            "east",
            "default",
            &pod("mute", json!({"spec": {"serviceAccountName": "mute"}})),
        )
        .await;
    assert!(
        !made.ok && made.stderr.contains("ServiceAccount mute gives main no token"),
        "{made:?}"
    );
}

#[tokio::test]
async fn a_namespace_asks_for_its_pods_and_one_of_the_system_for_none() {
    let ground = ground().await;
    let kubectl = ground.kubectl("east");
    let asking =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "asking", "labels": {ASKS: "true"}}});
    kubectl
        .ok_with(&["apply", "-f", "-"], &asking.to_string())
        .await
        .unwrap();
    ground.has_account("east", "asking").await;
    let label = [&format!("{ASKS}=true"), "--overwrite"];
    for namespace in [UNTOUCHED, "kube-system"] {
        let arguments = [&["label", "namespace", namespace], &label[..]].concat();
        kubectl.ok(&arguments).await.unwrap();
        ground.has_account("east", namespace).await;
    }
    let silent = || {
        let mut pod = pod("silent", json!({}));
        pod["metadata"].as_object_mut().unwrap().remove("labels");
        pod
    };
    eventually("the namespace's Pods are pointed at the gateway", || async {
        let made = ground.create("east", "asking", &silent()).await;
        anyhow::ensure!(made.ok && made.stdout.contains(GATEWAY), "{made:?}");
        Ok(())
    })
    .await;
    let host = json!({"spec": {"hostNetwork": true}});
    let mut bad = silent();
    merge(&mut bad, host.clone());
    let made = ground.create("east", "asking", &bad).await;
    assert!(made.stderr.contains("is of its Node's network"), "{made:?}");
    let declines = pod("declines", json!({"metadata": {"labels": {ASKS: "false"}}}));
    let system = pod("system", host);
    for (namespace, pod) in [
        ("asking", declines),
        (UNTOUCHED, system.clone()),
        ("kube-system", system),
    ] {
        let made = ground.made("east", namespace, &pod).await.to_string();
        assert!(!made.contains(GATEWAY) && !made.contains(CA), "{namespace}: {made}");
    }
}

#[tokio::test]
async fn without_a_gateway_none_is_created() {
    let ground = ground().await;
    let kubectl = ground.kubectl("west");
    kubectl
        .ok(&["delete", "configmap", "-n", "portolan-system", "portolan-injection"])
        .await
        .unwrap();
    eventually("it is refused, and why is said", || async {
        let made = ground.create("west", "default", &pod("early", json!({}))).await;
        let is_told = made
            .stderr
            .contains("is there a ConfigMap portolan-system/portolan-injection");
        anyhow::ensure!(!made.ok && is_told, "{made:?}");
        Ok(())
    })
    .await;
    // One that somebody has pointed at a gateway is: what it gets is a token that no API server takes.
    let manifest = ground.inject(&pod("by-hand", json!({}))).await.unwrap();
    let made = ground.made("west", "default", &manifest).await;
    assert_eq!(mount(&made, "main"), "portolan-account");
    // Half of it is not enough.
    let parts: [fn(&mut Value); 3] = [
        |pod| drop(pod["spec"]["containers"][0].as_object_mut().unwrap().remove("env")),
        |pod| drop(pod["metadata"].as_object_mut().unwrap().remove("annotations")),
        |pod| pod["spec"]["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"]["audience"] = Value::Null,
    ];
    for take in parts {
        let mut half = manifest.clone();
        take(&mut half);
        let made = ground.create("west", "default", &half).await;
        assert!(
            !made.ok && made.stderr.contains("asks to be pointed at a Portolan gateway"),
            "{made:?}"
        );
    }
}

/// The API server bounds what an expression may cost.
#[tokio::test]
async fn a_large_pod_is_none_too_large() {
    let ground = ground().await;
    let volumes: Vec<_> = (0..100)
        .map(|number| json!({"name": format!("v-{number}"), "emptyDir": {}}))
        .collect();
    let mounts: Vec<_> = (0..100)
        .map(|number| json!({"name": format!("v-{number}"), "mountPath": format!("/v/{number}")}))
        .collect();
    let env: Vec<_> = (0..200)
        .map(|number| json!({"name": format!("V_{number}"), "value": "x".repeat(100)}))
        .collect();
    let containers: Vec<_> = (0..40)
        .map(|number| json!({"name": format!("c-{number}"), "image": "x", "env": env, "volumeMounts": mounts}))
        .collect();
    let made = ground
        .made(
            "east",
            "default",
            &pod("large", json!({"spec": {"containers": containers, "volumes": volumes}})),
        )
        .await;
    for number in 0..40 {
        assert_eq!(mount(&made, &format!("c-{number}")), "portolan-account");
    }
}
