//! The HTTP/2 connections to one member for one kind of traffic: as many as its requests need and no more.
//!
//! API servers cap streams per connection (100 by default), so the pool grows by what each connection was told. A
//! request without a slot waits for one; waiters are counted against the dials under way, so a thousand watches that
//! start at once dial ten connections and not a thousand. The wait is bounded by the caller's deadline and the queue by
//! the queues of `dispatch`. Caller: `upstream`.

mod slot;
mod under_way;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use portolan_runtime::Tasks;
use tokio::sync::oneshot;

pub(crate) use self::slot::Slot;
use self::under_way::{Dial, UnderWay};
use super::connection::{Connection, Driver, Ended, Tuning};
use super::dialer::Dialer;
use super::endpoint::{ConnectError, Protocol, Way};
use super::failover::Choice;

/// Dials under way at a time; each may bring a hundred streams.
const MAX_DIALS: usize = 4;

/// After a dial that nobody waited for and that came to nothing, before the next: requests would start one each.
const MOVE_AGAIN: Duration = Duration::from_secs(1);

/// One pool. Clones are the same pool.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    dialer: Arc<Dialer>,
    tuning: Tuning,
    tasks: Tasks,
    /// A mutex: held for a walk over some connections, never across an await.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    connections: Vec<Arc<Connection>>,
    waiters: VecDeque<oneshot::Sender<Result<Slot, ConnectError>>>,
    dialing: usize,
    /// A dial is under way that nobody waits for: to an endpoint that is to have streams and has no room, or beside a connection
    /// that may be dead.
    moving: bool,
    /// The last of those came to nothing: no other before this.
    move_after: Option<Instant>,
    /// Counts retirements: dials that began before one are not waited for.
    era: u64,
    /// Stream cap that the member told last: how many waiters a dial under way will serve.
    cap: usize,
    closed: bool,
    /// There are as many connections as may be, and somebody waits for one more.
    full: bool,
    /// Requests that found it so.
    found_full: u64,
}

/// Size of a pool, for metrics and tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolSize {
    pub(crate) connections: usize,
    pub(crate) streams: usize,
    pub(crate) waiting: usize,
    /// Requests that found as many connections as may be, and no room on them.
    pub(crate) found_full: u64,
}

impl Pool {
    /// An empty pool; nothing is dialled before the first request.
    pub(crate) fn new(dialer: Arc<Dialer>, tuning: Tuning, tasks: Tasks) -> Self {
        Self {
            shared: Arc::new(Shared {
                dialer,
                tuning,
                tasks,
                state: Mutex::default(),
            }),
        }
    }

    /// A slot on an open connection, as soon as there is one. `first`: before all who wait already.
    pub(crate) async fn acquire(&self, first: bool) -> Result<Slot, ConnectError> {
        let waiting = {
            let mut state = self.shared.state.lock();
            if state.closed {
                return Err(ConnectError::Closed);
            }
            if (state.waiters.is_empty() || first)
                && let Some(connection) = self.take(&mut state)
            {
                return Ok(Slot::new(connection, self));
            }
            let (sender, receiver) = oneshot::channel();
            if first {
                state.waiters.push_front(sender);
            } else {
                state.waiters.push_back(sender);
            }
            self.grow(&mut state);
            state.found_full += u64::from(state.full);
            receiver
        };
        // A sender is dropped unanswered only with the pool.
        waiting.await.unwrap_or(Err(ConnectError::Closed))
    }

    /// Takes no more requests; streams that are open run on.
    pub(crate) fn close(&self) {
        let (connections, waiters) = {
            let mut state = self.shared.state.lock();
            state.closed = true;
            (state.connections.clone(), std::mem::take(&mut state.waiters))
        };
        for waiter in waiters {
            let _ = waiter.send(Err(ConnectError::Closed));
        }
        for connection in connections {
            if connection.active() == 0 {
                connection.cut();
            } else {
                connection.close();
            }
        }
    }

