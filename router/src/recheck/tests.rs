//! What a swap means for a request that is under way.

use http::{HeaderMap, Method};
use portolan_wire::v1;

use super::*;
use crate::classify::classify;
use crate::snapshot::build::{Transaction, apply};

const ALL_PODS: &str = "GET /api/v1/pods?watch=true";
const PODS: &str = "GET /api/v1/namespaces/a/pods?watch=true";
const EXEC: &str = "POST /api/v1/namespaces/a/pods/p/exec";

/// The caller owns `a` and `b` of east.
struct World {
    target: v1::Target,
    view: v1::CallerView,
}

impl World {
    fn new() -> Self {
        let pods = v1::KindCoverage {
            resource: "pods".into(),
            complete: true,
            ..v1::KindCoverage::default()
        };
        let target = v1::Target {
            cluster: "east".into(),
            cluster_uid: "1".into(),
            endpoints: vec![v1::Endpoint {
                url: "https://east:6443".into(),
                tls_server_name: String::new(),
            }],
            allowed_service_accounts: vec!["ops/operator".into(), "ops/other".into()],
            coverage: vec![pods],
            ..v1::Target::default()
        };
        let shard = v1::Shard {
            name: "blue".into(),
            primary_cluster: "east".into(),
            enforcement: v1::Enforcement::Enforce.into(),
            members: vec![v1::MemberGrant {
                cluster: "east".into(),
                all_namespaces: false,
                namespaces: ["a", "b"].map(grant).to_vec(),
            }],
            label_prefix: "ctrlmesh.kusionstack.io/".into(),
            ..v1::Shard::default()
        };
        let view = v1::CallerView {
            home_cluster: "east".into(),
            pod_uid: "u".into(),
            namespace: "ops".into(),
            pod: "operator-0".into(),
            service_account: "operator".into(),
            shards: vec!["ops/blue".into()],
            shard: Some(shard),
        };
        Self { target, view }
    }

    fn member(&mut self) -> &mut v1::MemberGrant {
        &mut self.view.shard.as_mut().unwrap().members[0]
    }

    fn snapshot(&self, version: &str) -> Snapshot {
        use v1::resource::Body;
        let bodies = [Body::Target(self.target.clone()), Body::CallerView(self.view.clone())];
        let upserted = bodies.map(|body| v1::Resource {
            version: version.into(),
            body: Some(body),
        });
        let transaction = Transaction {
            upserted: upserted.to_vec(),
            removed: vec![],
        };
        let applied = apply(&Snapshot::default(), &transaction);
        assert_eq!(applied.rejected, []);
        applied.snapshot
    }
}

fn grant(namespace: &str) -> v1::NamespaceGrant {
    v1::NamespaceGrant {
        namespace: namespace.into(),
        generation: 1,
        state: v1::GrantState::Granted.into(),
    }
}

/// The verdict on `request` after `change`.
fn after(request: &str, change: impl Fn(&mut World)) -> Option<Verdict> {
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
    let Plan::Forward(forward) = plan::plan(&caller, &asked, &old).plan else {
        panic!("{request}");
    };
    let store = Arc::new(SnapshotStore::new());
    let all = Recheck::new(store.clone());
    change(&mut world);
    let mut new = world.snapshot("2");
    if world.view.shards.is_empty() {
        new.callers.clear();
    }
    new.generation = old.generation + 1;
    // The swap that came while it was being sent.
    store.swap(new);
    let watched = all.watch(&forward, &asked, &caller, &old);
    assert_eq!(all.open.lock().requests.len(), 1);
    let verdict = watched.open.verdict();
    drop(watched);
    assert!(all.open.lock().requests.is_empty(), "nothing is kept of what is over");
    verdict
}

#[test]
fn what_would_be_answered_alike_goes_on() {
    for request in [ALL_PODS, PODS, EXEC] {
        assert_eq!(after(request, |_| {}), None, "{request}");
        let endpoint = |world: &mut World| world.target.endpoints[0].url = "https://east-2:6443".into();
        assert_eq!(after(request, endpoint), None, "{request}");
        assert_eq!(after(request, |world| world.target.cordoned = true), None, "{request}");
    }
    assert_eq!(after(ALL_PODS, |world| world.target.coverage.clear()), None);
    let other = |world: &mut World| world.member().namespaces = ["a", "c"].map(grant).to_vec();
    assert_eq!(after(PODS, other), None, "its own namespace stayed");
    assert_eq!(after(EXEC, other), None);
}

#[test]
fn what_would_show_other_objects_expires() {
    for namespaces in [vec!["a"], vec!["a", "b", "c"]] {
        let change = |world: &mut World| world.member().namespaces = namespaces.iter().copied().map(grant).collect();
        assert_eq!(after(ALL_PODS, change), Some(Verdict::Changed), "{namespaces:?}");
        let uncovered = |world: &mut World| {
            change(world);
            world.target.coverage.clear();
        };
        assert_eq!(after(ALL_PODS, uncovered), Some(Verdict::Changed), "{namespaces:?}");
    }
    let replaced = |world: &mut World| world.target.cluster_uid = "2".into();
    assert_eq!(after(PODS, replaced), Some(Verdict::Changed));
}

#[test]
fn what_may_not_be_asked_any_more_ends() {
    let gone = |world: &mut World| world.view.shards.clear();
    let left = |world: &mut World| world.member().namespaces = vec![grant("b")];
    let shards = |world: &mut World| world.view.shards.push("ops/green".into());
    let denied = |world: &mut World| world.target.allowed_service_accounts.clear();
    let account = |world: &mut World| world.view.service_account = "other".into();
    for request in [PODS, EXEC] {
        assert_eq!(after(request, gone), Some(Verdict::Withdrawn), "{request}");
        assert_eq!(after(request, left), Some(Verdict::Withdrawn), "{request}");
        assert_eq!(after(request, shards), Some(Verdict::Withdrawn), "{request}");
        assert_eq!(after(request, denied), Some(Verdict::Withdrawn), "{request}");
        assert_eq!(after(request, account), Some(Verdict::Withdrawn), "{request}");
    }
    let releasing = |world: &mut World| world.member().namespaces[0].state = v1::GrantState::Releasing.into();
    assert_eq!(after(PODS, releasing), None, "reads go on");
    assert_eq!(after(EXEC, releasing), Some(Verdict::Withdrawn), "a shell writes");
}
