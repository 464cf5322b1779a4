//! What volumes hold, by what their Pods say.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::*;

/// The content of one volume, files as `path mode text`.
fn made(volume: Value) -> Result<Vec<String>, String> {
    let mut volume = volume;
    volume["name"] = "v".into();
    let pod = json!({"metadata": {"name": "web-0", "labels": {"app": "web"}}, "spec": {"containers": [], "volumes": [volume]}});
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let data = |pairs: &[(&str, &str)]| -> Data {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()))
            .collect()
    };
    let material = Material::from_iter([
        (
            Reference::ConfigMap("settings".to_owned()),
            data(&[("a", "1"), ("b", "2")]),
        ),
        (Reference::Secret("keys".to_owned()), data(&[("key", "s3cret")])),
    ]);
    let tokens = tokens(&pod)
        .into_iter()
        .map(|key| (key.clone(), format!("token for {:?}", key.audience)))
        .collect();
    let sources = Sources {
        pod: &pod,
        place: &Place {
            node: "node-1".to_owned(),
            host_ip: Ipv4Addr::new(10, 244, 0, 1),
            pod_ip: Ipv4Addr::new(10, 244, 1, 7),
        },
        material: &material,
        tokens: &tokens,
    };
    match content(&volumes(&pod)[0], &sources)? {
        Content::Files(files) => Ok(files
            .into_iter()
            .map(|(path, file)| format!("{path} {:o} {}", file.mode, String::from_utf8(file.bytes).unwrap()))
            .collect()),
        other => Ok(vec![format!("{other:?}")]),
    }
}

#[test]
fn files_of_objects() {
    assert_eq!(
        made(json!({"configMap": {"name": "settings"}})).unwrap(),
        ["a 644 1", "b 644 2"]
    );
    let items = json!([{"key": "b", "path": "x/y", "mode": 0o400}]);
    assert_eq!(
        made(json!({"configMap": {"name": "settings", "items": items}})).unwrap(),
        ["x/y 400 2"]
    );
    assert_eq!(
        made(json!({"secret": {"secretName": "keys", "defaultMode": 0o600}})).unwrap(),
        ["key 600 s3cret"]
    );
}

#[test]
fn what_is_missing_is_an_error_unless_optional() {
    assert_eq!(
        made(json!({"configMap": {"name": "none"}})).unwrap_err(),
        "configmap \"none\" not found"
    );
    assert!(
        made(json!({"configMap": {"name": "none", "optional": true}}))
            .unwrap()
            .is_empty()
    );
    let items = json!([{"key": "none", "path": "x"}]);
    let error = made(json!({"secret": {"secretName": "keys", "items": items}})).unwrap_err();
    assert_eq!(error, "couldn't find key none in secret \"keys\"");
    assert!(
        made(json!({"secret": {"secretName": "keys", "items": items, "optional": true}}))
            .unwrap()
            .is_empty()
    );
}

#[test]
fn projections_are_one_volume() {
    let sources = json!([
        {"serviceAccountToken": {"path": "token", "audience": "portolan", "expirationSeconds": 600}},
        {"configMap": {"name": "settings", "items": [{"key": "a", "path": "a"}]}},
        {"downwardAPI": {"items": [{"path": "app", "fieldRef": {"fieldPath": "metadata.labels['app']"}}]}},
        {"secret": {"name": "keys"}},
    ]);
    let files = made(json!({"projected": {"sources": sources, "defaultMode": 0o444}})).unwrap();
    assert_eq!(
        files,
        [
            "a 444 1",
            "app 444 web",
            "key 444 s3cret",
            "token 444 token for \"portolan\""
        ]
    );
}

#[test]
fn folders_and_what_this_node_does_not_have() {
    assert_eq!(made(json!({"emptyDir": {}})).unwrap(), ["Folder"]);
    assert_eq!(made(json!({"hostPath": {"path": "/x"}})).unwrap(), ["Host(\"/x\")"]);
    assert!(made(json!({"nfs": {"server": "a", "path": "/"}})).is_err());
    let resource = json!({"items": [{"path": "cpu", "resourceFieldRef": {"resource": "limits.cpu"}}]});
    assert!(made(json!({"downwardAPI": resource})).is_err());
}

#[test]
fn no_file_lies_outside() {
    for path in ["", "/a", "../a", "a/../../b", "a//b", "..data"] {
        let items = json!([{"key": "a", "path": path}]);
        assert!(
            made(json!({"configMap": {"name": "settings", "items": items}})).is_err(),
            "{path}"
        );
    }
}
