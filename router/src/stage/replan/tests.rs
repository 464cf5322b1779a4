//! What a swap means for a request that is under way.

use http::{HeaderMap, Method};
use portolan_wire::v1;

use super::seen::Footing;
use super::*;
use crate::resource::whereabouts::Found;
use crate::value::classify::classify;
use crate::value::kinds::{Kind, Kinds, MemberKinds, Scope};
use crate::value::snapshot::told;

const ALL_PODS: &str = "GET /api/v1/pods?watch=true";
const PODS: &str = "GET /api/v1/namespaces/a/pods?watch=true";
const EXEC: &str = "POST /api/v1/namespaces/a/pods/p/exec";

/// The caller owns `a` and `b` of east.
struct World {
    target: told::Target,
    view: told::CallerView,
    /// A second member is known.
    west: bool,
    /// Another shard owns this namespace of east.
    green: Option<&'static str>,
}

impl World {
    fn new() -> Self {
        let pods = v1::KindCoverage {
            resource: "pods".into(),
            complete: true,
            rule: Some(v1::LabelRule {
                prefix: "ctrlmesh.kusionstack.io/".into(),
                bucketing: None,
            }),
            ..v1::KindCoverage::default()
        };
        let target = told::Target {
            cluster: "east".into(),
            cluster_uid: "1".into(),
            endpoints: vec![v1::Endpoint {
                url: "https://east:6443".into(),
                tls_server_name: String::new(),
            }],
            allowed_service_accounts: vec!["ops/operator".into(), "ops/other".into()],
            coverage: vec![pods],
            ..told::Target::default()
        };
        let shard = told::Shard {
            rules: v1::Shard {
                primary_cluster: "east".into(),
                enforcement: v1::Enforcement::Enforce.into(),
                label_prefix: "ctrlmesh.kusionstack.io/".into(),
                ..v1::Shard::default()
            },
            members: vec![told::MemberGrant {
                cluster: "east".into(),
                all_namespaces: false,
                namespaces: ["a", "b"].map(grant).to_vec(),
                ..told::MemberGrant::default()
            }],
        };
        let view = told::CallerView {
            created_unix_seconds: None,
            writes_closed: None,
            policies: Vec::new(),
            home_cluster: "east".into(),
            pod_uid: "u".into(),
            namespace: "ops".into(),
            pod: "operator-0".into(),
            service_account: "operator".into(),
            shards: vec!["ops/blue".into()],
            shard: Some(shard),
        };
        Self {
            target,
            view,
            west: false,
            green: None,
        }
    }

    fn member(&mut self) -> &mut told::MemberGrant {
        &mut self.view.shard.as_mut().unwrap().members[0]
    }

    fn snapshot(&self, version: &str) -> Snapshot {
        let mut bodies = self.target.bodies();
        bodies.extend(self.view.bodies());
        if self.west {
            let west = told::Target {
                cluster: "west".into(),
                cluster_uid: "w".into(),
                ..self.target.clone()
            };
            bodies.extend(west.bodies());
        }
        let owned = self.green.map(|namespace| v1::Ownership {
            cluster: "east".into(),
            shard: "ops/green".into(),
            namespaces: vec![grant(namespace)],
            ..v1::Ownership::default()
        });
        bodies.extend(owned.map(v1::resource::Body::Ownership));
        let applied = told::upsert(&Snapshot::default(), version, bodies);
        assert_eq!(applied.rejected, []);
        applied.snapshot
    }
}

/// A watch of a namespace that is nowhere waits for a shard to have it.
#[test]
fn a_watch_of_what_is_nowhere_goes_on_until_it_is_somewhere() {
    const NEW: &str = "GET /api/v1/namespaces/new/pods?watch=true";
    assert_eq!(after(NEW, |_| {}), Word::Renewed);
    assert_eq!(after(NEW, |world| world.green = Some("other")), Word::Renewed);
    assert_eq!(
        after(NEW, |world| world.member().namespaces.push(grant("new"))),
        Word::Replanned
    );
    assert_eq!(after(NEW, |world| world.green = Some("new")), Word::Changed, "410");
}

