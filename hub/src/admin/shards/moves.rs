//! Pairs whose owner two ledgers do not have alike. Pure.

use std::collections::BTreeSet;

use portolan_crds::ShardName;
use serde::Serialize;

use crate::compile::Ledger;

/// A pair that would have another owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Move {
    pub(super) cluster: String,
    pub(super) namespace: String,
    /// `None`: nobody has it.
    pub(super) from: Option<ShardName>,
    /// `None`: nobody would have it.
    pub(super) to: Option<ShardName>,
}

/// By cluster and namespace.
pub(super) fn moves(before: &Ledger, after: &Ledger) -> Vec<Move> {
    let clusters: BTreeSet<_> = before.clusters().chain(after.clusters()).collect();
    let owner = |ledger: &Ledger, cluster: &str, namespace: &str| ledger.get(cluster, namespace)?.owner.clone();
    let mut moves = Vec::new();
    for cluster in clusters {
        let namespaces = before.in_cluster(cluster).chain(after.in_cluster(cluster));
        let namespaces: BTreeSet<_> = namespaces.map(|(namespace, _)| namespace).collect();
        moves.extend(namespaces.into_iter().filter_map(|namespace| {
            let (from, to) = (owner(before, cluster, namespace), owner(after, cluster, namespace));
            (from != to).then(|| Move {
                cluster: cluster.to_owned(),
                namespace: namespace.to_owned(),
                from,
                to,
            })
        }));
    }
    moves
}
