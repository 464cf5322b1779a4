//! The subscriber against a scripted hub over real gRPC and TLS.

mod ageing;
mod changes;
mod ending;
mod policies;
mod questions;

use std::time::{Duration, SystemTime};

use portolan_wire::v1;
use portolan_wire::v1::resource::Body;
use portolan_wire::v1::router_message::Kind as In;
use portolan_wire::v1::router_update::Kind as Out;
use tonic::Status;

use super::HubState;
use super::scripted::{Client, HubSession, ScriptedHub};
use crate::resource::access::{Access, MemberAnswer, MemberApi};
use crate::resource::queues::Turn;
use crate::resource::routing::RoutingStore;
use crate::resource::state::StateFile;
use crate::value::check::Check;
use crate::value::fault::Fault;
use crate::value::snapshot::build::Transaction;
use crate::value::snapshot::{Binding, CallerKey, told};

const CANARY: &str = "canary-5d1c";
const PREFIX: &str = "ctrlmesh.kusionstack.io/";

fn resource(version: &str, body: Body) -> v1::Resource {
    v1::Resource {
        version: version.to_owned(),
        body: Some(body),
    }
}

fn target(cluster: &str, url: &str) -> v1::Resource {
    let endpoints = vec![v1::Endpoint {
        url: url.to_owned(),
        ..v1::Endpoint::default()
    }];
    let target = v1::Target {
        cluster: cluster.to_owned(),
        endpoints,
        ..v1::Target::default()
    };
    resource(&format!("target-{url}"), Body::Target(target))
}

fn credential(cluster: &str) -> v1::Resource {
    let credential = told::credential(cluster, CANARY);
    resource("credential", Body::Credential(credential))
}

/// The rules of shard `ns/<shard>` with east as its member; an empty label prefix makes them bad.
fn rules(shard: &str, label_prefix: &str) -> v1::Resource {
    let rules = v1::Shard {
        name: format!("ns/{shard}"),
        primary_cluster: "east".to_owned(),
        label_prefix: label_prefix.to_owned(),
        members: vec![v1::ShardMember {
            cluster: "east".to_owned(),
            ..v1::ShardMember::default()
        }],
        ..v1::Shard::default()
    };
    resource(&format!("rules-{shard}"), Body::Shard(rules))
}

/// What shard `ns/<shard>` owns in east: ns-a, in this state.
fn owned(shard: &str, state: v1::GrantState) -> v1::Resource {
    let grant = v1::NamespaceGrant {
        namespace: "ns-a".to_owned(),
        owner_count: 1,
        fenced: false,
        vacant: false,
        state: state.into(),
        view_revision: 1,
    };
    let owned = v1::Ownership {
        cluster: "east".to_owned(),
        shard: format!("ns/{shard}"),
        namespaces: vec![grant],
        incarnation: "first".to_owned(),
        ..v1::Ownership::default()
    };
    resource(state.as_str_name(), Body::Ownership(owned))
}

/// A caller of the shard `ns/<shard>`; an empty ServiceAccount makes it bad.
fn caller(uid: &str, shard: &str, service_account: &str) -> v1::Resource {
    let view = v1::CallerView {
        home_cluster: "east".to_owned(),
        pod_uid: uid.to_owned(),
        namespace: "ns".to_owned(),
        pod: "operator-0".to_owned(),
        service_account: service_account.to_owned(),
        shards: vec![format!("ns/{shard}")],
        created_unix_seconds: None,
        writes_closed: None,
        policies: Vec::new(),
    };
    resource(&format!("caller-{shard}"), Body::CallerView(view))
}

fn everything() -> Vec<v1::Resource> {
    vec![
        target("east", "https://127.0.0.1:1"),
        credential("east"),
        rules("a", PREFIX),
        owned("a", v1::GrantState::Granted),
        caller("u1", "a", "operator"),
    ]
}

fn removed(kind: v1::ResourceKind, name: &str) -> v1::ResourceRef {
    v1::ResourceRef {
        kind: kind.into(),
        name: name.to_owned(),
    }
}

