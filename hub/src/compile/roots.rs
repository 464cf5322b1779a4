//! Roots → the children that each generates, and who is whose child. What a child has is `portolan_crds::partition`'s to
//! say; that it has it is decided like for any other shard, in `arbitrate`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use portolan_crds::partition::{Child, Expansion, HOME, Objects, Surroundings, expand};
use portolan_crds::{Balance, Problem, ShardName, ShardingConfigSpec};
use portolan_wire::v1;

use self::turn::Turn;
use super::State;
use super::wanted::{allows, clusters_of};
use crate::facts::{Facts, ShardObject};
use crate::settings::Settings;

mod turn;

/// What is known of a root's children.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Children {
    /// What the spec in force generates, or did when it last could. `None`: nothing is in force, or what it generates is not
    /// known, and then children stay as they are.
    pub(crate) in_force: Option<Arc<Generated>>,
    /// What the present spec generates, which comes into force when all of these are there.
    pub(crate) coming: Option<Arc<Generated>>,
    /// Why the spec in force does not generate what it says by now.
    pub(crate) problem: Option<String>,
}

/// The children of one spec of a root.
#[derive(Debug, Clone)]
pub(crate) struct Generated {
    /// UID of the root.
    pub(crate) uid: String,
    pub(crate) expansion: Expansion,
    made_of: MadeOf,
    names: BTreeMap<String, usize>,
    /// When counts of objects may change it next.
    turn: Turn,
}

/// What children follow from, beside those that were there before.
#[derive(Debug, Clone, PartialEq)]
struct MadeOf {
    spec: Arc<ShardingConfigSpec>,
    members: BTreeMap<String, BTreeMap<String, String>>,
    prefixes: BTreeMap<String, String>,
    others: BTreeSet<String>,
    /// Of a root that is shared out by objects.
    objects: Objects,
}

/// What came of a spec that is not the one in force, or that the one in force cannot be shared out by any more.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Attempt {
    uid: String,
    made_of: MadeOf,
    /// From whose children it was made; `None`: there were none.
    from: Option<Arc<Generated>>,
    pub(in crate::compile) came_of_it: Result<Arc<Generated>, Vec<Problem>>,
}

/// The attempts of one run, by root.
pub(crate) type Attempts = BTreeMap<ShardName, Vec<Attempt>>;

impl MadeOf {
    /// Whether the two differ in nothing but counts of objects.
    fn is_but_for_counts(&self, other: &Self) -> bool {
        self.spec == other.spec
            && self.members == other.members
            && self.prefixes == other.prefixes
            && self.others == other.others
    }

    fn weighs_objects(&self) -> bool {
        let auto = self.spec.active_root().and_then(|root| root.auto.as_ref());
        auto.is_some_and(|auto| auto.balance == Balance::Objects)
    }
}

impl Attempt {
    /// Whether the same would come of it now.
    fn holds(&self, uid: &str, made_of: &MadeOf, from: Option<&Arc<Generated>>, now: Timestamp) -> bool {
        let same_from = match (&self.from, from) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        let same = || match &self.came_of_it {
            Ok(generated) => self.made_of.objects == made_of.objects || generated.turn.is_waiting(now),
            // Whatever is wrong is not the counts.
            Err(_) => true,
        };
        self.uid == uid && same_from && self.made_of.is_but_for_counts(made_of) && same()
    }
}

impl PartialEq for Generated {
    fn eq(&self, other: &Self) -> bool {
        // Most are compared with themselves, run by run.
        std::ptr::eq(self, other) || (self.uid == other.uid && self.expansion == other.expansion)
    }
}

impl Generated {
    /// The child of this name.
    pub(crate) fn child(&self, name: &str) -> Option<&Child> {
        self.names.get(name).map(|index| &self.expansion.children[*index])
    }

