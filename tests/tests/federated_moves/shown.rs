//! A move is shown before it is made, made, and taken back: `portolanctl shards plan`, `who`, `status`, `diff`, `move` and
//! `rollback`, on a hub and a router that run.

use std::io::Write as _;

use portolan_testbed::eventually;
use portolan_tests::ctl::{ok, portolanctl, refused};
use portolan_tests::kubectl::Ended;
use portolan_tests::programs::argument;
use portolan_tests::shard::federated;
use serde_json::Value;

use crate::world;

/// What the shards have in the beginning; both have a caller.
pub(crate) const PLANNED: &[(&str, &[&str])] = &[("east", &["fp-a", "fp-b"])];
pub(crate) const HEIR: &[(&str, &[&str])] = &[("west", &["fp-w"])];

async fn dir() -> String {
    argument(world().await.fleet.dir())
}

/// `portolanctl shards …` of the fleet, to its end.
async fn shards(arguments: &[&str]) -> Ended {
    let dir = dir().await;
    let all = [&["shards"], arguments, &["--dir", &dir]].concat();
    portolanctl(&all).await.unwrap()
}

/// The same, for programs.
async fn json(arguments: &[&str]) -> (Option<i32>, Value) {
    let ended = shards(&[arguments, &["-o", "json"]].concat()).await;
    let told = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{}{}", ended.stdout, ended.stderr));
    (ended.code, told)
}

/// The plan of shards that have this.
async fn plan(all: &[(&str, &[(&str, &[&str])])]) -> (Option<i32>, Value) {
    let manifests: String = all.iter().map(|(name, owns)| federated(name, "east", owns)).collect();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(manifests.as_bytes()).unwrap();
    json(&["plan", "-f", &argument(file.path())]).await
}

/// Who has fp-b of east, by the hub.
async fn who() -> Value {
    json(&["who", "fp-b", "--cluster", "east"]).await.1["pairs"][0].clone()
}

async fn owned_by(shard: &str) -> Value {
    eventually(&format!("{shard} has fp-b"), || async {
        let told = who().await;
        anyhow::ensure!(told["owner"] == shard && told["state"] == "Granted", "{told}");
        Ok(told)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_is_shown_made_and_taken_back() {
    let before = owned_by("operators/planned").await;
    assert_eq!(before["field"], "spec.clusters[0].namespaces[1]", "{before}");
    foreseen().await;
    assert_eq!(who().await, before, "plans write nothing");

    let arguments = ["move", "fp-b", "--cluster", "east", "--to", "operators/heir"];
    let shown = shards(&arguments).await;
    assert!(
        shown.ok && shown.stdout.contains("add --yes"),
        "{}{}",
        shown.stdout,
        shown.stderr
    );
    let line = "east operators/planned operators/heir 1: fp-b";
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(shown.stdout.lines().any(|one| words(one) == line), "{}", shown.stdout);
    assert_eq!(who().await, before, "it was only shown");

    let moved = shards(&[&arguments[..], &["--yes"]].concat()).await;
    assert!(moved.ok, "{}{}", moved.stdout, moved.stderr);
    let after = owned_by("operators/heir").await;
    assert!(
        after["viewRevision"].as_u64() > before["viewRevision"].as_u64(),
        "{after}"
    );
    assert_eq!(after["field"], "spec.clusters[1].namespaces[0]", "{after}");
    standing().await;
    taken_back().await;
}

/// Of edits that were not made: what would move, what would be refused, what is there already.
async fn foreseen() {
    let both = [
        ("planned", &[("east", &["fp-a"][..])][..]),
        ("heir", &[("west", &["fp-w"][..]), ("east", &["fp-b"])]),
    ];
    let (code, told) = plan(&both).await;
    let moves = told["plan"]["moves"].as_array().unwrap();
    assert_eq!((code, moves.len()), (Some(1), 1), "{told}");
    let [namespace, from, to] = ["namespace", "from", "to"].map(|key| moves[0][key].as_str().unwrap());
    assert_eq!((namespace, from, to), ("fp-b", "operators/planned", "operators/heir"));

    let (code, told) = plan(&[("heir", &[("west", &["fp-w"]), ("east", &["fp-b"])])]).await;
    let refused = &told["plan"]["refused"][0];
    assert_eq!(
        (code, &refused["shard"]),
        (Some(2), &Value::from("operators/heir")),
        "{told}"
    );
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("east/fp-b (of operators/planned)"),
        "{told}"
    );

    let (code, told) = plan(&[("planned", PLANNED), ("heir", HEIR)]).await;
    assert_eq!(
        (code, told["plan"]["unchanged"].as_array().map(Vec::len)),
        (Some(0), Some(2)),
        "{told}"
    );
}

/// After the move: `status` tells who has what, and the router comes to serve what the hub says.
async fn standing() {
    let (_, told) = json(&["status", "operators/heir"]).await;
    assert_eq!(told["shards"][0]["pairs"]["east"], 1, "{told}");
    assert_eq!(told["shards"][0]["lease"]["name"], "greeting-operator", "{told}");
    eventually("the router serves what the hub says", || async {
        let compared = shards(&["diff"]).await;
        anyhow::ensure!(compared.code == Some(0), "{}{}", compared.stdout, compared.stderr);
        anyhow::ensure!(
            compared.stdout.contains("serves what the hub says"),
            "{}",
            compared.stdout
        );
        Ok(())
    })
    .await;
    let dir = dir().await;
    let unknown = refused(&["shards", "status", "operators/nobody", "--dir", &dir])
        .await
        .unwrap();
    assert!(
        unknown.contains("there is no ShardingConfig operators/nobody"),
        "{unknown}"
    );
}

/// Each goes back to what it had before, the new owner first.
async fn taken_back() {
    let dir = dir().await;
    for shard in ["operators/heir", "operators/planned"] {
        let told = ok(&["shards", "rollback", shard, "--dir", &dir, "--yes"])
            .await
            .unwrap();
        assert!(told.contains("spec.clusters") && told.contains("Written"), "{told}");
    }
    owned_by("operators/planned").await;
}
