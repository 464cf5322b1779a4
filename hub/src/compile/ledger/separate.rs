//! A ledger of before becomes one whose pairs have an owner of each operator: each stays its owner's, in its epoch, fenced as it is.
//! Callers: `distribute` when somebody wants it, and whoever reads a ledger of which that was not written whole.

use std::collections::BTreeMap;

use portolan_crds::{Contention, OperatorName, ShardName};

use super::Ledger;
use crate::compile::Accepted;

impl Ledger {
    /// What is everybody's becomes that of the operator of whose shard it is, by the specs in force; of those that have none it is that
    /// without a name of their namespace. What is free is forgotten: whoever takes it begins an epoch after all that there were.
    pub(crate) fn separate(&mut self, accepted: &BTreeMap<ShardName, Accepted>) {
        self.contention = Contention::Operator;
        let everybody = OperatorName::default();
        let clusters: Vec<_> = self.pairs.get(&everybody).into_iter().flatten().collect();
        let clusters: Vec<_> = clusters
            .into_iter()
            .map(|(cluster, pairs)| (cluster.clone(), pairs.clone()))
            .collect();
        for (cluster, pairs) in clusters {
            self.skip_to(pairs.highest_epoch);
            self.change((&everybody, &cluster), BTreeMap::clear);
            let mut separate = BTreeMap::<OperatorName, BTreeMap<_, _>>::new();
            for (namespace, entry) in pairs.entries() {
                let Some(owner) = &entry.owner else { continue };
                let operator = match accepted.get(owner) {
                    Some(accepted) => self.operator(owner, &accepted.spec),
                    None => self.operator(owner, &portolan_crds::ShardingConfigSpec::default()),
                };
                separate
                    .entry(operator)
                    .or_default()
                    .insert(namespace.clone(), entry.clone());
            }
            for (operator, entries) in separate {
                self.change((&operator, &cluster), |known| known.extend(entries));
            }
        }
    }

    /// Whether some of it is written as of before, and some not.
    pub(crate) fn is_switched_in_part(&self) -> bool {
        let mut operators = self.pairs.keys();
        match self.contention {
            Contention::Fleet => operators.any(|operator| !operator.is_everybody()),
            Contention::Operator => operators.any(OperatorName::is_everybody),
        }
    }

    /// Pairs (`cluster/namespace`), with their owners, that are being let go of by a shard of which nothing is in force: of which operator
    /// it was is not known, nor who else of it waits for them.
    pub(crate) fn inseparable(&self, accepted: &BTreeMap<ShardName, Accepted>) -> Vec<(String, &ShardName)> {
        let owners = self.owners().filter(|owner| !accepted.contains_key(*owner));
        let held = owners.flat_map(|owner| {
            self.held_by(owner)
                .map(move |(cluster, namespace, _)| (cluster, namespace, owner))
        });
        held.map(|(cluster, namespace, owner)| (format!("{cluster}/{namespace}"), owner))
            .collect()
    }
}