    /// The way to the member is lost: what waits for a connection is told so, and no request gets one of those that were open
    /// or under way. Streams that are open run on: the member may be back before they are given up.
    pub(crate) fn retire(&self, why: &ConnectError) {
        let (connections, waiters) = {
            let mut state = self.shared.state.lock();
            state.era += 1;
            state.dialing = 0;
            (state.connections.clone(), std::mem::take(&mut state.waiters))
        };
        for waiter in waiters {
            let _ = waiter.send(Err(why.clone()));
        }
        for connection in connections {
            connection.close();
        }
    }

    /// Nothing came for a while over one of them: each is to prove that it lives.
    pub(super) fn check(&self) {
        for connection in &self.shared.state.lock().connections {
            connection.check();
        }
    }

    /// No new streams go such ways; those that are open run on.
    pub(super) fn leave(&self, is_left: impl Fn(&Way) -> bool) {
        let state = self.shared.state.lock();
        for connection in state.connections.iter().filter(|connection| is_left(&connection.way)) {
            connection.close();
        }
    }

    pub(crate) fn size(&self) -> PoolSize {
        let state = self.shared.state.lock();
        PoolSize {
            connections: state.connections.len(),
            streams: state.connections.iter().map(|connection| connection.active()).sum(),
            waiting: state.waiters.len(),
            found_full: state.found_full,
        }
    }

    /// Connections that may be dead.
    #[cfg(test)]
    pub(crate) fn doubted(&self) -> usize {
        let state = self.shared.state.lock();
        state
            .connections
            .iter()
            .filter(|connection| connection.is_doubted())
            .count()
    }

    /// Dials for the waiters that the dials under way will not serve.
    fn grow(&self, state: &mut State) {
        state.waiters.retain(|waiter| !waiter.is_closed());
        let per_dial = state.cap.max(1);
        // Without a cap told yet, the first dial tells it.
        let limit = if state.cap == 0 { 1 } else { MAX_DIALS };
        while state.dialing < limit && state.dialing.saturating_mul(per_dial) < state.waiters.len() {
            if !self.may_dial(state) {
                break;
            }
            state.dialing += 1;
            let dial = self.clone().connect(state.era);
            self.shared.tasks.spawn("upstream-connection", dial);
        }
    }

    /// Whether there may be one more connection.
    fn has_room(&self, state: &State) -> bool {
        state.connections.len() + state.dialing + usize::from(state.moving) < self.shared.tuning.most
    }

    /// Whether one may be dialled that nobody waits for.
    fn may_move(&self, state: &State) -> bool {
        let again = state.move_after.is_none_or(|after| Instant::now() >= after);
        again && !state.moving && self.has_room(state)
    }

    /// Whether one may be dialled for who waits; said once if not.
    fn may_dial(&self, state: &mut State) -> bool {
        let full = !self.has_room(state);
        let most = self.shared.tuning.most;
        if full && !std::mem::replace(&mut state.full, full) {
            let (cluster, waiting) = (self.shared.dialer.cluster(), state.waiters.len());
            tracing::warn!(
                cluster,
                most,
                waiting,
                "as many connections to the member as may be: requests wait for them"
            );
        }
        state.full = full;
        !full
    }

    /// A slot on a connection, and of another endpoint than the one that is to have it: a dial there, which nobody waits for.
    fn take(&self, state: &mut State) -> Option<Arc<Connection>> {
        let dialer = &self.shared.dialer;
        let choice = dialer.choose();
        let connection = state.take(choice, || dialer.has_alternatives())?;
        if connection.way.endpoint != choice.first && self.may_move(state) {
            state.moving = true;
            self.shared
                .tasks
                .spawn("upstream-connection", self.clone().move_to(choice.first));
        }
        Some(connection)
    }

