//! Whatever happens in whatever order: who is let through, and that what is open ends.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Admit(Probe),
    Record {
        which: usize,
        outcome: Outcome,
    },
    Readyz(Readyz),
    Unreachable,
    Recover {
        whatever: bool,
    },
    AnswersOthers,
    Paced {
        lags: bool,
    },
    /// A request lags and waits for its answer; for ever.
    Waits,
    Wait {
        millis: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let outcome = prop_oneof![
        Just(Outcome::Success),
        Just(Outcome::Failure),
        Just(Outcome::TimedOut),
        Just(Outcome::Unreachable),
        Just(Outcome::Slow),
        Just(Outcome::Neutral),
    ];
    let readyz = prop_oneof![
        Just(Readyz::Ready),
        Just(Readyz::Forbidden),
        Just(Readyz::NotReady),
        Just(Readyz::Unreachable),
    ];
    let probe = prop_oneof![
        Just(Probe::Telling),
        Just(Probe::Write),
        Just(Probe::Doubtful),
        Just(Probe::Lease),
        Just(Probe::OtherLease)
    ];
    let step = prop_oneof![
        8 => probe.prop_map(Step::Admit),
        8 => (any::<usize>(), outcome).prop_map(|(which, outcome)| Step::Record { which, outcome }),
        4 => readyz.prop_map(Step::Readyz),
        1 => Just(Step::Unreachable),
        1 => any::<bool>().prop_map(|whatever| Step::Recover { whatever }),
        1 => Just(Step::AnswersOthers),
        4 => any::<bool>().prop_map(|lags| Step::Paced { lags }),
        1 => Just(Step::Waits),
        2 => (0_u64..20_000).prop_map(|millis| Step::Wait { millis }),
    ];
    proptest::collection::vec(step, 0..300)
}

/// A breaker with who was let through, by the state that it is in since.
struct History {
    now: Instant,
    core: Core,
    /// With the number of states before, what it is as a probe, and since when.
    held: Vec<(Ticket, u32, Probe, Instant)>,
    states: u32,
    /// When it opened last.
    opened: Option<Instant>,
}

impl History {
    fn entered(&mut self, transition: Option<Transition>) {
        if let Some(transition) = transition {
            assert_ne!(transition.from, transition.to);
            assert_eq!(transition.to, self.core.state());
            self.states += 1;
            if transition.to == State::Open {
                self.opened = Some(self.now);
            }
        }
    }

    fn take(&mut self, step: &Step, jitter: f64) {
        match step {
            Step::Admit(probe) => {
                let before = self.core.state();
                let (admission, transition) = self.core.admit(self.now, *probe);
                self.entered(transition);
                match admission {
                    Admission::Pass(ticket) => self.held.push((ticket, self.states, *probe, self.now)),
                    Admission::Refuse { retry_in } => self.may_refuse(before, *probe, retry_in),
                }
            }
            Step::Record { which, outcome } if !self.held.is_empty() => {
                let (ticket, ..) = self.held.swap_remove(which % self.held.len());
                let before = self.core.state();
                let transition = self.core.record(ticket, *outcome, self.now, jitter);
                assert!(transition.is_none() || !matches!(outcome, Outcome::Neutral | Outcome::Slow));
                if before != State::Closed && self.core.state() == State::Closed {
                    assert_eq!(*outcome, Outcome::Success);
                }
                self.entered(transition);
            }
            Step::Record { .. } => {}
            Step::Readyz(found) => {
                let transition = self.core.readyz(*found);
                assert!(
                    transition
                        .as_ref()
                        .is_none_or(|transition| transition.to == State::HalfOpen)
                );
                self.entered(transition);
            }
            Step::Unreachable => {
                let passes = self.lets_renew();
                let transition = self.core.unreachable(self.now, jitter);
                assert_eq!(self.core.state(), State::Open);
                // From now on they have turns; who was let through before has none.
                self.states += u32::from(passes && transition.is_none());
                self.entered(transition);
            }
            Step::Recover { whatever } => {
                let transition = self.core.recover(self.now, *whatever);
                self.entered(transition);
            }
            Step::AnswersOthers => {
                let transition = self.core.answers_others(self.now);
                self.entered(transition);
            }
            Step::Paced { .. } | Step::Waits => {
                let transition = match step {
                    Step::Paced { lags } => self.core.paced(*lags, self.now, jitter, || true),
                    _ => self.core.waits(self.now, jitter, || true).1,
                };
                self.entered(opens(transition));
            }
            Step::Wait { millis } => self.now += Duration::from_millis(*millis),
        }
    }

    /// Nothing is refused that a closed breaker meets, nor for longer than it stays open at most.
    fn may_refuse(&self, before: State, probe: Probe, retry_in: Duration) {
        assert_ne!(before, State::Closed);
        assert!(retry_in <= MAX_OPEN_FOR);
        let opened = self.opened.unwrap();
        let lease = matches!(probe, Probe::Lease | Probe::OtherLease);
        assert!(before != State::Open || lease || self.now < opened + MAX_OPEN_FOR);
    }

