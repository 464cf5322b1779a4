//! Each rule by name, and whatever happens in whatever order.

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const EJECTED_FOR: Duration = PACE.ejected_for;
const EJECTED_AT_MOST: Duration = PACE.ejected_at_most;

fn first(failover: &mut Failover, now: Instant, draw: f64) -> usize {
    failover.choose(now, draw).first
}

#[test]
fn what_ejects_is_one_table() {
    for (why, times) in [
        (Failure::Silent, 1),
        (Failure::Untrusted, 1),
        (Failure::Refused, 2),
        (Failure::Broken, 2),
        (Failure::Late, 3),
        (Failure::Gateway, 5),
    ] {
        let (mut failover, now) = (Failover::new(2, PACE), Instant::now());
        for _ in 1..times {
            assert_eq!(failover.failed(now, 0, why), None, "{why:?}");
        }
        assert_eq!(first(&mut failover, now, 0.0), 0);
        assert_eq!(failover.failed(now, 0, why), Some(EJECTED_FOR), "{why:?}");
        assert_eq!(failover.order(now, 0.0), [1, 0], "last, and tried all the same");
        assert_eq!(failover.report(now)[0].ejections, BTreeMap::from([(why.word(), 1)]));
    }
}

#[test]
fn an_answer_ends_a_row_of_failures() {
    let (mut failover, now) = (Failover::new(2, PACE), Instant::now());
    for _ in 0..20 {
        assert_eq!(failover.failed(now, 0, Failure::Broken), None);
        failover.answered(0);
    }
}

#[test]
fn the_last_one_stays_and_goes_once_another_is_back() {
    let (mut failover, now) = (Failover::new(3, PACE), Instant::now());
    assert!(failover.failed(now, 0, Failure::Silent).is_some());
    assert!(failover.failed(now, 1, Failure::Silent).is_some());
    for _ in 0..10 {
        assert_eq!(failover.failed(now, 2, Failure::Silent), None);
    }
    assert_eq!(failover.order(now, 0.0), [2, 0, 1]);
    assert!(
        failover.connected(now + SECOND, 1),
        "nothing else could be connected to"
    );
    assert!(failover.failed(now + SECOND, 2, Failure::Refused).is_some());
    assert_eq!(first(&mut failover, now + SECOND, 0.99), 1, "with nobody to share with");
}

#[test]
fn one_probe_decides_and_each_ejection_takes_longer() {
    let (mut failover, mut now) = (Failover::new(2, PACE), Instant::now());
    let mut times = vec![failover.failed(now, 0, Failure::Silent).unwrap()];
    for _ in 0..4 {
        assert!(!failover.probe(now, 0), "before its time");
        now += *times.last().unwrap();
        assert!(failover.probe(now, 0) && !failover.probe(now, 0));
        times.push(failover.probed(now, 0, false).unwrap());
    }
    assert_eq!(times, [10, 20, 40, 60, 60].map(Duration::from_secs));
    now += EJECTED_AT_MOST;
    assert!(failover.probe(now, 0));
    assert_eq!(failover.probed(now, 0, true), None);
    let soon = failover.failed(now + SECOND, 0, Failure::Silent);
    assert_eq!(soon, Some(EJECTED_AT_MOST), "soon after");
    now += EJECTED_AT_MOST + SECOND;
    assert!(failover.probe(now, 0));
    failover.probed(now, 0, true);
    let late = failover.failed(now + FORGOTTEN_AFTER, 0, Failure::Silent);
    assert_eq!(late, Some(EJECTED_FOR), "forgotten");
}

#[test]
fn a_choice_ranks_by_preference() {
    let (mut failover, now) = (Failover::new(3, PACE), Instant::now());
    failover.failed(now, 0, Failure::Silent);
    let choice = failover.choose(now, 0.0);
    assert_eq!([0, 1, 2].map(|at| choice.rank(at)), [None, Some(0), Some(3)]);
}

