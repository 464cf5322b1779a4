//! What the hub says about a root: its children, and how they stand together. Pure; called by `shard`.

use std::collections::BTreeSet;

use portolan_crds::{ConditionReason, ConditionType, Finding, ShardName, ShardingConfigStatus};

use self::pods::served;
use super::Sources;
use super::finding::{BY_LIMITS, NOT_ARBITRATED, nothing_in_force, set};
use super::unserved::{clear, separate, webhook_served};
use crate::compile::{Accepted, Contested, Generated, Verdict, World, some_contested, some_of};
use crate::facts::{Facts, ShardObject};

mod pods;

/// The conditions of a root. Others are those of the shard that it was.
const CONDITIONS: [ConditionType; 7] = [
    ConditionType::Accepted,
    ConditionType::Complete,
    ConditionType::Disjoint,
    ConditionType::NamespacesResolved,
    ConditionType::ChildrenServed,
    ConditionType::WebhookServed,
    ConditionType::OperatorSeparate,
];

/// A root in force, or one that would be a root if it could.
pub(super) fn is_root(accepted: Option<&Accepted>, object: &ShardObject) -> bool {
    match accepted {
        Some(accepted) => accepted.spec.root.is_some(),
        None => object.spec.as_ref().is_ok_and(|spec| spec.root.is_some()),
    }
}

/// A root as its conditions are made of it.
struct Root<'a> {
    sources: Sources<'a>,
    name: &'a ShardName,
    object: &'a ShardObject,
    verdict: &'a Verdict,
    accepted: Option<&'a Accepted>,
    /// What it generates, if that is known.
    generated: Option<&'a Generated>,
}

/// `judged`: condition Accepted.
pub(super) fn status(
    sources: Sources<'_>,
    (name, object): (&ShardName, &ShardObject),
    verdict: &Verdict,
    judged: Finding,
) -> ShardingConfigStatus {
    let state = &sources.world.state;
    let root = Root {
        sources,
        name,
        object,
        verdict,
        accepted: state.accepted.get(name),
        generated: state.roots.get(name).and_then(|children| children.in_force.as_deref()),
    };
    let mut status = ShardingConfigStatus {
        observed_generation: Some(object.generation),
        conditions: object.status.conditions.clone(),
        children: root.children().map(|child| child.name().to_owned()).collect(),
        empty_children: root.empty(),
        ..ShardingConfigStatus::default()
    };
    let ours = CONDITIONS.map(|condition| condition.to_string());
    status.conditions.retain(|condition| ours.contains(&condition.type_));
    let findings = [judged, root.complete(), root.disjoint(), root.resolved(), served(&root)];
    let webhook = webhook_served(root.accepted.map(|accepted| &*accepted.spec));
    if webhook.is_none() {
        clear(&mut status.conditions, ConditionType::WebhookServed);
    }
    let separate = separate(sources.world, object);
    if separate.is_none() {
        clear(&mut status.conditions, ConditionType::OperatorSeparate);
    }
    let findings = findings.into_iter().chain(webhook).chain(separate);
    set(&mut status.conditions, findings, object.generation, sources.now);
    status
}

