//! Deltas that come in several messages, until the last of each has come. Pure. Caller: the session of an agent.

use portolan_wire::v1;
use portolan_wire::v1::agent_message::Kind as Said;
use prost::Message;

use crate::index::{MAX_SUBJECT_BYTES, MAX_SUBJECT_FACTS, OutOfBounds};

/// What has come of each subject.
#[derive(Debug, Default)]
pub(super) struct Pages {
    namespaces: Pending<v1::NamespaceDelta>,
    coverage: Pending<v1::CoverageDelta>,
    callers: Pending<v1::CallerDelta>,
}

impl Pages {
    /// What the agent says, once all of it has come.
    pub(super) fn take(&mut self, said: Said) -> Result<Option<Said>, OutOfBounds> {
        Ok(match said {
            Said::Namespaces(page) => self.namespaces.take(page)?.map(Said::Namespaces),
            Said::Coverage(page) => self.coverage.take(page)?.map(Said::Coverage),
            Said::Callers(page) => self.callers.take(page)?.map(Said::Callers),
            other => Some(other),
        })
    }
}

/// The pages of one subject that have come while another is to follow.
#[derive(Debug, Default)]
struct Pending<D> {
    whole: Option<D>,
    bytes: usize,
}

impl<D: Delta> Pending<D> {
    fn take(&mut self, page: D) -> Result<Option<D>, OutOfBounds> {
        let more = page.more();
        self.bytes += page.encoded_len();
        let whole = match self.whole.take() {
            None => page,
            Some(mut whole) => {
                whole.append(page);
                whole
            }
        };
        if self.bytes > MAX_SUBJECT_BYTES || whole.facts() > MAX_SUBJECT_FACTS {
            return Err(OutOfBounds::TooMuch {
                subject: D::SUBJECT,
                max: MAX_SUBJECT_BYTES,
            });
        }
        if more {
            self.whole = Some(whole);
            return Ok(None);
        }
        self.bytes = 0;
        Ok(Some(whole))
    }
}

/// A report on one subject, which may come in pages.
trait Delta: Message + Default {
    const SUBJECT: &'static str;

    fn more(&self) -> bool;

    fn facts(&self) -> usize;

    /// Adds the next page.
    fn append(&mut self, next: Self);
}

impl Delta for v1::NamespaceDelta {
    const SUBJECT: &'static str = "namespaces";

    fn more(&self) -> bool {
        self.more
    }

    fn facts(&self) -> usize {
        self.upserted.len() + self.removed.len()
    }

    fn append(&mut self, mut next: Self) {
        self.upserted.append(&mut next.upserted);
        self.removed.append(&mut next.removed);
    }
}

impl Delta for v1::CoverageDelta {
    const SUBJECT: &'static str = "kinds";

    fn more(&self) -> bool {
        self.more
    }

    fn facts(&self) -> usize {
        self.upserted.len() + self.removed.len()
    }

    fn append(&mut self, mut next: Self) {
        self.upserted.append(&mut next.upserted);
        self.removed.append(&mut next.removed);
    }
}

impl Delta for v1::CallerDelta {
    const SUBJECT: &'static str = "callers";

    fn more(&self) -> bool {
        self.more
    }

    fn facts(&self) -> usize {
        self.upserted.len() + self.removed.len() + self.pending.len()
    }

    fn append(&mut self, mut next: Self) {
        self.upserted.append(&mut next.upserted);
        self.removed.append(&mut next.removed);
        self.pending.append(&mut next.pending);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(reset: bool, uids: std::ops::Range<u32>, more: bool) -> Said {
        let upserted = uids.map(|uid| v1::CallerFact {
            uid: uid.to_string(),
            ..v1::CallerFact::default()
        });
        Said::Callers(v1::CallerDelta {
            reset,
            upserted: upserted.collect(),
            more,
            ..v1::CallerDelta::default()
        })
    }

    #[test]
    fn a_delta_counts_when_its_last_page_has_come() {
        let mut pages = Pages::default();
        assert_eq!(pages.take(page(true, 0..2, true)), Ok(None));
        let beat = Said::Heartbeat(v1::Heartbeat::default());
        assert_eq!(pages.take(beat.clone()), Ok(Some(beat)), "others go on");
        assert_eq!(pages.take(page(false, 2..3, true)), Ok(None));
        let Ok(Some(Said::Callers(whole))) = pages.take(page(false, 3..4, false)) else {
            panic!("it has come")
        };
        assert!(whole.reset && whole.upserted.len() == 4);
        assert_eq!(
            pages.take(page(false, 9..10, false)),
            Ok(Some(page(false, 9..10, false)))
        );
    }

    #[test]
    fn pages_without_end_are_refused() {
        let mut pages = Pages::default();
        let taken = (0..10_000).try_for_each(|_| pages.take(page(false, 0..1_000, true)).map(drop));
        assert!(matches!(taken, Err(OutOfBounds::TooMuch { subject: "callers", .. })));
    }
}
