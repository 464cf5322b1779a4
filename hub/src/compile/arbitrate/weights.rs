//! What the specs of one author weigh together, and which new one is too much.
//!
//! An author is a namespace of the hub. A root weighs what it says itself and what its children repeat of it. What is in force stays,
//! whatever it weighs; a new spec is refused if with it the author would have more than is kept for one, and weighs more than
//! what it takes the place of.

use std::collections::{BTreeSet, HashMap};

use portolan_crds::{AUTHOR_BYTES_MAX, ConditionReason, ShardName};

use super::Refusal;
use super::draft::Draft;
use crate::compile::roots::Generated;

/// The heaviest of an author's other specs that a message names.
const NAMED_MAX: usize = 3;

/// What one shard's spec weighs, in bytes of JSON.
#[derive(Debug, Clone, Copy, Default)]
struct Weight {
    own: usize,
    /// With how many children that weigh so much together.
    children: (usize, usize),
}

impl Weight {
    fn all(self) -> usize {
        self.own + self.children.1
    }

    fn of_present(draft: &Draft<'_>) -> Self {
        Self {
            own: draft.object.bytes,
            children: draft.kin.present.as_deref().map_or((0, 0), Generated::weight),
        }
    }

    fn in_force(draft: &Draft<'_>) -> Self {
        let Some((accepted, _)) = &draft.accepted else {
            return Self::default();
        };
        Self {
            own: accepted.bytes,
            children: draft.kin.in_force.as_deref().map_or((0, 0), Generated::weight),
        }
    }
}

/// What an author has: its shards in force, and the new specs that were let in before the present one.
#[derive(Default)]
struct Load<'a> {
    all: usize,
    by_shard: HashMap<&'a ShardName, usize>,
    /// The same, the heaviest last: of very many specs each that is refused names them.
    by_weight: BTreeSet<(usize, &'a ShardName)>,
}

impl<'a> Load<'a> {
    fn put(&mut self, shard: &'a ShardName, bytes: usize) {
        let before = self.by_shard.insert(shard, bytes).unwrap_or(0);
        self.all = self.all + bytes - before;
        self.by_weight.remove(&(before, shard));
        self.by_weight.insert((bytes, shard));
    }

    /// With `bytes` in the place of what `shard` has.
    fn with(&self, shard: &ShardName, bytes: usize) -> usize {
        self.all - self.by_shard.get(shard).copied().unwrap_or(0) + bytes
    }

    fn refusal(&self, shard: &ShardName, weight: Weight) -> Refusal {
        let own = match weight.children {
            (0, _) => format!("{} bytes of JSON", weight.all()),
            (count, bytes) => format!(
                "{} bytes of JSON, {bytes} of them in {count} children, which repeat what the root says beside it",
                weight.all()
            ),
        };
        let others = self
            .by_weight
            .iter()
            .rev()
            .filter(|(bytes, name)| *name != shard && *bytes > 0);
        let named = others.take(NAMED_MAX);
        let named: Vec<_> = named.map(|(bytes, name)| format!("{} {bytes}", name.name())).collect();
        let others = match named.as_slice() {
            [] => String::new(),
            named => format!(" (of others {} are the heaviest)", named.join(", ")),
        };
        Refusal {
            reason: ConditionReason::TooMuch,
            message: format!(
                "spec: weighs {own}; with it the ShardingConfigs of namespace {:?} would weigh {}{others}, and {AUTHOR_BYTES_MAX} is the \
                 most: say less in limits, selectors and lists, have fewer children, or spread it over namespaces",
                shard.namespace(),
                self.with(shard, weight.all()),
            ),
        }
    }
}

/// Refuses what is too much, oldest first.
pub(super) fn weigh(drafts: &mut [Draft<'_>]) {
    let mut loads = HashMap::<&str, Load<'_>>::new();
    // A child weighs at its root.
    let grown = |draft: &&mut Draft<'_>| draft.kin.root().is_none();
    for draft in drafts.iter_mut().filter(grown) {
        let load = loads.entry(draft.name.namespace()).or_default();
        load.put(draft.name, Weight::in_force(draft).all());
    }
    for draft in drafts.iter_mut().filter(grown).filter(|draft| !draft.settled) {
        let load = loads.entry(draft.name.namespace()).or_default();
        if draft.present.is_err() {
            continue;
        }
        let (now, weight) = (Weight::in_force(draft).all(), Weight::of_present(draft));
        if load.with(draft.name, weight.all()) > AUTHOR_BYTES_MAX && weight.all() > now {
            draft.present = Err(load.refusal(draft.name, weight));
        } else {
            // If it is refused for something else, what is in force goes on weighing.
            load.put(draft.name, weight.all().max(now));
        }
    }
}
