//! What the hub is asked, how often, and for how long who made a Namespace waits.

use futures::future::join_all;
use portolan_wire::v1;

use super::*;
use crate::value::snapshot::told;

/// Shard `ops/blue` with these namespaces of east.
fn snapshot(generation: u64, namespaces: &[&str]) -> Snapshot {
    let grant = |name: &&str| v1::NamespaceGrant {
        namespace: (*name).to_owned(),
        state: v1::GrantState::Granted.into(),
        ..v1::NamespaceGrant::default()
    };
    let shard = told::Shard {
        rules: v1::Shard {
            primary_cluster: "east".into(),
            label_prefix: "ctrlmesh.kusionstack.io/".into(),
            ..v1::Shard::default()
        },
        members: vec![told::MemberGrant {
            cluster: "east".into(),
            namespaces: namespaces.iter().map(grant).collect(),
            ..told::MemberGrant::default()
        }],
    };
    let view = told::CallerView {
        home_cluster: "east".into(),
        pod_uid: "u1".into(),
        namespace: "ops".into(),
        pod: "operator-0".into(),
        service_account: "operator".into(),
        shards: vec!["ops/blue".into()],
        created_unix_seconds: None,
        writes_closed: None,
        policies: Vec::new(),
        shard: Some(shard),
    };
    let mut snapshot = told::upsert(&Snapshot::default(), "1", view.bodies()).snapshot;
    snapshot.generation = generation;
    snapshot
}

fn view(routing: &RoutingStore) -> Arc<CallerView> {
    routing.load().snapshot.callers.values().next().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn what_the_hub_has_granted_is_asked_for_once_and_a_no_holds_a_second() {
    let routing = RoutingStore::of(snapshot(1, &[]));
    let (grants, view) = (Grants::default(), view(&routing));
    assert!(!grants.ask(&routing, &view, "other").await, "no stream");
    let mut carrier = routing.catch_up.carry();
    let answer = async {
        let question = carrier.next().await;
        routing.swap(snapshot(2, &["new"]));
        carrier.answered(question);
    };
    let asked = join_all((0..MOST_OF_A_CALLER).map(|_| grants.ask(&routing, &view, "new")));
    let (asked, ()) = tokio::join!(asked, answer);
    assert_eq!(asked, [true; MOST_OF_A_CALLER], "one question for all");

    let answer = async {
        let question = carrier.next().await;
        carrier.answered(question);
    };
    let (asked, ()) = tokio::join!(grants.ask(&routing, &view, "never"), answer);
    assert!(!asked);
    let at = Instant::now();
    assert!(!grants.ask(&routing, &view, "never").await);
    assert_eq!(at.elapsed(), Duration::ZERO, "nobody is asked");
    tokio::time::advance(NO_HOLDS).await;
    let at = Instant::now();
    assert!(!grants.ask(&routing, &view, "never").await, "the hub is silent");
    assert_eq!(at.elapsed(), ANSWERED_WITHIN);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_name_is_neither_asked_for_nor_kept() {
    let routing = RoutingStore::of(snapshot(1, &[]));
    let (grants, view) = (Grants::default(), view(&routing));
    let _hub = routing.catch_up.carry();
    let at = Instant::now();
    for name in ["", "A", "a/b", &"a".repeat(64), &"a".repeat(60_000)] {
        assert!(!grants.ask(&routing, &view, name).await);
    }
    assert!(at.elapsed() == Duration::ZERO && grants.noes.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_caller_holds_few_questions_open() {
    let routing = RoutingStore::of(snapshot(1, &[]));
    let (grants, view) = (Grants::default(), view(&routing));
    let _carrier = routing.catch_up.carry();
    let at = Instant::now();
    let all = (0..=MOST_OF_A_CALLER).map(|number| {
        let (grants, routing, view) = (&grants, &routing, &view);
        async move {
            grants.ask(routing, view, &format!("n{number}")).await;
            at.elapsed()
        }
    });
    let mut waited = join_all(all).await;
    waited.sort_unstable();
    assert_eq!((waited[0], waited[1]), (Duration::ZERO, ANSWERED_WITHIN));
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_was_made_is_waited_for() {
    let routing = RoutingStore::of(snapshot(1, &[]));
    let view = view(&routing);
    let told = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        routing.swap(snapshot(2, &["new"]));
    };
    let at = Instant::now();
    let (waited, ()) = tokio::join!(served(&routing, &view, "east", "new"), told);
    assert!(waited && at.elapsed() == Duration::from_millis(300));
    assert!(!served(&routing, &view, "west", "new").await, "of another member");
    assert_eq!(at.elapsed(), Duration::from_millis(300) + GRANTED_WITHIN);
}

/// What the router had is of the namespace that was there before: its epoch is over, and nothing that says it is let in.
#[tokio::test(start_paused = true)]
async fn a_namespace_that_was_made_again_is_not_served_by_what_was_known_of_the_one_before() {
    let grant = |owner_count, fenced, vacant| v1::NamespaceGrant {
        namespace: "again".to_owned(),
        owner_count,
        fenced,
        vacant,
        state: v1::GrantState::Granted.into(),
        ..v1::NamespaceGrant::default()
    };
    let with = |generation, grant: v1::NamespaceGrant| {
        let owned = v1::Ownership {
            cluster: "east".to_owned(),
            shard: "ops/blue".to_owned(),
            namespaces: vec![grant],
            ..v1::Ownership::default()
        };
        let body = v1::resource::Body::Ownership(owned);
        let mut next = told::upsert(&snapshot(generation, &["again"]), "2", [body]).snapshot;
        next.generation = generation;
        next
    };
    for (now, is_served) in [
        (grant(4, true, false), false),
        (grant(5, false, true), false),
        (grant(5, false, false), true),
        (grant(4, false, false), true),
        (grant(6, true, false), true),
    ] {
        let routing = RoutingStore::of(with(1, grant(4, true, false)));
        let view = view(&routing);
        routing.swap(with(2, now.clone()));
        assert_eq!(served(&routing, &view, "east", "again").await, is_served, "{now:?}");
    }
}
