//! The union of what the members say, in each format a client may ask for.

use std::io::Read as _;

use portolan_tests::door::Answer;

use crate::{MAPS, MEMBERS, OWNED, direct, door, list, objects, truth, version, world};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

#[tokio::test]
async fn json_is_the_union() {
    let _shared = MEMBERS.read().await;
    let door = door().await;
    for query in [
        "",
        "labelSelector=parity%3Deven",
        "fieldSelector=metadata.name%3Dmap-3",
        "labelSelector=parity%3Dneither",
    ] {
        let answer = list(&door, query).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        let body = answer.json();
        assert_eq!(
            (body["kind"].as_str(), body["apiVersion"].as_str()),
            (Some("ConfigMapList"), Some("v1"))
        );
        assert_eq!(objects(&body), truth(query, JSON).await, "{query}");
        version(&answer);
    }
    // One namespace and one member carry cursors, too.
    for (_, namespace) in OWNED {
        let answer = door
            .get(&format!("/api/v1/namespaces/{namespace}/configmaps"), &[])
            .await
            .unwrap();
        assert_eq!(objects(&answer.json()).len(), 8);
        version(&answer);
    }
    let namespaces = door.get("/api/v1/namespaces", &[]).await.unwrap();
    let names: Vec<String> = objects(&namespaces.json()).into_keys().collect();
    assert_eq!(names, ["/la-1", "/la-2", "/lb-1", "/lb-2"]);
    version(&namespaces);
}

#[tokio::test]
async fn metadata_only_is_the_union() {
    let _shared = MEMBERS.read().await;
    let answer = door().await.get(MAPS, &[("accept", METADATA)]).await.unwrap();
    let body = answer.json();
    assert_eq!(body["kind"], "PartialObjectMetadataList");
    assert_eq!(objects(&body), truth("", METADATA).await);
    version(&answer);
}

#[tokio::test]
async fn protobuf_is_the_union() {
    let _shared = MEMBERS.read().await;
    let door = door().await;
    for accept in [
        PROTOBUF,
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
    ] {
        let answer = door.get(MAPS, &[("accept", accept)]).await.unwrap();
        assert!(
            answer.header("content-type").starts_with(PROTOBUF),
            "{:?}",
            answer.headers
        );
        let (cursor, mut merged) = protobuf_list(&answer);
        assert!(cursor.len() >= 24, "{cursor}");
        let mut union: Vec<Vec<u8>> = direct("", accept)
            .await
            .iter()
            .flat_map(|answer| protobuf_list(answer).1)
            .collect();
        merged.sort();
        union.sort();
        assert!(
            merged == union,
            "{accept}: {} items, {} in the members",
            merged.len(),
            union.len()
        );
    }
}

#[tokio::test]
async fn tables_are_the_union_with_a_column_for_the_cluster() {
    let _shared = MEMBERS.read().await;
    let answer = door().await.get(MAPS, &[("accept", TABLE)]).await.unwrap();
    let table = answer.json();
    assert_eq!(table["kind"], "Table", "{table}");
    let columns = table["columnDefinitions"].as_array().unwrap();
    let at = columns
        .iter()
        .position(|column| column["name"].as_str().unwrap().eq_ignore_ascii_case("cluster"))
        .unwrap();
    assert_eq!(columns[at]["priority"], 1);
    let mut seen = Vec::new();
    for row in table["rows"].as_array().unwrap() {
        assert_eq!(row["cells"].as_array().unwrap().len(), columns.len());
        let namespace = row["object"]["metadata"]["namespace"].as_str().unwrap();
        let owner = OWNED.iter().find(|(_, owned)| *owned == namespace).unwrap().0;
        assert_eq!(row["cells"][at], owner, "{row}");
        seen.push(crate::key(&row["object"]));
    }
    seen.sort();
    assert_eq!(seen, truth("", JSON).await.into_keys().collect::<Vec<_>>());
    let one = door()
        .await
        .get("/api/v1/namespaces/lb-1/configmaps/map-0", &[("accept", TABLE)])
        .await
        .unwrap()
        .json();
    assert_eq!(one["columnDefinitions"], table["columnDefinitions"], "of a get, too");
    assert_eq!(one["rows"][0]["cells"][at], "west");
    let kubectl = world().await.merged("lists");
    let wide = kubectl.ok(&["get", "configmaps", "-A", "-o", "wide"]).await.unwrap();
    assert!(wide.lines().next().unwrap().contains("CLUSTER"), "{wide}");
    let row = wide
        .lines()
        .find(|line| line.starts_with("lb-1") && line.contains("map-0"))
        .unwrap();
    assert!(row.contains("west"), "{row}");
    let narrow = kubectl.ok(&["get", "configmaps", "-A"]).await.unwrap();
    assert!(!narrow.contains("CLUSTER"), "{narrow}");
    let bare = door()
        .await
        .get(&format!("{MAPS}?includeObject=None"), &[("accept", TABLE)])
        .await
        .unwrap()
        .json();
    assert_eq!(bare["rows"].as_array().unwrap().len(), seen.len());
    assert!(
        bare["rows"]
            .as_array()
            .unwrap()
            .iter()
            .all(|row| row["object"].is_null()),
        "{}",
        bare["rows"][0]
    );
}

