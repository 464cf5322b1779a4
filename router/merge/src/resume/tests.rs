//! Right, or gone: what one router's memory of streams answers.

use super::*;
use crate::cursor::Slot;

const MINUTE: Duration = Duration::from_mins(1);
const ALONE: Duration = Duration::MAX;

fn universe() -> Universe {
    Universe::new("s", ["a".to_owned(), "b".to_owned()])
}

fn at(a: u64, b: u64) -> Cursor {
    let mut cursor = Cursor::new(&universe());
    cursor.set(0, Slot::At(a));
    cursor.set(1, Slot::At(b));
    cursor
}

fn of(user: &str) -> Whose {
    Whose {
        caller: Binding::new(["s", user]),
        request: Binding::new(["s", user, "/api/v1/pods"]),
    }
}

/// An open stream that sent these.
fn open(resume: &mut Resume, user: &str, base: &Cursor, events: &[(usize, u64)]) -> Stream {
    let stream = resume.begin(of(user));
    stream.sent.fill(base, events);
    stream
}

fn ended(resume: &mut Resume, now: Duration, user: &str, base: &Cursor, events: &[(usize, u64)]) {
    let stream = open(resume, user, base, events);
    resume.end(now, stream);
}

fn comes<'a>(user: &str, version: u64, universe: &'a Universe, alone: Duration) -> Comeback<'a> {
    Comeback {
        whose: of(user),
        version,
        universe,
        alone,
    }
}

/// What it says, and the stream that goes on from there left open.
fn find(resume: &mut Resume, now: Duration, user: &str, raw: u64) -> Option<Result<Cursor, ()>> {
    match resume.find(now, comes(user, raw, &universe(), ALONE)) {
        Resumed::At(cursor, _) => Some(Ok(cursor)),
        Resumed::Gone => Some(Err(())),
        Resumed::Unknown => None,
    }
}

const GONE: Option<Result<Cursor, ()>> = Some(Err(()));

#[test]
fn a_position_is_found_by_its_own_caller_until_its_time_is_over() {
    let mut resume = Resume::new(ResumeBounds::default());
    ended(&mut resume, MINUTE, "ann", &at(10, 20), &[(0, 11), (1, 25), (0, 12)]);
    ended(&mut resume, MINUTE, "bob", &at(10, 20), &[(0, 11)]);
    assert_eq!(find(&mut resume, MINUTE * 2, "ann", 13), None, "never sent");
    assert_eq!(find(&mut resume, MINUTE * 2, "bob", 25), None, "another caller");
    assert_eq!(find(&mut resume, MINUTE * 2, "ann", 25), Some(Ok(at(11, 25))));
    assert_eq!(find(&mut resume, MINUTE * 6, "bob", 11), GONE, "forgotten by now");
    assert_eq!(find(&mut resume, MINUTE * 6, "bob", 12), None);
    assert_eq!((resume.len(), resume.positions()), (0, 0));
}

#[test]
fn of_two_streams_that_sent_it_neither_is_guessed() {
    let mut resume = Resume::new(ResumeBounds::default());
    ended(&mut resume, MINUTE, "ann", &at(10, 20), &[(1, 25), (0, 11)]);
    ended(&mut resume, MINUTE, "ann", &at(10, 20), &[(0, 11)]);
    assert_eq!(find(&mut resume, MINUTE, "ann", 11), GONE);
    assert_eq!(
        find(&mut resume, MINUTE, "ann", 25),
        Some(Ok(at(10, 25))),
        "one of them alone"
    );
}

#[test]
fn two_streams_that_stand_alike_serve_one_client_each() {
    let mut resume = Resume::new(ResumeBounds::default());
    ended(&mut resume, MINUTE, "ann", &at(10, 20), &[(0, 11)]);
    ended(&mut resume, MINUTE, "ann", &at(10, 20), &[(0, 11)]);
    assert_eq!(find(&mut resume, MINUTE, "ann", 11), Some(Ok(at(11, 20))));
    assert_eq!(find(&mut resume, MINUTE, "ann", 11), Some(Ok(at(11, 20))));
}

#[test]
fn streams_that_are_open_count() {
    let mut resume = Resume::new(ResumeBounds::default());
    ended(&mut resume, MINUTE, "ann", &at(10, 20), &[(0, 11), (1, 25)]);
    let other = open(&mut resume, "ann", &at(10, 30), &[(0, 11)]);
    assert_eq!(find(&mut resume, MINUTE, "ann", 11), GONE, "whose client is it?");
    assert_eq!(find(&mut resume, MINUTE, "ann", 25), Some(Ok(at(11, 25))));
    // The client of the open one is gone, and nobody has noticed.
    other.sent.fill(&at(0, 0), &[(0, 12)]);
    assert_eq!(find(&mut resume, MINUTE, "ann", 12), Some(Ok(at(12, 30))));
    resume.end(MINUTE, other);
    assert_eq!(
        find(&mut resume, MINUTE, "ann", 12),
        Some(Ok(at(12, 30))),
        "its successor has read nothing"
    );
}

