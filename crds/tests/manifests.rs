//! The manifests are what the types say, and the examples are what users may rely on.
#![cfg(feature = "schema")]
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

use std::fs;
use std::path::PathBuf;

use portolan_crds::definitions::manifests;
use portolan_crds::partition::{Surroundings, expand};
use portolan_crds::{
    CircuitBreaker, ConditionReason, Contention, Enforcement, FaultInjection, Selector, ShardName, ShardingConfig,
    accepted_reason, validate_circuit_breaker, validate_fault_injection, validate_sharding,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;

fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The ShardingConfig of an example file.
fn example(file: &str) -> ShardingConfig {
    example_of("ShardingConfig", file)
}

/// The object of that kind of an example file.
fn example_of<K: DeserializeOwned>(kind: &str, file: &str) -> K {
    examples_of(kind, file).swap_remove(0)
}

/// The objects of that kind of an example file.
fn examples_of<K: DeserializeOwned>(kind: &str, file: &str) -> Vec<K> {
    let text = fs::read_to_string(repository("examples").join(file)).unwrap();
    let documents = serde_yaml_ng::Deserializer::from_str(&text)
        .map(|document| serde_yaml_ng::Value::deserialize(document).unwrap());
    let objects = documents.filter(|document| document["kind"] == kind);
    objects
        .map(|object| serde_yaml_ng::from_value(object).unwrap())
        .collect()
}

fn problems(config: &ShardingConfig) -> Vec<portolan_crds::Problem> {
    let metadata = &config.metadata;
    let (name, namespace) = (
        metadata.name.as_deref().unwrap(),
        metadata.namespace.as_deref().unwrap(),
    );
    validate_sharding(name, namespace, &config.spec)
}

#[test]
fn manifests_are_fresh() {
    let kept = fs::read_dir(repository("crds/manifests")).unwrap().count();
    assert_eq!(kept, manifests().len(), "a manifest that no type stands for");
    for (file, text) in manifests() {
        let kept = fs::read_to_string(repository("crds/manifests").join(&file)).unwrap_or_default();
        assert!(kept == text, "{file} is stale: run `make bless`");
    }
}

#[test]
fn every_field_is_described() {
    /// What kubectl reads as a boolean, also where the name of a field stands.
    const YAML_BOOLEANS: [&str; 6] = ["on", "off", "yes", "no", "y", "n"];
    fn check(path: &str, schema: &serde_json::Value, missing: &mut Vec<String>) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            assert!(!YAML_BOOLEANS.contains(&name.as_str()), "{path}.{name}");
            let path = format!("{path}.{name}");
            if property["description"].as_str().is_none_or(str::is_empty) {
                missing.push(path.clone());
            }
            check(&path, property, missing);
            check(&path, &property["items"], missing);
        }
    }
    let mut missing = Vec::new();
    for definition in portolan_crds::definitions::definitions() {
        for version in &definition.spec.versions {
            let schema = version
                .schema
                .as_ref()
                .and_then(|schema| schema.open_api_v3_schema.as_ref())
                .unwrap();
            let schema = serde_json::to_value(schema).unwrap();
            for part in ["spec", "status"] {
                check(
                    &format!("{}.{part}", definition.spec.names.kind),
                    &schema["properties"][part],
                    &mut missing,
                );
            }
            let text = schema.to_string();
            assert!(
                !text.contains("nullable") && !text.contains("anyOf"),
                "not what CEL's has() expects"
            );
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}

/// What the API server fills in within a list makes an unchanged manifest look changed to whoever compares lists as a whole.
#[test]
fn nothing_is_filled_in_within_lists_of_specs() {
    fn check(path: &str, schema: &serde_json::Value, in_list: bool) {
        assert!(!in_list || schema["default"].is_null(), "{path}");
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            check(&format!("{path}.{name}"), property, in_list);
        }
        if !schema["items"].is_null() {
            check(path, &schema["items"], true);
        }
    }
    for definition in portolan_crds::definitions::definitions() {
        for version in &definition.spec.versions {
            let schema = serde_json::to_value(version.schema.as_ref().unwrap()).unwrap();
            check(
                &definition.spec.names.kind,
                &schema["openAPIV3Schema"]["properties"]["spec"],
                false,
            );
        }
    }
}

