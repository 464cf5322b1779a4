//! State by key that lives as long as somebody uses it: bulkheads of callers, shares of source addresses, running reviews.
//!
//! Whoever takes an [`Entry`] keeps it while it is used; the last one to drop it drops the key, so there are never more
//! keys than users and nothing has to be swept. Not a cache: what should outlive its users belongs elsewhere.

use std::hash::Hash;
use std::ops::Deref;
use std::sync::Arc;

use ahash::RandomState;
use dashmap::DashMap;

/// The values of all keys in use. Cheap to clone: clones are the same map.
#[derive(Debug)]
pub(crate) struct Keyed<K: Eq + Hash, V> {
    // Sharded locks: every request looks its key up and drops it again.
    entries: Arc<Entries<K, V>>,
}

type Entries<K, V> = DashMap<K, Arc<Shared<K, V>>, RandomState>;

#[derive(Debug)]
struct Shared<K, V> {
    key: K,
    value: V,
}

/// One user's hold on the value of a key.
#[derive(Debug)]
pub(crate) struct Entry<K: Eq + Hash + Clone, V> {
    /// `None` only while it is dropped.
    shared: Option<Arc<Shared<K, V>>>,
    all: Keyed<K, V>,
}

impl<K: Eq + Hash, V> Clone for Keyed<K, V> {
    fn clone(&self) -> Self {
        Self {
            entries: self.entries.clone(),
        }
    }
}

impl<K: Eq + Hash, V> Default for Keyed<K, V> {
    fn default() -> Self {
        Self {
            entries: Arc::default(),
        }
    }
}

impl<K: Eq + Hash + Clone, V> Keyed<K, V> {
    /// The key's value, made if nobody uses the key.
    pub(crate) fn entry(&self, key: K, make: impl FnOnce() -> V) -> Entry<K, V> {
        self.find(&key).unwrap_or_else(|| {
            let entry = self.entries.entry(key.clone());
            let make = || Arc::new(Shared { key, value: make() });
            self.hold(entry.or_insert_with(make).clone())
        })
    }

    /// The key's value, if somebody uses the key.
    pub(crate) fn find(&self, key: &K) -> Option<Entry<K, V>> {
        let found = self.entries.get(key).map(|shared| shared.clone());
        found.map(|shared| self.hold(shared))
    }

    fn hold(&self, shared: Arc<Shared<K, V>>) -> Entry<K, V> {
        Entry {
            shared: Some(shared),
            all: self.clone(),
        }
    }

    /// Keys in use.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl<K: Eq + Hash + Clone, V> Entry<K, V> {
    pub(crate) fn key(&self) -> &K {
        &self.shared().key
    }

    fn shared(&self) -> &Shared<K, V> {
        self.shared.as_ref().expect("taken only when it is dropped")
    }
}

impl<K: Eq + Hash + Clone, V> Deref for Entry<K, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.shared().value
    }
}

impl<K: Eq + Hash + Clone, V> Drop for Entry<K, V> {
    fn drop(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        let key = shared.key.clone();
        // Given back before it is counted: of two users who leave at once the later one sees that nobody is left.
        drop(shared);
        self.all.entries.remove_if(&key, |_, kept| Arc::strong_count(kept) == 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_a_key_share_its_value_and_the_last_one_drops_it() {
        let all = Keyed::<&str, usize>::default();
        let first = all.entry("a", || 1);
        let second = all.entry("a", || 2);
        assert_eq!((*first, *second, all.len()), (1, 1, 1));
        assert!(all.find(&"a").is_some_and(|found| *found == 1) && all.find(&"b").is_none());
        drop(first);
        assert_eq!(*all.entry("a", || 3), 1, "still in use");
        drop(second);
        assert_eq!(all.len(), 0);
        assert_eq!(*all.entry("a", || 4), 4);
    }

    #[test]
    fn no_key_stays_behind_users_who_leave_at_once() {
        let all = Keyed::<usize, ()>::default();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for round in 0..2_000 {
                        drop(all.entry(round % 3, || ()));
                    }
                });
            }
        });
        assert_eq!(all.len(), 0);
    }
}