fn shard_of(client: &Client, uid: &str) -> Option<String> {
    let key = CallerKey {
        home_cluster: "east".into(),
        pod_uid: uid.into(),
    };
    match &client.routing.load().snapshot.callers.get(&key)?.binding {
        Binding::One(shard) => Some(shard.config.to_string()),
        other => panic!("{other:?}"),
    }
}

async fn connected() -> (ScriptedHub, Client, tempfile::TempDir) {
    let (hub, folder) = (ScriptedHub::start().await, tempfile::tempdir().unwrap());
    let client = Client::new().enrolled(&hub.authority);
    client.subscribe(client.link(&hub.authority, hub.address), folder.path());
    (hub, client, folder)
}

#[tokio::test]
async fn a_transaction_is_swapped_in_whole_and_acked() {
    let (mut hub, client, _folder) = connected().await;
    assert!(!client.readiness.is_ready());
    let mut session = hub.session().await;
    assert_eq!(
        (session.hello.protocol, session.hello.known.len()),
        (portolan_wire::protocol::PROTOCOL, 0)
    );
    assert_eq!(session.peer, "portolan:router:gateway");
    let mut generations = client.routing.subscribe();
    assert_eq!(
        session.push(7, everything(), Vec::new()).await,
        In::Ack(v1::Ack { nonce: 7 })
    );
    assert!(client.readiness.is_ready());
    assert_eq!(*generations.borrow_and_update(), 1, "one swap");
    assert_eq!(shard_of(&client, "u1").as_deref(), Some("ns/a"));
    assert!(client.routing.load().upstreams.get("east").is_some());

    let gone = removed(v1::ResourceKind::CallerView, "east/u1");
    assert_eq!(
        session.push(8, Vec::new(), vec![gone]).await,
        In::Ack(v1::Ack { nonce: 8 })
    );
    assert_eq!(shard_of(&client, "u1"), None);
    client.stop().await;
}

