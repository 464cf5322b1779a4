//! What is asked of whom, and what comes of it. Here: two members, the primary first: who has it, and whose child may be written where.

mod leases;
mod needs;
mod new_object;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use portolan_runtime::Tasks;
use portolan_wire::v1;

use super::*;
use crate::decision::plan::{self, Plan};
use crate::resource::access::{HubReviews, MemberAnswer, MemberApi};
use crate::resource::queues::Turn;
use crate::resource::upstream::scripted::{Backend, head, open_to, script};
use crate::stage::dispatch::DispatchMetrics;
use crate::value::classify::classify;
use crate::value::kinds::{Kind, MemberKinds, Scope};
use crate::value::snapshot::told;

const HAS_N: &str = r#"{"metadata":{"name":"n","uid":"u-n"}}"#;
const HAS_OTHER_N: &str = r#"{"metadata":{"name":"n","uid":"u-other"}}"#;

struct NoReviews;

impl MemberApi for NoReviews {
    fn post(
        &self,
        _cluster: &str,
        _path: &'static str,
        _turn: Turn,
        _body: Vec<u8>,
    ) -> futures::future::BoxFuture<'static, MemberAnswer> {
        Box::pin(async { Err(Fault::Internal("nobody is asked".to_owned())) })
    }
}

fn no_reviews() -> Access {
    Access::new(HubReviews::default(), Arc::new(NoReviews))
}

/// What a member answers to everything.
async fn member(code: u16, body: &'static str) -> Backend {
    let answer = script(move |_, mut respond| async move {
        let mut stream = respond.send_response(head(code), false).unwrap();
        stream.send_data(Bytes::from_static(body.as_bytes()), true).unwrap();
    });
    Backend::start(100, answer).await
}

fn kinds() -> Arc<MemberKinds> {
    let mut served = MemberKinds::default();
    for (resource, kind, scope) in [
        ("nodes", "Node", Scope::Cluster),
        ("namespaces", "Namespace", Scope::Cluster),
        ("configmaps", "ConfigMap", Scope::Namespaced),
    ] {
        let kind = Kind {
            scope,
            kind: kind.to_owned(),
            versions: vec!["v1".to_owned()],
            verbs: ["get".to_owned()].into(),
        };
        served.add("", resource, kind);
    }
    Arc::new(served)
}

struct World {
    east: Backend,
    west: Backend,
    preflight: Preflight,
    caller: Caller,
}

impl World {
    async fn new(east: (u16, &'static str), west: (u16, &'static str)) -> Self {
        Self::of("east", east, west).await
    }

    /// The caller's home is east.
    async fn of(primary: &str, east: (u16, &'static str), west: (u16, &'static str)) -> Self {
        Self::between(primary, member(east.0, east.1).await, member(west.0, west.1).await)
    }

    fn between(primary: &str, east: Backend, west: Backend) -> Self {
        let targets = [east.target("east"), west.target("west")];
        let grant = |cluster: &str, namespace: &str| told::MemberGrant {
            cluster: cluster.into(),
            all_namespaces: false,
            namespaces: vec![v1::NamespaceGrant {
                namespace: namespace.into(),
                owner_count: 1,
                state: v1::GrantState::Granted.into(),
                ..v1::NamespaceGrant::default()
            }],
            ..told::MemberGrant::default()
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
            shard: Some(told::Shard {
                rules: v1::Shard {
                    primary_cluster: primary.into(),
                    leader_election_name: "op".into(),
                    label_prefix: "ctrlmesh.kusionstack.io/".into(),
                    ..v1::Shard::default()
                },
                members: vec![grant("east", "a"), grant("west", "b")],
            }),
        };
        let snapshot = open_to(targets, &["ops/operator"], &[]);
        let snapshot = told::upsert(&snapshot, "1", view.bodies()).snapshot;
        let caller = Caller::Pod(snapshot.callers.values().next().unwrap().clone());
        let routing = RoutingStore::of(snapshot);
        routing.set_kinds(&"east".into(), "uid-east", &kinds());
        Self {
            east,
            west,
            preflight: Preflight {
                dispatcher: Arc::new(Dispatcher::new(Tasks::new(), DispatchMetrics::default())),
                access: no_reviews(),
                routing,
            },
            caller,
        }
    }

    /// What is planned for `request`, and what comes of it.
    async fn planned(&self, request: &str, body: &str) -> Result<Box<Forward>, Fault> {
        self.sent(request, "application/json", body.as_bytes()).await
    }

    async fn sent(&self, request: &str, content_type: &str, body: &[u8]) -> Result<Box<Forward>, Fault> {
        let (method, path) = request.split_once(' ').unwrap();
        let request = Request::builder().method(method).uri(path);
        let request = request.header("content-type", content_type).body(()).unwrap();
        let (head, ()) = request.into_parts();
        let asked = classify(&head.method, &head.uri, &HeaderMap::new()).unwrap();
        let routing = self.preflight.routing.load();
        let pending = Pending {
            head: &head,
            asked: &asked,
            caller: &self.caller,
            routing: &routing,
            received: &Context::new(),
            deadline: Instant::now() + Duration::from_secs(20),
        };
        let mut body = Body::from(Bytes::copy_from_slice(body));
        let forward = match plan::plan(&self.caller, &asked, &routing.snapshot, &routing.kinds).plan {
            Plan::Forward(forward) => forward,
            Plan::Choose(choose) => self.preflight.choose(*choose, pending, &mut body).await?,
            plan => panic!("{plan:?}"),
        };
        self.preflight.check(&forward, pending, &mut body).await?;
        Ok(forward)
    }

