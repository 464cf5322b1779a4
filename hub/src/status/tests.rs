//! What is written, how often, and to which object.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ApiResource, DynamicObject};
use kube::client::Body;
use portolan_crds::{MemberCluster, MemberClusterStatus, RouterStatus};
use portolan_wire::v1;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::*;
use crate::acks::RuleReport;
use crate::compile::{PolicyReach, Reached};
use crate::distribute::Published;
use crate::facts::{PolicyKind, PolicyName};

#[tokio::test]
async fn a_status_is_of_one_object_and_not_of_its_name() {
    let sent = Arc::new(parking_lot::Mutex::new(Vec::<Value>::new()));
    let seen = sent.clone();
    let accept = tower::service_fn(move |request: http::Request<Body>| {
        let seen = seen.clone();
        async move {
            let body = http_body_util::BodyExt::collect(request.into_body()).await.unwrap();
            seen.lock().push(serde_json::from_slice(&body.to_bytes()).unwrap());
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 409});
            let body = Body::from(status.to_string().into_bytes());
            Ok::<_, Infallible>(http::Response::builder().status(409).body(body).unwrap())
        }
    });
    let index = Arc::<Index>::default();
    let spec = json!({"spec": {}});
    let mut object = DynamicObject::new("east", &ApiResource::erase::<MemberCluster>(&())).data(spec);
    object.metadata.uid = Some("one".to_owned());
    index.write(|facts| facts.apply_member(&object));
    let (_worlds, published) = watch::channel(Some(Published::default()));
    let mut writer = StatusWriter::new(
        Client::new(accept, "default"),
        "system",
        index,
        Arc::default(),
        &Arbiter::default(),
    );
    let due = writer.due(&published, Look::AtAll).await;
    writer.write(due, &Metrics::default()).await;
    assert_eq!(sent.lock()[0]["metadata"], json!({"name": "east", "uid": "one"}));
}

/// Requests: the last word of each path, and the body.
type Sent = Arc<parking_lot::Mutex<Vec<(String, Value)>>>;

/// An API server that takes everything, and what it was sent.
fn recording() -> (Client, Sent) {
    let sent = Sent::default();
    let seen = sent.clone();
    let accept = tower::service_fn(move |request: http::Request<Body>| {
        let seen = seen.clone();
        async move {
            let what = request.uri().path().rsplit('/').next().unwrap().to_owned();
            let body = http_body_util::BodyExt::collect(request.into_body()).await.unwrap();
            let body: Value = serde_json::from_slice(&body.to_bytes()).unwrap();
            seen.lock().push((what, body.clone()));
            let body = Body::from(body.to_string().into_bytes());
            Ok::<_, Infallible>(http::Response::builder().status(201).body(body).unwrap())
        }
    });
    (Client::new(accept, "default"), sent)
}

/// A CircuitBreaker of this generation in facts.
fn edit(index: &Index, uid: &str, generation: i64) {
    let kind = PolicyKind::CircuitBreaker;
    let mut object = DynamicObject::new("calm", &kind.resource())
        .within("ops")
        .data(json!({"spec": {"selector": {}}}));
    object.metadata.uid = Some(uid.to_owned());
    object.metadata.generation = Some(generation);
    index.write(|facts| facts.apply_policy(kind, &object));
}

/// The world that knows it.
fn compiled(uid: &str, generation: i64) -> Published {
    let reach = PolicyReach {
        uid: uid.to_owned(),
        generation,
        standing: Standing::InForce,
        rules: None,
        callers: Reached::default(),
    };
    let name = PolicyName::new(PolicyKind::CircuitBreaker, "ops", "calm").unwrap();
    let world = World {
        policies: [(name, reach)].into(),
        ..World::default()
    };
    Published {
        world: Arc::new(world),
        ..Published::default()
    }
}

/// A CircuitBreaker in facts and world.
fn calm(index: &Index) -> Published {
    edit(index, "one", 1);
    compiled("one", 1)
}

