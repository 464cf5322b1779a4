//! A spec with one pair more, or one less. Pure; on JSON, so that fields of a later version stay as they are.
//!
//! It changes as little as it can, and refuses where more than the pair would change. Whether the hub then does what is meant
//! is its plan's to say.

use portolan_crds::{ClusterEntry, system_namespace};
use serde::Deserialize as _;
use serde_json::{Value, json};

/// Label of every Namespace: its name. API servers see to it.
const METADATA_NAME: &str = "kubernetes.io/metadata.name";

/// A (cluster, namespace).
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair<'a> {
    pub(super) cluster: &'a str,
    pub(super) namespace: &'a str,
}

/// `spec` without the pair.
///
/// # Errors
/// The field that is in the way, and what to do.
pub(super) fn without(spec: &Value, pair: Pair<'_>) -> Result<Value, String> {
    let mut spec = spec.clone();
    let entries = entries(&mut spec)?;
    let mut changed = false;
    let mut kept = Vec::new();
    for (index, mut entry) in entries.drain(..).enumerate() {
        let read = read(index, &entry)?;
        if read.name.as_deref() != Some(pair.cluster) {
            kept.push(entry);
            continue;
        }
        let by_labels = read.by_labels().is_some();
        if read.namespaces.iter().any(|name| name == pair.namespace) {
            changed = true;
            if read.namespaces.len() > 1 {
                let names = entry["namespaces"].as_array_mut();
                names
                    .into_iter()
                    .for_each(|names| names.retain(|name| *name != pair.namespace));
            } else if by_labels {
                entry.as_object_mut().and_then(|entry| entry.remove("namespaces"));
            } else {
                // Without a name it would choose all namespaces.
                continue;
            }
        }
        if by_labels && !system_namespace(pair.namespace) {
            changed |= exclude(&mut entry, pair.namespace);
        }
        kept.push(entry);
    }
    let Pair { cluster, namespace } = pair;
    if !changed {
        return Err(format!(
            "spec.clusters: no entry of the name {cluster:?} chooses {namespace:?}, so it comes by an entry's selector of clusters: give {cluster:?} an entry of its own"
        ));
    }
    if kept.is_empty() {
        return Err(format!(
            "spec.clusters: {cluster}/{namespace} is all that it asks for, and without clusters it would have its callers' home clusters: delete the object instead"
        ));
    }
    *entries = kept;
    Ok(spec)
}

/// `spec` with the pair, by name.
///
/// # Errors
/// The field that is in the way, and what to do.
pub(super) fn with(spec: &Value, pair: Pair<'_>) -> Result<Value, String> {
    let mut spec = spec.clone();
    let entries = entries(&mut spec)?;
    let Pair { cluster, namespace } = pair;
    for (index, entry) in entries.iter_mut().enumerate() {
        let read = read(index, entry)?;
        if read.name.as_deref() != Some(cluster) {
            continue;
        }
        let has_all = read.namespaces.is_empty() && read.namespace_selector.is_none() && read.buckets.is_none();
        if read.namespaces.iter().any(|name| name == namespace) || (has_all && !system_namespace(namespace)) {
            return Err(format!(
                "spec.clusters[{index}]: asks for {cluster}/{namespace} already"
            ));
        }
        if has_all {
            return Err(format!(
                "spec.clusters[{index}]: has all namespaces of {cluster:?}, and would have {namespace:?} alone if that was named: give it a namespaceSelector, {{}} for all"
            ));
        }
        match entry["namespaces"].as_array_mut() {
            Some(names) => names.push(json!(namespace)),
            None => entry["namespaces"] = json!([namespace]),
        }
        return Ok(spec);
    }
    entries.push(json!({"name": cluster, "namespaces": [namespace]}));
    Ok(spec)
}

fn entries(spec: &mut Value) -> Result<&mut Vec<Value>, String> {
    if !spec["root"].is_null() {
        return Err(
            "spec.root: what a root spans goes to its children: edit spec.clusters of the root by hand".to_owned(),
        );
    }
    let entries = spec["clusters"].as_array_mut().filter(|entries| !entries.is_empty());
    entries.ok_or_else(|| {
        "spec.clusters: is absent, so the shard has its callers' home clusters: say first which it has".to_owned()
    })
}

fn read(index: usize, entry: &Value) -> Result<ClusterEntry, String> {
    ClusterEntry::deserialize(entry).map_err(|error| format!("spec.clusters[{index}]: cannot be read: {error}"))
}

/// Narrows what the entry chooses by labels; false if it was so already.
fn exclude(entry: &mut Value, namespace: &str) -> bool {
    if !entry["namespaceSelector"].is_object() {
        entry["namespaceSelector"] = json!({});
    }
    let selector = &mut entry["namespaceSelector"];
    if !selector["matchExpressions"].is_array() {
        selector["matchExpressions"] = json!([]);
    }
    let Some(expressions) = selector["matchExpressions"].as_array_mut() else {
        return false;
    };
    let is_ours = |one: &&mut Value| one["key"] == METADATA_NAME && one["operator"] == "NotIn";
    if let Some(values) = expressions
        .iter_mut()
        .find(is_ours)
        .and_then(|one| one["values"].as_array_mut())
    {
        if values.iter().any(|value| *value == namespace) {
            return false;
        }
        values.push(json!(namespace));
        return true;
    }
    expressions.push(json!({"key": METADATA_NAME, "operator": "NotIn", "values": [namespace]}));
    true
}

