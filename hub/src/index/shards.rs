//! ShardingConfigs, as the watch tells of them: each new spec is taken in when its author has a turn.
//!
//! A spec that waits for one is not known to anybody: its object goes on with the spec before, or is not there yet. Whatever else has
//! changed of an object (it is being deleted, it has a finalizer, somebody forces a release) counts at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use kube::api::DynamicObject;
use portolan_crds::{ShardName, json_bytes};

use super::budgets::Budgets;
use super::objects::{shard_from, shard_name, without_spec};
use super::{Change, Index};
use crate::facts::{Facts, ShardObject};

/// Whose turn it is, and what waits for one.
#[derive(Debug, Default)]
pub(super) struct Turns {
    budgets: Budgets,
    /// The newest of each.
    waiting: BTreeMap<ShardName, Waiting>,
    /// The place that was given last.
    last: u64,
}

#[derive(Debug)]
struct Waiting {
    place: u64,
    bytes: usize,
    object: DynamicObject,
}

impl Turns {
    /// Whether the object's spec is to be taken in now; if not, it waits.
    fn take(&mut self, name: &ShardName, object: &DynamicObject, now: Instant) -> bool {
        let bytes = json_bytes(&object.data["spec"]);
        let before = self.waiting.remove(name);
        // What came before goes before, or who writes one object all the time would keep all others of its namespace waiting.
        let mut waiting = self.waiting.keys();
        let is_first = !waiting.any(|other| other.namespace() == name.namespace());
        if is_first && self.budgets.take(name.namespace(), bytes, now) {
            return true;
        }
        let place = before.map_or(self.last + 1, |before| before.place);
        self.last = self.last.max(place);
        let object = object.clone();
        self.waiting.insert(name.clone(), Waiting { place, bytes, object });
        false
    }

    /// What has waited longest of all whose author has a turn now.
    fn next(&mut self, now: Instant) -> Option<DynamicObject> {
        let mut first = BTreeMap::<&str, (u64, &ShardName)>::new();
        for (name, waiting) in &self.waiting {
            let first = first.entry(name.namespace()).or_insert((waiting.place, name));
            *first = (*first).min((waiting.place, name));
        }
        let mut first: Vec<_> = first.into_values().collect();
        first.sort_unstable();
        let due = first.into_iter().find(|(_, name)| {
            let bytes = self.waiting.get(name).map_or(0, |waiting| waiting.bytes);
            self.budgets.take(name.namespace(), bytes, now)
        });
        let name = due.map(|(_, name)| name.clone())?;
        self.waiting.remove(&name).map(|waiting| waiting.object)
    }
}

impl Index {
    /// Takes in a ShardingConfig that is new, or was changed.
    pub(crate) fn shard_applied(&self, object: &DynamicObject) {
        self.shard_applied_at(object, Instant::now());
    }

    pub(super) fn shard_applied_at(&self, object: &DynamicObject, now: Instant) {
        let Some(name) = shard_name(object) else { return };
        // Held to the end: what waited must not come in after what is newer.
        let mut turns = self.turns.lock();
        let metadata = &object.metadata;
        let is_known = |known: &ShardObject| metadata.uid.as_ref() == Some(&known.uid);
        let is_same = |known: &ShardObject| is_known(known) && metadata.generation == Some(known.generation);
        let has_same_spec = self.read(|facts| facts.shards.get(&name).is_some_and(is_same));
        let is_over = metadata.deletion_timestamp.is_some();
        if is_over || has_same_spec {
            turns.waiting.remove(&name);
        }
        if is_over {
            self.write(|facts| facts.end_shard(&name, object));
        } else if has_same_spec || turns.take(&name, object, now) {
            self.take_in(object);
        } else {
            self.write(|facts| facts.put_off_shard(&name, object));
        }
    }

    /// Reads the object, for which nobody waits, and then tells of it.
    fn take_in(&self, object: &DynamicObject) {
        let known = shard_name(object).and_then(|name| self.read(|facts| facts.shards.get(&name).cloned()));
        if let Some((name, shard)) = shard_from(object, known.as_ref()) {
            self.write(|facts| facts.put_shard(name, shard));
        }
    }

    /// Takes in what has waited for its author's turn.
    pub(super) fn take_turns(&self, now: Instant) {
        loop {
            let mut turns = self.turns.lock();
            let Some(object) = turns.next(now) else { return };
            self.take_in(&object);
        }
    }

