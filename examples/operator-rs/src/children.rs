//! What a Greeting wants to exist, as objects to apply. Pure; `reconcile` sends them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};

use crate::greeting::{Greeting, NAME};

/// The one ConfigMap per namespace that all its Greetings share. A Greeting's name has no dot, so none of their own
/// ConfigMaps is called so.
pub(crate) const GUESTBOOK: &str = "greetings.guestbook";
/// Selects everything this operator makes: its caches hold nothing else of these kinds.
pub(crate) const OURS: &str = "app.kubernetes.io/managed-by=greeting-operator";
/// Makes the Pods roll when the text changes: an environment variable is read once.
const SAID_ANNOTATION: &str = "greetings.example.com/message";
/// Image of the Pods that say a Greeting.
pub(crate) const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.36.1-1";
const SCRIPT: &str = r#"while true; do echo "$MESSAGE"; sleep 60; done"#;

/// The ConfigMap a Greeting wants.
pub(crate) fn config_map(greeting: &Greeting, owner: &OwnerReference) -> Value {
    let name = greeting.name_any();
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": labels(&name), "ownerReferences": [owner]},
        "data": {"message": greeting.spec.message},
    })
}

/// The Deployment a Greeting wants.
pub(crate) fn deployment(greeting: &Greeting, owner: &OwnerReference, image: &str) -> Value {
    let name = greeting.name_any();
    let labels = labels(&name);
    let message = json!({"name": "MESSAGE", "valueFrom": {"configMapKeyRef": {"name": name, "key": "message"}}});
    let container = json!({"name": "greeter", "image": image, "command": ["sh", "-c", SCRIPT], "env": [message]});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
        "spec": {
            "replicas": greeting.spec.replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": {SAID_ANNOTATION: greeting.spec.message}},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
            },
        },
    })
}

/// A Greeting's entry in the guestbook. No owner reference: the others' entries outlive this Greeting.
pub(crate) fn entry(greeting: &Greeting) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": GUESTBOOK, "labels": {"app.kubernetes.io/managed-by": NAME}},
        "data": {greeting.name_any(): greeting.spec.message},
    })
}

/// Takes the entry out again, as a merge patch.
pub(crate) fn no_entry(greeting: &Greeting) -> Value {
    json!({"data": {greeting.name_any(): null}})
}

/// Field manager of an entry. One for each Greeting: what one of them stops applying is removed, and nothing of the
/// others.
pub(crate) fn signer(greeting: &Greeting) -> String {
    format!("{NAME}/{}", greeting.name_any())
}

/// The owner reference of what is the garbage collector's when the Greeting goes; none before it has a uid.
pub(crate) fn owner(greeting: &Greeting) -> Option<OwnerReference> {
    let reference = greeting.controller_owner_ref(&())?;
    Some(OwnerReference {
        block_owner_deletion: Some(true),
        ..reference
    })
}

fn labels(name: &str) -> Value {
    json!({
        "app.kubernetes.io/name": "greeting",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": NAME,
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::Deployment;
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn greeting() -> Greeting {
        serde_json::from_value(json!({
            "apiVersion": "example.com/v1", "kind": "Greeting",
            "metadata": {"name": "hello", "namespace": "shop", "uid": "u-1"},
            "spec": {"message": "hi", "replicas": 3},
        }))
        .unwrap()
    }

    #[test]
    fn children_are_of_their_kinds_and_owned() {
        let greeting = greeting();
        let owner = owner(&greeting).unwrap();
        let map: ConfigMap = serde_json::from_value(config_map(&greeting, &owner)).unwrap();
        assert_eq!(map.data.unwrap()["message"], "hi");
        let deployment: Deployment = serde_json::from_value(deployment(&greeting, &owner, IMAGE)).unwrap();
        assert_eq!(deployment.owner_references(), std::slice::from_ref(&owner));
        assert_eq!(deployment.spec.unwrap().replicas, Some(3));
    }

    #[test]
    fn the_guestbook_has_no_owner() {
        let entry: ConfigMap = serde_json::from_value(entry(&greeting())).unwrap();
        assert_eq!(entry.metadata.owner_references, None);
        assert_eq!(entry.data.unwrap()["hello"], "hi");
        assert_eq!(no_entry(&greeting()), json!({"data": {"hello": null}}));
    }
}