#[tokio::test]
async fn gzip_is_for_large_lists_and_those_who_take_it() {
    let _shared = MEMBERS.read().await;
    let world = world().await;
    let direct = world.direct_door("west").await.unwrap();
    let large = serde_json::json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "large", "labels": {"set": "large"}}, "stringData": {"a": "b".repeat(200 << 10)}});
    assert_eq!(
        direct
            .post("/api/v1/namespaces/lb-2/secrets", &large)
            .await
            .unwrap()
            .status,
        201
    );
    let door = door().await;
    // Others make and delete Secrets meanwhile.
    let path = "/api/v1/secrets?labelSelector=set%3Dlarge";
    let plain = door.get(path, &[]).await.unwrap();
    assert_eq!(plain.header("content-encoding"), "");
    let packed = door.get(path, &[("accept-encoding", "gzip")]).await.unwrap();
    assert_eq!(packed.header("content-encoding"), "gzip");
    assert!(packed.body.len() < plain.body.len() / 10);
    let mut read = Vec::new();
    flate2::read::GzDecoder::new(&packed.body[..])
        .read_to_end(&mut read)
        .unwrap();
    assert_eq!(objects(&serde_json::from_slice(&read).unwrap()), objects(&plain.json()));
    let small = door.get(MAPS, &[("accept-encoding", "gzip")]).await.unwrap();
    assert_eq!(small.header("content-encoding"), "");
}

#[tokio::test]
async fn cluster_scoped_kinds_are_shown_once_each() {
    let _shared = MEMBERS.read().await;
    let answer = door()
        .await
        .get("/apis/rbac.authorization.k8s.io/v1/clusterroles?limit=5", &[])
        .await
        .unwrap();
    let roles = objects(&answer.json());
    assert!(
        roles.contains_key("/cluster-admin") && roles.contains_key("/view"),
        "{:?}",
        roles.keys()
    );
    assert!(answer.header("warning").contains("same name"), "{:?}", answer.headers);
    version(&answer);
}

#[tokio::test]
async fn what_a_member_refuses_is_refused_in_its_words() {
    let _shared = MEMBERS.read().await;
    let (merged, east) = (door().await, world().await.direct_door("east").await.unwrap());
    for query in [
        "fieldSelector=spec.nope%3D1",
        "fieldSelector=!",
        "limit=abc",
        "timeoutSeconds=abc",
    ] {
        let (ours, theirs) = (list(&merged, query).await, list(&east, query).await);
        assert_eq!(
            (ours.status, ours.message()),
            (theirs.status, theirs.message()),
            "{query}"
        );
    }
    // The shard's selector is joined to this one, so the router reads it, in words of its own.
    for query in ["labelSelector=!!", "labelSelector=a+in+b"] {
        let (ours, theirs) = (list(&merged, query).await, list(&east, query).await);
        assert_eq!((ours.status, theirs.status), (400, 400), "{query}");
        assert!(ours.message().starts_with("unable to parse"), "{:?}", ours.body);
    }
    let unknown = merged.get("/apis/no.such.group/v1/things", &[]).await.unwrap();
    assert_eq!(unknown.status, 404);
    let not = merged.get(MAPS, &[("accept", "application/cbor")]).await.unwrap();
    assert!([200, 406].contains(&not.status));
}

/// resourceVersion and items of a list in Kubernetes' protobuf.
fn protobuf_list(answer: &Answer) -> (String, Vec<Vec<u8>>) {
    let body = answer
        .body
        .strip_prefix(b"k8s\0")
        .unwrap_or_else(|| panic!("no envelope: {:?}", answer.body));
    let raw = field(body, 2).next().expect("Unknown.raw");
    let meta = field(raw, 1).next().expect("metadata");
    let version = field(meta, 2)
        .next()
        .map(|text| String::from_utf8(text.to_vec()).unwrap());
    (version.unwrap_or_default(), field(raw, 2).map(<[u8]>::to_vec).collect())
}

/// The length-delimited fields with this number; the messages here have few others.
fn field(mut message: &[u8], number: u64) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        loop {
            if message.is_empty() {
                return None;
            }
            let tag = varint(&mut message);
            if tag.trailing_zeros() >= 3 {
                varint(&mut message);
                continue;
            }
            assert_eq!(tag & 7, 2, "wire type");
            let length = usize::try_from(varint(&mut message)).unwrap();
            let (content, rest) = message.split_at(length);
            message = rest;
            if tag >> 3 == number {
                return Some(content);
            }
        }
    })
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

#[test]
fn fields_are_found() {
    assert_eq!(
        field(&[0x08, 1, 0x12, 1, 7, 0x12, 0], 2).collect::<Vec<_>>(),
        [&[7][..], &[]]
    );
}
