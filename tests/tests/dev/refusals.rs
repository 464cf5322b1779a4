//! Bad input of `dev up` is refused before anything is changed, here or in a cluster, with what to do about it.

use std::path::Path;

use portolan_tests::ctl;
use portolan_tests::programs::argument;
use portolan_tests::shard::federated;

use crate::{Ground, ground, words};

/// A folder for manifests and kubeconfigs, and one that `up` is never to make.
struct Attempt<'a> {
    ground: &'a Ground,
    scratch: tempfile::TempDir,
}

impl Attempt<'_> {
    async fn refused(&self, arguments: &[String], wanted: &[&str]) {
        let dir = self.scratch.path().join("fleet");
        let mut all: Vec<String> = ["dev", "up"].map(str::to_owned).to_vec();
        all.extend_from_slice(arguments);
        all.extend(["--dir".to_owned(), argument(&dir)]);
        let refusal = ctl::refused(&words(&all)).await.unwrap();
        for word in wanted {
            assert!(refusal.contains(word), "{word:?} is not in: {refusal}");
        }
        assert!(!dir.exists(), "a refused up left its folder: {refusal}");
    }

    fn kubeconfig(&self, cluster: &str) -> String {
        argument(self.ground.testbed.cluster(cluster).kubeconfig_path())
    }

    fn file(&self, name: &str, text: &str) -> String {
        let file = self.scratch.path().join(name);
        std::fs::write(&file, text).unwrap();
        argument(&file)
    }

    /// Hub and east as they should be, with this manifest.
    async fn manifest_refused(&self, yaml: &str, wanted: &[&str]) {
        let file = self.file("bad.yaml", yaml);
        let mut arguments = self.good(&["east"]);
        arguments.extend(["-f".to_owned(), file]);
        self.refused(&arguments, wanted).await;
    }

    fn good(&self, members: &[&str]) -> Vec<String> {
        let mut arguments = vec!["--hub".to_owned(), self.kubeconfig("hub")];
        for member in members {
            arguments.extend(["--member".to_owned(), format!("{member}={}", self.kubeconfig(member))]);
        }
        arguments
    }
}

#[tokio::test]
async fn bad_clusters() {
    let ground = ground().await;
    let attempt = Attempt {
        ground: &ground,
        scratch: tempfile::tempdir().unwrap(),
    };
    let (hub, east) = (attempt.kubeconfig("hub"), attempt.kubeconfig("east"));
    let with = |hub: &str, members: &[String]| {
        let mut arguments = vec!["--hub".to_owned(), hub.to_owned()];
        arguments.extend(
            members
                .iter()
                .flat_map(|member| ["--member".to_owned(), member.clone()]),
        );
        arguments
    };
    let missing = argument(&attempt.scratch.path().join("no-such-file"));
    let one = [format!("east={east}")];
    attempt.refused(&with(&missing, &one), &["the hub", &missing]).await;
    attempt
        .refused(
            &with(&hub, &[format!("east={missing}")]),
            &["member cluster east", &missing],
        )
        .await;
    let garbage = attempt.file("garbage", "not: [a kubeconfig");
    attempt
        .refused(
            &with(&hub, &[format!("east={garbage}")]),
            &["member cluster east", &garbage],
        )
        .await;
    let down = unreachable(&attempt, Path::new(&east));
    attempt
        .refused(
            &with(&hub, &[format!("east={down}")]),
            &["member cluster east", "does not answer", "127.0.0.1:1"],
        )
        .await;
    attempt.refused(&with(&hub, &[format!("East={east}")]), &["East"]).await;
    attempt.refused(&with(&hub, &["east".to_owned()]), &["NAME=FILE"]).await;
    let twice = [one[0].clone(), one[0].clone()];
    attempt.refused(&with(&hub, &twice), &["--member east", "twice"]).await;
    let same = [one[0].clone(), format!("other={east}")];
    attempt
        .refused(&with(&hub, &same), &["east", "other", "same cluster"])
        .await;
    ground.assert_as_before().await;
}

/// A kubeconfig whose server nobody listens at.
fn unreachable(attempt: &Attempt<'_>, good: &Path) -> String {
    let text = std::fs::read_to_string(good).unwrap();
    let server = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("server: "))
        .unwrap()
        .to_owned();
    attempt.file("unreachable", &text.replace(&server, "https://127.0.0.1:1"))
}

#[tokio::test]
async fn bad_manifests() {
    let ground = ground().await;
    let attempt = Attempt {
        ground: &ground,
        scratch: tempfile::tempdir().unwrap(),
    };
    let missing = argument(&attempt.scratch.path().join("no-such.yaml"));
    let mut arguments = attempt.good(&["east"]);
    arguments.extend(["-f".to_owned(), missing.clone()]);
    attempt.refused(&arguments, &[&missing]).await;

    let good = federated("alpha", "east", &[("east", &["team-a"])]);
    attempt.manifest_refused("a: [b", &["bad.yaml", "YAML"]).await;
    attempt.manifest_refused("just: a map", &["bad.yaml"]).await;
    let what = "ShardingConfig operators/alpha";
    let untyped = good.replace("callerClusters: [east]", "callerClusters: east");
    attempt.manifest_refused(&untyped, &[what, "callerClusters"]).await;
    let typo = good.replace("callerClusters: [east]", "callerCluster: [east]");
    attempt
        .manifest_refused(
            &typo,
            &[what, "spec.callerCluster is no field", "did you mean callerClusters"],
        )
        .await;
    let elsewhere = good.replace("callerClusters: [east]", "callerClusters: [north]");
    attempt
        .manifest_refused(&elsewhere, &[what, "callerClusters", "north", "--member"])
        .await;
    let unknown = good.replace("- name: east", "- name: north");
    attempt
        .manifest_refused(&unknown, &[what, "spec.clusters[0].name", "north", "--member"])
        .await;
    let both = good.replace("- name: east", "- name: east\n    selector: {matchLabels: {a: b}}");
    attempt.manifest_refused(&both, &[what, "spec.clusters[0]"]).await;
    let operator = good.replace(
        "matchLabels:\n      shard: alpha",
        "matchExpressions: [{key: a, operator: Near}]",
    );
    attempt
        .manifest_refused(&operator, &[what, "spec.selector", "Near"])
        .await;
    let homonym = good.clone() + &good.replace("namespace: operators", "namespace: others");
    attempt
        .manifest_refused(
            &homonym,
            &["operators/alpha", "others/alpha", "merged-alpha.kubeconfig"],
        )
        .await;
    let kind = format!("{good}apiVersion: example.com/v1\nkind: Gadget\nmetadata: {{name: x}}\n");
    attempt.manifest_refused(&kind, &["example.com/v1", "Gadget"]).await;
    ground.assert_as_before().await;
}
