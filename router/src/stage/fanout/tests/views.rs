//! Watches from older views of the shard, from an object's version, and of a namespace that has left.

use portolan_merge::cursor::Format;
use portolan_wire::v1;
use portolan_wire::v1::resource::Body as Told;

use super::*;
use crate::decision::plan::{self, Left, Plan};
use crate::value::kinds::{Kind, Kinds, MemberKinds, Scope};
use crate::value::snapshot::told;

/// The caller has `a` of east since revision 2 and `d` since 9, and `w` of any other.
fn shard(members: &[&str]) -> Vec<Told> {
    let grant = |(namespace, view_revision): (&str, u64)| v1::NamespaceGrant {
        namespace: namespace.to_owned(),
        state: v1::GrantState::Granted.into(),
        view_revision,
        ..v1::NamespaceGrant::default()
    };
    let shard = told::Shard {
        rules: v1::Shard {
            primary_cluster: "east".into(),
            enforcement: v1::Enforcement::Enforce.into(),
            label_prefix: "ctrlmesh.kusionstack.io/".into(),
            ..v1::Shard::default()
        },
        members: members
            .iter()
            .map(|cluster| told::MemberGrant {
                cluster: (*cluster).into(),
                all_namespaces: false,
                namespaces: match *cluster {
                    "east" => [("a", 2), ("d", 9)].map(grant).to_vec(),
                    _ => vec![grant(("w", 2))],
                },
                ..told::MemberGrant::default()
            })
            .collect(),
    };
    let view = told::CallerView {
        created_unix_seconds: None,
        writes_closed: None,
        policies: Vec::new(),
        home_cluster: "east".into(),
        pod_uid: "u".into(),
        namespace: "ns".into(),
        pod: "operator-0".into(),
        service_account: "operator".into(),
        shards: vec!["ops/blue".into()],
        shard: Some(shard),
    };
    let mut bodies = view.bodies();
    bodies.extend(members.iter().map(|cluster| {
        Told::MemberIdentity(v1::MemberIdentity {
            cluster: (*cluster).into(),
            allowed_service_accounts: vec!["ns/operator".into()],
            ..v1::MemberIdentity::default()
        })
    }));
    bodies
}

/// Members, and a caller whose shard is known.
async fn sharded(members: &[&'static str]) -> World {
    let mut world = World::new(members).await;
    let applied = told::upsert(&world.fanouts.routing.load().snapshot, "2", shard(members));
    assert_eq!(applied.rejected, []);
    let snapshot = applied.snapshot;
    world.caller = Caller::Pod(snapshot.callers.values().next().unwrap().clone());
    let uri = format!("{PODS}?watch=1").parse().unwrap();
    let asked = classify(&Method::GET, &uri, &HeaderMap::new()).unwrap();
    let planned = plan::plan(&world.caller, &asked, &snapshot, &Kinds::default()).plan;
    let Plan::FanOut(plan) = planned else {
        panic!("{planned:?}")
    };
    world.universe = Arc::new(plan.universe.as_ref().clone().identified("uid", "hub", 9, Format::Two));
    world.plan = FanOut {
        universe: world.universe.clone(),
        ..*plan
    };
    let routing = RoutingStore::of(snapshot);
    let fanouts = Arc::get_mut(&mut world.fanouts).unwrap();
    fanouts.replanner = Replanner::new(routing.clone());
    fanouts.routing = routing;
    world
}

fn object(namespace: &str, version: u64) -> Bytes {
    let meta = json!({"name": namespace, "namespace": namespace, "uid": "u", "resourceVersion": version.to_string()});
    let object = json!({"kind": "Pod", "apiVersion": "v1", "metadata": meta});
    format!("{}\n", json!({"type": "ADDED", "object": object})).into()
}

/// A page of a list as of this view revision, of which the member sends these objects, and more; where the member was asked.
async fn page(world: &mut World, revision: u64, on: &str, sent: &[&str]) -> (StatusCode, Value, String) {
    let request = Request::builder()
        .uri(format!("{PODS}?limit=2{on}"))
        .header("accept", "application/json")
        .body(())
        .unwrap();
    let (head, ()) = request.into_parts();
    let asked = classify(&Method::GET, &head.uri, &head.headers).unwrap();
    let fan = Fan {
        plan: FanOut {
            universe: Arc::new(world.universe.at(revision)),
            watch: false,
            ..world.plan.clone()
        },
        asking: Asking::new(asked, &head, world.caller.clone(), Context::new()),
        routing: world.fanouts.routing.load(),
    };
    let answers = async {
        let mut asked = world.members[0].asked().await;
        let items: Vec<Value> = sent
            .iter()
            .map(|namespace| json!({"metadata": {"name": "x", "namespace": namespace, "uid": "u", "resourceVersion": "5"}}))
            .collect();
        let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "10", "continue": "m"}, "items": items});
        let mut stream = asked.respond.send_response(head_of_json(), false).unwrap();
        stream.send_data(list.to_string().into(), true).unwrap();
        asked.path
    };
    let fanouts = world.fanouts.clone();
    let answered = async { fanouts.run(fan).await.unwrap() };
    let (response, path) = tokio::join!(answered, answers);
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap(), path)
}

