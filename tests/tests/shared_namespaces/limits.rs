//! Shards without `clusters` contend by what their limits say, and what an edit moves is nobody's until every router has let go of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Instant;

use nix::sys::signal::Signal;
use portolan_crds::Bucketing;
use portolan_testbed::eventually;
use portolan_tests::door::Door;
use portolan_tests::routers;
use portolan_tests::world::{HUB, Plan, PodSpec, World};
use serde_json::json;
use tokio::task::JoinSet;

use crate::scene::{apply, map, until};

const NAMESPACES: usize = 8;

/// A shard as ControllerMesh users have it: no `clusters`, and limits on one bucket and a label of their own.
fn original(name: &str, bucket: u16, app: &str) -> String {
    format!(
        "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\nmetadata:\n  name: {name}\n  namespace: operators\nspec:\n  \
         selector:\n    matchLabels:\n      shard: {name}\n  controller:\n    leaderElectionName: operator\n  enforcement: Enforce\n  \
         limits:\n  - relateResources:\n    - apiGroups: [\"\"]\n      resources: [configmaps]\n    selector:\n      \
         matchLabels: {{app: {app}}}\n      matchExpressions:\n      - key: ctrlmesh.kusionstack.io/sharding-hash\n        \
         operator: In\n        values: [\"{bucket}\"]\n---\n"
    )
}

/// A root of so many children that share out all ConfigMaps; its Pods are num-0 and so on.
fn root(size: usize) -> String {
    format!(
        "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\nmetadata:\n  name: numbers\n  namespace: operators\nspec:\n  \
         operator: numbers\n  selector:\n    matchLabels:\n      app: numbers\n  controller:\n    leaderElection: Disabled\n  \
         enforcement: Enforce\n  root:\n    prefix: num\n    targetStatefulSet: num\n    resourceSelector:\n    - relateResources:\n      \
         - apiGroups: [\"\"]\n        resources: [configmaps]\n    auto: {{shardingSize: {size}, everyShardReplicas: 1}}\n"
    )
}

/// The names of which the buckets are spread evenly: whatever a part gets of them has some of these.
fn namespace(number: usize) -> String {
    let mut names = (0..).map(|at| format!("num-{at}"));
    let bucket = u16::try_from(4 * number + 2).unwrap();
    names
        .find(|name| Bucketing::default().bucket_of(name) == bucket)
        .unwrap()
}

fn maps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

async fn world() -> World {
    let bucket = Bucketing::default().bucket_of(&namespace(0));
    let manifests = original("web", bucket, "web") + &original("mail", bucket, "mail");
    let namespaces: Vec<_> = (0..NAMESPACES)
        .map(|number| format!("east/{}", namespace(number)))
        .collect();
    let namespaces: Vec<_> = namespaces.iter().map(String::as_str).collect();
    let plan = Plan {
        members: &["east"],
        namespaces: &namespaces,
        manifests: &manifests,
        ..Plan::default()
    };
    World::start(plan).await.unwrap()
}

/// Names of what a list has.
async fn listed(door: &Door, path: &str) -> Result<BTreeSet<String>, String> {
    let answer = door.get(path, &[]).await.map_err(|error| error.to_string())?;
    if answer.status != 200 {
        return Err(answer.message());
    }
    let list = answer.json();
    let items = list["items"].as_array().into_iter().flatten();
    Ok(items
        .map(|item| item["metadata"]["name"].as_str().unwrap_or_default().to_owned())
        .collect())
}

