//! What hub and routers would say of a document, before anything is sent: by the functions that they ask themselves.
//!
//! Fields that a kind does not have come first: the API server would drop them, and what is left would mean something else.
//! Called by `apply_files`.

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use portolan_crds::validate::accepted_reason;
use portolan_crds::{
    CircuitBreakerSpec, ConditionReason, FaultInjectionSpec, MemberClusterSpec, Problem, ShardingConfigSpec, labels,
    validate_circuit_breaker, validate_fault_injection, validate_member, validate_sharding,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::strict;

/// What becomes of a document.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Not of ours: the API server's to judge.
    Foreign,
    /// It is in force once routers have it.
    Accepted,
    /// It is in force once routers have it, but for these fields, which this version does not serve, each with why.
    AcceptedInPart(Vec<String>),
    /// It is right, but this version serves nothing of it: these fields, each with why.
    NotServed(Vec<String>),
    /// It is wrong: everything that is, each with its field and the fix.
    Wrong(Vec<String>),
}

/// Judges one document.
pub(crate) fn judge(object: &DynamicObject) -> anyhow::Result<Verdict> {
    let Some(types) = object.types.as_ref().filter(|types| of_ours(&types.api_version)) else {
        return Ok(Verdict::Foreign);
    };
    let version = format!("{}/{}", labels::GROUP, labels::VERSION);
    if types.api_version != version {
        let told = format!("apiVersion {:?} is not served: write {version}", types.api_version);
        return Ok(Verdict::Wrong(vec![told]));
    }
    let unknown = strict::unknown_fields(object)?;
    if !unknown.is_empty() {
        return Ok(Verdict::Wrong(unknown));
    }
    let name = object.name_any();
    let namespace = object.namespace().unwrap_or_else(|| "default".to_owned());
    let problems = match types.kind.as_str() {
        "ShardingConfig" => read(object, |spec: ShardingConfigSpec| {
            validate_sharding(&name, &namespace, &spec)
        }),
        "MemberCluster" => read(object, |spec: MemberClusterSpec| validate_member(&name, &spec)),
        "CircuitBreaker" => read(object, |spec: CircuitBreakerSpec| validate_circuit_breaker(&spec)),
        "FaultInjection" => read(object, |spec: FaultInjectionSpec| validate_fault_injection(&spec)),
        // The hub writes Routers itself; a ManagerState is the predecessor's record of itself.
        "Router" | "ManagerState" => return Ok(Verdict::Foreign),
        kind => Err(format!("kind {kind:?} is none of {}", labels::GROUP)),
    };
    Ok(match problems {
        Err(unreadable) => Verdict::Wrong(vec![unreadable]),
        Ok(problems) => verdict(&problems),
    })
}

fn verdict(problems: &[Problem]) -> Verdict {
    let told = || problems.iter().map(Problem::to_string).collect();
    match accepted_reason(problems) {
        ConditionReason::Ok if problems.is_empty() => Verdict::Accepted,
        ConditionReason::Ok => Verdict::AcceptedInPart(told()),
        ConditionReason::NotImplemented => Verdict::NotServed(told()),
        _ => Verdict::Wrong(told()),
    }
}

fn of_ours(api_version: &str) -> bool {
    let group = api_version.split_once('/').map(|(group, _)| group);
    group == Some(labels::GROUP)
}