#[cfg(test)]
mod tests {
    use portolan_crds::{ShardingConfigSpec, validate_sharding};

    use super::*;

    const PAIR: Pair<'static> = Pair {
        cluster: "east",
        namespace: "ns-b",
    };

    fn spec(clusters: &Value) -> Value {
        json!({"selector": {"matchLabels": {"app": "op"}}, "callerClusters": ["east"], "later": 1, "clusters": clusters})
    }

    /// The clusters of what came out, which is valid whatever went in.
    fn clusters(edited: Result<Value, String>) -> Value {
        let edited = edited.unwrap();
        assert_eq!(edited["later"], 1, "what is not known stays");
        let mut known = edited.clone();
        known.as_object_mut().unwrap().remove("later");
        let read = ShardingConfigSpec::deserialize(&known).unwrap();
        let problems = validate_sharding("a", "ops", &read);
        assert!(problems.is_empty(), "{problems:?}");
        edited["clusters"].clone()
    }

    fn not_in(names: &[&str]) -> Value {
        json!({"key": METADATA_NAME, "operator": "NotIn", "values": names})
    }

    #[test]
    fn a_named_pair_goes_and_nothing_else() {
        let other = json!({"name": "west", "namespaces": ["ns-b"]});
        let named = spec(&json!([{"name": "east", "namespaces": ["ns-a", "ns-b"]}, other]));
        assert_eq!(
            clusters(without(&named, PAIR)),
            json!([{"name": "east", "namespaces": ["ns-a"]}, other])
        );
        let last = spec(&json!([{"name": "east", "namespaces": ["ns-b"]}, other]));
        assert_eq!(
            clusters(without(&last, PAIR)),
            json!([other]),
            "an entry without names would have all"
        );
    }

    #[test]
    fn a_pair_that_a_selector_chooses_is_excluded_by_name() {
        let all = spec(&json!([{"name": "east"}]));
        let narrowed = json!([{"name": "east", "namespaceSelector": {"matchExpressions": [not_in(&["ns-b"])]}}]);
        assert_eq!(clusters(without(&all, PAIR)), narrowed);
        let labels = json!({"matchLabels": {"crew": "x"}, "matchExpressions": [not_in(&["ns-a"])]});
        let both = spec(&json!([{"name": "east", "namespaces": ["ns-b"], "namespaceSelector": labels}]));
        let selector = json!({"matchLabels": {"crew": "x"}, "matchExpressions": [not_in(&["ns-a", "ns-b"])]});
        assert_eq!(
            clusters(without(&both, PAIR)),
            json!([{"name": "east", "namespaceSelector": selector}])
        );
    }

    #[test]
    fn what_an_edit_cannot_say_is_refused_by_field() {
        let refused = |clusters: Value, word: &str| {
            let error = without(&spec(&clusters), PAIR).unwrap_err();
            assert!(error.starts_with("spec.clusters: ") && error.contains(word), "{error}");
        };
        refused(json!([{"name": "east", "namespaces": ["ns-b"]}]), "delete the object");
        refused(json!([{"name": "east", "namespaces": ["ns-a"]}]), "an entry of its own");
        refused(
            json!([{"selector": {"matchLabels": {"region": "east"}}}]),
            "an entry of its own",
        );
        refused(json!([]), "is absent");
        let root = json!({"root": {"prefix": "p"}, "clusters": [{"name": "east"}]});
        assert!(without(&root, PAIR).unwrap_err().starts_with("spec.root: "));
    }

    #[test]
    fn a_pair_is_added_by_name() {
        let other = json!({"name": "west"});
        assert_eq!(
            clusters(with(&spec(&json!([other])), PAIR)),
            json!([other, {"name": "east", "namespaces": ["ns-b"]}])
        );
        let named = spec(&json!([{"name": "east", "namespaces": ["ns-a"]}]));
        assert_eq!(
            clusters(with(&named, PAIR)),
            json!([{"name": "east", "namespaces": ["ns-a", "ns-b"]}])
        );
        let labels = json!({"matchLabels": {"crew": "x"}});
        let selected = spec(&json!([{"name": "east", "namespaceSelector": labels}]));
        assert_eq!(
            clusters(with(&selected, PAIR)),
            json!([{"name": "east", "namespaceSelector": labels, "namespaces": ["ns-b"]}])
        );
    }

    #[test]
    fn what_has_all_or_the_pair_already_stays_as_it_is() {
        for entry in [json!({"name": "east"}), json!({"name": "east", "namespaces": ["ns-b"]})] {
            let error = with(&spec(&json!([entry])), PAIR).unwrap_err();
            assert!(
                error.starts_with("spec.clusters[0]: asks for east/ns-b already"),
                "{error}"
            );
        }
        let system = Pair {
            namespace: "kube-system",
            ..PAIR
        };
        let error = with(&spec(&json!([{"name": "east"}])), system).unwrap_err();
        assert!(error.contains("namespaceSelector"), "{error}");
    }

    #[test]
    fn there_and_back_asks_for_the_same_again() {
        for clusters in [
            json!([{"name": "east"}]),
            json!([{"name": "east", "namespaces": ["ns-a", "ns-b"]}]),
        ] {
            let back = with(&without(&spec(&clusters), PAIR).unwrap(), PAIR).unwrap();
            let entry = read(0, &back["clusters"][0]).unwrap();
            assert!(entry.namespaces.contains(&"ns-b".to_owned()), "{back}");
            assert!(without(&back, PAIR).is_ok());
        }
    }
}