async fn lists(door: &Door, path: &str, wanted: &[&str]) {
    eventually(&format!("{wanted:?} are listed"), || async {
        let found = listed(door, path).await?;
        let is = found.iter().map(String::as_str).eq(wanted.iter().copied());
        if is { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bucket_is_shared_by_labels_and_nobody_has_it_twice() {
    let world = world().await;
    let direct = world.direct_door("east").await.unwrap();
    for app in ["web", "mail", "none"] {
        let mut object = map(&format!("of-{app}"));
        object["metadata"]["labels"] = json!({"app": app});
        let made = direct.post(&maps(&namespace(0)), &object).await.unwrap();
        assert_eq!(made.status, 201, "{}", made.message());
    }
    for shard in ["web", "mail"] {
        until(&world, shard, "Accepted", Some("True")).await;
        let door = world.merged_door(shard).await.unwrap();
        lists(&door, &maps(&namespace(0)), &[&format!("of-{shard}")]).await;
    }
    let bucket = Bucketing::default().bucket_of(&namespace(0));
    apply(&world, &original("web-too", bucket, "web")).await;
    let refused = until(&world, "web-too", "Accepted", Some("False")).await;
    for word in ["operators/web", "configmaps", &format!("bucket {bucket}"), "app=web"] {
        assert!(refused.contains(word), "{word}: {refused}");
    }
    assert!(!refused.contains("operators/mail"), "{refused}");
    until(&world, "mail", "Accepted", Some("True")).await;
    a_root_grows_beside_a_frozen_router(&world).await;
}

/// Who has which ConfigMap, as each router says it: a child's caller is answered 200.
struct Callers {
    /// By child and router.
    doors: Vec<((usize, usize), Door)>,
}

/// One answer of 200: whose, of which namespace, asked and answered when.
type Seen = (usize, String, Instant, Instant);

impl Callers {
    async fn start(world: &World, routers: &[&str]) -> Self {
        let mut doors = Vec::new();
        for child in 0..3 {
            let name = format!("num-{child}");
            let pod = PodSpec {
                namespace: "operators",
                name: &name,
                service_account: "portolan-dev-web",
                labels: json!({"app": "numbers", "statefulset.kubernetes.io/pod-name": name}),
            };
            let uid = world.pod("east", pod.clone()).await.unwrap();
            let token = world.token("east", &pod, &uid).await.unwrap();
            for (number, address) in routers.iter().enumerate() {
                let mut door = world.token_door(Some(&token)).await.unwrap();
                (*address).clone_into(&mut door.address);
                doors.push(((child, number), door));
            }
        }
        Self { doors }
    }

    /// Asks each router for each ConfigMap as each child's caller, all at once; the answers of 200.
    async fn ask(&self, router: usize) -> Vec<Seen> {
        let mut asked = JoinSet::new();
        for ((child, of), door) in &self.doors {
            let (child, door) = (*child, door.clone());
            if *of != router {
                continue;
            }
            asked.spawn(async move {
                let mut seen = Vec::new();
                for number in 0..NAMESPACES {
                    let (name, begun) = (namespace(number), Instant::now());
                    let path = format!("{}/counted", maps(&name));
                    if door.get(&path, &[]).await.is_ok_and(|answer| answer.status == 200) {
                        seen.push((child, name, begun, Instant::now()));
                    }
                }
                seen
            });
        }
        asked.join_all().await.concat()
    }

    /// Waits until each ConfigMap is one child's by this router, and all children have some.
    async fn shared_out(&self, router: usize, children: usize) -> Vec<Seen> {
        eventually(&format!("{children} children share them out"), || async {
            let seen = self.ask(router).await;
            let all: BTreeSet<_> = seen.iter().map(|(_, name, ..)| name).collect();
            let by: BTreeSet<_> = seen.iter().map(|(child, ..)| child).collect();
            if all.len() == NAMESPACES && by.len() == children {
                Ok(seen)
            } else {
                Err(format!("{all:?} of {by:?}"))
            }
        })
        .await
    }
}

/// No child was answered 200 when asked after another one had been.
fn never_two(mut seen: Vec<Seen>) {
    seen.sort_by_key(|(.., answered)| *answered);
    let mut told = String::new();
    let mut first: BTreeMap<(&str, usize), Instant> = BTreeMap::new();
    for (child, name, _, answered) in &seen {
        first.entry((name, *child)).or_insert(*answered);
    }
    for (child, name, asked, _) in &seen {
        let since = first[&(name.as_str(), *child)];
        let later = first.range((name.as_str(), 0)..=(name.as_str(), usize::MAX));
        for ((_, other), at) in later.filter(|((_, other), at)| other != child && **at > since && **at < *asked) {
            let _ = writeln!(told, "{name} was {child}'s {:?} after it was {other}'s", *asked - *at);
        }
    }
    assert_eq!(told, "");
}

/// The router that stands still may answer by what it has at any time: nobody else is given that before it has heard.
async fn a_root_grows_beside_a_frozen_router(world: &World) {
    let direct = world.direct_door("east").await.unwrap();
    for number in 0..NAMESPACES {
        let made = direct.post(&maps(&namespace(number)), &map("counted")).await.unwrap();
        assert_eq!(made.status, 201, "{}", made.message());
    }
    let hub = routers::hub_of(world).unwrap();
    let frozen = routers::start(world, "frozen", &hub, &[]).await.unwrap();
    frozen.ready().await;
    let url = world.fleet.router_url().unwrap();
    let first = url.trim_start_matches("https://");
    apply(world, &root(2)).await;
    let callers = Callers::start(world, &[first, frozen.bind()]).await;
    let mut seen = callers.shared_out(0, 2).await;
    seen.extend(callers.shared_out(1, 2).await);

    frozen.signal(Signal::SIGSTOP).unwrap();
    apply(world, &root(3)).await;
    let waits = until(world, "num-3-normal", "Complete", Some("False")).await;
    assert!(waits.contains("configmaps of bucket"), "{waits}");
    let now = eventually("what is to move is nobody's by the router that hears", || async {
        let now = callers.ask(0).await;
        if now.len() < NAMESPACES {
            Ok(now)
        } else {
            Err(now.len())
        }
    })
    .await;
    seen.extend(now);
    // Asked while it stands still, answered when it goes on.
    let (late, ()) = tokio::join!(callers.ask(1), async {
        for _ in 0..5 {
            let now = callers.ask(0).await;
            assert!(now.iter().all(|(child, ..)| *child < 2), "the third has some");
            seen.extend(now);
        }
        frozen.signal(Signal::SIGCONT).unwrap();
    });
    seen.extend(late);
    for router in [0, 1] {
        seen.extend(callers.shared_out(router, 3).await);
    }
    never_two(seen);
    let hub = world.direct(HUB);
    hub.ok(&["delete", "shardingconfig", "numbers", "-n", "operators", "--wait=false"])
        .await
        .unwrap();
}
