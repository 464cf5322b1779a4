//! Which spec of each shard is in force, and which pairs it gets.
//!
//! A spec is taken as a whole or not at all: a new one that cannot be served, or that asks for a pair of another shard,
//! is refused and the last accepted one stays. What was accepted stays accepted, whatever happens to its surroundings;
//! it then merely does not get pairs that others have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_crds::{ConditionReason, ShardName, ShardingConfigSpec, accepted_reason, validate_sharding};

use super::ledger::{Claims, Homes, Ledger};
use super::wanted::{Wanted, wanted};
use super::{Accepted, by_age};
use crate::facts::{Facts, ShardObject};

/// Most pairs or problems named in one message; the rest is counted.
const NAMED_MAX: usize = 10;

/// What became of a ShardingConfig.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Verdict {
    /// metadata.generation that was judged.
    pub(crate) generation: i64,
    /// Why that generation is not in force.
    pub(crate) refusal: Option<Refusal>,
    /// What the spec in force asks for.
    pub(crate) wanted: Wanted,
    /// Pairs that it asks for (or that the refused spec asked for) and another shard has: `cluster/namespace`, owner.
    pub(crate) conflicts: Vec<(String, ShardName)>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) reason: ConditionReason,
    pub(crate) message: String,
}

#[derive(Debug, Default)]
pub(super) struct Judged {
    pub(super) accepted: BTreeMap<ShardName, Accepted>,
    pub(super) verdicts: BTreeMap<ShardName, Verdict>,
    pub(super) claims: Claims,
}

/// What a shard asks for before anybody else was asked.
struct Draft<'a> {
    object: &'a ShardObject,
    /// The present spec, or why not.
    present: Result<(Arc<ShardingConfigSpec>, Wanted), Refusal>,
    /// The present spec is the accepted one: no longer up for refusal.
    settled: bool,
    /// The accepted spec, if there is one.
    accepted: Option<(Accepted, Wanted)>,
}

/// Judges all shards, oldest first.
pub(super) fn judge(facts: &Facts, accepted: &BTreeMap<ShardName, Accepted>, ledger: &Ledger) -> Judged {
    let homes = ledger.homes();
    let drafts: Vec<_> = by_age(facts)
        .into_iter()
        .map(|(name, object)| {
            let draft = Draft::new(facts, (ledger, &homes), (name, object), accepted.get(name));
            (name, draft)
        })
        .collect();
    let wants = all_wants(&drafts);
    let mut judged = Judged::default();
    for (name, draft) in drafts {
        judged.decide(name, draft, ledger, &wants);
    }
    judged
}

/// Pairs that the spec in force, or a present one, of each shard asks for.
type Wants = BTreeMap<ShardName, BTreeSet<(String, String)>>;