fn head_of_json() -> Response<()> {
    let mut head = head(200);
    head.headers_mut()
        .insert("content-type", http::HeaderValue::from_static("application/json"));
    head
}

#[tokio::test]
async fn pages_of_an_older_view_go_on_with_what_was_the_shards_then_and_is_now() {
    let mut world = sharded(&["east"]).await;
    let shown = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap().iter();
        items
            .map(|item| item["metadata"]["namespace"].as_str().unwrap().to_owned())
            .collect()
    };
    let next = |list: &Value| format!("&continue={}", list["metadata"]["continue"].as_str().unwrap());
    let (status, first, _) = page(&mut world, 5, "", &["a"]).await;
    assert_eq!((status, shown(&first)), (StatusCode::OK, vec!["a".to_owned()]));
    // It has `d` since 9: a watch from the first page's cursor tells of it.
    let (status, second, path) = page(&mut world, 9, &next(&first), &["a", "d", "z"]).await;
    assert_eq!(
        (status, shown(&second)),
        (StatusCode::OK, vec!["a".to_owned()]),
        "{second}"
    );
    assert!(path.contains("continue=m"), "{path}");
    let version = |list: &Value| list["metadata"]["resourceVersion"].clone();
    assert_eq!(version(&second), version(&first));
    let (_, third, _) = page(&mut world, 9, &next(&second), &["d"]).await;
    assert_eq!((shown(&third), version(&third)), (vec![], version(&first)));
    let (_, new, _) = page(&mut world, 9, "", &["a", "d"]).await;
    assert_eq!(shown(&new), ["a", "d"], "a new list has all");
}

#[tokio::test]
async fn what_came_is_read_by_a_watch_where_its_member_does_not_list_it() {
    let mut world = sharded(&["east"]).await;
    let older = {
        let mut cursor = Cursor::new(&world.universe.at(5));
        cursor.set(world.plan.legs[0].slot, Slot::At(10));
        cursor.encode().unwrap()
    };
    let started = world.start(&format!("resourceVersion={older}&allowWatchBookmarks=true"));
    let (_, _stream) = world.members[0].opens().await;
    let mut watch = started.await.unwrap().unwrap();
    let mending = async {
        // Not with a field selector, and not without.
        for _ in 0..2 {
            world.members[0].refuses(400).await;
        }
        let (path, mut entering) = world.members[0].opens().await;
        assert!(path.contains("sendInitialEvents=true"), "{path}");
        entering
            .send_data([object("d", 8), bookmark(12, true)].concat().into(), false)
            .unwrap();
        let (path, mut stream) = world.members[0].opens().await;
        assert!(path.contains("resourceVersion=10&"), "{path}");
        let more = [object("d", 11), object("a", 12), object("d", 13)];
        stream.send_data(more.concat().into(), false).unwrap();
        (entering, stream)
    };
    let reading = async {
        for name in ["d", "a", "d"] {
            watch.expect("ADDED", name).await;
        }
    };
    let _streams = tokio::join!(mending, reading);
}

#[tokio::test]
async fn a_watch_from_an_older_view_is_told_of_the_new_one() {
    let mut world = sharded(&["east"]).await;
    let older = {
        let mut cursor = Cursor::new(&world.universe.at(5));
        cursor.set(world.plan.legs[0].slot, Slot::At(10));
        cursor.encode().unwrap()
    };
    let now = {
        let mut cursor = Cursor::new(&world.universe);
        cursor.set(world.plan.legs[0].slot, Slot::At(10));
        cursor.encode().unwrap()
    };
    let started = world.start(&format!("resourceVersion={older}&allowWatchBookmarks=true"));
    let (path, _stream) = world.members[0].opens().await;
    assert!(path.contains("resourceVersion=10&"), "{path}");
    let mut watch = started.await.unwrap().unwrap();
    let mending = async {
        let (path, mut entering) = world.members[0].opens().await;
        for word in [
            "resourceVersion=10&",
            "resourceVersionMatch=Exact",
            "fieldSelector=metadata.namespace",
        ] {
            assert!(path.contains(word) && !path.contains("watch="), "{path}");
        }
        let item: Value = serde_json::from_slice(&object("d", 8)).unwrap();
        let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "10"}, "items": [item["object"]]});
        entering.send_data(list.to_string().into(), true).unwrap();
        let (path, mut stream) = world.members[0].opens().await;
        assert!(
            path.contains("resourceVersion=10&") && !path.contains("fieldSelector"),
            "{path}"
        );
        stream
            .send_data([object("a", 12), object("d", 13)].concat().into(), false)
            .unwrap();
        (entering, stream)
    };
    let reading = async {
        watch.expect("ADDED", "d").await;
        // All of it is told as of where the client stood.
        assert_eq!(watch.bookmark().await, now);
        watch.expect("ADDED", "a").await;
        watch.expect("ADDED", "d").await;
    };
    let _streams = tokio::join!(mending, reading);
    foreign_views_wait(&mut world).await;
}

