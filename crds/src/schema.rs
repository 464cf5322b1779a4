//! What the derive cannot say about the OpenAPI schemas: types of apimachinery with bounds, CEL rules, list semantics.
//!
//! Bounds are wide enough for real fleets and small enough that the API server's cost estimate of our CEL rules stays
//! below its limits (10 million per rule). Used by the derives of this crate only.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use crate::names::{GO_DURATION_MAX, REQUIREMENTS_MAX, RULE_NAME_MAX, TOKENS_MAX, VALUES_MAX, VERBS, WILDCARD};

/// A DNS-1123 label.
pub(crate) const DNS_LABEL: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// A DNS-1123 subdomain.
pub(crate) const DNS_SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// An API group or resource in a rule: lower case, `*`, or (groups only) the empty core group; subresources after a slash.
pub(crate) const GROUP_OR_RESOURCE: &str = r"^(\*|[a-z0-9]([-a-z0-9./]*[a-z0-9*])?)?$";

/// An API group in a rule of a policy: `*`, or empty for the core group.
pub(crate) const API_GROUP_RULE: &str = r"^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$";
/// A resource in a rule of a policy: `pods`, `pods/exec`, `pods/*`, `*/scale`, `*`.
pub(crate) const RESOURCE_RULE: &str = r"^(\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(/\*)?|(\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)/[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)$";
/// A namespace in a rule of a policy: `*`, or empty for what has none.
pub(crate) const NAMESPACE_RULE: &str = r"^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)?$";
/// The name of a rule: printable ASCII without what stands beside it in annotations, headers and causes.
pub(crate) const RULE_NAME: &str = r"^[!-+\-.0-<>?A-~]([ -+\-.0-<>?A-~]*[!-+\-.0-<>?A-~])?$";
/// A length of time as Go reads it, without sign.
const GO_DURATION: &str = r"^(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(h|m|s|ms|us|µs|μs|ns))+)$";
/// The same, or nothing.
const GO_DURATION_OR_NONE: &str = r"^(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(h|m|s|ms|us|µs|μs|ns))+)?$";
/// A decimal number of at most three digits before its point.
pub(crate) const PERCENT: &str = r"^([0-9]{1,3}(\.[0-9]{0,9})?|\.[0-9]{1,9})$";
/// `HH:MM:SS`, or empty where the original had it so.
pub(crate) const TIME_OF_DAY: &str = r"^(([01]?[0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9])?$";
/// The name of a time zone, as far as a pattern can tell.
pub(crate) const TIME_ZONE: &str = r"^[A-Za-z0-9_+/-]+$";
/// A point in time with its offset: RFC 3339.
pub(crate) const RFC_3339: &str = r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[Tt]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$";
/// A method of HTTP, `*`, or empty for any.
pub(crate) const HTTP_METHOD_RULE: &str = r"^(\*|[A-Z][A-Z-]*)?$";
/// A token of HTTP.
pub(crate) const HEADER_NAME: &str = r"^[-!#$%&'*+.^_`|~0-9A-Za-z]+$";
/// What a header can carry without being encoded.
pub(crate) const HEADER_VALUE: &str = r"^([!-~]([\t -~]*[!-~])?)?$";

const LABEL_KEY: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
const LABEL_VALUE: &str = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$";

/// `x-kubernetes-validations`: pairs of a CEL rule and what to tell the user when it does not hold.
pub(crate) fn rules<const N: usize>(rules: [(&str, &str); N]) -> Value {
    rules
        .into_iter()
        .map(|(rule, message)| json!({"rule": rule, "message": message}))
        .collect()
}

/// A `metav1.LabelSelector` with bounds. An empty one selects everything.
pub(crate) fn label_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": {
                "description": "Labels that must be present with exactly these values.",
                "type": "object",
                "maxProperties": REQUIREMENTS_MAX,
                "additionalProperties": {"type": "string", "maxLength": 63, "pattern": LABEL_VALUE},
            },
            "matchExpressions": {
                "description": "Requirements that must all hold.",
                "type": "array",
                "maxItems": REQUIREMENTS_MAX,
                "x-kubernetes-list-type": "atomic",
                "items": expression(),
            },
        },
    })
}

