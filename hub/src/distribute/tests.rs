//! What was seen has to ripen; and nothing is granted that is not stored.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::{ApiResource, DynamicObject};
use portolan_crds::ShardingConfig;
use portolan_runtime::Tasks;
use portolan_wire::v1;
use portolan_wire::v1::agent_message::Kind as AgentSaid;
use serde_json::json;

use super::*;
use crate::acks::{LedgerPosition, RouterState};
use crate::compile::Ref;
use crate::testing::{Objects, SharedFaults, TestAgent, TestHub, distributor, faulty_api, new_router, router_ref};

#[test]
fn what_was_just_seen_has_to_ripen() {
    let (mut dwell, start) = (Dwell::default(), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    assert_eq!(dwell.observe(3, at(0)), 0);
    assert_eq!(dwell.observe(4, at(2)), 0);
    assert_eq!(dwell.observe(4, at(5)), 3);
    assert_eq!(dwell.observe(4, at(7)), 4);
    assert_eq!(dwell.observe(9, at(8)), 4);
    assert_eq!(dwell.observe(1, at(9)), 0, "a router came back that has seen less");
    assert_eq!(dwell.observe(9, at(10)), 0);
    assert_eq!(dwell.observe(9, at(15)), 9);
}

fn shard(hub: &TestHub, generation: i64, namespaces: &[&str]) {
    let spec = json!({
        "selector": {"matchLabels": {"app": "op"}}, "callerClusters": ["east"],
        "clusters": [{"name": "east", "namespaces": namespaces}],
    });
    let mut object = DynamicObject::new("a", &ApiResource::erase::<ShardingConfig>(&()))
        .within("ops")
        .data(json!({"spec": spec}));
    object.metadata.uid = Some("object-a".to_owned());
    object.metadata.generation = Some(generation);
    hub.index.write(|facts| facts.apply_shard(&object));
}

async fn token(agent: &TestAgent, token: &str) {
    let token = v1::MemberToken {
        token: token.to_owned(),
        expires_unix_seconds: i64::MAX,
        router: Some(router_ref("gateway")),
    };
    agent.say(AgentSaid::MemberToken(token)).await;
}

fn owned(hub: &TestHub) -> Vec<String> {
    let worlds = hub.worlds.borrow();
    let ledger = worlds.as_ref().map(|published| published.world.state.ledger.clone());
    let ledger = ledger.unwrap_or_default();
    let owned = ledger.in_cluster("east").filter(|(_, entry)| entry.owner.is_some());
    owned.map(|(namespace, _)| namespace.to_owned()).collect()
}

/// Generation of the spec in force.
fn in_force(hub: &TestHub) -> Option<i64> {
    let worlds = hub.worlds.borrow();
    let name = ShardName::new("ops", "a").unwrap();
    Some(worlds.as_ref()?.world.state.accepted.get(&name)?.generation)
}

fn credential(hub: &TestHub) -> Option<String> {
    let worlds = hub.worlds.borrow();
    let credentials = &worlds.as_ref()?.world.credentials;
    let of_east = credentials.get("gateway", &Ref::gateway_credential("east"))?;
    match of_east.to_wire().body? {
        v1::resource::Body::Credential(credential) => Some(credential.token),
        _ => None,
    }
}

#[tokio::test]
async fn what_is_not_stored_is_not_granted_and_all_else_goes_on() {
    let hub = TestHub::start().await;
    let agent = hub.join("east").await;
    shard(&hub, 1, &["ns-a"]);
    hub.until("ns-a is owned", |hub| (owned(hub) == ["ns-a"]).then_some(()))
        .await;
    hub.faults.lock().refused = true;
    shard(&hub, 2, &["ns-a", "ns-b"]);
    token(&agent, "later").await;
    hub.until("the token is told", |hub| (credential(hub)? == "later").then_some(()))
        .await;
    assert_eq!((owned(&hub), in_force(&hub)), (vec!["ns-a".to_owned()], Some(1)));
    hub.faults.lock().refused = false;
    hub.until("ns-b is owned", |hub| (owned(hub) == ["ns-a", "ns-b"]).then_some(()))
        .await;
    assert_eq!(in_force(&hub), Some(2));
}

/// A compiler alone, by the clock of the test.
struct Alone {
    index: Arc<Index>,
    acks: Arc<Acks>,
    faults: SharedFaults,
    worlds: Worlds,
    tasks: Tasks,
}

impl Alone {
    async fn start() -> Self {
        let (faults, worlds) = (SharedFaults::default(), watch::Sender::new(None));
        let alone = Self {
            index: Arc::default(),
            acks: Arc::default(),
            faults: faults.clone(),
            worlds: worlds.subscribe(),
            tasks: Tasks::new(),
        };
        let client = faulty_api(Objects::default(), faults);
        let (distributor, stored) = distributor(client, &alone.index, &alone.acks, &worlds).await;
        alone
            .tasks
            .spawn("distribute", async { distributor.run(stored).await.unwrap() });
        alone
    }

    /// How long it takes until the world is so.
    async fn until(&mut self, look: impl Fn(Option<&World>) -> bool) -> Duration {
        let started = Instant::now();
        let found = self
            .worlds
            .wait_for(|published| look(published.as_ref().map(|one| &*one.world)));
        let found = tokio::time::timeout(Duration::from_mins(10), found).await;
        found.unwrap().unwrap();
        started.elapsed()
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

#[tokio::test(start_paused = true)]
async fn a_hub_that_is_cut_off_lets_routers_go() {
    let mut hub = Alone::start().await;
    let router = serde_json::from_value(new_router("gateway")).unwrap();
    hub.index.write(|facts| facts.reset_routers(&[router]));
    hub.until(|world| world.is_some()).await;
    hub.faults.lock().away = true;
    let cut_off = hub.until(|world| world.is_none()).await;
    assert!(
        cut_off > Duration::from_secs(25) && cut_off < Duration::from_secs(50),
        "{cut_off:?}"
    );
    hub.faults.lock().away = false;
    hub.until(|world| world.is_some()).await;
    assert_eq!(hub.acks.released(BTreeSet::new()).by_all, 0, "routers may come back");
}

/// A ShardingConfig of `author`, with selectors of so many bytes.
fn config(author: &str, name: &str, generation: i64, bytes: usize) -> DynamicObject {
    let values = values(generation, bytes);
    let limits = values.chunks(800).map(|values| {
        json!({
            "relateResources": [{"apiGroups": [""], "resources": ["secrets"]}],
            // No two want the same.
            "selector": {"matchLabels": {"of": name}, "matchExpressions": [{"key": "a", "operator": "NotIn", "values": values}]},
        })
    });
    let spec = json!({"selector": {"matchLabels": {"app": "op"}}, "limits": limits.collect::<Vec<_>>()});
    let mut object = DynamicObject::new(name, &ApiResource::erase::<ShardingConfig>(&()))
        .within(author)
        .data(json!({"spec": spec}));
    object.metadata.uid = Some(format!("uid-{name}"));
    object.metadata.generation = Some(generation);
    object
}

fn values(generation: i64, bytes: usize) -> Vec<String> {
    let count = i64::try_from(bytes / 63).unwrap();
    (0..count).map(|index| format!("{:060}", index + generation)).collect()
}

/// Thirty specs of 200 KiB, each written anew ten times, are more than a minute's worth of the ledger.
#[tokio::test(start_paused = true)]
async fn what_one_author_has_written_keeps_no_other_waiting() {
    let mut hub = Alone::start().await;
    hub.until(|world| world.is_some()).await;
    let generation = |world: Option<&World>, name: &str| {
        let name: ShardName = name.parse().unwrap();
        world.and_then(|world| Some(world.state.accepted.get(&name)?.generation))
    };
    for round in 1..=10 {
        for number in 0..30 {
            hub.index
                .shard_applied(&config("evil", &format!("e-{number}"), round, 200 * 1024));
        }
        hub.index.shard_applied(&config("ops", "calm", round, 100));
        let took = hub.until(|world| generation(world, "ops/calm") == Some(round)).await;
        assert!(took < Duration::from_secs(3), "round {round}: {took:?}");
    }
    let wrote = hub.worlds.borrow().as_ref().map(|one| one.world.state.accepted.len());
    assert_eq!(wrote, Some(31), "all of them are in force all the same");
}

#[tokio::test]
async fn a_ledger_that_was_set_back_begins_a_new_life() {
    let hub = TestHub::start().await;
    let incarnation = |hub: &TestHub| {
        let worlds = hub.worlds.borrow();
        worlds
            .as_ref()
            .map(|published| published.world.state.incarnation.clone())
    };
    let first = hub.until("there is a world", incarnation).await;
    hub.acks.connected("gateway", RouterState::new(1, BTreeMap::new()));
    let seen = LedgerPosition {
        incarnation: first.clone(),
        view_revision: 1,
    };
    hub.acks.update("gateway", 1, |state| state.seen = seen);
    hub.until("another life", |hub| (incarnation(hub)? != first).then_some(()))
        .await;
    let second = incarnation(&hub);
    hub.join("east").await;
    shard(&hub, 1, &["ns-a"]);
    hub.until("ns-a is owned", |hub| (owned(hub) == ["ns-a"]).then_some(()))
        .await;
    assert_eq!(incarnation(&hub), second, "once");
    // One that always says so is believed no more.
    let seen = LedgerPosition {
        incarnation: second.clone().unwrap(),
        view_revision: u64::MAX,
    };
    hub.acks.update("gateway", 1, |state| state.seen = seen);
    shard(&hub, 2, &["ns-a", "ns-b"]);
    hub.until("ns-b is owned", |hub| (owned(hub) == ["ns-a", "ns-b"]).then_some(()))
        .await;
    assert_eq!(incarnation(&hub), second, "once in a hub's life");
}