#[tokio::test(start_paused = true)]
async fn edits_do_not_make_a_policy_be_written_more_often() {
    let (client, sent) = recording();
    let index = Arc::<Index>::default();
    let (worlds, published) = watch::channel(Some(calm(&index)));
    let mut writer = StatusWriter::new(client, "system", index.clone(), Arc::default(), &Arbiter::default());
    let mut pass = async || {
        let due = writer.due(&published, Look::AtAll).await;
        writer.write(due, &Metrics::default()).await;
        let sent = sent.lock().drain(..).collect::<Vec<_>>().into_iter();
        sent.filter(|(what, _)| what == "status").count()
    };
    assert_eq!(pass().await, 1);
    for generation in 2..6 {
        edit(&index, "one", generation);
        assert_eq!(pass().await, 0, "the world does not know it yet");
        tokio::time::advance(Duration::from_secs(1)).await;
        worlds.send_replace(Some(compiled("one", generation)));
        assert_eq!(pass().await, 0, "{generation}: too early");
    }
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(pass().await, 1);
    edit(&index, "two", 1);
    worlds.send_replace(Some(compiled("two", 1)));
    assert_eq!(pass().await, 1, "another object of the name");
}

#[tokio::test(start_paused = true)]
async fn a_policy_is_written_once_in_five_seconds_and_its_rules_are_told_once() {
    let (client, sent) = recording();
    let index = Arc::<Index>::default();
    let (_worlds, published) = watch::channel(Some(calm(&index)));
    let acks = Arc::<Acks>::default();
    acks.connected("r", RouterState::new(1, BTreeMap::new()));
    let mut writer = StatusWriter::new(client, "system", index, acks.clone(), &Arbiter::default());
    let mut pass = async |opened: bool| {
        let state = v1::RuleState {
            policy: "CircuitBreaker/ops/calm".to_owned(),
            rule: "all".to_owned(),
            opened,
            ..v1::RuleState::default()
        };
        let report = RuleReport {
            states: vec![state],
            ..RuleReport::default()
        };
        acks.policies_reported("r", 1, report);
        let due = writer.due(&published, Look::AtAll).await;
        writer.write(due, &Metrics::default()).await;
        let sent = sent.lock().drain(..).collect::<Vec<_>>().into_iter();
        let told = sent.map(|(what, body)| body["reason"].as_str().map_or(what, str::to_owned));
        told.collect::<Vec<_>>()
    };
    assert_eq!(pass(false).await, ["status", "InForce"]);
    for opened in [true, false, true] {
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(pass(opened).await.is_empty(), "too early");
    }
    tokio::time::advance(POLICY_PERIOD).await;
    assert_eq!(pass(true).await, ["status", "RuleOpened"]);
    tokio::time::advance(POLICY_PERIOD).await;
    assert_eq!(
        pass(true).await,
        ["status"],
        "no watch has brought it back: once more, and no Event"
    );
    tokio::time::advance(POLICY_PERIOD).await;
    assert_eq!(pass(false).await, ["status", "RuleClosed"]);
}

#[tokio::test(start_paused = true)]
async fn a_router_that_comes_back_and_reports_that_are_full_tell_of_nothing_that_did_not_happen() {
    let (client, sent) = recording();
    let index = Arc::<Index>::default();
    let (_worlds, published) = watch::channel(Some(calm(&index)));
    let acks = Arc::<Acks>::default();
    acks.connected("r", RouterState::new(1, BTreeMap::new()));
    let mut writer = StatusWriter::new(client, "system", index, acks.clone(), &Arbiter::default());
    let policy = "CircuitBreaker/ops/calm";
    let report = |rules: &[&str], left_out: u64| RuleReport {
        states: rules
            .iter()
            .map(|rule| v1::RuleState {
                policy: policy.to_owned(),
                rule: (*rule).to_owned(),
                opened: true,
                ..v1::RuleState::default()
            })
            .collect(),
        left_out: (left_out > 0)
            .then(|| (policy.to_owned(), left_out))
            .into_iter()
            .collect(),
        more_left_out: false,
    };
    let mut pass = async || {
        tokio::time::advance(POLICY_PERIOD).await;
        let due = writer.due(&published, Look::AtAll).await;
        writer.write(due, &Metrics::default()).await;
        let sent = sent.lock().drain(..).collect::<Vec<_>>().into_iter();
        let told = sent.filter_map(|(_, body)| {
            let (reason, action) = (body["reason"].as_str()?, body["action"].as_str()?);
            Some(format!("{reason} {action}"))
        });
        told.filter(|told| told.starts_with("Rule")).collect::<Vec<_>>()
    };
    acks.policies_reported("r", 1, report(&["all", "one"], 0));
    assert_eq!(pass().await, ["RuleOpened all r", "RuleOpened one r"]);
    // Its stream ends, and it comes back: before it has spoken nothing has closed.
    acks.update("r", 1, |state| state.left = Some(tokio::time::Instant::now()));
    acks.connected("r", RouterState::new(2, BTreeMap::new()));
    assert!(pass().await.is_empty());
    // One has no room in its report: that is not closed either, nor opened once there is room again.
    acks.policies_reported("r", 2, report(&["one"], 1));
    assert!(pass().await.is_empty());
    acks.policies_reported("r", 2, report(&["all", "one"], 0));
    assert!(pass().await.is_empty());
    acks.policies_reported("r", 2, report(&["one"], 0));
    assert_eq!(pass().await, ["RuleClosed all r"]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_status_is_not_sent_again_at_once() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let refuse = tower::service_fn(move |_: http::Request<Body>| {
        counted.fetch_add(1, Ordering::Relaxed);
        async {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 422});
            let body = Body::from(status.to_string().into_bytes());
            Ok::<_, Infallible>(http::Response::builder().status(422).body(body).unwrap())
        }
    });
    let index = Arc::<Index>::default();
    let object = DynamicObject::new("east", &ApiResource::erase::<MemberCluster>(&())).data(json!({"spec": {}}));
    index.write(|facts| facts.apply_member(&object));
    let (_worlds, published) = watch::channel(Some(Published::default()));
    let mut writer = StatusWriter::new(
        Client::new(refuse, "default"),
        "system",
        index,
        Arc::default(),
        &Arbiter::default(),
    );
    let mut pass = async || {
        let due = writer.due(&published, Look::AtAll).await;
        writer.write(due, &Metrics::default()).await;
        asked.load(Ordering::Relaxed)
    };
    assert_eq!((pass().await, pass().await), (1, 1));
    tokio::time::advance(crate::writer::REST).await;
    assert_eq!(pass().await, 2);
}