/// Of another shard: what was whose there only the hub can say, and there is none.
async fn foreign_views_wait(world: &mut World) {
    let foreign = Universe::new("x", ["y".to_owned()]).identified("x", "y", 1, Format::Two);
    let started = world.start(&format!("resourceVersion={}", Cursor::new(&foreign).encode().unwrap()));
    match started.await.unwrap() {
        Err(Fault::TooManyRequests { message, .. }) => {
            assert!(message.contains("the hub cannot be asked"), "{message}");
        }
        other => panic!("{:?}", other.map(|watch| watch.status)),
    }
}

/// Who serves nothing of a kind is asked again now and then, and at once when its discovery says that it does.
#[tokio::test]
async fn a_member_that_begins_to_serve_the_kind_is_asked_at_once() {
    let mut world = sharded(&["east", "west"]).await;
    let Asking { asked, caller, .. } = world.ask("").asking;
    (_, world.plan, _) = world.fanouts.replanner.merged_now(&asked, &caller).unwrap();
    let started = world.start("");
    let (_, mut east) = world.members[0].opens().await;
    east.send_data(bookmark(5, true), false).unwrap();
    world.members[1].refuses(404).await;
    let mut watch = started.await.unwrap().unwrap();
    let warning = watch.headers["warning"].to_str().unwrap();
    assert!(warning.contains("west does not serve pods as v1"), "{warning}");
    assert_eq!(world.leg(1).0, "absent");
    let tasks = Tasks::new();
    tasks.spawn("replan", world.fanouts.replanner.clone().run(tasks.clone()));
    let (west, routing) = (&mut world.members[1], world.fanouts.routing.clone());
    let begun = std::time::Instant::now();
    let begins = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let mut pods = MemberKinds::default();
        let kind = Kind {
            scope: Scope::Namespaced,
            kind: "Pod".to_owned(),
            versions: vec!["v1".to_owned()],
            verbs: std::collections::BTreeSet::default(),
        };
        pods.add("", "pods", kind);
        routing.set_kinds(&"west".into(), "uid-west", &Arc::new(pods));
        let (_, mut west) = west.opens().await;
        west.send_data([object("w", 21), bookmark(22, true)].concat().into(), false)
            .unwrap();
        west
    };
    let (_west, ()) = tokio::join!(begins, watch.expect("ADDED", "w"));
    assert!(begun.elapsed() < Duration::from_secs(3), "not with the next look");
}

#[tokio::test]
async fn an_objects_version_is_asked_of_the_only_member_that_can_have_sent_it() {
    let mut world = World::new(&["east"]).await;
    let expired = world.start("resourceVersion=734").await.unwrap().unwrap().next().await;
    assert_eq!(expired.unwrap()["object"]["code"], 410);
    world.plan.only_member = true;
    let (mut watch, mut streams) = world.open("resourceVersion=734&allowWatchBookmarks=true").await;
    assert!(streams[0].0.contains("resourceVersion=734&"), "{}", streams[0].0);
    streams[0].1.send_data(event("ADDED", "b", 740), false).unwrap();
    watch.expect("ADDED", "b").await;
    assert_eq!(watch.bookmark().await, world.cursor(&[740]));
}

#[tokio::test]
async fn who_was_told_that_a_namespace_left_is_refused() {
    let mut world = World::new(&["east"]).await;
    world.plan.left = Some(Left {
        revision: 7,
        message: "it has left".to_owned(),
    });
    let told = format!("resourceVersion={}", world.cursor(&[10]));
    match world.start(&told).await.unwrap() {
        Err(Fault::Forbidden(why)) => assert_eq!(why, "it has left"),
        other => panic!("{:?}", other.map(|watch| watch.status)),
    }
    // By nobody's cursor: from before, or the first time.
    let (watch, _streams) = world
        .open("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
        .await;
    assert_eq!(watch.status, StatusCode::OK);
    let before = world.start("resourceVersion=123456789012345678901234567890").await;
    let last = before.unwrap().unwrap().next().await.unwrap();
    assert_eq!(last["object"]["code"], 410);
}
