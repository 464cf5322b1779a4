//! Each fault for real, and the alerts that it is to raise, judged by `promtool`: `make alerts`.
//!
//! What no test can make cheaply is [`NOT_MADE`], and tried by invented series alone (`alerts_test.yaml`).

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use futures::future::join_all;
use http::Method;
use http::Response;
use hyper::body::Incoming;
use kube::api::{Api, DeleteParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use portolan_testbed::{Fault, eventually};
use portolan_tests::daemon::Daemon;
use portolan_tests::door::{Door, Line, request};
use portolan_tests::programs::program;
use serde_json::json;

use crate::exposed::classic;
use crate::expressions::alerts;
use crate::recorded::Recorded;
use crate::{EAST, Ground, PROGRAMS, WEST, folder, ground};

/// A silent watch, late fences, a blocked handover, entries that a router refuses (the hub refuses them first), missing labels, a
/// mint that fails, members with one key, a panic; waits and load of minutes, a member that has several endpoints, and a
/// router that keeps a share after it was cut off; a hub of which no replica leads.
const NOT_MADE: [&str; 13] = [
    "PortolanNobodyLeads",
    "PortolanWatchSilent",
    "PortolanFencesLate",
    "PortolanHandoverBlocked",
    "PortolanRouterRefuses",
    "PortolanLabelsBehind",
    "PortolanMintFails",
    "PortolanConflictingKeys",
    "PortolanPanic",
    "PortolanQueuesLong",
    "PortolanRouterLoaded",
    "PortolanEndpointEjected",
    "PortolanSharesWithheld",
];
/// Before each fault all is well for so many minutes: longer than any rule waits.
const WELL: u32 = 20;

/// Some requests of the caller, whatever comes of them.
async fn work(door: &Door) {
    for path in [EAST, WEST, EAST, WEST] {
        let _ = door.get(path, &[]).await;
    }
}

/// A record that begins with a fleet that is well and at work.
async fn well(ground: &Ground, door: &Door, name: &'static str) -> Recorded {
    ground.is_whole().await;
    let mut record = Recorded::new(name);
    for _ in 0..3 {
        work(door).await;
        record.look(ground).await;
    }
    record.go_on(WELL);
    record
}

/// Looks while the caller works, until the metric has reached the value, and once more.
async fn until(ground: &Ground, door: &Door, record: &mut Recorded, reached: impl Fn(&Recorded) -> bool) {
    let shared = tokio::sync::Mutex::new(record);
    eventually("the metric tells of the fault", || async {
        work(door).await;
        let mut record = shared.lock().await;
        record.look(ground).await;
        reached(&record)
    })
    .await;
    work(door).await;
    shared.into_inner().look(ground).await;
}

/// A merged watch over both members.
async fn watch(door: &Door, version: &str) -> (Line, Response<Incoming>) {
    let line = door.open().await.unwrap();
    let path = format!("/api/v1/configmaps?watch=true&resourceVersion={version}&allowWatchBookmarks=true");
    let answer = line.send(request(Method::GET, &path, &[], &[]).unwrap()).await.unwrap();
    (line, answer)
}

/// The member swallows everything, and is slow before that.
async fn member(ground: &Ground, door: &Door, tests: &mut Vec<String>) {
    let _watch = watch(door, "0").await;
    let mut record = well(ground, door, "west is a black hole").await;
    let quiet = record.now();
    ground.world.cluster("west").fault(Fault::Blackhole).await.unwrap();
    until(ground, door, &mut record, |record| {
        record.any("portolan_router_watch_legs", "state=\"held\"", 1.0)
            && record.any("portolan_router_breaker_state", "unary", 2.0)
    })
    .await;
    tests.push(record.test(
        &["PortolanMemberAway", "PortolanMemberErrors", "PortolanLegsHeld"],
        quiet,
    ));

    let mut record = well(ground, door, "west is slow").await;
    let quiet = record.now();
    ground
        .world
        .cluster("west")
        .fault(Fault::Delay(Duration::from_millis(800)))
        .await
        .unwrap();
    for _ in 0..2 {
        work(door).await;
        record.look(ground).await;
    }
    tests.push(record.test(&["PortolanMemberSlow"], quiet));

    let mut record = well(ground, door, "west's API server is gone").await;
    let quiet = record.now();
    ground.world.cluster("west").kill().await.unwrap();
    until(ground, door, &mut record, |record| {
        record.any("portolan_agent_member_api_ready", "agent-west", 0.0)
    })
    .await;
    tests.push(record.test(&["PortolanMemberNotReady"], quiet));
    ground.world.cluster("west").restart().await.unwrap();
}

/// Hub and agent go away, and are this process's own from then on.
async fn programs(ground: &Ground, door: &Door, tests: &mut Vec<String>) -> [Daemon; 2] {
    let fleet = &ground.world.fleet;
    let mut record = well(ground, door, "the agent of west is gone").await;
    let quiet = record.now();
    let mut agent = fleet.take_over("agent-west").await.unwrap();
    agent.kill().await.unwrap();
    until(ground, door, &mut record, |record| {
        record.any("portolan_hub_agent_connected", "west", 0.0)
            && record.last("up") == Some(0.0)
            && record.rises("portolan_hub_coverage_age_seconds", "west")
    })
    .await;
    tests.push(record.test(
        &["PortolanAgentAway", "PortolanCoverageOld", "PortolanProgramGone"],
        quiet,
    ));
    agent.start_again().await.unwrap();

    let mut record = well(ground, door, "the hub is gone").await;
    let quiet = record.now();
    let mut hub = fleet.take_over("hub").await.unwrap();
    hub.kill().await.unwrap();
    until(ground, door, &mut record, |record| {
        record.last("portolan_router_hub_connected") == Some(0.0)
            && record.last("portolan_router_hub_config_age_seconds") > Some(1.0)
    })
    .await;
    tests.push(record.test(&["PortolanHubAway", "PortolanConfigOld", "PortolanProgramGone"], quiet));
    hub.start_again().await.unwrap();
    hub.ready().await;
    [agent, hub]
}

/// What the hub cannot write.
async fn control(ground: &Ground, door: &Door, tests: &mut Vec<String>) {
    let client = ground.world.cluster("hub").client().await.unwrap();
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingWebhookConfiguration",
    ));
    let webhooks: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let mut record = well(ground, door, "the ledger cannot be written").await;
    let quiet = record.now();
    let refusing = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "nobody-there"},
        "webhooks": [{
            "name": "nobody.there.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
            "timeoutSeconds": 1, "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}],
        }],
    });
    webhooks
        .create(&PostParams::default(), &serde_json::from_value(refusing).unwrap())
        .await
        .unwrap();
    let configmaps: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(client, "default");
    eventually("ConfigMaps are refused", || async {
        let made = serde_json::from_value(json!({"metadata": {"generateName": "x-"}})).unwrap();
        configmaps.create(&PostParams::default(), &made).await.is_err()
    })
    .await;
    ground.world.namespace("west", "team-c").await.unwrap();
    let clusters =
        json!([{"name": "east", "namespaces": ["team-a"]}, {"name": "west", "namespaces": ["team-b", "team-c"]}]);
    ground.world.own("alpha", clusters).await.unwrap();
    until(ground, door, &mut record, |record| {
        record.last("portolan_hub_ledger_errors_total") > Some(0.0)
    })
    .await;
    webhooks.delete("nobody-there", &DeleteParams::default()).await.unwrap();
    tests.push(record.test(&["PortolanLedgerNotWritten"], quiet));
}

