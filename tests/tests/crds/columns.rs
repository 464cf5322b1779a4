//! What kubectl prints of them.

use portolan_testbed::Cluster;

use super::run;

pub(super) async fn people_see_the_columns(hub: &Cluster) {
    let shards = run(hub, &["get", "shard", "-A"]).await;
    assert!(
        shards.lines().any(|line| line
            .split_whitespace()
            .take(5)
            .eq(["operator-demo", "whole", "True", "1", "0"])),
        "{shards}"
    );
    let members = run(hub, &["get", "mc"]).await;
    assert!(
        members
            .lines()
            .any(|line| line.starts_with("whole") && line.contains("v1.36.3")),
        "{members}"
    );
    let explained = run(hub, &["explain", "shardingconfigs.spec.clusters.namespaces"]).await;
    assert!(explained.contains("kube-system"), "{explained}");
}
