//! The last good spec of a policy stays in force; what switches it off counts by itself.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use portolan_crds::labels::{
    ANNOTATION_CLOSE, CONFIG_MAP_FAULTS, LABEL_CIRCUIT_BREAKER_DISABLE, LABEL_FAULT_INJECTION_DISABLE,
};

use super::*;
use crate::facts::{FaultsStopped, PolicyKind, PolicyName, PolicyObject, PolicySpec};

const BREAKER: PolicyKind = PolicyKind::CircuitBreaker;
const FAULT: PolicyKind = PolicyKind::FaultInjection;

fn policy(kind: PolicyKind, generation: i64, spec: Value) -> DynamicObject {
    let mut object = object(&kind.resource(), "calm", spec).within("ops");
    object.metadata.generation = Some(generation);
    object
}

fn good() -> Value {
    let rule = json!({
        "name": "slow", "triggerPolicy": "Normal",
        "resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "namespaces": ["*"]}],
        "bucket": {"burst": 10, "interval": "1s", "limit": 10},
    });
    json!({"selector": {"matchLabels": {"app": "op"}}, "rateLimitings": [rule]})
}

fn bad() -> Value {
    let mut spec = good();
    spec["rateLimitings"][0]["bucket"]["burst"] = json!(-1);
    spec
}

fn kept(facts: &Facts, kind: PolicyKind) -> &PolicyObject {
    &facts.policies[&PolicyName::new(kind, "ops", "calm").unwrap()]
}

fn in_force(facts: &Facts) -> Option<i64> {
    kept(facts, BREAKER).in_force.as_ref().map(|good| good.generation)
}

#[test]
fn the_last_good_spec_stays_in_force() {
    let mut facts = Facts::default();
    let unreadable = json!({"rateLimitings": 7});
    assert_eq!(
        facts.apply_policy(BREAKER, &policy(BREAKER, 1, unreadable.clone())),
        Change::Compile
    );
    assert_eq!((in_force(&facts), kept(&facts, BREAKER).problems.len()), (None, 1));
    assert_eq!(
        facts.apply_policy(BREAKER, &policy(BREAKER, 2, good())),
        Change::Compile
    );
    assert_eq!((in_force(&facts), kept(&facts, BREAKER).problems.len()), (Some(2), 0));
    let no_fields = [json!([]), json!(null)];
    for (generation, spec) in [bad(), unreadable.clone()].into_iter().chain(no_fields).enumerate() {
        let generation = 3 + i64::try_from(generation).unwrap();
        let change = facts.apply_policy(BREAKER, &policy(BREAKER, generation, spec));
        assert_eq!(change, Change::Compile, "statuses tell which generation they are about");
        assert_eq!(in_force(&facts), Some(2));
        assert!(!kept(&facts, BREAKER).problems.is_empty());
    }
    let mut sidecar = good();
    sidecar["rateLimitings"][0]["restRules"] = json!([{"url": "https://x.example/*", "method": "GET"}]);
    let mut alone = sidecar.clone();
    alone["rateLimitings"][0]
        .as_object_mut()
        .unwrap()
        .remove("resourceRules");
    facts.apply_policy(BREAKER, &policy(BREAKER, 7, alone));
    assert_eq!(in_force(&facts), Some(2), "rules that are not served replace nothing");
    facts.apply_policy(BREAKER, &policy(BREAKER, 8, sidecar));
    assert_eq!(in_force(&facts), Some(8), "the rules beside them are served");
    let told = kept(&facts, BREAKER);
    assert!(told.problems.len() == 1 && !told.problems[0].refuses());
    let PolicySpec::Breaker(spec) = &told.in_force.as_ref().unwrap().spec else {
        panic!("a CircuitBreaker");
    };
    assert!(
        spec.rate_limitings[0].rest_rules.is_empty(),
        "no router is told of them"
    );
    // Made anew it starts anew.
    let mut anew = policy(BREAKER, 1, unreadable);
    anew.metadata.uid = Some("another".to_owned());
    assert_eq!(facts.apply_policy(BREAKER, &anew), Change::Compile);
    assert_eq!(in_force(&facts), None);
}

#[test]
fn routers_keep_what_they_have_of_those_alone_that_were_there_at_first() {
    let there = |facts: &Facts| kept(facts, BREAKER).was_there;
    let named = |uid: &str, generation| {
        let mut object = policy(BREAKER, generation, bad());
        object.metadata.uid = Some(uid.to_owned());
        object.data["status"] = json!({"observedGeneration": 1});
        object
    };
    let mut facts = Facts::default();
    let mut anew = named("one", 1);
    anew.data["status"] = Value::Null;
    facts.reset_policies(BREAKER, &[anew]);
    assert!(
        !there(&facts),
        "made while no hub was there: what routers have is of an object before it"
    );
    let mut edited = named("one", 2);
    edited.data["status"] = Value::Null;
    let mut facts = Facts::default();
    facts.reset_policies(BREAKER, &[edited]);
    assert!(
        there(&facts),
        "the spec before this one may have been told, and the hub gone before it wrote a status"
    );
    let mut facts = Facts::default();
    facts.reset_policies(BREAKER, &[named("one", 1)]);
    assert!(there(&facts));
    facts.apply_policy(BREAKER, &named("one", 2));
    facts.reset_policies(BREAKER, &[named("one", 3)]);
    assert!(there(&facts), "in another list as well");
    facts.apply_policy(BREAKER, &named("two", 1));
    assert!(!there(&facts), "made anew");
    facts.delete_policy(BREAKER, &named("two", 1));
    facts.reset_policies(BREAKER, &[named("three", 1)]);
    assert!(!there(&facts), "made later");
}

