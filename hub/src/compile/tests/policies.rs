//! Which callers a policy holds, and what takes it from routers.

use portolan_crds::{CircuitBreakerSpec, CircuitBreakerStatus, FaultInjectionSpec, Selector};
use portolan_wire::subscription::Subscription;
use serde_json::{Value, json};

use super::*;
use crate::compile::policies::MAX_NAMED;
use crate::facts::{
    FaultsStopped, PolicyInForce, PolicyKind, PolicyName, PolicyObject, PolicySpec, PolicyStatus, Selection,
};

const CALM: &str = "CircuitBreaker/ops/calm";
const SHAKE: &str = "FaultInjection/ops/shake";

fn named(name: &str) -> PolicyName {
    name.parse().unwrap()
}

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

impl Fleet {
    /// Two callers of one shard in east, one in west.
    fn with_callers() -> Self {
        let mut fleet = Self::new(&["ns-a"]);
        fleet.caller("east", "p1", "op");
        fleet.caller("east", "p2", "op");
        fleet.caller("west", "p3", "op");
        let spec = ShardingConfigSpec {
            caller_clusters: vec!["east".to_owned(), "west".to_owned()],
            primary_cluster: Some("east".to_owned()),
            controller: Some(serde_json::from_value(json!({"leaderElectionName": "op"})).unwrap()),
            ..spec(&[("east", &["ns-a"])])
        };
        fleet.apply("shard", spec);
        let world = fleet.clone().compile(0);
        assert_eq!(world.refusal("shard"), None, "{}", world.message("shard"));
        fleet
    }

    /// Creates a policy, or edits it.
    fn policy(&mut self, name: &str, spec: Value) -> &mut PolicyObject {
        let name = named(name);
        let (created, generation) = match self.facts.policies.get(&name) {
            Some(before) => (before.created, before.generation + 1),
            None => (second(i64::try_from(self.facts.policies.len()).unwrap()), 1),
        };
        let (spec, selector, caller_clusters) = match name.kind {
            PolicyKind::CircuitBreaker => {
                let spec: CircuitBreakerSpec = serde_json::from_value(spec).unwrap();
                let (selector, clusters) = (spec.selector.clone(), spec.caller_clusters.clone());
                (PolicySpec::Breaker(spec), selector, clusters)
            }
            PolicyKind::FaultInjection => {
                let spec: FaultInjectionSpec = serde_json::from_value(spec).unwrap();
                let (selector, clusters) = (spec.selector.clone(), spec.caller_clusters.clone());
                (PolicySpec::Fault(spec), selector, clusters)
            }
        };
        let selector = selector.map(|selector| Selector::from_label_selector(&selector).unwrap());
        let object = PolicyObject {
            uid: format!("object-{name}"),
            generation,
            created,
            was_there: true,
            labelled_off: false,
            disabled: false,
            until: None,
            selection: Some(Selection {
                selector,
                caller_clusters,
            }),
            problems: Vec::new(),
            in_force: PolicyInForce::new(generation, spec).map(Arc::new),
            closed: Vec::new(),
            bad_close: Vec::new(),
            status: PolicyStatus::Breaker(CircuitBreakerStatus::default()),
        };
        self.facts.policies.insert(name.clone(), object);
        self.facts.policies.get_mut(&name).unwrap()
    }
}

impl World {
    fn told(&self, name: &str) -> Option<&v1::Policy> {
        match self.body(&Ref::Policy(named(name)))? {
            v1::resource::Body::Policy(policy) => Some(policy),
            _ => None,
        }
    }

    fn reach(&self, name: &str) -> (Standing, usize) {
        let reach = &self.policies[&named(name)];
        (reach.standing, reach.callers.count)
    }
}

