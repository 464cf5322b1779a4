//! What an edit moves that no ledger keeps pair by pair, in two steps: objects that limits alone say, of shards without `clusters`, and
//! cluster-scoped kinds that one shard has for all.
//!
//! Narrower limits are told at once. What somebody else had is told wider only once every router has acknowledged that, or is
//! forgotten: until then the limits of before hold beside the new ones, and a shard that had nothing there has nothing. So no two
//! routers ever let two shards write one object. Nothing here has an epoch: a write that was let through just before is not fenced off,
//! and has the time that all releases give it. What is withheld is stored with the spec; what it waits for is not, and after a restart
//! every router is waited for. Caller: `compile`.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use portolan_crds::overlap::{Extent, shared_kind};
use portolan_crds::{ObjectLimiter, OperatorName, ResourceGroup, ShardName, ShardingConfigSpec};

use super::arbitrate::{Contested, Given, Verdict};
use super::extents::labelling;
use super::roots::{Children, roots as children_of};
use super::{Accepted, State};

/// Most limits that hold beside a spec's. Of one that is edited more often while a router does not answer nothing is left until
/// it does.
const MOST_WITHHELD: usize = 64;

/// What some router may still let shards have that do not have it any more.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Steps {
    left: Vec<Left>,
    /// Routers may go by what an earlier process told them.
    unheard: bool,
}

#[derive(Debug, Clone, PartialEq)]
struct Left {
    /// Who had it; `None`: all of the operator but those that have it now.
    shard: Option<ShardName>,
    operator: OperatorName,
    had: Had,
    /// The run that told so.
    run: u64,
}

#[derive(Debug, Clone, PartialEq)]
enum Had {
    Objects(Extent),
    Kinds(Vec<ResourceGroup>),
}

impl Steps {
    /// Whether anything may become wider as routers acknowledge.
    pub(crate) fn await_routers(&self) -> bool {
        self.unheard || !self.left.is_empty()
    }
}

/// A child whose object does not say yet what its root generates: what it had is in force beside what others have by now.
struct Behind {
    shard: ShardName,
    operator: OperatorName,
    has: Extent,
}

/// Sets what is withheld of each accepted spec, and says so in its verdict.
pub(super) fn take(
    given: Given<'_>,
    roots: &BTreeMap<ShardName, Children>,
    accepted: &mut BTreeMap<ShardName, Accepted>,
    verdicts: &mut BTreeMap<ShardName, Verdict>,
) -> Steps {
    let contention = given.before.ledger.contention();
    if contention.is_fleet() {
        return Steps::default();
    }
    let earlier = &given.before.steps;
    let (run, by_all) = (given.before.run + 1, given.released.by_all);
    let mut steps = Steps {
        left: earlier.left.iter().filter(|left| left.run > by_all).cloned().collect(),
        // A process that begins with specs in force is not the first.
        unheard: by_all == 0 && (earlier.unheard || (run == 1 && !given.before.accepted.is_empty())),
    };
    let operator = |name: &ShardName, spec: &ShardingConfigSpec| contention.of(name, spec);
    for (name, was) in told(&given.before.accepted) {
        let now = accepted.get(name).filter(|now| now.uid == was.uid);
        // A root is told to nobody: what it had as a shard, its children have.
        let now = now.filter(|now| now.spec.root.is_none());
        steps.leave((name, &operator(name, &was.spec)), was, now, run);
    }
    let holders: Vec<_> = told(accepted)
        .filter(|(_, holder)| !holder.spec.single_kinds().is_empty())
        .map(|(name, holder)| (name.clone(), operator(name, &holder.spec), holder.spec.clone()))
        .collect();
    for (name, of, spec) in &holders {
        steps.close(given.before, (name, of), spec, run);
    }
    let behind = behind(given, roots, accepted);
    for (name, now) in accepted.iter_mut().filter(|(_, one)| one.spec.root.is_none()) {
        let of = operator(name, &now.spec);
        let was = given.before.accepted.get(name);
        let was = was.filter(|was| was.spec.root.is_none() && was.uid == now.uid && operator(name, &was.spec) == of);
        let (mut withheld, mut awaited) = steps.objects((given, &behind), (name, &of), was, now);
        let others = holders
            .iter()
            .filter(|(holder, theirs, _)| holder != name && *theirs == of);
        for (.., spec) in others {
            withheld.push(none_of(spec.single_kinds().to_vec()));
        }
        if let Some(waits_for) = steps.kinds((name, &of), was, now) {
            withheld.push(none_of(now.spec.single_kinds().to_vec()));
            awaited.extend(waits_for);
        }
        now.withheld = withheld;
        if let Some(verdict) = verdicts.get_mut(name) {
            verdict.awaited.extend(awaited);
        }
    }
    steps
}

