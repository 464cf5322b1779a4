//! Pairs whose owner two ledgers do not have alike. Pure.

use std::collections::BTreeSet;

use portolan_crds::{OperatorName, ShardName};
use serde::Serialize;

use crate::compile::Ledger;

/// A pair that would have another owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Move {
    /// `spec.operator` of those between whom it moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) operator: Option<String>,
    pub(super) cluster: String,
    pub(super) namespace: String,
    /// `None`: nobody has it.
    pub(super) from: Option<ShardName>,
    /// `None`: nobody would have it.
    pub(super) to: Option<ShardName>,
}

/// By cluster and namespace.
pub(super) fn moves(before: &Ledger, after: &Ledger) -> Vec<Move> {
    let clusters: BTreeSet<_> = before.clusters().union(&after.clusters()).copied().collect();
    let owner = |ledger: &Ledger, (operator, cluster, namespace): (&OperatorName, &str, &str)| {
        ledger.get(operator, cluster, namespace)?.owner.clone()
    };
    let mut moves = Vec::new();
    for cluster in clusters {
        let all = before.pairs_in(cluster).chain(after.pairs_in(cluster));
        let all: BTreeSet<_> = all.map(|(operator, namespace, _)| (namespace, operator)).collect();
        moves.extend(all.into_iter().filter_map(|(namespace, operator)| {
            let pair = (operator, cluster, namespace);
            let (from, to) = (owner(before, pair), owner(after, pair));
            (from != to).then(|| Move {
                operator: operator.name().map(str::to_owned),
                cluster: cluster.to_owned(),
                namespace: namespace.to_owned(),
                from,
                to,
            })
        }));
    }
    moves
}
