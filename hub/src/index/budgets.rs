//! How much work each author has asked the hub for of late, and whose turn it is.
//!
//! An author is a namespace of the hub. What it asks for is bytes: of specs that are read, and of the ledger that is written for it.
//! Nobody waits who asks for little; who asks for more than a burst waits until others would not notice. What the hub does in
//! the long run is bounded for all together, and whoever owes has an equal part of it. Pure; time arrives as an argument.
//! Caller: `index`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use portolan_crds::AUTHOR_BYTES_MAX;

/// What is done for all authors together in the long run: etcd keeps old versions for minutes.
const BYTES_PER_SECOND: u64 = 256 * 1024;
/// Who owes more waits. All that one author may have at once is within it, read and stored.
const BURST: u64 = 2 * AUTHOR_BYTES_MAX as u64;
/// What is written of an author's namespaces this long after its last edit is taken to follow from that; later it is their
/// member's doing.
const FOLLOWS_WITHIN: Duration = Duration::from_mins(1);

/// What each author owes. Who owes nothing and has edited nothing of late is not kept.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    owed: BTreeMap<String, Owed>,
    paid_at: Option<Instant>,
}

#[derive(Debug)]
struct Owed {
    bytes: u64,
    edited: Instant,
}

impl Budgets {
    /// Whether an edit of so many bytes is looked at now. If not, it is to be asked for again later.
    pub(super) fn take(&mut self, author: &str, bytes: usize, now: Instant) -> bool {
        self.pay(now);
        let new = || Owed { bytes: 0, edited: now };
        let owed = self.owed.entry(author.to_owned()).or_insert_with(new);
        if owed.bytes >= BURST {
            return false;
        }
        owed.bytes += bytes as u64;
        owed.edited = now;
        true
    }

    /// Whether what was written follows from edits of the author, who then owes it.
    pub(super) fn charge(&mut self, author: &str, bytes: usize, now: Instant) -> bool {
        self.pay(now);
        let Some(owed) = self.owed.get_mut(author) else {
            return false;
        };
        let follows = now.saturating_duration_since(owed.edited) < FOLLOWS_WITHIN;
        if follows {
            owed.bytes += bytes as u64;
        }
        follows
    }

    /// Lets all authors pay for the time that has passed: each an equal part, and what one does not need is the others'.
    fn pay(&mut self, now: Instant) {
        let passed = self
            .paid_at
            .map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        let mut pool = u128::from(BYTES_PER_SECOND) * passed.as_micros() / 1_000_000;
        if pool == 0 && self.paid_at.is_some() {
            // Parts of a byte are not lost.
            return;
        }
        self.paid_at = Some(now);
        let mut owing: Vec<_> = self.owed.values_mut().filter(|owed| owed.bytes > 0).collect();
        owing.sort_by_key(|owed| owed.bytes);
        let count = owing.len();
        for (index, owed) in owing.into_iter().enumerate() {
            let part = pool / (count - index) as u128;
            let paid = owed.bytes.min(u64::try_from(part).unwrap_or(u64::MAX));
            owed.bytes -= paid;
            pool -= u128::from(paid);
        }
        let is_of_late = |owed: &Owed| now.saturating_duration_since(owed.edited) < FOLLOWS_WITHIN;
        self.owed.retain(|_, owed| owed.bytes > 0 || is_of_late(owed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: usize = 700 * 1024;

    /// Edits of `SPEC` bytes that each author gets through, if it asks for one every tenth of a second.
    fn edits(authors: usize, seconds: u32) -> Vec<usize> {
        let (mut budgets, start) = (Budgets::default(), Instant::now());
        let mut done = vec![0; authors];
        for step in 0..seconds * 10 {
            let now = start + Duration::from_millis(100) * step;
            for (author, done) in done.iter_mut().enumerate() {
                *done += usize::from(budgets.take(&format!("author-{author}"), SPEC, now));
            }
            assert!(budgets.take("small", 2 * 1024, now), "who asks for little never waits");
        }
        done
    }

    #[test]
    fn who_asks_for_much_waits_and_all_who_do_get_the_same() {
        let burst = usize::try_from(BURST).unwrap() / SPEC;
        let alone = edits(1, 600)[0];
        let rest = 600 * usize::try_from(BYTES_PER_SECOND).unwrap() / SPEC;
        assert!((burst + rest - 20..=burst + rest + 1).contains(&alone), "{alone}");
        let shared = edits(4, 600);
        let each = burst + rest / 4;
        assert!(
            shared.iter().all(|done| (each - 6..=each + 1).contains(done)),
            "{shared:?}, and not {each} each"
        );
    }

    #[test]
    fn what_is_written_long_after_an_edit_is_not_its_authors() {
        let (mut budgets, start) = (Budgets::default(), Instant::now());
        assert!(!budgets.charge("a", 1, start), "nobody has edited anything");
        assert!(budgets.take("a", 1000, start));
        assert!(budgets.charge("a", 64 * 1024 * 1024, start + Duration::from_secs(30)));
        let later = start + Duration::from_mins(2);
        assert!(!budgets.take("a", 1, later), "what followed from the edit is owed");
        assert!(!budgets.charge("a", 1, later));
        assert!(budgets.take("a", 1, start + Duration::from_mins(10)));
    }
}
