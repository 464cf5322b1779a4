//! What routers report of what they meet: breakers, Leases of callers, rules of policies. Kept by `acks`, read by statuses.

use std::collections::{BTreeMap, BTreeSet};

use portolan_crds::ShardName;
use portolan_wire::v1;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Acks, RouterState};

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

/// Copies of one shard's objects of replicated kinds that are not what the primary has, as a router knows.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Copies {
    /// A bounded number.
    pub(crate) behind: Vec<CopyBehind>,
    /// How many there are beside.
    pub(crate) more: u64,
}

/// One of them. In the order in which they are told: what people must end comes first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CopyBehind {
    /// No other manager's fields are in the way: it may pass by itself.
    pub(crate) may_pass: bool,
    /// `<resource>.<group>`.
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) cluster: String,
    /// What the member or the router said.
    pub(crate) message: String,
}

/// What a router reports last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reported {
    pub(crate) breakers: Vec<v1::BreakerState>,
    pub(crate) answered: Answered,
    pub(crate) other_leases: OtherLeases,
}

/// Until when each member may have answered a router, in seconds of Unix time. Those that it has not told are not known.
///
/// As it came, in the order of names: of a large fleet each router tells of each member every few seconds, and hardly ever is one
/// looked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Answered(Vec<v1::MemberAnswered>);

impl Answered {
    /// What a router says. Of a member that it names twice the later word counts.
    pub(crate) fn of(mut told: Vec<v1::MemberAnswered>) -> Self {
        let is_before = |one: &v1::MemberAnswered, next: &v1::MemberAnswered| one.cluster < next.cluster;
        if !told.is_sorted_by(is_before) {
            told.reverse();
            told.sort_by(|one, other| one.cluster.cmp(&other.cluster));
            told.dedup_by(|later, kept| later.cluster == kept.cluster);
        }
        // Room for what was told of others is not kept: a report may name as many as it likes.
        told.shrink_to_fit();
        Self(told)
    }

    pub(crate) fn get(&self, cluster: &str) -> Option<i64> {
        let place = self
            .0
            .binary_search_by(|answered| answered.cluster.as_str().cmp(cluster));
        place.ok().map(|place| self.0[place].until_unix_seconds)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn east(until_unix_seconds: i64) -> Self {
        Self::of(vec![v1::MemberAnswered {
            cluster: "east".to_owned(),
            until_unix_seconds,
        }])
    }
}

/// When callers last renewed a Lease that is not their election's, by shard and name, in seconds of Unix time.
pub(crate) type OtherLeases = BTreeMap<(ShardName, String), i64>;

impl Acks {
    /// What a router reports of members and callers. When they answered is asked for and wakes nobody; times alone neither.
    pub(crate) fn reported(&self, router: &str, epoch: u64, reported: Reported) {
        self.note((router, epoch), &self.changed, |state| {
            state.heard = Some(Instant::now());
            let before = std::mem::replace(&mut state.reported, reported.into());
            before.breakers != state.reported.breakers
                || !before.other_leases.keys().eq(state.reported.other_leases.keys())
        });
    }

    /// How rules of policies stand in a router. It wakes who looks at statuses and nobody else; figures alone not even those.
    pub(crate) fn policies_reported(&self, router: &str, epoch: u64, rules: RuleReport) {
        self.note((router, epoch), &self.status_changed, |state| {
            let is_first = state.told_rules.replace(Instant::now()).is_none();
            let before = std::mem::replace(&mut state.rules, rules.into());
            is_first || standing(&before) != standing(&state.rules)
        });
    }

    /// Which copies are not what the primary has, as a router knows. It wakes who looks at statuses and nobody else.
    pub(crate) fn copies_reported(&self, router: &str, epoch: u64, copies: BTreeMap<ShardName, Copies>) {
        self.note((router, epoch), &self.status_changed, |state| {
            let is_news = *state.copies != copies;
            state.copies = copies.into();
            is_news
        });
    }

    /// Takes a word of a router's present stream, and wakes who waits for it if that says that it `is_news`.
    fn note(
        &self,
        (router, epoch): (&str, u64),
        who: &watch::Sender<u64>,
        is_news: impl FnOnce(&mut RouterState) -> bool,
    ) {
        let mut routers = self.routers.write();
        let state = routers.get_mut(router).filter(|state| state.epoch == epoch);
        let wakes = state.is_some_and(is_news);
        drop(routers);
        if wakes {
            who.send_modify(|count| *count += 1);
        }
    }
}

/// Rules that have done anything, and whether they refuse all; and of which policies not all are told.
fn standing(rules: &RuleReport) -> BTreeSet<(&str, &str, &str, bool)> {
    let standing = rules.states.iter().map(|state| {
        let caller = state.caller.as_str();
        (state.policy.as_str(), state.rule.as_str(), caller, state.opened)
    });
    let left_out = rules.left_out.keys().map(|policy| (policy.as_str(), "", "", true));
    standing.chain(left_out).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_in_whatever_order_they_were_told() {
        let answered = |cluster: &str, until_unix_seconds| v1::MemberAnswered {
            cluster: cluster.to_owned(),
            until_unix_seconds,
        };
        let (east, north, west) = (answered("east", 1), answered("north", 2), answered("west", 3));
        for told in [
            vec![east.clone(), north.clone(), west.clone()],
            vec![west.clone(), answered("east", 7), north.clone(), east.clone()],
        ] {
            let known = Answered::of(told);
            let found = ["east", "north", "west", "a", "z"].map(|cluster| known.get(cluster));
            assert_eq!(found, [Some(1), Some(2), Some(3), None, None]);
        }
    }
}
