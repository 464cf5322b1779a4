//! Copies of objects of replicated kinds that are not what the primary has, as the hub is told of them
//! (`docs/semantics.md#replicated-kinds`).
//!
//! Lost with the process, as is what is known of the copies. Writer: `edge`; reader: `subscribe`, which tells.

use std::collections::BTreeMap;

use portolan_wire::v1;
use tokio::sync::watch;

/// Most copies of one shard that are told: its condition names a few.
pub(crate) const MOST_OF_SHARD: usize = 32;
/// Most copies that are told: with the longest messages a fifth of a megabyte.
const MOST: usize = 256;
/// Longest message, in characters: of a conflict it names the other manager and the fields.
pub(crate) const MAX_MESSAGE_CHARS: usize = 300;

/// A copy that is not what the primary has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReplicaFault<'a> {
    /// `namespace/name` of the ShardingConfig.
    pub(crate) shard: &'a str,
    /// Nothing but another manager of its fields is in the way.
    pub(crate) is_conflict: bool,
    pub(crate) name: &'a str,
    /// `<resource>.<group>`.
    pub(crate) kind: &'a str,
    pub(crate) cluster: &'a str,
    pub(crate) reason: &'static str,
    pub(crate) message: &'a str,
}

/// What this router knows of all shards.
#[derive(Debug)]
pub(crate) struct Replicas {
    // A watch: one waits, the hub's stream, and only the newest matters to it.
    report: watch::Sender<v1::ReplicaReport>,
}

impl Default for Replicas {
    fn default() -> Self {
        Self {
            report: watch::Sender::new(v1::ReplicaReport::default()),
        }
    }
}

impl Replicas {
    /// These are all.
    pub(crate) fn are_behind<'a>(&self, faults: impl IntoIterator<Item = ReplicaFault<'a>>) {
        let report = report(faults);
        self.report.send_if_modified(|before| {
            let is_news = *before != report;
            *before = report;
            is_news
        });
    }

    pub(crate) fn changes(&self) -> watch::Receiver<v1::ReplicaReport> {
        self.report.subscribe()
    }
}

/// Conflicts first, as only people end them. Shards take turns, so that none fills the report.
fn report<'a>(faults: impl IntoIterator<Item = ReplicaFault<'a>>) -> v1::ReplicaReport {
    let mut of_shards = BTreeMap::<&str, Vec<_>>::new();
    for fault in faults {
        of_shards.entry(fault.shard).or_default().push(fault);
    }
    for faults in of_shards.values_mut() {
        faults.sort_unstable_by_key(|fault| (!fault.is_conflict, *fault));
    }
    let of_each = of_shards
        .values()
        .map(|faults| faults.iter().take(MOST_OF_SHARD).enumerate());
    let mut told: Vec<_> = of_each.flatten().collect();
    told.sort_by_key(|(turn, _)| *turn);
    told.truncate(MOST);
    let left_out = of_shards.iter().filter_map(|(shard, faults)| {
        let named = told.iter().filter(|(_, fault)| fault.shard == *shard).count();
        let copies = faults.len() - named;
        (copies > 0).then(|| v1::ReplicasLeftOut {
            shard: (*shard).to_owned(),
            copies: u64::try_from(copies).unwrap_or(u64::MAX),
        })
    });
    v1::ReplicaReport {
        left_out: left_out.collect(),
        faults: told.iter().map(|(_, fault)| fault.to_wire()).collect(),
    }
}

impl ReplicaFault<'_> {
    fn to_wire(self) -> v1::ReplicaFault {
        v1::ReplicaFault {
            shard: self.shard.to_owned(),
            kind: self.kind.to_owned(),
            name: self.name.to_owned(),
            cluster: self.cluster.to_owned(),
            reason: self.reason.to_owned(),
            message: self.message.chars().take(MAX_MESSAGE_CHARS).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_bounded_and_each_shard_has_its_part_of_it() {
        let long = "ä".repeat(1 << 16);
        let names: Vec<String> = (0..2 * MOST).map(|index| format!("cs-{index:03}.a.b")).collect();
        let fault = |shard, name, reason| ReplicaFault {
            shard,
            is_conflict: reason == "conflict",
            name,
            kind: "customresourcedefinitions.apiextensions.k8s.io",
            cluster: "west",
            reason,
            message: &long,
        };
        let loud = names.iter().map(|name| fault("ops/loud", name.as_str(), "away"));
        let conflict = fault("ops/loud", "zs.a.b", "conflict");
        let told = report(loud.chain([conflict, fault("ops/quiet", "cs.a.b", "late")]));
        assert_eq!(told.faults.len(), MOST_OF_SHARD + 1);
        let first: Vec<_> = told
            .faults
            .iter()
            .map(|one| (&*one.name, &*one.reason))
            .take(2)
            .collect();
        assert_eq!(first, [("zs.a.b", "conflict"), ("cs.a.b", "late")]);
        assert_eq!(told.faults[0].message.chars().count(), MAX_MESSAGE_CHARS);
        let left = |shard: &str, copies| v1::ReplicasLeftOut {
            shard: shard.to_owned(),
            copies,
        };
        let beyond = u64::try_from(2 * MOST + 1 - MOST_OF_SHARD).unwrap();
        assert_eq!(told.left_out, [left("ops/loud", beyond)]);
        // Of many shards each is told of.
        let shards: Vec<String> = (0..MOST / MOST_OF_SHARD * 2)
            .map(|shard| format!("ops/{shard:02}"))
            .collect();
        let all = shards.iter().flat_map(|shard| {
            let names = names.iter().take(MOST_OF_SHARD);
            names.map(move |name| fault(shard.as_str(), name.as_str(), "away"))
        });
        let told = report(all);
        assert_eq!(told.faults.len(), MOST);
        let half = u64::try_from(MOST_OF_SHARD / 2).unwrap();
        assert!(shards.iter().map(|shard| left(shard, half)).eq(told.left_out));
    }

    #[test]
    fn the_hub_is_woken_by_news_alone() {
        let replicas = Replicas::default();
        let mut changes = replicas.changes();
        let fault = ReplicaFault {
            shard: "ops/a",
            is_conflict: true,
            name: "cs.a.b",
            kind: "k",
            cluster: "west",
            reason: "conflict",
            message: "m",
        };
        replicas.are_behind([]);
        assert!(!changes.has_changed().unwrap());
        replicas.are_behind([fault]);
        assert!(changes.has_changed().unwrap());
        assert_eq!(changes.borrow_and_update().faults, [fault.to_wire()]);
        replicas.are_behind([fault]);
        assert!(!changes.has_changed().unwrap(), "it was told");
        replicas.are_behind([]);
        assert!(changes.has_changed().unwrap() && changes.borrow().faults.is_empty());
    }
}