#[derive(Debug, Clone)]
enum Step {
    Fail(usize, Failure),
    Answer(usize),
    /// A dial: which endpoints can be connected to, bit by endpoint.
    Dial {
        up: u8,
        draw: f64,
    },
    Probe {
        at: usize,
        up: bool,
    },
    Wait {
        millis: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let failure = prop_oneof![
        Just(Failure::Refused),
        Just(Failure::Silent),
        Just(Failure::Untrusted),
        Just(Failure::Broken),
        Just(Failure::Late),
        Just(Failure::Gateway),
    ];
    let step = prop_oneof![
        4 => (0_usize..5, failure).prop_map(|(at, why)| Step::Fail(at, why)),
        2 => (0_usize..5).prop_map(Step::Answer),
        4 => (any::<u8>(), 0.0..1.0).prop_map(|(up, draw)| Step::Dial { up, draw }),
        3 => (0_usize..5, any::<bool>()).prop_map(|(at, up)| Step::Probe { at, up }),
        4 => (0_u64..70_000).prop_map(|millis| Step::Wait { millis }),
    ];
    proptest::collection::vec(step, 0..200)
}

/// Endpoints with what is known of them from outside.
struct History {
    now: Instant,
    failover: Failover,
    probing: Vec<bool>,
}

impl History {
    fn is_ejected(&self, at: usize) -> bool {
        self.failover.ejected_until(at).is_some()
    }

    fn ejected(time: Option<Duration>) {
        if let Some(time) = time {
            assert!((EJECTED_FOR..=EJECTED_AT_MOST).contains(&time), "{time:?}");
        }
    }

    fn dial(&mut self, up: u8, draw: f64) {
        let order = self.failover.order(self.now, draw);
        assert_eq!(order.len(), self.probing.len(), "each once: {order:?}");
        assert!(
            order.is_sorted_by_key(|at| self.is_ejected(*at)),
            "those last: {order:?}"
        );
        for at in order {
            if up & (1 << at) != 0 {
                let ejected = self.is_ejected(at);
                assert_eq!(self.failover.connected(self.now, at), ejected);
                return;
            }
            Self::ejected(self.failover.failed(self.now, at, Failure::Refused));
        }
    }

    fn take(&mut self, step: &Step) {
        let count = self.probing.len();
        match *step {
            Step::Fail(at, why) => Self::ejected(self.failover.failed(self.now, at % count, why)),
            Step::Answer(at) => self.failover.answered(at % count),
            Step::Dial { up, draw } => self.dial(up, draw),
            Step::Probe { at, up } => {
                let at = at % count;
                let until = self.failover.ejected_until(at);
                if self.failover.probe(self.now, at) {
                    assert!(until.is_some_and(|until| until <= self.now), "before its time");
                    assert!(!self.failover.probe(self.now, at), "a second probe");
                    Self::ejected(self.failover.probed(self.now, at, up));
                    assert_eq!(self.is_ejected(at), !up);
                }
            }
            Step::Wait { millis } => self.now += Duration::from_millis(millis),
        }
        assert!((0..count).any(|at| !self.is_ejected(at)), "all are ejected");
        let choice = self.failover.choose(self.now, 0.5);
        assert!(!self.is_ejected(choice.first) && choice.rank(choice.first) == Some(0));
        for at in 0..count {
            assert_eq!(choice.rank(at).is_none(), self.is_ejected(at));
            let left = self.failover.ejected_until(at);
            let left = left.map(|until| until.saturating_duration_since(self.now));
            assert!(left.is_none_or(|left| left <= EJECTED_AT_MOST), "{left:?}");
        }
    }

    /// Of a thousand streams, how many are for the endpoint or one before it.
    fn share_up_to(&mut self, at: usize, now: Instant) -> usize {
        let draws = (0..1000).map(|draw| f64::from(draw) / 1000.0);
        draws.filter(|draw| first(&mut self.failover, now, *draw) <= at).count()
    }
}

proptest! {
    /// Never all ejected, no ejected one dialled before another, ejections bounded, one probe and in its time.
    #[test]
    fn whatever_happens(endpoints in 1_usize..6, steps in steps()) {
        let mut history = History { now: Instant::now(), failover: Failover::new(endpoints, PACE), probing: vec![false; endpoints] };
        for step in &steps {
            history.take(step);
        }
    }

    /// Whatever went before: as long as nothing fails any more, more and more goes to those before, up to all.
    #[test]
    fn shares_only_grow(endpoints in 2_usize..5, steps in steps()) {
        let mut history = History { now: Instant::now(), failover: Failover::new(endpoints, PACE), probing: vec![false; endpoints] };
        for step in &steps {
            history.take(step);
        }
        let began = history.now;
        let best = (0..endpoints).find(|at| !history.is_ejected(*at)).unwrap();
        for at in 0..endpoints {
            let mut before = 0;
            for seconds in 0..=10 {
                let now = began + PACE.returns_within * seconds / 10;
                let share = history.share_up_to(at, now);
                prop_assert!(share >= before, "endpoint {at}: {before} then {share} of a thousand after {seconds}");
                before = share;
            }
            prop_assert!(at < best || before == 1000, "endpoint {at} has {before} in the end");
        }
    }
}
