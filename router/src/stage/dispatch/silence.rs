//! A member that says nothing: when that counts against it, whoever gives up first.
//!
//! Clients often have less patience than this router's deadline. A member that hangs would never fail if only those
//! requests counted that somebody waited out; nor may it be blamed while a client still keeps back its own body.

use std::time::Duration;

use tokio::time::Instant;

use super::outcome::{End, Kind, Silence, judge};
use crate::resource::breaker::{Change, Outcome, Pass, State, Took, Transition};
use crate::resource::upstream::Delivered;

/// A request that waits for its member's answer. Dropped, it tells the breaker what the silence means.
pub(super) struct Waiting<'a> {
    cluster: &'a str,
    /// `None`: told.
    pass: Option<Pass>,
    delivered: Delivered,
    since: Instant,
    kind: Kind,
    /// See [`Silence::patient`].
    patient: bool,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(cluster: &'a str, pass: Pass, delivered: Delivered, kind: Kind, patient: bool) -> Self {
        Self {
            cluster,
            pass: Some(pass),
            delivered,
            since: Instant::now(),
            kind,
            patient,
        }
    }

    /// The pass, to be told of an answer or an error, and how long that took.
    pub(super) fn over(mut self) -> Option<(Pass, Duration)> {
        let took = self.since.elapsed();
        self.pass.take().map(|pass| (pass, took))
    }

    /// It goes on waiting; what that changed. `late`: how late this router itself is.
    pub(super) fn goes_on(&mut self, late: Duration) -> Option<Transition> {
        let time = self.since.elapsed();
        self.pass.as_mut()?.waits(Took { time, late })
    }

    /// The pass, and what the member's silence up to a deadline says.
    pub(super) fn timed_out(mut self) -> Option<(Pass, Outcome)> {
        let outcome = self.says(true);
        self.pass.take().map(|pass| (pass, outcome))
    }

    fn says(&self, to_the_end: bool) -> Outcome {
        let silence = Silence {
            waited: self.since.elapsed(),
            to_the_end,
            whole: self.delivered.is_whole(),
            patient: self.patient,
        };
        judge(self.kind, &End::Silence(silence))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(pass) = self.pass.take() else { return };
        let Some(Change { transition, .. }) = pass.record(self.says(false)) else {
            return;
        };
        if transition.to == State::Open {
            let (cluster, last) = (self.cluster, "no answer before the client gave up");
            tracing::warn!(cluster, reason = %transition.why, last, "breaker opened");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::SILENCE;
    use super::*;
    use crate::resource::breaker::{Breaker, Probe, Settings};

    async fn after(wait: Duration, delivered: Delivered, patient: bool) -> State {
        let settings = Settings {
            consecutive_failures: 1,
            ..Settings::default()
        };
        let breaker = Breaker::new(settings, tokio::sync::watch::Sender::new(0));
        let waiting = Waiting::new(
            "east",
            breaker.admit(None, Probe::Telling).unwrap(),
            delivered,
            Kind::OWN,
            patient,
        );
        tokio::time::sleep(wait).await;
        drop(waiting);
        breaker.report().state
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_give_up_tell_of_a_member_that_hangs() {
        assert_eq!(after(SILENCE, Delivered::whole(), false).await, State::Open);
        assert_eq!(after(SILENCE / 2, Delivered::whole(), false).await, State::Closed);
        assert_eq!(
            after(SILENCE, Delivered::default(), false).await,
            State::Closed,
            "the client's own body"
        );
        assert_eq!(
            after(SILENCE, Delivered::whole(), true).await,
            State::Closed,
            "nothing to log"
        );
    }
}