/// Objects of children are written one after the other, and others are judged by their root: no ledger keeps the one that is early from
/// what the other has, and it has all of it as soon as nobody else does.
fn behind(
    given: Given<'_>,
    roots: &BTreeMap<ShardName, Children>,
    accepted: &BTreeMap<ShardName, Accepted>,
) -> Vec<Behind> {
    let in_force = roots.values().filter_map(|children| children.in_force.as_ref());
    let generated: BTreeMap<&str, _> = in_force.map(|generated| (generated.uid.as_str(), generated)).collect();
    let behind = told(accepted).filter_map(|(name, one)| {
        if !one.spec.clusters.is_empty() {
            return None;
        }
        let root = given.facts.shards.get(name)?.root.as_deref()?;
        let child = generated.get(root).and_then(|generated| generated.child(name.name()));
        if child.is_some_and(|child| child.spec == *one.spec) {
            return None;
        }
        Some(Behind {
            shard: name.clone(),
            operator: given.before.ledger.operator(name, &one.spec),
            has: Extent::of(&one.spec)?,
        })
    });
    let mut behind: Vec<_> = behind.collect();
    if !behind.is_empty() {
        // Those whose root is gone are held against others themselves.
        let children = children_of(given.facts);
        behind.retain(|one| children.contains_key(&one.shard));
    }
    behind
}

/// Those of which routers are told.
fn told(accepted: &BTreeMap<ShardName, Accepted>) -> impl Iterator<Item = (&ShardName, &Accepted)> {
    accepted.iter().filter(|(_, one)| one.spec.root.is_none())
}

impl Steps {
    /// Notes what a shard had and has not any more.
    fn leave(
        &mut self,
        (name, operator): (&ShardName, &OperatorName),
        was: &Accepted,
        now: Option<&Accepted>,
        run: u64,
    ) {
        // Most are as they were, run by run.
        if now.is_some_and(|now| Arc::ptr_eq(&now.spec, &was.spec) || now.spec == was.spec) {
            return;
        }
        let same_operator = now.is_some_and(|now| now.spec.operator == was.spec.operator);
        let mut left = Vec::new();
        if let Some(mut had) = Extent::of(&was.spec) {
            let has = now.filter(|_| same_operator).and_then(|now| Extent::of(&now.spec));
            if has.as_ref() != Some(&had) {
                had.narrow(was.withheld.as_slice());
                left.push(Had::Objects(had));
            }
        }
        let kinds = was.spec.single_kinds();
        let keeps = now.is_some_and(|now| now.spec.single_kinds() == kinds) && same_operator;
        if !kinds.is_empty() && !keeps {
            left.push(Had::Kinds(kinds.to_vec()));
        }
        self.left.extend(left.into_iter().map(|had| Left {
            shard: Some(name.clone()),
            operator: operator.clone(),
            had,
            run,
        }));
    }

    /// Notes that a shard names kinds from now on that it did not see before, and all others of its operator did.
    fn close(
        &mut self,
        before: &State,
        (name, operator): (&ShardName, &OperatorName),
        spec: &ShardingConfigSpec,
        run: u64,
    ) {
        let kinds = spec.single_kinds();
        let of = |other: &ShardName, spec: &ShardingConfigSpec| before.ledger.contention().of(other, spec) == *operator;
        let names = |was: &Accepted| was.spec.root.is_none() && was.spec.single_kinds() == kinds && of(name, &was.spec);
        if before.accepted.get(name).is_some_and(names) {
            return;
        }
        let mut others = told(&before.accepted).filter(|(other, was)| *other != name && of(other, &was.spec));
        if others.any(|(_, was)| !is_closed(was, kinds)) {
            self.left.push(Left {
                shard: None,
                operator: operator.clone(),
                had: Had::Kinds(kinds.to_vec()),
                run,
            });
        }
    }