    /// Objects in the pairs of a child, as they were weighed last. `None`: it is not shared out by objects, or they are not
    /// counted.
    pub(crate) fn objects(&self, child: &Child) -> Option<u64> {
        if !self.made_of.weighs_objects() {
            return None;
        }
        let mut all = 0_u64;
        for (cluster, bucket) in child.part.pairs() {
            let of_cluster = self.made_of.objects.get(cluster)?;
            all = all.saturating_add(of_cluster.get(&bucket).copied().unwrap_or(0));
        }
        Some(all)
    }

    /// How many children there are, and what their specs weigh together.
    pub(super) fn weight(&self) -> (usize, usize) {
        (self.expansion.children.len(), self.expansion.bytes)
    }

    fn new(uid: &str, made_of: MadeOf, expansion: Expansion, turn: Turn) -> Self {
        let names = expansion.children.iter().enumerate();
        Self {
            uid: uid.to_owned(),
            names: names.map(|(index, child)| (child.name.clone(), index)).collect(),
            expansion,
            made_of,
            turn,
        }
    }
}

impl Children {
    /// Whether it depends on how many objects there are.
    pub(super) fn weigh_objects(&self) -> bool {
        let in_force = self.in_force.iter();
        in_force.into_iter().any(|generated| generated.made_of.weighs_objects())
    }

    /// Whether the child is to be, now or soon.
    pub(super) fn expect(&self, child: &str) -> bool {
        let all = self.in_force.iter().chain(&self.coming);
        all.into_iter().any(|generated| generated.child(child).is_some())
    }
}

/// The root of each child: the object of the same namespace that controls it.
pub(super) fn roots(facts: &Facts) -> BTreeMap<&ShardName, &ShardName> {
    let by_uid: BTreeMap<_, _> = facts.shards.iter().map(|(name, object)| (&object.uid, name)).collect();
    let children = facts.shards.iter().filter_map(|(name, object)| {
        let root = by_uid.get(object.root.as_ref()?)?;
        (root.namespace() == name.namespace() && *root != name).then_some((name, *root))
    });
    children.collect()
}

/// Generates children.
pub(super) struct Generator<'a> {
    pub(super) facts: &'a Facts,
    pub(super) settings: &'a Settings,
    pub(super) before: &'a State,
    pub(super) now: Timestamp,
    /// Those of this run.
    // A RefCell: one run is one thread's, and drafts are made of a generator that they share.
    pub(super) attempts: RefCell<Attempts>,
}

