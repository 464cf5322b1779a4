//! Who mends what lags behind, who waits for a definition, what the hub is told, and how much of it is kept.

use http::HeaderMap;
use portolan_wire::v1;

use super::*;
use crate::value::classify::classify;
use crate::value::snapshot::{Snapshot, told};

const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/cs.a.b";

/// A Pod of this account, of shard `ops/blue`.
fn caller_of(account: &str) -> Caller {
    caller_in("ops/blue", account)
}

fn caller_in(shard: &str, account: &str) -> Caller {
    let rules = v1::Shard {
        primary_cluster: "east".to_owned(),
        label_prefix: "ctrlmesh.kusionstack.io/".to_owned(),
        ..v1::Shard::default()
    };
    let view = told::CallerView {
        home_cluster: "east".to_owned(),
        pod_uid: "u".to_owned(),
        namespace: "ops".to_owned(),
        pod: "operator-0".to_owned(),
        service_account: account.to_owned(),
        shards: vec![shard.to_owned()],
        policies: Vec::new(),
        created_unix_seconds: None,
        writes_closed: None,
        shard: Some(told::Shard {
            rules,
            members: Vec::new(),
        }),
    };
    let applied = told::upsert(&Snapshot::default(), "1", view.bodies());
    Caller::Pod(applied.snapshot.callers.values().next().unwrap().clone())
}

fn asked(path: &str) -> ApiRequest {
    let asked = classify(&Method::PATCH, &path.parse().unwrap(), &HeaderMap::new()).unwrap();
    let resource = asked.resource.clone().unwrap();
    patch_of(&asked, &resource, resource.name.as_deref().unwrap())
}

fn lagging() -> Arc<Lagging> {
    Lagging::new(Gauge::default(), RoutingStore::of(Snapshot::default()))
}

fn begins(lagging: &Arc<Lagging>, caller: &Caller, path: &str, now: Instant) -> Option<Writing> {
    lagging.begins(caller, Doing::Make, (asked(path), StoredVersions::new()), now)
}

/// Of a write that ended so.
fn noted(lagging: &Arc<Lagging>, caller: &Caller, path: &str, outcome: Outcome) {
    begins(lagging, caller, path, Instant::now()).unwrap().ends(outcome);
}

/// Which copies are behind is not known.
fn unknown() -> Outcome {
    Outcome::Behind(Vec::new())
}

fn behind(cluster: &str, reason: &'static str) -> Behind {
    Behind {
        cluster: cluster.to_owned(),
        reason,
        message: format!("{cluster} is {reason}"),
    }
}

/// What is due, by path.
fn due(lagging: &Arc<Lagging>, caller: &Caller, now: Instant) -> Option<(Writing, String)> {
    let (mending, asked, _) = lagging.due(caller, "", now)?;
    Some((mending, asked.path))
}

#[tokio::test(start_paused = true)]
async fn what_lags_is_mended_by_its_own_account_and_not_for_ever() {
    let (lagging, now) = (lagging(), Instant::now());
    let [ours, same, other] = ["a", "a", "b"].map(caller_of);
    noted(&lagging, &ours, PATH, unknown());
    let later = now + PAUSE;
    assert!(due(&lagging, &same, now).is_none());
    assert!(due(&lagging, &other, later).is_none());
    let (mending, path) = due(&lagging, &same, later).expect("another Pod of the account");
    assert_eq!(path, PATH);
    assert!(due(&lagging, &ours, later).is_none(), "it is being tried");
    mending.ends(unknown());
    assert!(due(&lagging, &ours, later).is_none(), "the next pause is longer");
    let (mending, _) = due(&lagging, &ours, now + PAUSE * 2).unwrap();
    mending.ends(Outcome::Settled);
    assert_eq!(lagging.behind.load(Ordering::Relaxed), 0);
    assert_eq!(lagging.objects.lock().len(), 0);
    noted(&lagging, &ours, PATH, unknown());
    tokio::time::advance(KEPT).await;
    assert!(
        due(&lagging, &ours, Instant::now()).is_none(),
        "nobody asked for an hour"
    );
    assert_eq!(lagging.shown.get(), 0);
}

