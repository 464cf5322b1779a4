//! Faults of watches that run: an informer survives each of them, of the whole and of one member's leg, loses nothing, and
//! lists anew only where a client of an API server would.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::runtime::watcher;
use portolan_crds::FaultInjection;
use portolan_testbed::eventually;
use portolan_tests::watcher::{Objects, Watcher};
use serde_json::{Value, json};

use crate::{Ground, ground};

/// How long what stalls does.
const STALL: Duration = Duration::from_secs(2);

/// Makes a ConfigMap in each member, past the router.
async fn make(ground: &Ground, shard: &str, name: &str) {
    for member in ["east", "west"] {
        let door = ground.world.direct_door(member).await.unwrap();
        let path = format!("/api/v1/namespaces/{shard}-{}/configmaps", &member[..1]);
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        assert_eq!(door.post(&path, &object).await.unwrap().status, 201);
    }
}

/// What members hold.
async fn truth(ground: &Ground, shard: &str) -> Objects {
    let places = [("east", format!("{shard}-e")), ("west", format!("{shard}-w"))];
    let mut all = BTreeMap::new();
    for (member, namespace) in places {
        let held = ground
            .world
            .truth(("/api/v1", "configmaps"), &[(member, &namespace)])
            .await
            .unwrap();
        all.extend(held.into_iter().map(|(key, (_, version))| (key, version)));
    }
    all
}

/// An informer of the merged view that has all there is.
async fn informer(ground: &Ground, shard: &str) -> Watcher {
    let client = ground
        .world
        .client(ground.world.fleet.merged_kubeconfig(shard), None)
        .await
        .unwrap();
    let informer = Watcher::start(Api::<ConfigMap>::all(client), watcher::Config::default());
    until_it_holds(ground, shard, &informer).await;
    informer
}

async fn until_it_holds(ground: &Ground, shard: &str, informer: &Watcher) {
    eventually("the informer holds what is true", || async {
        let truth = truth(ground, shard).await;
        let seen = informer.seen();
        (seen.held == truth).then_some(()).ok_or(format!("{seen:?}, {truth:?}"))
    })
    .await;
}

/// How often it has listed; nothing was ever gone.
fn listed(informer: &Watcher) -> u64 {
    let seen = informer.seen();
    assert!(seen.deleted.is_empty(), "nothing is gone: {seen:?}");
    seen.lists
}

fn fault(action: &str, part: &str, more: Value) -> Value {
    let mut fault = json!({"name": "fault", "action": action, "part": part, "after": {"events": 2}});
    fault.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    if part == "Leg" {
        fault["match"] = json!({"resources": [{"clusters": ["west"]}]});
    }
    json!({"watchFault": [fault]})
}

/// How often the fault has happened, as the hub tells.
async fn until_injected(ground: &Ground, shard: &str) -> String {
    ground.told(&format!("operators/{shard}"), &["fault", "Injected"]).await
}

/// The informer's watch began under the fault, which is applied first; how often it listed for it.
async fn lists_after(shard: &str, faults: [(&str, Value); 2]) -> Vec<u64> {
    let ground = ground().await;
    ground.caller(shard).await;
    let mut lists = Vec::new();
    for (part, fault) in faults {
        let policy: FaultInjection = ground.hold(shard, fault).await;
        let informer = informer(&ground, shard).await;
        let before = listed(&informer);
        for number in 0..4 {
            make(&ground, shard, &format!("{}-{number}", part.to_lowercase())).await;
            until_it_holds(&ground, shard, &informer).await;
        }
        lists.push(listed(&informer) - before);
        until_injected(&ground, shard).await;
        ground.delete(&policy).await;
    }
    lists
}

#[tokio::test]
async fn a_watch_that_is_cut_goes_on_where_it_was() {
    let both = ["Whole", "Leg"].map(|part| (part, fault("Drop", part, json!({}))));
    assert_eq!(lists_after("cut", both).await, [0, 0]);
}

#[tokio::test]
async fn a_watch_that_expires_lists_anew_and_a_leg_of_it_does_not() {
    let both = ["Whole", "Leg"].map(|part| (part, fault("Expire", part, json!({}))));
    let [whole, leg] = lists_after("expired", both).await[..] else {
        panic!("two parts");
    };
    assert!((1..=4).contains(&whole), "it lists anew for each 410: {whole}");
    assert_eq!(leg, 0, "the router lists the member anew by itself");
}

#[tokio::test]
async fn what_stalls_comes_later_and_another_member_is_not_held_up() {
    let ground = ground().await;
    ground.caller("stalled").await;
    for part in ["Leg", "Whole"] {
        let stall = fault("Stall", part, json!({"duration": format!("{}s", STALL.as_secs())}));
        let policy: FaultInjection = ground.hold("stalled", stall).await;
        let informer = informer(&ground, "stalled").await;
        let lists = listed(&informer);
        // After two events of what stalls.
        for number in 0..2 {
            make(&ground, "stalled", &format!("{}-{number}", part.to_lowercase())).await;
            until_it_holds(&ground, "stalled", &informer).await;
        }
        let (last, begun) = (format!("{}-last", part.to_lowercase()), Instant::now());
        make(&ground, "stalled", &last).await;
        if part == "Leg" {
            eventually("east is told of", || async {
                informer.seen().held.contains_key(&format!("stalled-e/{last}"))
            })
            .await;
            assert!(begun.elapsed() < STALL, "east waits for west: {:?}", begun.elapsed());
            assert!(!informer.seen().held.contains_key(&format!("stalled-w/{last}")));
        }
        until_it_holds(&ground, "stalled", &informer).await;
        assert_eq!(listed(&informer), lists, "{part}");
        until_injected(&ground, "stalled").await;
        ground.delete(&policy).await;
    }
}
