//! Laws of what faults do to a stream.

use proptest::prelude::*;

use super::*;

fn fault(action: Action, after: After) -> StreamFault {
    StreamFault { action, after }
}

fn at(seconds: u64) -> Place {
    Place {
        now: Duration::from_secs(seconds),
        between: true,
        framed: true,
        bookmark: true,
    }
}

const ALL: fn(usize) -> bool = |_| true;
const NONE: fn(usize) -> bool = |_| false;

fn after() -> impl Strategy<Value = After> {
    (0_u64..6, 0_u64..60, 0_u64..6).prop_map(|(events, bytes, seconds)| After {
        events,
        bytes,
        time: Duration::from_secs(seconds),
    })
}

fn action() -> impl Strategy<Value = Action> {
    let time = (0_u64..5).prop_map(Duration::from_secs);
    prop_oneof![
        Just(Action::Drop),
        proptest::option::of(time.clone()).prop_map(Action::Stall),
        Just(Action::Expire),
        time.prop_map(Action::Delay),
        Just(Action::RepeatBookmark),
    ]
}

proptest! {
    /// Each happens once, not before what it waits for, and not while it is not in force.
    #[test]
    fn faults_happen_once_and_not_too_early(
        faults in proptest::collection::vec((action(), after(), any::<bool>()), 0..6),
        passes in proptest::collection::vec((1_usize..20, 0_u64..3), 0..30),
    ) {
        let mut stream = StreamFaults::new(faults.iter().map(|(action, after, _)| fault(*action, *after)));
        let in_force = |index: usize| faults[index].2;
        let (mut seconds, mut events, mut bytes) = (0, 0, 0);
        let mut begun = vec![0; faults.len()];
        for (piece, waits) in passes {
            seconds += waits;
            while let Step::Begin(index) = stream.step(at(seconds), in_force) {
                let (_, after, in_force) = faults[index];
                prop_assert!(in_force);
                prop_assert!(events >= after.events && bytes >= after.bytes && seconds >= after.time.as_secs());
                begun[index] += 1;
            }
            bytes += piece as u64;
            events += 1;
            stream.passed(piece, true);
        }
        prop_assert!(begun.iter().all(|times| *times <= 1), "{:?}", begun);
    }

    /// Whoever hands on no more than there is room for cuts at the very byte.
    #[test]
    fn a_cut_comes_at_its_byte(cut in 1_u64..200, pieces in proptest::collection::vec(1_u64..50, 1..40)) {
        let after = After { bytes: cut, ..After::default() };
        let mut stream = StreamFaults::new([fault(Action::Drop, after)]);
        let mut bytes = 0;
        for mut piece in pieces {
            while piece > 0 {
                let place = Place { between: false, ..at(0) };
                if stream.step(place, ALL) == Step::Begin(0) {
                    prop_assert_eq!(bytes, cut);
                    return Ok(());
                }
                let part = stream.room().unwrap_or(piece).min(piece);
                stream.passed(usize::try_from(part).unwrap(), false);
                bytes += part;
                piece -= part;
            }
        }
        prop_assert!(bytes <= cut);
    }
}

#[test]
fn a_stall_ends_in_time_or_when_its_order_is_taken_back() {
    let stall = |seconds| fault(Action::Stall(Some(Duration::from_secs(seconds))), After::default());
    let mut stream = StreamFaults::new([stall(5), stall(9)]);
    assert_eq!(stream.step(at(1), ALL), Step::Begin(0));
    assert_eq!(stream.step(at(1), ALL), Step::Begin(1));
    let until = |seconds| Step::Stalled(Some(Duration::from_secs(seconds)));
    assert_eq!(stream.step(at(1), ALL), until(10), "the longest counts");
    assert_eq!(stream.step(at(7), ALL), until(10));
    assert_eq!(stream.step(at(7), |index| index == 0), Step::Pass, "taken back");
    assert_eq!(stream.step(at(7), ALL), Step::Pass, "and over");
    let mut stream = StreamFaults::new([fault(Action::Stall(None), After::default()), stall(1)]);
    assert_eq!(stream.step(at(0), ALL), Step::Begin(0));
    assert_eq!(stream.step(at(0), ALL), Step::Begin(1));
    assert_eq!(stream.step(at(0), ALL), Step::Stalled(None));
    assert_eq!(stream.step(at(9_999), ALL), Step::Stalled(None), "to its end");
    assert_eq!(stream.step(at(9_999), NONE), Step::Pass);
}

#[test]
fn delays_add_up_while_they_are_in_force() {
    let delay = |seconds, events| {
        let after = After {
            events,
            ..After::default()
        };
        fault(Action::Delay(Duration::from_secs(seconds)), after)
    };
    let mut stream = StreamFaults::new([delay(2, 0), delay(3, 1)]);
    assert_eq!(stream.step(at(0), ALL), Step::Begin(0));
    assert_eq!(stream.step(at(0), ALL), Step::Pass);
    assert_eq!(stream.delay(ALL), Duration::from_secs(2));
    stream.passed(10, true);
    assert_eq!(stream.step(at(0), ALL), Step::Begin(1));
    assert_eq!(stream.delay(ALL), Duration::from_secs(5));
    assert_eq!(stream.delay(|index| index == 1), Duration::from_secs(3));
    assert!(stream.is_settled());
    assert_eq!(stream.step(at(0), NONE), Step::Pass);
    assert_eq!(stream.delay(NONE), Duration::ZERO);
}

#[test]
fn what_is_put_between_events_waits_for_their_end() {
    let within = Place {
        between: false,
        ..at(0)
    };
    for action in [
        Action::Expire,
        Action::RepeatBookmark,
        Action::Drop,
        Action::Stall(None),
    ] {
        let mut stream = StreamFaults::new([fault(action, After::default())]);
        assert_eq!(stream.step(within, ALL), Step::Pass, "{action:?}");
        assert_eq!(stream.step(at(0), ALL), Step::Begin(0), "{action:?}");
    }
    let mut stream = StreamFaults::new([fault(Action::RepeatBookmark, After::default())]);
    let none = Place {
        bookmark: false,
        ..at(0)
    };
    assert_eq!(stream.step(none, ALL), Step::Pass, "there is none yet");
    assert!(stream.wants_bookmark());
    let mut stream = StreamFaults::new([fault(Action::Expire, After::default())]);
    let unframed = Place { framed: false, ..at(0) };
    assert_eq!(stream.step(unframed, ALL), Step::Pass, "no event can be put there");
}

#[test]
fn who_waits_for_the_time_alone_is_looked_at_again() {
    let after = |seconds| After {
        time: Duration::from_secs(seconds),
        ..After::default()
    };
    let mut stream = StreamFaults::new([fault(Action::Drop, after(9)), fault(Action::Expire, after(4))]);
    let four = Duration::from_secs(4);
    assert_eq!(stream.next_look(Duration::ZERO), Some(four));
    assert_eq!(stream.step(at(4), NONE), Step::Pass, "armed until it is in force");
    assert_eq!(stream.next_look(four), Some(Duration::from_secs(9)));
    assert_eq!(stream.step(at(5), ALL), Step::Begin(1));
}
