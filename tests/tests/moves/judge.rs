//! Who may have written what: the writes that a member has of one counter, in its own order, held against whose the namespace was
//! and against what the writers were answered. Pure; its own tests are below.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Between the last router's word that it lets nothing more through and a grant that no fence guards.
const DWELL: Duration = Duration::from_secs(5);

/// A shard, and the number of one of its writes.
pub(crate) type Author = (String, u64);

/// Somebody wanted the namespace to be this shard's.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) shard: String,
    /// The member's revision before.
    pub(crate) revision: u64,
}

/// The ledger says that the namespace is this shard's.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) shard: String,
    /// The member's revision when this was seen, which was after it was so.
    pub(crate) revision: u64,
    /// The member refuses what is of an earlier grant.
    pub(crate) fenced: bool,
    /// When it was seen.
    pub(crate) at: Instant,
}

/// One write, as the member has it.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) revision: u64,
    /// `None`: of a mark.
    pub(crate) count: Option<u64>,
    pub(crate) author: Author,
}

/// What the writer was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is written.
    Taken,
    /// It is not, and will not be.
    Refused,
    /// Nobody knows.
    Unknown,
}

/// One write, as its author knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    pub(crate) answer: Answer,
    /// Made without knowing the count, by a stale cache: it says nothing of the count.
    pub(crate) blind: bool,
    pub(crate) asked: Instant,
}

/// A time during which writes of one shard are in order, in revisions of the member.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span<'a> {
    shard: &'a str,
    /// Not before somebody asked for it.
    after: u64,
    /// When its own grant was seen.
    seen: u64,
    /// Not after the next owner's grant was seen.
    up_to: u64,
    /// What was asked by then may come later: no fence guards the next owner from it, and it left before its router let go.
    late_if_asked_by: Option<Instant>,
}

/// Something that is wrong, and by which revision of the member that is; zero if by none.
pub(crate) type Finding = (u64, String);

/// All that is wrong with one counter.
pub(crate) fn judge(
    asks: &[Ask],
    grants: &[Grant],
    writes: &[Write],
    attempts: &BTreeMap<Author, Attempt>,
) -> Vec<Finding> {
    let mut wrong = foreign(&spans(asks, grants), writes, attempts);
    wrong.extend(miscounted(writes, attempts));
    wrong.extend(lost(writes, attempts));
    wrong
}

/// Each grant follows one of the asks, in their order; which one is not known, so the earliest is taken: that forgives, and accuses
/// nobody. The first grant was before all of them.
fn spans<'a>(asks: &'a [Ask], grants: &'a [Grant]) -> Vec<Span<'a>> {
    let mut asks = asks.iter();
    let next = grants.iter().skip(1).map(Some).chain([None]);
    let spans = grants.iter().zip(next).enumerate().map(|(number, (grant, next))| {
        let ask = if number == 0 {
            None
        } else {
            asks.find(|ask| ask.shard == grant.shard)
        };
        Span {
            shard: &grant.shard,
            after: ask.map_or(0, |ask| ask.revision),
            seen: grant.revision,
            up_to: next.map_or(u64::MAX, |next| next.revision),
            late_if_asked_by: next
                .filter(|next| !next.fenced)
                .and_then(|next| next.at.checked_sub(DWELL)),
        }
    });
    spans.collect()
}