#[test]
fn a_stream_serves_one_resume_and_its_successor_the_next() {
    let mut resume = Resume::new(ResumeBounds::default());
    ended(&mut resume, MINUTE, "ann", &at(10, 20), &[(0, 11), (1, 25)]);
    let found = resume.find(MINUTE, comes("ann", 25, &universe(), ALONE));
    let Resumed::At(cursor, stream) = found else {
        panic!("{found:?}")
    };
    assert_eq!(cursor, at(11, 25));
    // Nothing came of it.
    resume.end(MINUTE, stream);
    assert_eq!(
        find(&mut resume, MINUTE, "ann", 25),
        Some(Ok(at(11, 25))),
        "it has read nothing"
    );
    assert_eq!(find(&mut resume, MINUTE, "ann", 11), GONE, "its client has gone on");
    // Five minutes later nobody comes back to what was gone on from.
    assert_eq!(find(&mut resume, MINUTE * 6, "ann", 11), None);
}

#[test]
fn who_waits_and_who_has_it_are_not_mixed() {
    let mut waits = Cursor::new(&universe());
    waits.set(0, Slot::At(10));
    waits.set(1, Slot::Sync);
    let mut resume = Resume::new(ResumeBounds::default());
    ended(&mut resume, MINUTE, "ann", &waits, &[(0, 11)]);
    ended(&mut resume, MINUTE, "ann", &at(10, 20), &[(0, 11)]);
    assert_eq!(find(&mut resume, MINUTE, "ann", 11), GONE);
}

#[test]
fn a_stream_that_cannot_say_what_it_meant_is_not_passed_over() {
    let mut resume = Resume::new(ResumeBounds::default());
    ended(&mut resume, MINUTE, "ann", &at(10, 20), &[(0, 11), (0, 30)]);
    // Both members' 30: which of them this client has read cannot be told.
    ended(&mut resume, MINUTE, "ann", &at(10, 20), &[(0, 30), (1, 30)]);
    assert_eq!(find(&mut resume, MINUTE, "ann", 30), GONE);
    assert_eq!(find(&mut resume, MINUTE, "ann", 11), Some(Ok(at(11, 20))));
}

#[test]
fn a_stream_that_ended_in_its_initial_events_is_remembered() {
    let mut resume = Resume::new(ResumeBounds::default());
    ended(&mut resume, MINUTE, "ann", &at(10, 20), &[(0, 11), (0, 30)]);
    ended(&mut resume, MINUTE, "ann", &at(10, 20), &[]);
    assert_eq!(resume.len(), 1, "nothing was sent there");
    let initial = open(&mut resume, "ann", &at(10, 20), &[(1, 11)]);
    initial.sent.poison();
    resume.end(MINUTE * 2, initial);
    assert_eq!(
        find(&mut resume, MINUTE * 2, "ann", 11),
        GONE,
        "it may have read it there"
    );
    assert_eq!(find(&mut resume, MINUTE * 2, "ann", 30), Some(Ok(at(30, 20))));
}

#[test]
fn another_share_of_the_members_is_another_position() {
    let mut resume = Resume::new(ResumeBounds::default());
    ended(&mut resume, MINUTE, "ann", &at(10, 20), &[(0, 11)]);
    let other = universe().covering([(0, 1)]);
    let found = resume.find(MINUTE, comes("ann", 11, &other, ALONE));
    assert!(matches!(found, Resumed::Gone), "{found:?}");
}

#[test]
fn where_another_router_can_have_sent_it_nothing_is_answered() {
    let mut resume = Resume::new(ResumeBounds::default());
    ended(&mut resume, MINUTE, "ann", &at(10, 20), &[(0, 11)]);
    for alone in [Duration::ZERO, MINUTE * 4] {
        let found = resume.find(MINUTE, comes("ann", 11, &universe(), alone));
        assert!(matches!(found, Resumed::Gone), "alone for {alone:?}: {found:?}");
    }
    let found = resume.find(MINUTE, comes("ann", 11, &universe(), MINUTE * 5));
    assert!(matches!(found, Resumed::At(..)), "{found:?}");
}

