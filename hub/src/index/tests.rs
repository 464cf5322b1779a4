//! Order of arrival does not matter, a bad object is an entry with a problem, and an old stream has no say.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject};
use portolan_crds::{MemberCluster, ShardingConfig};
use portolan_wire::v1;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

mod bounds;
mod counts;
mod pace;
mod policies;
mod routers;
mod turns;
mod unready;

fn object(kind: &ApiResource, name: &str, spec: Value) -> DynamicObject {
    let mut object = DynamicObject::new(name, kind).data(json!({"spec": spec}));
    object.metadata.uid = Some(format!("uid-{name}"));
    object.metadata.generation = Some(1);
    object
}

fn member(name: &str, spec: Value) -> DynamicObject {
    object(&ApiResource::erase::<MemberCluster>(&()), name, spec)
}

fn shard(name: &str, spec: Value) -> DynamicObject {
    object(&ApiResource::erase::<ShardingConfig>(&()), name, spec).within("ops")
}

fn good() -> Value {
    json!({"accept": true, "endpoints": [{"url": "https://east.example"}], "caBundle": crate::testing::CA_BUNDLE})
}

fn folded(facts: &mut Facts, epoch: u64, report: Report) -> Change {
    facts.apply_report("east", epoch, report).unwrap()
}