/// A router of one shard is not told what others have, nor any router of what nobody has: the hub's word ends such a watch, once it
/// has said so twice, and no other.
#[tokio::test(start_paused = true)]
async fn a_watch_of_what_is_somewhere_by_now_ends_though_no_swap_tells() {
    let old = World::new().snapshot("1");
    let caller = Caller::Pod(old.callers.values().next().unwrap().clone());
    let store = RoutingStore::of(old);
    let (all, begun) = (Replanner::new(store.clone()), store.load());
    let watched = ["new", "newer", "a"].map(|namespace| {
        let uri = format!("/api/v1/namespaces/{namespace}/pods?watch=true");
        let asked = classify(&Method::GET, &uri.parse().unwrap(), &HeaderMap::new()).unwrap();
        let Plan::FanOut(plan) = plan::plan(&caller, &asked, &begun.snapshot, &begun.kinds).plan else {
            panic!("a merged watch")
        };
        let plan = if plan.unowned.is_some() { plan.nowhere() } else { *plan };
        all.watch_fan(Arc::new(plan), &asked, &caller, &begun)
    });
    let tasks = Tasks::default();
    let mut looks = Box::pin(all.clone().run(tasks));
    let mut carrier = store.whereabouts.carry();
    let mut asked = Vec::new();
    // The hub does not say what the shard's rules take: it may be any.
    let rounds = somewhere::LOOKS.1 as usize;
    for round in 0..rounds {
        let ended = watched.each_ref().map(|fan| fan.0.open.word());
        assert_eq!(ended, [Word::Same; 3], "in round {round}");
        for _ in 0..2 {
            let one = tokio::select! {
                () = looks.as_mut() => panic!("it never ends"),
                one = carrier.questions.recv() => one.unwrap(),
            };
            let there = (one.question.namespace == "new").then(|| "east".to_owned());
            asked.push(one.question.namespace);
            let found = Found {
                there: there.into_iter().collect(),
                ..Found::default()
            };
            one.answer.send(found).unwrap();
        }
    }
    let settled = tokio::time::sleep(std::time::Duration::from_secs(1));
    tokio::select! {
        () = looks.as_mut() => panic!("it never ends"),
        () = settled => {}
    }
    let times = |namespace: &str| asked.iter().filter(|one| *one == namespace).count();
    assert_eq!((times("new"), times("newer")), (rounds, rounds));
    assert_eq!(asked.len(), 2 * rounds, "what is its shard's is not asked for");
    let ended = watched.each_ref().map(|fan| fan.0.open.word());
    assert_eq!(ended, [Word::Changed, Word::Same, Word::Same]);
}

fn grant(namespace: &str) -> v1::NamespaceGrant {
    v1::NamespaceGrant {
        namespace: namespace.into(),
        owner_count: 1,
        state: v1::GrantState::Granted.into(),
        ..v1::NamespaceGrant::default()
    }
}

/// What becomes of `request` after `change`.
fn after(request: &str, change: impl Fn(&mut World)) -> Word {
    let (word, _) = replanned(request, change);
    word
}

fn replanned(request: &str, change: impl Fn(&mut World)) -> (Word, Option<Arc<FanOut>>) {
    let mut world = World::new();
    let old = world.snapshot("1");
    let caller = Caller::Pod(old.callers.values().next().unwrap().clone());
    let (method, uri) = request.split_once(' ').unwrap();
    let asked = classify(
        &method.parse::<Method>().unwrap(),
        &uri.parse().unwrap(),
        &HeaderMap::new(),
    )
    .unwrap();
    let store = RoutingStore::of(old.clone());
    let (all, begun) = (Replanner::new(store.clone()), store.load());
    change(&mut world);
    let mut new = world.snapshot("2");
    if world.view.shards.is_empty() {
        new.callers = Arc::default();
    }
    new.generation = old.generation + 1;
    // The swap that came while it was being sent.
    store.swap(new);
    let found = match plan::plan(&caller, &asked, &old, &Kinds::default()).plan {
        Plan::Forward(forward) => {
            let watched = all.watch(&forward, &asked, &caller, &begun);
            assert_eq!(all.open.len(), 1);
            (watched.open.word(), None)
        }
        Plan::FanOut(fan) => {
            let watched = all.watch_fan(Arc::new(*fan), &asked, &caller, &begun);
            let word = watched.0.open.word();
            let plan = match watched.0.open.take() {
                None => None,
                Some(FanVerdict::Over(_)) => {
                    assert!(watched.0.open.take().is_some(), "the end is told again");
                    None
                }
                Some(FanVerdict::Renewed(plan) | FanVerdict::Replanned(plan)) => {
                    assert!(watched.0.open.take().is_none(), "a plan is told once");
                    Some(plan)
                }
            };
            (word, plan)
        }
        other => panic!("{request}: {other:?}"),
    };
    assert!(all.open.is_empty(), "nothing is kept of what is over");
    found
}

