//! Decisions kept for a while, in bounded number. How long one counts is the reader's to say: a hub that is away makes
//! older ones good enough. Caller: `access`.

use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use tokio::time::Instant;

use super::hub::Decision;

/// The decisions about one kind of question.
pub(super) struct Kept<K> {
    decisions: Cache<K, Made>,
    /// Counts decisions put.
    puts: AtomicU64,
}

#[derive(Clone)]
struct Made {
    decision: Decision,
    at: Instant,
    /// How old it was then: decisions of an earlier process.
    age: Duration,
}

impl Made {
    fn age(&self) -> Duration {
        self.age + self.at.elapsed()
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Kept<K> {
    /// At most `max`, the least recently used goes first; none is kept longer than `longest`.
    pub(super) fn new(max: u64, longest: Duration) -> Self {
        let decisions = Cache::builder().max_capacity(max).time_to_live(longest);
        Self {
            decisions: decisions.eviction_policy(EvictionPolicy::lru()).build(),
            puts: AtomicU64::new(0),
        }
    }

    /// The decision, if it is younger than what `life` says of it.
    pub(super) fn get(&self, question: &K, life: impl Fn(&Decision) -> Duration) -> Option<Decision> {
        let made = self.decisions.get(question)?;
        (made.age() < life(&made.decision)).then_some(made.decision)
    }

    /// Keeps a decision that is of this age already.
    pub(super) fn put(&self, question: K, decision: Decision, age: Duration) {
        let at = Instant::now();
        self.decisions.insert(question, Made { decision, at, age });
        self.puts.fetch_add(1, Ordering::Relaxed);
    }

    /// Changes with every decision that is put.
    pub(super) fn puts(&self) -> u64 {
        self.puts.load(Ordering::Relaxed)
    }

    /// All of them with their ages.
    pub(super) fn all(&self) -> impl Iterator<Item = (K, Decision, Duration)> {
        let all = self.decisions.iter();
        all.map(|(question, made)| (K::clone(&question), made.decision.clone(), made.age()))
    }

    /// Drops at once what the cache would drop in a moment.
    #[cfg(test)]
    pub(super) fn settle(&self) {
        self.decisions.run_pending_tasks();
    }
}
