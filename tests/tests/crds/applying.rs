//! `portolanctl apply` against a real API server: what is wrong is told and nothing of the file is sent, a dry run stores
//! nothing, and what somebody else has set is a conflict.

use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use portolan_crds::CircuitBreaker;
use portolan_testbed::Cluster;
use portolan_tests::ctl;
use serde_json::json;

use super::repository;

/// A namespace of its own, as the examples' objects are applied by others too.
const NAMESPACE: &str = "applying";

pub(super) async fn judges_before_it_sends(hub: &Cluster, client: &Client) {
    let dir = tempfile::tempdir().unwrap();
    let example = std::fs::read_to_string(repository("examples/circuit-breaker.yaml")).unwrap();
    let good = example.replace("operator-demo", NAMESPACE);
    let write = |name: &str, text: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let kubeconfig = hub.kubeconfig_path().display().to_string();
    let bad = write(
        "bad.yaml",
        &good
            .replace("burst: 10,", "burst: 0,")
            .replace("rateLimitings:", "rateLimits:"),
    );
    let worse = write("worse.yaml", &good.replace("burst: 10,", "burst: 0,"));
    let good = write("good.yaml", &good);
    let apply = |file: &str, more: &[&str]| -> Vec<String> {
        let words = ["apply", "-f", file, "--hub-kubeconfig", &kubeconfig];
        words.iter().chain(more).map(|word| (*word).to_owned()).collect()
    };
    let ok = async |words: Vec<String>| {
        ctl::ok(&words.iter().map(String::as_str).collect::<Vec<_>>())
            .await
            .unwrap()
    };
    let refused = async |words: Vec<String>| {
        ctl::refused(&words.iter().map(String::as_str).collect::<Vec<_>>())
            .await
            .unwrap()
    };
    let breakers = Api::<CircuitBreaker>::namespaced(client.clone(), NAMESPACE);

    let told = refused(apply(&bad, &[])).await;
    assert!(
        told.contains("spec.rateLimits is no field: did you mean rateLimitings?"),
        "{told}"
    );
    let told = refused(apply(&worse, &[])).await;
    assert!(
        told.contains(&format!(
            "CircuitBreaker/{NAMESPACE}/runaway: spec.rateLimitings[0].bucket.burst: 0 would refuse"
        )),
        "{told}"
    );
    assert!(
        told.contains("1 of 2 documents would not be accepted; nothing was sent"),
        "{told}"
    );
    let told = ok(apply(&good, &["--dry-run=client"])).await;
    assert!(
        told.ends_with(&format!("CircuitBreaker/{NAMESPACE}/runaway: accepted\n")),
        "{told}"
    );
    // Not even its Namespace is there.
    let told = refused(apply(&good, &["--dry-run=server"])).await;
    assert!(
        told.contains(&format!("namespaces \"{NAMESPACE}\" not found")),
        "{told}"
    );

    let told = ok(apply(&good, &[])).await;
    assert_eq!(
        told,
        format!("Namespace/{NAMESPACE}: applied\nCircuitBreaker/{NAMESPACE}/runaway: applied\n")
    );
    let first = breakers.get("runaway").await.unwrap();
    ok(apply(&good, &[])).await;
    assert_eq!(
        breakers.get("runaway").await.unwrap(),
        first,
        "applied again it is the same"
    );

    let theirs = json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "CircuitBreaker",
        "spec": {"rateLimitings": [{"name": "deletes", "bucket": {"burst": 11, "interval": "1m", "limit": 5}}]},
    });
    let params = PatchParams::apply("somebody").force();
    breakers.patch("runaway", &params, &Patch::Apply(theirs)).await.unwrap();
    let told = refused(apply(&good, &[])).await;
    assert!(told.contains("conflict with \"somebody\""), "{told}");
    ok(apply(&good, &["--force-conflicts", "--dry-run=server"])).await;
    assert_eq!(
        breakers.get("runaway").await.unwrap().spec.rate_limitings[0]
            .bucket
            .burst,
        11
    );
    ok(apply(&good, &["--force-conflicts"])).await;
    assert_eq!(breakers.get("runaway").await.unwrap().spec, first.spec);
}
