//! The addresses behind an endpoint's name: which of them the next connection goes to, and which have left DNS. Pure.
//!
//! Connections are spread: the address with the fewest gets the next one, families by turns where that is equal; one that just failed
//! is tried last. Caller: `dialer`, which asks the resolver and adds the lock and the clock.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How old what a resolver said may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ages {
    /// An answer is good for the dials of so long: a crowd that connects asks once.
    pub(super) fresh: Duration,
    /// Between questions while there are connections, none of which need be dialled anew for long.
    pub(super) asked_again: Duration,
    /// An address that has not been in any answer for so long gets no more streams. Longer than two questions: one odd answer of
    /// a resolver that gives some of many addresses is no end.
    pub(super) gone: Duration,
}

/// Of every name.
pub(super) const AGES: Ages = Ages {
    fresh: Duration::from_secs(5),
    asked_again: Duration::from_secs(30),
    gone: Duration::from_secs(90),
};
/// An address that failed is tried last for so long.
const AVOID_FAILED_FOR: Duration = Duration::from_secs(10);
/// A name that has never meant anything is asked for again after this: each request would ask.
const UNKNOWN_FOR: Duration = Duration::from_secs(1);
/// Of one name.
const MAX_ADDRESSES: usize = 32;

/// Of one endpoint.
#[derive(Debug)]
pub(super) struct Addresses {
    ages: Ages,
    /// The last answer that held any, families by turns.
    named: Vec<SocketAddr>,
    /// When it came, or was asked for in vain.
    asked: Option<Instant>,
    /// Those of the answer, and those that still have connections.
    known: HashMap<SocketAddr, Address>,
}

/// Whether a connection to an address broke, and none has brought an answer since. An atomic: every answer looks at it.
#[derive(Debug, Clone, Default)]
pub(super) struct Broken(Arc<AtomicBool>);

#[derive(Debug, Default)]
struct Address {
    connections: usize,
    failed: Option<Instant>,
    broken: Broken,
    gone: Option<Instant>,
}

impl Broken {
    /// An answer came.
    pub(super) fn answered(&self) {
        if self.is_so() {
            self.0.store(false, Ordering::Relaxed);
        }
    }

