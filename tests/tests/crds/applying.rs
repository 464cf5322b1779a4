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

/// Manifests in a folder, applied by the command.
struct Files {
    folder: tempfile::TempDir,
    kubeconfig: String,
}

impl Files {
    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn words(&self, file: &str, more: &[&str]) -> Vec<String> {
        let file = self.folder.path().join(file).display().to_string();
        let words = ["apply", "-f", &file, "--hub-kubeconfig", &self.kubeconfig];
        words.iter().chain(more).map(|word| (*word).to_owned()).collect()
    }

    async fn ok(&self, file: &str, more: &[&str]) -> String {
        let words = self.words(file, more);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        ctl::ok(&words).await.unwrap()
    }

    async fn refused(&self, file: &str, more: &[&str]) -> String {
        let words = self.words(file, more);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        ctl::refused(&words).await.unwrap()
    }
}

pub(super) async fn judges_before_it_sends(hub: &Cluster, client: &Client) {
    let files = Files {
        folder: tempfile::tempdir().unwrap(),
        kubeconfig: hub.kubeconfig_path().display().to_string(),
    };
    let example = std::fs::read_to_string(repository("examples/circuit-breaker.yaml")).unwrap();
    let good = example.replace("operator-demo", NAMESPACE);
    let worse = good.replace("burst: 10,", "burst: 0,");
    files.write("bad.yaml", &worse.replace("rateLimitings:", "rateLimits:"));
    files.write("worse.yaml", &worse);
    files.write("good.yaml", &good);
    let told = files.refused("bad.yaml", &[]).await;
    assert!(
        told.contains("spec.rateLimits is no field: did you mean rateLimitings?"),
        "{told}"
    );
    let told = files.refused("worse.yaml", &[]).await;
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
    let told = files.ok("good.yaml", &["--dry-run=client"]).await;
    assert!(
        told.ends_with(&format!("CircuitBreaker/{NAMESPACE}/runaway: accepted\n")),
        "{told}"
    );
    // Not even its Namespace is there.
    let told = files.refused("good.yaml", &["--dry-run=server"]).await;
    assert!(
        told.contains(&format!("namespaces \"{NAMESPACE}\" not found")),
        "{told}"
    );
    applies_what_is_good(&files, client).await;
}

async fn applies_what_is_good(files: &Files, client: &Client) {
    let breakers = Api::<CircuitBreaker>::namespaced(client.clone(), NAMESPACE);
    let told = files.ok("good.yaml", &[]).await;
    assert_eq!(
        told,
        format!("Namespace/{NAMESPACE}: applied\nCircuitBreaker/{NAMESPACE}/runaway: applied\n")
    );
    let first = breakers.get("runaway").await.unwrap();
    files.ok("good.yaml", &[]).await;
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
    let told = files.refused("good.yaml", &[]).await;
    assert!(told.contains("conflict with \"somebody\""), "{told}");
    files.ok("good.yaml", &["--force-conflicts", "--dry-run=server"]).await;
    assert_eq!(
        breakers.get("runaway").await.unwrap().spec.rate_limitings[0]
            .bucket
            .burst,
        11
    );
    files.ok("good.yaml", &["--force-conflicts"]).await;
    assert_eq!(breakers.get("runaway").await.unwrap().spec, first.spec);
}
