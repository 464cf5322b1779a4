//! Answers are the member's own: status, headers and body, in every format a client can ask for.

use http::{HeaderMap, Method, Request};
use portolan_tests::door::{Answer, json, request};
use serde_json::json;

use crate::{labelled, world};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// Differ from one request to the next, or tell who asked.
const VOLATILE: [&str; 4] = [
    "date",
    "audit-id",
    "x-kubernetes-pf-flowschema-uid",
    "x-kubernetes-pf-prioritylevel-uid",
];

/// Headers worth comparing, as sorted text.
fn comparable(headers: &HeaderMap) -> Vec<String> {
    let mut lines: Vec<String> = headers
        .iter()
        .filter(|(name, _)| !VOLATILE.contains(&name.as_str()) && *name != "via")
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap_or("?")))
        .collect();
    lines.sort();
    lines
}

/// Sends the same request to east directly and through the router; what differs, or the answer.
async fn compared(what: &Request<Vec<u8>>) -> Result<Answer, String> {
    let world = world().await;
    let direct = world.direct_door("east").await.unwrap();
    let routed = world.explicit_door("east").await.unwrap();
    let wanted = direct.ask(what.clone()).await.unwrap();
    let got = routed.ask(what.clone()).await.unwrap();
    let line = format!("{} {} {:?}", what.method(), what.uri(), what.headers());
    let same_headers = comparable(&got.headers) == comparable(&wanted.headers);
    let volatile = |name: &&str| got.headers.contains_key(*name) == wanted.headers.contains_key(*name);
    let same = got.status == wanted.status && same_headers && got.body == wanted.body;
    if !same || !VOLATILE.iter().all(volatile) || got.header("via") != "1.1 portolan" {
        return Err(format!("{line}: {got:?} is not {wanted:?}"));
    }
    Ok(got)
}

async fn same(what: &Request<Vec<u8>>) -> Answer {
    compared(what).await.unwrap_or_else(|difference| panic!("{difference}"))
}

async fn same_get(path: &str, headers: &[(&str, &str)]) -> Answer {
    let what = request(Method::GET, path, headers, &[]).unwrap();
    // An age in a Table may turn between the two.
    match compared(&what).await {
        Ok(answer) => answer,
        Err(_) => same(&what).await,
    }
}

/// A namespace with some ConfigMaps, two of them large; returns the resourceVersion of a list of them.
async fn configmaps(namespace: &str) -> String {
    let world = world().await;
    world.namespace("east", namespace).await.unwrap();
    let door = world.direct_door("east").await.unwrap();
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    for name in ["a", "b", "c", "d"] {
        let filler = "portolan ".repeat(if name < "c" { 10_000 } else { 1 });
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"name": name}},
            "data": {"filler": filler, "quote": "<&>\u{2028}"},
        });
        assert_eq!(door.post(&path, &object).await.unwrap().status, 201);
    }
    labelled(&door, &path).await
}

#[tokio::test]
async fn objects_in_every_format() {
    let at = configmaps("formats").await;
    let base = "/api/v1/namespaces/formats/configmaps";
    let exact = format!("{base}?resourceVersion={at}&resourceVersionMatch=Exact");
    for accept in ["application/json", PROTOBUF, TABLE, METADATA, "application/yaml", "*/*"] {
        let lists = accept != METADATA;
        for path in [Some(format!("{base}/c")), lists.then(|| exact.clone())]
            .into_iter()
            .flatten()
        {
            let answer = same_get(&path, &[("accept", accept)]).await;
            assert_eq!(answer.status, 200, "{accept}");
            assert_eq!(accept == PROTOBUF, answer.body.starts_with(b"k8s\0"), "{accept}");
        }
    }
    let first = same_get(&format!("{exact}&limit=2"), &[]).await.json();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = same_get(&format!("{base}?limit=2&continue={token}"), &[]).await.json();
    assert_eq!(second["items"][1]["metadata"]["name"], "d");
    let selected = same_get(&format!("{exact}&labelSelector=name%20in%20(a,d),!absent"), &[]).await;
    assert_eq!(selected.json()["items"].as_array().unwrap().len(), 2);
    let twice = same_get(&format!("{exact}&fieldSelector=metadata.name%3Da&unknown&pretty"), &[]).await;
    assert!(twice.body.contains(&b'\n'), "?pretty is heard");
}

#[tokio::test]
async fn compressed_bodies_pass_as_they_are() {
    let at = configmaps("gzip").await;
    let path = format!("/api/v1/namespaces/gzip/configmaps?resourceVersion={at}&resourceVersionMatch=Exact");
    let plain = same_get(&path, &[]).await;
    assert!(plain.body.len() > 160_000 && plain.header("content-encoding").is_empty());
    let packed = same_get(&path, &[("accept-encoding", "gzip")]).await;
    assert_eq!(packed.header("content-encoding"), "gzip");
    assert!(packed.body.starts_with(&[0x1f, 0x8b]) && packed.body.len() < 20_000);
}

#[tokio::test]
async fn discovery_openapi_and_health() {
    for (path, accept) in [
        ("/version", "*/*"),
        ("/api", AGGREGATED),
        ("/apis", AGGREGATED),
        ("/apis", "application/json"),
        ("/apis/apps/v1", "application/json"),
        ("/openapi/v3", "application/json"),
        ("/openapi/v3/apis/apps/v1", "application/json"),
        (
            "/openapi/v3/apis/apps/v1",
            "application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
        ),
        (
            "/openapi/v2",
            "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
        ),
        ("/readyz?verbose", "*/*"),
        ("/livez/ping", "*/*"),
        ("/readyz/etcd?verbose=1", "*/*"),
        ("/openid/v1/jwks", "*/*"),
        ("/.well-known/openid-configuration", "*/*"),
    ] {
        let answer = same_get(path, &[("accept", accept)]).await;
        assert_eq!(answer.status, 200, "{path}");
    }
    let packed = same_get("/openapi/v2", &[("accept-encoding", "gzip")]).await;
    assert_eq!(packed.header("content-encoding"), "gzip");
}