#[test]
fn a_spec_is_judged_once() {
    let mut facts = Facts::default();
    let mut object = policy(BREAKER, 1, good());
    facts.apply_policy(BREAKER, &object);
    let first = kept(&facts, BREAKER).in_force.clone().unwrap();
    object.data["status"] = json!({"callers": 3});
    facts.apply_policy(BREAKER, &object);
    let second = kept(&facts, BREAKER).in_force.clone().unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &second));
    object.metadata.generation = Some(2);
    facts.apply_policy(BREAKER, &object);
    assert_eq!(in_force(&facts), Some(2));
}

#[test]
fn a_change_of_status_alone_is_no_news_for_routers() {
    let mut facts = Facts::default();
    let mut object = policy(BREAKER, 1, good());
    facts.apply_policy(BREAKER, &object);
    assert_eq!(facts.apply_policy(BREAKER, &object), Change::Nothing);
    object.data["status"] = json!({"callers": 3});
    assert_eq!(facts.apply_policy(BREAKER, &object), Change::Status);
    object.metadata.labels = Some([("team".to_owned(), "blue".to_owned())].into());
    assert_eq!(facts.apply_policy(BREAKER, &object), Change::Nothing);
    object.metadata.labels = Some([(LABEL_CIRCUIT_BREAKER_DISABLE.to_owned(), String::new())].into());
    assert_eq!(facts.apply_policy(BREAKER, &object), Change::Compile);
    assert!(kept(&facts, BREAKER).labelled_off);
}

#[test]
fn what_ends_a_fault_counts_even_if_the_rest_is_bad() {
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    let mut facts = Facts::default();
    let later = json!({"selector": {}, "until": "2030-01-01T00:00:00Z"});
    facts.apply_policy(FAULT, &policy(FAULT, 1, later));
    assert_eq!(kept(&facts, FAULT).until, Some(at("2030-01-01T00:00:00Z")));
    let mut object = policy(
        FAULT,
        2,
        json!({"httpFault": 7, "disabled": true, "until": "2029-01-01T00:00:00Z"}),
    );
    object.metadata.labels = Some([(LABEL_FAULT_INJECTION_DISABLE.to_owned(), "no".to_owned())].into());
    assert_eq!(facts.apply_policy(FAULT, &object), Change::Compile);
    let found = kept(&facts, FAULT);
    assert!(found.in_force.is_some() && found.disabled && found.labelled_off);
    assert_eq!(found.until, Some(at("2029-01-01T00:00:00Z")), "the earlier counts");
    facts.apply_policy(
        FAULT,
        &policy(FAULT, 3, json!({"httpFault": 7, "until": "2031-01-01T00:00:00Z"})),
    );
    assert_eq!(kept(&facts, FAULT).until, Some(at("2030-01-01T00:00:00Z")));
}

#[test]
fn whom_a_bad_policy_holds_is_read_from_it_until_a_good_one_is_known() {
    let labels = |facts: &Facts| {
        let selection = kept(facts, BREAKER).selection.clone();
        selection.map(|found| found.selector.map(|selector| selector.to_string()))
    };
    let selecting = |app: &str| json!({"selector": {"matchLabels": {"app": app}}, "rateLimitings": 7});
    let mut facts = Facts::default();
    facts.apply_policy(BREAKER, &policy(BREAKER, 1, selecting("a")));
    assert_eq!(labels(&facts), Some(Some("app=a".to_owned())));
    facts.apply_policy(BREAKER, &policy(BREAKER, 2, good()));
    facts.apply_policy(BREAKER, &policy(BREAKER, 3, selecting("a")));
    assert_eq!(labels(&facts), Some(Some("app=op".to_owned())), "the good one's");
    let mut facts = Facts::default();
    let mut object = policy(BREAKER, 2, selecting("a"));
    object.data["status"] = json!({"observedGeneration": 2, "inForce": {
        "generation": 1, "selector": {"matchLabels": {"app": "of-before"}}, "callerClusters": ["east"],
    }});
    facts.apply_policy(BREAKER, &object);
    assert_eq!(
        labels(&facts),
        Some(Some("app=of-before".to_owned())),
        "as an earlier hub says"
    );
    assert_eq!(
        kept(&facts, BREAKER).selection.as_ref().unwrap().caller_clusters,
        ["east"]
    );
    let mut facts = Facts::default();
    facts.apply_policy(BREAKER, &policy(BREAKER, 1, json!({"selector": 7})));
    assert_eq!(labels(&facts), None);
    facts.apply_policy(BREAKER, &policy(BREAKER, 2, json!({"rateLimitings": 7})));
    assert_eq!(labels(&facts), Some(None), "absent");
}