/// The problems of its spec, or why it cannot be read.
fn read<T: DeserializeOwned>(
    object: &DynamicObject,
    validate: impl FnOnce(T) -> Vec<Problem>,
) -> Result<Vec<Problem>, String> {
    let spec = object.data.get("spec").filter(|spec| !spec.is_null());
    let spec = spec.ok_or("spec: is missing")?;
    serde_path_to_error::deserialize::<Value, T>(spec.clone())
        .map(validate)
        .map_err(|error| match error.path().to_string().as_str() {
            "." => format!("spec: {}", error.inner()),
            path => format!("spec.{path}: {}", error.inner()),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::parse;

    fn judged(kind: &str, rest: &str) -> Verdict {
        let yaml = format!(
            "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: {kind}\nmetadata: {{name: x, namespace: ops}}\n{rest}"
        );
        judge(&parse("test", &yaml).unwrap()[0]).unwrap()
    }

    fn wrong(told: &[&str]) -> Verdict {
        Verdict::Wrong(told.iter().copied().map(str::to_owned).collect())
    }

    #[test]
    fn each_kind_is_judged_by_its_own_rules() {
        let limit = "{name: l, resourceRules: [{apiGroups: [''], resources: [pods], verbs: [get], namespaces: ['*']}], bucket: {burst: 0, interval: 1s, limit: 1}}";
        for (kind, spec, field) in [
            ("ShardingConfig", "{clusters: [{name: a}]}", "spec.selector: "),
            (
                "MemberCluster",
                "{endpoints: [{url: 'http://x'}]}",
                "spec.endpoints[0].url: ",
            ),
            (
                "CircuitBreaker",
                &format!("{{rateLimitings: [{limit}]}}"),
                "spec.rateLimitings[0].bucket.burst: ",
            ),
            ("FaultInjection", "{until: later}", "spec.until: "),
        ] {
            let Verdict::Wrong(told) = judged(kind, &format!("spec: {spec}")) else {
                unreachable!("{kind}: {spec} is wrong");
            };
            assert!(told[0].starts_with(field), "{told:?}");
        }
        for kind in ["CircuitBreaker", "FaultInjection"] {
            assert_eq!(judged(kind, "spec: {selector: {}}"), Verdict::Accepted);
        }
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let limit = "{name: l, triggerPolicy: Open}";
        assert_eq!(
            judged("CircuitBreaker", &format!("spec: {{rateLimitings: [{limit}]}}")),
            wrong(&[
                "spec.rateLimitings[0].triggerPolicy: unknown variant `Open`, expected one of `Normal`, `LimiterOnly`, `ForceOpened`, `ForceClosed`"
            ])
        );
        assert_eq!(judged("FaultInjection", ""), wrong(&["spec: is missing"]));
        assert_eq!(
            judged("FaultInjection", "spec: {httpFaults: []}"),
            wrong(&["spec.httpFaults is no field: did you mean httpFault?"])
        );
        assert_eq!(
            judged("FaultInjektion", "spec: {}"),
            wrong(&["kind \"FaultInjektion\" is none of ctrlmesh.kusionstack.io"])
        );
    }

    #[test]
    fn what_is_not_served_yet_is_right_all_the_same() {
        let Verdict::NotServed(told) = judged(
            "CircuitBreaker",
            "spec: {trafficInterceptRules: [{name: a, interceptType: Whitelist, contentType: Normal}]}",
        ) else {
            unreachable!("it is not served");
        };
        assert!(told[0].starts_with("spec.trafficInterceptRules: "), "{told:?}");
    }

    fn fields(told: &[String]) -> String {
        let field = |told: &String| told.split([':', ' ']).next().unwrap_or_default().to_owned();
        told.iter().map(field).collect::<Vec<_>>().join(", ")
    }

    /// Everything wrong with a predecessor's manifest is named by its field, and what is right of it is accepted.
    #[test]
    fn manifests_of_the_predecessors() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/predecessors");
        let fates = |file: &str| -> Vec<String> {
            let yaml = std::fs::read_to_string(format!("{folder}/{file}")).unwrap();
            let fate = |object: &DynamicObject| match judge(object).unwrap() {
                Verdict::Foreign => "foreign".to_owned(),
                Verdict::Accepted => "accepted".to_owned(),
                Verdict::AcceptedInPart(told) => format!("accepted but for {}", fields(&told)),
                Verdict::NotServed(told) => format!("not served: {}", fields(&told)),
                Verdict::Wrong(told) => format!("wrong: {}", fields(&told)),
            };
            parse(file, &yaml).unwrap().iter().map(fate).collect()
        };
        let expected: [(&str, &[&str]); 7] = [
            (
                "kusionstack-circuitbreaker-demo.yaml",
                &["accepted but for spec.rateLimitings[1].restRules, spec.trafficInterceptRules"],
            ),
            ("kusionstack-shardingconfig-auto.yaml", &["accepted"]),
            ("kusionstack-e2e-sharding.yaml", &["accepted", "accepted"]),
            // These two do not fit the kinds of their own project either.
            (
                "kusionstack-shardingconfig-demo.yaml",
                &["wrong: spec.limits[0].objectSelector"],
            ),
            (
                "kusionstack-faultinjection-demo.yaml",
                &["wrong: spec.httpFault[0].match, spec.httpFault[1].match.relatedResources"],
            ),
            ("openkruise-virtualapp.yaml", &["foreign"]),
            ("openkruise-trafficpolicy.yaml", &["foreign"]),
        ];
        for (file, fate) in expected {
            assert_eq!(fates(file), fate, "{file}");
        }
        let files = std::fs::read_dir(folder).unwrap();
        assert_eq!(
            files.count(),
            expected.len() + 1,
            "each manifest has a row, and NOTICE is there"
        );
    }

    #[test]
    fn only_ours_are_judged() {
        let of = |yaml: &str| judge(&parse("test", yaml).unwrap()[0]).unwrap();
        assert_eq!(
            of("{apiVersion: v1, kind: Namespace, metadata: {name: a}}"),
            Verdict::Foreign
        );
        let newer = of("{apiVersion: ctrlmesh.kusionstack.io/v1, kind: FaultInjection, metadata: {name: a}, spec: {}}");
        let told = "apiVersion \"ctrlmesh.kusionstack.io/v1\" is not served: write ctrlmesh.kusionstack.io/v1alpha1";
        assert_eq!(newer, wrong(&[told]));
    }
}
