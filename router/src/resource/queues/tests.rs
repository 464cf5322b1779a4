//! Whatever comes in whatever order: nothing is lost, bounds hold, Leases never wait, nobody starves, and who floods a member
//! waits behind itself.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::class::{Class, WAITING};
use super::core::{Arrival, Core, ESTIMATE, Place, TENANT_LEASES, TENANT_OTHER_LEASES, Ticket};
use super::flow::{Flow, HAND};

const SEATS: usize = 16;
const PLACES: usize = 32;

#[derive(Debug, Clone)]
enum Step {
    Come { class: Class, tenant: u64, caller: u64 },
    Done { which: usize },
    Leave { which: usize },
    Wait { millis: u64 },
}

fn class() -> impl Strategy<Value = Class> {
    prop_oneof![
        1 => Just(Class::Lease),
        2 => Just(Class::Running),
        4 => Just(Class::Single),
        4 => Just(Class::List)
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let come = (class(), 1_u64..6, 0_u64..3);
    let step = prop_oneof![
        6 => come.prop_map(|(class, tenant, caller)| Step::Come { class, tenant, caller }),
        4 => any::<usize>().prop_map(|which| Step::Done { which }),
        1 => any::<usize>().prop_map(|which| Step::Leave { which }),
        2 => (0_u64..2_000).prop_map(|millis| Step::Wait { millis }),
    ];
    proptest::collection::vec(step, 0..400)
}

/// The queues of one member, with everybody who is there.
struct History {
    core: Core,
    now: Instant,
    seated: Vec<(Ticket, Flow)>,
    waiting: HashMap<u64, (Place, Flow)>,
}

impl History {
    fn new(seed: u64) -> Self {
        Self::sized(SEATS, PLACES, seed)
    }

    fn sized(seats: usize, places: usize, seed: u64) -> Self {
        Self {
            core: Core::new(seats, places, seed),
            now: Instant::now(),
            seated: Vec::new(),
            waiting: HashMap::new(),
        }
    }

    /// What became of it, and who else was seated.
    fn come(&mut self, class: Class, flow: Flow) -> Arrival {
        let arrival = self.core.arrive(class, flow, self.now);
        match arrival {
            Arrival::Seated(ticket) => self.seated.push((ticket, flow)),
            Arrival::Waits(place) => {
                let before = self.waiting.insert(place.number, (place, flow));
                assert!(before.is_none(), "a number is given twice");
            }
            Arrival::Full => {}
        }
        assert_eq!(self.call(), 0, "who comes makes room for nobody");
        arrival
    }

    fn done(&mut self, which: usize) -> usize {
        // In order, the oldest first.
        let (ticket, _) = self.seated.remove(which % self.seated.len());
        self.core.done(&ticket, self.now);
        self.call()
    }

    /// Seats whoever can be.
    fn call(&mut self) -> usize {
        let mut called = 0;
        while let Some((number, ticket)) = self.core.next(self.now) {
            let (place, flow) = self
                .waiting
                .remove(&number)
                .expect("nobody is called who does not wait");
            assert_eq!(place.class, ticket.class);
            self.seated.push((ticket, flow));
            called += 1;
        }
        called
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Come { class, tenant, caller } => {
                let arrival = self.come(class, Flow::numbered(tenant, caller));
                let few = self.core.tenant(tenant).2 < TENANT_LEASES;
                assert!(
                    class != Class::Lease || !few || matches!(arrival, Arrival::Seated(_)),
                    "a Lease waits"
                );
                assert!(
                    class != Class::Running || arrival != Arrival::Full,
                    "a running watch is refused"
                );
            }
            Step::Done { which } if !self.seated.is_empty() => {
                self.done(which);
            }
            Step::Leave { which } if !self.waiting.is_empty() => {
                let mut numbers: Vec<_> = self.waiting.keys().copied().collect();
                numbers.sort_unstable();
                let (place, _) = self.waiting.remove(&numbers[which % numbers.len()]).unwrap();
                assert!(self.core.leave(&place));
                assert!(!self.core.leave(&place), "it left already");
                assert_eq!(self.call(), 0, "it had no seat to give");
            }
            Step::Wait { millis } => self.now += Duration::from_millis(millis),
            Step::Done { .. } | Step::Leave { .. } => {}
        }
    }

    /// What must hold at any time.
    fn check(&self) {
        let (seats, places) = self.core.bounds();
        let (seated, waiting) = self.core.counts();
        assert!(seated.all() <= seats.all, "more are served than there are seats");
        assert!(seated.single + seated.list <= seats.all * 7 / 8 && seated.list <= seats.all * 3 / 4);
        assert!(waiting.single + waiting.list <= places.all * 7 / 8 && waiting.list <= places.all / 2);
        assert_eq!(waiting.all(), self.waiting.len());
        let bounded = |(ticket, _): &&(Ticket, Flow)| ticket.class != Class::Lease;
        assert_eq!(seated.all(), self.seated.iter().filter(bounded).count());
        for tenant in 1..6 {
            let (has, waits, leases) = self.core.tenant(tenant);
            let of = |(ticket, flow): &&(Ticket, Flow)| flow.tenant == tenant && ticket.class != Class::Lease;
            assert_eq!(has, self.seated.iter().filter(of).count());
            assert!(has <= seats.tenant && leases <= TENANT_LEASES, "tenant {tenant}");
            let of = |(place, flow): &&(Place, Flow)| flow.tenant == tenant && place.class != Class::Running;
            let bounded = self.waiting.values().filter(of).count();
            assert!(bounded <= waits && bounded <= places.tenant, "tenant {tenant}");
        }
    }
}

