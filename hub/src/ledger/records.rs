//! States and records: what has to be written so that the ledger says a state, and what state its records say. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_crds::ledger::{Chunk, Content, EarlierSpec, LockInForce, Phase, Root, SPEC_BYTES_MAX, Slot, SpecInForce};
use portolan_crds::{ShardName, json_bytes};
use serde_json::Value;

use crate::compile::{Accepted, Ledger, State, Steps};

/// Names of what two states say differently, and of what may not be stored yet.
#[derive(Debug, Default)]
pub(super) struct Unsaved {
    /// Namespaces by cluster.
    namespaces: BTreeMap<String, BTreeSet<String>>,
    specs: BTreeSet<ShardName>,
}

/// The spec of each shard that was in force before the present one, as long as its object is the same. No hub goes by it:
/// people do.
#[derive(Debug, Default)]
pub(super) struct Earlier(BTreeMap<ShardName, EarlierSpec>);

/// What has to be written.
#[derive(Debug)]
pub(super) struct Batch {
    /// Chunks and specs, to be written in any order, each with the authors for whom.
    pub(super) contents: Vec<(Content, Authors)>,
    /// The root, to be written after all others: what it does not list does not count.
    pub(super) root: Root,
    /// For whom the root is written.
    pub(super) authors: Authors,
}

/// Namespaces of the hub for whose ShardingConfigs something is written; none: it follows from none.
pub(super) type Authors = BTreeSet<String>;

impl Unsaved {
    pub(super) fn between(before: &State, after: &State) -> Self {
        let shards = before.accepted.keys().chain(after.accepted.keys());
        let differs = |name: &&ShardName| before.accepted.get(*name) != after.accepted.get(*name);
        Self {
            namespaces: before.ledger.differing(&after.ledger),
            specs: shards.filter(differs).cloned().collect(),
        }
    }

    pub(super) fn extend(&mut self, other: Self) {
        for (cluster, namespaces) in other.namespaces {
            self.namespaces.entry(cluster).or_default().extend(namespaces);
        }
        self.specs.extend(other.specs);
    }
}

impl Earlier {
    /// As records tell.
    pub(super) fn read(contents: &[Content]) -> Self {
        let specs = contents.iter().filter_map(|content| match content {
            Content::Spec(spec) => Some((spec.shard.clone(), spec.before.clone()?)),
            _ => None,
        });
        Self(specs.collect())
    }

    /// Goes on from one state to the next.
    pub(super) fn follow(&mut self, before: &State, after: &State) {
        self.0.retain(|shard, _| after.accepted.contains_key(shard));
        for (shard, now) in &after.accepted {
            match before.accepted.get(shard) {
                Some(earlier) if earlier.uid != now.uid => drop(self.0.remove(shard)),
                Some(earlier) if earlier.spec != now.spec => {
                    let kept = EarlierSpec {
                        generation: earlier.generation,
                        spec: value(earlier),
                    };
                    self.0.insert(shard.clone(), kept);
                }
                _ => {}
            }
        }
    }

    /// That of `shard`, if it fits into one record with the `present` one.
    fn of(&self, shard: &ShardName, present: &Value) -> Option<EarlierSpec> {
        let bytes = |spec: &Value| serde_json::to_vec(spec).map_or(usize::MAX, |text| text.len());
        let earlier = self.0.get(shard)?;
        let fits = bytes(present).saturating_add(bytes(&earlier.spec)) <= SPEC_BYTES_MAX;
        fits.then(|| earlier.clone())
    }
}

fn value(accepted: &Accepted) -> Value {
    serde_json::to_value(&*accepted.spec).expect("a spec has keys of text only")
}

impl Batch {
    /// What of `changes` has to be written to say `state`, where `listed` is what is there.
    pub(super) fn new(state: &State, listed: &Root, changes: &Unsaved, earlier: &Earlier) -> Self {
        let mut batch = Self {
            contents: Vec::new(),
            root: Root {
                incarnation: state.incarnation.clone(),
                cursor_format: state.cursor_format,
                contention: state.ledger.contention(),
                phase: if state.ledger.is_withholding() {
                    Phase::Adopted
                } else {
                    Phase::Complete
                },
                ..listed.clone()
            },
            authors: Authors::new(),
        };
        for (cluster, namespaces) in &changes.namespaces {
            batch.add_chunks(state, cluster, namespaces);
        }
        for shard in &changes.specs {
            batch.add_spec(state, shard, earlier);
        }
        let relisted = batch.root.specs.symmetric_difference(&listed.specs);
        batch.authors = relisted.map(|shard| shard.namespace().to_owned()).collect();
        batch
    }

