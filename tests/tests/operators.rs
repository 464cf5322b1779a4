//! The example operators keep their promises on a plain cluster, without Portolan: what then differs on a merged view is
//! Portolan's. And the Go client that other tests believe holds what the cluster has.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use portolan_testbed::{Options, Pods, Testbed, eventually};
use portolan_tests::go_client::{GoClient, Item};
use portolan_tests::kubectl::Kubectl;
use portolan_tests::programs::program;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

const CRD: &str = include_str!("../../examples/greeting-crd.yaml");
const CLUSTER: &str = "plain";
const RS: &str = "greeting-operator";
const GO: &str = "greeting-operator-go";

struct Plain {
    testbed: Testbed,
    kubectl: Kubectl,
}

impl Plain {
    async fn shared() -> &'static Self {
        static PLAIN: tokio::sync::OnceCell<Plain> = tokio::sync::OnceCell::const_new();
        PLAIN
            .get_or_init(|| async { Self::start().await.expect("a cluster") })
            .await
    }

    async fn start() -> anyhow::Result<Self> {
        let testbed = Testbed::start_with(Options {
            clusters: vec![CLUSTER.to_owned()],
            pods: Pods::Pretended,
            ..Options::default()
        })
        .await?;
        let kubectl = Kubectl::new(testbed.cluster(CLUSTER).direct_kubeconfig_path());
        kubectl.ok_with(&["apply", "-f", "-"], CRD).await?;
        Ok(Self { testbed, kubectl })
    }

    fn kubeconfig(&self) -> &Path {
        self.testbed.cluster(CLUSTER).direct_kubeconfig_path()
    }

    async fn json(&self, arguments: &[&str]) -> anyhow::Result<Value> {
        let printed = self.kubectl.ok(&[arguments, &["-o", "json"]].concat()).await?;
        serde_json::from_str(&printed).context("kubectl prints JSON")
    }

    async fn greet(&self, namespace: &str, name: &str, spec: Value) -> anyhow::Result<()> {
        let greeting = json!({
            "apiVersion": "example.com/v1", "kind": "Greeting",
            "metadata": {"name": name, "namespace": namespace}, "spec": spec,
        });
        let arguments = ["apply", "-f", "-"];
        self.kubectl.ok_with(&arguments, &greeting.to_string()).await.map(drop)
    }

    /// Waits until a Greeting is Ready in its present generation.
    async fn ready(&self, namespace: &str, name: &str) -> Value {
        eventually(&format!("Greeting {namespace}/{name} is ready"), || async {
            let greeting = self.json(&["get", "greeting", name, "-n", namespace]).await?;
            let generation = &greeting["metadata"]["generation"];
            let conditions = greeting["status"]["conditions"].as_array().cloned().unwrap_or_default();
            ensure!(
                greeting["status"]["observedGeneration"] == *generation
                    && conditions.len() == 2
                    && conditions.iter().all(
                        |condition| condition["status"] == "True" && condition["observedGeneration"] == *generation
                    ),
                "it is {greeting}"
            );
            Ok::<_, anyhow::Error>(greeting)
        })
        .await
    }
}

/// An operator with a Lease of its own; killed when dropped.
fn operator(plain: &Plain, name: &str, lease: &str) -> anyhow::Result<Child> {
    let arguments: &[&str] = match name {
        GO => &["--leader-election-namespace=default", "--lease", lease],
        _ => &["--lease", lease],
    };
    Command::new(program(name)?)
        .args(arguments)
        .env("KUBECONFIG", plain.kubeconfig())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot run {name}"))
}

fn terminate(child: &Child) -> anyhow::Result<()> {
    let pid = child.id().context("it has ended already")?;
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid)?);
    Ok(nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?)
}

