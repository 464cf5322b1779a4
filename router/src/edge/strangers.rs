//! Access lines of requests whose sender is not known: so many a second. Whoever reaches the port could fill a disk with them.
//!
//! What is left out is counted, and all requests are in the other metrics. Caller: `completion`.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;

/// Lines a second: enough to see who knocks.
const LINES: u64 = 50;
/// The count stands in the lower bits, the second above.
const COUNT_BITS: u32 = 24;

/// One per process.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    /// One word, so that a new second and its first line are one step.
    second: AtomicU64,
    pub(super) left_out: Counter,
}

impl Strangers {
    /// Whether a line may be written in this second of the process.
    pub(super) fn may_write(&self, second: u64) -> bool {
        let taken = self.second.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            let count = word & ((1 << COUNT_BITS) - 1);
            if word >> COUNT_BITS != second {
                return Some(second << COUNT_BITS | 1);
            }
            (count < LINES).then_some(word + 1)
        });
        if taken.is_err() {
            self.left_out.inc();
        }
        taken.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_has_its_lines() {
        let strangers = Strangers::default();
        for second in [7, 8] {
            let written = (0..100).filter(|_| strangers.may_write(second)).count();
            assert_eq!(written, 50);
        }
        assert_eq!(strangers.left_out.get(), 100);
    }
}