#[test]
fn a_write_is_noted_until_it_is_known_that_all_are_alike() {
    let (lagging, now) = (lagging(), Instant::now());
    let caller = caller_of("a");
    let later = now + Duration::from_mins(1);
    // Refused, so nothing follows.
    noted(&lagging, &caller, PATH, Outcome::Untouched);
    assert_eq!(lagging.objects.lock().len(), 0);
    // Its client went away, or its answer was lost.
    drop(begins(&lagging, &caller, PATH, now));
    let (mending, _) = due(&lagging, &caller, later).unwrap();
    // One that is refused meanwhile says nothing of the other.
    noted(&lagging, &caller, PATH, Outcome::Untouched);
    // Of two at once the one that is lost may be the later one.
    let first = begins(&lagging, &caller, PATH, now).unwrap();
    drop(begins(&lagging, &caller, PATH, now));
    mending.ends(Outcome::Settled);
    first.ends(Outcome::Settled);
    assert_eq!(lagging.behind.load(Ordering::Relaxed), 1);
    let (mending, _) = due(&lagging, &caller, later).unwrap();
    mending.ends(Outcome::Settled);
    assert_eq!(lagging.objects.lock().len(), 0);
}

#[test]
fn who_wrote_as_another_is_mended_as_that() {
    let (lagging, now) = (lagging(), Instant::now());
    let caller = caller_of("a");
    let mut as_bob = asked(PATH);
    as_bob.impersonate = Some(Impersonation::user("bob".to_owned()));
    noted(&lagging, &caller, PATH, unknown());
    let noted = (as_bob.clone(), StoredVersions::new());
    drop(lagging.begins(&caller, Doing::Write, noted, now));
    let later = now + PAUSE * 2;
    assert!(lagging.due(&caller, PATH, later).is_none(), "it may be about to go");
    let (mending, first, _) = lagging.due(&caller, "", later).unwrap();
    assert!(lagging.due(&caller, "", later).is_none(), "it is the same object");
    mending.ends(Outcome::Settled);
    let (_mending, second, _) = lagging.due(&caller, "", later).unwrap();
    let both = [first, second];
    assert!(both.contains(&as_bob) && both.contains(&asked(PATH)), "{both:?}");
}

#[test]
fn no_account_fills_the_memory() {
    let (lagging, now) = (lagging(), Instant::now());
    let callers: Vec<Caller> = (0..=MOST / MOST_OF_ONE)
        .map(|index| caller_of(&format!("a{index}")))
        .collect();
    let (last, others) = callers.split_last().unwrap();
    for caller in others {
        for index in 0..=MOST_OF_ONE {
            noted(&lagging, caller, &format!("{PATH}{index}"), unknown());
        }
    }
    assert_eq!(lagging.behind.load(Ordering::Relaxed), MOST);
    // The eldest of who has most gives way.
    noted(&lagging, last, PATH, unknown());
    assert!(due(&lagging, last, now + LONGEST_PAUSE).is_some());
    assert_eq!(lagging.objects.lock().len(), MOST);
    // What is under way stays.
    let under_way: Vec<_> = (0..=MOST_OF_ONE)
        .map(|index| begins(&lagging, last, &format!("{PATH}-{index}"), now))
        .collect();
    assert!(under_way[MOST_OF_ONE].is_none());
    assert!(under_way[..MOST_OF_ONE].iter().all(Option::is_some));
}

/// A GET of this path by this caller would wait.
fn waits(lagging: &Lagging, caller: &Caller, path: &str) -> bool {
    let asked = classify(&Method::GET, &path.parse().unwrap(), &HeaderMap::new()).unwrap();
    lagging.defines(caller, &asked)
}

