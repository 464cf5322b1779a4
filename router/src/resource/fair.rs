//! Permits that tenants share fairly: whoever is kept waiting for one is kept waiting by those who hold fewer, not by those
//! who came first with many.
//!
//! What is given back goes to the tenant that waits and holds least. An eighth of all is kept for tenants below an eighth, so
//! that who comes late into a full house need not wait for the others' requests to end. A permit may be many units (bytes). No
//! queue is bounded here: who asks counts its own waiters. Callers: `admit`, and `upstream` for the callers of one tenant.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::value::hashed::HashMap;

/// This part of all is kept for tenants that hold less than this part of all.
const KEPT_PART: usize = 8;

/// Permits of one kind. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct FairPermits {
    // A mutex: who takes and who gives back must see each other's figures; nothing is awaited under it.
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    all: usize,
    free: usize,
    /// Taken beyond all.
    over: usize,
    /// Of one tenant.
    most: usize,
    /// How many hold something, and the sum of the squares of what each holds.
    holders: usize,
    squares: u128,
    /// Of those who hold or wait.
    tenants: HashMap<Arc<str>, Tenant>,
    /// Number of the next waiter: of equals the first comes first.
    next: u64,
    waiters: usize,
}

#[derive(Debug, Default)]
struct Tenant {
    held: usize,
    waiting: VecDeque<Waiter>,
}

impl Tenant {
    fn is_idle(&self) -> bool {
        self.held == 0 && self.waiting.is_empty()
    }
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    units: usize,
    turn: oneshot::Sender<FairPermit>,
}

/// Units of one tenant, free again when dropped.
#[derive(Debug)]
pub(crate) struct FairPermit {
    of: FairPermits,
    tenant: Arc<str>,
    units: usize,
}

impl FairPermits {
    pub(crate) fn new(all: usize) -> Self {
        Self::capped(all, all)
    }

