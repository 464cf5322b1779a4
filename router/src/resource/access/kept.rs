//! Decisions kept for a while, in bounded number. How long one counts is the reader's to say: a hub that is away makes
//! older ones good enough. Caller: `access`.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::hub::Decision;

pub(super) struct Kept<K> {
    max: usize,
    // A mutex: held for a map operation, never across an await.
    inner: Mutex<Inner<K>>,
}

struct Inner<K> {
    decisions: HashMap<K, Made>,
    /// Counts decisions put.
    puts: u64,
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

impl<K: Hash + Eq + Clone> Kept<K> {
    pub(super) fn new(max: usize) -> Self {
        let inner = Inner {
            decisions: HashMap::new(),
            puts: 0,
        };
        Self {
            max,
            inner: Mutex::new(inner),
        }
    }

    /// The decision, if it is younger than what `life` says of it.
    pub(super) fn get(&self, question: &K, life: impl Fn(&Decision) -> Duration) -> Option<Decision> {
        let inner = self.inner.lock();
        let made = inner.decisions.get(question)?;
        (made.age() < life(&made.decision)).then(|| made.decision.clone())
    }

    /// Keeps a decision that was just made.
    pub(super) fn put(&self, question: K, decision: Decision) {
        self.put_aged(question, decision, Duration::ZERO);
    }

    /// Keeps a decision of some age, at the cost of the oldest one when full.
    pub(super) fn put_aged(&self, question: K, decision: Decision, age: Duration) {
        let mut inner = self.inner.lock();
        inner.puts += 1;
        let decisions = &mut inner.decisions;
        if decisions.len() >= self.max && !decisions.contains_key(&question) {
            let oldest = decisions.iter().max_by_key(|(_, made)| made.age());
            if let Some(oldest) = oldest.map(|(question, _)| question.clone()) {
                decisions.remove(&oldest);
            }
        }
        let made = Made {
            decision,
            at: Instant::now(),
            age,
        };
        decisions.insert(question, made);
    }

    /// Changes with every decision that is put.
    pub(super) fn puts(&self) -> u64 {
        self.inner.lock().puts
    }

    /// All of them with their ages.
    pub(super) fn all(&self) -> Vec<(K, Decision, Duration)> {
        let inner = self.inner.lock();
        let all = inner.decisions.iter();
        all.map(|(question, made)| (question.clone(), made.decision.clone(), made.age()))
            .collect()
    }
}