#[derive(Debug, Clone)]
enum Arrival {
    Member(DynamicObject),
    Shard(DynamicObject),
    Agent(&'static str, Report),
}

fn arrivals() -> Vec<Arrival> {
    let namespaces = |name: &str| {
        Report::Namespaces(v1::NamespaceDelta {
            reset: true,
            upserted: vec![v1::NamespaceFact {
                name: name.into(),
                ..Default::default()
            }],
            removed: Vec::new(),
            ..v1::NamespaceDelta::default()
        })
    };
    let allowed = Report::Allowed(v1::Allowed {
        service_accounts: vec!["b/b".into(), "a/a".into()],
        users: Vec::new(),
        extras: Vec::new(),
        fence_lists: false,
    });
    vec![
        Arrival::Member(member("east", good())),
        Arrival::Member(member("west", json!({"accept": "yes"}))),
        Arrival::Shard(shard("a", json!({"clusters": 7}))),
        Arrival::Shard(shard("b", json!({"callerClusters": ["east"]}))),
        Arrival::Agent("east", namespaces("ns-a")),
        Arrival::Agent("east", allowed),
        Arrival::Agent("west", namespaces("ns-b")),
    ]
}

proptest! {
    #[test]
    fn order_does_not_matter(order in Just(arrivals()).prop_shuffle()) {
        let fold = |arrivals: Vec<Arrival>| {
            let index = Index::default();
            for cluster in ["east", "west"] {
                index.write(|facts| facts.agent_connected(cluster, 1, &v1::AgentHello::default()));
            }
            for arrival in arrivals {
                match arrival {
                    Arrival::Member(object) => index.write(|facts| facts.apply_member(&object)),
                    Arrival::Shard(object) => index.write(|facts| facts.apply_shard(&object)),
                    Arrival::Agent(cluster, report) => index.report(cluster, 1, report).unwrap(),
                }
            }
            index.read(Clone::clone)
        };
        prop_assert_eq!(fold(order), fold(arrivals()));
    }
}

#[test]
fn a_malformed_object_is_an_entry_with_a_problem() {
    let mut facts = Facts::default();
    assert_eq!(facts.apply_member(&member("east", good())), Change::Compile);
    assert_eq!(facts.apply_member(&member("east", good())), Change::Nothing);
    let mut broken = member("east", json!({"accept": true, "endpoints": "none"}));
    broken.metadata.generation = Some(2);
    assert_eq!(facts.apply_member(&broken), Change::Compile);
    let east = &facts.members["east"];
    assert!(east.accept && east.in_force.is_some(), "the good spec stays in force");
    assert!(
        east.problems[0].message.contains("cannot be read"),
        "{:?}",
        east.problems
    );
    facts.apply_shard(&shard("a", json!({"clusters": 7})));
    assert!(facts.shards.values().next().unwrap().spec.is_err());
}

#[test]
fn a_list_replaces_what_was_there() {
    let mut facts = Facts::default();
    facts.apply_member(&member("east", good()));
    facts.apply_member(&member("west", good()));
    assert_eq!(facts.reset_members(&[member("west", good())]), Change::Compile);
    assert_eq!(facts.members.keys().collect::<Vec<_>>(), ["west"]);
    assert_eq!(facts.reset_members(&[member("west", good())]), Change::Nothing);
    facts.apply_shard(&shard("a", json!({})));
    assert_eq!(facts.reset_shards(&[]), Change::Compile);
}

fn router(name: &str, uid: &str, key: &str) -> DynamicObject {
    let spec = json!({"spec": {"keyHashes": [key], "subscription": ["everything"]}});
    let mut object = DynamicObject::new(name, &ApiResource::erase::<portolan_crds::Router>(&())).data(spec);
    object.metadata.uid = Some(uid.to_owned());
    object
}

/// Makes a router of this name.
fn gateway(facts: &mut Facts) -> v1::RouterRef {
    facts.apply_router(&router("gateway", "one", "key"));
    v1::RouterRef {
        name: "gateway".to_owned(),
        uid: "one".to_owned(),
    }
}

#[test]
fn a_token_is_of_one_router_as_long_as_there_is_that() {
    let mut facts = Facts::default();
    facts.apply_member(&member("east", good()));
    facts.agent_connected("east", 1, &v1::AgentHello::default());
    let of = |router: Option<v1::RouterRef>| {
        Report::Token(v1::MemberToken {
            token: "t".into(),
            expires_unix_seconds: 1,
            router,
        })
    };
    let gateway = gateway(&mut facts);
    assert_eq!(folded(&mut facts, 1, of(Some(gateway.clone()))), Change::Compile);
    assert_eq!(folded(&mut facts, 1, of(Some(gateway.clone()))), Change::Nothing);
    let other_uid = v1::RouterRef {
        uid: "two".to_owned(),
        ..gateway.clone()
    };
    for nobody in [None, Some(other_uid.clone())] {
        assert_eq!(folded(&mut facts, 1, of(nobody)), Change::Nothing);
    }
    let tokens = |facts: &Facts| facts.agents["east"].tokens.len();
    // Another key is another pin, and the same router.
    assert_eq!(facts.apply_router(&router("gateway", "one", "other")), Change::Compile);
    assert_eq!(tokens(&facts), 1);
    assert_eq!(facts.apply_router(&router("gateway", "two", "other")), Change::Compile);
    assert_eq!(tokens(&facts), 0, "it enrolled anew");
    folded(&mut facts, 1, of(Some(other_uid)));
    assert_eq!(tokens(&facts), 1);
    let mut deleting = router("gateway", "two", "other");
    deleting.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        Timestamp::UNIX_EPOCH,
    ));
    assert_eq!(facts.apply_router(&deleting), Change::Compile);
    assert!(
        facts.routers.is_empty() && tokens(&facts) == 0,
        "a finalizer keeps nobody in"
    );
}

#[test]
fn another_object_of_the_same_name_inherits_nothing_of_its_agent() {
    let mut facts = Facts::default();
    facts.apply_member(&member("east", good()));
    facts.agent_connected("east", 1, &v1::AgentHello::default());
    let token = v1::MemberToken {
        token: "of-the-old-cluster".into(),
        expires_unix_seconds: 1,
        router: Some(gateway(&mut facts)),
    };
    folded(&mut facts, 1, Report::Token(token));
    facts.note_refusal("east", Some((ConditionReason::DuplicateCluster, "no".into())));
    let mut again = member("east", good());
    assert_eq!(facts.apply_member(&again), Change::Nothing);
    assert_eq!(facts.agents["east"].tokens.len(), 1);
    again.metadata.uid = Some("another".into());
    assert_eq!(facts.reset_members(&[again]), Change::Compile);
    assert!(facts.agents.is_empty() && facts.join_refusals.is_empty());
    assert_eq!(facts.members["east"].uid, "another");
}

