//! State of policies over requests, edits, swaps and shares, under a virtual clock; edits under load are in `load`.

mod breakers;
mod deferred;
mod load;
mod shares;
mod speed;
mod tried;

use std::time::Duration;

use portolan_wire::v1;
use portolan_wire::v1::resource::Body;
use serde_json::{Value, json};
use tokio::time::advance;

use super::*;
use crate::value::policy::AskedResource;
use crate::value::snapshot::build::{Applied, Transaction, apply};
use crate::value::snapshot::told;

pub(crate) const BREAKER: &str = "CircuitBreaker/ops/calm";

/// A limit that all requests meet.
pub(crate) fn limit(name: &str, trigger: &str, burst: i64, limit: i64) -> Value {
    json!({
        "name": name,
        "triggerPolicy": trigger,
        "resourceRules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}],
        "bucket": {"burst": burst, "interval": "1s", "limit": limit},
    })
}

pub(crate) fn with(mut rule: Value, field: &str, value: Value) -> Value {
    rule[field] = value;
    rule
}

pub(crate) fn spec(limits: &[Value]) -> Value {
    json!({"selector": {}, "rateLimitings": limits})
}

pub(crate) fn policy(uid: &str, spec: &Value) -> v1::Policy {
    v1::Policy {
        name: BREAKER.into(),
        uid: uid.into(),
        generation: 1,
        spec_json: spec.to_string(),
        closed: Vec::new(),
    }
}

fn caller(uid: &str, policies: &[&str]) -> Body {
    Body::CallerView(v1::CallerView {
        home_cluster: "east".into(),
        pod_uid: uid.into(),
        namespace: "ops".into(),
        pod: format!("operator-{uid}"),
        service_account: "operator".into(),
        policies: policies.iter().map(|name| (*name).to_owned()).collect(),
        ..v1::CallerView::default()
    })
}

/// A router, as far as policies are concerned.
pub(crate) struct World {
    pub(crate) policies: Arc<Policies>,
    pub(crate) snapshot: Snapshot,
}

impl World {
    /// Callers 1 and 2, which this policy holds.
    pub(crate) fn new(limits: &[Value]) -> Self {
        let mut world = Self {
            policies: Arc::default(),
            snapshot: Snapshot::default(),
        };
        world.told([
            caller("1", &[BREAKER]),
            caller("2", &[BREAKER]),
            Body::Policy(policy("u1", &spec(limits))),
        ]);
        world
    }

    fn told(&mut self, bodies: impl IntoIterator<Item = Body>) -> Vec<v1::Rejected> {
        let Applied { snapshot, rejected } = told::upsert(&self.snapshot, "1", bodies);
        self.policies.follow(&snapshot);
        self.snapshot = snapshot;
        rejected
    }

    fn edit(&mut self, limits: &[Value]) {
        assert_eq!(self.told([Body::Policy(policy("u1", &spec(limits)))]), []);
    }

    fn removed(&mut self, kind: v1::ResourceKind, name: &str) {
        let removed = vec![v1::ResourceRef {
            kind: kind.into(),
            name: name.to_owned(),
        }];
        let transaction = Transaction {
            upserted: Vec::new(),
            removed,
        };
        self.snapshot = apply(&self.snapshot, &transaction).snapshot;
        self.policies.follow(&self.snapshot);
    }

    pub(crate) fn view(&self, uid: &str) -> Arc<CallerView> {
        let key = CallerKey {
            home_cluster: "east".into(),
            pod_uid: uid.into(),
        };
        self.snapshot.callers[&key].clone()
    }

    fn asks(&self, uid: &str) -> Result<(), Fault> {
        ask(&self.policies, &self.view(uid), self.snapshot.generation, "get")
    }

    /// How many of so many requests pass.
    fn pass(&self, uid: &str, asks: usize) -> usize {
        (0..asks).filter(|_| self.asks(uid).is_ok()).count()
    }

    fn report(&self) -> v1::PolicyReport {
        self.policies.report(&self.snapshot)
    }
}

/// A request for Pods of a namespace in east.
pub(crate) fn ask(policies: &Policies, view: &CallerView, generation: u64, verb: &str) -> Result<(), Fault> {
    policies.admit(&judging(view, generation, verb))
}

