//! Merged watches of namespaces that were nowhere, whose namespace some member has by now without being their shard's.
//!
//! No swap tells so: a router of one shard is not told what other shards get, and no router of what is in no shard. So the hub is
//! asked again from time to time, as it was before the watch began; such a watch ends with 410, and the next one is answered by
//! what is there then. Caller: `Replanner::run`.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::time::Duration;

use super::seen::Basis;
use super::{Open, Replanner, Word};
use crate::decision::plan::Unowned;
use crate::resource::whereabouts::Question;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Looks in a row by which a namespace is somewhere and not about to be the watch's own shard's, which is granted meanwhile: of one that
/// the shard's rules do not take, and of any other. A hub that cannot store a grant gives it late.
pub(super) const LOOKS: (u32, u32) = (2, 12);

impl Replanner {
    /// Looks until dropped.
    pub(super) async fn look_for_namespaces(&self) -> Infallible {
        let mut found = HashMap::new();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            found = self.look(&found).await;
        }
    }

    /// Namespaces that are somewhere, each with how many looks in a row have found it; ends watches of those that were found often
    /// enough.
    async fn look(&self, before: &HashMap<Question, u32>) -> HashMap<Question, u32> {
        let questions: HashSet<_> = self.open.iter().filter_map(|request| request.is_nowhere()).collect();
        let mut found = HashMap::new();
        for question in questions {
            match self.routing.whereabouts.find(question.clone()).await {
                Ok(said) if !said.there.is_empty() => {
                    let times = before.get(&question).copied().unwrap_or_default() + 1;
                    found.insert(question, times);
                }
                Ok(_) => {}
                // It would say nothing of the others, too.
                Err(_) => break,
            }
        }
        if found.values().all(|times| *times < LOOKS.0) {
            return found;
        }
        let snapshot = &self.routing.load().snapshot;
        let open: Vec<_> = self.open.iter().map(|request| request.clone()).collect();
        for request in open {
            request.end_if(|unowned| {
                let times = found.get(&question(unowned)).copied().unwrap_or_default();
                let enough = if unowned.may_be_taken { LOOKS.1 } else { LOOKS.0 };
                times >= enough && !unowned.is_coming(snapshot)
            });
        }
        found
    }
}

impl Open {
    /// What the hub was asked before it began, if its namespace was nowhere then and it has not been planned anew since.
    fn is_nowhere(&self) -> Option<Question> {
        nowhere(&self.seen.lock().rests_on).map(question)
    }

    fn end_if(&self, is_somewhere: impl FnOnce(&Unowned) -> bool) {
        {
            // Under the lock: a grant to its shard may have come meanwhile.
            let seen = self.seen.lock();
            let ends = nowhere(&seen.rests_on).is_some_and(is_somewhere);
            if !ends || self.verdict().is_some() {
                return;
            }
            self.say(Word::Changed);
        }
        self.waker.wake();
    }
}

fn nowhere(rests_on: &Basis) -> Option<&Unowned> {
    let Basis::Fan(plan) = rests_on else { return None };
    plan.unowned.as_deref().filter(|_| plan.is_nowhere())
}

fn question(unowned: &Unowned) -> Question {
    Question::new(&unowned.namespace, &unowned.clusters)
}
