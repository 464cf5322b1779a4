//! Leader election: every shard has a Lease of its own in its primary cluster, and its operator does not know.

use http::Method;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Api;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use portolan_testbed::eventually;
use portolan_tests::door::{Door, json as json_request, request};
use serde_json::json;

use crate::world;

const NAME: &str = "greeting-operator";
const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/operators/leases";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

async fn leases(shard: &str) -> Api<Lease> {
    let world = world().await;
    let client = world.client(world.fleet.merged_kubeconfig(shard), None).await.unwrap();
    Api::namespaced(client, "operators")
}

fn lease(holder: &str) -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(NAME.into()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        }),
    }
}

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().unwrap().holder_identity.as_deref().unwrap()
}

/// `holder` of a Lease as it lies in a member, or nothing.
async fn stored(member: &str, name: &str) -> Option<String> {
    let client = world().await.cluster(member).client().await.unwrap();
    let found = Api::<Lease>::namespaced(client, "operators")
        .get_opt(name)
        .await
        .unwrap();
    found.map(|lease| holder(&lease).to_owned())
}

#[tokio::test]
async fn two_shards_hold_the_same_lease_side_by_side() {
    for shard in ["alpha", "beta"] {
        let api = leases(shard).await;
        let missing = api.get(NAME).await.unwrap_err().to_string();
        assert!(missing.contains("\"greeting-operator\" not found"), "{missing}");
        let created = api.create(&PostParams::default(), &lease(shard)).await.unwrap();
        assert_eq!(created.metadata.name.as_deref(), Some(NAME));
        let again = api
            .create(&PostParams::default(), &lease(shard))
            .await
            .unwrap_err()
            .to_string();
        assert!(again.contains("\"greeting-operator\" already exists"), "{again}");
    }
    for shard in ["alpha", "beta"] {
        lives_under_two_names(shard).await;
    }
    assert_eq!(
        stored("east", NAME).await,
        None,
        "nobody has it under the operator's name"
    );
    leases("alpha")
        .await
        .delete(NAME, &DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(stored("east", "greeting-operator---alpha").await, None);
    assert_eq!(holder(&leases("beta").await.get(NAME).await.unwrap()), "beta-5");
}

/// What a watch from `cursor` tells when the holder changes.
async fn watch(shard: &str, cursor: &str) -> String {
    let door = world().await.merged_door(shard).await.unwrap();
    let query = format!("watch=1&fieldSelector=metadata.name%3D{NAME}&resourceVersion={cursor}&timeoutSeconds=5");
    let path = format!("{PATH}?{query}");
    let (patch, params) = (
        Patch::Merge(json!({"spec": {"holderIdentity": format!("{shard}-5")}})),
        PatchParams::default(),
    );
    let api = leases(shard).await;
    let changing = api.patch(NAME, &params, &patch);
    let (told, changed) = tokio::join!(door.get(&path, &[]), changing);
    changed.unwrap();
    String::from_utf8(told.unwrap().body.to_vec()).unwrap()
}

/// Every way to change or read the Lease that `shard` holds.
async fn lives_under_two_names(shard: &str) {
    let api = leases(shard).await;
    let mut held = api.get(NAME).await.unwrap();
    assert_eq!((held.metadata.name.as_deref(), holder(&held)), (Some(NAME), shard));
    let old = held.clone();
    held.spec.as_mut().unwrap().holder_identity = Some(format!("{shard}-2"));
    let renewed = api.replace(NAME, &PostParams::default(), &held).await.unwrap();
    assert_eq!(
        (renewed.metadata.name.as_deref(), holder(&renewed)),
        (Some(NAME), &*format!("{shard}-2"))
    );
    let conflict = api
        .replace(NAME, &PostParams::default(), &old)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        conflict.contains("\"greeting-operator\"") && !conflict.contains("---"),
        "{conflict}"
    );
    let patch = Patch::Merge(json!({"spec": {"holderIdentity": format!("{shard}-3")}}));
    let patched = api.patch(NAME, &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(
        (patched.metadata.name.as_deref(), holder(&patched)),
        (Some(NAME), &*format!("{shard}-3"))
    );
    let apply = Patch::Apply(json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NAME},
        "spec": {"holderIdentity": format!("{shard}-4")},
    }));
    let applied = api
        .patch(NAME, &PatchParams::apply("operator").force(), &apply)
        .await
        .unwrap();
    assert_eq!(applied.metadata.name.as_deref(), Some(NAME));
    let listed = api
        .list(&ListParams::default().fields(&format!("metadata.name={NAME}")))
        .await
        .unwrap();
    let cursor = listed.metadata.resource_version.unwrap();
    assert!(cursor.len() >= 24, "{cursor}");
    let watched = watch(shard, &cursor).await;
    assert!(
        watched.contains(&format!("{shard}-5")) && !watched.contains("---"),
        "{watched}"
    );
    assert_eq!(
        (listed.items.len(), listed.items[0].metadata.name.as_deref()),
        (1, Some(NAME))
    );
    assert_eq!(
        stored("east", &format!("{NAME}---{shard}")).await,
        Some(format!("{shard}-5"))
    );
    assert_eq!(stored("west", &format!("{NAME}---{shard}")).await, None);
}

