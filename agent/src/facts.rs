//! What this agent knows of its member and the hub shall know too: maps that watches fill and a stream reads.
//!
//! Whoever reports keeps what it has sent and sends the [`difference`]; so a slow or broken stream costs one map, and
//! never an unbounded queue of events. Callers: `namespaces`, `callers`, `sweep` write, `report` and `fence` read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Facts of one subject by key. Values are shared, so that a reader's copy costs a pointer each.
pub(crate) type FactMap<K, V> = BTreeMap<K, Arc<V>>;

/// One subject: its facts, and whether they are complete (the first list is through).
#[derive(Debug)]
pub(crate) struct FactStore<K, V> {
    // A mutex: held for one map operation or one clone of pointers, never across an await.
    state: Mutex<State<K, V>>,
    // A watch: readers want the latest state, not each step to it.
    changed: watch::Sender<u64>,
}

#[derive(Debug)]
struct State<K, V> {
    complete: bool,
    known: Known<K, V>,
}

/// What is known of a subject, all of it but for the namespaces that are named.
#[derive(Debug)]
pub(crate) struct Known<K, V> {
    pub(crate) facts: FactMap<K, V>,
    /// Of what is in these not everything is known yet.
    pub(crate) pending: BTreeSet<String>,
}

/// What turns one map into another.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Difference<K, V> {
    pub(crate) upserted: Vec<Arc<V>>,
    pub(crate) removed: Vec<K>,
}

impl<K, V> Difference<K, V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.upserted.is_empty() && self.removed.is_empty()
    }
}

impl<K: Ord + Clone, V: PartialEq> FactStore<K, V> {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                complete: false,
                known: Known {
                    facts: FactMap::new(),
                    pending: BTreeSet::new(),
                },
            }),
            changed: watch::Sender::new(0),
        }
    }

    /// Adds or replaces one fact.
    pub(crate) fn upsert(&self, key: K, fact: V) {
        let mut state = self.state.lock();
        if state.known.facts.get(&key).is_none_or(|known| **known != fact) {
            state.known.facts.insert(key, Arc::new(fact));
            self.wake();
        }
    }

    pub(crate) fn remove(&self, key: &K) {
        if self.state.lock().known.facts.remove(key).is_some() {
            self.wake();
        }
    }

    /// Replaces everything by a complete list.
    pub(crate) fn replace(&self, facts: FactMap<K, V>) {
        self.replace_but(facts, BTreeSet::new());
    }

    /// Replaces everything by a list that is complete but for what is in these namespaces.
    pub(crate) fn replace_but(&self, facts: FactMap<K, V>, pending: BTreeSet<String>) {
        let known = Known { facts, pending };
        let mut state = self.state.lock();
        *state = State { complete: true, known };
        drop(state);
        self.wake();
    }

    /// The facts once they are complete.
    pub(crate) fn complete(&self) -> Option<FactMap<K, V>> {
        self.known()
            .filter(|known| known.pending.is_empty())
            .map(|known| known.facts)
    }

    /// The facts once they are complete but for the namespaces that are named.
    pub(crate) fn known(&self) -> Option<Known<K, V>> {
        let state = self.state.lock();
        let known = &state.known;
        state.complete.then(|| Known {
            facts: known.facts.clone(),
            pending: known.pending.clone(),
        })
    }

    /// Whether one fact, or that there is none, is so; false while nobody knows.
    pub(crate) fn is(&self, key: &K, so: impl FnOnce(Option<&V>) -> bool) -> bool {
        let state = self.state.lock();
        state.complete && so(state.known.facts.get(key).map(Arc::as_ref))
    }

    pub(crate) fn len(&self) -> usize {
        self.state.lock().known.facts.len()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn wake(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}

/// What to send a reader who has `sent` so that it knows `now`.
pub(crate) fn difference<K: Ord + Clone, V: PartialEq>(sent: &FactMap<K, V>, now: &FactMap<K, V>) -> Difference<K, V> {
    let same = |ours: &Arc<V>, theirs: &Arc<V>| Arc::ptr_eq(ours, theirs) || **ours == **theirs;
    Difference {
        upserted: now
            .iter()
            .filter(|(key, fact)| sent.get(key).is_none_or(|known| !same(known, fact)))
            .map(|(_, fact)| fact.clone())
            .collect(),
        removed: sent.keys().filter(|key| !now.contains_key(key)).cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Keys inside the facts, so that a reader can apply a difference.
    fn map(entries: BTreeMap<u8, u8>) -> FactMap<u8, (u8, u8)> {
        entries
            .into_iter()
            .map(|(key, value)| (key, Arc::new((key, value))))
            .collect()
    }

    proptest! {
        #[test]
        fn a_reader_that_applies_differences_knows_all(
            steps in proptest::collection::vec(proptest::collection::btree_map(0_u8..8, 0_u8..3, 0..8), 1..6)
        ) {
            let mut sent = FactMap::new();
            let mut reader = BTreeMap::new();
            for step in steps {
                let now = map(step);
                let difference = difference(&sent, &now);
                for fact in &difference.upserted {
                    prop_assert_ne!(reader.insert(fact.0, fact.1), Some(fact.1), "sent twice");
                }
                for key in &difference.removed {
                    prop_assert!(reader.remove(key).is_some());
                }
                prop_assert!(reader.iter().eq(now.values().map(|fact| (&fact.0, &fact.1))));
                sent = now;
            }
        }
    }

    #[test]
    fn nothing_is_told_before_the_first_list_is_through() {
        let store = FactStore::<u8, u8>::new();
        store.upsert(1, 1);
        assert_eq!(store.complete(), None);
        store.replace(FactMap::new());
        assert_eq!(store.complete(), Some(FactMap::new()));
    }

    #[test]
    fn an_unchanged_fact_wakes_nobody() {
        let store = FactStore::<u8, u8>::new();
        store.upsert(1, 1);
        let mut changed = store.subscribe();
        changed.mark_unchanged();
        store.upsert(1, 1);
        store.remove(&7);
        assert!(!changed.has_changed().unwrap());
        store.upsert(1, 2);
        assert!(changed.has_changed().unwrap());
    }
}
