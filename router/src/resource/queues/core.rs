//! The rules of the queues before one member, without lock, clock or network: time and whose request it is are arguments.
//!
//! A request has a seat while the member works for it. Seats that are free go to the waiting class whose turn it is, there to
//! the tenant that has fewest; of equals to the queue that has had the least of the member's time, in it to the callers in
//! turn. What a request will take is not known when it is seated: it is charged a little then, and the rest when it is over.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::bounds::{Bounds, Counts};
use super::class::{Class, WAITING};
use super::flow::{Flow, QUEUES, hand};
use crate::value::hashed::HashMap;

/// Charged for a request when it is seated, until it is known what it took.
pub(super) const ESTIMATE: Duration = Duration::from_millis(3);
/// Leases of one tenant at a member at a time, past all bounds: one election each of as many operators. Token reviews, which
/// `admit` bounds to some dozen, count as Leases of the router's own.
pub(super) const TENANT_LEASES: usize = 128;
/// Of these, those that the router does not know as the tenant's election: of a second elector, or through the explicit view.
/// Any more are single requests, so that nobody floods a member with what anybody may call a Lease.
pub(super) const TENANT_OTHER_LEASES: usize = 16;

/// How many a member serves, or keeps waiting, of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Crowd {
    pub(crate) class: Class,
    pub(crate) seated: usize,
    pub(crate) waiting: usize,
}

/// The queues of one member.
#[derive(Debug)]
pub(super) struct Core {
    seats: Bounds,
    places: Bounds,
    seed: u64,
    seated: Counts,
    waiting: Counts,
    leases: usize,
    /// Of those who are seated or wait.
    tenants: HashMap<u64, Tenant>,
    /// By class, in the order of [`WAITING`].
    levels: [Level; 3],
    /// Number of the next waiter.
    next: u64,
}

#[derive(Debug, Default)]
struct Tenant {
    seated: Counts,
    waiting: Counts,
    leases: usize,
}

/// The queues of one class.
#[derive(Debug)]
struct Level {
    /// What the queue that was served last had had until then: who comes new begins here.
    virtual_time: Duration,
    queues: Vec<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// What it has had of the member's time, by the level's virtual time.
    had: Duration,
    seated: usize,
    waiting: usize,
    /// One for each tenant that waits, in the order of their turns. By tenant, as all callers of one may be seated or none: whose
    /// turn it is takes a look at each tenant and its few queues, however many callers wait.
    tenants: VecDeque<Standing>,
}

/// The callers of one tenant in a queue.
#[derive(Debug)]
struct Standing {
    tenant: u64,
    /// One for each that waits, in the order of their turns; never none.
    lines: VecDeque<Line>,
}

#[derive(Debug)]
struct Line {
    caller: u64,
    /// Ascending.
    numbers: VecDeque<u64>,
}

/// A request that the member serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) class: Class,
    flow: Flow,
    queue: usize,
    since: Instant,
}

/// A request that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) number: u64,
    pub(super) class: Class,
    flow: Flow,
    pub(super) queue: usize,
}

/// What becomes of a request that comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    Seated(Ticket),
    Waits(Place),
    /// Too many wait.
    Full,
}

impl Core {
    pub(super) fn new(seats: usize, places: usize, seed: u64) -> Self {
        let level = || Level {
            virtual_time: Duration::ZERO,
            queues: std::iter::repeat_with(Queue::default).take(QUEUES).collect(),
        };
        Self {
            seats: Bounds::of(seats),
            places: Bounds::waiting(places),
            seed,
            seated: Counts::default(),
            waiting: Counts::default(),
            leases: 0,
            tenants: HashMap::default(),
            levels: [level(), level(), level()],
            next: 0,
        }
    }

    /// What a Lease is that is not known to be of an election.
    pub(super) fn of_lease(&self, flow: Flow) -> Class {
        let leases = self.tenants.get(&flow.tenant).map_or(0, |tenant| tenant.leases);
        if leases < TENANT_OTHER_LEASES {
            Class::Lease
        } else {
            Class::Single
        }
    }

