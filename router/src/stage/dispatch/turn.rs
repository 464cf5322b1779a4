//! Waiting for one's turn at a member, while its breaker would let one through.
//!
//! Whoever waits for a place, or for a seat, behind requests that hang would be refused by then: it is told at once. Callers:
//! `dispatch` for legs, `own` for the router's questions.

use std::pin::pin;

use futures::FutureExt as _;
use tokio::time::Instant;

use super::metrics::DispatchMetrics;
use super::{Leg, full, send};
use crate::resource::breaker::{Breaker, Probe, Refused};
use crate::resource::queues::{Class, Flow, QueueKind, QueueMetrics, Seat, Vain};
use crate::resource::upstream::{First, Place, Upstream};
use crate::value::classify::{Query, Verb};
use crate::value::fault::Fault;
use crate::value::snapshot::Caller;
use crate::value::traffic::TrafficClass;

/// What one leg waits for before anything of it is sent.
pub(super) struct Turns<'a> {
    pub(super) leg: &'a Leg,
    pub(super) upstream: &'a Upstream,
    /// For what has no deadline: a watch waits no longer for all together than its head may take.
    pub(super) until: Instant,
    pub(super) legs: &'a DispatchMetrics,
    pub(super) waits: &'a QueueMetrics,
}

impl Turns<'_> {
    /// Its tenant's place at the member, for what takes one there for as long as it is not read.
    pub(super) async fn place(&self) -> Result<Option<Box<Place>>, Fault> {
        let (leg, places) = (self.leg, &self.upstream.places);
        let kind = QueueKind::Places(&self.upstream.cluster);
        let place = match (leg.forward.traffic.class, leg.asked.verb) {
            (TrafficClass::List, _) => {
                let list = places.list(&leg.caller, leg.running);
                self.turn(kind, leg.class(), list).await?
            }
            (TrafficClass::Watch | TrafficClass::Upgrade, Verb::Watch) => {
                let start = places.start(&leg.caller, leg.running, first_of(&leg.asked.query));
                self.turn(kind, leg.class(), start).await?
            }
            _ => return Ok(None),
        };
        Ok(Some(Box::new(place)))
    }

    /// Its seat at the member.
    pub(super) async fn seat(&self) -> Result<Seat, Fault> {
        let (leg, queues) = (self.leg, &self.upstream.queues);
        let flow = Flow::of(&leg.caller);
        let class = match leg.class() {
            Class::Lease if !leg.forward.is_priority() => queues.of_lease(flow),
            class => class,
        };
        let taking = queues.take(class, flow).map(Result::ok);
        self.turn(QueueKind::Member(&self.upstream.cluster), class, taking)
            .await
    }

    /// Awaits one of them, up to the deadline, and no longer than the breaker would let the request through.
    async fn turn<T>(
        &self,
        kind: QueueKind<'_>,
        class: Class,
        turn: impl Future<Output = Option<T>>,
    ) -> Result<T, Fault> {
        let Self { leg, upstream, .. } = self;
        let traffic = leg.forward.traffic.class;
        let asks = (Some(&leg.caller), leg.probe());
        let turn = unless_refused(upstream.breaker(traffic), asks, self.waits.waited(kind, class, turn));
        let message = match tokio::time::timeout_at(leg.deadline.unwrap_or(self.until), turn).await {
            Ok(Ok(Some(turn))) => return Ok(turn),
            Ok(Ok(None)) => {
                self.waits.refused(&upstream.cluster, class, Vain::Queue);
                return Err(full(upstream));
            }
            Ok(Err(refused)) => {
                self.legs.begin(leg, None).over(None);
                send::refused_span(upstream, &refused);
                send::refusal(upstream, traffic, &refused)
            }
            Err(_) => {
                self.waits.refused(&upstream.cluster, class, Vain::Time);
                format!(
                    "member cluster {} had no room for the request in time",
                    upstream.cluster
                )
            }
        };
        Err(leg.forward.unavailable(message))
    }
}

/// What a watch that is asked for so begins with, at an API server: from a version, and from now on (`sendInitialEvents=false`),
/// nothing is told of before.
fn first_of(query: &Query) -> First {
    let state = if query.first("sendInitialEvents").is_some() {
        query.flag("sendInitialEvents")
    } else {
        let version = query.first("resourceVersion");
        version.is_none_or(|version| matches!(&*version, "" | "0"))
    };
    if state { First::State } else { First::Changes }
}

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

    #[test]
    fn a_watch_begins_with_the_state_unless_it_goes_on() {
        for (query, first) in [
            ("watch", First::State),
            ("watch&resourceVersion=", First::State),
            ("watch&resourceVersion=0", First::State),
            ("watch&resourceVersion=7", First::Changes),
            ("watch&sendInitialEvents=false", First::Changes),
            ("watch&sendInitialEvents=false&resourceVersion=0", First::Changes),
            ("watch&sendInitialEvents=true&resourceVersion=7", First::State),
            ("watch&sendInitialEvents", First::State),
        ] {
            assert_eq!(first_of(&Query::new(Some(query))), first, "{query}");
        }
    }

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
