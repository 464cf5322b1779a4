//! ShardingConfigs as YAML, in the shape most tests want.

use std::fmt::Write as _;

/// A federated ShardingConfig in namespace `operators` whose callers have the label `shard: <name>`.
///
/// `owns` pairs member clusters with exact namespaces, in the order of `clusters[]`.
pub fn federated(name: &str, home: &str, owns: &[(&str, &[&str])]) -> String {
    let mut yaml = format!(
        "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\nmetadata:\n  name: {name}\n  namespace: operators\nspec:\n  \
         selector:\n    matchLabels:\n      shard: {name}\n  controller:\n    leaderElectionName: greeting-operator\n  \
         callerClusters: [{home}]\n  primaryCluster: {home}\n  explicitView: Allow\n  clusters:\n"
    );
    for (cluster, namespaces) in owns {
        let _ = writeln!(yaml, "  - name: {cluster}\n    namespaces: [{}]", namespaces.join(", "));
    }
    yaml.push_str("---\n");
    yaml
}