impl<'a> Root<'a> {
    /// Those that are there, the canary first, then by number.
    fn children(&self) -> impl Iterator<Item = &'a ShardName> {
        let mut there = children_of(self.sources.facts, self.object);
        let number = |name: &ShardName| {
            let mut parts = name.name().rsplit('-');
            parts.nth(1).and_then(|number| number.parse::<u32>().ok())
        };
        there.sort_by_key(|name| (number(name), *name));
        there.into_iter()
    }

    fn empty(&self) -> Vec<String> {
        let children = self
            .generated
            .iter()
            .flat_map(|generated| &generated.expansion.children);
        let empty = children.filter(|child| child.is_empty);
        empty.map(|child| child.name.clone()).collect()
    }

    /// Verdicts of the children that are there.
    fn verdicts(&self) -> impl Iterator<Item = (&'a ShardName, &'a Verdict)> {
        let world = self.sources.world;
        self.children()
            .filter_map(|child| Some((child, world.shards.get(child)?)))
    }

    /// Whether all children are there, by the spec that the root generates, and have what is theirs.
    fn complete(&self) -> Finding {
        const TYPE: ConditionType = ConditionType::Complete;
        let Some(accepted) = self.accepted else {
            return nothing_in_force(TYPE);
        };
        if accepted.spec.active_root().is_none() {
            return self.taken_back();
        }
        let children = self.sources.world.state.roots.get(self.name);
        if let Some(problem) = children.and_then(|children| children.problem.as_ref()) {
            let message = format!("the children stay as they are, as the root cannot be shared out now: {problem}");
            return Finding::fails(TYPE, ConditionReason::Invalid, message);
        }
        let Some(generated) = self.generated else {
            return Finding::unknown(TYPE, ConditionReason::Progressing, "the children are not known yet");
        };
        let unmade = self.unmade(generated);
        if !unmade.is_empty() {
            let message = format!("ShardingConfig {} not as the root says yet", some_of(unmade, ", "));
            return Finding::fails(TYPE, ConditionReason::Progressing, message);
        }
        let awaited: Vec<_> = self.verdicts().flat_map(|(_, verdict)| &verdict.awaited).collect();
        if !awaited.is_empty() {
            let message = format!(
                "children wait for {}: granted without further action once every router has let go of them there",
                some_contested(awaited, self.name.namespace())
            );
            return Finding::fails(TYPE, ConditionReason::HandoverPending, message);
        }
        let pairs: usize = generated.expansion.children.iter().map(|child| child.part.len()).sum();
        let (count, widened) = (generated.expansion.children.len(), &generated.expansion.widened);
        let mut message = format!("{count} children share out {pairs} pairs of cluster and bucket");
        if !widened.is_empty() {
            let names = some_of(widened, ", ");
            message.push_str("; the canary, which names buckets too, has the whole buckets of ");
            message.push_str(&names);
        }
        Finding::holds(TYPE, message)
    }

    fn taken_back(&self) -> Finding {
        const TYPE: ConditionType = ConditionType::Complete;
        let left: Vec<_> = self.children().collect();
        if left.is_empty() {
            return Finding::holds(TYPE, "the root is disabled, and its children are gone");
        }
        let message = format!(
            "the root is disabled: ShardingConfig {} goes once every router has let go of what it has",
            some_of(left, ", ")
        );
        Finding::fails(TYPE, ConditionReason::HandoverPending, message)
    }

    /// Children that are not there, or not in force, each with why if that is known.
    fn unmade(&self, generated: &Generated) -> Vec<String> {
        let world = self.sources.world;
        let children = generated.expansion.children.iter();
        let unmade = children.filter_map(|child| {
            let name = ShardName::new(self.name.namespace(), child.name.as_str()).ok()?;
            let in_force = world.state.accepted.get(&name);
            if in_force.is_some_and(|accepted| *accepted.spec == child.spec) {
                return None;
            }
            let refusal = world.shards.get(&name).and_then(|verdict| verdict.refusal.as_ref());
            Some(match refusal {
                Some(refusal) => format!("{} ({})", child.name, refusal.message),
                None => child.name.clone(),
            })
        });
        unmade.collect()
    }

    /// Whether nothing that the children are to have is another's.
    fn disjoint(&self) -> Finding {
        const TYPE: ConditionType = ConditionType::Disjoint;
        let is_home = self.accepted.is_some_and(|accepted| accepted.spec.clusters.is_empty());
        if is_home && self.sources.world.state.ledger.contention().is_fleet() {
            return Finding::unknown(TYPE, ConditionReason::NotArbitrated, NOT_ARBITRATED);
        }
        let family: BTreeSet<_> = self.children().chain([self.name]).collect();
        let is_foreign = |contested: &&Contested| {
            let owner = contested.owner.as_ref();
            owner.is_none_or(|owner| !family.contains(owner))
        };
        let theirs = self.verdicts().flat_map(|(_, verdict)| &verdict.conflicts);
        let all = self.verdict.conflicts.iter().chain(theirs).filter(is_foreign);
        let conflicts: BTreeSet<_> = all.map(|contested| contested.told_in(self.name.namespace())).collect();
        if is_home && conflicts.is_empty() {
            return Finding::holds(TYPE, BY_LIMITS);
        }
        if conflicts.is_empty() {
            return Finding::holds(TYPE, "nothing that the children share out is another shard's");
        }
        let message = format!(
            "owned by other shards: {}; leave them out of {} here, or there",
            some_of(conflicts, ", "),
            if is_home { "spec.limits" } else { "spec.clusters" },
        );
        Finding::fails(TYPE, ConditionReason::Overlap, message)
    }

    /// Whether the members that it names are there, and what its canary takes by name is in all of them.
    fn resolved(&self) -> Finding {
        const TYPE: ConditionType = ConditionType::NamespacesResolved;
        let Some(accepted) = self.accepted else {
            return nothing_in_force(TYPE);
        };
        if let Some((reason, message)) = self.verdict.wanted.refusal() {
            return Finding::fails(TYPE, reason, message);
        }
        let canary = accepted.spec.active_root().and_then(|root| root.canary.as_ref());
        let names = canary.filter(|canary| canary.replicas.is_some_and(|replicas| replicas > 0));
        let names = names.iter().flat_map(|canary| canary.in_namespaces.iter().enumerate());
        let clusters = self.clusters();
        let missing: Vec<_> = names
            .filter_map(|(index, name)| {
                let missing = missing(self.sources.facts, &clusters, name)?;
                Some(format!("spec.root.canary.inNamespaces[{index}]: {missing}"))
            })
            .collect();
        if !missing.is_empty() {
            return Finding::fails(TYPE, ConditionReason::NamespaceMissing, some_of(missing, "; "));
        }
        let shadowed = self.shadowed();
        if !shadowed.is_empty() {
            let message = format!(
                "{} are nobody's: the child that is to have them has a namespace of that name in another cluster, and a shard \
                 can have one; rename them, or leave them out of spec.clusters",
                some_of(shadowed, ", ")
            );
            return Finding::fails(TYPE, ConditionReason::Shadowed, message);
        }
        Finding::holds(TYPE, "the canary's namespaces are in every cluster of the root")
    }

    /// Namespaces that a child would have if it had not one of the same name.
    fn shadowed(&self) -> Vec<String> {
        let members = self.verdicts().flat_map(|(_, verdict)| &verdict.wanted.members);
        let shadowed = members.flat_map(|member| {
            let names = member.shadowed.iter();
            names.map(|name| format!("{}/{name}", member.cluster))
        });
        shadowed.collect()
    }

    /// Clusters of which the children have buckets, or could.
    fn clusters(&self) -> BTreeSet<&'a str> {
        let children = self
            .generated
            .iter()
            .flat_map(|generated| &generated.expansion.children);
        let entries = children.flat_map(|child| &child.spec.clusters);
        entries.filter_map(|entry| entry.name.as_deref()).collect()
    }
}