#[test]
fn rules_are_closed_by_the_annotation_as_far_as_it_can_be_read() {
    let closed = |text: &str| {
        let mut object = policy(BREAKER, 1, good());
        object.metadata.annotations = Some([(ANNOTATION_CLOSE.to_owned(), text.to_owned())].into());
        let mut facts = Facts::default();
        facts.apply_policy(BREAKER, &object);
        let found = kept(&facts, BREAKER);
        let rules = found.closed.iter();
        let rules: Vec<_> = rules
            .map(|closed| (closed.rule.clone(), closed.at_unix_milliseconds))
            .collect();
        (rules, found.bad_close.clone())
    };
    let rules = |rules: &[(&str, i64)]| -> Vec<(String, i64)> {
        rules.iter().map(|(rule, at)| ((*rule).to_owned(), *at)).collect()
    };
    let text = "slow=1970-01-01T00:00:01Z, a=b@east=1970-01-01T00:00:02Z,slow=1970-01-01T00:00:03Z,";
    assert_eq!(closed(text), (rules(&[("a=b@east", 2_000), ("slow", 3_000)]), vec![]));
    let (good, bad) = closed("slow,=1970-01-01T00:00:01Z,slow=yesterday,fast=1970-01-01T00:00:01Z");
    assert_eq!(good, rules(&[("fast", 1_000)]));
    assert_eq!(bad, ["slow", "=1970-01-01T00:00:01Z", "slow=yesterday"]);
    let many: Vec<_> = (0..5_000)
        .map(|number| format!("r{number}=1970-01-01T00:00:01Z,x"))
        .collect();
    let (good, bad) = closed(&many.join(","));
    assert!(good.len() <= 1_000 && bad.len() <= 5);
}

#[test]
fn a_list_replaces_what_is_of_its_kind() {
    let mut facts = Facts::default();
    facts.apply_policy(BREAKER, &policy(BREAKER, 1, good()));
    facts.apply_policy(FAULT, &policy(FAULT, 1, json!({})));
    assert_eq!(facts.reset_policies(BREAKER, &[]), Change::Compile);
    assert_eq!(facts.policies.keys().map(|name| name.kind).collect::<Vec<_>>(), [FAULT]);
    assert_eq!(facts.reset_policies(BREAKER, &[]), Change::Nothing);
    let mut leaving = policy(FAULT, 1, json!({}));
    leaving.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    assert_eq!(facts.apply_policy(FAULT, &leaving), Change::Compile);
    assert!(facts.policies.is_empty(), "whoever keeps the object by a finalizer");
    facts.apply_policy(FAULT, &policy(FAULT, 1, json!({})));
    assert_eq!(
        facts.delete_policy(FAULT, &policy(FAULT, 1, json!({}))),
        Change::Compile
    );
}

#[test]
fn all_but_false_stops_faults() {
    let switch = |name: &str, data: Value| {
        let kind = ApiResource::erase::<k8s_openapi::api::core::v1::ConfigMap>(&());
        DynamicObject::new(name, &kind).data(json!({"data": data}))
    };
    let mut facts = Facts::default();
    let stopped = switch(
        CONFIG_MAP_FAULTS,
        json!({"stopped": "true", "by": "ada", "reason": "an incident", "since": "2026-01-01T00:00:00Z"}),
    );
    assert_eq!(facts.apply_fault_switch(&stopped), Change::Compile);
    let expected = FaultsStopped {
        by: "ada".to_owned(),
        reason: "an incident".to_owned(),
        since: "2026-01-01T00:00:00Z".to_owned(),
    };
    assert_eq!(facts.faults_stopped, Some(expected));
    assert_eq!(facts.apply_fault_switch(&stopped), Change::Nothing);
    assert_eq!(
        facts.delete_fault_switch(&switch("another", json!({}))),
        Change::Nothing
    );
    for (stopped, stops) in [("yes", true), ("False", false), ("TRUE", true), ("", false)] {
        facts.reset_fault_switch(&[
            switch("another", json!({"stopped": "true"})),
            switch(CONFIG_MAP_FAULTS, json!({"stopped": stopped})),
        ]);
        assert_eq!(facts.faults_stopped.is_some(), stops, "{stopped:?}");
    }
    facts.apply_fault_switch(&stopped);
    assert_eq!(facts.delete_fault_switch(&stopped), Change::Compile);
    assert_eq!(facts.faults_stopped, None);
    facts.apply_fault_switch(&stopped);
    assert_eq!(facts.reset_fault_switch(&[]), Change::Compile);
}