/// Clients that come with positions of nobody's, and more than there is room for.
async fn callers(ground: &Ground, door: &Door, tests: &mut Vec<String>) {
    let mut record = well(ground, door, "positions that nobody knows").await;
    let quiet = record.now();
    for _ in 0..6 {
        join_all((0..8).map(|_| watch(door, "1"))).await;
        record.look(ground).await;
    }
    tests.push(record.test(&["PortolanRelists"], quiet));

    let mut record = well(ground, door, "more requests than there is room for").await;
    let quiet = record.now();
    ground
        .world
        .cluster("west")
        .fault(Fault::Delay(Duration::from_millis(200)))
        .await
        .unwrap();
    for _ in 0..3 {
        join_all((0..100).map(|_| door.get(WEST, &[]))).await;
        record.look(ground).await;
    }
    tests.push(record.test(&["PortolanSheds"], quiet));
}

/// Nothing is renewed, and the clock goes on: the same scrapes, later.
async fn ends(ground: &Ground, tests: &mut Vec<String>) {
    const HOUR: f64 = 3600.0;
    for (alert, metric, before) in [
        (
            "PortolanTokenEnding",
            "portolan_router_credential_not_after_seconds",
            6.0,
        ),
        (
            "PortolanIdentityEnding",
            "portolan_router_hub_identity_not_after_seconds",
            48.0,
        ),
        (
            "PortolanIdentityEnding",
            "portolan_agent_hub_identity_expiry_timestamp_seconds",
            48.0,
        ),
        (
            "PortolanIdentityEnding",
            "portolan_hub_identity_not_after_seconds",
            7.0 * 24.0,
        ),
        ("PortolanCaEnding", "portolan_hub_ca_not_after_seconds", 90.0 * 24.0),
    ] {
        let mut record = Recorded::new(metric);
        record.look(ground).await;
        record.look(ground).await;
        record.keep(metric);
        let end = record.last(metric).unwrap();
        // Half an hour before it is due.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "seconds since the epoch"
        )]
        let began = (end - (before + 0.5) * HOUR) as u64;
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        assert!(began > now.as_secs(), "{metric} would fire now");
        tests.push(record.at(began).test(&[alert], 20));
    }
}

