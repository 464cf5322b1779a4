//! What shards of one operator contend for beside pairs: objects that limits alone say, of those without clusters, and cluster-scoped
//! kinds.
//!
//! Who was there first has it. A new spec that asks for some of what another shard has, and goes on wanting, or that an older one
//! asks for, is refused. What was accepted stays so. A root is judged for its children. Where one owner has each pair, fleet-wide, nothing of
//! this is looked at.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use portolan_crds::overlap::shared_kind;
use portolan_crds::{ConditionReason, Contention, OperatorName, ShardName, ShardingConfigSpec};

use super::draft::Draft;
use super::{Contested, Refusal, Refused, some_contested};
use crate::compile::extents::{Extents, Known};
use crate::compile::wanted::Wanted;

/// Shards of one operator, a root being one, that are compared with each other: of more the oldest.
const COMPARED: usize = 256;
/// What the name of a kind begins with, among what is contested.
const KINDS: &str = "all ";

/// The shards that contend beside pairs.
pub(super) struct Beside<'a> {
    extents: Extents<'a>,
    /// Oldest first.
    by_operator: BTreeMap<&'a OperatorName, Vec<&'a Draft<'a>>>,
    ages: HashMap<&'a ShardName, usize>,
}

impl<'a> Beside<'a> {
    pub(super) fn new(drafts: &'a [Draft<'a>], extents: Extents<'a>) -> Self {
        let mut by_operator = BTreeMap::<&OperatorName, Vec<&Draft<'_>>>::new();
        for draft in drafts.iter().filter(|draft| draft.kin.root().is_none()) {
            let present = draft.present.as_ref().ok().map(|(spec, wanted)| (spec, wanted));
            let accepted = draft.accepted.as_ref();
            let accepted = accepted.map(|(accepted, wanted)| (&accepted.spec, wanted));
            let all = present.into_iter().chain(accepted);
            let operators = all.filter(|(spec, wanted)| contends(spec) && !wanted.operator.is_everybody());
            let operators: BTreeSet<_> = operators.map(|(_, wanted)| &wanted.operator).collect();
            for operator in operators {
                let known = by_operator.entry(operator).or_default();
                if known.len() < COMPARED {
                    known.push(draft);
                }
            }
        }
        let ages = drafts.iter().enumerate();
        Self {
            extents,
            by_operator,
            ages: ages.map(|(age, draft)| (draft.name, age)).collect(),
        }
    }

    /// What the run asked for, for the next one.
    pub(super) fn measured(&self) -> Known {
        self.extents.known()
    }

    /// What `draft` asks for by `spec` and others have, or ask for before it.
    pub(super) fn contested(
        &self,
        (draft, spec, wanted): (&Draft<'_>, &Arc<ShardingConfigSpec>, &Arc<Wanted>),
        discarded: &BTreeSet<&ShardName>,
        refused: &Refused,
    ) -> Vec<Contested> {
        // Children have what their root shares out.
        if draft.kin.root().is_some() {
            return Vec::new();
        }
        let others = self.by_operator.get(&wanted.operator).into_iter().flatten();
        let others = others.filter(|other| other.name != draft.name && !discarded.contains(other.name));
        let contested = others.filter_map(|other| {
            let refused = refused.contains_key(other.name);
            let is_of_same = other
                .wants(refused)
                .is_some_and(|theirs| theirs.operator == wanted.operator);
            let met = self.meeting(spec, other.in_force(refused).filter(|_| is_of_same)?)?;
            let has = other.accepted.as_ref().is_some_and(|(accepted, theirs)| {
                theirs.operator == wanted.operator && self.meeting(spec, &accepted.spec).is_some()
            });
            let is_older = self.ages.get(other.name) < self.ages.get(draft.name);
            (draft.settled || has || is_older).then(|| Contested {
                pair: met.to_string(),
                owner: Some(other.name.clone()),
            })
        });
        contested.collect()
    }

    /// Whether a new spec asks for what the accepted one has, and for nothing else: what it shares with others it shared before.
    pub(super) fn is_as_before(&self, draft: &Draft<'_>, spec: &Arc<ShardingConfigSpec>) -> bool {
        draft.accepted.as_ref().is_some_and(|(accepted, _)| {
            let (now, before) = (self.extents.of(spec), self.extents.of(&accepted.spec));
            now.is_some()
                && now == before
                && spec.operator == accepted.spec.operator
                && spec.cluster_scoped == accepted.spec.cluster_scoped
        })
    }

    /// Some of what shards of these two specs both have.
    fn meeting(&self, one: &Arc<ShardingConfigSpec>, other: &Arc<ShardingConfigSpec>) -> Option<Arc<str>> {
        let kind = shared_kind(one.single_kinds(), other.single_kinds());
        let kind = kind.map(|kind| format!("{KINDS}{kind}").into());
        kind.or_else(|| self.extents.meeting(one, other))
    }
}

/// Refuses new specs of those that are too many to be compared.
pub(super) fn count(drafts: &mut [Draft<'_>]) {
    let mut counts = BTreeMap::<OperatorName, usize>::new();
    for draft in drafts.iter_mut().filter(|draft| draft.kin.root().is_none()) {
        let Ok((spec, wanted)) = &draft.present else { continue };
        if !contends(spec) || wanted.operator.is_everybody() {
            continue;
        }
        let count = counts.entry(wanted.operator.clone()).or_default();
        *count += 1;
        if *count > COMPARED && !draft.settled {
            let message = format!(
                "spec: of ShardingConfigs of one operator that have no clusters, or name clusterScoped kinds, {COMPARED} older ones are \
                 there, and that is the most: let roots generate them"
            );
            let reason = ConditionReason::TooMuch;
            draft.present = Err(Refusal { reason, message });
        }
    }
}

fn contends(spec: &ShardingConfigSpec) -> bool {
    spec.clusters.is_empty() || !spec.single_kinds().is_empty()
}

/// Why a spec is refused that asks for what others have. The last words are the same, whatever precedes them: who looks for them finds
/// what to do.
pub(super) fn refuse(
    (shard, spec): (&ShardName, &ShardingConfigSpec),
    contention: Contention,
    conflicts: &[Contested],
) -> Refusal {
    let waits = match contention {
        Contention::Operator => "",
        Contention::Fleet => " and run portolanctl shards separate",
    };
    let (field, fix) = if conflicts.iter().all(|one| one.pair.starts_with(KINDS)) {
        (
            "spec.clusterScoped.resources",
            "name them here or there, a kind has one owner of each operator",
        )
    } else if spec.clusters.is_empty() {
        (
            "spec.limits",
            "leave them out here or there, an object has one owner of each operator",
        )
    } else {
        (
            "spec.clusters",
            match contention {
                Contention::Operator => "remove them here or there, a namespace has one owner of each operator",
                Contention::Fleet => "remove them here or there",
            },
        )
    };
    Refusal {
        reason: ConditionReason::Overlap,
        message: format!(
            "{field}: {} belong to another ShardingConfig: {fix}; or set spec.operator{waits}, if this is another program",
            some_contested(conflicts, shard.namespace())
        ),
    }
}