    /// A request comes. Nobody who waits could be seated now, or would be already: so who can be overtakes nobody.
    pub(super) fn arrive(&mut self, class: Class, flow: Flow, now: Instant) -> Arrival {
        // One tenant with more Leases at a time than elections is not what the way past the bounds is for.
        let leases = self.tenants.get(&flow.tenant).map_or(0, |tenant| tenant.leases);
        let class = match class {
            Class::Lease if leases >= TENANT_LEASES => Class::Running,
            class => class,
        };
        if let Some(ticket) = self.try_seat(class, flow, now) {
            return Arrival::Seated(ticket);
        }
        let waiting = self.tenants.get(&flow.tenant);
        let waiting = waiting.map_or_else(Counts::default, |tenant| tenant.waiting);
        let waiting = Counts { running: 0, ..waiting };
        // Legs of watches that run are bounded already: by the streams that there may be.
        if class != Class::Running && !self.places.allow(class, &self.below_running(), &waiting) {
            return Arrival::Full;
        }
        Arrival::Waits(self.queue_up(class, flow))
    }

    /// A seat, if there is one for who does not wait.
    pub(super) fn try_seat(&mut self, class: Class, flow: Flow, now: Instant) -> Option<Ticket> {
        if !self.may_sit(class, flow.tenant) {
            return None;
        }
        let queue = self.shortest(class, flow.tenant);
        self.levels[class.level()].begin(queue);
        Some(self.seat(class, flow, queue, now))
    }

    /// The next who gets a seat; none while nobody can. To be asked again until nobody does, whenever something has changed.
    pub(super) fn next(&mut self, now: Instant) -> Option<(u64, Ticket)> {
        let (class, queue, standing) = self.turn()?;
        let (flow, number) = self.levels[class.level()].queues[queue].next(standing)?;
        self.left(class, flow.tenant);
        Some((number, self.seat(class, flow, queue, now)))
    }

    /// Who waits goes away. False: it has a seat already, or had.
    pub(super) fn leave(&mut self, place: &Place) -> bool {
        let queue = &mut self.levels[place.class.level()].queues[place.queue];
        if queue.leave(place).is_none() {
            return false;
        }
        self.left(place.class, place.flow.tenant);
        true
    }

    /// The member has done with a request.
    pub(super) fn done(&mut self, ticket: &Ticket, now: Instant) {
        let Ticket { class, flow, queue, .. } = *ticket;
        match self.seated.of_mut(class) {
            Some(seated) => *seated -= 1,
            None => self.leases -= 1,
        }
        if let Some(tenant) = self.tenants.get_mut(&flow.tenant) {
            match tenant.seated.of_mut(class) {
                Some(seated) => *seated -= 1,
                None => tenant.leases -= 1,
            }
        }
        self.forget(flow.tenant);
        if class == Class::Lease {
            return;
        }
        let queue = &mut self.levels[class.level()].queues[queue];
        queue.seated -= 1;
        let took = now.saturating_duration_since(ticket.since);
        queue.had += took.saturating_sub(ESTIMATE);
    }

    /// Of each class.
    pub(super) fn crowds(&self) -> [Crowd; 4] {
        Class::ALL.map(|class| Crowd {
            class,
            seated: match class {
                Class::Lease => self.leases,
                class => self.seated.of(class),
            },
            waiting: self.waiting.of(class),
        })
    }

    #[cfg(test)]
    pub(super) fn is_awaited(&self) -> bool {
        self.waiting.all() > 0
    }

    fn may_sit(&self, class: Class, tenant: u64) -> bool {
        class == Class::Lease || self.seats.allow(class, &self.seated, &self.seats_of(tenant))
    }

    fn seats_of(&self, tenant: u64) -> Counts {
        let tenant = self.tenants.get(&tenant);
        tenant.map_or_else(Counts::default, |tenant| tenant.seated)
    }

