//! What routers report of rules and faults, as the status shows it.

use super::*;
use crate::acks::RuleReport;

fn reported(states: impl Into<Vec<v1::RuleState>>) -> Arc<RuleReport> {
    Arc::new(RuleReport {
        states: states.into(),
        ..RuleReport::default()
    })
}

#[test]
fn the_worst_rules_come_first_by_caller_and_router() {
    let mut scene = Scene::new(CALM, slow());
    scene.router("r", Some("v3")).rules = reported([
        state("slow", "east/p", false, 9),
        state("slow", "east/q", true, 1),
        state("guard@east", "east/q", false, 0),
        state("slow", "east/gone", true, 99),
        state("shared", "", false, 2),
    ]);
    let status = scene.breaker();
    let targets: Vec<_> = status
        .target_status
        .iter()
        .map(|target| {
            let rules: Vec<_> = target
                .limiting_snapshots
                .iter()
                .map(|rule| rule.name.as_str())
                .collect();
            (
                target.pod_name.as_str(),
                target.cluster.as_str(),
                target.router.as_str(),
                rules,
            )
        })
        .collect();
    assert_eq!(
        targets,
        [
            ("pod-q", "east", "r", vec!["slow", "guard@east"]),
            ("pod-p", "east", "r", vec!["slow"]),
            ("", "", "r", vec!["shared"]),
        ]
    );
    assert_eq!(status.opened, Some(1));
    let slow = json!(status.target_status[0].limiting_snapshots[0]);
    assert_eq!(
        slow,
        json!({
            "name": "slow", "state": "Opened", "reason": "LimitExceeded", "lastTransitionTime": "1970-01-01T00:00:07Z",
            "refusedLastMinute": 1, "refusedTotal": 2, "tokens": 4,
        })
    );
    scene.routers.get_mut("r").unwrap().left = Some(Instant::now());
    assert!(
        scene.breaker().target_status.is_empty(),
        "of whom nobody waits for nothing is told"
    );
    scene.enrolled.insert("r".to_owned());
    assert_eq!(
        scene.breaker().target_status,
        status.target_status,
        "who is away may come back"
    );
}

#[test]
fn a_status_is_bounded_and_all_that_is_opened_is_counted() {
    let mut scene = Scene::new(CALM, slow());
    let rules = (0..900).map(|number| state(&format!("r{number}"), "east/p", number % 3 == 0, 1));
    let rules: Vec<_> = rules.collect();
    scene.router("r", Some("v3")).rules = reported(rules);
    let status = scene.breaker();
    let shown: usize = status
        .target_status
        .iter()
        .map(|target| target.limiting_snapshots.len())
        .sum();
    assert_eq!((shown, status.opened), (200, Some(300)));
    let all_opened = status.target_status[0]
        .limiting_snapshots
        .iter()
        .all(|rule| rule.state == portolan_crds::circuit_breaker::LimitingState::Opened);
    assert!(all_opened);
}

#[test]
fn what_was_injected_is_told_by_caller_and_router() {
    let mut scene = Scene::new(SHAKE, json!({"selector": {}}));
    let state = v1::RuleState {
        policy: SHAKE.to_owned(),
        ..state("late", "east/p", false, 3)
    };
    scene.router("r", Some("v3")).rules = reported([state]);
    let Some(PolicyStatus::Fault(status)) = scene.status() else {
        panic!("a FaultInjection")
    };
    assert_eq!(
        json!(status.target_status),
        json!([{"podName": "pod-p", "cluster": "east", "router": "r", "name": "late", "injectedLastMinute": 3, "injectedTotal": 6}])
    );
}

#[test]
fn what_reports_leave_out_is_counted() {
    let mut scene = Scene::new(CALM, slow());
    let report = |left_out| {
        Arc::new(RuleReport {
            states: vec![state("slow", "east/p", true, 1)],
            left_out: BTreeMap::from([(CALM.to_owned(), left_out)]),
            more_left_out: false,
        })
    };
    scene.router("r", Some("v3")).rules = report(249);
    scene.router("s", Some("v3")).rules = report(u64::MAX);
    assert_eq!(scene.breaker().opened, Some(i64::MAX));
    scene.router("s", Some("v3")).rules = reported([]);
    assert_eq!(scene.breaker().opened, Some(250));
}

#[test]
fn what_an_earlier_hub_counted_counts_until_all_routers_have_said_how_rules_stand() {
    let mut scene = Scene::new(CALM, slow());
    scene.router("r", Some("v3")).rules = reported([state("slow", "east/p", true, 1)]);
    let status = CircuitBreakerStatus {
        opened: Some(300),
        ..scene.breaker()
    };
    assert_eq!(scene.breaker().opened, Some(1));
    scene.object().status = PolicyStatus::Breaker(status);
    scene.enrolled.insert("r".to_owned());
    scene.routers.remove("r");
    assert_eq!(scene.breaker().opened, Some(300), "more than it shows");
    scene.router("r", Some("v3"));
    assert_eq!(scene.breaker().opened, Some(300), "it is back, and silent");
    scene.router("r", Some("v3")).told_rules = Some(Instant::now());
    assert_eq!(scene.breaker().opened, Some(0));
}

#[test]
fn what_a_status_says_of_who_is_not_heard_yet_stands() {
    let mut scene = Scene::new(CALM, slow());
    scene.router("r", Some("v3")).rules = reported([state("slow", "east/p", true, 1), state("shared", "", false, 2)]);
    let status = scene.breaker();
    scene.object().status = PolicyStatus::Breaker(status.clone());
    scene.enrolled.insert("r".to_owned());
    // Another hub, to which the router has not come back.
    scene.routers.remove("r");
    let away = scene.breaker();
    assert_eq!((&away.target_status, away.opened), (&status.target_status, Some(1)));
    // It comes back, and which callers there are is not known.
    let unknown = (ResourceKind::CallerView, "east".to_owned());
    scene.world.unknown.insert(unknown.clone());
    scene.router("r", Some("v3")).told_rules = Some(Instant::now());
    let unsure = scene.breaker();
    assert_eq!((unsure.target_status.len(), unsure.opened), (1, Some(1)));
    scene.world.unknown.remove(&unknown);
    assert_eq!(scene.breaker().opened, Some(0), "it said that nothing is");
    scene.enrolled.clear();
    scene.routers.remove("r");
    assert!(scene.breaker().target_status.is_empty(), "nobody waits for it");
}