#[test]
fn a_policy_holds_the_callers_of_its_namespace_that_it_selects() {
    let mut fleet = Fleet::with_callers();
    let app = |app: &str| json!({"selector": {"matchLabels": {"app": app}}});
    fleet.policy(CALM, app("op"));
    fleet.policy("CircuitBreaker/ops/other-app", app("other"));
    fleet.policy("CircuitBreaker/dev/other-namespace", app("op"));
    fleet.policy("CircuitBreaker/ops/nobody", json!({}));
    fleet.policy("FaultInjection/ops/all", json!({"selector": {}}));
    fleet.policy(SHAKE, json!({"selector": {}, "callerClusters": ["west"]}));
    let world = fleet.compile(0);
    let held = |home: &str, uid: &str| world.view(home, uid).unwrap().policies.clone();
    assert_eq!(held("east", "p1"), [CALM, "FaultInjection/ops/all"]);
    assert_eq!(held("east", "p1"), held("east", "p2"));
    assert_eq!(held("west", "p3"), [CALM, "FaultInjection/ops/all", SHAKE]);
    for (name, callers) in [
        (CALM, 3),
        ("CircuitBreaker/ops/other-app", 0),
        ("CircuitBreaker/dev/other-namespace", 0),
        ("CircuitBreaker/ops/nobody", 0),
        (SHAKE, 1),
    ] {
        assert_eq!(world.reach(name), (Standing::InForce, callers), "{name}");
        assert!(world.told(name).is_some(), "{name}");
    }
    let told = world.told(CALM).unwrap();
    let uid = format!("object-{CALM}");
    assert_eq!((told.uid.as_str(), told.generation), (uid.as_str(), 1));
    let spec: CircuitBreakerSpec = serde_json::from_str(&told.spec_json).unwrap();
    assert!(spec.selector.is_some());
}

#[test]
fn views_change_only_where_their_policies_do() {
    let mut fleet = Fleet::with_callers();
    fleet.policy(CALM, json!({"selector": {}, "callerClusters": ["east"]}));
    let before = fleet.compile(0);
    let of = |world: &World, home: &str, pod_uid: &str| {
        let (home, pod_uid) = (home.to_owned(), pod_uid.to_owned());
        world.resources[&Ref::View { home, pod_uid }].version().clone()
    };
    let edit = json!({"selector": {}, "callerClusters": ["east"], "rateLimitings": [{"name": "slow"}]});
    fleet.policy(CALM, edit);
    let edited = fleet.compile(0);
    let policy = Ref::Policy(named(CALM));
    assert_ne!(edited.resources[&policy], before.resources[&policy]);
    assert_eq!(
        of(&edited, "east", "p1"),
        of(&before, "east", "p1"),
        "rules are not its"
    );
    fleet.policy(
        "CircuitBreaker/ops/more",
        json!({"selector": {}, "callerClusters": ["west"]}),
    );
    let more = fleet.compile(0);
    assert_eq!(of(&more, "east", "p1"), of(&before, "east", "p1"));
    assert_ne!(of(&more, "west", "p3"), of(&before, "west", "p3"));
}

#[test]
fn what_is_switched_off_is_taken_from_routers_and_from_views() {
    let mut fleet = Fleet::with_callers();
    for name in [CALM, SHAKE] {
        fleet.policy(name, json!({"selector": {}}));
    }
    for (name, standing) in [
        (CALM, Standing::Withdrawn),
        (SHAKE, Standing::Withdrawn),
        (SHAKE, Standing::Disabled),
        (SHAKE, Standing::Expired),
        (SHAKE, Standing::Stopped),
    ] {
        let mut fleet = fleet.clone();
        let object = fleet.policy(name, json!({"selector": {}}));
        match standing {
            Standing::Withdrawn => object.labelled_off = true,
            Standing::Disabled => object.disabled = true,
            Standing::Expired => object.until = Some(second(0)),
            _ => fleet.facts.faults_stopped = Some(FaultsStopped::default()),
        }
        let world = fleet.compile(0);
        assert_eq!(world.reach(name), (standing, 3), "whom it would hold is told");
        assert!(
            world.told(name).is_none() && world.is_gone(&Ref::Policy(named(name))),
            "{standing:?}"
        );
        let other = if name == CALM { SHAKE } else { CALM };
        assert_eq!(world.view("east", "p1").unwrap().policies, [other], "{standing:?}");
        // What stops it counts, whether or not a good spec of it is known.
        for object in fleet.facts.policies.values_mut() {
            object.in_force = None;
        }
        let world = fleet.compile(0);
        assert_eq!(world.reach(name).0, standing);
        assert!(world.is_gone(&Ref::Policy(named(name))));
    }
}

