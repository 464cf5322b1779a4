//! Roots → the children that each generates, and who is whose child. What a child has is `portolan_crds::partition`'s to
//! say; that it has it is decided like for any other shard, in `arbitrate`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_crds::partition::{Child, Expansion, Surroundings, expand};
use portolan_crds::{Problem, ShardName, ShardingConfigSpec};

use super::State;
use super::wanted::allows;
use crate::facts::{Facts, ShardObject};
use crate::settings::Settings;

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
}

/// What children follow from, beside those that were there before.
#[derive(Debug, Clone, PartialEq)]
struct MadeOf {
    spec: Arc<ShardingConfigSpec>,
    members: BTreeMap<String, BTreeMap<String, String>>,
    prefixes: BTreeMap<String, String>,
    others: BTreeSet<String>,
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

    fn new(uid: &str, made_of: MadeOf, expansion: Expansion) -> Self {
        let names = expansion.children.iter().enumerate();
        Self {
            uid: uid.to_owned(),
            names: names.map(|(index, child)| (child.name.clone(), index)).collect(),
            expansion,
            made_of,
        }
    }
}

impl Children {
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
        let made_of = self.made_of(name, object, spec);
        let last = self.last(name, &object.uid);
        if let Some(last) = last.filter(|last| last.made_of == made_of) {
            return Ok(last.clone());
        }
        let children = match last {
            Some(last) => last
                .expansion
                .children
                .iter()
                .map(|child| (child.name.clone(), &child.spec))
                .collect(),
            None => self.there(object),
        };
        let around = Surroundings {
            bucketing: self.settings.bucketing,
            keys: self.settings.keys.clone(),
            members: made_of.members.clone(),
            roots: made_of.prefixes.clone(),
            others: made_of.others.clone(),
            children,
            ..Surroundings::default()
        };
        let expansion = expand(name, spec, &around)?;
        Ok(Arc::new(Generated::new(&object.uid, made_of, expansion)))
    }

    /// Specs of the children that are there.
    fn there(&self, root: &ShardObject) -> BTreeMap<String, &ShardingConfigSpec> {
        let objects = self.facts.shards.iter();
        let children = objects.filter(|(_, object)| object.root.as_ref() == Some(&root.uid) && !object.deleting);
        children
            .filter_map(|(name, object)| Some((name.name().to_owned(), &**object.spec.as_ref().ok()?)))
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
