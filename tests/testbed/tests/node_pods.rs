//! Pods on real Nodes of two clusters side by side, as programs in them and API users see them.
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::Api;
use kube::api::PostParams;
use portolan_testbed::{Cluster, Fault, Image, Options, Testbed, eventually, inside, kubectl, tool};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;

const PROGRAM: &str = "registry.example.com/pod-program:1";
const KUBECTL: &str = "registry.example.com/kubectl:1";
const PORT: u16 = 8080;

async fn clusters() -> &'static Testbed {
    static TESTBED: OnceCell<Testbed> = OnceCell::const_new();
    let start = || async {
        let images = vec![
            Image::new(PROGRAM, env!("CARGO_BIN_EXE_pod-program")),
            Image::new(KUBECTL, tool("kubectl")),
        ];
        let names = ["east", "west"].map(str::to_owned);
        let options = Options {
            clusters: names.to_vec(),
            nodes: names.into_iter().map(|name| (name, images.clone())).collect(),
            ..Options::default()
        };
        Testbed::start_with(options).await.unwrap()
    };
    TESTBED.get_or_init(start).await
}

async fn pods(cluster: &Cluster) -> Api<Pod> {
    Api::namespaced(cluster.client().await.unwrap(), "default")
}

/// A Pod that answers, once it is ready.
async fn answering(cluster: &Cluster, name: &str, more: Value) -> Pod {
    let pods = pods(cluster).await;
    let mut container = json!({
        "name": "main", "image": PROGRAM, "imagePullPolicy": "Never",
        "readinessProbe": {"httpGet": {"path": "/status/200", "port": PORT}, "periodSeconds": 1},
    });
    container
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let pod = json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap())
        .await
        .unwrap();
    eventually(&format!("{name} of {} is ready", cluster.name()), || async {
        let pod = pods.get(name).await.unwrap();
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions
            .into_iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        if ready {
            Ok(pod)
        } else {
            Err(format!("{:?}", pod.status))
        }
    })
    .await
}

async fn service(cluster: &Cluster, name: &str) -> IpAddr {
    let services = Api::<Service>::namespaced(cluster.client().await.unwrap(), "default");
    let service = json!({"metadata": {"name": name}, "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": PORT}]}});
    let made = services
        .create(&PostParams::default(), &serde_json::from_value(service).unwrap())
        .await
        .unwrap();
    made.spec.unwrap().cluster_ip.unwrap().parse().unwrap()
}

fn ip(pod: &Pod) -> IpAddr {
    pod.status.as_ref().unwrap().pod_ip.as_ref().unwrap().parse().unwrap()
}

/// What the program of a Pod answers: whatever it was asked to do there.
async fn ask(at: (IpAddr, u16), path: &str) -> Result<String, String> {
    let asked = async {
        let mut stream = TcpStream::connect(at).await?;
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes())
            .await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = asked.await.map_err(|error| error.to_string())?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
    if head.contains(" 200 ") {
        Ok(body.to_owned())
    } else {
        Err(body.to_owned())
    }
}

#[test]
fn pods_and_services_of_both_clusters_reach_each_other() {
    inside(async {
        let testbed = clusters().await;
        let (east, west) = (testbed.cluster("east"), testbed.cluster("west"));
        let (a, b) = (
            answering(east, "reach", json!({})).await,
            answering(west, "reach", json!({})).await,
        );
        let (in_east, in_west) = (service(east, "reach").await, service(west, "reach").await);
        for target in [
            format!("{}:{PORT}", ip(&b)),
            format!("{in_east}:80"),
            format!("{in_west}:80"),
        ] {
            let dial = format!("/dial/{target}");
            eventually(&format!("a Pod of east reaches {target}"), || {
                ask((ip(&a), PORT), &dial)
            })
            .await;
        }
        // And whatever a test runs reaches Services, as webhooks of API servers do.
        assert_eq!(ask((in_west, 80), "/env/HOSTNAME").await.unwrap(), "reach");
        // By name, as CoreDNS of its own cluster has it.
        eventually("a Service is found by its name", || {
            ask((ip(&a), PORT), "/lookup/reach.default.svc.cluster.local:80")
        })
        .await;
        let elsewhere = ask((ip(&a), PORT), "/lookup/nobody.default.svc.cluster.local:80").await;
        elsewhere.unwrap_err();
    });
}

#[test]
fn a_client_in_a_pod_is_cut_off_with_everybody_else() {
    inside(async {
        let east = clusters().await.cluster("east");
        let script = ["get", "--raw", "/api/v1/namespaces/default/pods/kubectl-none"];
        let told = |said: &str| said.contains("Forbidden") || said.contains("forbidden");
        let reads = || async {
            let name = "inside-client";
            let pods = pods(east).await;
            let pod = json!({
                "metadata": {"name": name},
                "spec": {"restartPolicy": "Never", "containers": [
                    {"name": "main", "image": KUBECTL, "imagePullPolicy": "Never", "args": script},
                ]},
            });
            pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap())
                .await
                .unwrap();
            let done = eventually("kubectl in a Pod has ended", || async {
                let pod = pods.get(name).await.unwrap();
                let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
                if ["Succeeded", "Failed"].contains(&phase.as_str()) {
                    Ok(())
                } else {
                    Err(phase)
                }
            });
            done.await;
            let said = pods.logs(name, &kube::api::LogParams::default()).await.unwrap();
            pods.delete(name, &kube::api::DeleteParams::default().grace_period(0))
                .await
                .unwrap();
            eventually("it is gone", || async { pods.get_opt(name).await.unwrap().is_none() }).await;
            said
        };
        // The API server knows it by its account, which may do nothing.
        let said = reads().await;
        assert!(
            told(&said) && said.contains("system:serviceaccount:default:default"),
            "{said}"
        );
        east.fault(Fault::Reset).await.unwrap();
        let said = reads().await;
        assert!(!told(&said), "{said}");
        east.fault(Fault::None).await.unwrap();
        assert!(told(&reads().await));
    });
}

#[test]
fn kubectl_sees_into_containers() {
    inside(async {
        let east = clusters().await.cluster("east");
        answering(
            east,
            "seen",
            json!({"securityContext": {"runAsUser": 65532, "readOnlyRootFilesystem": true}}),
        )
        .await;
        let run = async |args: &[&str]| {
            let output = kubectl(east.kubeconfig_path()).args(args).output().await.unwrap();
            String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
        };
        assert!(run(&["logs", "seen"]).await.contains("listening on"));
        let said = run(&["exec", "seen", "--", "/pod-program", "80", "no address"]).await;
        assert!(
            said.contains("exit code 1") && said.contains("failed to lookup address"),
            "{said}"
        );
        let ip = ip(&pods(east).await.get("seen").await.unwrap());
        assert!(ask((ip, PORT), "/write/etc/x").await.unwrap_err().contains("ead-only"));
        assert!(
            ask((ip, PORT), "/read/proc/self/status")
                .await
                .unwrap()
                .contains("Uid:\t65532")
        );
    });
}