    fn is_so(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Addresses {
    pub(super) fn new(ages: Ages) -> Self {
        Self {
            ages,
            named: Vec::new(),
            asked: None,
            known: HashMap::new(),
        }
    }

    /// An answer; an empty one (an error, too) leaves what was known: a resolver that is away takes no member along.
    pub(super) fn resolved(&mut self, now: Instant, mut found: Vec<SocketAddr>) {
        self.asked = Some(now);
        found.truncate(MAX_ADDRESSES);
        if !found.is_empty() {
            self.named = by_turns(&found);
        }
        for address in &self.named {
            self.known.entry(*address).or_default().gone = None;
        }
        let named = &self.named;
        self.known.retain(|address, state| {
            if named.contains(address) {
                return true;
            }
            state.gone.get_or_insert(now);
            state.connections > 0
        });
    }

    /// Whether a dial must ask first.
    pub(super) fn is_stale(&self, now: Instant) -> bool {
        let age = if self.named.is_empty() {
            UNKNOWN_FOR
        } else {
            self.ages.fresh
        };
        self.is_older(now, age)
    }

    /// Whether it is time to ask though nobody dials. If so, whoever asked this asks the resolver.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let due = self.is_older(now, self.ages.asked_again);
        if due {
            self.asked = Some(now);
        }
        due
    }

    fn is_older(&self, now: Instant, age: Duration) -> bool {
        self.asked.is_none_or(|at| now.saturating_duration_since(at) >= age)
    }

    /// For one dial, the best first.
    pub(super) fn order(&self, now: Instant) -> Vec<SocketAddr> {
        let mut order = self.named.clone();
        order.sort_by_key(|address| {
            let connections = self.known.get(address).map_or(0, |state| state.connections);
            (self.is_failing(now, *address), connections)
        });
        order
    }

    /// Whether there is one that nothing speaks against: all may lead to the same frozen balancer.
    pub(super) fn has_sound(&self) -> bool {
        let is_broken = |address| self.known.get(address).is_some_and(|state| state.broken.is_so());
        self.named.iter().any(|address| !is_broken(address))
    }

    fn is_failing(&self, now: Instant, address: SocketAddr) -> bool {
        let failed = self.known.get(&address).and_then(|state| state.failed);
        failed.is_some_and(|at| now.saturating_duration_since(at) < AVOID_FAILED_FOR)
    }

    /// Addresses there are to choose from.
    pub(super) fn len(&self) -> usize {
        self.named.len()
    }

    /// A connection, or an attempt at one, begins; what its answers are told to.
    pub(super) fn began(&mut self, address: SocketAddr) -> Broken {
        let state = self.known.entry(address).or_default();
        state.connections += 1;
        state.broken.clone()
    }

    /// And is over.
    pub(super) fn ended(&mut self, address: SocketAddr) {
        let Some(state) = self.known.get_mut(&address) else {
            return;
        };
        state.connections = state.connections.saturating_sub(1);
        if state.connections == 0 && !self.named.contains(&address) {
            self.known.remove(&address);
        }
    }

    pub(super) fn failed(&mut self, now: Instant, address: SocketAddr) {
        if let Some(state) = self.known.get_mut(&address) {
            state.failed = Some(now);
        }
    }

    /// An open connection broke.
    pub(super) fn broke(&mut self, now: Instant, address: SocketAddr) {
        self.failed(now, address);
        if let Some(state) = self.known.get_mut(&address) {
            state.broken.0.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn connected(&mut self, address: SocketAddr) {
        if let Some(state) = self.known.get_mut(&address) {
            state.failed = None;
        }
    }

    /// Whether connections to it are to end.
    pub(super) fn is_gone(&self, now: Instant, address: SocketAddr) -> bool {
        let gone = self.known.get(&address).and_then(|state| state.gone);
        gone.is_some_and(|at| now.saturating_duration_since(at) >= self.ages.gone)
    }

    /// With the connections of each, for pages.
    pub(super) fn report(&self) -> Vec<(SocketAddr, usize)> {
        let mut all: Vec<_> = self.known.iter().map(|(at, state)| (*at, state.connections)).collect();
        all.sort();
        all
    }
}

/// The resolver's order with families by turns, as in RFC 8305: one that has no way costs one attempt.
fn by_turns(found: &[SocketAddr]) -> Vec<SocketAddr> {
    let Some(first) = found.first() else {
        return Vec::new();
    };
    let (same, other): (Vec<_>, Vec<_>) = found.iter().partition(|address| address.is_ipv6() == first.is_ipv6());
    let longest = same.len().max(other.len());
    let pairs = (0..longest).flat_map(|at| [same.get(at), other.get(at)]);
    let mut all = Vec::new();
    for address in pairs.flatten() {
        if !all.contains(address) {
            all.push(*address);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(all: &[&str]) -> Vec<SocketAddr> {
        all.iter().map(|address| address.parse().unwrap()).collect()
    }

    fn known(now: Instant, all: &[&str]) -> (Addresses, Vec<SocketAddr>) {
        let all = addresses(all);
        let mut known = Addresses::new(AGES);
        known.resolved(now, all.clone());
        (known, all)
    }

    #[test]
    fn families_take_turns() {
        let now = Instant::now();
        let (known, _) = known(now, &["[::1]:1", "[::2]:1", "[::3]:1", "1.0.0.1:1", "1.0.0.1:1"]);
        let expected = addresses(&["[::1]:1", "1.0.0.1:1", "[::2]:1", "[::3]:1"]);
        assert_eq!(known.order(now), expected);
    }

    #[test]
    fn the_fewest_connections_first_and_what_failed_last() {
        let now = Instant::now();
        let (mut known, all) = known(now, &["1.0.0.1:1", "1.0.0.2:1", "1.0.0.3:1"]);
        let mut counts = HashMap::<_, u32>::new();
        for _ in 0..9 {
            let next = known.order(now)[0];
            known.began(next);
            *counts.entry(next).or_default() += 1;
        }
        assert!(all.iter().all(|address| counts[address] == 3), "{counts:?}");
        known.ended(all[1]);
        assert_eq!(known.order(now)[0], all[1]);
        known.failed(now, all[1]);
        assert_eq!(known.order(now)[2], all[1]);
        assert_eq!(known.order(now + AVOID_FAILED_FOR)[0], all[1]);
    }

    #[test]
    fn broken_addresses_are_sound_again_by_an_answer_alone() {
        let now = Instant::now();
        let (mut known, all) = known(now, &["1.0.0.1:1", "1.0.0.2:1"]);
        let over = known.began(all[1]);
        known.broke(now, all[0]);
        assert!(known.has_sound(), "there is another");
        known.broke(now + AVOID_FAILED_FOR, all[1]);
        assert!(!known.has_sound(), "however long the first has not been tried");
        known.connected(all[1]);
        assert!(!known.has_sound(), "what stands before it takes every connection");
        over.answered();
        assert!(known.has_sound());
    }

    #[test]
    fn what_left_the_name_is_gone_after_a_while_and_may_be_back_before() {
        let now = Instant::now();
        let (mut known, all) = known(now, &["1.0.0.1:1", "1.0.0.2:1"]);
        known.began(all[0]);
        known.resolved(now, addresses(&["1.0.0.2:1"]));
        assert_eq!(known.order(now), [all[1]]);
        assert!(!known.is_gone(now + AGES.gone / 2, all[0]));
        known.resolved(now + AGES.gone / 2, all.clone());
        assert!(!known.is_gone(now + AGES.gone, all[0]), "it is back");
        let later = now + AGES.gone;
        for _ in 0..3 {
            known.resolved(later, addresses(&["1.0.0.2:1"]));
        }
        assert!(!known.is_gone(later, all[0]) && known.is_gone(later + AGES.gone, all[0]));
        known.ended(all[0]);
        assert_eq!(known.report(), [(all[1], 0)], "forgotten with its last connection");
    }

    #[test]
    fn a_resolver_that_says_nothing_takes_nothing_away() {
        let now = Instant::now();
        let (mut known, all) = known(now, &["1.0.0.1:1"]);
        assert!(!known.is_stale(now) && known.is_stale(now + AGES.fresh));
        assert!(!known.is_due(now) && known.is_due(now + AGES.asked_again));
        assert!(!known.is_due(now + AGES.asked_again), "somebody asks");
        known.resolved(now + AGES.asked_again, Vec::new());
        assert_eq!(known.order(now), all);
        let mut unknown = Addresses::new(AGES);
        assert!(unknown.is_stale(now));
        unknown.resolved(now, Vec::new());
        assert!(!unknown.is_stale(now) && unknown.is_stale(now + UNKNOWN_FOR));
        assert!(!known.is_gone(now + AGES.asked_again + AGES.gone, all[0]));
    }
}
