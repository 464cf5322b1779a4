//! Kinds without namespaces which one shard sees for its operator, and that is another one in two states. Pure.

use std::collections::{BTreeMap, BTreeSet};

use portolan_crds::{OperatorName, ResourceGroup, ShardName};
use serde::Serialize;

use crate::compile::State;

/// A kind that another shard would see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct KindMove {
    /// As `fleets.shop.example`.
    pub(super) kind: String,
    /// Namespace of the shards between which it moves.
    pub(super) namespace: String,
    /// Their `spec.operator`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) operator: Option<String>,
    /// `None`: all of the operator's shards see it.
    pub(super) from: Option<ShardName>,
    /// `None`: all of them would see it.
    pub(super) to: Option<ShardName>,
}

type Holders<'a> = BTreeMap<(OperatorName, String), &'a ShardName>;

/// By operator and kind.
pub(super) fn moves(before: &State, after: &State) -> Vec<KindMove> {
    let (before, after) = (holders(before), holders(after));
    let all: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let moved = all.into_iter().filter_map(|named| {
        let (operator, kind) = named;
        let holder = |holders: &Holders<'_>| holders.get(named).map(|shard| (*shard).clone());
        let (from, to) = (holder(&before), holder(&after));
        (from != to).then(|| KindMove {
            kind: kind.clone(),
            namespace: operator.namespace().to_owned(),
            operator: operator.name().map(str::to_owned),
            from,
            to,
        })
    });
    moved.collect()
}

/// Which shard sees which kind alone. A root gives them to a child; where operators are not told apart, all see all.
fn holders(state: &State) -> Holders<'_> {
    let contention = state.ledger.contention();
    let shards = state.accepted.iter();
    let shards = shards.filter(|(_, accepted)| accepted.spec.root.is_none() && !contention.is_fleet());
    shards
        .flat_map(|(name, accepted)| {
            let operator = contention.of(name, &accepted.spec);
            let kinds = accepted.spec.single_kinds().iter().flat_map(ResourceGroup::kinds);
            kinds.map(move |kind| ((operator.clone(), kind.to_string()), name))
        })
        .collect()
}
