//! Fields of a manifest that its kind does not have, found before anything is sent, with the name that was probably meant; and
//! lists where an object belongs, which the parser would take for one, field by field.
//!
//! Only for our own kinds, whose schemas are at hand; of all others the API server says it (`apply` asks for strict
//! validation). Called by `dev up` and `acceptance`.

use std::collections::BTreeSet;

use anyhow::bail;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::api::DynamicObject;
use portolan_crds::definitions::definitions;
use serde_json::{Map, Value};

use crate::apply::describe;

/// Fields that an object of any kind has.
const OF_EVERY_OBJECT: [&str; 3] = ["apiVersion", "kind", "metadata"];
/// Edits between a field and its typo, one for every so many characters.
const LETTERS_PER_EDIT: usize = 3;

/// Refuses the first manifest with unknown fields, naming all of its.
pub(crate) fn check(manifests: &[DynamicObject]) -> anyhow::Result<()> {
    for object in manifests {
        let unknown = unknown_fields(object)?;
        if !unknown.is_empty() {
            bail!("{}: {}", describe(object), unknown.join("; "));
        }
    }
    Ok(())
}

/// Fields of the manifest that its kind does not have, each with what was probably meant.
pub(crate) fn unknown_fields(object: &DynamicObject) -> anyhow::Result<Vec<String>> {
    let mut unknown = Vec::new();
    let definitions = definitions();
    let Some(schema) = schema_of(&definitions, object) else {
        return Ok(unknown);
    };
    if let Value::Object(mut fields) = serde_json::to_value(object)? {
        fields.retain(|name, _| !OF_EVERY_OBJECT.contains(&name.as_str()));
        walk("", &fields, schema, &mut unknown);
    }
    Ok(unknown)
}

fn schema_of<'a>(definitions: &'a [CustomResourceDefinition], object: &DynamicObject) -> Option<&'a JSONSchemaProps> {
    let types = object.types.as_ref()?;
    let (group, version) = types.api_version.split_once('/')?;
    let definition = definitions
        .iter()
        .find(|definition| definition.spec.group == group && definition.spec.names.kind == types.kind)?;
    let served = definition.spec.versions.iter().find(|served| served.name == version)?;
    served.schema.as_ref()?.open_api_v3_schema.as_ref()
}

fn walk(path: &str, fields: &Map<String, Value>, schema: &JSONSchemaProps, unknown: &mut Vec<String>) {
    if schema.x_kubernetes_preserve_unknown_fields == Some(true) {
        return;
    }
    for (name, value) in fields {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        let known = schema.properties.as_ref().and_then(|properties| properties.get(name));
        match (known, &schema.additional_properties) {
            (Some(schema), _) => inside(&path, value, schema, unknown),
            (None, Some(JSONSchemaPropsOrBool::Schema(schema))) => inside(&path, value, schema, unknown),
            (None, Some(JSONSchemaPropsOrBool::Bool(true))) => {}
            (None, _) => unknown.push(no_such_field(&path, name, schema)),
        }
    }
}

fn inside(path: &str, value: &Value, schema: &JSONSchemaProps, unknown: &mut Vec<String>) {
    match (value, &schema.items) {
        (Value::Array(items), _) if schema.type_.as_deref() == Some("object") => {
            unknown.push(no_object(path, items, schema));
        }
        (Value::Object(fields), _) => walk(path, fields, schema, unknown),
        (Value::Array(items), Some(JSONSchemaPropsOrArray::Schema(schema))) => {
            for (index, item) in items.iter().enumerate() {
                inside(&format!("{path}[{index}]"), item, schema, unknown);
            }
        }
        // Any other value of a wrong type is the parser's to refuse.
        _ => {}
    }
}

fn no_object(path: &str, items: &[Value], schema: &JSONSchemaProps) -> String {
    let is_element = matches!(items, [item] if item.is_object());
    let fix = match &schema.properties {
        _ if is_element => "write it without the dash".to_owned(),
        Some(properties) if !properties.is_empty() => {
            let known: Vec<_> = properties.keys().map(String::as_str).collect();
            format!("write its fields by name, {}", known.join(", "))
        }
        _ => "write it as names with values".to_owned(),
    };
    format!("{path} is a list and must be an object: {fix}")
}