#[test]
fn what_would_be_answered_alike_goes_on() {
    // The new target is for reconnects.
    for (request, renewed) in [(ALL_PODS, Word::Renewed), (PODS, Word::Renewed), (EXEC, Word::Same)] {
        assert_eq!(after(request, |_| {}), renewed, "{request}");
        let endpoint = |world: &mut World| world.target.endpoints[0].url = "https://east-2:6443".into();
        assert_eq!(after(request, endpoint), renewed, "{request}");
        assert_eq!(
            after(request, |world| world.target.cordoned = true),
            Word::Same,
            "{request}"
        );
        // It ends, and whoever comes back from where it was waits (429) until the shard is told whole.
        let not_told = |world: &mut World| world.view.shard = None;
        assert_eq!(after(request, not_told), Word::Withdrawn, "{request}");
    }
    let other = |world: &mut World| world.member().namespaces = ["a", "c"].map(grant).to_vec();
    assert_eq!(after(PODS, other), Word::Renewed, "its own namespace stayed");
    assert_eq!(after(EXEC, other), Word::Same);
}

#[test]
fn labels_that_come_change_no_running_watch_and_labels_that_go_do() {
    let (word, plan) = replanned("GET /api/v1/secrets?watch=true", |world| {
        world.target.coverage[0].resource = "secrets".into();
    });
    assert_eq!(word, Word::Renewed);
    assert!(plan.unwrap().legs[0].filter.is_some(), "it goes on filtering here");
    let (word, plan) = replanned(ALL_PODS, |world| world.target.coverage[0].complete = false);
    assert_eq!(word, Word::Renewed);
    assert!(
        plan.unwrap().legs[0].filter.is_none(),
        "who has no label yet comes with it"
    );
    let (word, _) = replanned(ALL_PODS, |world| {
        world.target.coverage[0].complete = false;
        world.target.coverage[0].at_admission = Some(false);
    });
    assert_eq!(word, Word::Replanned, "an update could take its labels off");
    let (word, plan) = replanned(ALL_PODS, |world| world.target.coverage.clear());
    assert_eq!(word, Word::Replanned);
    let leg = &plan.unwrap().legs[0];
    assert!(leg.filter.is_some() && leg.forward.rewrite.selector.is_none());
}

/// Agents report labels all the time.
#[test]
fn a_report_of_labels_concerns_watches_of_its_kind_alone() {
    let asked = |request: &str| {
        let (_, uri) = request.split_once(' ').unwrap();
        classify(&Method::GET, &uri.parse().unwrap(), &HeaderMap::new()).unwrap()
    };
    let (pods, secrets) = (asked(ALL_PODS), asked("GET /api/v1/secrets?watch=true"));
    let mut world = World::new();
    let old = world.snapshot("1");
    let east = "east".into();
    let [on_pods, on_secrets] = [&pods, &secrets].map(|asked| Footing::of(&east, asked, &old));
    world.target.coverage[0].complete = false;
    let coverage = world.target.bodies().remove(2);
    let new = told::upsert(&old, "2", [coverage]).snapshot;
    assert!(Arc::ptr_eq(&old.callers, &new.callers) && Arc::ptr_eq(&old.targets, &new.targets));
    assert!(on_secrets.stands(&secrets, &new));
    assert!(!on_pods.stands(&pods, &new));
    // Whom the member allows concerns all.
    world.target.allowed_users.push("ada".into());
    let identity = world.target.bodies().remove(1);
    let new = told::upsert(&new, "3", [identity]).snapshot;
    assert!(!on_secrets.stands(&secrets, &new));
}

