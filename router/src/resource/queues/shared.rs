//! The queues that requests share: a lock around the rules, the clock, and who is woken.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::class::Class;
use super::core::{Arrival, Core, Crowd, Place, Ticket};
use super::flow::Flow;

/// Requests at one member at a time. An API server's own default is 400 reads and 200 writes in flight, so a healthy member
/// is never kept from work by this.
pub(super) const SEATS: usize = 1024;
/// Requests that wait for one member, legs of watches that run apart.
pub(super) const PLACES: usize = 1024;
/// Between two looks of what comes last.
const LAST_EVERY: Duration = Duration::from_millis(50);

/// The queues before one member. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Queues {
    // A mutex: who comes and who goes must see each other's counts; nothing is awaited under it.
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    core: Core,
    /// By number, whoever waits. A oneshot each: it is told once, with its seat.
    turns: HashMap<u64, oneshot::Sender<Seat>>,
}

/// A request's place at the member, free again when dropped. What goes past the queues has an empty one.
#[derive(Debug, Default)]
pub(crate) struct Seat(#[allow(dead_code, reason = "held, not looked at")] Option<Taken>);

#[derive(Debug)]
struct Taken {
    of: Queues,
    ticket: Ticket,
}

/// When it is the turn of what the router asks for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// At once: reviews of tokens, which `admit` bounds.
    First,
    /// As a single request of the caller for whom it is asked: what one caller has asked delays no other's.
    InOrder(Flow),
    /// When nobody else can have the seat: what is asked of the router's own accord, which bounds how long it waits. It looks again from time
    /// to time: a place at the end of a queue that others overtake would cost every request.
    Last,
}

/// Too many wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

impl Default for Queues {
    fn default() -> Self {
        Self::new(SEATS, PLACES)
    }
}