fn judging<'a>(view: &'a CallerView, generation: u64, verb: &'a str) -> Judging<'a> {
    let resource = AskedResource {
        group: "",
        resource: "pods",
        subresource: None,
    };
    Judging {
        view,
        asked: Asked {
            resource: Some(resource),
            verb,
            namespace: Some("ns"),
            clusters: &["east"],
            election: false,
        },
        generation,
    }
}

fn refusal(fault: Result<(), Fault>) -> crate::value::fault::PolicyRefusal {
    match fault {
        Err(Fault::Policy(refusal)) => *refusal,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn each_caller_has_a_bucket_of_its_own() {
    let world = World::new(&[limit("all", "LimiterOnly", 3, 1)]);
    assert_eq!((world.pass("1", 10), world.pass("2", 10)), (3, 3));
    advance(Duration::from_secs(2)).await;
    assert_eq!(world.pass("1", 10), 2);
    let refusal = refusal(world.asks("1"));
    assert_eq!(refusal.rule, "CircuitBreaker/ops/calm/all");
    assert_eq!((refusal.by, refusal.retry_after_seconds), (RefusedBy::Limit, 1));
    assert_eq!(world.policies.metrics.count(RefusedBy::Limit), 23);
}

/// The predecessor closed all rules and filled all buckets at any edit of the object.
#[tokio::test(start_paused = true)]
async fn an_edit_keeps_the_state_of_rules_that_it_did_not_change() {
    let (kept, opened) = (limit("kept", "LimiterOnly", 10, 0), limit("opened", "Normal", 1, 0));
    let scoped = with(
        opened.clone(),
        "resourceRules",
        json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"], "namespaces": ["*"]}]),
    );
    let other = |limit: i64| {
        with(
            self::limit("other", "LimiterOnly", 100, limit),
            "properties",
            json!({"a": "b"}),
        )
    };
    let mut world = World::new(&[kept.clone(), scoped.clone(), other(1)]);
    let delete = |world: &World| ask(&world.policies, &world.view("1"), world.snapshot.generation, "delete");
    assert!(delete(&world).is_ok());
    assert_eq!(refusal(delete(&world)).by, RefusedBy::Limit);
    assert_eq!(world.pass("1", 3), 3);
    world.edit(&[other(2), scoped.clone(), kept.clone()]);
    assert_eq!(refusal(delete(&world)).by, RefusedBy::Opened, "it stays opened");
    assert_eq!(world.pass("1", 10), 6, "and the other one has spent what it had");
    // All the same, but for one number of it.
    world.edit(&[other(2), scoped, limit("kept", "LimiterOnly", 11, 0)]);
    assert_eq!(world.pass("1", 20), 11, "a rule that changed begins anew");
    world.edit(&[other(2), limit("renamed", "LimiterOnly", 11, 0)]);
    assert_eq!(world.pass("1", 20), 11, "and so does one with another name");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_made_anew_begins_anew() {
    let limits = [limit("all", "LimiterOnly", 3, 0)];
    let mut world = World::new(&limits);
    assert_eq!(world.pass("1", 5), 3);
    world.told([Body::Policy(policy("u2", &spec(&limits)))]);
    assert_eq!(world.pass("1", 5), 3);
}

#[tokio::test(start_paused = true)]
async fn state_goes_with_its_caller_and_with_its_policy() {
    let mut world = World::new(&[limit("all", "LimiterOnly", 3, 0)]);
    assert_eq!((world.pass("1", 5), world.pass("2", 5)), (3, 3));
    assert_eq!(world.policies.callers.len(), 2);
    world.removed(v1::ResourceKind::CallerView, "east/1");
    assert_eq!((world.policies.callers.len(), world.report().rules.len()), (1, 1));
    world.removed(v1::ResourceKind::Policy, BREAKER);
    assert_eq!(world.report().rules.len(), 0);
    assert_eq!(world.pass("2", 5), 5);
    world.told([caller("1", &[BREAKER])]);
    assert_eq!(world.pass("1", 5), 5, "it is named, but not known");
    advance(Duration::from_nanos(aside::ASIDE)).await;
    world.told([caller("3", &[])]);
    assert_eq!(world.policies.callers.len(), 0);
}

/// Who changes its labels back and forth would else have all tokens again, and close what has opened.
#[tokio::test(start_paused = true)]
async fn who_leaves_a_selection_for_a_moment_finds_its_rules_as_it_left_them() {
    let opened = with(
        limit("opened", "Normal", 1, 0),
        "resourceRules",
        json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"], "namespaces": ["*"]}]),
    );
    let limits = [limit("all", "LimiterOnly", 5, 0), opened];
    let delete = |world: &World| ask(&world.policies, &world.view("1"), world.snapshot.generation, "delete");
    let mut world = World::new(&limits);
    assert!(delete(&world).is_ok() && delete(&world).is_err());
    assert_eq!(world.pass("1", 2), 2);
    let minutes = |count: u64| Duration::from_mins(count);
    for _ in 0..3 {
        world.told([caller("1", &[])]);
        assert_eq!(
            (world.pass("1", 9), world.report().rules.len()),
            (9, 0),
            "nothing holds it"
        );
        advance(minutes(4)).await;
        world.told([caller("2", &[BREAKER])]);
        advance(minutes(4)).await;
        world.told([caller("1", &[BREAKER])]);
        assert_eq!(refusal(delete(&world)).by, RefusedBy::Opened);
    }
    // Meanwhile a person closes one, and the other becomes another rule.
    world.told([caller("1", &[])]);
    let closed = v1::ClosedByHand {
        rule: "opened".into(),
        at_unix_milliseconds: 1,
    };
    let edited = [limit("all", "LimiterOnly", 4, 0), limits[1].clone()];
    let edited = v1::Policy {
        closed: vec![closed],
        ..policy("u1", &spec(&edited))
    };
    world.told([Body::Policy(edited.clone())]);
    world.told([caller("1", &[BREAKER])]);
    assert_eq!(refusal(delete(&world)).by, RefusedBy::Limit, "closing brings no tokens");
    assert_eq!(world.pass("1", 9), 4, "it begins anew");
    world.told([caller("1", &[])]);
    advance(minutes(11)).await;
    world.told([caller("1", &[BREAKER])]);
    assert_eq!(world.pass("1", 9), 4, "nobody is waited for so long");
    // The same name, and another object.
    world.told([caller("1", &[])]);
    world.told([Body::Policy(v1::Policy {
        uid: "u2".into(),
        ..edited
    })]);
    world.told([caller("1", &[BREAKER])]);
    assert_eq!(world.pass("1", 9), 4);
}

#[tokio::test(start_paused = true)]
async fn what_was_planned_before_a_swap_is_judged_by_the_newest_rules_and_moves_nothing_back() {
    let mut world = World::new(&[limit("all", "LimiterOnly", 3, 0)]);
    let (before, generation) = (world.view("1"), world.snapshot.generation);
    assert_eq!(world.pass("1", 1), 1);
    world.edit(&[limit("all", "LimiterOnly", 5, 0)]);
    let late = || ask(&world.policies, &before, generation, "get").is_ok();
    assert_eq!(world.pass("1", 1), 1);
    assert!(late() && late());
    assert_eq!(world.pass("1", 9), 2, "five in all: nobody began anew in between");
    // A request may also be the first that its caller sends, and late.
    let late = ask(&world.policies, &world.view("2"), 0, "get");
    assert!(late.is_ok());
    assert_eq!(world.pass("2", 9), 4);
}

#[tokio::test(start_paused = true)]
async fn a_person_closes_a_rule_once_by_each_time_that_is_told() {
    let limits = [limit("all", "Normal", 1, 1)];
    let closed = |at: i64| {
        let closed = v1::ClosedByHand {
            rule: "all".into(),
            at_unix_milliseconds: at,
        };
        Body::Policy(v1::Policy {
            closed: vec![closed],
            ..policy("u1", &spec(&[limit("all", "Normal", 1, 1)]))
        })
    };
    let mut world = World::new(&limits);
    let mut changes = world.policies.changes();
    assert_eq!(world.pass("1", 3), 1);
    assert!(changes.has_changed().unwrap(), "the hub hears of it soon");
    advance(Duration::from_mins(1)).await;
    assert_eq!(refusal(world.asks("1")).by, RefusedBy::Opened);
    changes.mark_unchanged();
    world.told([closed(1_000)]);
    assert!(changes.has_changed().unwrap());
    assert_eq!(world.pass("1", 3), 1, "with what came meanwhile");
    world.told([closed(1_000), caller("1", &[BREAKER])]);
    advance(Duration::from_mins(1)).await;
    assert_eq!(world.pass("1", 3), 0, "that was carried out already");
    world.told([closed(1_001)]);
    assert_eq!(world.pass("1", 3), 1);
    // Who meets the rule for the first time has nothing to be closed, neither now nor when it is told anew.
    assert_eq!(world.pass("2", 3), 1);
    world.told([closed(1_001), caller("2", &[BREAKER])]);
    assert_eq!(refusal(world.asks("2")).by, RefusedBy::Opened);
}

#[tokio::test(start_paused = true)]
async fn refusals_say_when_to_come_again_where_that_does_no_harm() {
    let cases = [
        (limit("a", "LimiterOnly", 1, 1), "get", 429, true),
        (limit("a", "LimiterOnly", 1, 1), "watch", 429, true),
        (limit("a", "ForceOpened", 1, 1), "get", 503, false),
        (limit("a", "ForceOpened", 1, 1), "list", 429, true),
        (limit("a", "ForceOpened", 1, 1), "watch", 429, true),
        (limit("a", "ForceOpened", 1, 1), "update", 503, false),
    ];
    for (limit, verb, code, retry) in cases {
        let world = World::new(std::slice::from_ref(&limit));
        drop(ask(&world.policies, &world.view("1"), 1, verb));
        let fault = ask(&world.policies, &world.view("1"), 1, verb).unwrap_err();
        assert_eq!(fault.status_code().as_u16(), code, "{limit} {verb}");
        assert_eq!(fault.retry_after_seconds().is_some(), retry, "{limit} {verb}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_hub_is_told_of_rules_that_were_met_the_worst_first() {
    let opened = with(
        limit("opened", "Normal", 2, 0),
        "resourceRules",
        json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"], "namespaces": ["*"]}]),
    );
    let world = World::new(&[limit("all", "LimiterOnly", 5, 1), opened]);
    assert_eq!(world.report(), v1::PolicyReport::default(), "nobody has met any");
    assert_eq!(world.pass("1", 3), 3);
    for _ in 0..3 {
        drop(ask(&world.policies, &world.view("2"), 1, "delete"));
    }
    let report = world.report();
    let told: Vec<_> = report
        .rules
        .iter()
        .map(|rule| {
            (
                &*rule.rule,
                &*rule.caller,
                rule.opened,
                &*rule.reason,
                rule.total,
                rule.tokens,
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("opened", "east/2", true, "LimitExceeded", 1, Some(0)),
            ("all", "east/1", false, "", 0, Some(2)),
            ("all", "east/2", false, "", 0, Some(3)),
        ]
    );
    assert!(report.rules[0].since_unix_milliseconds > 0 && report.rules[1].since_unix_milliseconds == 0);
    advance(Duration::from_mins(1)).await;
    let rules = world.report().rules;
    assert_eq!(rules.len(), 1, "full again, and never refused: as if nobody had met it");
    assert_eq!((rules[0].last_minute, rules[0].total), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn explaining_takes_nothing() {
    let world = World::new(&[limit("all", "LimiterOnly", 1, 1), limit("open", "ForceClosed", 1, 1)]);
    let view = world.view("1");
    let judging = Judging {
        view: &view,
        asked: Asked {
            resource: None,
            verb: "get",
            namespace: None,
            clusters: &["east"],
            election: false,
        },
        generation: 1,
    };
    for _ in 0..5 {
        let said = world.policies.explain(&judging);
        assert_eq!(said["limits"][0]["says"], "passes", "{said}");
        assert_eq!(
            (&said["limits"][1]["rule"], &said["refusedBy"]),
            (&json!("open"), &json!(null))
        );
    }
    assert_eq!(world.pass("1", 2), 1);
    let said = world.policies.explain(&judging);
    assert_eq!(said["refusedBy"], "CircuitBreaker/ops/calm/all");
    assert!(
        said["limits"][0]["says"]
            .as_str()
            .unwrap()
            .starts_with("over the limit"),
        "{said}"
    );
    let page = world.policies.page(&world.snapshot);
    assert_eq!(
        (&page["policies"][0]["callers"], &page["rules"][0]["refusedTotal"]),
        (&json!(2), &json!(1)),
        "{page}"
    );
}