#[tokio::test]
async fn the_primary_holds_it_and_all_others() {
    let api = leases("audit").await;
    api.create(&PostParams::default(), &lease("audit")).await.unwrap();
    assert_eq!(
        stored("west", "greeting-operator---audit").await.as_deref(),
        Some("audit")
    );
    assert_eq!(stored("east", "greeting-operator---audit").await, None);
    let mut other = lease("other");
    other.metadata.name = Some("another-lease".into());
    api.create(&PostParams::default(), &other).await.unwrap();
    assert_eq!(stored("west", "another-lease").await.as_deref(), Some("other"));
    assert_eq!(stored("east", "another-lease").await, None);
}

/// Both callers of `both`, in east and in west; primary is west.
#[tokio::test]
async fn callers_of_two_clusters_hold_one_lease() {
    let (east, west) = (leases("both").await, leases("both@west").await);
    east.create(&PostParams::default(), &lease("in-east")).await.unwrap();
    let second = west.create(&PostParams::default(), &lease("in-west")).await;
    assert!(second.unwrap_err().to_string().contains("already exists"));
    assert_eq!(holder(&west.get(NAME).await.unwrap()), "in-east");
    assert_eq!(
        stored("west", "greeting-operator---both").await.as_deref(),
        Some("in-east")
    );
    assert_eq!(stored("east", NAME).await, None);

    // One that was held at home before goes on there, and is nobody else's meanwhile.
    let at_home = world().await.cluster("east").client().await.unwrap();
    let at_home = Api::<Lease>::namespaced(at_home, "operators");
    let mut kept = lease("in-east");
    kept.metadata.name = Some("kept".into());
    let now = k8s_openapi::jiff::Timestamp::now();
    let renewed = |at| Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(at));
    kept.spec.as_mut().unwrap().renew_time = renewed(now);
    at_home.create(&PostParams::default(), &kept).await.unwrap();
    let mut held = east.get("kept").await.unwrap();
    assert_eq!(holder(&held), "in-east");
    let spec = held.spec.as_mut().unwrap();
    spec.renew_time = renewed(now - std::time::Duration::from_mins(1));
    east.replace("kept", &PostParams::default(), &held).await.unwrap();
    assert_eq!(stored("west", "kept").await, None);
    let expired = east.get("kept").await.unwrap_err().to_string();
    assert!(expired.contains("not found"), "{expired}");
    east.create(&PostParams::default(), &kept).await.unwrap();
    assert_eq!(holder(&west.get("kept").await.unwrap()), "in-east");
    assert_eq!(stored("west", "kept").await.as_deref(), Some("in-east"));

    let both = world().await.direct("hub");
    let message = r#"{.status.conditions[?(@.type=="OneLeader")].message}"#;
    let asked = [
        "get",
        "shard",
        "both",
        "-n",
        "operators",
        "-o",
        &format!("jsonpath={message}"),
    ];
    eventually("the shard says that another Lease is renewed", || async {
        let told = both.ok(&asked).await?;
        anyhow::ensure!(told.contains("kept"), "{told}");
        Ok(())
    })
    .await;
}

/// As client-go's leader election does it: protobuf both ways.
#[tokio::test]
async fn protobuf_is_renamed_too() {
    let world = world().await;
    let door = world.merged_door("gamma").await.unwrap();
    let direct = world.direct_door("east").await.unwrap();
    let object = serde_json::to_value(lease("gamma-1")).unwrap();
    assert_eq!(door.post(PATH, &object).await.unwrap().status, 201);
    let path = format!("{PATH}/{NAME}");
    let named = |body: &[u8], name: &str| body.windows(name.len()).any(|window| window == name.as_bytes());
    let held = door.get(&path, &[("accept", PROTOBUF)]).await.unwrap();
    assert!(
        held.body.starts_with(b"k8s\0") && named(&held.body, NAME),
        "{:?}",
        held.body
    );
    assert!(!named(&held.body, "---gamma"), "{:?}", held.body);

    let mut body = held.body.to_vec();
    let at = body.windows(7).position(|window| window == b"gamma-1").unwrap();
    body[at + 6] = b'2';
    let headers = [("content-type", PROTOBUF), ("accept", PROTOBUF)];
    let put = door
        .ask(request(Method::PUT, &path, &headers, &body).unwrap())
        .await
        .unwrap();
    assert_eq!(put.status, 200, "{:?}", put.body);
    assert!(
        named(&put.body, "gamma-2") && !named(&put.body, "---gamma"),
        "{:?}",
        put.body
    );
    assert_eq!(
        stored("east", "greeting-operator---gamma").await.as_deref(),
        Some("gamma-2")
    );
    let raw = direct
        .get(&format!("{path}---gamma"), &[("accept", PROTOBUF)])
        .await
        .unwrap();
    assert!(named(&raw.body, "greeting-operator---gamma"));
    made_anew(&door, &body).await;
}