impl Queues {
    fn new(seats: usize, places: usize) -> Self {
        let state = State {
            core: Core::new(seats, places, rand::random()),
            turns: HashMap::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// What a Lease is that is not of the caller's election, as far as the router knows: see [`Core::of_lease`].
    pub(crate) fn of_lease(&self, flow: Flow) -> Class {
        self.state.lock().core.of_lease(flow)
    }

    /// Waits for a seat. Safe to drop: a seat that comes too late goes on to the next.
    pub(crate) async fn take(&self, class: Class, flow: Flow) -> Result<Seat, Full> {
        let (waiter, turn) = {
            let mut state = self.state.lock();
            let place = match state.core.arrive(class, flow, now()) {
                Arrival::Seated(ticket) => return Ok(self.seat(ticket)),
                Arrival::Full => return Err(Full),
                Arrival::Waits(place) => place,
            };
            let (sender, turn) = oneshot::channel();
            state.turns.insert(place.number, sender);
            (Waiter { of: self, place }, turn)
        };
        // Its sender is dropped only by the waiter.
        let seat = turn.await.map_err(|_| Full);
        drop(waiter);
        seat
    }

    /// A seat for what the router asks for itself, when it is its turn. Safe to drop.
    pub(crate) async fn take_own(&self, turn: Turn) -> Result<Seat, Full> {
        match turn {
            Turn::First => self.take(Class::Lease, Flow::OWN).await,
            Turn::InOrder(flow) => self.take(Class::Single, flow).await,
            Turn::Last => loop {
                if let Some(seat) = self.try_last() {
                    return Ok(seat);
                }
                tokio::time::sleep(LAST_EVERY).await;
            },
        }
    }

    /// How many there are.
    pub(crate) fn crowds(&self) -> [Crowd; 4] {
        self.state.lock().core.crowds()
    }

    fn try_last(&self) -> Option<Seat> {
        let mut state = self.state.lock();
        // Whoever waits now could not be seated: by its own bounds, which are no matter of others, or as nobody can.
        let ticket = state.core.try_seat(Class::List, Flow::OWN, now())?;
        Some(self.seat(ticket))
    }

    fn seat(&self, ticket: Ticket) -> Seat {
        let of = self.clone();
        Seat(Some(Taken { of, ticket }))
    }
}

impl State {
    /// The member has done with a request: seats whoever can be, before somebody who comes just now could have the seat.
    fn done(&mut self, ticket: &Ticket) -> Vec<(Option<oneshot::Sender<Seat>>, Ticket)> {
        let now = now();
        self.core.done(ticket, now);
        let next = || {
            let (number, ticket) = self.core.next(now)?;
            Some((self.turns.remove(&number), ticket))
        };
        std::iter::from_fn(next).collect()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let called = self.of.state.lock().done(&self.ticket);
        for (turn, ticket) in called {
            let seat = self.of.seat(ticket);
            // Without the lock: the seat of one who waits no more is given back at once.
            if let Some(turn) = turn {
                drop(turn.send(seat));
            }
        }
    }
}

/// A waiter's place: one that goes away leaves none behind.
struct Waiter<'a> {
    of: &'a Queues,
    place: Place,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let turn = {
            let mut state = self.of.state.lock();
            let waited = state.core.leave(&self.place);
            waited.then(|| state.turns.remove(&self.place.number)).flatten()
        };
        drop(turn);
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

#[cfg(test)]
impl Queues {
    /// Takes every seat that requests of this class can have, for many tenants.
    pub(crate) fn fill(&self, class: Class) -> Vec<Seat> {
        let mut state = self.state.lock();
        let mut one = |tenant| state.core.try_seat(class, Flow::numbered(tenant, 1), now());
        let seats = (1 << 32..).take(2 * SEATS).map_while(&mut one);
        seats.map(|ticket| self.seat(ticket)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use futures::poll;

    use super::super::core::TENANT_OTHER_LEASES;
    use super::*;

    const ONE: Flow = Flow { tenant: 1, caller: 1 };
    const TWO: Flow = Flow { tenant: 2, caller: 1 };

    /// Of 16 seats one tenant's single requests have six.
    async fn six(queues: &Queues) -> Vec<Seat> {
        let mut seats = Vec::new();
        for _ in 0..6 {
            seats.push(queues.take(Class::Single, ONE).await.unwrap());
        }
        seats
    }

    #[tokio::test]
    async fn a_seat_that_is_given_back_goes_to_who_waits() {
        let queues = Queues::new(16, 16);
        let mut held = six(&queues).await;
        let mut waits = Box::pin(queues.take(Class::Single, ONE));
        assert!(poll!(&mut waits).is_pending());
        let other = queues.take(Class::Single, TWO).await.unwrap();
        let lease = queues.take(Class::Lease, ONE).await.unwrap();
        held.pop();
        assert!(matches!(poll!(&mut waits), Poll::Ready(Ok(_))));
        drop((held, waits, other, lease));
        assert_eq!(queues.crowds().map(|crowd| crowd.seated + crowd.waiting), [0; 4]);
    }

    #[tokio::test]
    async fn a_seat_that_becomes_free_is_not_for_who_comes_meanwhile() {
        let queues = Queues::new(16, 16);
        let held = queues.fill(Class::Single);
        let mut waits = Box::pin(queues.take(Class::Single, ONE));
        assert!(poll!(&mut waits).is_pending());
        let mut state = queues.state.lock();
        let ticket = held[0].0.as_ref().unwrap().ticket;
        assert_eq!(state.done(&ticket).len(), 1);
        // Within the same hold of the lock: nobody comes between.
        let comes = state.core.arrive(Class::Single, TWO, now());
        assert!(matches!(comes, Arrival::Waits(_)), "{comes:?}");
        drop(state);
        std::mem::forget(held);
        std::mem::forget(waits);
    }

    #[tokio::test]
    async fn other_leases_pass_the_queues_up_to_a_bound() {
        let queues = Queues::new(16, 16);
        let held = queues.fill(Class::Single);
        let mut leases = Vec::new();
        for _ in 0..TENANT_OTHER_LEASES {
            let class = queues.of_lease(ONE);
            leases.push(queues.take(class, ONE).await.unwrap());
        }
        let mut flood = Box::pin(queues.take(queues.of_lease(ONE), ONE));
        assert!(poll!(&mut flood).is_pending(), "it waits as a single request");
        assert!(queues.take(Class::Lease, ONE).await.is_ok(), "its election does not");
        assert!(queues.take(queues.of_lease(TWO), TWO).await.is_ok(), "nor do others");
        drop((held, leases, flood));
    }

    #[tokio::test]
    async fn who_goes_away_leaves_no_place_and_keeps_no_seat() {
        let queues = Queues::new(16, 16);
        let mut held = six(&queues).await;
        let mut gone = Box::pin(queues.take(Class::Single, ONE));
        let mut next = Box::pin(queues.take(Class::Single, ONE));
        assert!(poll!(&mut gone).is_pending() && poll!(&mut next).is_pending());
        held.pop();
        // It was granted, and never looked.
        drop(gone);
        let Poll::Ready(Ok(next)) = poll!(&mut next) else {
            panic!("it is next")
        };
        let mut left = Box::pin(queues.take(Class::Single, ONE));
        assert!(poll!(&mut left).is_pending());
        drop(left);
        assert_eq!(queues.crowds()[2].waiting, 0, "{queues:?}");
        assert!(queues.state.lock().turns.is_empty());
        drop((held, next));
        assert!(!queues.state.lock().core.is_awaited());
    }

    #[tokio::test]
    async fn what_cannot_wait_either_is_refused() {
        let queues = Queues::new(16, 16);
        let _held = six(&queues).await;
        // A quarter of 16 places is four, of which single requests have three.
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(queues.take(Class::Single, ONE))).collect();
        for one in &mut waiting {
            assert!(poll!(one).is_pending());
        }
        assert_eq!(queues.take(Class::Single, ONE).await.unwrap_err(), Full);
        queues.take(Class::Single, TWO).await.expect("others have their own");
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_last_waits_for_all_who_wait() {
        let queues = Queues::new(16, 16);
        let mut held = queues.fill(Class::List);
        let mut last = Box::pin(queues.take_own(Turn::Last));
        assert!(poll!(&mut last).is_pending());
        let mut waits = Box::pin(queues.take(Class::List, ONE));
        assert!(poll!(&mut waits).is_pending());
        held.pop();
        tokio::time::sleep(LAST_EVERY).await;
        assert!(poll!(&mut last).is_pending(), "it came first and is last");
        drop(waits.await.unwrap());
        last.await.unwrap();
    }
}
