//! What a router reports of copies of replicated kinds, as far as it is kept. Caller: `routers`.

use std::collections::{BTreeMap, BTreeSet};

use portolan_crds::ShardName;
use portolan_wire::v1;

use crate::acks::{Copies, CopyBehind};

/// Most copies of one shard that are kept of one router: a condition names a few, of all routers.
const MAX_OF_SHARD: usize = 32;
/// Most copies that are kept of one router, as many as it tells.
const MAX_COPIES: usize = 256;
/// Longest message, in characters.
const MAX_MESSAGE_CHARS: usize = 300;
/// Longest name of an object or a kind.
const MAX_NAME_BYTES: usize = 512;
/// More copies than that no shard has.
const MAX_LEFT_OUT: u64 = 1 << 32;
/// The word of a router for a copy of which another manager owns a field that differs.
const CONFLICT: &str = "conflict";

/// What of a report is kept: copies of shards and in members that the router is told of, each once.
pub(super) fn bounded(
    report: v1::ReplicaReport,
    known: impl Fn(&ShardName) -> bool,
    sees_member: impl Fn(&str) -> bool,
) -> BTreeMap<ShardName, Copies> {
    let mut copies = BTreeMap::<ShardName, Copies>::new();
    let mut named = BTreeSet::new();
    let mut kept = 0;
    let known = |shard: &str| shard.parse().ok().filter(&known);
    for fault in report.faults {
        let Some(shard) = known(&fault.shard) else { continue };
        let is_named = is_name(&fault.kind) && is_name(&fault.name) && sees_member(&fault.cluster);
        let key = [&fault.shard, &fault.kind, &fault.name, &fault.cluster].map(Clone::clone);
        if !is_named || !named.insert(key) {
            continue;
        }
        let of_shard = copies.entry(shard).or_default();
        if of_shard.behind.len() == MAX_OF_SHARD || kept == MAX_COPIES {
            of_shard.more += 1;
            continue;
        }
        kept += 1;
        of_shard.behind.push(CopyBehind {
            may_pass: fault.reason != CONFLICT,
            kind: fault.kind,
            name: fault.name,
            cluster: fault.cluster,
            message: plain(&fault.message),
        });
    }
    for left_out in report.left_out {
        // Of a shard of which nothing is told there is nothing beside it.
        if let Some(of_shard) = known(&left_out.shard).and_then(|shard| copies.get_mut(&shard)) {
            of_shard.more = of_shard.more.saturating_add(left_out.copies).min(MAX_LEFT_OUT);
        }
    }
    copies
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A text of bounded length, on one line.
fn plain(message: &str) -> String {
    let line = message.chars().map(|char| if char.is_control() { ' ' } else { char });
    line.take(MAX_MESSAGE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(shard: &str, name: &str, cluster: &str, message: &str) -> v1::ReplicaFault {
        v1::ReplicaFault {
            shard: shard.to_owned(),
            kind: "customresourcedefinitions.apiextensions.k8s.io".to_owned(),
            name: name.to_owned(),
            cluster: cluster.to_owned(),
            reason: "conflict".to_owned(),
            message: message.to_owned(),
        }
    }

    fn kept(faults: Vec<v1::ReplicaFault>, left_out: &[(&str, u64)]) -> BTreeMap<ShardName, Copies> {
        let left_out = left_out.iter().map(|(shard, copies)| v1::ReplicasLeftOut {
            shard: (*shard).to_owned(),
            copies: *copies,
        });
        let report = v1::ReplicaReport {
            faults,
            left_out: left_out.collect(),
        };
        bounded(report, |shard| shard.namespace() == "ops", |cluster| cluster == "west")
    }

    #[test]
    fn copies_are_of_shards_and_members_that_the_router_knows_each_once_and_few() {
        let long = format!("two\nlines {}", "ä".repeat(1 << 16));
        let good = fault("ops/a", "cs.a.b", "west", &long);
        let told = vec![
            good.clone(),
            good,
            fault("dev/b", "cs.a.b", "west", ""),
            fault("ops", "cs.a.b", "west", ""),
            fault("ops/a", "cs.a.b", "mars", ""),
            fault("ops/a", "two words", "west", ""),
            fault("ops/a", &"x".repeat(MAX_NAME_BYTES + 1), "west", ""),
        ];
        let copies = kept(told, &[("ops/a", u64::MAX), ("ops/b", 7), ("dev/b", 7)]);
        assert_eq!(copies.len(), 1);
        let of_shard = copies.values().next().unwrap();
        assert_eq!((of_shard.behind.len(), of_shard.more), (1, MAX_LEFT_OUT));
        let one = &of_shard.behind[0];
        assert!(
            !one.may_pass && one.message.starts_with("two lines ä"),
            "{}",
            one.message
        );
        assert_eq!(one.message.chars().count(), MAX_MESSAGE_CHARS);
        let many = (0..2 * MAX_COPIES).map(|index| {
            let shard = format!("ops/{}", index / (2 * MAX_OF_SHARD));
            fault(&shard, &index.to_string(), "west", "")
        });
        let copies = kept(many.collect(), &[]);
        let number: usize = copies.values().map(|of_shard| of_shard.behind.len()).sum();
        assert_eq!(number, MAX_COPIES);
        assert!(copies.values().all(|of_shard| of_shard.behind.len() == MAX_OF_SHARD));
        assert!(copies.values().all(|of_shard| of_shard.more == 32));
    }
}