#[test]
fn who_asks_for_a_kind_waits_for_a_write_of_its_definition_and_for_nothing_else() {
    const KIND: &str = "/apis/a.b/v1/cs";
    let (lagging, now) = (lagging(), Instant::now());
    let [writer, same] = ["a", "b"].map(caller_of);
    assert!(!waits(&lagging, &same, KIND));
    let writing = begins(&lagging, &writer, PATH, now).unwrap();
    for path in [KIND, "/apis/a.b/v2/cs/one", "/apis/a.b/v1/namespaces/n/cs?watch=true"] {
        assert!(waits(&lagging, &same, path), "{path}");
    }
    for path in [
        PATH,
        "/apis/a.b/v1",
        "/apis/a.b/v1/ds",
        "/apis/b/v1/cs",
        "/apis/a.b.c/v1/cs",
        "/clusters/west/apis/a.b/v1/cs",
    ] {
        assert!(!waits(&lagging, &same, path), "{path}");
    }
    let other = caller_in("ops/green", "a");
    assert!(!waits(&lagging, &other, KIND), "another shard");
    // A second one, of another account: both are over before nobody waits.
    let second = begins(&lagging, &same, PATH, now).unwrap();
    writing.ends(Outcome::Untouched);
    assert!(waits(&lagging, &writer, KIND));
    second.ends(Outcome::Behind(vec![behind("west", "away")]));
    assert!(!waits(&lagging, &same, KIND), "what is behind is not waited for");
    let (mending, _) = due(&lagging, &same, now + PAUSE * 2).unwrap();
    assert!(!waits(&lagging, &same, KIND), "nor is an attempt to mend it");
    mending.ends(Outcome::Settled);
    for doing in [Doing::Write, Doing::Deletion] {
        let noted = (asked(PATH), StoredVersions::new());
        let under_way = lagging.begins(&writer, doing, noted, now).unwrap();
        assert!(!waits(&lagging, &same, KIND), "nor {doing:?}");
        under_way.ends(Outcome::Settled);
    }
    let mut applying = begins(&lagging, &writer, PATH, now).unwrap();
    assert!(waits(&lagging, &same, KIND), "an apply may make it");
    applying.made_nothing();
    assert!(!waits(&lagging, &same, KIND), "it was there");
    applying.ends(Outcome::Settled);
    let of_status = begins(&lagging, &writer, &format!("{PATH}/status"), now).unwrap();
    let of_others = begins(&lagging, &writer, "/apis/a.b/v1/others/cs.a.b", now).unwrap();
    assert!(!waits(&lagging, &same, KIND), "nor what defines nothing");
    of_status.ends(Outcome::Settled);
    of_others.ends(Outcome::Settled);
    assert_eq!(lagging.defining.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_definition_is_waited_for_until_it_is_over_or_patience_is() {
    let (lagging, caller) = (lagging(), caller_of("a"));
    let asked = classify(&Method::GET, &"/apis/a.b/v1/cs".parse().unwrap(), &HeaderMap::new()).unwrap();
    let began = Instant::now();
    let writing = begins(&lagging, &caller, PATH, began).unwrap();
    let second = Duration::from_secs(1);
    lagging.defined(&caller, &asked, began + second).await;
    assert_eq!(began.elapsed(), second);
    let over = async {
        tokio::time::sleep(second).await;
        writing.ends(Outcome::Settled);
    };
    let patience = Duration::from_hours(1);
    tokio::join!(lagging.defined(&caller, &asked, began + patience), over);
    assert_eq!(began.elapsed(), second * 2);
    let _places = lagging.waiting.try_acquire_many(u32::try_from(MOST_WAITING).unwrap());
    let _writing = begins(&lagging, &caller, PATH, began).unwrap();
    lagging.defined(&caller, &asked, began + patience).await;
    assert_eq!(began.elapsed(), second * 2, "so many wait that no more do");
}

#[tokio::test(start_paused = true)]
async fn what_another_manager_keeps_is_tried_again_and_told_until_it_is_alike() {
    let (lagging, caller) = (lagging(), caller_of("a"));
    let told = || {
        let report = lagging.routing.replicas.changes().borrow().clone();
        let one = |fault: v1::ReplicaFault| [fault.shard, fault.name, fault.cluster, fault.reason, fault.message];
        report.faults.into_iter().map(one).collect::<Vec<_>>()
    };
    let line = |cluster: &str, reason: &str| {
        let message = format!("{cluster} is {reason}");
        ["ops/blue", "cs.a.b", cluster, reason, &message].map(str::to_owned)
    };
    // What may not be at all, and what is not there to be brought anywhere, nobody looks after.
    let never = ["refused", "deleted", "unseen"].map(|reason| behind("west", reason));
    noted(&lagging, &caller, PATH, Outcome::of(never.to_vec()));
    assert_eq!(lagging.objects.lock().len(), 0);
    let both = vec![
        behind("north", "away"),
        behind("west", "conflict"),
        behind("south", "refused"),
    ];
    noted(&lagging, &caller, PATH, Outcome::of(both));
    assert_eq!(told(), [line("west", "conflict"), line("north", "away")]);
    let mut tries = 0;
    let began = Instant::now();
    while began.elapsed() < KEPT * 2 {
        tokio::time::advance(PAUSE).await;
        if let Some((mending, _)) = due(&lagging, &caller, Instant::now()) {
            tries += 1;
            mending.ends(Outcome::of(vec![behind("west", "conflict")]));
            assert_eq!(told(), [line("west", "conflict")]);
        }
    }
    assert!((120..=130).contains(&tries), "each minute: {tries}");
    let (mending, _) = due(&lagging, &caller, Instant::now() + LONGEST_PAUSE).unwrap();
    // What came of this one is not known: the last word counts.
    drop(mending);
    assert_eq!(told(), [line("west", "conflict")]);
    let (mending, _) = due(&lagging, &caller, Instant::now() + LONGEST_PAUSE).unwrap();
    mending.ends(Outcome::Settled);
    assert!(told().is_empty() && lagging.objects.lock().is_empty());
    // An hour after the last attempt nobody cares.
    noted(&lagging, &caller, PATH, Outcome::of(vec![behind("west", "conflict")]));
    tokio::time::advance(KEPT).await;
    assert!(due(&lagging, &caller, Instant::now()).is_none());
    assert!(told().is_empty());
}
