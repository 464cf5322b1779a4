//! A ConfigMap or Endpoints that is a lock, under its two names: every verb, lists and watches, in every form.

use k8s_openapi::api::core::v1::{ConfigMap, Endpoints};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use portolan_tests::door::{Answer, request};
use serde_json::{Value, json};

use super::{NAME, WEST, world};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn object(kind: &str, holder: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": kind,
        "metadata": {"name": NAME, "annotations": {"control-plane.alpha.kubernetes.io/leader": holder}},
    })
}

/// Its holder as it lies in a member, or nothing.
async fn stored(member: &str, resource: &str, name: &str) -> Option<String> {
    let door = world().await.direct_door(member).await.unwrap();
    let path = format!("/api/v1/namespaces/operators/{resource}/{name}");
    let found = door.get(&path, &[]).await.unwrap();
    let holder = &found.json()["metadata"]["annotations"]["control-plane.alpha.kubernetes.io/leader"];
    (found.status == 200).then(|| holder.as_str().unwrap_or_default().to_owned())
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

/// Every way to write it.
#[tokio::test]
async fn a_config_map_lives_under_two_names() {
    let _west = WEST.write().await;
    let world = world().await;
    let client = world
        .client(world.fleet.merged_kubeconfig("red@west"), None)
        .await
        .unwrap();
    let api = Api::<ConfigMap>::namespaced(client, "operators");
    let _ = api.delete(NAME, &DeleteParams::default()).await;
    let missing = api.get(NAME).await.unwrap_err().to_string();
    assert!(missing.contains("\"greeting-operator\" not found"), "{missing}");
    let made: ConfigMap = serde_json::from_value(object("ConfigMap", "a")).unwrap();
    let mut held = api.create(&PostParams::default(), &made).await.unwrap();
    assert_eq!(held.name_any(), NAME);
    held.data = Some([("k".to_owned(), "v".to_owned())].into());
    assert_eq!(
        api.replace(NAME, &PostParams::default(), &held)
            .await
            .unwrap()
            .name_any(),
        NAME
    );
    let conflict = api
        .replace(NAME, &PostParams::default(), &held)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        conflict.contains("\"greeting-operator\"") && !conflict.contains("---"),
        "{conflict}"
    );
    let merge = Patch::Merge(json!({"data": {"k": "w"}}));
    assert_eq!(
        api.patch(NAME, &PatchParams::default(), &merge)
            .await
            .unwrap()
            .name_any(),
        NAME
    );
    let apply = Patch::Apply(object("ConfigMap", "b"));
    let params = PatchParams::apply("operator").force();
    assert_eq!(api.patch(NAME, &params, &apply).await.unwrap().name_any(), NAME);
    assert_eq!(
        stored("west", "configmaps", "greeting-operator---red").await.as_deref(),
        Some("b")
    );
    assert_eq!(stored("west", "configmaps", NAME).await, None);
    assert_eq!(stored("east", "configmaps", NAME).await, None);

    it_is_listed_and_deleted_under_its_name(&api, &made).await;
    ordinary_ones_stay_at_home().await;
}

async fn it_is_listed_and_deleted_under_its_name(api: &Api<ConfigMap>, made: &ConfigMap) {
    let by_name = ListParams::default().fields(&format!("metadata.name={NAME}"));
    let names = |all: Vec<ConfigMap>| all.iter().map(ConfigMap::name_any).collect::<Vec<_>>();
    assert_eq!(names(api.list(&by_name).await.unwrap().items), [NAME]);
    let all = names(api.list(&ListParams::default()).await.unwrap().items);
    assert!(
        all.contains(&NAME.to_owned()) && !all.contains(&"greeting-operator---red".to_owned()),
        "{all:?}"
    );

    let dozen = api
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await;
    let refused = dozen.unwrap_err().to_string();
    assert!(refused.contains("leader locks"), "{refused}");
    let labelled = ListParams::default().labels("app=none");
    api.delete_collection(&DeleteParams::default(), &labelled)
        .await
        .unwrap();
    assert!(api.get_opt(NAME).await.unwrap().is_some());
    api.delete_collection(&DeleteParams::default(), &by_name).await.unwrap();
    assert_eq!(stored("west", "configmaps", "greeting-operator---red").await, None);
    api.create(&PostParams::default(), made).await.unwrap();
    api.delete(NAME, &DeleteParams::default()).await.unwrap();
    assert_eq!(stored("west", "configmaps", "greeting-operator---red").await, None);
}

/// ConfigMaps of other names, and that of the lock's name where no ConfigMap is the lock.
async fn ordinary_ones_stay_at_home() {
    for (shard, name) in [("red", "settings"), ("plain", NAME)] {
        let door = world().await.merged_door(shard).await.unwrap();
        let path = "/api/v1/namespaces/operators/configmaps";
        let mut map = object("ConfigMap", "none");
        map["metadata"]["name"] = json!(name);
        assert_eq!(door.post(path, &map).await.unwrap().status, 201);
        assert_eq!(stored("east", "configmaps", name).await.as_deref(), Some("none"));
        assert_eq!(stored("west", "configmaps", name).await, None);
        let path = format!("{path}/{name}");
        let gone = door
            .ask(request(http::Method::DELETE, &path, &[], &[]).unwrap())
            .await
            .unwrap();
        assert_eq!(gone.status, 200);
    }
}

/// What answers call it, in each form that a client may ask for.
#[tokio::test]
async fn answers_and_events_have_the_callers_name() {
    let _west = WEST.write().await;
    let world = world().await;
    let client = world
        .client(world.fleet.merged_kubeconfig("green"), None)
        .await
        .unwrap();
    let api = Api::<Endpoints>::namespaced(client, "operators");
    let made = serde_json::from_value(object("Endpoints", "a")).unwrap();
    let _ = api.delete(NAME, &DeleteParams::default()).await;
    api.create(&PostParams::default(), &made).await.unwrap();
    assert_eq!(
        stored("west", "endpoints", "greeting-operator---green")
            .await
            .as_deref(),
        Some("a")
    );
    let door = world.merged_door("green").await.unwrap();
    let path = "/api/v1/namespaces/operators/endpoints";
    let by_name = format!("{path}?fieldSelector=metadata.name%3D{NAME}");
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let metadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    for accept in ["application/json", PROTOBUF, table, metadata] {
        for path in [format!("{path}/{NAME}"), by_name.clone()] {
            // Of one object there is no list of metadata.
            if path.contains('?') || accept != metadata {
                let answer = door.get(&path, &[("accept", accept)]).await.unwrap();
                let text = text(&answer);
                assert_eq!(answer.status, 200, "{path} {accept}: {text}");
                assert!(text.contains(NAME) && !text.contains("---"), "{path} {accept}: {text}");
            }
        }
    }
    for accept in ["application/json", "application/vnd.kubernetes.protobuf;stream=watch"] {
        let watch = format!("{by_name}&watch=1&timeoutSeconds=2");
        let text = text(&door.get(&watch, &[("accept", accept)]).await.unwrap());
        assert!(
            text.contains("ADDED") && text.contains(NAME) && !text.contains("---"),
            "{accept}: {text}"
        );
    }
    api.delete(NAME, &DeleteParams::default()).await.unwrap();
}