/// One test, because both operators reconcile all namespaces: side by side they would do each other's work.
#[tokio::test]
async fn operators_keep_their_promises_and_take_over_from_each_other() {
    let plain = Plain::shared().await;
    let mut running = operator(plain, RS, RS).unwrap();
    for (turn, next) in [("one", GO), ("two", RS)] {
        plain.kubectl.ok(&["create", "namespace", turn]).await.unwrap();
        keeps_its_promises(plain, turn).await.unwrap();

        // What stays behind is the next one's: it takes the released Lease and goes on.
        plain
            .greet(turn, "stays", json!({"message": "hi", "replicas": 0}))
            .await
            .unwrap();
        plain.ready(turn, "stays").await;
        let waiting = operator(plain, next, RS).unwrap();
        terminate(&running).unwrap();
        let ended = running.wait().await.unwrap();
        assert!(ended.success(), "the operator before {next} ended with {ended}");
        running = waiting;
        plain
            .greet(turn, "stays", json!({"message": "bye", "replicas": 1}))
            .await
            .unwrap();
        let greeting = plain.ready(turn, "stays").await;
        assert_eq!(greeting["status"]["readyReplicas"], 1);
    }
    // A namespace with Greetings in it can be deleted: cleaning up creates nothing.
    plain
        .kubectl
        .ok(&["delete", "namespace", "one", "two", "--timeout=240s"])
        .await
        .unwrap();
}

async fn keeps_its_promises(plain: &Plain, namespace: &str) -> anyhow::Result<()> {
    plain
        .greet(namespace, "hello", json!({"message": "good morning"}))
        .await?;
    plain
        .greet(namespace, "other", json!({"message": "good day", "replicas": 2}))
        .await?;
    let greeting = plain.ready(namespace, "hello").await;
    plain.ready(namespace, "other").await;
    for child in ["configmap", "deployment"] {
        let child = plain.json(&["get", child, "hello", "-n", namespace]).await?;
        let owner = &child["metadata"]["ownerReferences"][0];
        ensure!(
            owner["uid"] == greeting["metadata"]["uid"] && owner["controller"] == true,
            "{owner}"
        );
    }
    let book = ["get", "configmap", "greetings.guestbook", "-n", namespace];
    let entries = plain.json(&book).await?["data"].clone();
    ensure!(
        entries == json!({"hello": "good morning", "other": "good day"}),
        "{entries}"
    );

    puts_right(plain, namespace).await?;

    let arguments = ["delete", "greeting", "hello", "-n", namespace, "--timeout=240s"];
    plain.kubectl.ok(&arguments).await?;
    let entries = plain.json(&book).await?["data"].clone();
    ensure!(entries == json!({"other": "good day"}), "{entries}");
    leaves_nothing_but_events(plain, namespace, &greeting["metadata"]["uid"]).await;
    Ok(())
}

/// What others change of the children is put right, and so is what they delete.
async fn puts_right(plain: &Plain, namespace: &str) -> anyhow::Result<()> {
    let patch = r#"{"data":{"message":"nonsense"}}"#;
    let arguments = [
        "patch",
        "configmap",
        "hello",
        "-n",
        namespace,
        "--type=merge",
        "-p",
        patch,
    ];
    plain.kubectl.ok(&arguments).await?;
    plain
        .kubectl
        .ok(&["delete", "deployment", "other", "-n", namespace])
        .await?;
    eventually("the children are put right", || async {
        let child = plain.json(&["get", "configmap", "hello", "-n", namespace]).await?;
        ensure!(child["data"]["message"] == "good morning", "{child}");
        plain.json(&["get", "deployment", "other", "-n", namespace]).await
    })
    .await;
    Ok(())
}