    /// Those whose places are bounded.
    fn below_running(&self) -> Counts {
        Counts {
            running: 0,
            ..self.waiting
        }
    }

    fn seat(&mut self, class: Class, flow: Flow, queue: usize, now: Instant) -> Ticket {
        let tenant = self.tenants.entry(flow.tenant).or_default();
        match self.seated.of_mut(class) {
            None => {
                self.leases += 1;
                tenant.leases += 1;
            }
            Some(seated) => {
                *seated += 1;
                if let Some(own) = tenant.seated.of_mut(class) {
                    *own += 1;
                }
                let level = &mut self.levels[class.level()];
                let queue = &mut level.queues[queue];
                level.virtual_time = level.virtual_time.max(queue.had);
                queue.had += ESTIMATE;
                queue.seated += 1;
            }
        }
        Ticket {
            class,
            flow,
            queue,
            since: now,
        }
    }

    fn queue_up(&mut self, class: Class, flow: Flow) -> Place {
        let (number, at) = (self.next, self.shortest(class, flow.tenant));
        self.next += 1;
        let level = &mut self.levels[class.level()];
        level.begin(at);
        level.queues[at].come(flow, number);
        if let Some(waiting) = self.waiting.of_mut(class) {
            *waiting += 1;
        }
        let tenant = self.tenants.entry(flow.tenant).or_default();
        if let Some(waiting) = tenant.waiting.of_mut(class) {
            *waiting += 1;
        }
        Place {
            number,
            class,
            flow,
            queue: at,
        }
    }

    /// Of the tenant's hand, the one with the fewest in it; of equals the one that has had least.
    fn shortest(&self, class: Class, tenant: u64) -> usize {
        let level = &self.levels[class.level()];
        let crowd = |&card: &usize| {
            let queue = &level.queues[card];
            (queue.waiting + queue.seated, queue.had)
        };
        hand(tenant, self.seed)
            .into_iter()
            .min_by_key(crowd)
            .unwrap_or_default()
    }

    /// Whose turn it is: class, queue, and tenant in it. First who is below its part, else the most urgent.
    fn turn(&self) -> Option<(Class, usize, usize)> {
        let waits = |class: &Class| self.waiting.of(*class) > 0;
        let below = |class: &Class| self.seated.of(*class) < self.seats.part;
        let first = WAITING.into_iter().filter(below);
        let then = WAITING.into_iter().filter(|class| !below(class));
        let mut order = first.chain(then).filter(waits);
        order.find_map(|class| {
            // Nobody has less than nothing: what is closed to such a tenant is closed to all.
            if !self.seats.allow(class, &self.seated, &Counts::default()) {
                return None;
            }
            let (queue, standing) = self.queue_of_turn(class)?;
            Some((class, queue, standing))
        })
    }

    /// Queue and tenant in it who is next, of those who may be seated: the tenant with the fewest seats of its class; of equals
    /// the queue that has had least; in it who came first or was served longest ago.
    fn queue_of_turn(&self, class: Class) -> Option<(usize, usize)> {
        let queues = self.levels[class.level()].queues.iter().enumerate();
        let standing = queues.flat_map(|(at, queue)| {
            let tenants = queue.tenants.iter().enumerate();
            tenants.map(move |(place, of)| (of.tenant, queue.had, at, place))
        });
        let open = standing.filter_map(|(tenant, had, at, place)| {
            let seated = self.seats_of(tenant);
            let may = self.seats.allow(class, &self.seated, &seated);
            may.then_some((seated.of(class), had, at, place))
        });
        open.min().map(|(_, _, at, place)| (at, place))
    }

    fn left(&mut self, class: Class, tenant: u64) {
        if let Some(waiting) = self.waiting.of_mut(class) {
            *waiting -= 1;
        }
        if let Some(of) = self.tenants.get_mut(&tenant)
            && let Some(waiting) = of.waiting.of_mut(class)
        {
            *waiting -= 1;
        }
        self.forget(tenant);
    }

