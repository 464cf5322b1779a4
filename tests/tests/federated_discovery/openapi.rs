//! OpenAPI: what kubectl explains and validates by it, in every edition and encoding.

use portolan_testbed::eventually;

use crate::{kubectl, world};

const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
const V3_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";

#[tokio::test]
async fn kubectl_explains_a_kind_of_one_member() {
    let cache = tempfile::tempdir().unwrap();
    let kubectl = kubectl(&cache).await;
    for form in ["plaintext", "plaintext-openapiv2"] {
        for (what, text) in [
            ("ports.spec", "Depth of the Port"),
            ("ships.spec.depth", "Depth of the Ship"),
        ] {
            let output = format!("--output={form}");
            let told = kubectl.ok(&["explain", what, &output]).await.unwrap();
            assert!(told.contains(text), "{form} {what}: {told}");
        }
    }
}

#[tokio::test]
async fn kubectl_validates_strictly_a_kind_of_one_member() {
    let cache = tempfile::tempdir().unwrap();
    let kubectl = kubectl(&cache).await;
    let port = |field: &str| {
        format!(
            "apiVersion: disco.test/v1\nkind: Port\nmetadata: {{name: porto, namespace: da-3}}\nspec: {{{field}: 3}}\n"
        )
    };
    let apply = ["apply", "--validate=strict", "-f", "-"];
    kubectl.ok_with(&apply, &port("depth")).await.unwrap();
    let ended = kubectl.run(&apply, &port("deepth")).await.unwrap();
    assert!(
        !ended.ok && ended.stderr.contains("unknown field") && ended.stderr.contains("deepth"),
        "{}",
        ended.stderr
    );
    let dry = kubectl
        .run(
            &["apply", "--dry-run=server", "--validate=strict", "-f", "-"],
            &port("depth"),
        )
        .await
        .unwrap();
    assert!(dry.ok, "{}", dry.stderr);
}

#[tokio::test]
async fn a_document_by_its_hash_is_for_ever_and_an_old_hash_leads_to_the_new() {
    let door = world().await.merged_door("alpha").await.unwrap();
    let direct = world().await.direct_door("east").await.unwrap();
    // A member may publish its kinds one after another for a while: the document of then has another hash.
    let index = eventually("the index and its documents are of one moment", || async {
        let index = door.get("/openapi/v3", &[]).await.unwrap().json();
        let url = index["paths"]["apis/disco.test/v1"]["serverRelativeURL"].as_str()?;
        (door.get(url, &[]).await.unwrap().status == 200).then_some(index)
    })
    .await;
    let theirs = direct.get("/openapi/v3", &[]).await.unwrap().json();
    for (path, alike) in [("apis/apps/v1", true), ("apis/disco.test/v1", false)] {
        let url = index["paths"][path]["serverRelativeURL"].as_str().unwrap();
        assert_eq!(index["paths"][path] == theirs["paths"][path], alike, "{path}");
        for accept in ["application/json", V3_PROTOBUF] {
            let answer = door.get(url, &[("accept", accept)]).await.unwrap();
            assert_eq!(
                (answer.status, answer.header("cache-control")),
                (200, "public, immutable"),
                "{url}"
            );
            assert!(!answer.header("expires").is_empty() && answer.header("vary").contains("Accept"));
        }
        let old = format!("/openapi/v3/{path}?hash=OLD");
        let moved = door.get(&old, &[]).await.unwrap();
        assert_eq!((moved.status, moved.header("location")), (301, url));
    }
    let unlike = door
        .get(
            index["paths"]["apis/disco.test/v1"]["serverRelativeURL"]
                .as_str()
                .unwrap(),
            &[],
        )
        .await
        .unwrap();
    let schemas = unlike.json()["components"]["schemas"].clone();
    for kind in ["test.disco.v1.Port", "test.disco.v1.Ship"] {
        assert!(schemas[kind].is_object(), "{kind}");
    }
}

#[tokio::test]
async fn the_second_edition_has_all_kinds_in_both_encodings() {
    let door = world().await.merged_door("alpha").await.unwrap();
    let json = door
        .get("/openapi/v2", &[("accept", "application/json")])
        .await
        .unwrap();
    let document = json.json();
    for kind in ["test.disco.v1.Port", "test.disco.v1.Ship", "io.k8s.api.core.v1.Pod"] {
        assert!(document["definitions"][kind].is_object(), "{kind}");
    }
    assert!(document["paths"]["/apis/disco.test/v1/ports"].is_object());
    let protobuf = door.get("/openapi/v2", &[("accept", V2_PROTOBUF)]).await.unwrap();
    assert!(
        protobuf.header("content-type").contains("protobuf"),
        "{}",
        protobuf.header("content-type")
    );
    for name in ["test.disco.v1.Port", "test.disco.v1.Ship", "/apis/disco.test/v1/ports"] {
        let found = protobuf
            .body
            .windows(name.len())
            .any(|window| window == name.as_bytes());
        assert!(found, "{name}");
    }
    let packed = door.get("/openapi/v2", &[("accept-encoding", "gzip")]).await.unwrap();
    assert_eq!(
        (
            packed.header("content-encoding"),
            packed.body.len() * 4 < json.body.len()
        ),
        ("gzip", true)
    );
}