/// `promtool` with these arguments, and what it is to read.
fn promtool(arguments: &[&str], input: &str) {
    let mut asked = Command::new(program("promtool").unwrap());
    let mut child = asked.args(arguments).stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
    assert!(
        child.wait().unwrap().success(),
        "promtool {arguments:?}: see what it said, above"
    );
}

/// Rule tests of real scrapes, kept beside the program for who wants to look.
fn judge(tests: &[String]) {
    let rules = fs::canonicalize(folder().join("alerts.yaml")).unwrap();
    let head = format!("rule_files: ['{}']\nevaluation_interval: 1m\ntests:\n", rules.display());
    let file = Path::new(&program("promtool").unwrap()).with_file_name("alerts_of_faults.yaml");
    fs::write(&file, head + &tests.concat()).unwrap();
    promtool(&["test", "rules", file.to_str().unwrap()], "");
}

#[test]
fn each_alert_is_made_for_real_or_is_excused() {
    let here = include_str!("firing.rs");
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        let excused = NOT_MADE.contains(&name);
        let named = here.matches(&format!("{name:?}")).count();
        assert!(
            if excused { named == 1 } else { named > 0 },
            "{name} is neither made for real nor excused, or both"
        );
    }
    for name in NOT_MADE {
        assert!(
            alerts().iter().any(|alert| alert["alert"] == *name),
            "{name} is no alert"
        );
    }
}

#[tokio::test]
#[ignore = "needs promtool: make alerts"]
async fn alerts_fire_under_the_fault_that_they_are_for() {
    let mut ground = ground().await;
    let door = ground.world.merged_door("alpha").await.unwrap();
    for (name, _) in PROGRAMS {
        promtool(&["check", "metrics"], &classic(&ground.told(name).await.unwrap()));
    }
    let mut tests = Vec::new();
    ends(&ground, &mut tests).await;
    callers(&ground, &door, &mut tests).await;
    control(&ground, &door, &mut tests).await;
    member(&ground, &door, &mut tests).await;
    let begun_again = programs(&ground, &door, &mut tests).await;
    ground.begun_again.extend(begun_again);
    judge(&tests);
}
