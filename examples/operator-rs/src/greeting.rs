//! The Greeting kind in Rust. What the API server checks is in `examples/greeting-crd.yaml`, which other operators of
//! this kind share; so no schema is derived here.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// The operator of this kind: its field manager, its Lease, and the reporter of its Events.
pub(crate) const NAME: &str = "greeting-operator";

/// What to say, and by how many.
#[derive(Clone, Debug, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "example.com",
    version = "v1",
    kind = "Greeting",
    namespaced,
    status = "GreetingStatus",
    schema = "disabled"
)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GreetingSpec {
    /// What every Pod says.
    pub(crate) message: String,
    /// How many Pods say it.
    pub(crate) replicas: i32,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GreetingStatus {
    /// metadata.generation that the children reflect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) observed_generation: Option<i64>,
    /// How many Pods say the message now.
    #[serde(default)]
    pub(crate) ready_replicas: i32,
    /// `Applied`: the children are written. `Ready`: all Pods say the message.
    #[serde(default)]
    pub(crate) conditions: Vec<Condition>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_one() {
        let greeting: Greeting = serde_yaml_ng::from_str(include_str!("../../greeting.yaml")).unwrap();
        assert_eq!(
            (greeting.spec.message.as_str(), greeting.spec.replicas),
            ("good morning", 2)
        );
    }
}
