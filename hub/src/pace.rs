//! How often the words of one agent, or of one router, may cost a compile: a report that toggles must not keep the hub from
//! everything else.
//!
//! The first changes count at once, as what follows from them (a new namespace, a caller's Pod) is waited for; who goes on
//! changing gets one compile a second, which then has all that was said until it. Pure; time arrives as an argument.
//! Callers: `index` for agents, `acks` for routers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Compiles that one may cause at once: members join and shards move in bursts.
const BURST: u32 = 20;
/// How often one more.
const EVERY: Duration = Duration::from_secs(1);

/// What each has left, by its name. Who has all of it is not kept.
#[derive(Debug, Default)]
pub(crate) struct Paces(BTreeMap<String, Pace>);

#[derive(Debug)]
struct Pace {
    /// When all would be there again.
    full_at: Instant,
    /// A change of its waits for a compile.
    owed: bool,
}

impl Paces {
    /// Whether a change of this one's may cause a compile now; if not it is owed.
    pub(crate) fn take(&mut self, name: &str, now: Instant) -> bool {
        let pace = self.0.entry(name.to_owned()).or_insert(Pace {
            full_at: now,
            owed: false,
        });
        let full_at = pace.full_at.max(now) + EVERY;
        pace.owed = full_at > now + EVERY * BURST;
        if !pace.owed {
            pace.full_at = full_at;
        }
        !pace.owed
    }

    /// Whether changes that were owed may cause a compile now.
    pub(crate) fn settle(&mut self, now: Instant) -> bool {
        let mut due = false;
        for pace in self.0.values_mut().filter(|pace| pace.owed) {
            let full_at = pace.full_at.max(now) + EVERY;
            if full_at <= now + EVERY * BURST {
                (pace.full_at, pace.owed, due) = (full_at, false, true);
            }
        }
        self.0.retain(|_, pace| pace.owed || pace.full_at > now);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_changes_all_the_time_costs_one_compile_a_second_and_others_nothing() {
        let (mut paces, start) = (Paces::default(), Instant::now());
        let mut compiles = 0;
        for step in 0..3000_u64 {
            let now = start + Duration::from_millis(20) * u32::try_from(step).unwrap();
            compiles += u32::from(paces.take("west", now));
            compiles += u32::from(step % 50 == 49 && paces.settle(now));
            if step % 500 == 0 {
                assert!(paces.take("east", now), "who changes now and then is never late");
            }
        }
        assert!((60..=60 + BURST + 1).contains(&compiles), "{compiles}");
        let later = start + Duration::from_mins(3);
        assert!(
            paces.settle(later) && !paces.settle(later),
            "what was said last is compiled, once"
        );
        assert!(paces.take("west", later + EVERY * BURST));
    }
}
