//! What statuses of policies say, by example.

mod targets;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_crds::condition::MESSAGE_MAX;
use portolan_crds::{CircuitBreakerStatus, FaultInjectionStatus};
use portolan_wire::subscription::Subscription;
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::acks::RouterState;
use crate::compile::{Compiled, Ref};
use crate::facts::{PolicyKind, Selection};
use crate::status::Routers;
use crate::status::reach::Breakers;

const CALM: &str = "CircuitBreaker/ops/calm";
const SHAKE: &str = "FaultInjection/ops/shake";

/// One policy, the callers p and q of it in east, and routers.
struct Scene {
    facts: Facts,
    world: World,
    routers: Routers,
    withheld: WithheldShares,
    /// Routers that have an object.
    enrolled: BTreeSet<String>,
    now: Timestamp,
}

fn named(name: &str) -> PolicyName {
    name.parse().unwrap()
}

fn view(pod_uid: &str) -> Ref {
    Ref::View {
        home: "east".to_owned(),
        pod_uid: pod_uid.to_owned(),
    }
}

fn compiled(version: &str, body: Body) -> Compiled {
    Compiled {
        resource: Arc::new(v1::Resource {
            version: version.to_owned(),
            body: Some(body),
        }),
        change: None,
        provisional: false,
    }
}

impl Scene {
    fn new(name: &str, spec: Value) -> Self {
        let name = named(name);
        let (spec, status) = match name.kind {
            PolicyKind::CircuitBreaker => (
                PolicySpec::Breaker(serde_json::from_value(spec).unwrap()),
                PolicyStatus::Breaker(CircuitBreakerStatus::default()),
            ),
            PolicyKind::FaultInjection => (
                PolicySpec::Fault(serde_json::from_value(spec).unwrap()),
                PolicyStatus::Fault(FaultInjectionStatus::default()),
            ),
        };
        let object = PolicyObject {
            uid: "uid".to_owned(),
            generation: 3,
            created: Timestamp::UNIX_EPOCH,
            was_there: true,
            labelled_off: false,
            disabled: false,
            until: None,
            selection: Some(Selection {
                selector: Some(portolan_crds::Selector::everything()),
                caller_clusters: Vec::new(),
            }),
            problems: Vec::new(),
            in_force: PolicyInForce::new(3, spec).map(Arc::new),
            closed: Vec::new(),
            bad_close: Vec::new(),
            status,
        };
        let mut world = World::default();
        let policy = compiled("v3", Body::Policy(v1::Policy::default()));
        world.resources.insert(Ref::Policy(name.clone()), policy);
        for uid in ["p", "q"] {
            let body = v1::CallerView {
                home_cluster: "east".to_owned(),
                pod_uid: uid.to_owned(),
                pod: format!("pod-{uid}"),
                policies: vec![name.to_string()],
                ..v1::CallerView::default()
            };
            world.add_view(view(uid), body.clone());
            world.resources.insert(view(uid), compiled("w", Body::CallerView(body)));
        }
        let mut scene = Self {
            facts: Facts {
                policies: [(name, object)].into(),
                ..Facts::default()
            },
            world,
            routers: Routers::new(),
            withheld: WithheldShares::new(),
            enrolled: BTreeSet::new(),
            now: Timestamp::UNIX_EPOCH,
        };
        scene.stands(Standing::InForce);
        scene.router("r", Some("v3"));
        scene
    }

    fn object(&mut self) -> &mut PolicyObject {
        self.facts.policies.values_mut().next().unwrap()
    }

    fn stands(&mut self, standing: Standing) {
        let reach = PolicyReach {
            uid: "uid".to_owned(),
            generation: 3,
            standing,
            rules: None,
            callers: Reached {
                count: 2,
                spared: 0,
                first: ["east/ops/pod-p".into(), "east/ops/pod-q".into()].into(),
            },
        };
        let name = self.facts.policies.keys().next().unwrap().clone();
        if standing != Standing::InForce {
            self.world.resources.remove(&Ref::Policy(name.clone()));
        }
        self.world.policies.insert(name, reach);
    }