    fn forget(&mut self, tenant: u64) {
        let idle = |of: &Tenant| of.seated.all() + of.waiting.all() + of.leases == 0;
        if self.tenants.get(&tenant).is_some_and(idle) {
            self.tenants.remove(&tenant);
        }
    }
}

impl Level {
    /// Somebody comes to a queue where nobody waits: what it did not use meanwhile is not saved up, and what it owes stays owed.
    /// Forgotten, those who come one at a time would be served for ever before one that waits and owes.
    fn begin(&mut self, queue: usize) {
        let queue = &mut self.queues[queue];
        if queue.waiting == 0 {
            queue.had = queue.had.max(self.virtual_time);
        }
    }
}

impl Queue {
    fn come(&mut self, flow: Flow, number: u64) {
        self.waiting += 1;
        let known = self.tenants.iter().position(|of| of.tenant == flow.tenant);
        let at = known.unwrap_or_else(|| {
            self.tenants.push_back(Standing {
                tenant: flow.tenant,
                lines: VecDeque::new(),
            });
            self.tenants.len() - 1
        });
        let lines = &mut self.tenants[at].lines;
        match lines.iter_mut().find(|line| line.caller == flow.caller) {
            Some(line) => line.numbers.push_back(number),
            None => lines.push_back(Line {
                caller: flow.caller,
                numbers: VecDeque::from([number]),
            }),
        }
    }

    /// The next of the tenant at this place; caller and tenant are last then.
    fn next(&mut self, standing: usize) -> Option<(Flow, u64)> {
        let mut of = self.tenants.remove(standing)?;
        let mut line = of.lines.pop_front()?;
        let number = line.numbers.pop_front()?;
        let flow = Flow {
            tenant: of.tenant,
            caller: line.caller,
        };
        if !line.numbers.is_empty() {
            of.lines.push_back(line);
        }
        if !of.lines.is_empty() {
            self.tenants.push_back(of);
        }
        self.waiting -= 1;
        Some((flow, number))
    }

    /// `None`: it does not wait here.
    fn leave(&mut self, place: &Place) -> Option<()> {
        let at = self.tenants.iter().position(|of| of.tenant == place.flow.tenant)?;
        let lines = &mut self.tenants[at].lines;
        let line = lines.iter().position(|line| line.caller == place.flow.caller)?;
        let numbers = &mut lines[line].numbers;
        let number = numbers.binary_search(&place.number).ok()?;
        numbers.remove(number);
        if numbers.is_empty() {
            lines.remove(line);
        }
        if lines.is_empty() {
            self.tenants.remove(at);
        }
        self.waiting -= 1;
        Some(())
    }
}

#[cfg(test)]
impl Core {
    pub(super) fn bounds(&self) -> (Bounds, Bounds) {
        (self.seats, self.places)
    }

    pub(super) fn counts(&self) -> (Counts, Counts) {
        (self.seated, self.waiting)
    }

    /// Seated, waiting, Leases.
    pub(super) fn tenant(&self, tenant: u64) -> (usize, usize, usize) {
        let of = self.tenants.get(&tenant);
        of.map_or((0, 0, 0), |of| (of.seated.all(), of.waiting.all(), of.leases))
    }

    pub(super) fn tenants(&self) -> usize {
        self.tenants.len()
    }

    /// Steps that a look at whose turn it is takes, at most.
    pub(super) fn standing(&self, class: Class) -> usize {
        let queues = self.levels[class.level()].queues.iter();
        queues.map(|queue| queue.tenants.len()).sum()
    }

    /// Waiting and seated in the queue of a place.
    pub(super) fn beside(&self, place: &Place) -> (usize, usize) {
        let queue = &self.levels[place.class.level()].queues[place.queue];
        (queue.waiting, queue.seated)
    }

    /// Queues of a class in which somebody waits or is served.
    pub(super) fn busy(&self, class: Class) -> usize {
        let queues = self.levels[class.level()].queues.iter();
        queues.filter(|queue| queue.waiting + queue.seated > 0).count()
    }
}
