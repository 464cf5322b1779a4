//! Kinds without namespaces that one shard works on for all.

use super::*;

#[test]
fn kinds_that_one_shard_has_are_named_one_by_one() {
    let kinds = |group: &str, resource: &str| {
        let rule = format!("{{apiGroups: ['{group}'], resources: ['{resource}']}}");
        fields(&sharding(&format!(
            "{{selector: {{}}, clusterScoped: {{resources: [{rule}]}}}}"
        )))
    };
    assert_eq!(kinds("shop.example", "fleets"), [""; 0]);
    assert_eq!(kinds("", "nodes"), [""; 0]);
    assert_eq!(
        kinds("*", "fleets"),
        ["spec.clusterScoped.resources[0].apiGroups: Invalid"]
    );
    let resources = ["spec.clusterScoped.resources[0].resources: Invalid"];
    for (group, resource) in [
        ("shop.example", "*"),
        ("", "pods"),
        ("", "namespaces"),
        ("apps", "deployments"),
    ] {
        assert_eq!(kinds(group, resource), resources, "{resource} of {group}");
    }
    let many: Vec<_> = (0..65).map(|at| format!("r{at}")).collect();
    let many = format!(
        "{{selector: {{}}, clusterScoped: {{resources: [{{apiGroups: [a.example], resources: [{}]}}]}}}}",
        many.join(", ")
    );
    assert_eq!(fields(&sharding(&many)), ["spec.clusterScoped.resources: Invalid"]);
}