fn all_wants(drafts: &[(&ShardName, Draft<'_>)]) -> Wants {
    let owned = |wanted: &Wanted| {
        wanted
            .pairs()
            .map(|(c, n)| (c.to_owned(), n.to_owned()))
            .collect::<Vec<_>>()
    };
    drafts
        .iter()
        .map(|(name, draft)| {
            // A good present spec that drops a pair gives it up; a refused one leaves the accepted one in force.
            let wanted = match (&draft.present, &draft.accepted) {
                (Ok((_, wanted)), _) | (Err(_), Some((_, wanted))) => owned(wanted),
                (Err(_), None) => Vec::new(),
            };
            ((*name).clone(), wanted.into_iter().collect())
        })
        .collect()
}

impl<'a> Draft<'a> {
    fn new(
        facts: &Facts,
        (ledger, homes): (&Ledger, &Homes<'_>),
        (name, object): (&ShardName, &'a ShardObject),
        accepted: Option<&Accepted>,
    ) -> Self {
        let accepted = accepted.filter(|accepted| accepted.uid == object.uid);
        let settled = accepted.is_some_and(|accepted| accepted.generation == object.generation);
        let with_wanted = |spec: &Arc<ShardingConfigSpec>| wanted(facts, (ledger, homes), name, spec);
        let present = match accepted.filter(|_| settled) {
            Some(accepted) => Ok(accepted.spec.clone()),
            None => check(name, object),
        };
        let present = present.and_then(|spec| {
            let wanted = with_wanted(&spec);
            match check_members(facts, ledger, name, &wanted) {
                Err(refusal) if !settled => Err(refusal),
                _ => Ok((spec, wanted)),
            }
        });
        let accepted = accepted.map(|accepted| (accepted.clone(), with_wanted(&accepted.spec)));
        Self {
            object,
            present,
            settled,
            accepted,
        }
    }
}

/// The rules that need no other object.
fn check(name: &ShardName, object: &ShardObject) -> Result<Arc<ShardingConfigSpec>, Refusal> {
    let spec = object.spec.as_ref().map_err(|message| Refusal {
        reason: ConditionReason::Invalid,
        message: format!("spec: {message}"),
    })?;
    let problems = validate_sharding(name.name(), name.namespace(), spec);
    if problems.is_empty() {
        return Ok(spec.clone());
    }
    Err(Refusal {
        reason: accepted_reason(&problems),
        message: some_of(problems.iter().map(ToString::to_string), "; "),
    })
}

/// The rules about the members that a new spec names.
fn check_members(facts: &Facts, ledger: &Ledger, name: &ShardName, wanted: &Wanted) -> Result<(), Refusal> {
    if !wanted.unknown_clusters.is_empty() {
        return Err(Refusal {
            reason: ConditionReason::UnknownCluster,
            message: wanted.unknown_clusters.join("; "),
        });
    }
    let cordoned = |cluster: &str| {
        let spec = facts.members.get(cluster).and_then(|member| member.in_force.as_ref());
        spec.is_some_and(|spec| spec.cordoned)
    };
    let members = wanted.members.iter().map(|member| member.cluster.as_str());
    let closed: Vec<_> = members
        .filter(|cluster| cordoned(cluster) && ledger.held_in(cluster, name).next().is_none())
        .collect();
    if closed.is_empty() {
        return Ok(());
    }
    Err(Refusal {
        reason: ConditionReason::Cordoned,
        message: format!(
            "spec.clusters: MemberCluster {} is cordoned and takes no new shards: uncordon it, or leave it out",
            closed.join(", ")
        ),
    })
}

impl Judged {
    fn decide(&mut self, name: &ShardName, draft: Draft<'_>, ledger: &Ledger, wants: &Wants) {
        let generation = draft.object.generation;
        let mut verdict = Verdict {
            generation,
            ..Verdict::default()
        };
        let in_force = match draft.present {
            Ok((spec, wanted)) => {
                verdict.conflicts = self.conflicts(name, &wanted, ledger);
                if draft.settled || verdict.conflicts.is_empty() {
                    let uid = draft.object.uid.clone();
                    Some((Accepted { uid, generation, spec }, wanted))
                } else {
                    verdict.refusal = Some(refuse_conflicts(&verdict.conflicts, ledger, wants));
                    draft.accepted
                }
            }
            Err(refusal) => {
                verdict.refusal = Some(refusal);
                draft.accepted
            }
        };
        if let Some((accepted, wanted)) = in_force {
            self.claim(name, &wanted, ledger);
            self.accepted.insert(name.clone(), accepted);
            verdict.wanted = wanted;
        }
        self.verdicts.insert(name.clone(), verdict);
    }

    /// Who has the pair: a shard that claimed it in this run, or one that held it before and may still.
    fn owner<'a>(&'a self, cluster: &str, namespace: &str, ledger: &'a Ledger) -> Option<&'a ShardName> {
        let held = ledger.get(cluster, namespace).and_then(|entry| entry.owner.as_ref());
        held.or_else(|| self.claims.get(cluster)?.get(namespace))
    }

    fn conflicts(&self, name: &ShardName, wanted: &Wanted, ledger: &Ledger) -> Vec<(String, ShardName)> {
        let owned = wanted.pairs().filter_map(|(cluster, namespace)| {
            let owner = self.owner(cluster, namespace, ledger).filter(|owner| *owner != name)?;
            Some((format!("{cluster}/{namespace}"), owner.clone()))
        });
        owned.collect()
    }

    fn claim(&mut self, name: &ShardName, wanted: &Wanted, ledger: &Ledger) {
        for (cluster, namespace) in wanted.pairs() {
            if self.owner(cluster, namespace, ledger).is_none_or(|owner| owner == name) {
                let claims = self.claims.entry(cluster.to_owned()).or_default();
                claims.insert(namespace.to_owned(), name.clone());
            }
        }
    }
}

/// Overlap if the owners go on wanting what they have; a change of owner if one of them is letting go.
fn refuse_conflicts(conflicts: &[(String, ShardName)], ledger: &Ledger, wants: &Wants) -> Refusal {
    let lets_go = |pair: &str, owner: &ShardName| {
        let (cluster, namespace) = pair.split_once('/').unwrap_or((pair, ""));
        let releasing = ledger
            .get(cluster, namespace)
            .is_some_and(|entry| entry.releasing_since.is_some());
        let wanted = wants
            .get(owner)
            .is_some_and(|pairs| pairs.contains(&(cluster.to_owned(), namespace.to_owned())));
        releasing || !wanted
    };
    let named = |pairs: &[&(String, ShardName)]| {
        some_of(pairs.iter().map(|(pair, owner)| format!("{pair} (of {owner})")), ", ")
    };
    let (moving, shared): (Vec<_>, Vec<_>) = conflicts.iter().partition(|(pair, owner)| lets_go(pair, owner));
    if shared.is_empty() {
        return Refusal {
            reason: ConditionReason::OwnerChangeUnsupported,
            message: format!(
                "spec.clusters: {} still belong to another shard, and live namespaces are not moved yet: \
                 they are free once every router has let go of them",
                named(&moving)
            ),
        };
    }
    Refusal {
        reason: ConditionReason::Overlap,
        message: format!(
            "spec.clusters: {} belong to another ShardingConfig: remove them here or there, a namespace has one owner",
            named(&shared)
        ),
    }
}

/// The first few, and how many more.
fn some_of(items: impl ExactSizeIterator<Item = String>, separator: &str) -> String {
    let more = items.len().saturating_sub(NAMED_MAX);
    let text = items.take(NAMED_MAX).collect::<Vec<_>>().join(separator);
    if more > 0 {
        return format!("{text}{separator}and {more} more");
    }
    text
}
