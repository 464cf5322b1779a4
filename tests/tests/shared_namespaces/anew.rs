//! A namespace that comes is granted to all operators that own its name at once, and fenced for all of them by one annotation.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use http::Method;
use portolan_testbed::eventually;
use portolan_tests::door::{Door, request};
use portolan_tests::watch::Watch;
use portolan_tests::world::{Plan, World};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::scene::{condition, epochs, map, of};

const OPERATORS: usize = 20;
const NAMESPACES: &str = "/api/v1/namespaces";
/// What a person would call slow.
const SLOW: Duration = Duration::from_secs(20);

/// Each of 20 operators owns these names, of which one is there in the beginning, and what has this label.
const OWNED: [&str; 2] = ["anew-home", "anew-named"];
const LABEL: [&str; 2] = ["team", "anew"];

async fn world() -> World {
    let [key, value] = LABEL;
    let selector = format!("    namespaceSelector: {{matchLabels: {{{key}: {value}}}}}\n---\n");
    let owned = |number: usize| {
        let (operator, shard) = (format!("program-{number}"), format!("of-{number}"));
        of(&operator, &shard, &[("east", &OWNED)]).replace("---\n", &selector)
    };
    let manifests: Vec<_> = (0..OPERATORS).map(owned).collect();
    let plan = Plan {
        members: &["east"],
        namespaces: &["east/anew-home"],
        manifests: &manifests.concat(),
        ..Plan::default()
    };
    World::start(plan).await.unwrap()
}

fn maps(namespace: &str) -> String {
    format!("{NAMESPACES}/{namespace}/configmaps")
}

/// Each makes a ConfigMap, all at once, as often as it is told to try again; how long the last one took, and what was refused.
async fn all_write(doors: &[Door], namespace: &str) -> (Duration, Vec<String>) {
    let (begun, mut writes) = (Instant::now(), JoinSet::new());
    for (number, door) in doors.iter().enumerate() {
        let (door, path) = (door.clone(), maps(namespace));
        writes.spawn(async move {
            let (object, mut refused) = (map(&format!("of-{number}")), Vec::new());
            loop {
                let answer = door.post(&path, &object).await.unwrap();
                match answer.status {
                    201 => return (begun.elapsed(), refused),
                    status => refused.push(format!("{status}: {}", answer.message())),
                }
                assert!(begun.elapsed() < portolan_testbed::patience(), "{refused:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
    let all = writes.join_all().await;
    let last = all.iter().map(|(took, _)| *took).max().unwrap_or_default();
    (last, all.into_iter().flat_map(|(_, refused)| refused).collect())
}

/// What a member tells of a Namespace from before it is made.
struct Seen {
    watch: Watch,
    direct: Door,
    namespace: &'static str,
}

impl Seen {
    async fn begin(world: &World, namespace: &'static str) -> Self {
        let direct = world.direct_door("east").await.unwrap();
        let chosen = format!("{NAMESPACES}?fieldSelector=metadata.name%3D{namespace}");
        let list = direct.get(&chosen, &[]).await.unwrap().json();
        let version = list["metadata"]["resourceVersion"].as_str().unwrap();
        let path = format!("{chosen}&resourceVersion={version}");
        Self {
            watch: Watch::open(&direct, &path).await.unwrap(),
            direct,
            namespace,
        }
    }

    /// What the annotation said, one after the other, until all who have the namespace are fenced.
    async fn annotated(mut self, world: &World) -> Vec<Vec<u64>> {
        let mut said = Vec::new();
        self.read(&mut said, |epochs, _| epochs.len() == OPERATORS).await;
        for number in 0..OPERATORS {
            let shard = format!("of-{number}");
            eventually(&format!("{shard} is fenced there"), || async {
                let (_, message) = condition(world, &shard, "HandoverFenced").await.unwrap();
                (!message.contains(self.namespace)).then_some(()).ok_or(message)
            })
            .await;
        }
        let path = format!("{NAMESPACES}/{}", self.namespace);
        let mark = json!({"metadata": {"annotations": {"mark": self.namespace}}});
        let headers = [("content-type", "application/merge-patch+json")];
        let request = request(Method::PATCH, &path, &headers, mark.to_string().as_bytes());
        assert_eq!(self.direct.ask(request.unwrap()).await.unwrap().status, 200);
        let namespace = self.namespace;
        let marked = |_: &[u64], object: &Value| object["metadata"]["annotations"]["mark"] == namespace;
        self.read(&mut said, marked).await;
        said
    }

    async fn read(&mut self, said: &mut Vec<Vec<u64>>, enough: impl Fn(&[u64], &Value) -> bool) {
        loop {
            let event = self.watch.next().await.unwrap().unwrap();
            let now = epochs(&event["object"]);
            if !now.is_empty() && said.last() != Some(&now) {
                said.push(now.clone());
            }
            if enough(&now, &event["object"]) {
                return;
            }
        }
    }
}

/// One epoch of each, all set by one patch.
fn once_for_all(said: &[Vec<u64>]) {
    let counts: Vec<_> = said
        .iter()
        .map(|epochs| epochs.iter().collect::<BTreeSet<_>>().len())
        .collect();
    assert_eq!(counts, [OPERATORS], "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_is_everybodys_at_once() {
    let world = world().await;
    let mut doors = Vec::new();
    for number in 0..OPERATORS {
        doors.push(
            world
                .listed_door(&format!("of-{number}"), &maps("anew-home"))
                .await
                .unwrap(),
        );
    }

    // By a name that they have asked for, at the member.
    let seen = Seen::begin(&world, "anew-named").await;
    make(&world.direct_door("east").await.unwrap(), "anew-named").await;
    comes(&world, &doors, seen).await;
    // By a label, by the router: who makes it has it when it is answered, and so have all the others.
    let seen = Seen::begin(&world, "anew-chosen").await;
    make(&doors[0], "anew-chosen").await;
    let refused = comes(&world, &doors, seen).await;
    assert_eq!(refused, [""; 0]);
    // And once more, in later epochs.
    let path = format!("{NAMESPACES}/anew-chosen");
    let direct = world.direct_door("east").await.unwrap();
    let deleted = doors[1]
        .ask(request(Method::DELETE, &path, &[], &[]).unwrap())
        .await
        .unwrap();
    assert_eq!(deleted.status, 200, "{}", deleted.message());
    eventually("it is gone", || async {
        (direct.get(&path, &[]).await.unwrap().status == 404).then_some(())
    })
    .await;
    let seen = Seen::begin(&world, "anew-chosen").await;
    make(&direct, "anew-chosen").await;
    comes(&world, &doors, seen).await;
}

async fn make(door: &Door, namespace: &str) {
    let [key, value] = LABEL;
    let object =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": {key: value}}});
    let made = door.post(NAMESPACES, &object).await.unwrap();
    assert_eq!((made.status, made.header("warning")), (201, ""), "{}", made.message());
}

/// It has just been made: all write, and are fenced by one annotation. What they were refused before.
async fn comes(world: &World, doors: &[Door], seen: Seen) -> Vec<String> {
    let namespace = seen.namespace;
    let (took, refused) = all_write(doors, namespace).await;
    println!(
        "{namespace}: all {OPERATORS} have written after {took:?}, {} refused",
        refused.len()
    );
    assert!(took < SLOW, "{took:?}: {refused:?}");
    once_for_all(&seen.annotated(world).await);
    refused
}