    /// Dials one connection and runs it to its end.
    async fn connect(self, era: u64) {
        let (shared, dial) = (&self.shared, UnderWay::new(&self, Dial::Awaited { era }));
        let tuning = shared.tuning;
        let opened = shared
            .dialer
            .dial(Protocol::Http2, |dialed| Connection::open(dialed, tuning))
            .await;
        match opened {
            Ok(opened) => self.run(opened, dial).await,
            Err(error) => dial.failed(&error),
        }
    }

    /// For nobody who waits: to the endpoint that is to have streams.
    async fn move_to(self, endpoint: usize) {
        let (shared, dial) = (&self.shared, UnderWay::new(&self, Dial::Moving));
        let tuning = shared.tuning;
        let opened = shared
            .dialer
            .dial_at(endpoint, |dialed| Connection::open(dialed, tuning))
            .await;
        match opened {
            Ok(opened) => self.run(opened, dial).await,
            // The dialer knows of it.
            Err(error) => dial.failed(&error),
        }
    }

    /// A connection may be dead: the next is there by the time that this is known, if there is another way, and none has room.
    fn prepare(&self) {
        let mut state = self.shared.state.lock();
        let dialer = &self.shared.dialer;
        if state.closed || !dialer.has_alternatives() {
            return;
        }
        let choice = dialer.choose();
        if state.sound(choice).is_none() && self.may_move(&state) {
            state.moving = true;
            self.shared
                .tasks
                .spawn("upstream-connection", self.clone().open_another());
        }
    }

    /// A connection that may have been dead is not: whoever waits may have room on it.
    fn recovered(&self) {
        let mut state = self.shared.state.lock();
        if !state.waiters.is_empty() {
            self.serve(&mut state);
        }
    }

    async fn open_another(self) {
        let (shared, dial) = (&self.shared, UnderWay::new(&self, Dial::Moving));
        let tuning = shared.tuning;
        let opened = shared
            .dialer
            .dial(Protocol::Http2, |dialed| Connection::open(dialed, tuning))
            .await;
        match opened {
            Ok(opened) => self.run(opened, dial).await,
            Err(error) => dial.failed(&error),
        }
    }

    async fn run(&self, (connection, driver): (Arc<Connection>, Driver), dial: UnderWay<'_>) {
        let shared = &self.shared;
        // The member's CA bundle may have changed since the handshake: before it is offered to requests, and just now.
        let distrust = || {
            if !connection.way.is_trusted(&shared.dialer.trust.store) {
                connection.close();
            }
        };
        distrust();
        self.add(connection.clone(), dial);
        distrust();
        let idle_since = Mutex::new(None);
        let idle = || self.close_if_idle(&connection, &idle_since);
        let doubt = |doubted| if doubted { self.prepare() } else { self.recovered() };
        let ended = driver.run(&connection, shared.tasks.cancelled(), idle, doubt).await;
        connection.close();
        match ended {
            Ended::Broken => shared.dialer.broke(&connection.way, &"a connection broke"),
            Ended::PingTimeout => shared
                .dialer
                .broke(&connection.way, &"a connection's ping was not answered"),
            Ended::ByMember | Ended::Idle | Ended::Cut => {}
        }
        self.remove(&connection, ended);
    }

    fn add(&self, connection: Arc<Connection>, dial: UnderWay<'_>) {
        let mut state = self.shared.state.lock();
        dial.over(&mut state);
        state.cap = connection.cap();
        state.move_after = None;
        if state.closed {
            connection.cut();
            return;
        }
        tracing::debug!(authority = %connection.authority, streams = state.cap, "connected to a member");
        state.connections.push(connection);
        self.serve(&mut state);
    }