#[tokio::test]
async fn etags_spare_the_body() {
    for path in ["/openapi/v3/api/v1", "/openapi/v2", "/apis"] {
        let accept = (
            "accept",
            if path == "/apis" {
                AGGREGATED
            } else {
                "application/json"
            },
        );
        let whole = same_get(path, &[accept]).await;
        let etag = whole.header("etag").to_owned();
        assert!(whole.body.len() > 1000 && !etag.is_empty(), "{path}");
        let again = same_get(path, &[accept, ("if-none-match", &etag)]).await;
        assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
    }
}

#[tokio::test]
async fn refusals_are_the_members_own() {
    configmaps("refusals").await;
    let base = "/api/v1/namespaces/refusals/configmaps";
    for (path, accept, status) in [
        (format!("{base}/none"), "*/*", 404),
        ("/api/v1/nothing".into(), "*/*", 404),
        ("/nothing/at/all".into(), "*/*", 404),
        ("/apis/absent.example/v1".into(), "*/*", 404),
        (format!("{base}/c"), "text/html", 406),
        (
            format!("{base}/c"),
            "application/json;as=Nothing;g=meta.k8s.io;v=v1",
            406,
        ),
        (format!("{base}?timeout=soon"), "*/*", 400),
        (format!("{base}?labelSelector=a%20in%20b"), "*/*", 400),
        (format!("{base}?fieldSelector=spec.none%3D1"), "*/*", 400),
        (format!("{base}?limit=many"), "*/*", 400),
        (format!("{base}?resourceVersion=x1"), "*/*", 400),
        (format!("{base}?continue=x1"), "*/*", 400),
        (format!("{base}?watch=true&resourceVersion=x1"), "*/*", 500),
        (format!("{base}?sendInitialEvents=true&watch=true"), "*/*", 422),
    ] {
        let answer = same_get(&path, &[("accept", accept)]).await;
        assert_eq!(answer.status, status, "{path}: {:?}", answer.body);
    }
    for method in [Method::OPTIONS, Method::HEAD, Method::POST, Method::PUT] {
        same(&request(method, &format!("{base}/c"), &[], &[]).unwrap()).await;
    }
}

#[tokio::test]
async fn writes_are_answered_as_the_member_does() {
    configmaps("writes").await;
    let base = "/api/v1/namespaces/writes/configmaps";
    let object = |name: &str, version: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "resourceVersion": version},
            "immutable": false,
        })
    };
    let merge = [("content-type", "application/merge-patch+json")];
    for (what, status) in [
        (json(Method::POST, base, &object("c", "")), 409),
        (json(Method::POST, base, &object("Not A Name", "")), 422),
        (json(Method::PUT, &format!("{base}/c"), &object("c", "1")), 409),
        (json(Method::PUT, &format!("{base}/c"), &object("d", "")), 400),
        (
            request(Method::POST, base, &[("content-type", "application/json")], b"{"),
            400,
        ),
        (
            request(Method::POST, base, &[("content-type", "text/plain")], b"x"),
            415,
        ),
        (request(Method::PATCH, &format!("{base}/c"), &merge, b"["), 400),
        (
            request(
                Method::PATCH,
                &format!("{base}/c?fieldValidation=Strict"),
                &merge,
                b"{\"x\":1}",
            ),
            422,
        ),
        (
            request(Method::PATCH, &format!("{base}/c"), &[("content-type", "a/b")], b"{}"),
            415,
        ),
        (request(Method::PATCH, &format!("{base}/c"), &merge, b"{}"), 200),
        (
            request(
                Method::DELETE,
                &format!("{base}/c?preconditions"),
                &[],
                b"{\"preconditions\":{\"uid\":\"x\"}}",
            ),
            409,
        ),
        (request(Method::DELETE, &format!("{base}/none"), &[], &[]), 404),
    ] {
        let answer = same(&what.unwrap()).await;
        assert_eq!(answer.status, status, "{:?}", answer.body);
    }
}

#[tokio::test]
async fn protobuf_goes_in_as_well() {
    configmaps("protobuf").await;
    let world = world().await;
    let path = "/api/v1/namespaces/protobuf/configmaps/c";
    let routed = world.explicit_door("east").await.unwrap();
    let object = routed.get(path, &[("accept", PROTOBUF)]).await.unwrap();
    assert_eq!(object.header("content-type"), PROTOBUF);
    let headers = [("content-type", PROTOBUF), ("accept", PROTOBUF)];
    let put = same(&request(Method::PUT, path, &headers, &object.body).unwrap()).await;
    assert_eq!((put.status, &put.body), (200, &object.body));
    let mut other = object.body.to_vec();
    let at = other.windows(5).rposition(|window| window == b"<&>\xe2\x80").unwrap();
    other[at] = b'!';
    assert_eq!(
        routed
            .ask(request(Method::PUT, path, &headers, &other).unwrap())
            .await
            .unwrap()
            .status,
        200
    );
    let stored = world.direct_door("east").await.unwrap().get(path, &[]).await.unwrap();
    assert_eq!(stored.json()["data"]["quote"], "!&>\u{2028}");
}
