//! The images of hub, router, agent and portolanctl, of test builds, as people install them: on a real Node, where Pod security
//! `restricted` is enforced and the root file system is read-only.
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use kube::api::{LogParams, PostParams};
use portolan_testbed::{Cluster, Image, Options, Release, Testbed, eventually, inside};
use portolan_tests::programs::program;
use serde_json::json;

const PROGRAMS: [&str; 4] = ["portolan-hub", "portolan-router", "portolan-agent", "portolanctl"];
const NAMESPACE: &str = "restricted";

fn image(program: &str) -> String {
    format!("registry.example.com/portolan/{program}:test")
}

async fn cluster() -> Testbed {
    let images = PROGRAMS.map(|name| Image::new(&image(name), program(name).unwrap()).released(Release::default()));
    let testbed = Testbed::start_with(Options {
        clusters: vec!["hub".to_owned()],
        nodes: [("hub".to_owned(), images.to_vec())].into(),
        ..Options::default()
    });
    let testbed = testbed.await.unwrap();
    let namespaces = Api::<Namespace>::all(testbed.cluster("hub").client().await.unwrap());
    let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE, "labels": labels}})).unwrap();
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    testbed
}

/// A Pod of a program that says its version; without `runAsUser`, as the image has one.
async fn start(cluster: &Cluster, program: &str) {
    let security = json!({
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": true,
        "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"},
    });
    let container =
        json!({"name": "main", "image": image(program), "args": ["--version"], "securityContext": security});
    let spec = json!({"restartPolicy": "Never", "containers": [container]});
    let pod = serde_json::from_value(json!({"metadata": {"name": program}, "spec": spec})).unwrap();
    pods(cluster).await.create(&PostParams::default(), &pod).await.unwrap();
}

async fn pods(cluster: &Cluster) -> Api<Pod> {
    Api::namespaced(cluster.client().await.unwrap(), NAMESPACE)
}

#[test]
fn images_run_where_little_is_allowed() {
    inside(async {
        let testbed = cluster().await;
        let cluster = testbed.cluster("hub");
        eventually("the namespace has its ServiceAccount", || async {
            let accounts = cluster.client().await.unwrap();
            let accounts = Api::<k8s_openapi::api::core::v1::ServiceAccount>::namespaced(accounts, NAMESPACE);
            accounts.get("default").await
        })
        .await;
        for program in PROGRAMS {
            start(cluster, program).await;
        }
        let pods = pods(cluster).await;
        for program in PROGRAMS {
            eventually(&format!("{program} has ended well"), || async {
                let status = pods.get(program).await.unwrap().status.unwrap_or_default();
                (status.phase.as_deref() == Some("Succeeded"))
                    .then_some(())
                    .ok_or(status)
            })
            .await;
            let said = pods.logs(program, &LogParams::default()).await.unwrap();
            assert_eq!(said, format!("{program} {}\n", env!("CARGO_PKG_VERSION")));
        }
    });
}