    /// Nothing came of a dial: whom no other will serve is told.
    fn dial_failed(&self, dial: Dial, error: &ConnectError) {
        let waiters = {
            let mut state = self.shared.state.lock();
            if dial == Dial::Moving {
                state.move_after = Some(Instant::now() + MOVE_AGAIN);
            }
            if !state.dialed(dial) {
                // It may have been the one too many for those who wait.
                self.serve(&mut state);
                return;
            }
            // A connection may have come to itself meanwhile.
            self.hand_out(&mut state);
            // Another dial may still serve them.
            if state.dialing > 0 {
                VecDeque::new()
            } else {
                std::mem::take(&mut state.waiters)
            }
        };
        for waiter in waiters {
            let _ = waiter.send(Err(error.clone()));
        }
    }

    fn remove(&self, connection: &Arc<Connection>, ended: Ended) {
        tracing::debug!(authority = %connection.authority, ?ended, streams = connection.active(), "member connection ended");
        let mut state = self.shared.state.lock();
        state.connections.retain(|other| !Arc::ptr_eq(other, connection));
        self.serve(&mut state);
    }

    /// Judged under the lock, so that no request takes a slot meanwhile.
    fn close_if_idle(&self, connection: &Connection, since: &Mutex<Option<Instant>>) -> bool {
        self.shared.dialer.refresh(connection.way.endpoint);
        if connection.way.is_gone() {
            connection.close();
        }
        let _state = self.shared.state.lock();
        let mut since = since.lock();
        if connection.active() > 0 {
            *since = None;
            return false;
        }
        let now = Instant::now();
        // One that takes no new streams and has none left serves nobody.
        let idle = !connection.is_open()
            || now.saturating_duration_since(*since.get_or_insert(now)) >= self.shared.tuning.idle_timeout;
        if idle {
            connection.close();
        }
        idle
    }

    /// Hands free slots to waiters in order, and dials for the rest.
    fn serve(&self, state: &mut State) {
        self.hand_out(state);
        if !state.waiters.is_empty() {
            self.grow(state);
        }
    }

    /// Hands free slots to waiters in order.
    fn hand_out(&self, state: &mut State) {
        while let Some(waiter) = state.waiters.pop_front() {
            if waiter.is_closed() {
                continue;
            }
            let Some(connection) = self.take(state) else {
                state.waiters.push_front(waiter);
                break;
            };
            if let Err(Ok(slot)) = waiter.send(Ok(Slot::new(connection, self))) {
                // The waiter went away just now. Its slot must not be dropped here, under the lock it would take.
                slot.forget();
            }
        }
    }
}

impl State {
    /// A dial is over; whether anybody waits for it.
    fn dialed(&mut self, dial: Dial) -> bool {
        match dial {
            Dial::Awaited { era } => {
                let counted = era == self.era;
                self.dialing -= usize::from(counted);
                counted
            }
            Dial::Moving => {
                self.moving = false;
                false
            }
        }
    }

    /// A connection that takes streams now and is in no doubt.
    fn sound(&self, choice: Choice) -> Option<&Arc<Connection>> {
        self.connections.iter().find(|connection| {
            let ranked = choice.rank(connection.way.endpoint).is_some();
            ranked && connection.has_room() && !connection.is_doubted() && connection.is_open()
        })
    }

    /// A slot on a connection of the endpoint that is to have it, else of the next one that is not ejected; of several, on the
    /// one that has been open longest: young ones run empty and are closed. One that may be dead waits until it has proved
    /// otherwise, if there are others to be had.
    fn take(&self, choice: Choice, others: impl Fn() -> bool) -> Option<Arc<Connection>> {
        let may = |connection: &Connection| connection.has_room() && !(connection.is_doubted() && others());
        let mut best: Option<(usize, &Arc<Connection>)> = None;
        for connection in self.connections.iter().filter(|connection| may(connection)) {
            if let Some(rank) = choice.rank(connection.way.endpoint)
                && best.is_none_or(|(best, _)| rank < best)
                && connection.is_open()
            {
                best = Some((rank, connection));
            }
        }
        let (_, connection) = best?;
        connection.try_take().then(|| connection.clone())
    }
}