#[test]
fn status_alone_does_not_wake_the_compiler() {
    let mut facts = Facts::default();
    facts.apply_member(&member("east", good()));
    let mut with_status = member("east", good());
    with_status.data["status"] = json!({"kubernetesVersion": "v1"});
    assert_eq!(facts.apply_member(&with_status), Change::Figures);
    facts.agent_connected("east", 1, &v1::AgentHello::default());
    let beat = v1::Heartbeat {
        api_ready: true,
        ..v1::Heartbeat::default()
    };
    let mut beat = |second| {
        let beat = Report::Heartbeat(beat.clone(), Timestamp::from_second(second).unwrap());
        folded(&mut facts, 1, beat)
    };
    assert_eq!(beat(0), Change::Status, "it is heard");
    assert_eq!([beat(5), beat(10)], [Change::Figures; 2]);
    assert_eq!(beat(60), Change::Status, "it is heard again");
}

#[test]
fn a_clock_that_is_off_or_not_told_agrees_with_nothing() {
    let mut facts = Facts::default();
    facts.apply_member(&member("east", good()));
    facts.agent_connected("east", 1, &v1::AgentHello::default());
    let mut now = 100;
    let mut beat = |off: Option<i64>| {
        now += 5;
        let beat = v1::Heartbeat {
            api_ready: true,
            api_clock_unix_milliseconds: off.map(|off| off.saturating_add(now * 1_000)),
            ..v1::Heartbeat::default()
        };
        let change = folded(
            &mut facts,
            1,
            Report::Heartbeat(beat, Timestamp::from_second(now).unwrap()),
        );
        (change, facts.agents["east"].clock_agrees)
    };
    assert_eq!(beat(None), (Change::Status, false), "an earlier release");
    assert_eq!(beat(Some(1_900)), (Change::Figures, false));
    assert_eq!(beat(Some(-900)), (Change::Compile, true), "routers are told");
    assert_eq!(
        beat(Some(1_900)),
        (Change::Figures, true),
        "it is not told back and forth"
    );
    assert_eq!(beat(Some(2_100)), (Change::Compile, false));
    assert_eq!(beat(Some(0)), (Change::Compile, true));
    for _ in 0..6 {
        assert_eq!(
            beat(None),
            (Change::Figures, true),
            "an API server is slow now and then"
        );
    }
    assert_eq!(
        beat(None),
        (Change::Compile, false),
        "for half a minute nobody could read it"
    );
    assert_eq!(beat(Some(i64::MAX)), (Change::Figures, false));
}

/// Of a namespace that cannot be listed nobody knows which callers there were; of the others what is gone is known to be.
#[test]
fn callers_that_went_are_remembered_while_not_all_are_known() {
    let mut facts = Facts::default();
    facts.agent_connected("east", 1, &v1::AgentHello::default());
    let mut told = |reset, here: &[&str], removed: &[&str], pending: &[&str]| {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let upserted = here.iter().map(|uid| v1::CallerFact {
            namespace: "ops".to_owned(),
            uid: (*uid).to_owned(),
            pod: format!("pod-{uid}"),
            ..v1::CallerFact::default()
        });
        let delta = v1::CallerDelta {
            reset,
            upserted: upserted.collect(),
            removed: names(removed),
            pending: names(pending),
            ..v1::CallerDelta::default()
        };
        folded(&mut facts, 1, Report::Callers(delta));
        let agent = &facts.agents["east"];
        ["p", "q", "r"].map(|uid| agent.gone_callers.contains(uid))
    };
    assert_eq!(told(true, &["p", "q"], &[], &["evil"]), [false; 3]);
    assert_eq!(told(false, &[], &["p"], &["evil"]), [true, false, false]);
    assert_eq!(told(true, &["r"], &[], &["evil"]), [true, true, false]);
    assert_eq!(told(false, &[], &["r"], &[]), [false; 3], "all is known");
}

