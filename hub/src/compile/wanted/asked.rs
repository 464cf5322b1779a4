//! What specs asked for in the last run, and by what that was found: most ask for the same in the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_crds::{Contention, MemberClusterSpec, OperatorName, ShardName, ShardingConfigSpec};

use super::{Known, Wanted};
use crate::compile::ledger::{ByCluster, Ledger, unshared_fields};
use crate::facts::{Facts, MemberObject};

/// What each shard's specs asked for in the last run.
#[derive(Debug, Clone, Default)]
pub(in crate::compile) struct Asked {
    members: BTreeMap<String, Chosen>,
    /// Whose shards contend with whose: of which operator each answer is.
    contention: Contention,
    pairs: BTreeMap<OperatorName, ByCluster>,
    pub(in crate::compile) by_shard: Answers,
    /// Whose answers may be others in this run.
    doubted: Doubted,
}

/// What the specs of each shard ask for.
pub(in crate::compile) type Answers = BTreeMap<ShardName, Vec<Answer>>;

#[derive(Debug, Clone)]
enum Doubted {
    All,
    Some(BTreeSet<ShardName>),
}

impl Default for Doubted {
    fn default() -> Self {
        Self::Some(BTreeSet::new())
    }
}

/// What specs choose members by.
#[derive(Debug, Clone, PartialEq)]
struct Chosen {
    labels: BTreeMap<String, String>,
    // Compared by what it is, which is nearly always the same one.
    in_force: Option<Arc<MemberClusterSpec>>,
}

/// What one spec asked for.
#[derive(Debug, Clone)]
pub(in crate::compile) struct Answer {
    spec: Arc<ShardingConfigSpec>,
    /// Of its members, in order.
    inventories: Vec<Option<u64>>,
    wanted: Arc<Wanted>,
}

impl Asked {
    /// Finds out whose answers may be others by now: of all shards if any member is chosen in another way, or operators are told
    /// apart from now on, else of those that have, or had, something where the ledger is not as it was.
    pub(in crate::compile) fn refresh(&mut self, facts: &Facts, ledger: &Ledger) {
        let is_same = |(cluster, member): (&String, &MemberObject)| {
            let chosen = self.members.get(cluster);
            chosen.is_some_and(|chosen| chosen.is_of(member))
        };
        let are_same = self.contention == ledger.contention()
            && self.members.len() == facts.members.len()
            && facts.members.iter().all(is_same);
        if !are_same {
            let members = facts.members.iter();
            let members = members.map(|(cluster, member)| (cluster.clone(), Chosen::of(member)));
            self.members = members.collect();
            self.contention = ledger.contention();
        }
        let mut touched = BTreeSet::new();
        for (_, before, now) in unshared_fields(&self.pairs, ledger.all_shared()) {
            let pairs = before.into_iter().chain(now);
            touched.extend(pairs.flat_map(|pairs| pairs.owners().iter().cloned()));
        }
        self.pairs.clone_from(ledger.all_shared());
        self.doubted = if are_same { Doubted::Some(touched) } else { Doubted::All };
    }

    /// What `spec` of `shard` asks for, if that was found in the last run and is so still.
    fn answer(&self, facts: &Facts, shard: &ShardName, spec: &Arc<ShardingConfigSpec>) -> Option<&Answer> {
        let is_doubted = match &self.doubted {
            Doubted::All => true,
            Doubted::Some(shards) => shards.contains(shard),
        };
        let mut answers = self.answers(shard).iter();
        answers.find(|answer| {
            let members = answer.wanted.members.iter();
            let inventories = members.map(|member| facts.inventory_stamp(&member.cluster));
            !is_doubted && Arc::ptr_eq(&answer.spec, spec) && inventories.eq(answer.inventories.iter().copied())
        })
    }

    fn answers(&self, shard: &ShardName) -> &[Answer] {
        self.by_shard.get(shard).map_or(&[], Vec::as_slice)
    }
}

impl Chosen {
    fn of(member: &MemberObject) -> Self {
        Self {
            labels: member.labels.clone(),
            in_force: member.in_force.clone(),
        }
    }

    fn is_of(&self, member: &MemberObject) -> bool {
        let is_same_spec = match (&self.in_force, &member.in_force) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one == other,
            (None, None) => true,
            _ => false,
        };
        is_same_spec && self.labels == member.labels
    }
}

impl Known<'_> {
    /// What `spec` of `shard` asks for, shared with the last run where it is the same. Noted for the next.
    pub(in crate::compile) fn shared_wanted(&self, shard: &ShardName, spec: &Arc<ShardingConfigSpec>) -> Arc<Wanted> {
        let answer = self.asked.answer(self.facts, shard, spec).cloned();
        let answer = answer.unwrap_or_else(|| {
            let wanted = self.wanted(shard, spec);
            let members = wanted.members.iter();
            let inventories = members.map(|member| self.facts.inventory_stamp(&member.cluster));
            let inventories = inventories.collect();
            let mut before = self.asked.answers(shard).iter().map(|answer| &answer.wanted);
            Answer {
                spec: spec.clone(),
                inventories,
                wanted: before
                    .find(|before| ***before == wanted)
                    .cloned()
                    .unwrap_or_else(|| Arc::new(wanted)),
            }
        });
        let wanted = answer.wanted.clone();
        self.noted.borrow_mut().entry(shard.clone()).or_default().push(answer);
        wanted
    }
}