/// After a DELETE: an update finds nothing, a create makes it under the shard's name.
async fn made_anew(door: &Door, body: &[u8]) {
    let path = format!("{PATH}/{NAME}");
    let headers = [("content-type", PROTOBUF), ("accept", PROTOBUF)];
    assert_eq!(
        door.ask(request(Method::DELETE, &path, &[], &[]).unwrap())
            .await
            .unwrap()
            .status,
        200
    );
    let gone = door
        .ask(request(Method::PUT, &path, &headers, body).unwrap())
        .await
        .unwrap();
    assert!(
        gone.status == 404 || gone.status == 409,
        "{} {:?}",
        gone.status,
        gone.body
    );
    let created = door
        .ask(request(Method::POST, PATH, &headers, &new_lease()).unwrap())
        .await
        .unwrap();
    assert_eq!(created.status, 201, "{:?}", String::from_utf8_lossy(&created.body));
    assert_eq!(
        stored("east", "greeting-operator---gamma").await.as_deref(),
        Some("gamma-2")
    );
    door.ask(request(Method::DELETE, &path, &[], &[]).unwrap())
        .await
        .unwrap();
}

/// A protobuf Lease as a client makes it: `k8s\0`, Unknown{TypeMeta, raw Lease{ObjectMeta{name}, spec{holder}}}.
fn new_lease() -> Vec<u8> {
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
        out.extend_from_slice(bytes);
        out
    }
    let types = [field(1, b"coordination.k8s.io/v1"), field(2, b"Lease")].concat();
    let object = [field(1, &field(1, NAME.as_bytes())), field(2, &field(1, b"gamma-2"))].concat();
    [b"k8s\0".to_vec(), field(1, &types), field(2, &object)].concat()
}

#[tokio::test]
async fn kubectl_and_watchers_are_told() {
    let world = world().await;
    let door = world.merged_door("taker").await.unwrap();
    let object = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NAME}});
    let made = door
        .ask(json_request(Method::POST, PATH, &object).unwrap())
        .await
        .unwrap();
    assert_eq!(made.json()["metadata"]["name"], NAME);
    let kubectl = world.merged("taker");
    let shown = kubectl.ok(&["get", "lease", NAME]).await.unwrap();
    assert!(shown.contains(NAME) && !shown.contains("---"), "{shown}");
    kubectl.ok(&["annotate", "lease", NAME, "note=x"]).await.unwrap();
    let note = "-o=jsonpath={.metadata.annotations.note}";
    let stored = ["get", "lease", "greeting-operator---taker", "-n", "operators", note];
    assert_eq!(world.direct("east").ok(&stored).await.unwrap(), "x");
    let watch = format!("{PATH}?watch=true&timeoutSeconds=5&fieldSelector=metadata.name%3D{NAME}");
    let json = door.get(&watch, &[]).await.unwrap();
    let line = json.body.split(|byte| *byte == b'\n').next().unwrap();
    let event: serde_json::Value = serde_json::from_slice(line).unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["metadata"]["name"]),
        (&json!("ADDED"), &json!(NAME))
    );
    let accept = [("accept", "application/vnd.kubernetes.protobuf;stream=watch")];
    let protobuf = door.get(&watch, &accept).await.unwrap();
    let text = String::from_utf8_lossy(&protobuf.body);
    assert!(
        text.contains("ADDED") && text.contains(NAME) && !text.contains("---taker"),
        "{text}"
    );
}

/// Pods and ConfigMaps of the callers' namespace are the home's, its Leases the primary's, whose garbage collector sees no other's.
#[tokio::test]
async fn a_lease_is_not_made_the_child_of_another_members_object() {
    let world = world().await;
    let door = world.merged_door("both").await.unwrap();
    let uid = async |member: &str| {
        let door = world.direct_door(member).await.unwrap();
        let object = door
            .get("/api/v1/namespaces/operators/configmaps/where", &[])
            .await
            .unwrap();
        object.json()["metadata"]["uid"].clone()
    };
    let lease = |name: &str, uid: &serde_json::Value| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {
                "name": name,
                "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "where", "uid": uid}],
            },
        })
    };
    let (east, west) = (uid("east").await, uid("west").await);
    for name in [NAME, "owned-other"] {
        let refused = door.post(PATH, &lease(name, &east)).await.unwrap();
        refused
            .expect_status(403, &["ConfigMap where", "east", "west", "garbage collector"])
            .unwrap();
    }
    let made = door.post(PATH, &lease("owned-other", &west)).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.message());
    let renewed = json_request(
        Method::PUT,
        &format!("{PATH}/owned-other"),
        &lease("owned-other", &east),
    )
    .unwrap();
    let refused = door.ask(renewed).await.unwrap();
    refused.expect_status(403, &["ConfigMap where"]).unwrap();
}