#[test]
fn other_objects_are_a_new_plan() {
    for namespaces in [vec!["a"], vec!["a", "b", "c"]] {
        let change = |world: &mut World| world.member().namespaces = namespaces.iter().copied().map(grant).collect();
        let (word, plan) = replanned(ALL_PODS, change);
        assert_eq!(word, Word::Replanned, "{namespaces:?}");
        let plan = plan.unwrap();
        let filter = plan.legs[0].share.namespaces.as_ref().unwrap();
        assert_eq!(filter.names(), namespaces.len());
        // Filtered here it stays filtered here: such a stream can be given another filter.
        let (_, plan) = replanned("GET /api/v1/secrets?watch=true", change);
        assert_eq!(plan.unwrap().legs[0].filter.as_ref().unwrap().names(), namespaces.len());
    }
    // Another cluster under the same name, and a member more.
    let replaced = |world: &mut World| world.target.cluster_uid = "2".into();
    assert_eq!(after(PODS, replaced), Word::Replanned);
    let more = |world: &mut World| {
        world.view.shard.as_mut().unwrap().members.push(told::MemberGrant {
            cluster: "west".into(),
            all_namespaces: false,
            namespaces: vec![grant("c")],
            ..told::MemberGrant::default()
        });
        world.west = true;
    };
    let (word, plan) = replanned(ALL_PODS, more);
    assert_eq!((word, plan.unwrap().legs.len()), (Word::Replanned, 2));
    assert_eq!(after(PODS, more), Word::Replanned, "another universe");
    assert_eq!(
        after("GET /api/v1/nodes?watch=true", more),
        Word::Changed,
        "names may collide now"
    );
}

#[test]
fn what_cannot_be_planned_now_goes_on_unless_the_caller_changed() {
    // West is a member of the shard, but not known to this router yet.
    let unknown = |world: &mut World| {
        world.view.shard.as_mut().unwrap().members.push(told::MemberGrant {
            cluster: "west".into(),
            all_namespaces: false,
            namespaces: vec![grant("c")],
            ..told::MemberGrant::default()
        });
    };
    assert_eq!(after(ALL_PODS, unknown), Word::Changed);
    assert_eq!(after(PODS, unknown), Word::Renewed);
}

#[test]
fn what_may_not_be_asked_any_more_ends() {
    let gone = |world: &mut World| world.view.shards.clear();
    let left = |world: &mut World| world.member().namespaces = vec![grant("b")];
    let shards = |world: &mut World| world.view.shards.push("ops/green".into());
    let denied = |world: &mut World| world.target.allowed_service_accounts.clear();
    let account = |world: &mut World| world.view.service_account = "other".into();
    for request in [PODS, EXEC] {
        assert_eq!(after(request, gone), Word::Withdrawn, "{request}");
        assert_eq!(after(request, left), Word::Withdrawn, "{request}");
        assert_eq!(after(request, shards), Word::Withdrawn, "{request}");
        assert_eq!(after(request, denied), Word::Withdrawn, "{request}");
        assert_eq!(after(request, account), Word::Withdrawn, "{request}");
    }
    let releasing = |world: &mut World| world.member().namespaces[0].state = v1::GrantState::Releasing.into();
    assert_eq!(after(PODS, releasing), Word::Renewed, "reads go on");
    assert_eq!(after(EXEC, releasing), Word::Withdrawn, "a shell writes");
}

/// What is said of a write that waited while `change` came.
fn still(request: &str, change: impl Fn(&mut World)) -> Result<(), Fault> {
    let mut world = World::new();
    let old = world.snapshot("1");
    let caller = Caller::Pod(old.callers.values().next().unwrap().clone());
    let (method, uri) = request.split_once(' ').unwrap();
    let uri = uri.parse().unwrap();
    let asked = classify(&method.parse::<Method>().unwrap(), &uri, &HeaderMap::new()).unwrap();
    let store = RoutingStore::of(old.clone());
    let all = Replanner::new(store.clone());
    let Plan::Forward(forward) = plan::plan(&caller, &asked, &old, &Kinds::default()).plan else {
        panic!("{request}");
    };
    change(&mut world);
    let mut new = world.snapshot("2");
    new.generation = old.generation + 1;
    store.swap(new);
    all.still(&forward, &asked, &caller, &old)
}