async fn leaves_nothing_but_events(plain: &Plain, namespace: &str, uid: &Value) {
    eventually("its children are collected", || async {
        let arguments = [
            "get",
            "configmaps,deployments",
            "-n",
            namespace,
            "-l",
            "app.kubernetes.io/instance=hello",
        ];
        let left = plain.json(&arguments).await?;
        ensure!(left["items"].as_array().is_some_and(Vec::is_empty), "{left}");
        Ok::<_, anyhow::Error>(())
    })
    .await;
    eventually("both of its Events are there", || async {
        let events = plain.json(&["get", "events.v1.events.k8s.io", "-n", namespace]).await?;
        let events = events["items"].as_array().cloned().unwrap_or_default();
        let of_hello = events.iter().filter(|event| event["regarding"]["uid"] == *uid);
        let mut reasons: Vec<&str> = of_hello.filter_map(|event| event["reason"].as_str()).collect();
        reasons.sort_unstable();
        ensure!(reasons == ["Farewell", "Greeted"], "{events:?}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn the_go_client_holds_what_the_cluster_has() {
    let plain = Plain::shared().await;
    let namespace = "go-client";
    plain.kubectl.ok(&["create", "namespace", namespace]).await.unwrap();
    let given = ["get", "configmap", "kube-root-ca.crt", "-n", namespace];
    eventually("the namespace has its own ConfigMap", || plain.kubectl.ok(&given)).await;
    for client in ["typed", "json", "dynamic", "metadata"] {
        for (watch_list, first) in [("--watch-list=true", "watch-list"), ("--watch-list=false", "list")] {
            let arguments = ["informer", "--namespace", namespace, "--client", client, watch_list];
            let mut go = GoClient::synced(plain.kubeconfig(), &arguments).await.unwrap();
            changes_arrive(plain, &mut go, namespace).await.unwrap();
            let dump = go.dump().await.unwrap();
            assert_eq!((dump.count(first), dump.count("error")), (1, 0), "{dump:?}");
            assert_eq!(dump.count("list") + dump.count("watch-list"), 1, "{dump:?}");
        }
    }
    let arguments = ["controller-runtime", "--namespace", namespace, "--read-your-writes"];
    let mut go = GoClient::synced(plain.kubeconfig(), &arguments).await.unwrap();
    changes_arrive(plain, &mut go, namespace).await.unwrap();
    go.tell(&format!("measure {namespace} 10 mine")).await.unwrap();
    for what in ["create", "update"] {
        let line = go.wait("a measurement", |line| line["of"] == what).await.unwrap();
        assert_eq!((&line["stale"], &line["errors"]), (&json!(0), &json!([])), "{line}");
    }
    let arguments = ["page", "--namespace", namespace, "--limit=4", "--step"];
    let mut go = GoClient::start(plain.kubeconfig(), &arguments).unwrap();
    let mut pages = vec![go.wait_type("page").await.unwrap()];
    while pages.last().is_some_and(|page| page["more"] == true) {
        go.tell("next").await.unwrap();
        pages.push(go.wait_type("page").await.unwrap());
    }
    assert!(
        pages.len() >= 3 && pages.iter().all(|page| page["rv"] == pages[0]["rv"]),
        "{pages:?}"
    );
    let all = go.wait_type("dump").await.unwrap();
    let all: Vec<Item> = serde_json::from_value(all["items"].clone()).unwrap();
    assert_eq!(all, truth(plain, namespace).await.unwrap());
}

async fn changes_arrive(plain: &Plain, go: &mut GoClient, namespace: &str) -> anyhow::Result<()> {
    let arguments = ["create", "configmap", "comes-and-goes", "-n", namespace];
    plain.kubectl.ok(&arguments).await?;
    let of_it = |line: &Value, what: &str| line["type"] == what && line["key"] == format!("{namespace}/comes-and-goes");
    go.wait("its add", |line| of_it(line, "add") && line["initial"] == false)
        .await?;
    let arguments = ["label", "configmap", "comes-and-goes", "-n", namespace, "a=b"];
    plain.kubectl.ok(&arguments).await?;
    go.wait("its update", |line| of_it(line, "update")).await?;
    ensure!(
        go.dump().await?.items == truth(plain, namespace).await?,
        "the cache differs"
    );
    let arguments = ["delete", "configmap", "comes-and-goes", "-n", namespace];
    plain.kubectl.ok(&arguments).await?;
    go.wait("its delete", |line| of_it(line, "delete")).await?;
    ensure!(
        go.dump().await?.items == truth(plain, namespace).await?,
        "the cache differs"
    );
    Ok(())
}

async fn truth(plain: &Plain, namespace: &str) -> anyhow::Result<Vec<Item>> {
    let list = plain.json(&["get", "configmaps", "-n", namespace]).await?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut items: Vec<Item> = list["items"]
        .as_array()
        .context("items")?
        .iter()
        .map(|item| Item {
            key: format!("{namespace}/{}", text(&item["metadata"]["name"])),
            uid: text(&item["metadata"]["uid"]),
            rv: text(&item["metadata"]["resourceVersion"]),
        })
        .collect();
    items.sort();
    Ok(items)
}