#[test]
fn a_release_that_is_forced_is_a_change_for_the_compiler() {
    let mut facts = Facts::default();
    let mut object = shard("a", json!({"clusters": []}));
    facts.apply_shard(&object);
    let annotations = object.metadata.annotations.get_or_insert_default();
    annotations.insert(
        portolan_crds::labels::FORCE_RELEASE.to_owned(),
        "east/ns-b@1: why".to_owned(),
    );
    assert_eq!(facts.apply_shard(&object), Change::Compile);
    let name = portolan_crds::ShardName::new("ops", "a").unwrap();
    let pair = |epoch| ("east".to_owned(), "ns-b".to_owned(), epoch);
    assert!(facts.is_forced(&name, &pair(1)) && !facts.is_forced(&name, &pair(2)));
}

/// Hubs drop what is said of an order once it is carried out, and the doubt goes on.
#[test]
fn what_is_doubtful_about_fences_is_kept_until_one_is_closed_without_doubt() {
    let mut facts = Facts::default();
    facts.agent_connected("east", 1, &v1::AgentHello::default());
    let mut told = |closed, message: &str| {
        let state = v1::FenceState {
            namespace: "ns-a".to_owned(),
            epoch: 1,
            closed,
            open: Vec::new(),
            message: message.to_owned(),
        };
        folded(&mut facts, 1, Report::Fences(v1::Fences { fences: vec![state] }));
        facts.agents["east"].fence_doubt.clone()
    };
    assert_eq!(told(false, "not yet"), None);
    assert_eq!(
        told(true, "20 answers in a row"),
        Some("20 answers in a row".to_owned())
    );
    assert_eq!(
        told(true, portolan_wire::protocol::NO_SUCH_NAMESPACE),
        Some("20 answers in a row".to_owned())
    );
    assert_eq!(told(false, ""), Some("20 answers in a row".to_owned()));
    assert_eq!(told(true, ""), None);
}

#[test]
fn deltas_add_up_and_a_replaced_stream_has_no_say() {
    let mut facts = Facts::default();
    facts.agent_connected("east", 1, &v1::AgentHello::default());
    let delta = |reset, upserted: &[&str], removed: &[&str]| {
        Report::Callers(v1::CallerDelta {
            reset,
            upserted: upserted
                .iter()
                .map(|uid| v1::CallerFact {
                    uid: (*uid).into(),
                    namespace: "ops".into(),
                    pod: "operator".into(),
                    ..Default::default()
                })
                .collect(),
            removed: removed.iter().map(|uid| (*uid).to_owned()).collect(),
            ..v1::CallerDelta::default()
        })
    };
    assert_eq!(facts.agents["east"].callers, None, "unknown is not empty");
    assert_eq!(folded(&mut facts, 1, delta(true, &[], &[])), Change::Compile);
    assert_eq!(folded(&mut facts, 1, delta(false, &["p", "q"], &[])), Change::Compile);
    assert_eq!(folded(&mut facts, 1, delta(false, &["p"], &["x"])), Change::Nothing);
    facts.agent_connected("east", 2, &v1::AgentHello::default());
    assert_eq!(
        facts.agents["east"].callers.as_ref().unwrap().len(),
        2,
        "kept until the new stream reports"
    );
    assert_eq!(folded(&mut facts, 1, delta(true, &[], &[])), Change::Nothing);
    assert_eq!(folded(&mut facts, 1, Report::Disconnected), Change::Nothing);
    assert!(facts.agents["east"].connected);
    assert_eq!(folded(&mut facts, 2, delta(true, &["r"], &[])), Change::Compile);
    assert_eq!(
        facts.agents["east"]
            .callers
            .as_ref()
            .unwrap()
            .keys()
            .collect::<Vec<_>>(),
        ["r"]
    );
}