#[test]
fn a_write_that_waited_is_refused_what_a_fresh_one_is() {
    const WRITE: &str = "POST /api/v1/namespaces/a/pods";
    let releasing = |world: &mut World| world.member().namespaces[0].state = v1::GrantState::Releasing.into();
    assert!(matches!(still(WRITE, releasing), Err(Fault::Forbidden(_))));
    let left = |world: &mut World| world.member().namespaces = vec![grant("b")];
    assert!(matches!(still(WRITE, left), Err(Fault::Forbidden(_))));
    let replaced = |world: &mut World| world.target.cluster_uid = "2".into();
    let fault = still(WRITE, replaced).unwrap_err();
    assert!(matches!(fault, Fault::Unavailable { sent: false, .. }), "{fault:?}");
    let other = |world: &mut World| world.member().namespaces = ["a", "c"].map(grant).to_vec();
    let lease = |world: &mut World| {
        let shard = world.view.shard.as_mut().unwrap();
        shard.leader_election_name = "op".into();
    };
    for write in [WRITE, EXEC, "POST /apis/coordination.k8s.io/v1/namespaces/a/leases"] {
        assert_eq!(still(write, |_| {}), Ok(()), "{write}");
        assert_eq!(still(write, other), Ok(()), "{write}");
        assert_eq!(still(write, lease), Ok(()), "{write}");
    }
}

/// What becomes of a watch of ships while members change what they serve.
fn after_kinds(before: &[(&str, Option<Scope>)], now: &[(&str, Option<Scope>)]) -> Word {
    let mut world = World::new();
    world.west = true;
    world.view.shard.as_mut().unwrap().members.push(told::MemberGrant {
        cluster: "west".into(),
        all_namespaces: false,
        namespaces: vec![grant("c")],
        ..told::MemberGrant::default()
    });
    let store = RoutingStore::of(world.snapshot("1"));
    let say = |said: &[(&str, Option<Scope>)]| {
        for (cluster, scope) in said {
            let mut kinds = MemberKinds::default();
            if let Some(scope) = *scope {
                let kind = Kind {
                    scope,
                    kind: "Ship".into(),
                    versions: vec!["v1".into()],
                    verbs: std::collections::BTreeSet::default(),
                };
                kinds.add("x.io", "ships", kind);
            }
            let uid = if *cluster == "east" { "1" } else { "w" };
            store.set_kinds(&(*cluster).into(), uid, &Arc::new(kinds));
        }
    };
    say(before);
    let routing = store.load();
    let caller = Caller::Pod(routing.snapshot.callers.values().next().unwrap().clone());
    let uri = "/apis/x.io/v1/ships?watch=true".parse().unwrap();
    let asked = classify(&Method::GET, &uri, &HeaderMap::new()).unwrap();
    let Plan::FanOut(fan) = plan::plan(&caller, &asked, &routing.snapshot, &routing.kinds).plan else {
        panic!("not merged")
    };
    let all = Replanner::new(store.clone());
    let early = all.watch_fan(fan.clone().into(), &asked, &caller, &routing);
    assert_eq!(early.0.open.word(), Word::Same);
    say(now);
    // Before it was registered, and while it runs.
    let late = all.watch_fan(fan.into(), &asked, &caller, &routing);
    early.0.open.replan(&store.load());
    assert_eq!(early.0.open.word(), late.0.open.word());
    late.0.open.word()
}

#[test]
fn a_watch_follows_what_members_say_of_its_kind() {
    let (spaced, whole) = (Some(Scope::Namespaced), Some(Scope::Cluster));
    let first = [("east", spaced), ("west", None)];
    assert_eq!(after_kinds(&first, &first), Word::Same);
    assert_eq!(
        after_kinds(&first, &[("west", spaced)]),
        Word::Renewed,
        "served there now"
    );
    assert_eq!(
        after_kinds(&[("east", whole), ("west", None)], &[("west", whole)]),
        Word::Renewed
    );
    let torn = after_kinds(&[("east", whole), ("west", None)], &[("west", spaced)]);
    assert_eq!(torn, Word::Withdrawn, "it is told why when it comes back");
    // Made anew without namespaces, or with some.
    let made_anew = [("east", whole), ("west", whole)];
    assert_eq!(
        after_kinds(&[("east", spaced), ("west", spaced)], &made_anew),
        Word::Changed
    );
    assert_eq!(
        after_kinds(&made_anew, &[("east", spaced), ("west", spaced)]),
        Word::Changed
    );
}

#[tokio::test]
async fn a_change_of_kinds_wakes_who_plans_anew() {
    let store = RoutingStore::of(World::new().snapshot("1"));
    let mut changes = store.kinds_changes();
    store.set_kinds(&"east".into(), "1", &Arc::default());
    assert!(changes.has_changed().unwrap());
    changes.borrow_and_update();
    store.set_kinds(&"east".into(), "1", &Arc::default());
    assert!(!changes.has_changed().unwrap(), "it said the same");
}