    /// A router that holds this version of the policy, and all views.
    fn router(&mut self, router: &str, version: Option<&str>) -> &mut RouterState {
        let policy = Ref::Policy(self.facts.policies.keys().next().unwrap().clone());
        let held = version.map(|version| (policy, version.to_owned()));
        let views = ["p", "q"].map(|uid| (view(uid), "w".to_owned()));
        let state = RouterState::new(1, held.into_iter().chain(views).collect());
        self.routers.insert(router.to_owned(), state);
        self.routers.get_mut(router).unwrap()
    }

    fn status(&self) -> Option<PolicyStatus> {
        let sources = Sources {
            facts: &self.facts,
            world: &self.world,
            routers: &self.routers,
            breakers: &Breakers::default(),
            now: self.now,
        };
        let (name, object) = self.facts.policies.iter().next().unwrap();
        let enrolled = self.enrolled.iter().collect();
        let presences = Presences::of(&enrolled, &self.routers, Instant::now(), |router| {
            router.told_rules.is_some()
        });
        status(sources, &Common::of(sources, &self.withheld, &presences), name, object)
    }

    fn breaker(&self) -> CircuitBreakerStatus {
        match self.status().unwrap() {
            PolicyStatus::Breaker(status) => status,
            PolicyStatus::Fault(_) => panic!("a CircuitBreaker"),
        }
    }

    /// `status/reason` of a condition, and its message.
    fn says(&self, condition: &str) -> (String, String) {
        let conditions = match self.status().unwrap() {
            PolicyStatus::Breaker(status) => status.conditions,
            PolicyStatus::Fault(status) => status.conditions,
        };
        let found = conditions.into_iter().find(|one| one.type_ == condition).unwrap();
        assert_eq!(found.observed_generation, Some(3));
        (format!("{}/{}", found.status, found.reason), found.message)
    }

    fn finds(&self, condition: &str, wanted: &str, text: &str) {
        let (found, message) = self.says(condition);
        assert_eq!(found, wanted, "{condition}: {message}");
        assert!(message.contains(text) && message.len() < MESSAGE_MAX, "{message}");
    }
}

fn slow() -> Value {
    json!({"selector": {}, "rateLimitings": [{"name": "slow"}], "breakers": [{"name": "guard"}]})
}

#[test]
fn a_policy_that_is_in_force_everywhere_says_so() {
    let scene = Scene::new(CALM, slow());
    for condition in ["Accepted", "Active", "Distributed", "CallersFound"] {
        assert_eq!(scene.says(condition).0, "True/Ok", "{condition}");
    }
    let status = scene.breaker();
    assert_eq!(
        (status.observed_generation, status.callers, status.opened),
        (Some(3), Some(2), Some(0))
    );
}

#[test]
fn nothing_is_said_of_what_is_not_compiled_yet() {
    let mut scene = Scene::new(CALM, slow());
    scene.object().generation = 4;
    assert!(scene.status().is_none());
    scene.object().generation = 3;
    scene.object().uid = "another".to_owned();
    assert!(scene.status().is_none());
}

#[test]
fn a_bad_spec_is_told_with_what_stays_in_force() {
    let mut scene = Scene::new(CALM, slow());
    let problem = |reason| portolan_crds::Problem {
        field: "spec.rateLimitings[0]".to_owned(),
        reason,
        message: "m".to_owned(),
    };
    scene.object().problems = vec![problem(portolan_crds::Reason::Invalid)];
    scene.finds(
        "Accepted",
        "False/Invalid",
        "spec.rateLimitings[0]: m; the last accepted spec stays in force, of generation 3",
    );
    scene.finds("Active", "True/Ok", "");
    scene.object().problems = vec![problem(portolan_crds::Reason::NotImplemented)];
    scene.object().in_force = None;
    scene.stands(Standing::NoneGood);
    scene.finds("Accepted", "False/NotImplemented", "routers that have one keep it");
    scene.finds("Active", "Unknown/Invalid", "");
    scene.finds("Distributed", "Unknown/Invalid", "");
    scene.object().was_there = false;
    scene.stands(Standing::NeverGood);
    scene.finds("Accepted", "False/NotImplemented", "nothing of it comes into force");
    scene.finds("Active", "False/Invalid", "");
}

