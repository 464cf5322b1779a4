//! Environment and command of containers, by what their Pods say.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::*;

fn container(mut spec: Value) -> Container {
    spec["name"] = "main".into();
    serde_json::from_value(spec).unwrap()
}

fn made(spec: Value) -> Result<BTreeMap<String, String>, String> {
    let data = |pairs: &[(&str, &str)]| -> Data {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()))
            .collect()
    };
    let material = Material::from_iter([
        (
            Reference::ConfigMap("settings".to_owned()),
            data(&[("COLOUR", "red"), ("SIZE", "9")]),
        ),
        (Reference::Secret("keys".to_owned()), data(&[("KEY", "s3cret")])),
    ]);
    let pod = json!({"metadata": {"name": "web-0", "namespace": "shop"}, "spec": {"containers": []}});
    let sources = Sources {
        pod: &serde_json::from_value(pod).unwrap(),
        place: &Place {
            node: "node-1".to_owned(),
            host_ip: Ipv4Addr::new(10, 244, 0, 1),
            pod_ip: Ipv4Addr::new(10, 244, 1, 7),
        },
        material: &material,
        api_server: ("10.244.0.1", 6443),
    };
    environment(&container(spec), &sources)
}

#[test]
fn what_every_container_has() {
    let variables = made(json!({})).unwrap();
    assert_eq!(variables["HOSTNAME"], "web-0");
    assert_eq!(variables["KUBERNETES_SERVICE_HOST"], "10.244.0.1");
    assert_eq!(variables["KUBERNETES_SERVICE_PORT"], "6443");
}

#[test]
fn later_ones_win_and_refer_to_earlier_ones() {
    let variables = made(json!({
        "envFrom": [{"configMapRef": {"name": "settings"}}, {"secretRef": {"name": "keys"}, "prefix": "THE_"}],
        "env": [
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "SIZE", "value": "10"},
            {"name": "ALL", "value": "$(NAME) $(COLOUR) $(SIZE) $(LATER)"},
            {"name": "LATER", "value": "x"},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "KEY"}}},
        ],
    }))
    .unwrap();
    assert_eq!(variables["ALL"], "web-0 red 10 $(LATER)");
    assert_eq!(variables["THE_KEY"], "s3cret");
    assert_eq!(variables["KEY"], "s3cret");
}

#[test]
fn what_is_missing_is_an_error_unless_optional() {
    let from = |optional: bool| json!({"envFrom": [{"secretRef": {"name": "none", "optional": optional}}]});
    assert_eq!(made(from(false)).unwrap_err(), "secret \"none\" not found");
    assert!(made(from(true)).is_ok());
    let key = |name: &str, optional: bool| {
        let key = json!({"name": name, "key": "NONE", "optional": optional});
        json!({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": key}}]})
    };
    let error = made(key("settings", false)).unwrap_err();
    assert_eq!(error, "couldn't find key NONE in configmap \"settings\"");
    assert!(!made(key("settings", true)).unwrap().contains_key("A"));
    assert!(!made(key("none", true)).unwrap().contains_key("A"));
    let resource = json!({"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]});
    assert!(made(resource).unwrap_err().contains("\"A\""));
    assert!(
        made(json!({"env": [{"name": "a.b", "value": "1"}]}))
            .unwrap_err()
            .contains("a.b")
    );
}

#[test]
fn a_command_replaces_the_image_and_arguments_only_its_arguments() {
    let image = Image {
        program: "/target/op".into(),
        args: vec!["--own".to_owned()],
    };
    let variables = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
    let run = |spec: Value| command(&container(spec), &image, "/image/op", &variables);
    assert_eq!(run(json!({})), ["/image/op", "--own"]);
    assert_eq!(run(json!({"args": ["a=$(A)"]})), ["/image/op", "a=1"]);
    assert_eq!(run(json!({"command": ["sh", "-c"]})), ["sh", "-c"]);
    assert_eq!(
        run(json!({"command": ["sh", "-c"], "args": ["true"]})),
        ["sh", "-c", "true"]
    );
}

#[test]
fn references_are_all_found() {
    let container = container(json!({
        "envFrom": [{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}],
        "env": [
            {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "d", "key": "k"}}},
            {"name": "C", "value": "x"},
        ],
    }));
    let (map, secret) = (
        |name: &str| Reference::ConfigMap(name.to_owned()),
        |name: &str| Reference::Secret(name.to_owned()),
    );
    assert_eq!(references(&container), [map("a"), secret("b"), map("c"), secret("d")]);
}