    /// The member, or the code of the refusal.
    async fn finds(&self, request: &str) -> String {
        match self.planned(request, "").await {
            Ok(forward) => forward.target.cluster.to_string(),
            Err(fault) => fault.status_code().as_u16().to_string(),
        }
    }

    /// What becomes of a child in namespace `namespace` of this owner.
    async fn owned_by(&self, namespace: &str, kind: &str) -> Result<(), Fault> {
        let body = format!(
            r#"{{"metadata":{{"ownerReferences":[{{"apiVersion":"v1","kind":"{kind}","name":"n","uid":"u-n"}}]}}}}"#
        );
        let path = format!("POST /api/v1/namespaces/{namespace}/configmaps");
        self.planned(&path, &body).await.map(drop)
    }
}

#[tokio::test]
async fn the_primary_is_asked_first_and_the_others_only_then() {
    let world = World::new((200, HAS_N), (200, HAS_N)).await;
    assert_eq!(world.finds("GET /api/v1/nodes/n").await, "east");
    assert_eq!(world.west.seen.requests(), 0);
    let world = World::new((404, "{}"), (200, HAS_N)).await;
    assert_eq!(world.finds("PATCH /api/v1/nodes/n").await, "west");
    let world = World::new((404, "{}"), (404, "{}")).await;
    assert_eq!(world.finds("DELETE /api/v1/nodes/n").await, "east");
    let world = World::new((403, "{}"), (404, "{}")).await;
    assert_eq!(world.finds("GET /api/v1/nodes/n").await, "east");
}

#[tokio::test]
async fn a_member_that_cannot_say_is_no_404() {
    let world = World::new((404, "{}"), (500, "{}")).await;
    assert_eq!(world.finds("GET /api/v1/nodes/n").await, "503");
    let world = World::new((500, "{}"), (200, HAS_N)).await;
    assert_eq!(world.finds("GET /api/v1/nodes/n").await, "west");
    assert_eq!(world.finds("DELETE /api/v1/nodes/n").await, "503");
}