#[test]
fn what_closes_nothing_is_told() {
    let mut scene = Scene::new(CALM, slow());
    scene.object().bad_close = vec!["slow=yesterday".to_owned()];
    for rule in ["slow", "guard@east", "gone", "guard"] {
        scene.object().closed.push(v1::ClosedByHand {
            rule: rule.to_owned(),
            at_unix_milliseconds: 0,
        });
    }
    scene.finds(
        "Accepted",
        "True/Ok",
        "closes nothing: \"slow=yesterday\" cannot be read, \"gone\" is no rule of it, \"guard\" is no rule of it;",
    );
}

#[test]
fn why_nothing_comes_of_it_is_told() {
    for (standing, wanted, text) in [
        (Standing::Withdrawn, "False/Disabled", "label"),
        (Standing::Disabled, "False/Disabled", "spec.disabled"),
        (Standing::Expired, "False/Expired", "spec.until"),
        (Standing::Excess, "False/TooManyPolicies", "Accepted"),
        (
            Standing::Stopped,
            "False/Stopped",
            "stopped by ada since noon: an incident",
        ),
    ] {
        let mut scene = Scene::new(SHAKE, json!({"selector": {}}));
        scene.facts.faults_stopped = Some(FaultsStopped {
            by: "ada".to_owned(),
            reason: "an incident".to_owned(),
            since: "noon".to_owned(),
        });
        scene.stands(standing);
        scene.finds("Active", wanted, text);
        scene.finds("Distributed", "False/Progressing", "being taken from r");
        scene.router("r", None);
        scene.finds("Distributed", "True/Ok", "no router");
    }
}

#[test]
fn faults_whose_times_are_not_now_say_so() {
    let time = json!({"startTime": "10:00:00", "endTime": "11:00:00"});
    let mut scene = Scene::new(SHAKE, json!({"selector": {}, "httpFault": [{"effectiveTime": time}]}));
    scene.finds("Active", "False/NotNow", "each router judges by its own");
    scene.now = "1970-01-01T10:30:00Z".parse().unwrap();
    scene.finds("Active", "True/Ok", "own clock");
}

#[test]
fn routers_that_do_not_hold_it_are_counted_and_named() {
    let mut scene = Scene::new(CALM, slow());
    scene.router("lags", Some("v2"));
    scene.finds("Distributed", "False/Progressing", "1 of 2 routers");
    scene
        .router("lags", Some("v3"))
        .held
        .insert(view("p"), "older".to_owned());
    scene.finds("Distributed", "False/Progressing", "1 of 2 routers");
    scene.router("lags", Some("v3")).serves_policies = false;
    scene.finds(
        "Distributed",
        "False/NotImplemented",
        "serves no policies, so that requests through them are held by nothing: lags",
    );
    let refusal = ("v3".to_owned(), "spec_json: no".to_owned());
    scene
        .router("lags", Some("v2"))
        .rejected
        .insert(Ref::Policy(named(CALM)), refusal);
    scene.finds(
        "Distributed",
        "False/Rejected",
        "1 of 2 routers hold the present version; refused by lags: spec_json: no",
    );
    scene.routers.get_mut("lags").unwrap().left = Some(Instant::now());
    scene.finds("Distributed", "True/Ok", "1 of 1");
    let elsewhere = Subscription::from_scopes(["caller:west/ops/x"]).unwrap();
    scene.router("part", None).subscription = elsewhere;
    scene.finds("Distributed", "True/Ok", "1 of 1");
    scene.routers.clear();
    scene.finds("Distributed", "Unknown/WaitingForRouter", "");
}

fn reached(scene: &mut Scene) -> &mut Reached {
    &mut scene.world.policies.values_mut().next().unwrap().callers
}

#[test]
fn callers_are_named_and_the_rest_is_counted() {
    let mut scene = Scene::new(CALM, slow());
    let status = scene.breaker();
    assert_eq!(status.caller_names, ["east/ops/pod-p", "east/ops/pod-q"]);
    assert_eq!(status.callers_not_named, None);
    reached(&mut scene).count = 70;
    let status = scene.breaker();
    assert_eq!((status.callers, status.callers_not_named), (Some(70), Some(68)));
    let mut faults = Scene::new(SHAKE, json!({"selector": {}}));
    reached(&mut faults).count = 3;
    let Some(PolicyStatus::Fault(status)) = faults.status() else {
        panic!("a FaultInjection")
    };
    assert_eq!((status.caller_names.len(), status.callers_not_named), (2, Some(1)));
}