#[test]
fn a_fault_ends_when_its_time_comes() {
    let mut fleet = Fleet::with_callers();
    fleet.policy(SHAKE, json!({"selector": {}})).until = Some(second(100));
    fleet.policy(CALM, json!({"selector": {}}));
    for (now, standing) in [(99, Standing::InForce), (100, Standing::Expired)] {
        let world = fleet.compile_at(0, second(now));
        assert_eq!(world.reach(SHAKE).0, standing);
        assert_eq!(world.told(SHAKE).is_some(), standing == Standing::InForce);
    }
    let ends = [99, 100].map(|now| fleet.facts.next_end(second(now)));
    assert_eq!(ends, [Some(second(100)), None]);
}

#[test]
fn of_what_no_good_spec_is_known_routers_keep_theirs() {
    let mut fleet = Fleet::with_callers();
    fleet.policy(CALM, json!({"selector": {}})).in_force = None;
    let world = fleet.compile(0);
    assert_eq!(world.reach(CALM), (Standing::NoneGood, 3));
    let policy = Ref::Policy(named(CALM));
    assert!(!world.resources.contains_key(&policy) && !world.is_gone(&policy));
    assert_eq!(
        world.view("east", "p1").unwrap().policies,
        [CALM],
        "whose it is stays known"
    );
    fleet.facts.policies.get_mut(&named(CALM)).unwrap().was_there = false;
    let world = fleet.compile(0);
    assert_eq!(world.reach(CALM), (Standing::NeverGood, 3));
    assert!(world.is_gone(&policy), "what routers have is of an object that is gone");
    assert!(world.view("east", "p1").unwrap().policies.is_empty());
    fleet.facts.policies.clear();
    assert!(fleet.compile(0).is_gone(&policy), "what is not there is gone");
}

#[test]
fn the_youngest_of_too_many_in_a_namespace_are_left_out() {
    let mut fleet = Fleet::with_callers();
    for number in 0..=MAX_IN_NAMESPACE {
        // The younger, the earlier in the order of names.
        let name = format!("CircuitBreaker/ops/p{:05}", 99_999 - number);
        fleet.policy(&name, json!({"selector": {}}));
    }
    fleet.policy("CircuitBreaker/dev/elsewhere", json!({"selector": {}}));
    let world = fleet.compile(0);
    let youngest = format!("CircuitBreaker/ops/p{:05}", 99_999 - MAX_IN_NAMESPACE);
    assert_eq!(world.reach(&youngest).0, Standing::Excess);
    let told = world
        .policies
        .values()
        .filter(|reach| reach.standing == Standing::InForce);
    assert_eq!(told.count(), MAX_IN_NAMESPACE + 1);
    // One that is switched off takes nobody's place.
    fleet
        .facts
        .policies
        .get_mut(&named("CircuitBreaker/ops/p99999"))
        .unwrap()
        .labelled_off = true;
    let world = fleet.compile(0);
    assert_eq!(world.reach(&youngest).0, Standing::InForce);
    assert_eq!(world.reach("CircuitBreaker/ops/p99999").0, Standing::Withdrawn);
}

