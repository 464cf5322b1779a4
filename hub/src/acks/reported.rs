//! What routers report of what they meet: breakers, Leases of callers, rules of policies. Kept by `acks`, read by statuses.

use std::collections::BTreeMap;

use portolan_crds::ShardName;
use portolan_wire::v1;

/// How rules of policies stand in a router.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RuleReport {
    /// The worst first.
    pub(crate) states: Vec<v1::RuleState>,
    /// By policy, how many rules refuse all that are not among `states`.
    pub(crate) left_out: BTreeMap<String, u64>,
    /// There may be more of these.
    pub(crate) more_left_out: bool,
}

impl RuleReport {
    /// Rules that refuse all, of all policies.
    pub(crate) fn opened(&self) -> usize {
        let left_out = self
            .left_out
            .values()
            .fold(0, |sum: u64, count| sum.saturating_add(*count));
        let told = self.states.iter().filter(|state| state.opened).count();
        told.saturating_add(usize::try_from(left_out).unwrap_or(usize::MAX))
    }

    /// Whether rules of this policy may refuse all that are not among `states`.
    pub(crate) fn leaves_out(&self, policy: &str) -> bool {
        self.more_left_out || self.left_out.contains_key(policy)
    }
}

/// What a router reports last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reported {
    pub(crate) breakers: Vec<v1::BreakerState>,
    /// Until when each member may have answered it, in seconds of Unix time. Those that it has not told are not known.
    pub(crate) answered: BTreeMap<String, i64>,
    pub(crate) other_leases: OtherLeases,
}

/// When callers last renewed a Lease that is not their election's, by shard and name, in seconds of Unix time.
pub(crate) type OtherLeases = BTreeMap<(ShardName, String), i64>;