/// The children that are there of a root.
fn children_of<'a>(facts: &'a Facts, root: &ShardObject) -> Vec<&'a ShardName> {
    let objects = facts.shards.iter();
    let children = objects.filter(|(_, object)| object.root.as_ref() == Some(&root.uid));
    children.map(|(name, _)| name).collect()
}

/// Where a namespace is not that should be in all of these clusters. Those that nobody has told of count as having it.
fn missing(facts: &Facts, clusters: &BTreeSet<&str>, name: &str) -> Option<String> {
    let lacks = |cluster: &&&str| facts.inventory(cluster).is_some_and(|all| !all.contains_key(name));
    let lacking: Vec<_> = clusters.iter().filter(lacks).collect();
    if lacking.is_empty() {
        return None;
    }
    let (has, fix) = if lacking.len() == clusters.len() {
        ("it is in no other", "create it, or correct the name")
    } else {
        (
            "the canary has it in the others only",
            "create it there, or name one that is in all",
        )
    };
    Some(format!(
        "{name:?} does not exist in {}, and {has}: {fix}",
        some_of(lacking, ", ")
    ))
}

/// How many callers a child has.
fn callers(world: &World, root: &ShardName, child: &str) -> usize {
    let name = ShardName::new(root.namespace(), child).ok();
    let callers = name.and_then(|name| world.callers.get(&name));
    callers.map_or(0, BTreeSet::len)
}