#[test]
fn a_caller_is_held_by_the_oldest_of_too_many() {
    let mut fleet = Fleet::with_callers();
    let name = |number: usize| format!("CircuitBreaker/ops/p{:05}", 99_999 - number);
    for number in 0..=MAX_OF_CALLER {
        fleet.policy(&name(number), json!({"selector": {}}));
    }
    let first = fleet.policy(&name(0), json!({"selector": {}, "callerClusters": ["east"]}));
    first.created = second(0);
    let world = fleet.compile(0);
    let held = |home: &str, uid: &str| world.view(home, uid).unwrap().policies.clone();
    let (east, west) = (held("east", "p1"), held("west", "p3"));
    assert_eq!((east.len(), west.len()), (MAX_OF_CALLER, MAX_OF_CALLER));
    let youngest = name(MAX_OF_CALLER);
    assert!(
        !east.contains(&youngest) && west.contains(&youngest),
        "there it is not one too many"
    );
    assert!(east.is_sorted());
    let spared = |name: &str| world.policies[&named(name)].callers.spared;
    assert_eq!((spared(&youngest), spared(&name(0))), (2, 0));
    assert_eq!(world.reach(&youngest), (Standing::InForce, 3));
}

#[test]
fn the_first_callers_are_named_in_order() {
    let mut fleet = Fleet::with_callers();
    for number in 0..2 * MAX_NAMED {
        // In the order of uids the last comes first.
        fleet.caller("west", &format!("uid-{:03}", 999 - number), "op");
    }
    fleet.policy(CALM, json!({"selector": {}}));
    fleet.policy(SHAKE, json!({"selector": {}, "callerClusters": ["east"]}));
    let world = fleet.compile(0);
    let told = |name: &str| -> Vec<String> {
        let first = &world.policies[&named(name)].callers.first;
        first.iter().map(ToString::to_string).collect()
    };
    assert_eq!(told(SHAKE), ["east/ops/pod-p1", "east/ops/pod-p2"]);
    let calm = told(CALM);
    assert_eq!(calm.len(), MAX_NAMED);
    assert_eq!(calm[..3], ["east/ops/pod-p1", "east/ops/pod-p2", "west/ops/pod-p3"]);
    let uid = 1_000 - 2 * MAX_NAMED;
    assert_eq!(calm[3], format!("west/ops/pod-uid-{uid:03}"));
    assert_eq!(world.reach(CALM).1, 2 * MAX_NAMED + 3);
}

#[test]
fn a_router_of_a_part_is_told_of_what_holds_its_callers() {
    let mut fleet = Fleet::with_callers();
    fleet.policy(CALM, json!({"selector": {}, "callerClusters": ["east"]}));
    fleet.policy(SHAKE, json!({"selector": {}, "callerClusters": ["west"]}));
    fleet.policy("FaultInjection/dev/far", json!({"selector": {}}));
    let world = fleet.compile(0);
    let sees = |scopes: &[&str]| {
        let subscription = Subscription::from_scopes(scopes.iter().copied()).unwrap();
        let scope = Scope::of(&subscription, &world);
        [CALM, SHAKE, "FaultInjection/dev/far"].map(|name| scope.sees(&Ref::Policy(named(name))))
    };
    assert_eq!(sees(&["everything"]), [true, true, true]);
    assert_eq!(sees(&["shard:ops/shard"]), [true, true, false]);
    assert_eq!(sees(&["caller:east/ops/pod-p1"]), [true, false, false]);
    assert_eq!(sees(&["caller:west/ops/pod-p3"]), [false, true, false]);
}

#[test]
fn while_callers_are_not_known_no_policy_is_taken_from_a_part() {
    let mut fleet = Fleet::with_callers();
    fleet.policy(SHAKE, json!({"selector": {}, "callerClusters": ["west"]}));
    fleet.compile(0);
    fleet.agent("west").callers = None;
    let world = fleet.compile(0);
    let policy = Ref::Policy(named(SHAKE));
    for (scope, uncertain) in [
        ("shard:ops/shard", true),
        ("caller:west/ops/pod-p3", true),
        ("caller:east/ops/pod-p1", false),
    ] {
        let scope_of = Scope::of(&Subscription::from_scopes([scope]).unwrap(), &world);
        assert!(!scope_of.sees(&policy), "{scope}");
        assert_eq!(scope_of.is_uncertain(&policy), uncertain, "{scope}");
    }
}