/// Writes of who was not the owner. Spans overlap by the time between a grant and its being seen: once the next owner has written,
/// the one before is over.
fn foreign(spans: &[Span<'_>], writes: &[Write], attempts: &BTreeMap<Author, Attempt>) -> Vec<Finding> {
    let mut wrong = Vec::new();
    let mut now = 0;
    for write in writes {
        let may = |span: &Span<'_>| {
            span.shard == write.author.0 && span.after < write.revision && write.revision <= span.up_to
        };
        if let Some(further) = spans.iter().skip(now).position(may) {
            now += further;
            continue;
        }
        let asked = attempts.get(&write.author).map(|attempt| attempt.asked);
        let may_be_late = |span: &Span<'_>| {
            let until = span
                .late_if_asked_by
                .filter(|_| span.shard == write.author.0 && span.after < write.revision);
            until.zip(asked).is_some_and(|(until, asked)| asked <= until)
        };
        if spans.iter().any(may_be_late) {
            continue;
        }
        let mut before = spans.iter().rev();
        let owner = before.find(|span| span.seen < write.revision);
        let owner = owner.map_or("nobody", |span| span.shard);
        let (author, revision) = (told(&write.author), write.revision);
        let what = format!("foreign: revision {revision} is of {author}, and {owner} was granted it last");
        wrong.push((revision, what));
    }
    wrong
}

/// Counts that do not grow by one with each write.
fn miscounted(writes: &[Write], attempts: &BTreeMap<Author, Attempt>) -> Vec<Finding> {
    let mut before = 0;
    let mut wrong = Vec::new();
    for write in writes {
        let Some(count) = write.count else { continue };
        let blind = attempts.get(&write.author).is_some_and(|attempt| attempt.blind);
        if !blind && count != before + 1 {
            let (author, revision) = (told(&write.author), write.revision);
            let what = format!("miscounted: revision {revision} of {author} makes {before} to {count}");
            wrong.push((revision, what));
        }
        before = count;
    }
    wrong
}

/// Writes that are there and should not, or the other way round.
fn lost(writes: &[Write], attempts: &BTreeMap<Author, Attempt>) -> Vec<Finding> {
    let mut found = BTreeMap::<&Author, Vec<u64>>::new();
    for write in writes {
        found.entry(&write.author).or_default().push(write.revision);
    }
    let unknown = found.iter().filter(|(author, _)| !attempts.contains_key(**author));
    let unknown = unknown.map(|(author, at)| (at[0], format!("made by nobody: {}", told(author))));
    let mut wrong: Vec<_> = unknown.collect();
    for (author, attempt) in attempts {
        let at = found.get(author).map_or(&[][..], Vec::as_slice);
        let fits = match attempt.answer {
            Answer::Taken => at.len() == 1,
            Answer::Refused => at.is_empty(),
            Answer::Unknown => at.len() <= 1,
        };
        if !fits {
            let what = format!("{:?}, and written at {at:?}: {}", attempt.answer, told(author));
            wrong.push((at.last().copied().unwrap_or_default(), what));
        }
    }
    wrong
}