#[test]
fn figures_of_many_members_are_written_more_seldom() {
    let seconds = [0, 1, 166, 167, 200, 500, 1_000, 100_000].map(|members| figures_period(members).as_secs());
    assert_eq!(seconds, [10, 10, 10, 20, 20, 30, 60, 60]);
}

/// A minute that begins is no time at which all of them are written.
#[test]
fn figures_of_each_object_have_times_of_their_own() {
    let period = Duration::from_mins(1);
    let members: Vec<_> = (0..600)
        .map(|number| Object::Member(format!("member-{number}")))
        .collect();
    for second in 0..120 {
        let (at, next) = (Duration::from_secs(second), Duration::from_secs(second + 1));
        let due = members
            .iter()
            .filter(|member| member.turn(at, period) != member.turn(next, period))
            .count();
        assert!((1..40).contains(&due), "{due} of 600 in second {second}");
        let all = members
            .iter()
            .all(|member| member.turn(at + period, period) == member.turn(at, period) + 1);
        assert!(all, "each once in a minute");
    }
}

/// What changes all the time, and is worth a write in the object's next turn.
#[tokio::test(start_paused = true)]
async fn figures_wait_for_their_turn_and_all_else_does_not() {
    let (client, _) = recording();
    let writer = StatusWriter::new(client, "system", Arc::default(), Arc::default(), &Arbiter::default());
    let time = || Timestamp::from_second(1).ok().map(Time);
    let member = |change: fn(&mut MemberClusterStatus, Option<Time>)| {
        let mut status = MemberClusterStatus::default();
        change(&mut status, time());
        let object = Object::Member("east".to_owned());
        (object, Status::Member(Box::new(status)), Status::Member(Box::default()))
    };
    let router = |change: fn(&mut RouterStatus, Option<Time>)| {
        let mut status = RouterStatus::default();
        change(&mut status, time());
        let object = Object::Router("gateway".to_owned());
        (object, Status::Router(Box::new(status)), Status::Router(Box::default()))
    };
    for ((object, status, observed), is_figure) in [
        (member(|status, time| status.last_heartbeat = time), true),
        (member(|status, time| status.token_expiry = time), true),
        (member(|status, _| status.namespaces = Some(7)), false),
        (router(|status, time| status.last_seen = time), true),
        (router(|status, _| status.version = Some("2".to_owned())), false),
    ] {
        let wanted = Wanted {
            object,
            uid: "uid".to_owned(),
            status,
            observed: observed.clone(),
        };
        let written = Written {
            uid: "uid".to_owned(),
            status: observed,
            at: Instant::now(),
        };
        let is_due = || writer.is_due_by(Some(&written), &wanted);
        assert_eq!(is_due(), !is_figure, "{:?}", wanted.status);
        tokio::time::advance(FIGURES_PERIOD).await;
        assert!(is_due(), "{:?}", wanted.status);
    }
}
