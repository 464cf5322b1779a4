//! Waiting for one's turn at a member, while its breaker would let one through.
//!
//! Whoever waits for a place, or for a seat, behind requests that hang would be refused by then: it is told at once. Callers:
//! `dispatch` for legs, `own` for the router's questions.

use std::pin::pin;

use futures::FutureExt as _;

use crate::resource::breaker::{Breaker, Probe, Refused};
use crate::value::snapshot::Caller;

/// Awaits a turn. An error: the breaker is open, or has opened meanwhile. What need not wait is not judged: it asks next.
pub(super) async fn unless_refused<T>(
    breaker: &Breaker,
    (caller, probe): (Option<&Caller>, Probe),
    turn: impl Future<Output = T>,
) -> Result<T, Refused> {
    let mut turn = pin!(turn);
    if let Some(at_once) = turn.as_mut().now_or_never() {
        return Ok(at_once);
    }
    let mut turns = breaker.turns();
    loop {
        if let Some(refused) = breaker.would_refuse(caller, probe) {
            return Err(refused);
        }
        tokio::select! {
            biased;
            turn = turn.as_mut() => return Ok(turn),
            // The breaker has the sender: never an error.
            _ = turns.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::poll;
    use tokio::sync::{oneshot, watch};

    use super::*;
    use crate::resource::breaker::{Outcome, Settings};

    #[tokio::test]
    async fn who_waits_is_told_when_the_breaker_opens() {
        let settings = Settings {
            consecutive_failures: 1,
            ..Settings::default()
        };
        let breaker = Breaker::new(settings, watch::Sender::new(0));
        let (gives, turn) = oneshot::channel::<()>();
        let mut waits = Box::pin(unless_refused(&breaker, (None, Probe::Telling), turn));
        assert!(poll!(&mut waits).is_pending());
        let mut renewal = Box::pin(unless_refused(
            &breaker,
            (None, Probe::Lease),
            std::future::pending::<()>(),
        ));
        assert!(poll!(&mut renewal).is_pending());
        let failed = breaker.admit(None, Probe::Telling).unwrap();
        failed.record(Outcome::Failure);
        assert!(waits.await.is_err() && gives.is_closed());
        assert!(poll!(&mut renewal).is_ready(), "it was tried just now");
        let late = unless_refused(&breaker, (None, Probe::Telling), std::future::pending::<()>());
        assert!(late.await.is_err());
        let at_once = unless_refused(&breaker, (None, Probe::Telling), async { 7 });
        assert_eq!(at_once.await, Ok(7), "it asks the breaker itself");
    }
}