#[tokio::test]
async fn every_bad_entry_keeps_its_last_good_and_the_rest_comes_in() {
    let (mut hub, client, _folder) = connected().await;
    let mut session = hub.session().await;
    session.push(1, everything(), Vec::new()).await;
    let shard_b = [rules("b", PREFIX), owned("b", v1::GrantState::Granted)];
    session.push(2, shard_b.to_vec(), Vec::new()).await;

    let bad = vec![
        caller("u1", "b", ""),
        target("east", "http://insecure"),
        rules("a", ""),
        caller("u2", "b", "operator"),
    ];
    let In::Nack(nack) = session.push(3, bad, Vec::new()).await else {
        panic!("not a NACK")
    };
    let refused: Vec<_> = nack
        .rejected
        .iter()
        .map(|refused| (refused.r#ref.as_ref().unwrap().name.as_str(), refused.version.as_str()))
        .collect();
    assert_eq!(
        refused,
        [
            ("east/u1", "caller-b"),
            ("east", "target-http://insecure"),
            ("ns/a", "rules-a")
        ]
    );
    assert!(nack.rejected[0].reason.contains("service_account"));
    assert_eq!(shard_of(&client, "u1").as_deref(), Some("ns/a"));
    assert_eq!(shard_of(&client, "u2").as_deref(), Some("ns/b"));
    assert_eq!(
        client.routing.load().snapshot.targets["east"].version,
        "target-https://127.0.0.1:1"
    );
    client.stop().await;
}

#[tokio::test]
async fn a_restart_without_the_hub_serves_the_last_good_state() {
    let (mut hub, client, folder) = connected().await;
    let mut session = hub.session().await;
    session.push(1, everything(), Vec::new()).await;
    // Refused entries must not get into the file in place of good ones.
    session.push(2, vec![caller("u1", "b", "")], Vec::new()).await;
    drop(session);
    client.stop().await;
    let address = hub.address;
    let authority = hub.stop().await;

    let client = Client::new().enrolled(&authority);
    client.subscribe(client.link(&authority, address), folder.path());
    assert!(client.readiness.is_ready(), "ready before the hub is heard");
    assert_eq!(shard_of(&client, "u1").as_deref(), Some("ns/a"));
    let snapshot = client.routing.load().snapshot.clone();
    let kept = &snapshot.gateway_credential("east").unwrap().bearer;
    assert_eq!(*kept, format!("Bearer {CANARY}"), "tokens are kept too");

    // And when the hub is back, only differences need to be sent.
    let mut hub = ScriptedHub::start_at(authority, &address.to_string()).await;
    let session = hub.session().await;
    let hello = &session.hello;
    assert_eq!(
        (hello.seen_incarnation.as_str(), hello.seen_view_revision),
        ("first", 1)
    );
    let mut known: Vec<_> = hello.known.iter().map(|known| known.version.as_str()).collect();
    known.sort_unstable();
    assert_eq!(
        known,
        [
            "GRANT_STATE_GRANTED",
            "caller-a",
            "credential",
            "rules-a",
            "target-https://127.0.0.1:1"
        ]
    );
    client.stop().await;
}

/// Shard a with a namespace to write to.
fn holder() -> v1::Resource {
    owned("a", v1::GrantState::Granted)
}

fn releasing() -> v1::Resource {
    owned("a", v1::GrantState::Releasing)
}

fn kept(folder: &std::path::Path) -> Vec<String> {
    let resources = StateFile::in_folder(folder).load().unwrap().unwrap().resources;
    resources.into_iter().map(|resource| resource.version).collect()
}

#[tokio::test]
async fn what_is_released_is_on_disk_before_the_hub_hears_so() {
    let (mut hub, client, folder) = connected().await;
    let mut session = hub.session().await;
    let all = vec![target("east", "https://127.0.0.1:1"), holder()];
    session.push(1, all, Vec::new()).await;
    session.push(2, vec![releasing()], Vec::new()).await;
    assert!(kept(folder.path()).contains(&releasing().version));
    session.push(3, vec![holder()], Vec::new()).await;
    let gone = removed(v1::ResourceKind::Ownership, "east/ns/a");
    session.push(4, Vec::new(), vec![gone]).await;
    assert_eq!(kept(folder.path()), ["target-https://127.0.0.1:1"]);
    client.stop().await;
}

/// The state file of a folder that is gone, as of a disk that is full, once nothing writes there any more.
async fn unwritable(folder: &std::path::Path) {
    // What widens is acknowledged beside the write, which must not meet the removal.
    while StateFile::in_folder(folder).load().ok().flatten().is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    std::fs::remove_dir_all(folder).unwrap();
}

fn unsaved(nonce: u64) -> In {
    let rejected = Vec::new();
    In::Unsaved(v1::Unsaved { nonce, rejected })
}

/// Whether callers of shard a may use the explicit view.
fn sees_members(client: &Client) -> bool {
    let key = CallerKey {
        home_cluster: "east".into(),
        pod_uid: "u1".into(),
    };
    match &client.routing.load().snapshot.callers[&key].binding {
        Binding::One(shard) => shard.explicit_view,
        other => panic!("{other:?}"),
    }
}

fn rules_with(explicit_view: bool) -> v1::Resource {
    let mut rules = rules("a", PREFIX);
    rules.version = format!("explicit view {explicit_view}");
    if let Some(Body::Shard(shard)) = &mut rules.body {
        shard.explicit_view = explicit_view;
    }
    rules
}

#[tokio::test]
async fn whatever_narrows_is_on_disk_before_the_hub_hears_so() {
    let (mut hub, client, folder) = connected().await;
    let mut session = hub.session().await;
    let mut all = everything();
    all[2] = rules_with(true);
    session.push(1, all, Vec::new()).await;
    let identity = |accounts: &[&str]| {
        let identity = v1::MemberIdentity {
            cluster: "east".to_owned(),
            allowed_service_accounts: accounts.iter().map(|one| (*one).to_owned()).collect(),
            ..v1::MemberIdentity::default()
        };
        resource(&format!("identity {accounts:?}"), Body::MemberIdentity(identity))
    };
    let withdrawn = v1::Target {
        cluster: "east".to_owned(),
        withdrawn: true,
        ..v1::Target::default()
    };
    for (nonce, narrower) in [
        rules_with(false),
        identity(&["ns/operator", "ns/other"]),
        identity(&["ns/operator"]),
        resource("withdrawn", Body::Target(withdrawn)),
    ]
    .into_iter()
    .enumerate()
    {
        let (nonce, version) = (nonce as u64 + 2, narrower.version.clone());
        let answer = session.push(nonce, vec![narrower], Vec::new()).await;
        assert_eq!(answer, In::Ack(v1::Ack { nonce }), "{version}");
        assert!(kept(folder.path()).contains(&version), "{version}");
    }
    client.stop().await;
}

#[tokio::test]
async fn what_cannot_be_written_is_in_force_and_not_acknowledged() {
    let (mut hub, client, folder) = connected().await;
    let mut session = hub.session().await;
    let mut all = everything();
    all[2] = rules_with(true);
    session.push(1, all, Vec::new()).await;
    unwritable(folder.path()).await;
    assert!(sees_members(&client));
    assert_eq!(session.push(2, vec![rules_with(false)], Vec::new()).await, unsaved(2));
    assert!(!sees_members(&client), "in force all the same");
    let check = || {
        let checks = client.readiness.checks().into_iter();
        let check = checks.into_iter().find(|check| check.name == "state-file");
        check.unwrap().waits_for
    };
    assert!(client.readiness.is_ready() && check().is_some());
    // And so is what comes after it, on the same stream.
    assert_eq!(session.push(3, vec![releasing()], Vec::new()).await, unsaved(3));
    // It is acknowledged with all before it, without another word of the hub.
    std::fs::create_dir_all(folder.path()).unwrap();
    assert_eq!(session.receive().await, In::Ack(v1::Ack { nonce: 3 }));
    let kept = kept(folder.path());
    assert!(kept.contains(&rules_with(false).version) && kept.contains(&releasing().version));
    assert_eq!(check(), None);
    client.stop().await;
}

#[tokio::test]
async fn what_is_not_on_disk_is_told_again_on_the_next_stream() {
    let (mut hub, client, folder) = connected().await;
    let mut session = hub.session().await;
    session.push(1, everything(), Vec::new()).await;
    unwritable(folder.path()).await;
    let gone = removed(v1::ResourceKind::CallerView, "east/u1");
    assert_eq!(session.push(2, vec![releasing()], vec![gone.clone()]).await, unsaved(2));
    session.end(Status::unavailable("restarting")).await;
    let mut second = hub.session().await;
    let known = &second.hello.known;
    let version = |name: &str| known.iter().find(|one| one.r#ref.as_ref().unwrap().name == name);
    let versions = ["east/ns/a", "east/u1", "ns/a"].map(|name| version(name).unwrap().version.as_str());
    assert_eq!(versions, ["", "", "rules-a"]);
    // What it holds by now is the same, and is no more on disk than before.
    assert_eq!(second.push(1, vec![releasing()], vec![gone]).await, unsaved(1));
    std::fs::create_dir_all(folder.path()).unwrap();
    assert_eq!(second.receive().await, In::Ack(v1::Ack { nonce: 1 }));
    client.stop().await;
}

#[tokio::test]
async fn a_state_that_could_not_be_written_is_written_later() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let routing = RoutingStore::new(Duration::from_secs(1), portolan_runtime::Tasks::new());
    let mut state = HubState::new(routing, &missing);
    state.apply(Transaction {
        upserted: vec![target("east", "https://127.0.0.1:1")],
        removed: Vec::new(),
    });
    state.save_if_changed().await;
    std::fs::create_dir(&missing).unwrap();
    tokio::time::timeout(Duration::from_mins(1), state.save_due())
        .await
        .unwrap();
    state.save_if_changed().await;
    assert!(StateFile::in_folder(&missing).load().unwrap().is_some());
}

#[tokio::test]
async fn a_term_that_could_not_be_written_is_written_later() {
    let folder = tempfile::tempdir().unwrap();
    let routing = RoutingStore::new(Duration::from_secs(1), portolan_runtime::Tasks::new());
    let mut state = HubState::new(routing, folder.path());
    // Its file cannot be replaced while a folder is in its place; the state file can.
    std::fs::create_dir(folder.path().join("term")).unwrap();
    state.hear_term(7).unwrap();
    assert!(!state.secure().await);
    std::fs::remove_dir(folder.path().join("term")).unwrap();
    tokio::time::timeout(Duration::from_mins(1), state.save_due())
        .await
        .unwrap();
    state.save_if_changed().await;
    assert!(state.is_secure());
}

#[tokio::test]
async fn a_broken_stream_is_opened_again_and_serving_goes_on() {
    let (mut hub, client, _folder) = connected().await;
    let mut session = hub.session().await;
    session.push(1, everything(), Vec::new()).await;
    // Half a transaction is forgotten with its stream.
    session.send(Out::Resource(caller("u9", "a", "operator"))).await;
    session.end(Status::unavailable("restarting")).await;
    let mut session = hub.session().await;
    assert_eq!(session.hello.known.len(), 5);
    assert_eq!(
        session.push(1, vec![caller("u2", "a", "operator")], Vec::new()).await,
        In::Ack(v1::Ack { nonce: 1 })
    );
    assert_eq!(
        (shard_of(&client, "u9"), shard_of(&client, "u1").is_some()),
        (None, true)
    );
    client.stop().await;
}

#[tokio::test]
async fn a_renewed_identity_opens_a_new_stream() {
    let (mut hub, client, _folder) = connected().await;
    let first = hub.session().await;
    let client = client.enrolled(&hub.authority);
    let second = hub.session().await;
    assert_eq!(first.peer, second.peer);
    client.stop().await;
}

/// The next report of breakers: one of policies may come before it.
async fn breakers(session: &mut HubSession) -> v1::BreakerReport {
    loop {
        match session.any().await {
            In::Breakers(report) => return report,
            In::Policies(_) | In::HeldLocks(_) | In::Replicas(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn breakers_are_reported_after_hello_and_when_the_members_change() {
    let (mut hub, client, _folder) = connected().await;
    let mut session = hub.session().await;
    assert_eq!(breakers(&mut session).await.breakers, []);
    session.push(1, everything(), Vec::new()).await;
    let report = match session.reports.pop() {
        Some(report) => report,
        None => breakers(&mut session).await,
    };
    let states: Vec<_> = report
        .breakers
        .iter()
        .map(|one| (one.cluster.as_str(), one.traffic_class.as_str(), one.state.as_str()))
        .collect();
    assert_eq!(
        states,
        [
            ("east", "unary", "closed"),
            ("east", "list", "closed"),
            ("east", "watch", "closed"),
            ("east", "upgrade", "closed"),
            ("east", "token-review", "closed")
        ]
    );
    client.stop().await;
}

#[tokio::test]
async fn no_token_is_in_the_log_or_on_configz() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let (mut hub, client, _folder) = connected().await;
    let mut session = hub.session().await;
    // An event that another test met for the first time just as this one began to listen is else heard by nobody.
    tracing::callsite::rebuild_interest_cache();
    session.push(1, everything(), Vec::new()).await;
    // A credential that is refused, with a token that cannot stand in a header.
    let spoilt = told::credential("east", &format!("{CANARY}\n"));
    let In::Nack(nack) = session
        .push(2, vec![resource("spoilt", Body::Credential(spoilt))], Vec::new())
        .await
    else {
        panic!("not a NACK")
    };
    let snapshot = client.routing.load().snapshot.clone();
    let told = [
        format!("{nack:?}"),
        format!("{snapshot:?}"),
        snapshot.configz().to_string(),
    ];
    client.stop().await;
    for text in told.iter().chain([&log.text()]) {
        assert!(!text.contains("canary"), "{text}");
    }
    assert!(log.text().contains("swapped"), "the log was looked at");
}

#[derive(Clone, Default)]
struct Log(std::sync::Arc<parking_lot::Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
