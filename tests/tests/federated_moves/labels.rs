//! A kind comes while an agent is stopped: its objects have no labels, so the router chooses what the client sees. The
//! agent starts, labels them, and then the member chooses: the client is told nothing twice and of nothing that is gone.

use std::time::{Duration, Instant};

use portolan_testbed::eventually;
use portolan_tests::daemon::Daemon;
use portolan_tests::door::Door;
use portolan_tests::programs::argument;
use portolan_tests::watch::{Watch, held};
use serde_json::{Value, json};

use crate::{MEMBERS, begun, door, make, truth, world};

const BOXES: (&str, &str) = ("/apis/moves.test/v1", "boxes");
const ALL: &str = "/apis/moves.test/v1/boxes";
const OWNED: [(&str, &str); 2] = [("east", "fb-e"), ("west", "fb-w")];

async fn pack(member: &str, namespace: &str, name: &str) {
    let object = json!({"apiVersion": "moves.test/v1", "kind": "Box", "metadata": {"name": name}});
    make(member, &format!("{}/namespaces/{namespace}/boxes", BOXES.0), &object).await;
}

async fn define() {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "boxes.moves.test"},
        "spec": {
            "group": "moves.test", "scope": "Namespaced", "names": {"kind": "Box", "plural": "boxes"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    for member in ["east", "west"] {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        make(member, path, &definition).await;
    }
}

/// What the router does with a watch of all boxes, in words.
async fn explained() -> anyhow::Result<String> {
    let fleet = &world().await.fleet;
    let dir = argument(fleet.dir());
    let caller = "east/operators/portolan-dev-labels";
    let arguments = ["explain", "watch", ALL, "--as", caller, "--dir", &dir].map(ToOwned::to_owned);
    fleet.run(&arguments).await
}

/// Waits until as many legs are chosen by the member, and as many by the router.
async fn chosen_by(member: usize, router: usize) {
    eventually(&format!("{member} legs by label and {router} filtered"), || async {
        let told = explained().await?;
        let by = (
            told.matches("labels of the kind are complete there").count(),
            told.matches("- the router keeps ").count(),
        );
        anyhow::ensure!(by == (member, router), "{told}");
        anyhow::Ok(())
    })
    .await;
}

async fn list(door: &Door) -> Value {
    eventually("boxes are listed", || async {
        let answer = door.get(ALL, &[]).await.unwrap();
        let list = answer.json();
        if answer.status == 200 && list["items"].is_array() {
            Ok(list)
        } else {
            Err(answer.message())
        }
    })
    .await
}

#[tokio::test]
async fn labels_become_complete_under_open_watches() {
    let _mine = MEMBERS.write().await;
    let world = world().await;
    let mut agent = world.fleet.take_over("agent-west").await.unwrap();
    agent.stop().await.unwrap();
    define().await;
    for (member, namespace) in OWNED.into_iter().chain([("west", "fx")]) {
        pack(member, namespace, "first").await;
    }
    let door = door("labels").await;
    eventually("both members are known to serve it", || async {
        let list = list(&door).await;
        list["items"].as_array().is_some_and(|items| items.len() == 2)
    })
    .await;
    // East's agent runs.
    chosen_by(1, 1).await;
    let listed = list(&door).await;
    assert_eq!(held(&listed).unwrap().len(), 2, "{listed}");
    let version = listed["metadata"]["resourceVersion"].as_str().unwrap();
    let mut from_list = Watch::open(&door, &format!("{ALL}?resourceVersion={version}"))
        .await
        .unwrap();
    from_list.held = held(&listed).unwrap();
    let mut streamed = begun(&door, ALL).await;
    pack("west", "fx", "second").await;
    pack("west", "fb-w", "second").await;
    for watch in [&mut from_list, &mut streamed] {
        assert_eq!(watch.sees("fb-w/second").await.unwrap(), "ADDED");
    }

    agent.start_again().await.unwrap();
    chosen_by(2, 0).await;
    // A list of now is asked by label, and is where a watch goes on.
    let after = list(&door).await;
    assert_eq!(held(&after).unwrap(), truth(BOXES, &OWNED).await);
    for (member, namespace) in OWNED.into_iter().chain([("west", "fx")]) {
        pack(member, namespace, "third").await;
    }
    let version = after["metadata"]["resourceVersion"].as_str().unwrap();
    let mut by_label = Watch::open(&door, &format!("{ALL}?resourceVersion={version}"))
        .await
        .unwrap();
    by_label.held = held(&after).unwrap();
    for watch in [&mut from_list, &mut streamed, &mut by_label] {
        watch.holds(async || truth(BOXES, &OWNED).await).await.unwrap();
        assert_eq!(watch.count("DELETED") + watch.count("ERROR"), 0, "{:?}", watch.seen);
        let foreign = watch.seen.iter().any(|event| event.contains(" fx/"));
        assert!(!foreign, "{:?}", watch.seen);
        let mut added: Vec<_> = watch.seen.iter().filter(|event| event.starts_with("ADDED")).collect();
        let all = added.len();
        added.sort();
        added.dedup();
        assert_eq!(added.len(), all, "twice: {:?}", watch.seen);
    }
    let mut watches = [from_list, streamed, by_label];
    silence(&mut agent, &mut watches).await;
}

/// Without its agent a namespace that is made anew gives its objects no labels: after a while the router chooses again, in
/// open watches too.
async fn silence(agent: &mut Daemon, watches: &mut [Watch; 3]) {
    agent.kill().await.unwrap();
    let killed = Instant::now();
    let west = world().await.direct_door("west").await.unwrap();
    west.call(http::Method::DELETE, "/api/v1/namespaces/fb-w", &[], b"")
        .await
        .unwrap();
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fb-w"}});
    make("west", "/api/v1/namespaces", &object).await;
    pack("west", "fb-w", "unlabelled").await;
    chosen_by(1, 1).await;
    assert!(killed.elapsed() >= Duration::from_secs(20), "{:?}", killed.elapsed());
    for watch in &mut *watches {
        assert_eq!(watch.sees("fb-w/unlabelled").await.unwrap(), "ADDED");
        watch.holds(async || truth(BOXES, &OWNED).await).await.unwrap();
        assert_eq!(watch.count("ERROR"), 0, "{:?}", watch.seen);
    }
    agent.start_again().await.unwrap();
    chosen_by(2, 0).await;
}