    fn add_chunks(&mut self, state: &State, cluster: &str, namespaces: &BTreeSet<String>) {
        if !state.ledger.has_cluster(cluster) {
            self.root.chunks.remove(cluster);
            return;
        }
        let key = &self.root.key;
        let slots = self.root.chunks.entry(cluster.to_owned());
        let slots = slots.or_insert_with(|| [Slot::WHOLE].into());
        let changed = namespaces
            .iter()
            .filter_map(|namespace| Slot::of_namespace(key, slots, namespace))
            .collect();
        for chunk in state.ledger.chunks(cluster, key, slots, &changed) {
            slots.remove(&chunk.slot);
            for chunk in chunk.bounded(key) {
                slots.insert(chunk.slot);
                let authors = authors(&chunk, namespaces);
                self.contents.push((Content::Chunk(chunk), authors));
            }
        }
    }

    fn add_spec(&mut self, state: &State, shard: &ShardName, earlier: &Earlier) {
        let Some(accepted) = state.accepted.get(shard) else {
            self.root.specs.remove(shard);
            return;
        };
        self.root.specs.insert(shard.clone());
        let spec = value(accepted);
        let content = Content::Spec(SpecInForce {
            shard: shard.clone(),
            uid: accepted.uid.clone(),
            generation: accepted.generation,
            before: earlier.of(shard, &spec),
            lock: Some(&accepted.lock)
                .filter(|lock| **lock != LockInForce::default())
                .cloned(),
            withheld: accepted.withheld.clone(),
            spec,
        });
        self.contents.push((content, [shard.namespace().to_owned()].into()));
    }
}

/// Whose shards have these namespaces of a chunk, or had them last.
fn authors(chunk: &Chunk, namespaces: &BTreeSet<String>) -> Authors {
    let mut shards = BTreeMap::<&String, (u64, &ShardName)>::new();
    for (shard, left) in &chunk.departures {
        for (namespace, departure) in left {
            let last = (departure.view_revision, shard);
            let known = shards.entry(namespace).or_insert(last);
            *known = (*known).max(last);
        }
    }
    let pairs = chunk
        .pairs
        .iter()
        .flat_map(|(namespace, pairs)| pairs.values().map(move |pair| (namespace, pair)));
    let owners = pairs.filter_map(|(namespace, pair)| Some((namespace, pair.owner.as_ref()?)));
    for (namespace, _) in owners.clone() {
        shards.remove(namespace);
    }
    let last = shards.into_iter().map(|(namespace, (_, shard))| (namespace, shard));
    let changed = owners
        .chain(last)
        .filter(|(namespace, _)| namespaces.contains(*namespace));
    changed.map(|(_, shard)| shard.namespace().to_owned()).collect()
}

/// The state that the records say which `root` lists. Names the entry that cannot be.
pub(super) fn state(root: &Root, contents: Vec<Content>, view_revision: u64) -> Result<State, String> {
    root.check(&contents)?;
    let mut accepted = BTreeMap::new();
    let mut chunks = Vec::new();
    for content in contents {
        match content {
            Content::Chunk(chunk) => chunks.push(chunk),
            Content::Spec(stored) => {
                let spec = stored.read()?;
                let one = Accepted {
                    uid: stored.uid,
                    generation: stored.generation,
                    bytes: json_bytes(&stored.spec),
                    spec: Arc::new(spec),
                    lock: stored.lock.unwrap_or_default(),
                    withheld: stored.withheld,
                };
                accepted.insert(stored.shard, one);
            }
            Content::Root(_) => {}
        }
    }
    Ok(State {
        run: 0,
        incarnation: root.incarnation.clone(),
        cursor_format: root.cursor_format,
        accepted,
        roots: BTreeMap::new(),
        attempts: BTreeMap::new(),
        steps: Steps::default(),
        ledger: Arc::new(Ledger::restore(
            root.contention,
            chunks,
            view_revision,
            root.phase.may_lack_pairs(),
        )),
    })
}

/// Makes a state whole that was switched to owners of each operator and not written whole: of records, chunks come before the root, each by
/// itself. False: it is whole.
pub(super) fn finish_switch(state: &mut State) -> bool {
    let is_in_part = state.ledger.is_switched_in_part();
    if is_in_part {
        Arc::make_mut(&mut state.ledger).separate(&state.accepted);
    }
    is_in_part
}
