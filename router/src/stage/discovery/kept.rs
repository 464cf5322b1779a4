//! A bounded number of bytes of things that can be made again, the longest unused goes first.
//!
//! A list and not a map: there are some dozen, and they are looked for once per discovery request. Callers: `cache` and
//! `united`.

use std::collections::VecDeque;
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub(super) struct Kept<K, V> {
    /// The last used at the end.
    entries: VecDeque<(K, Arc<V>, usize)>,
    bytes: usize,
    bound: usize,
}

impl<K: PartialEq, V> Kept<K, V> {
    /// `bound` in bytes. What is larger than that alone is not kept.
    pub(super) fn new(bound: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            bound,
        }
    }

    pub(super) fn get(&mut self, key: &K) -> Option<Arc<V>> {
        let place = self.entries.iter().position(|(known, ..)| known == key)?;
        let entry = self.entries.remove(place)?;
        let value = entry.1.clone();
        self.entries.push_back(entry);
        Some(value)
    }

    /// Without counting as a use.
    pub(super) fn has(&self, key: &K) -> bool {
        self.entries.iter().any(|(known, ..)| known == key)
    }

    pub(super) fn put(&mut self, key: K, value: Arc<V>, bytes: usize) {
        self.retain(|known| *known != key);
        self.entries.push_back((key, value, bytes));
        self.bytes += bytes;
        while self.bytes > self.bound {
            let Some((_, _, bytes)) = self.entries.pop_front() else {
                break;
            };
            self.bytes -= bytes;
        }
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.entries.retain(|(key, ..)| keep(key));
        self.bytes = self.entries.iter().map(|(_, _, bytes)| bytes).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unused_goes_first() {
        let mut kept = Kept::new(10);
        kept.put("a", Arc::new(1), 4);
        kept.put("b", Arc::new(2), 4);
        assert!(kept.get(&"a").is_some());
        kept.put("c", Arc::new(3), 4);
        assert_eq!(
            (kept.get(&"a").is_some(), kept.get(&"b").is_some(), kept.bytes),
            (true, false, 8)
        );
        kept.put("a", Arc::new(9), 6);
        assert_eq!((kept.get(&"a").map(|one| *one), kept.bytes), (Some(9), 10));
        kept.put("d", Arc::new(4), 11);
        assert_eq!((kept.entries.len(), kept.bytes), (0, 0), "too large alone");
    }
}