fn expression() -> Value {
    json!({
        "type": "object",
        "required": ["key", "operator"],
        "properties": {
            "key": {
                "description": "The label it speaks about.",
                "type": "string", "minLength": 1, "maxLength": 317, "pattern": LABEL_KEY,
            },
            "operator": {
                "description": "How the label relates to the values.",
                "type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
            },
            "values": {
                "description": "What to compare with: at least one for In and NotIn, none for Exists and DoesNotExist.",
                "type": "array",
                "maxItems": VALUES_MAX,
                "x-kubernetes-list-type": "atomic",
                "items": {"type": "string", "maxLength": 63, "pattern": LABEL_VALUE},
            },
        },
        "x-kubernetes-validations": rules([(
            "self.operator in ['In', 'NotIn'] ? has(self.values) && self.values.size() > 0 : !has(self.values) || self.values.size() == 0",
            "In and NotIn need at least one value, Exists and DoesNotExist take none",
        )]),
    })
}

/// `metav1.Condition`s, one per type.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {"description": "What it is about.", "type": "string", "maxLength": 316},
                "status": {"description": "Whether it holds.", "type": "string", "enum": ["True", "False", "Unknown"]},
                "observedGeneration": {
                    "description": "metadata.generation that it was found for.",
                    "type": "integer", "format": "int64", "minimum": 0,
                },
                "lastTransitionTime": {
                    "description": "When status last changed.", "type": "string", "format": "date-time",
                },
                "reason": {"description": "Why, in one CamelCase word.", "type": "string", "minLength": 1, "maxLength": 1024},
                "message": {"description": "Why, for people; names what is wrong and the fix.", "type": "string", "maxLength": 32768},
            },
        },
    })
}

/// Buckets and ranges of buckets. A number that YAML reads as one is as good as its text.
pub(crate) fn buckets(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 1024,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "x-kubernetes-int-or-string": true,
            "minimum": 0,
            "maximum": 1023,
            "maxLength": 9,
            "pattern": "^(0|[1-9][0-9]{0,3})(-(0|[1-9][0-9]{0,3}))?$",
        },
    })
}

/// A point in time, RFC 3339.
pub(crate) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time"})
}

/// A point in time, RFC 3339, kept as text.
pub(crate) fn time_with_zone(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string", "maxLength": 64, "pattern": RFC_3339,
        "x-kubernetes-validations": rules([(
            "timestamp(self.upperAscii()) < timestamp('9999-12-30T22:00:00Z')",
            "must be a day that there is, before 9999-12-30",
        )]),
    })
}

/// A length of time as Go writes it, at most 720 hours.
pub(crate) fn go_duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string", "maxLength": GO_DURATION_MAX, "pattern": GO_DURATION,
        "x-kubernetes-validations": rules([("duration(self) <= duration('720h')", "must be at most 720h")]),
    })
}

/// The same, or nothing where nothing is asked for: the original had such fields required, and strings.
pub(crate) fn go_duration_or_none(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string", "maxLength": GO_DURATION_MAX, "pattern": GO_DURATION_OR_NONE,
        "x-kubernetes-validations": rules([("self == '' || duration(self) <= duration('720h')", "must be at most 720h")]),
    })
}

/// How many of a hundred.
pub(crate) fn percent(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string", "maxLength": 16, "pattern": PERCENT,
        "x-kubernetes-validations": rules([
            ("double(self) <= 100.0", "must be from 0 (none) to 100 (all)"),
        ]),
    })
}

/// The name of a rule.
pub(crate) fn rule_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "minLength": 1, "maxLength": RULE_NAME_MAX, "pattern": RULE_NAME})
}

/// The same, or nothing: the original let rules have no name.
pub(crate) fn rule_name_or_none(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": RULE_NAME_MAX, "pattern": format!("{RULE_NAME}|^$")})
}

/// The verbs in a rule.
pub(crate) fn verbs() -> Value {
    let verbs: Value = VERBS.into_iter().chain([WILDCARD]).collect();
    json!({"type": "string", "enum": verbs})
}

/// Tokens by verb. Its fields are named, as the API server cannot know how long the keys of a map are.
pub(crate) fn cost(_: &mut SchemaGenerator) -> Schema {
    let verb = |verb: &str| {
        let tokens = json!({
            "description": format!("Tokens that a request with the verb {verb} takes."),
            "type": "integer", "format": "int64", "minimum": 0, "maximum": TOKENS_MAX,
        });
        (verb.to_owned(), tokens)
    };
    let verbs: Map<String, Value> = VERBS.into_iter().map(verb).collect();
    json_schema!({"type": "object", "properties": verbs})
}

/// Base64 in JSON and YAML, as every `[]byte` of Kubernetes.
pub(crate) fn bytes(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "byte"})
}

/// Any object, kept as it is.
pub(crate) fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-map-type": "atomic"})
}