#[test]
fn why_nobody_is_found_is_told() {
    let mut scene = Scene::new(CALM, slow());
    reached(&mut scene).spared = 1;
    scene.finds(
        "CallersFound",
        "False/TooManyPolicies",
        "1 of them are held by the 200 oldest",
    );
    *reached(&mut scene) = Reached::default();
    scene.finds("CallersFound", "False/NoCallers", "spec.selector");
    scene
        .world
        .unknown
        .insert((ResourceKind::CallerView, "west".to_owned()));
    scene.finds("CallersFound", "Unknown/WaitingForAgent", "west");
    scene.object().selection.as_mut().unwrap().caller_clusters = vec!["mars".to_owned()];
    scene.finds("CallersFound", "False/UnknownCluster", "\"mars\"");
    scene.object().selection.as_mut().unwrap().selector = None;
    scene.finds("CallersFound", "False/NoSelector", "{} selects all");
    scene.object().selection = None;
    scene.finds("CallersFound", "Unknown/Invalid", "");
}

fn state(rule: &str, caller: &str, opened: bool, last_minute: u64) -> v1::RuleState {
    v1::RuleState {
        policy: CALM.to_owned(),
        rule: rule.to_owned(),
        caller: caller.to_owned(),
        opened,
        reason: if opened { "LimitExceeded" } else { "" }.to_owned(),
        since_unix_milliseconds: 7_300,
        last_minute,
        total: last_minute * 2,
        tokens: Some(4),
    }
}

#[test]
fn who_withholds_a_share_is_named_and_a_policy_without_shared_limits_says_nothing_of_them() {
    use crate::shares::{Why, Withheld};
    let mut scene = Scene::new(CALM, json!({"selector": {}}));
    let divided = |scene: &Scene| {
        let conditions = scene.breaker().conditions;
        conditions.into_iter().any(|condition| condition.type_ == "Divided")
    };
    assert!(!divided(&scene));
    let limit = crate::compile::SharedLimit {
        policy: named(CALM),
        uid: "uid".to_owned(),
        rule: "all".to_owned(),
    };
    let supply = crate::compile::Supply {
        rate: 1,
        least: 1,
        fills_in: None,
    };
    scene.world.shared_limits.insert(limit, supply);
    scene.finds("Divided", "True/Ok", "");
    let kept = |why: Why| Withheld {
        rule: "all".to_owned(),
        router: "far".to_owned(),
        share: 255_000,
        why,
    };
    for (why, text) in [
        (
            Why::Away,
            "\"all\": router far is cut off and keeps 26 %; if it is gone: portolanctl router forget far",
        ),
        (
            Why::NotHeard,
            "router far has not been heard since the hub began and may have up to 26 %",
        ),
        (Why::Unconfirmed, "router far does not say that it has let go of 26 %"),
    ] {
        scene.withheld = [(named(CALM), vec![kept(why)])].into();
        scene.finds("Divided", "False/SharesWithheld", text);
    }
    scene.object().status = scene.status().unwrap();
    scene.world.shared_limits.clear();
    assert!(!divided(&scene));
}

#[test]
fn whom_the_spec_in_force_holds_is_told_and_kept_by_a_hub_that_does_not_know_it() {
    let spec = json!({"selector": {"matchLabels": {"app": "op"}}, "callerClusters": ["east"]});
    let mut scene = Scene::new(CALM, spec);
    let told = scene.breaker().in_force.unwrap();
    assert_eq!(
        (told.generation, told.caller_clusters.as_slice()),
        (3, &["east".to_owned()][..])
    );
    assert!(told.selector.is_some());
    scene.object().status = scene.status().unwrap();
    scene.object().in_force = None;
    scene.stands(Standing::NoneGood);
    assert_eq!(scene.breaker().in_force, Some(told));
}
