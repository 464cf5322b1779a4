//! Kinds of the programs that Portolan succeeds or stands beside, which a folder of manifests may hold too: what to do with an
//! object of one. Pure; called by `apply_files` and `shards plan` for documents that are not of ours.

use kube::api::DynamicObject;

/// What to do with an object of a kind that Portolan does not serve; `None`: nothing is known of its kind.
pub(crate) fn advice(object: &DynamicObject) -> Option<String> {
    let types = object.types.as_ref()?;
    let group = types.api_version.split_once('/').map_or("", |(group, _)| group);
    let advice = match (group, types.kind.as_str()) {
        ("ctrlmesh.kruise.io", "VirtualApp") => {
            "not served: write a ShardingConfig for each of spec.subsets, with that subset's labels in spec.selector and its \
             namespaces in spec.clusters[].namespaces"
        }
        ("ctrlmesh.kruise.io", "TrafficPolicy") => {
            "not served: write a CircuitBreaker (limits, breakers) or a FaultInjection of ctrlmesh.kusionstack.io/v1alpha1"
        }
        ("ctrlmesh.kruise.io" | "ctrlmesh.kusionstack.io", "ManagerState") => {
            "not needed: routers find the hub by --hub; leave the object out"
        }
        ("metacontroller.k8s.io", "CompositeController" | "DecoratorController" | "ControllerRevision") => {
            "not served: Portolan runs no lambda controllers yet; metacontroller itself runs on one kubeconfig of a merged view"
        }
        (_, "Envoy") => "not served: Portolan runs no Envoy fleets yet; leave the object to its own controller",
        _ => return None,
    };
    Some(advice.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::parse;

    #[test]
    fn kinds_of_predecessors_are_named_with_what_to_do() {
        let advised = |version: &str, kind: &str| {
            let yaml = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\n");
            advice(&parse("test", &yaml).unwrap()[0])
        };
        for (version, kind, says) in [
            ("ctrlmesh.kruise.io/v1alpha1", "VirtualApp", "ShardingConfig"),
            ("ctrlmesh.kruise.io/v1alpha1", "TrafficPolicy", "CircuitBreaker"),
            ("ctrlmesh.kusionstack.io/v1alpha1", "ManagerState", "--hub"),
            (
                "metacontroller.k8s.io/v1alpha1",
                "CompositeController",
                "metacontroller",
            ),
            ("example.com/v1", "Envoy", "Envoy fleets"),
        ] {
            let advice = advised(version, kind).unwrap();
            assert!(advice.contains(says), "{kind}: {advice}");
        }
        assert_eq!(advised("v1", "Namespace"), None);
        assert_eq!(advised("apps/v1", "CompositeController"), None);
    }
}
