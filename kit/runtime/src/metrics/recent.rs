//! Series that each request tells, found without a lock and without hashing their labels.
//!
//! A family looks its series up by a hash of all labels, under a lock: some hundred instructions for each of the ten that one
//! request tells. Nearly all requests of a program tell the same handful, so these are kept in the order in which they
//! came, and a walk finds them. Callers: metrics of requests.

use std::fmt;

use arc_swap::ArcSwap;

/// Kept; whatever comes later is looked up in its family each time.
const MOST: usize = 32;

/// The first different keys that came, with what was made of each.
pub struct Recent<K, V>(ArcSwap<Vec<(K, V)>>);

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self(ArcSwap::default())
    }
}

impl<K, V> fmt::Debug for Recent<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Recent").field(&self.0.load().len()).finish()
    }
}

impl<K: Clone, V: Clone> Recent<K, V> {
    /// Tells the one whose key `is` what is looked for; `make` makes it if there is none yet. What is made must be the
    /// same whenever it is made: two that come at once may both make one.
    pub fn tell(&self, is: impl Fn(&K) -> bool, make: impl FnOnce() -> (K, V), tell: impl FnOnce(&V)) {
        let kept = self.0.load();
        if let Some((_, value)) = kept.iter().find(|(key, _)| is(key)) {
            return tell(value);
        }
        let full = kept.len() >= MOST;
        drop(kept);
        let (key, value) = make();
        tell(&value);
        if !full {
            self.0.rcu(|kept| {
                let mut more = Vec::with_capacity(kept.len() + 1);
                more.extend_from_slice(kept);
                more.push((key.clone(), value.clone()));
                more
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;

    use super::*;

    #[test]
    fn each_key_tells_its_own_series_whether_it_is_kept_or_not() {
        let family = Family::<[(&'static str, u64); 1], Counter>::default();
        let recent = Recent::<u64, Counter>::default();
        let keys = 2 * MOST as u64;
        for key in (0..keys).chain(0..keys) {
            let make = || (key, family.get_or_create_owned(&[("key", key)]));
            recent.tell(|kept| *kept == key, make, |counter| _ = counter.inc());
        }
        for key in 0..keys {
            assert_eq!(family.get_or_create(&[("key", key)]).get(), 2, "{key}");
        }
        assert_eq!(recent.0.load().len(), MOST);
    }
}
