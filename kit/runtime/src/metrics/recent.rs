//! Series that each request tells, found without a lock and without hashing their labels.
//!
//! A family looks its series up by a hash of all labels, under a lock: some hundred instructions for each of the ten that one
//! request tells. Nearly all requests of a program tell the same handful, so these are kept, and a walk finds them; what is
//! rare does not keep its place. Callers: metrics of requests.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;

/// Kept at the most.
const MOST: usize = 32;
/// Of what is not kept each so manieth takes the place of another, by turns: to keep it costs a copy of all.
const EACH: usize = 16;

/// Some keys that came, with what was made of each.
pub struct Recent<K, V> {
    kept: ArcSwap<Vec<(K, V)>>,
    /// What came while no place was free.
    missed: AtomicUsize,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self {
            kept: ArcSwap::default(),
            missed: AtomicUsize::default(),
        }
    }
}

impl<K, V> fmt::Debug for Recent<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Recent").field(&self.kept.load().len()).finish()
    }
}

impl<K: Clone, V: Clone> Recent<K, V> {
    /// Tells the one whose key `is` what is looked for; `make` makes it if there is none yet. What is made must be the
    /// same whenever it is made: two that come at once may both make one.
    pub fn tell(&self, is: impl Fn(&K) -> bool, make: impl FnOnce() -> (K, V), tell: impl FnOnce(&V)) {
        let kept = self.kept.load();
        if let Some((_, value)) = kept.iter().find(|(key, _)| is(key)) {
            return tell(value);
        }
        let is_full = kept.len() >= MOST;
        drop(kept);
        let (key, value) = make();
        tell(&value);
        let missed = if is_full {
            self.missed.fetch_add(1, Ordering::Relaxed)
        } else {
            0
        };
        if missed % EACH == 0 {
            self.kept.rcu(|kept| {
                let mut new = Vec::with_capacity(MOST.min(kept.len() + 1));
                new.extend_from_slice(kept);
                match new.iter().find(|(known, _)| is(known)) {
                    // Another was as fast.
                    Some(_) => {}
                    None if new.len() < MOST => new.push((key.clone(), value.clone())),
                    None => new[missed / EACH % MOST] = (key.clone(), value.clone()),
                }
                new
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
        assert_eq!(recent.kept.load().len(), MOST);
    }

    #[test]
    fn what_comes_often_takes_the_place_of_what_came_first() {
        let recent = Recent::<usize, ()>::default();
        for key in 0..MOST {
            recent.tell(|kept| *kept == key, || (key, ()), |()| ());
        }
        let mut made = 0;
        for _ in 0..2 * EACH {
            let make = || {
                made += 1;
                (MOST, ())
            };
            recent.tell(|kept| *kept == MOST, make, |()| ());
        }
        assert_eq!(made, 1);
    }
}