pub(crate) fn told(author: &Author) -> String {
    format!("{}/{}", author.0, author.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `shard revision` of each.
    fn asks(all: &[(&str, u64)]) -> Vec<Ask> {
        let ask = |(shard, revision): &(&str, u64)| Ask {
            shard: (*shard).to_owned(),
            revision: *revision,
        };
        all.iter().map(ask).collect()
    }

    fn grants(all: &[(&str, u64)]) -> Vec<Grant> {
        let grant = |(shard, revision): &(&str, u64)| Grant {
            shard: (*shard).to_owned(),
            revision: *revision,
            fenced: true,
            at: Instant::now(),
        };
        all.iter().map(grant).collect()
    }

    /// Counted by one; all of them are taken.
    fn writes(all: &[(&str, u64)]) -> (Vec<Write>, BTreeMap<Author, Attempt>) {
        let write = |(number, (shard, revision)): (u64, &(&str, u64))| Write {
            revision: *revision,
            count: Some(number),
            author: ((*shard).to_owned(), number),
        };
        let writes: Vec<_> = (1..).zip(all).map(write).collect();
        let attempt = Attempt {
            answer: Answer::Taken,
            blind: false,
            asked: Instant::now(),
        };
        let attempts = writes.iter().map(|write| (write.author.clone(), attempt)).collect();
        (writes, attempts)
    }

    fn found(asked: &[(&str, u64)], granted: &[(&str, u64)], written: &[(&str, u64)]) -> usize {
        let (writes, attempts) = writes(written);
        judge(&asks(asked), &grants(granted), &writes, &attempts).len()
    }

    #[test]
    fn owners_write_one_after_the_other() {
        let (asked, granted) = (&[("b", 10), ("a", 30)], &[("a", 1), ("b", 20), ("a", 40)]);
        assert_eq!(
            found(asked, granted, &[("a", 5), ("a", 15), ("b", 18), ("b", 35), ("a", 39)]),
            0
        );
        // An ask that was taken back before it was granted.
        assert_eq!(found(&[("b", 10), ("a", 12)], &[("a", 1)], &[("a", 5), ("a", 15)]), 0);
    }

    #[test]
    fn a_late_write_is_foreign() {
        let (asked, granted) = (&[("b", 10), ("a", 30)], &[("a", 1), ("b", 20), ("a", 40)]);
        for (what, writes) in [
            ("after the grant", &[("a", 5), ("a", 21)][..]),
            ("after the next owner's write", &[("b", 18), ("a", 19)]),
            ("before anybody asked", &[("b", 9)]),
            ("of a shard that never had it", &[("c", 15)]),
            ("before it was asked back", &[("b", 22), ("a", 29), ("b", 30)]),
        ] {
            assert_eq!(found(asked, granted, writes), 1, "{what}");
        }
    }

    #[test]
    fn without_a_fence_only_what_left_before_may_be_late() {
        let (writes, mut attempts) = writes(&[("a", 5), ("b", 20), ("a", 21), ("b", 22)]);
        let asked = asks(&[("b", 10)]);
        let mut granted = grants(&[("a", 1), ("b", 19)]);
        let late = attempts.get(&writes[2].author).unwrap().asked;
        for (what, fenced, since, findings) in [
            ("it left long before", false, DWELL, 0),
            ("it was asked after its router let go", false, DWELL / 2, 1),
            ("the member refuses it", true, DWELL * 2, 1),
        ] {
            (granted[1].fenced, granted[1].at) = (fenced, late + since);
            assert_eq!(judge(&asked, &granted, &writes, &attempts).len(), findings, "{what}");
        }
        attempts.clear();
        granted[1].fenced = false;
        assert!(!judge(&asked, &granted, &writes, &attempts).is_empty(), "nobody's");
    }

    #[test]
    fn answers_and_counts_are_true() {
        let granted = grants(&[("a", 1)]);
        let judged = |change: fn(&mut Vec<Write>, &mut BTreeMap<Author, Attempt>)| {
            let (mut writes, mut attempts) = writes(&[("a", 5), ("a", 6)]);
            change(&mut writes, &mut attempts);
            judge(&[], &granted, &writes, &attempts).len()
        };
        let author = || ("a".to_owned(), 2);
        assert_eq!(judged(|_, _| ()), 0);
        assert_eq!(judged(|writes, _| writes[1].count = None), 0, "a mark counts nothing");
        assert_eq!(judged(|writes, _| drop(writes.pop())), 1, "a lost one");
        assert_eq!(judged(|writes, _| writes[1].count = Some(3)), 1, "a jump");
        assert_eq!(judged(|writes, _| writes[1].count = Some(1)), 1, "an overwritten one");
        let answer = |answer| Attempt {
            answer,
            blind: false,
            asked: Instant::now(),
        };
        let mut all = BTreeMap::from([(author(), answer(Answer::Refused))]);
        let (writes, _) = writes(&[("a", 5), ("a", 6)]);
        assert_eq!(lost(&writes[1..], &all).len(), 1, "refused, and yet written");
        all.insert(author(), answer(Answer::Unknown));
        assert_eq!(lost(&writes[1..], &all).len(), 0);
        assert_eq!(lost(&writes, &all).len(), 1, "written by nobody");
        assert_eq!(lost(&[], &all).len(), 0);
    }
}