    /// Open for what leaves renewals alone.
    fn lets_renew(&self) -> bool {
        self.core.state() == State::Open && !self.core.wants_readyz()
    }

    /// Requests under way that were let through in this state, not long ago.
    fn under_way(&self, probe: Probe) -> usize {
        let mine = |(_, state, its, since): &&(Ticket, u32, Probe, Instant)| {
            let new = self.now - *since < PROBE_ALONE;
            *state == self.states && *its == probe && new
        };
        self.held.iter().filter(mine).count()
    }
}

proptest! {
    /// Whatever happens: outside of closed never more than one new request of a kind is under way, none but leases while open
    /// (any number of renewals where it is open for time-outs, and of all but reads where it is for slowness);
    /// refusals never exceed the maximum; an open one always ends, and once nothing is in flight the next request passes.
    #[test]
    fn no_schedule_lets_more_than_one_probe_through(history in steps(), jitter in 0.0_f64..=1.0) {
        let now = Instant::now();
        let mut run = History { now, core: Core::new(settings()), held: Vec::new(), states: 0, opened: None };
        for step in history {
            run.take(&step, jitter);
            let most = match run.core.state() {
                State::Closed => usize::MAX,
                State::HalfOpen => 1,
                State::Open => 0,
            };
            prop_assert!(run.under_way(Probe::Telling) <= most, "{step:?}");
            if run.core.lets_pass(Probe::Write) {
                continue;
            }
            prop_assert!(run.under_way(Probe::Write) <= most, "{step:?}");
            prop_assert!(run.under_way(Probe::Doubtful) <= most, "{step:?}");
            let turns = run.core.state() != State::Closed;
            prop_assert!(!turns || run.under_way(Probe::OtherLease) <= 1, "{step:?}");
            prop_assert!(!turns || run.lets_renew() || run.under_way(Probe::Lease) <= 1, "{step:?}");
        }
        for (ticket, ..) in run.held {
            run.core.record(ticket, Outcome::Neutral, run.now, jitter);
        }
        let probe = run.core.admit(run.now + MAX_OPEN_FOR, Probe::Telling).0;
        let Admission::Pass(probe) = probe else { panic!("stuck") };
        run.core.record(probe, Outcome::Success, run.now + MAX_OPEN_FOR, jitter);
        prop_assert_eq!(run.core.state(), State::Closed);
    }

    /// Of one open time, whatever `/readyz` says, two requests at most meet a member that fails them.
    #[test]
    fn a_readyz_that_lies_costs_one_request_more(every in 100_u64..3_000) {
        let mut now = Instant::now();
        let mut core = opened(now);
        let (start, mut failed) = (now, 0);
        while now < start + MAX_OPEN_FOR {
            now += Duration::from_millis(every);
            core.readyz(Readyz::Ready);
            if let Admission::Pass(ticket) = core.admit(now, Probe::Telling).0 {
                core.record(ticket, Outcome::Failure, now, 1.0);
                failed += 1;
            }
        }
        // Open times of 5, 10, 20 and 40 s begin in a minute, each of which is followed by two at most.
        prop_assert!(failed <= 8, "{failed}");
    }

    /// Whatever happens to whom: a renewal that comes again and again, and may hang itself, is let through within the time of
    /// its two places, in any state. A peek never refuses it either where it may ask.
    #[test]
    fn no_lease_starves(history in steps(), jitter in 0.0_f64..=1.0) {
        let now = Instant::now();
        let mut run = History { now, core: Core::new(settings()), held: Vec::new(), states: 0, opened: None };
        let mut last = now;
        for step in history {
            // Renewals of others are this one's affair here: it takes their turn.
            let step = if let Step::Admit(Probe::Lease) = step { Step::Wait { millis: 1 } } else { step };
            let until = run.now + if let Step::Wait { millis } = step { Duration::from_millis(millis) } else { Duration::ZERO };
            if !matches!(step, Step::Wait { .. }) {
                run.take(&step, jitter);
            }
            while run.now < until {
                run.now = until.min(run.now + Duration::from_millis(500));
                let peeked = run.core.refuses(run.now, Probe::Lease);
                let (admission, transition) = run.core.admit(run.now, Probe::Lease);
                run.entered(transition);
                if matches!(admission, Admission::Pass(_)) {
                    prop_assert_eq!(peeked, None);
                    last = run.now;
                }
                // It asks twice a second: up to half of one before a state begins, and after its turn.
                let longest = LEASE_PROBE_EVERY.max(PROBE_ALONE) + Duration::from_secs(1);
                prop_assert!(run.now - last <= longest, "{:?} for {:?}", run.core.state(), run.now - last);
            }
        }
    }

    /// While it is open, no ordinary request passes before its time.
    #[test]
    fn open_means_no(waits in proptest::collection::vec(0_u64..400, 0..20)) {
        let start = Instant::now();
        let mut core = opened(start);
        let mut now = start;
        for wait in waits {
            now += Duration::from_millis(wait);
            if now < start + OPEN_FOR {
                prop_assert!(refused(&mut core, now, Probe::Telling));
            }
        }
    }
}