/// A stage of a story: these go on asking, each request takes so long.
struct Story {
    history: History,
    /// When each who is seated is done.
    ends: Vec<(Instant, Ticket, Flow)>,
}

impl Story {
    fn of(history: History) -> Self {
        Self {
            history,
            ends: Vec::new(),
        }
    }

    fn come(&mut self, class: Class, flow: Flow) -> Arrival {
        self.history.come(class, flow)
    }

    /// Plans the end of whoever was seated since.
    fn plan(&mut self, takes: impl Fn(Class, Flow) -> Duration) {
        let now = self.history.now;
        for (ticket, flow) in &self.history.seated {
            // Two that came at once may look alike.
            let alike = |known: &Ticket| known == ticket;
            let planned = self.ends.iter().filter(|(_, known, _)| alike(known)).count();
            let seated = self.history.seated.iter().filter(|(known, _)| alike(known)).count();
            let more = std::iter::repeat_n((now + takes(ticket.class, *flow), *ticket, *flow), seated - planned);
            self.ends.extend(more);
        }
    }

    /// To the next end: whose it was.
    fn step(&mut self) -> Flow {
        let first = (0..self.ends.len()).min_by_key(|&at| self.ends[at].0);
        let (at, ticket, flow) = self.ends.swap_remove(first.expect("somebody is served"));
        self.history.now = self.history.now.max(at);
        let mut seated = self.history.seated.iter();
        let which = seated.position(|(known, _)| *known == ticket).unwrap();
        self.history.done(which);
        flow
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Bounds hold, Leases never wait, and once all are gone nothing is left of anybody.
    #[test]
    fn whatever_happens_bounds_hold_and_nothing_is_lost(steps in steps(), seed in any::<u64>()) {
        let mut history = History::new(seed);
        for step in &steps {
            history.take(step);
            history.check();
        }
        while !history.seated.is_empty() {
            history.now += Duration::from_millis(1);
            history.done(0);
            history.check();
        }
        prop_assert!(history.waiting.is_empty(), "who waits is called when there is room");
        prop_assert_eq!(history.core.tenants(), 0);
        prop_assert_eq!(history.core.crowds().map(|crowd| crowd.seated + crowd.waiting), [0; 4]);
    }

}

proptest! {
    // Long stories each.
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Whatever others keep asking, of each class at once: the one that waits of any class is seated within so many ends.
    #[test]
    fn no_class_starves(
        crowd in proptest::collection::vec((class(), 1_u64..6), 30..50),
        of in 0_usize..3,
        ends in proptest::collection::vec(any::<usize>(), 100),
        seed in any::<u64>(),
    ) {
        let mut history = History::new(seed);
        // Of a tenant that has much already: what is kept for who has nothing is not for it.
        let me = Flow::numbered(1, 99);
        for _ in 0..4 {
            history.come(Class::Single, Flow::numbered(1, 0));
        }
        for (class, tenant) in &crowd {
            history.come(*class, Flow::numbered(*tenant, 0));
        }
        let Arrival::Waits(place) = history.come(WAITING[of], me) else { return Ok(()) };
        let mut ended = 0;
        while history.waiting.contains_key(&place.number) {
            let bounded: Vec<_> = (0..history.seated.len())
                .filter(|&at| history.seated[at].0.class != Class::Lease)
                .collect();
            history.now += Duration::from_millis(5);
            // Nothing takes for ever: of two ends one is of the oldest.
            let which = if ended % 2 == 0 { 0 } else { ends[ended % ends.len()] % bounded.len() };
            history.done(bounded[which]);
            ended += 1;
            // Whoever is served or goes is replaced at once by more of the same.
            let all = crowd.iter().filter(|(class, _)| *class != Class::Lease);
            for (class, tenant) in all.chain([&(Class::Single, 1)]) {
                history.come(*class, Flow::numbered(*tenant, 0));
            }
            prop_assert!(ended <= 400 * SEATS, "a {:?} starves", place.class);
        }
    }

    /// Whatever anybody asks for, and calls a Lease: a tenant's election is seated at once as long as it has no more of them
    /// than elections, and so is any Lease of who does not flood.
    #[test]
    fn no_lease_starves(
        crowd in proptest::collection::vec((class(), 1_u64..4, any::<bool>()), 0..400),
        elections in 1_usize..(TENANT_LEASES - TENANT_OTHER_LEASES),
        seed in any::<u64>(),
    ) {
        let mut history = History::new(seed);
        let flood = Flow::numbered(1, 7);
        for (class, tenant, leases) in crowd {
            let flow = Flow::numbered(tenant, 0);
            let class = if leases || class == Class::Lease { history.core.of_lease(flow) } else { class };
            let arrival = history.come(class, flow);
            prop_assert!(class != Class::Lease || matches!(arrival, Arrival::Seated(_)));
            prop_assert!(history.core.tenant(tenant).2 <= TENANT_OTHER_LEASES);
        }
        for election in 0..elections {
            let arrival = history.come(Class::Lease, flood);
            prop_assert!(matches!(arrival, Arrival::Seated(_)), "election {election} waits");
        }
        let other = Flow::numbered(99, 0);
        prop_assert_eq!(history.core.of_lease(other), Class::Lease);
        prop_assert!(matches!(history.come(Class::Lease, other), Arrival::Seated(_)));
    }

    /// Who asks for one thing at a time waits for one turn of those who flood the member, however many requests they have.
    #[test]
    fn nobody_waits_longer_than_its_fair_share_allows(
        noisy in proptest::collection::vec((1_u64..10, 1_u64..100), 1..4),
        waits in 1_usize..3,
        seed in any::<u64>(),
    ) {
        let class = WAITING[waits];
        let takes = |_: Class, flow: Flow| Duration::from_millis(noisy.get(of(flow)).map_or(10, |(_, ms)| *ms));
        let mut story = Story::of(History::new(seed));
        let me = Flow::numbered(99, 0);
        let (mut waited, mut asked) = (Vec::new(), 0);
        let mut place: Option<(Place, usize, bool)> = None;
        let mut ends = 0;
        while asked < 30 {
            for (tenant, (callers, _)) in (0..).zip(&noisy) {
                for caller in 0..*callers {
                    story.come(class, Flow::numbered(tenant, caller));
                }
            }
            if place.is_none_or(|(place, ..)| !story.history.waiting.contains_key(&place.number)) {
                if let Some((_, since, alone)) = place.take()
                    && alone
                {
                    waited.push(ends - since);
                }
                let mine = story.history.seated.iter().any(|(_, flow)| *flow == me);
                if !mine {
                    asked += 1;
                    match story.come(class, me) {
                        Arrival::Waits(mine) => {
                            // Two hands may have a queue in common; with few tenants there is nearly always another.
                            let alone = story.history.core.beside(&mine) == (1, 0);
                            place = Some((mine, ends, alone));
                        }
                        Arrival::Seated(_) => waited.push(0),
                        Arrival::Full => prop_assert!(false, "who has nothing waiting is refused"),
                    }
                }
            }
            story.plan(takes);
            story.step();
            ends += 1;
        }
        // Each queue of the others has one turn before, and one for what it was charged too little for.
        let turns = story.history.core.busy(class);
        let longest = waited.iter().max().copied().unwrap_or_default();
        prop_assert!(longest <= 2 * turns + 1, "{longest} ends for {turns} queues");
    }

    /// Tenants that always want more have the member's time alike, whatever their requests take and however many callers ask.
    #[test]
    fn those_who_want_all_have_equal_parts(
        tenants in proptest::collection::vec((2_u64..60, 2_u64..6), 2..6),
        seed in any::<u64>(),
    ) {
        let mut story = Story::of(History::sized(64, 512, seed));
        let class = Class::Single;
        let time = |_: Class, flow: Flow| Duration::from_millis(tenants[of(flow)].0);
        let mut had = vec![Duration::ZERO; tenants.len()];
        let mut since = story.history.now;
        while story.history.now - since < Duration::from_millis(800) {
            for (tenant, (_, callers)) in (0..).zip(&tenants) {
                for caller in 0..*callers {
                    story.come(class, Flow::numbered(tenant, caller));
                }
            }
            story.plan(time);
            // The first who came had seats before there were others.
            if story.ends.len() < 40 {
                since = story.history.now;
            }
            let flow = story.step();
            had[of(flow)] += time(class, flow);
        }
        let (less, more) = (had.iter().min().unwrap(), had.iter().max().unwrap());
        prop_assert!(*more <= *less * 4 / 3, "{had:?}");
    }
}

/// Index of its tenant.
fn of(flow: Flow) -> usize {
    usize::try_from(flow.tenant).unwrap()
}

#[test]
fn the_callers_of_one_tenant_take_turns() {
    let mut history = History::sized(64, 400, 1);
    let [loud, quiet] = [Flow::numbered(1, 1), Flow::numbered(1, 2)];
    while let Arrival::Seated(_) = history.come(Class::Single, loud) {}
    for _ in 0..60 {
        assert!(matches!(history.come(Class::Single, loud), Arrival::Waits(_)));
    }
    let Arrival::Waits(place) = history.come(Class::Single, quiet) else {
        panic!("the tenant has all it may")
    };
    let mut ended = 0;
    while history.waiting.contains_key(&place.number) {
        history.now += ESTIMATE;
        history.done(0);
        ended += 1;
    }
    assert!(ended <= 3 * HAND, "{ended}: not all of the other caller's come first");
}

#[test]
fn however_many_callers_wait_whose_turn_it_is_takes_a_look_at_each_tenant() {
    let mut history = History::sized(64, 4_096, 1);
    for tenant in 0..3 {
        for caller in 0..300 {
            history.come(Class::Single, Flow::numbered(tenant, caller));
        }
    }
    assert!(history.waiting.len() > 800);
    assert!(history.core.standing(Class::Single) <= 3 * HAND);
}

#[test]
fn the_more_urgent_come_first() {
    let mut history = History::new(1);
    // Four tenants: single requests have no seat left, lists and running watches want them too.
    let mut tenant = 0;
    while let Arrival::Seated(_) = history.come(Class::Single, Flow::numbered(tenant, 0)) {
        tenant += 1;
    }
    while let Arrival::Seated(_) = history.come(Class::Running, Flow::numbered(100 + tenant, 0)) {
        tenant += 1;
    }
    let mut order = Vec::new();
    for class in [Class::List, Class::Single, Class::Running] {
        for tenant in 50..52 {
            assert!(matches!(
                history.come(class, Flow::numbered(tenant, 0)),
                Arrival::Waits(_)
            ));
        }
    }
    while !history.waiting.is_empty() {
        let before = history.seated.len() - 1;
        history.now += ESTIMATE;
        history.done(0);
        order.extend(history.seated[before..].iter().map(|(ticket, _)| ticket.class));
    }
    assert_eq!(order[0], Class::List, "it has less than its part");
    let at = |class| order.iter().rposition(|one| *one == class).unwrap();
    assert!(at(Class::Running) < at(Class::Single), "{order:?}");
}