    /// The limits of before that hold beside those of `now`, and whom that waits for.
    fn objects(
        &self,
        (given, behind): (Given<'_>, &[Behind]),
        (name, operator): (&ShardName, &OperatorName),
        was: Option<&Accepted>,
        now: &Accepted,
    ) -> (Vec<ObjectLimiter>, Vec<Contested>) {
        let nothing = (Vec::new(), Vec::new());
        if !self.await_routers() && behind.is_empty() {
            return nothing;
        }
        let Some(wants) = Extent::of(&now.spec) else {
            return nothing;
        };
        let had = was.and_then(|was| Some((Extent::of(&was.spec)?, was)));
        let before = match had {
            Some((had, was)) if had == wants => limits_of(was),
            Some((had, was)) if wants.stays_within_homes_of(&had) => {
                let mut before = was.spec.limits.clone();
                before.extend(limits_of(was));
                before
            }
            _ => vec![none_of(Vec::new())],
        };
        if before.is_empty() {
            return nothing;
        }
        let others = self
            .left
            .iter()
            .filter(|left| left.operator == *operator && left.shard.as_ref() != Some(name));
        let let_go = others.filter_map(|left| match &left.had {
            Had::Objects(had) => Some((left.shard.as_ref(), had)),
            Had::Kinds(_) => None,
        });
        let late = behind
            .iter()
            .filter(|other| other.operator == *operator && other.shard != *name)
            .map(|other| (Some(&other.shard), &other.has));
        let awaited = let_go.chain(late).filter_map(|(owner, had)| {
            let met = wants.meets(had, labelling(given.settings))?;
            Some(Contested {
                pair: met.to_string(),
                owner: owner.cloned(),
            })
        });
        let awaited: Vec<_> = awaited.collect();
        if awaited.is_empty() && !self.unheard {
            return nothing;
        }
        if before.len() > MOST_WITHHELD {
            return (vec![none_of(Vec::new())], awaited);
        }
        (before, awaited)
    }

    /// Whether a shard does not have the kinds yet that it names, and whom that waits for.
    fn kinds(
        &self,
        (name, operator): (&ShardName, &OperatorName),
        was: Option<&Accepted>,
        now: &Accepted,
    ) -> Option<Vec<Contested>> {
        let kinds = now.spec.single_kinds();
        // Whoever saw them goes on.
        let saw = was.is_some_and(|was| !is_closed(was, kinds));
        if kinds.is_empty() || saw || !self.await_routers() {
            return None;
        }
        let others = self
            .left
            .iter()
            .filter(|left| left.operator == *operator && left.shard.as_ref() != Some(name));
        let awaited = others.filter_map(|left| match &left.had {
            Had::Kinds(had) => Some(Contested {
                pair: format!("all {}", shared_kind(kinds, had)?),
                owner: left.shard.clone(),
            }),
            Had::Objects(_) => None,
        });
        let awaited: Vec<_> = awaited.collect();
        (!awaited.is_empty() || self.unheard).then_some(awaited)
    }
}

/// What is withheld of objects.
fn limits_of(accepted: &Accepted) -> Vec<ObjectLimiter> {
    let all = accepted.withheld.iter();
    all.filter(|limit| limit.relate_resources.is_empty() || !is_none(limit))
        .cloned()
        .collect()
}

/// Whether a shard does not see yet what it alone is to see.
pub(crate) fn lacks_kinds(accepted: &Accepted) -> bool {
    is_closed(accepted, accepted.spec.single_kinds())
}

/// Whether a shard sees nothing of some of the kinds.
fn is_closed(accepted: &Accepted, kinds: &[ResourceGroup]) -> bool {
    let mut closed = accepted.withheld.iter().filter(|limit| is_none(limit));
    closed.any(|limit| shared_kind(&limit.relate_resources, kinds).is_some())
}

/// A limit that selects nothing of these kinds; none: of any.
fn none_of(kinds: Vec<ResourceGroup>) -> ObjectLimiter {
    let requirement = |operator: &str| LabelSelectorRequirement {
        key: NONE.to_owned(),
        operator: operator.to_owned(),
        values: None,
    };
    ObjectLimiter {
        relate_resources: kinds,
        selector: Some(LabelSelector {
            match_expressions: Some(vec![requirement("Exists"), requirement("DoesNotExist")]),
            match_labels: None,
        }),
    }
}

/// No object has this label and has it not.
const NONE: &str = "nothing";

/// Whether it is one that [`none_of`] makes.
fn is_none(limit: &ObjectLimiter) -> bool {
    limit.selector == none_of(Vec::new()).selector
}