    pub(crate) fn shard_deleted(&self, object: &DynamicObject) {
        let mut turns = self.turns.lock();
        if let Some(name) = shard_name(object) {
            turns.waiting.remove(&name);
        }
        self.write(|facts| facts.delete_shard(object));
    }

    /// Replaces all ShardingConfigs by the complete list that a hub begins with, to run or to lead. Of that nothing waits: what is not
    /// there would be taken for deleted, and an earlier hub may have accepted what waited here.
    pub(crate) fn shards_begun(&self, objects: &[DynamicObject]) {
        let mut turns = self.turns.lock();
        turns.waiting.clear();
        self.write(|facts| facts.reset_shards(objects));
    }

    /// Replaces all ShardingConfigs by a complete list.
    pub(crate) fn shards_listed(&self, objects: &[DynamicObject]) {
        let mut turns = self.turns.lock();
        let listed: BTreeSet<_> = objects.iter().filter_map(shard_name).collect();
        turns.waiting.retain(|name, _| listed.contains(name));
        self.write(|facts| facts.keep_shards(&listed));
        drop(turns);
        for object in objects {
            self.shard_applied(object);
        }
    }

    /// Whether what the ledger wrote for the author follows from its edits, which then wait accordingly longer.
    pub(crate) fn charge(&self, author: &str, bytes: usize, now: Instant) -> bool {
        self.turns.lock().budgets.charge(author, bytes, now)
    }

    /// Whether a newer spec of the shard waits for its author's turn.
    pub(crate) fn is_waiting(&self, shard: &ShardName) -> bool {
        self.turns.lock().waiting.contains_key(shard)
    }

    /// How many ShardingConfigs wait for their author's turn.
    pub(crate) fn waiting(&self) -> usize {
        self.turns.lock().waiting.len()
    }
}

impl Facts {
    pub(crate) fn apply_shard(&mut self, object: &DynamicObject) -> Change {
        let known = shard_name(object).and_then(|name| self.shards.get(&name));
        let read = shard_from(object, known);
        read.map_or(Change::Nothing, |(name, shard)| self.put_shard(name, shard))
    }

    fn put_shard(&mut self, name: ShardName, shard: ShardObject) -> Change {
        let change = match self.shards.get(&name) {
            Some(before) if *before == shard => Change::Nothing,
            Some(before)
                if before.uid == shard.uid
                    && before.spec == shard.spec
                    && before.generation == shard.generation
                    && before.deleting == shard.deleting
                    && before.root == shard.root
                    && before.forced == shard.forced =>
            {
                if before.has_finalizer == shard.has_finalizer {
                    Change::Figures
                } else {
                    Change::Status
                }
            }
            _ => Change::Compile,
        };
        self.shards.insert(name, shard);
        change
    }

    /// Takes in that an object is being deleted. Its spec wants nothing any more, whatever it says by now.
    fn end_shard(&mut self, name: &ShardName, object: &DynamicObject) -> Change {
        let mut shard = without_spec(object);
        if let Some(before) = self.shards.get(name).filter(|before| before.uid == shard.uid) {
            let generation = shard.generation;
            shard.keep_spec_of(before);
            shard.generation = generation;
        }
        self.put_shard(name.clone(), shard)
    }

    /// Takes in all of an object but its spec, which waits. One that was made anew under the same name is not there yet.
    fn put_off_shard(&mut self, name: &ShardName, object: &DynamicObject) -> Change {
        let mut shard = without_spec(object);
        match self.shards.get(name) {
            Some(before) if before.uid == shard.uid => {
                shard.keep_spec_of(before);
                self.put_shard(name.clone(), shard)
            }
            _ => self.delete_shard(object),
        }
    }

    pub(crate) fn delete_shard(&mut self, object: &DynamicObject) -> Change {
        let gone = shard_name(object).is_some_and(|name| self.shards.remove(&name).is_some());
        if gone { Change::Compile } else { Change::Nothing }
    }

    /// Replaces all shards by a complete list.
    pub(crate) fn reset_shards(&mut self, objects: &[DynamicObject]) -> Change {
        let deleted = self.keep_shards(&objects.iter().filter_map(shard_name).collect());
        let applied = objects.iter().map(|object| self.apply_shard(object)).max();
        applied.map_or(deleted, |applied| deleted.max(applied))
    }

    /// Drops all shards but these.
    fn keep_shards(&mut self, listed: &BTreeSet<ShardName>) -> Change {
        let known = self.shards.len();
        self.shards.retain(|name, _| listed.contains(name));
        if self.shards.len() < known {
            Change::Compile
        } else {
            Change::Nothing
        }
    }
}