#[test]
fn the_federated_example_is_served() {
    let config = example("federated-shardingconfig.yaml");
    assert_eq!(problems(&config), vec![]);
    assert_eq!(config.spec.enforcement(), Enforcement::Enforce);
    assert_eq!(config.spec.primary_cluster(), Some("east"));
    assert_eq!(config.spec.leader_election_name(), Some("operator-leader"));
    assert_eq!(config.spec.clusters[1].namespaces, ["ns-c"]);
}

#[test]
fn the_programs_of_the_example_do_not_contend() {
    let configs: Vec<ShardingConfig> = examples_of("ShardingConfig", "two-operators.yaml");
    let contends = |config: &ShardingConfig| {
        assert_eq!(problems(config), vec![]);
        let name = config.metadata.name.clone().unwrap();
        Contention::Operator.of(&ShardName::new("operators", name).unwrap(), &config.spec)
    };
    assert_ne!(contends(&configs[0]), contends(&configs[1]));
    assert_eq!(
        configs[0].spec.clusters, configs[1].spec.clusters,
        "the same namespaces"
    );
}

#[test]
fn the_example_of_a_root_has_its_children() {
    let config = example("root-shardingconfig.yaml");
    assert_eq!(problems(&config), vec![]);
    let name = ShardName::new("operator-demo", "sharding-root").unwrap();
    let expansion = expand(&name, &config.spec, &Surroundings::default()).unwrap();
    assert_eq!(expansion.children.len(), 4);
}

#[test]
fn the_examples_of_policies_are_served() {
    let breaker: CircuitBreaker = example_of("CircuitBreaker", "circuit-breaker.yaml");
    assert_eq!(validate_circuit_breaker(&breaker.spec), vec![]);
    assert_eq!((breaker.spec.rate_limitings.len(), breaker.spec.breakers.len()), (3, 1));
    let injection: FaultInjection = example_of("FaultInjection", "fault-injection.yaml");
    assert_eq!(validate_fault_injection(&injection.spec), vec![]);
    assert_eq!(
        (injection.spec.http_fault.len(), injection.spec.watch_fault.len()),
        (3, 1)
    );
}

#[test]
fn the_original_example_keeps_its_meaning() {
    let config = example("original-shardingconfig.yaml");
    let found = problems(&config);
    assert_eq!(
        found.iter().map(|problem| problem.field.as_str()).collect::<Vec<_>>(),
        ["spec.webhook"]
    );
    assert_eq!(accepted_reason(&found), ConditionReason::Ok);
    assert_eq!(config.spec.enforcement(), Enforcement::Audit);
    assert_eq!(config.spec.primary_cluster(), None);
    let limit = config.spec.limits[0].selector.as_ref();
    let limit = Selector::from_label_selector(limit.unwrap()).unwrap();
    assert_eq!(
        limit.to_string(),
        "app=foo,ctrlmesh.kusionstack.io/namespace in (ns-a,ns-b)"
    );

    let without_webhook = portolan_crds::ShardingConfigSpec {
        webhook: None,
        ..config.spec.clone()
    };
    assert_eq!(
        validate_sharding("sharding-demo", "operator-demo", &without_webhook),
        vec![]
    );
}

#[test]
fn an_accepted_spec_comes_back() {
    let config = example("original-shardingconfig.yaml");
    let accepted = portolan_crds::AcceptedSpec {
        generation: 3,
        spec: serde_json::to_value(&config.spec).unwrap(),
    };
    let stored = serde_json::to_value(&accepted).unwrap();
    let read: portolan_crds::AcceptedSpec = serde_json::from_value(stored).unwrap();
    assert_eq!((read.generation, read.decode().unwrap()), (3, config.spec));
}