fn no_such_field(path: &str, name: &str, schema: &JSONSchemaProps) -> String {
    let known: BTreeSet<&str> = schema
        .properties
        .iter()
        .flatten()
        .map(|(name, _)| name.as_str())
        .collect();
    let nearest = known.iter().map(|known| (edits(name, known), *known)).min();
    match nearest {
        Some((edits, nearest)) if edits * LETTERS_PER_EDIT <= name.len().max(nearest.len()) => {
            format!("{path} is no field: did you mean {nearest}?")
        }
        _ => {
            let known: Vec<_> = known.into_iter().collect();
            format!("{path} is no field: there are {}", known.join(", "))
        }
    }
}

/// Letters to insert, delete, replace or swap with their neighbour, whatever their case.
fn edits(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (letters(left), letters(right));
    let mut table = vec![vec![0; right.len() + 1]; left.len() + 1];
    for i in 0..=left.len() {
        for j in 0..=right.len() {
            table[i][j] = match (i, j) {
                (0, edits) | (edits, 0) => edits,
                _ => {
                    let replaced = table[i - 1][j - 1] + usize::from(left[i - 1] != right[j - 1]);
                    let swapped = i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1];
                    let swapped = if swapped { table[i - 2][j - 2] + 1 } else { replaced };
                    replaced.min(swapped).min(table[i - 1][j] + 1).min(table[i][j - 1] + 1)
                }
            };
        }
    }
    table[left.len()][right.len()]
}

fn letters(text: &str) -> Vec<char> {
    text.chars().flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::parse;

    fn checked(spec: &str) -> Result<(), String> {
        let yaml = format!(
            "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\nmetadata: {{name: s, namespace: ops}}\n{spec}"
        );
        check(&parse("test", &yaml).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_typo_is_found_with_what_was_meant() {
        let cases = [
            (
                "spec: {explicitVeiw: Allow}",
                "spec.explicitVeiw is no field: did you mean explicitView?",
            ),
            (
                "spec: {clusters: [{name: a}, {name: b, namespace: [x]}]}",
                "spec.clusters[1].namespace is no field: did you mean namespaces?",
            ),
            (
                "spec: {selector: {matchLabel: {a: b}}}",
                "spec.selector.matchLabel is no field: did you mean matchLabels?",
            ),
            ("spce: {}", "spce is no field: did you mean spec?"),
            (
                "spec: {controller: {lease: x}}",
                "spec.controller.lease is no field: there are leaderElection, leaderElectionName, leaderElectionResourceLock",
            ),
        ];
        for (spec, told) in cases {
            assert_eq!(checked(spec), Err(format!("ShardingConfig ops/s: {told}")));
        }
    }

    #[test]
    fn a_list_in_place_of_an_object_is_refused() {
        let cases = [
            (
                "spec: [a]",
                "spec is a list and must be an object: write its fields by name, ",
            ),
            (
                "spec: {controller: [x]}",
                "spec.controller is a list and must be an object: write its fields by name, ",
            ),
            (
                "spec: {selector: {matchLabels: [a, b]}}",
                "spec.selector.matchLabels is a list and must be an object: write it as names with values",
            ),
            (
                "spec: {clusters: [[a]]}",
                "spec.clusters[0] is a list and must be an object: write its fields by name, ",
            ),
            (
                "spec: {controller: [{leaderElection: true}]}",
                "spec.controller is a list and must be an object: write it without the dash",
            ),
        ];
        for (spec, told) in cases {
            let refused = checked(spec).unwrap_err();
            assert!(
                refused.starts_with(&format!("ShardingConfig ops/s: {told}")),
                "{refused}"
            );
        }
    }

    #[test]
    fn what_the_schema_has_passes_whatever_its_value() {
        let spec =
            "spec: {selector: {matchLabels: {any: thing}}, clusters: [{name: 5}], writeFence: Maybe, limits: []}";
        assert_eq!(checked(spec), Ok(()));
        let other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndta: {}";
        check(&parse("test", other).unwrap()).unwrap();
    }
}
