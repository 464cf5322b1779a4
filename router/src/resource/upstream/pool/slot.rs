//! A request's stream on a connection, and what its answer says of the endpoint. Callers: `exchange`, bodies.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use h2::RecvStream;
use http::Response;
use tokio::time::{Sleep, sleep};

use super::Pool;
use crate::resource::upstream::connection::Connection;
use crate::resource::upstream::proof;

/// The right to one stream on a connection; given back when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    /// `None`: given back already.
    connection: Option<Arc<Connection>>,
    pool: Pool,
    /// Whether its answer may take as long as it likes.
    patient: bool,
}

/// Tells of an answer that does not begin.
pub(in crate::resource::upstream) struct Lateness {
    /// Of the endpoint's answers, when the request had left.
    answered: Option<usize>,
    late: Pin<Box<Sleep>>,
}

impl Slot {
    pub(super) fn new(connection: Arc<Connection>, pool: &Pool) -> Self {
        Self {
            connection: Some(connection),
            pool: pool.clone(),
            patient: false,
        }
    }

    /// For a request that may be silent by who asks: its silence says nothing of the endpoint.
    pub(crate) fn patient(mut self, patient: bool) -> Self {
        self.patient = patient;
        self
    }

    pub(in crate::resource::upstream) fn connection(&self) -> &Connection {
        self.connection.as_ref().expect("taken only when the slot is consumed")
    }

    /// The head of an answer came over it.
    pub(in crate::resource::upstream) fn answered(&self, head: &Response<RecvStream>) {
        let dialer = &self.pool.shared.dialer;
        let way = &self.connection().way;
        if proof::is_gateways(head) {
            dialer.answered_for(way, head.status());
        } else {
            dialer.answered(way);
        }
    }

    /// For who waits for an answer; `None` where there is no other endpoint, or its silence says nothing.
    pub(in crate::resource::upstream) fn lateness(&self) -> Option<Lateness> {
        let shared = &self.pool.shared;
        let tells = !self.patient && shared.dialer.endpoints() > 1;
        tells.then(|| Lateness {
            answered: None,
            late: Box::pin(sleep(shared.tuning.late_after)),
        })
    }

    /// Gives the slot back under the pool's lock, which the caller holds.
    pub(super) fn forget(mut self) {
        if let Some(connection) = self.connection.take() {
            connection.give_back();
        }
    }
}

impl Lateness {
    /// Polled once the request has left, and whenever its answer has not come: ready when it is late, which was told then.
    pub(in crate::resource::upstream) fn poll(&mut self, cx: &mut Context<'_>, slot: &Slot) -> Poll<()> {
        let (shared, way) = (&slot.pool.shared, &slot.connection().way);
        let answered = *self.answered.get_or_insert_with(|| {
            let after = tokio::time::Instant::now() + shared.tuning.late_after;
            self.late.as_mut().reset(after);
            shared.dialer.answers(way)
        });
        ready!(self.late.as_mut().poll(cx));
        shared.dialer.late(way, answered);
        Poll::Ready(())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        let mut state = self.pool.shared.state.lock();
        connection.give_back();
        if !state.waiters.is_empty() {
            self.pool.serve(&mut state);
        }
    }
}