    /// So many, of which no tenant has more than `most`, whether or not the others need theirs.
    pub(crate) fn capped(all: usize, most: usize) -> Self {
        let state = State {
            all,
            free: all,
            over: 0,
            most,
            holders: 0,
            squares: 0,
            tenants: HashMap::default(),
            next: 0,
            waiters: 0,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// So many units at once, if there are that many for this tenant and none of it waits.
    pub(crate) fn try_take(&self, tenant: &Arc<str>, units: usize) -> Option<FairPermit> {
        let mut state = self.state.lock();
        let known = state.tenants.get(tenant);
        let (held, waits) = known.map_or((0, false), |known| (known.held, !known.waiting.is_empty()));
        if waits || !state.may_take(held, units) || state.is_awaited(held) {
            return None;
        }
        state.take(tenant, units);
        Some(self.permit(tenant, units))
    }

    /// One unit more, though none be free or the tenant have its most: of what is there already and was not counted. Whoever
    /// waits, waits until it is given back.
    pub(crate) fn overdraw(&self, tenant: &Arc<str>) -> FairPermit {
        self.state.lock().take(tenant, 1);
        self.permit(tenant, 1)
    }

    /// Whether what is too much is not the tenant's doing: it holds nothing, less than tenants do on average, or just that
    /// where others hold more. Of tenants that hold alike none is: then all of them together are too much.
    pub(crate) fn is_modest(&self, tenant: &str) -> bool {
        let state = self.state.lock();
        let own = state.tenants.get(tenant).map_or(0, |known| known.held);
        // Who only waits is no measure of what others hold.
        own == 0 || (own * state.holders <= state.taken() && state.has_excess())
    }

    /// Whether some hold more than others.
    pub(crate) fn has_excess(&self) -> bool {
        self.state.lock().has_excess()
    }

    /// Waits for them. Safe to drop. More than there are of all is waited for in vain.
    pub(crate) async fn take(&self, tenant: &Arc<str>, units: usize) -> Option<FairPermit> {
        if let Some(permit) = self.try_take(tenant, units) {
            return Some(permit);
        }
        let (turn, wait) = oneshot::channel();
        let place = {
            let mut state = self.state.lock();
            let number = state.next;
            state.next += 1;
            state.waiters += 1;
            let waiter = Waiter { number, units, turn };
            state
                .tenants
                .entry(tenant.clone())
                .or_default()
                .waiting
                .push_back(waiter);
            Place {
                of: self,
                tenant,
                number,
            }
        };
        // Something may have been given back before it waited.
        self.grant();
        let permit = wait.await.ok();
        drop(place);
        permit
    }

    /// Units that are taken.
    pub(crate) fn held(&self) -> usize {
        self.state.lock().taken()
    }

    fn permit(&self, tenant: &Arc<str>, units: usize) -> FairPermit {
        FairPermit {
            of: self.clone(),
            tenant: tenant.clone(),
            units,
        }
    }

    /// Gives what is free to those who wait.
    fn grant(&self) {
        loop {
            let Some((tenant, waiter)) = self.state.lock().next_turn() else {
                return;
            };
            // Sent without the lock: of one who waits no more it is given back at once.
            drop(waiter.turn.send(self.permit(&tenant, waiter.units)));
        }
    }

    fn give_back(&self, tenant: &Arc<str>, units: usize) {
        {
            let mut state = self.state.lock();
            state.give_back(tenant, units);
            if state.waiters == 0 {
                return;
            }
        }
        self.grant();
    }
}

impl State {
    fn taken(&self) -> usize {
        self.all - self.free + self.over
    }

    fn take(&mut self, tenant: &Arc<str>, units: usize) {
        self.over += units.saturating_sub(self.free);
        self.free = self.free.saturating_sub(units);
        let known = match self.tenants.get_mut(tenant) {
            Some(known) => known,
            None => self.tenants.entry(tenant.clone()).or_default(),
        };
        known.held += units;
        let held = known.held;
        self.held(held - units, held);
    }

    fn give_back(&mut self, tenant: &Arc<str>, units: usize) {
        let owed = units.min(self.over);
        self.over -= owed;
        self.free += units - owed;
        let Some(known) = self.tenants.get_mut(tenant) else {
            return;
        };
        known.held -= units;
        let (held, idle) = (known.held, known.is_idle());
        if idle {
            self.tenants.remove(tenant);
        }
        self.held(held + units, held);
    }

    /// One holds another number than before.
    fn held(&mut self, before: usize, now: usize) {
        self.holders = self.holders + usize::from(now > 0) - usize::from(before > 0);
        self.squares = self.squares + square(now) - square(before);
    }

    /// The mean of the squares is the square of the mean where all hold alike, and there alone.
    fn has_excess(&self) -> bool {
        self.squares * self.holders as u128 != square(self.taken())
    }

    fn may_take(&self, held: usize, units: usize) -> bool {
        let part = self.all / KEPT_PART;
        let kept = if held + units <= part { 0 } else { part };
        held + units <= self.most && self.free >= units + kept
    }

    /// Whether somebody waits who holds no more, and needs more than there is: small pieces would pass it for ever.
    fn is_awaited(&self, held: usize) -> bool {
        self.waiters > 0
            && self.tenants.values().any(|known| {
                let first = known.waiting.front();
                let needs = |first: &Waiter| first.units > self.free && known.held + first.units <= self.most;
                known.held <= held && first.is_some_and(needs)
            })
    }

    /// Takes the next waiter out of its queue, with its units taken. Who holds least is first, and is not overtaken while it
    /// needs more than there is; while only what is kept for others, or its own cap, keeps it back, others go on.
    fn next_turn(&mut self) -> Option<(Arc<str>, Waiter)> {
        if self.waiters == 0 {
            return None;
        }
        let waiting = self.tenants.iter().filter_map(|(tenant, known)| {
            let first = known.waiting.front()?;
            let has_enough = known.held + first.units > self.most;
            let kept_back = has_enough || (self.free >= first.units && !self.may_take(known.held, first.units));
            (!kept_back).then_some(((known.held, first.number), first.units, tenant))
        });
        let ((held, _), units, tenant) = waiting.min()?;
        if !self.may_take(held, units) {
            return None;
        }
        let tenant = tenant.clone();
        self.take(&tenant, units);
        self.waiters -= 1;
        let waiter = self.tenants.get_mut(&tenant)?.waiting.pop_front()?;
        Some((tenant, waiter))
    }

    fn forget(&mut self, tenant: &Arc<str>) {
        if self.tenants.get(tenant).is_some_and(Tenant::is_idle) {
            self.tenants.remove(tenant);
        }
    }
}

fn square(held: usize) -> u128 {
    (held as u128).pow(2)
}

impl FairPermit {
    /// Gives back what is over so many units.
    pub(crate) fn keep(&mut self, units: usize) {
        let spare = self.units.saturating_sub(units);
        if spare > 0 {
            self.units -= spare;
            self.of.give_back(&self.tenant, spare);
        }
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        self.of.give_back(&self.tenant, self.units);
    }
}

/// A waiter's place in its tenant's queue: one that goes away leaves none behind.
struct Place<'a> {
    of: &'a FairPermits,
    tenant: &'a Arc<str>,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let left = {
            let mut state = self.of.state.lock();
            let known = state.tenants.get_mut(self.tenant);
            let left = known.and_then(|known| {
                // Ascending: who was granted is looked for in vain, and many may wait behind it.
                let at = known.waiting.binary_search_by_key(&self.number, |waiter| waiter.number);
                known.waiting.remove(at.ok()?)
            });
            state.waiters -= usize::from(left.is_some());
            state.forget(self.tenant);
            left
        };
        if left.is_some() {
            // Others may have stood behind it for want of more than they need themselves.
            self.of.grant();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use futures::poll;

    use super::*;

    fn name(name: &str) -> Arc<str> {
        name.into()
    }

    #[tokio::test]
    async fn what_is_given_back_goes_to_who_holds_least() {
        let permits = FairPermits::new(16);
        let (many, few) = (name("many"), name("few"));
        let mut held: Vec<_> = (0..14).map(|_| permits.try_take(&many, 1).unwrap()).collect();
        assert!(permits.try_take(&many, 1).is_none(), "an eighth is kept");
        let mut more: Vec<_> = (0..4).map(|_| Box::pin(permits.take(&many, 1))).collect();
        for one in &mut more {
            assert!(poll!(one).is_pending());
        }
        let own: Vec<_> = (0..2).map(|_| permits.try_take(&few, 1).unwrap()).collect();
        let mut third = Box::pin(permits.take(&few, 1));
        assert!(poll!(&mut third).is_pending(), "it holds an eighth");
        // What is free is the eighth that is kept, until there is more than that.
        held.truncate(11);
        let Poll::Ready(Some(granted)) = poll!(&mut third) else {
            panic!("it came last, and is first");
        };
        assert!(poll!(&mut more[0]).is_pending());
        drop(granted);
        let first = poll!(&mut more[0]);
        assert!(matches!(first, Poll::Ready(Some(_))));
        assert!(poll!(&mut more[1]).is_pending());
        drop((held, own, more, third, first));
        let state = permits.state.lock();
        assert_eq!((state.free, state.tenants.len(), state.waiters), (16, 0, 0));
    }

    #[tokio::test]
    async fn what_is_taken_beyond_all_is_given_back_before_anybody_gets_more() {
        let permits = FairPermits::new(2);
        let [one, two] = ["one", "two"].map(name);
        let mut held = vec![permits.try_take(&one, 1).unwrap(), permits.overdraw(&one)];
        held.extend([permits.overdraw(&one), permits.overdraw(&two)]);
        assert_eq!(permits.held(), 4);
        assert!(permits.has_excess());
        let mut waits = Box::pin(permits.take(&two, 1));
        for _ in 0..2 {
            held.remove(0);
            assert!(poll!(&mut waits).is_pending());
        }
        held.remove(0);
        assert!(matches!(poll!(&mut waits), Poll::Ready(Some(_))));
        drop((held, waits));
        let state = permits.state.lock();
        assert_eq!(
            (state.free, state.over, state.tenants.len(), state.squares),
            (2, 0, 0, 0)
        );
    }

    #[test]
    fn who_holds_less_than_others_do_is_modest() {
        let permits = FairPermits::new(32);
        let [many, few] = ["many", "few"].map(name);
        let held: Vec<_> = (0..9).map(|_| permits.try_take(&many, 1).unwrap()).collect();
        assert!(!permits.is_modest(&many), "alone it is all there is");
        let own = permits.try_take(&few, 1).unwrap();
        assert!(permits.is_modest(&few) && !permits.is_modest(&many) && permits.is_modest("nobody"));
        let more: Vec<_> = (0..8).map(|_| permits.try_take(&few, 1).unwrap()).collect();
        assert!(
            !permits.is_modest(&few) && !permits.is_modest(&many),
            "who is like the others is not"
        );
        assert!(!permits.has_excess());
        drop((held, own, more));
        let state = permits.state.lock();
        assert_eq!((state.holders, state.squares), (0, 0));
    }

    #[test]
    fn who_holds_the_average_is_modest_where_others_hold_more() {
        let permits = FairPermits::new(64);
        let held = [("least", 1), ("like all", 2), ("most", 3)].map(|(tenant, units)| {
            let permit = permits.try_take(&name(tenant), units).unwrap();
            (tenant, permit)
        });
        let modest: Vec<_> = held.iter().filter(|(tenant, _)| permits.is_modest(tenant)).collect();
        assert_eq!(modest.len(), 2, "{modest:?}");
        assert!(!permits.is_modest("most"), "somebody always is too much");
    }

    #[tokio::test]
    async fn small_pieces_do_not_pass_a_large_one_for_ever() {
        let permits = FairPermits::new(80);
        let [large, small, other] = ["large", "small", "other"].map(name);
        let held = permits.try_take(&other, 50).unwrap();
        let mut waits = Box::pin(permits.take(&large, 40));
        assert!(poll!(&mut waits).is_pending());
        assert!(
            permits.try_take(&small, 1).is_none(),
            "it holds no less, and comes later"
        );
        drop(held);
        assert!(matches!(poll!(&mut waits), Poll::Ready(Some(_))));
        assert!(permits.try_take(&small, 1).is_some());
    }

    #[tokio::test]
    async fn what_is_kept_for_others_keeps_back_only_whom_it_must() {
        let permits = FairPermits::new(256);
        let [less, more] = ["less", "more"].map(name);
        let held = (
            permits.try_take(&less, 30),
            permits.try_take(&more, 31),
            permits.try_take(&name("rest"), 163),
        );
        // An eighth is 32: both would be over it, and 32 of 32 free are kept, but for the last.
        let mut large = Box::pin(permits.take(&less, 8));
        assert!(poll!(&mut large).is_pending());
        let mut within = Box::pin(permits.take(&more, 1));
        assert!(
            matches!(poll!(&mut within), Poll::Ready(Some(_))),
            "it stays below its eighth"
        );
        drop(held);
        assert!(matches!(poll!(&mut large), Poll::Ready(Some(_))));
    }

    #[tokio::test]
    async fn who_has_its_most_waits_for_itself_alone() {
        let permits = FairPermits::capped(16, 4);
        let [many, few] = ["many", "few"].map(name);
        let mut held: Vec<_> = (0..4).map(|_| permits.try_take(&many, 1).unwrap()).collect();
        let mut next = Box::pin(permits.take(&many, 1));
        assert!(poll!(&mut next).is_pending(), "it has all that it may have");
        let other = permits.try_take(&few, 1).expect("there are more");
        held.pop();
        assert!(matches!(poll!(&mut next), Poll::Ready(Some(_))));
        drop((held, other, next));
        assert_eq!(permits.state.lock().free, 16);
    }

    #[tokio::test]
    async fn who_goes_away_holds_up_nobody() {
        let permits = FairPermits::new(8);
        let [one, two] = ["one", "two"].map(name);
        let held = permits.try_take(&one, 7).unwrap();
        let mut large = Box::pin(permits.take(&two, 6));
        assert!(poll!(&mut large).is_pending());
        let mut small = Box::pin(permits.take(&two, 1));
        assert!(poll!(&mut small).is_pending(), "in order, for one tenant");
        drop(large);
        assert!(matches!(poll!(&mut small), Poll::Ready(Some(_))));
        drop((held, small));
        assert_eq!(permits.state.lock().free, 8);
    }

    #[tokio::test]
    async fn a_grant_to_who_has_just_left_is_not_lost() {
        let permits = FairPermits::new(1);
        let [one, two] = ["one", "two"].map(name);
        let held = permits.try_take(&one, 1).unwrap();
        let mut gone = Box::pin(permits.take(&two, 1));
        let mut next = Box::pin(permits.take(&one, 1));
        assert!(poll!(&mut gone).is_pending() && poll!(&mut next).is_pending());
        drop(held);
        // It was granted, and never looked.
        drop(gone);
        assert!(matches!(poll!(&mut next), Poll::Ready(Some(_))));
        drop(next);
        assert_eq!(permits.state.lock().free, 1);
    }

    #[tokio::test]
    async fn bytes_that_are_not_needed_are_given_back() {
        let permits = FairPermits::new(80);
        let [one, two] = ["one", "two"].map(name);
        let mut held = permits.try_take(&one, 60).unwrap();
        let mut waits = Box::pin(permits.take(&two, 30));
        assert!(poll!(&mut waits).is_pending());
        held.keep(20);
        assert!(matches!(poll!(&mut waits), Poll::Ready(Some(_))));
    }
}