impl Generator<'_> {
    /// What was generated last for the root of this uid.
    pub(super) fn last(&self, name: &ShardName, uid: &str) -> Option<&Arc<Generated>> {
        let last = self.before.roots.get(name)?.in_force.as_ref();
        last.filter(|last| last.uid == uid)
    }

    /// What `spec` of the root generates, so that as little as possible moves from what was generated last, or else from the
    /// children that are there.
    pub(super) fn generate(
        &self,
        name: &ShardName,
        object: &ShardObject,
        spec: &Arc<ShardingConfigSpec>,
    ) -> Result<Arc<Generated>, Vec<Problem>> {
        let last = self.last(name, &object.uid);
        let mut made_of = self.made_of(name, object, spec);
        let by_counts = last.filter(|last| last.made_of.is_but_for_counts(&made_of));
        if let Some(last) = by_counts.filter(|last| last.turn.is_waiting(self.now)) {
            return Ok(last.clone());
        }
        let is_counted = self.count(name, &mut made_of, last);
        if let Some(last) = by_counts.filter(|last| last.made_of.objects == made_of.objects) {
            return Ok(last.clone());
        }
        let there = match last {
            Some(last) => {
                let children = last.expansion.children.iter();
                children.map(|child| (child.name.clone(), &child.spec)).collect()
            }
            None => self.there(name, object),
        };
        let is_from_nothing = last.is_none() && there.is_empty();
        if let Some(attempt) = self.attempted(name, &object.uid, &made_of, last)
            && (last.is_some() || is_from_nothing)
        {
            let came_of_it = attempt.came_of_it.clone();
            self.keep(name, attempt.clone());
            return came_of_it;
        }
        let expanded = expand(name, spec, &self.around(&made_of, there));
        let came_of_it = expanded.map(|expansion| {
            let moved = by_counts.is_some_and(|last| last.expansion != expansion);
            let turn = last.map(|last| last.turn.clone()).unwrap_or_default();
            let turn = turn.after(self.now, is_counted, moved);
            Arc::new(Generated::new(&object.uid, made_of.clone(), expansion, turn))
        });
        if last.is_some() || is_from_nothing {
            let attempt = Attempt {
                uid: object.uid.clone(),
                made_of,
                from: last.cloned(),
                came_of_it: came_of_it.clone(),
            };
            self.keep(name, attempt);
        }
        came_of_it
    }

    /// What came of the same in the run before, or earlier in this one.
    fn attempted(
        &self,
        name: &ShardName,
        uid: &str,
        made_of: &MadeOf,
        last: Option<&Arc<Generated>>,
    ) -> Option<Attempt> {
        let attempts = self.attempts.borrow();
        let all = [attempts.get(name), self.before.attempts.get(name)];
        let mut all = all.into_iter().flatten().flatten();
        all.find(|attempt| attempt.holds(uid, made_of, last, self.now)).cloned()
    }

    fn keep(&self, name: &ShardName, attempt: Attempt) {
        self.attempts
            .borrow_mut()
            .entry(name.clone())
            .or_default()
            .push(attempt);
    }

    fn around<'b>(&self, made_of: &MadeOf, children: BTreeMap<String, &'b ShardingConfigSpec>) -> Surroundings<'b> {
        Surroundings {
            bucketing: self.settings.bucketing,
            keys: self.settings.keys.clone(),
            members: made_of.members.clone(),
            roots: made_of.prefixes.clone(),
            others: made_of.others.clone(),
            objects: made_of.objects.clone(),
            children,
            ..Surroundings::default()
        }
    }

    /// Adds what agents have counted to what the children are made of, if they are shared out by objects, and says whether
    /// all of their clusters are counted. A cluster whose agent has begun anew counts by what it said last.
    fn count(&self, name: &ShardName, made_of: &mut MadeOf, last: Option<&Arc<Generated>>) -> bool {
        if !made_of.weighs_objects() {
            return false;
        }
        let rule = v1::LabelRule {
            prefix: self.settings.keys.prefix().to_owned(),
            bucketing: Some(self.settings.bucketing.into()),
        };
        let told = |cluster: &str| {
            let agent = self.facts.agents.get(cluster)?;
            agent.objects(&rule, self.settings.bucketing.buckets())
        };
        let before = |cluster: &str| last?.made_of.objects.get(cluster).cloned();
        if made_of.spec.clusters.is_empty() {
            let all = self.homes(name, &made_of.spec).into_iter().map(told).collect();
            let all = Option::<Vec<_>>::map(all, sum).or_else(|| before(HOME));
            made_of.objects.extend(all.map(|objects| (HOME.to_owned(), objects)));
            return made_of.objects.contains_key(HOME);
        }
        let mut is_counted = true;
        for cluster in self.clusters(name, &made_of.spec) {
            match told(cluster).or_else(|| before(cluster)) {
                Some(objects) => drop(made_of.objects.insert(cluster.to_owned(), objects)),
                None => is_counted = false,
            }
        }
        is_counted
    }

    /// Clusters whose pairs a root with clusters shares out: also named ones that it cannot have.
    fn clusters<'b>(&'b self, name: &ShardName, spec: &'b ShardingConfigSpec) -> BTreeSet<&'b str> {
        let chosen = spec.clusters.iter().flat_map(|entry| match &entry.name {
            Some(named) => vec![named.as_str()],
            None => clusters_of(self.facts, name, entry),
        });
        chosen.collect()
    }

    /// Clusters where callers of a root without clusters may run.
    fn homes<'b>(&'b self, name: &ShardName, spec: &'b ShardingConfigSpec) -> Vec<&'b str> {
        if !spec.caller_clusters.is_empty() {
            return spec.caller_clusters.iter().map(String::as_str).collect();
        }
        let members = self.facts.members.iter();
        let allowed = members.filter(|(_, member)| member.accept && allows(member, name));
        allowed.map(|(cluster, _)| cluster.as_str()).collect()
    }

    /// Specs of the children that are there, those in force where there are any: what somebody has made of an object while no
    /// hub looked says nothing of who has what.
    fn there<'b>(&'b self, name: &ShardName, root: &ShardObject) -> BTreeMap<String, &'b ShardingConfigSpec> {
        let objects = self.facts.shards.iter();
        let children = objects.filter(|(child, object)| {
            child.namespace() == name.namespace() && object.root.as_ref() == Some(&root.uid) && !object.deleting
        });
        let in_force = |child: &ShardName, object: &'b ShardObject| match self.before.accepted.get(child) {
            Some(accepted) => Some(&*accepted.spec),
            None => object.spec.as_deref().ok(),
        };
        children
            .filter_map(|(child, object)| Some((child.name().to_owned(), in_force(child, object)?)))
            .collect()
    }

    fn made_of(&self, name: &ShardName, object: &ShardObject, spec: &Arc<ShardingConfigSpec>) -> MadeOf {
        let prefix = spec.root.as_ref().map(|root| root.prefix.as_str()).unwrap_or_default();
        let by_labels = spec.clusters.iter().any(|entry| entry.selector.is_some());
        let members = self.facts.members.iter();
        let members = members.filter(|(_, member)| by_labels && allows(member, name));
        let beginning = format!("{prefix}-");
        let others = self.neighbours(name).filter(|(other, neighbour)| {
            other.name().starts_with(&beginning) && neighbour.root.as_ref() != Some(&object.uid)
        });
        MadeOf {
            spec: spec.clone(),
            members: members
                .map(|(cluster, member)| (cluster.clone(), member.labels.clone()))
                .collect(),
            prefixes: self.prefixes(name, object, prefix),
            others: others.map(|(other, _)| other.name().to_owned()).collect(),
            objects: Objects::new(),
        }
    }

    /// The roots of the namespace that had the prefix first, unless this one has it already.
    fn prefixes(&self, name: &ShardName, object: &ShardObject, prefix: &str) -> BTreeMap<String, String> {
        let prefix_of = |spec: &ShardingConfigSpec| spec.active_root().is_some_and(|root| root.prefix == prefix);
        let has = |name: &ShardName, uid: &str| {
            let accepted = self.before.accepted.get(name).filter(|accepted| accepted.uid == uid);
            accepted.is_some_and(|accepted| prefix_of(&accepted.spec))
        };
        if has(name, &object.uid) {
            return BTreeMap::new();
        }
        let first = self.neighbours(name).filter(|(other, neighbour)| {
            let asks = neighbour.spec.as_ref().is_ok_and(|spec| prefix_of(spec));
            let is_older = (neighbour.created, *other) < (object.created, name);
            !neighbour.deleting && (has(other, &neighbour.uid) || (asks && is_older))
        });
        first
            .map(|(other, _)| (other.name().to_owned(), prefix.to_owned()))
            .collect()
    }

    /// The other ShardingConfigs of the namespace.
    fn neighbours<'b>(&'b self, name: &'b ShardName) -> impl Iterator<Item = (&'b ShardName, &'b ShardObject)> {
        let all = self.facts.shards.iter();
        all.filter(move |(other, _)| other.namespace() == name.namespace() && *other != name)
    }
}

/// Objects of several clusters as if they were one.
fn sum(all: Vec<BTreeMap<u16, u64>>) -> BTreeMap<u16, u64> {
    let mut sum = BTreeMap::new();
    for (bucket, count) in all.into_iter().flatten() {
        let of_bucket: &mut u64 = sum.entry(bucket).or_default();
        *of_bucket = of_bucket.saturating_add(count);
    }
    sum
}