/// A selector of one namespace cannot be listed, or not yet, when the agent begins anew.
#[test]
fn of_a_namespace_that_is_pending_nothing_is_forgotten_until_all_of_it_is_told() {
    let mut facts = Facts::default();
    let delta = |reset, upserted: &[(&str, &str)], removed: &[&str], pending: &[&str]| {
        let fact = |(namespace, uid): &(&str, &str)| v1::CallerFact {
            uid: (*uid).into(),
            namespace: (*namespace).into(),
            pod: "operator".into(),
            ..v1::CallerFact::default()
        };
        Report::Callers(v1::CallerDelta {
            reset,
            upserted: upserted.iter().map(fact).collect(),
            removed: removed.iter().map(|uid| (*uid).to_owned()).collect(),
            pending: pending.iter().map(|namespace| (*namespace).to_owned()).collect(),
            ..v1::CallerDelta::default()
        })
    };
    let known = |facts: &Facts| {
        facts.agents["east"]
            .callers
            .as_ref()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    facts.agent_connected("east", 1, &v1::AgentHello::default());
    folded(
        &mut facts,
        1,
        delta(true, &[("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1")], &[], &[]),
    );
    // The agent starts anew: it has listed one of two selectors of `a`, and all of `b`.
    facts.agent_connected("east", 2, &v1::AgentHello::default());
    folded(&mut facts, 2, delta(true, &[("a", "a1"), ("b", "b2")], &[], &["a"]));
    assert_eq!(known(&facts), ["a1", "a2", "a3", "b2"], "of `b` all is told");
    assert!(facts.knows_callers("east", "a"), "what it told before counts");
    folded(&mut facts, 2, delta(false, &[("a", "a4")], &["a1"], &["a"]));
    assert_eq!(known(&facts), ["a2", "a3", "a4", "b2"], "what it saw go is gone");
    assert_eq!(
        folded(&mut facts, 2, delta(false, &[("a", "a3")], &[], &[])),
        Change::Compile
    );
    assert_eq!(known(&facts), ["a3", "a4", "b2"]);

    // To a hub that has just started.
    let mut facts = Facts::default();
    facts.agent_connected("east", 1, &v1::AgentHello::default());
    folded(
        &mut facts,
        1,
        delta(true, &[("a", "a1"), ("b", "b1")], &[], &["a", "c"]),
    );
    let knows = |facts: &Facts| ["a", "b", "c"].map(|namespace| facts.knows_callers("east", namespace));
    assert_eq!(knows(&facts), [false, true, false]);
    assert_eq!(folded(&mut facts, 1, delta(false, &[], &[], &["c"])), Change::Compile);
    assert_eq!(knows(&facts), [true, true, false]);
    folded(&mut facts, 1, delta(false, &[], &[], &["a", "b", "c"]));
    assert_eq!(knows(&facts), [true, true, false], "known once, known until it is gone");
}

#[test]
fn figures_of_labelled_kinds_do_not_wake_the_compiler() {
    let mut facts = Facts::default();
    facts.agent_connected("east", 1, &v1::AgentHello::default());
    let mut report = |labelled, total| {
        let kind = v1::KindRef {
            group: String::new(),
            resource: "pods".into(),
        };
        let fact = v1::CoverageFact {
            kind: Some(kind),
            labelled,
            total,
            complete: labelled == total,
            rule: None,
            at_admission: Some(true),
            ..v1::CoverageFact::default()
        };
        let delta = v1::CoverageDelta {
            reset: false,
            upserted: vec![fact],
            removed: Vec::new(),
            ..v1::CoverageDelta::default()
        };
        folded(&mut facts, 1, Report::Coverage(delta))
    };
    assert_eq!(report(1, 2), Change::Compile);
    assert_eq!(report(2, 3), Change::Compile, "people are told how far it is");
    assert_eq!(report(3, 3), Change::Compile);
    assert_eq!(report(4, 4), Change::Figures, "one object more is nothing to a router");
    assert_eq!(report(4, 4), Change::Nothing);
}

#[test]
fn what_an_agent_said_of_labels_ages_until_it_has_told_all_again() {
    let mut facts = Facts::default();
    facts.apply_member(&member("east", good()));
    let (began, half) = (Instant::now(), Duration::from_secs(15));
    let coverage = || {
        Report::Coverage(v1::CoverageDelta {
            reset: true,
            ..v1::CoverageDelta::default()
        })
    };
    let beat = || Report::Heartbeat(v1::Heartbeat::default(), Timestamp::now());
    assert_eq!(facts.age_coverage(began + half, began), Change::Nothing);
    assert_eq!(
        facts.age_coverage(began + 2 * half, began),
        Change::Compile,
        "never heard"
    );
    assert_eq!(facts.age_coverage(began + 3 * half, began), Change::Nothing, "once");
    facts.agent_connected("east", 1, &v1::AgentHello::default());
    folded(&mut facts, 1, beat());
    assert!(
        facts.silent.contains("east"),
        "it lives, and has not said what it found"
    );
    assert_eq!(folded(&mut facts, 1, coverage()), Change::Compile);
    assert!(facts.silent.is_empty());
    let vouched = facts.agents["east"].vouched.unwrap();
    folded(&mut facts, 1, beat());
    assert_eq!(
        facts.agents["east"].vouched,
        Some(vouched),
        "it does not see its member"
    );
    folded(&mut facts, 1, Report::Disconnected);
    assert_eq!(facts.age_coverage(vouched + half, began), Change::Nothing);
    let later_hub = vouched + half;
    assert_eq!(
        facts.age_coverage(vouched + 2 * half, later_hub),
        Change::Nothing,
        "while no hub was there it could tell none"
    );
    assert_eq!(facts.age_coverage(vouched + 2 * half, began), Change::Compile);
    facts.agent_connected("east", 2, &v1::AgentHello::default());
    folded(&mut facts, 2, beat());
    assert!(facts.silent.contains("east"));
}

#[test]
fn a_namespace_that_is_made_or_made_anew_settles_for_a_while() {
    let mut facts = Facts::default();
    facts.apply_member(&member("east", good()));
    facts.agent_connected("east", 1, &v1::AgentHello::default());
    let told = |reset, all: &[(&str, &str)], removed: &[&str]| {
        let fact = |(name, uid): &(&str, &str)| v1::NamespaceFact {
            name: (*name).to_owned(),
            uid: (*uid).to_owned(),
            ..v1::NamespaceFact::default()
        };
        Report::Namespaces(v1::NamespaceDelta {
            reset,
            upserted: all.iter().map(fact).collect(),
            removed: removed.iter().map(|name| (*name).to_owned()).collect(),
            ..v1::NamespaceDelta::default()
        })
    };
    let new = |facts: &Facts| facts.agents["east"].settling.keys().cloned().collect::<Vec<_>>();
    folded(&mut facts, 1, told(true, &[("a", "1"), ("b", "1")], &[]));
    assert_eq!(new(&facts), [""; 0], "what was there before this hub");
    folded(
        &mut facts,
        1,
        told(false, &[("a", "1"), ("b", "2"), ("c", "1"), ("d", "1")], &[]),
    );
    folded(&mut facts, 1, told(false, &[], &["d"]));
    assert_eq!(new(&facts), ["b", "c"]);
    let now = Instant::now();
    assert_eq!(facts.age_coverage(now, now), Change::Nothing);
    assert_eq!(facts.age_coverage(now + Duration::from_secs(4), now), Change::Compile);
    assert_eq!(new(&facts), [""; 0]);
    // The agent was away meanwhile.
    facts.agent_connected("east", 2, &v1::AgentHello::default());
    folded(&mut facts, 2, told(true, &[("a", "2"), ("b", "2")], &[]));
    assert_eq!(new(&facts), ["a"]);
}