#[tokio::test]
async fn a_child_is_written_only_beside_its_owner() {
    // The owner is east's: a child in east's namespace may be, one in west's would be deleted there.
    let world = World::new((200, HAS_N), (404, "{}")).await;
    world.owned_by("a", "Node").await.unwrap();
    assert_eq!(world.west.seen.requests(), 0, "found where it should be");
    let refused = world.owned_by("b", "Node").await.unwrap_err();
    assert!(
        matches!(&refused, Fault::Forbidden(text) if text.contains("garbage collector")),
        "{refused}"
    );
    // Another object of that name is not the owner.
    let world = World::new((200, HAS_N), (200, HAS_OTHER_N)).await;
    assert!(world.owned_by("b", "Node").await.is_err());
    // Nowhere: as in one cluster, the API server's to judge.
    let world = World::new((404, "{}"), (404, "{}")).await;
    world.owned_by("b", "Node").await.unwrap();
    // It might be there.
    let world = World::new((500, "{}"), (404, "{}")).await;
    let unknown = world.owned_by("b", "Node").await.unwrap_err();
    assert_eq!(unknown.status_code(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn owners_beside_their_child_by_its_namespace_are_not_asked_for() {
    let world = World::new((200, HAS_N), (404, "{}")).await;
    world.owned_by("b", "ConfigMap").await.unwrap();
    assert_eq!(world.east.seen.requests() + world.west.seen.requests(), 0);
}

#[tokio::test]
async fn an_owner_with_a_namespace_is_looked_for_where_the_child_is_kept_elsewhere() {
    let lease = |kind: &str, uid: &str| {
        format!(
            r#"{{"metadata":{{"name":"op","ownerReferences":[{{"apiVersion":"v1","kind":"{kind}","name":"n","uid":"{uid}"}}]}}}}"#
        )
    };
    let leases = "/apis/coordination.k8s.io/v1/namespaces/ops/leases";
    let requests = [
        format!("POST {leases}"),
        format!("PUT {leases}/op"),
        format!("PATCH {leases}/other"),
    ];
    // The callers' namespace is home's, which is east; its Leases are the primary's.
    let world = World::of("west", (200, HAS_N), (404, "{}")).await;
    for request in &requests {
        let refused = world.planned(request, &lease("ConfigMap", "u-n")).await.unwrap_err();
        assert!(
            matches!(&refused, Fault::Forbidden(text) if text.contains("ConfigMap n is in member cluster east")),
            "{request}: {refused}"
        );
        assert_eq!(
            world
                .planned(request, &lease("ConfigMap", "u-wrong"))
                .await
                .unwrap_err(),
            refused
        );
        world.planned(request, r#"{"metadata":{"name":"op"}}"#).await.unwrap();
    }
    let world = World::of("west", (200, HAS_OTHER_N), (200, HAS_N)).await;
    let asked_of_east = world.east.seen.requests();
    world.planned(&requests[1], &lease("ConfigMap", "u-n")).await.unwrap();
    assert_eq!(world.east.seen.requests(), asked_of_east, "found where it should be");
}

#[tokio::test]
async fn what_is_not_the_shards_is_not_asked_for() {
    let child = |api_version: &str, kind: &str, name: &str| {
        format!(
            r#"{{"metadata":{{"ownerReferences":[{{"apiVersion":"{api_version}","kind":"{kind}","name":"{name}","uid":"u-n"}}]}}}}"#
        )
    };
    let create = "POST /api/v1/namespaces/b/configmaps";
    let world = World::new((200, HAS_N), (200, HAS_N)).await;
    for (api_version, kind, name, code) in [
        ("v1", "Namespace", "victim", 403),
        ("v1", "Namespace", "victim/secrets/s1", 422),
        ("v1", "Node", "n/proxy/x", 422),
        ("v1/nodes/n/proxy/x?", "Node", "n", 422),
        // The shard's, in the other member.
        ("v1", "Namespace", "a", 403),
    ] {
        let refused = world
            .planned(create, &child(api_version, kind, name))
            .await
            .unwrap_err();
        assert_eq!(refused.status_code(), code, "{api_version} {kind} {name}: {refused}");
        assert_eq!(
            world.east.seen.requests() + world.west.seen.requests(),
            0,
            "{kind} {name}"
        );
    }
    world.planned(create, &child("v1", "Namespace", "b")).await.unwrap();
    assert_eq!(
        (world.east.seen.requests(), world.west.seen.requests()),
        (0, 1),
        "the shard's own, beside the child"
    );
}

#[tokio::test]
async fn an_owner_that_the_object_has_already_is_no_new_one() {
    const CHILD: &str = r#"{"metadata":{"name":"c","uid":"u-c","resourceVersion":"7","ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"victim","uid":"u-v"}]}}"#;
    let world = World::new((404, "{}"), (200, CHILD)).await;
    world
        .planned("PUT /api/v1/namespaces/b/configmaps/c", CHILD)
        .await
        .unwrap();
    assert!(
        world
            .planned("POST /api/v1/namespaces/b/configmaps", CHILD)
            .await
            .is_err()
    );
    let other = CHILD.replace("u-v", "u-w");
    assert!(
        world
            .planned("PUT /api/v1/namespaces/b/configmaps/c", &other)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_name_that_another_member_has_is_not_made_again() {
    const NEW: &str = r#"{"metadata":{"name":"n"}}"#;
    let create = "POST /api/v1/nodes?dryRun=All";
    let of = async |west| World::new((404, "{}"), west).await;
    let taken = of((200, HAS_N)).await.planned(create, NEW).await.unwrap_err();
    assert_eq!(taken.status_code(), 409);
    assert!(
        taken
            .to_string()
            .contains("nodes \"n\" already exists in member cluster west"),
        "{taken}"
    );
    let world = of((404, "{}")).await;
    let made = world.planned(create, NEW).await.unwrap();
    assert_eq!((&*made.target.cluster, made.warning), ("east", None));
    assert_eq!(world.east.seen.requests(), 0, "the primary says it itself");
    let unknown = of((500, "{}")).await.planned(create, NEW).await.unwrap_err();
    assert_eq!(unknown.status_code(), 503);
    assert!(unknown.to_string().contains("member cluster west"), "{unknown}");
    let hidden = of((403, "{}")).await.planned(create, NEW).await.unwrap();
    assert!(hidden.warning.is_some_and(|text| text.contains("west")), "told");
    // The API server makes a name that nobody has.
    let world = of((200, HAS_N)).await;
    world
        .planned(create, r#"{"metadata":{"generateName":"n"}}"#)
        .await
        .unwrap();
    let replicated = "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    world.planned(replicated, NEW).await.unwrap();
    assert_eq!(world.west.seen.requests(), 0);
}

#[tokio::test]
async fn what_is_joined_by_name_is_not_written_where_two_have_it() {
    let world = World::new((200, HAS_N), (200, HAS_OTHER_N)).await;
    for kind in [
        "/api/v1/nodes",
        "/api/v1/persistentvolumes",
        "/apis/storage.k8s.io/v1/volumeattachments",
    ] {
        let refused = world.planned(&format!("PATCH {kind}/n"), "{}").await.unwrap_err();
        assert!(
            matches!(&refused, Fault::Forbidden(text) if text.contains("/clusters/east/ or /clusters/west/")),
            "{refused}"
        );
        world.planned(&format!("GET {kind}/n"), "").await.unwrap();
    }
    // One that cannot be asked is not known to have it.
    let world = World::new((200, HAS_N), (500, "{}")).await;
    world.planned("PATCH /api/v1/persistentvolumes/n", "{}").await.unwrap();
}