#[test]
fn streams_and_positions_are_bounded_and_what_was_forgotten_is_gone() {
    let bounds = ResumeBounds {
        streams: 3,
        positions: 5,
        callers: 1,
        ..ResumeBounds::default()
    };
    let mut resume = Resume::new(bounds);
    for round in 0..20 {
        ended(&mut resume, MINUTE, "ann", &at(1, 1), &[(0, 100 + round)]);
        assert!(resume.len() <= 3 && resume.positions() <= 5);
    }
    assert_eq!(find(&mut resume, MINUTE, "ann", 116), GONE);
    assert_eq!(find(&mut resume, MINUTE, "ann", 117), Some(Ok(at(117, 1))));
    // Forgotten now, and served before.
    ended(&mut resume, MINUTE, "bob", &at(1, 1), &[(0, 2), (0, 3), (0, 4), (0, 5)]);
    assert_eq!((resume.len(), resume.positions()), (2, 5));
    ended(
        &mut resume,
        MINUTE,
        "eve",
        &at(1, 1),
        &[(0, 2), (0, 3), (0, 4), (0, 5), (0, 6), (0, 7)],
    );
    assert_eq!(
        (resume.len(), resume.positions()),
        (2, 5),
        "what is too large for its caller's part is forgotten alone"
    );
    assert_eq!(find(&mut resume, MINUTE, "eve", 7), GONE);
    ended(&mut resume, MINUTE, "eve", &at(1, 9), &[(0, 7), (0, 8)]);
    assert_eq!(
        find(&mut resume, MINUTE, "eve", 7),
        GONE,
        "this one's, or the forgotten one's?"
    );
    assert_eq!(find(&mut resume, MINUTE, "eve", 8), Some(Ok(at(8, 9))));
}

#[test]
fn what_fell_out_of_a_streams_own_memory_is_gone() {
    let bounds = ResumeBounds {
        ring: 4,
        ..ResumeBounds::default()
    };
    let mut resume = Resume::new(bounds);
    let events: Vec<(usize, u64)> = (11..20).map(|version| (0, version)).collect();
    ended(&mut resume, MINUTE, "ann", &at(10, 20), &events);
    ended(&mut resume, MINUTE, "ann", &at(10, 30), &[(0, 11)]);
    assert_eq!(
        find(&mut resume, MINUTE, "ann", 11),
        GONE,
        "its own client's, or the other's?"
    );
    assert_eq!(find(&mut resume, MINUTE, "ann", 19), Some(Ok(at(19, 20))));
}

#[test]
fn what_was_forgotten_is_forgotten_in_the_end() {
    let mut resume = Resume::new(ResumeBounds::default());
    ended(&mut resume, MINUTE, "ann", &at(10, 20), &[(0, 11), (0, 12)]);
    let later = MINUTE * 70;
    ended(&mut resume, later, "ann", &at(10, 5), &[(1, 11)]);
    assert_eq!(
        find(&mut resume, later, "ann", 11),
        GONE,
        "a client may have slept for an hour"
    );
    let much_later = MINUTE * 190;
    ended(&mut resume, much_later, "ann", &at(10, 5), &[(1, 12)]);
    assert_eq!(find(&mut resume, much_later, "ann", 12), Some(Ok(at(10, 12))));
}

#[test]
fn no_caller_makes_anothers_streams_forgotten() {
    let mut resume = Resume::new(ResumeBounds {
        streams: 16,
        ..ResumeBounds::default()
    });
    ended(&mut resume, MINUTE, "ann", &at(10, 20), &[(0, 11)]);
    for round in 0..100 {
        let whose = Whose {
            request: Binding::new(["s", "eve", &round.to_string()]),
            ..of("eve")
        };
        let stream = resume.begin(whose);
        stream.sent.fill(&at(1, 1), &[(0, 5), (0, 1_000_000)]);
        resume.end(MINUTE, stream);
        assert!(resume.len() <= 3, "an eighth of sixteen, and ann's");
        assert_eq!(resume.callers.len(), 2);
    }
    assert_eq!(find(&mut resume, MINUTE, "ann", 11), Some(Ok(at(11, 20))));
}

#[test]
fn of_too_many_streams_none_is_told_from_the_others() {
    let mut resume = Resume::new(ResumeBounds::default());
    ended(&mut resume, MINUTE, "ann", &at(10, 20), &[(0, 11)]);
    let others: Vec<Stream> = (0..LOOKED_THROUGH).map(|_| resume.begin(of("ann"))).collect();
    assert_eq!(find(&mut resume, MINUTE, "ann", 11), GONE);
    for stream in others {
        resume.end(MINUTE, stream);
    }
    assert_eq!(find(&mut resume, MINUTE, "ann", 11), Some(Ok(at(11, 20))));
}
