//! Who waits for a place, who has one and when it is given back, in order and in random histories.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use futures::poll;
use portolan_merge::object_meta::INITIAL_EVENTS_END;
use proptest::prelude::{Just, Strategy, any};
use proptest::{prop_oneof, proptest};

use super::*;
use crate::value::snapshot::{Binding, CallerKey, CallerView};

/// What one caller takes of [`TENANT_PLACES`].
const OWN_PLACES: usize = TENANT_PLACES - 1;

/// Wakes nobody, and counts how often it should have.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn person(user: &str) -> Caller {
    Caller::Person {
        user: user.to_owned(),
        groups: Vec::new(),
    }
}

/// All of one tenant.
fn replica(pod: &str) -> Caller {
    Caller::Pod(Arc::new(CallerView {
        key: CallerKey {
            home_cluster: "east".into(),
            pod_uid: pod.into(),
        },
        namespace: "ops".into(),
        pod: pod.to_owned(),
        service_account: "op".to_owned(),
        user: CallerView::user_of("ops", "op"),
        created_unix_seconds: None,
        held_elsewhere: None,
        policy_names: Arc::default(),
        policies: None,
        binding: Binding::None,
    }))
}

/// Places of starts that are taken.
fn held(places: &Places, caller: &Caller) -> usize {
    let of = places.starts.find(&caller.tenant());
    of.map_or(0, |of| of.new.held())
}

#[tokio::test]
async fn tenants_wait_for_themselves_alone() {
    let (places, [many, few]) = (Places::default(), ["many", "few"].map(person));
    let mut held = Vec::new();
    for _ in 0..OWN_PLACES {
        held.push(places.list(&many, false).await.unwrap());
    }
    let mut next = Box::pin(places.list(&many, false));
    assert!(poll!(&mut next).is_pending());
    drop(places.list(&few, false).await.unwrap());
    drop(places.start(&many, false, First::State).await.unwrap());
    held.pop();
    drop(next.await.unwrap());
    drop(held);
    assert_eq!((places.lists.len(), places.starts.len()), (0, 0));
}

#[tokio::test]
async fn a_broken_replica_does_not_keep_its_siblings_waiting() {
    let places = Places::default();
    let [broken, second, third] = ["broken", "second", "third"].map(replica);
    let mut held = Vec::new();
    for _ in 0..OWN_PLACES {
        held.push(places.start(&broken, false, First::State).await.unwrap());
    }
    let mut waiting: Vec<_> = (0..500)
        .map(|_| Box::pin(places.start(&broken, false, First::State)))
        .collect();
    for start in &mut waiting {
        assert!(poll!(start).is_pending());
    }
    let Poll::Ready(Some(kept)) = poll!(Box::pin(places.start(&second, false, First::State))) else {
        panic!("there is one for it");
    };
    let mut last = Box::pin(places.start(&third, false, First::State));
    assert!(poll!(&mut last).is_pending(), "all are taken");
    held.pop();
    assert!(poll!(&mut waiting[0]).is_pending());
    assert!(poll!(&mut last).is_ready(), "it came last, and is next");
    drop((kept, waiting, last, held));
    assert_eq!(places.starts.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn only_who_gets_a_place_wakes_when_one_is_over() {
    let (places, one) = (Places::default(), person("one"));
    let held = places.list(&one, false).await.unwrap();
    tokio::time::advance(LASTS / 2).await;
    let mut rest = Vec::new();
    for _ in 1..OWN_PLACES {
        rest.push(places.list(&one, false).await.unwrap());
    }
    let mut waiting: Vec<_> = (0..50)
        .map(|_| (Box::pin(places.list(&one, false)), Arc::new(Woken::default())))
        .collect();
    for (list, woken) in &mut waiting {
        let waker = Waker::from(woken.clone());
        assert!(list.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    tokio::time::sleep(LASTS / 2).await;
    let (first, woken) = &mut waiting[0];
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    // It takes the place back, and is then given it.
    let mut polls = (0..2).map(|_| first.as_mut().poll(&mut Context::from_waker(Waker::noop())));
    assert!(polls.any(|poll| poll.is_ready()));
    tokio::time::sleep(LASTS / 4).await;
    let awake = |(_, woken): &&(_, Arc<Woken>)| woken.0.load(Ordering::Relaxed) > 0;
    assert_eq!(waiting[1..].iter().filter(awake).count(), 1, "who looks next");
    drop((held, rest));
}

#[tokio::test]
async fn a_watch_that_runs_waits_behind_nobody_who_comes_new() {
    let (places, one) = (Places::default(), person("one"));
    let mut held = Vec::new();
    for _ in 0..OWN_PLACES {
        held.push(places.start(&one, false, First::State).await.unwrap());
    }
    let mut new: Vec<_> = (0..50)
        .map(|_| Box::pin(places.start(&one, false, First::State)))
        .collect();
    for start in &mut new {
        assert!(poll!(start).is_pending());
    }
    let mut legs = Vec::new();
    for _ in 0..RUNNING_PLACES - 1 {
        let Poll::Ready(leg) = poll!(Box::pin(places.start(&one, true, First::State))) else {
            panic!("it comes last, and is first");
        };
        legs.push(leg.unwrap());
    }
    let mut next = Box::pin(places.start(&one, true, First::State));
    assert!(poll!(&mut next).is_pending());
    held.pop();
    assert!(poll!(&mut next).is_pending(), "nor is it before who comes new");
    legs.pop();
    assert!(poll!(&mut next).is_ready());
}

#[tokio::test(start_paused = true)]
async fn what_is_not_read_keeps_a_place_for_some_seconds_only() {
    let (places, one) = (Places::default(), person("one"));
    let begun = Instant::now();
    let mut held = Vec::new();
    for _ in 0..OWN_PLACES * 3 {
        held.push(places.start(&one, false, First::State).await.unwrap());
    }
    assert_eq!(begun.elapsed().as_secs(), LASTS.as_secs() * 2);
    drop(held);
    assert_eq!(places.starts.len(), 0);
    for _ in 0..10_000 {
        drop(places.list(&one, false).await.unwrap());
    }
    let kept = places.list(&one, false).await.unwrap();
    for _ in 0..10_000 {
        drop(places.list(&one, false).await.unwrap());
    }
    let known = places.lists.find(&one.tenant()).unwrap();
    assert!(known.taken.lock().all.len() < 64, "none is remembered that is over");
    tokio::time::advance(LASTS).await;
    drop(places.list(&one, false).await.unwrap());
    assert!(known.taken.lock().all.len() <= 1);
    drop(kept);
}

#[tokio::test(start_paused = true)]
async fn a_watch_has_started_when_it_is_waited_at() {
    let (places, one) = (Places::default(), person("one"));
    let cx = &mut Context::from_waker(Waker::noop());
    let mut place = places.start(&one, false, First::State).await.unwrap();
    place.begun();
    assert!(
        !place.is_over(None, cx) && held(&places, &one) == 1,
        "its first objects may be on their way"
    );
    tokio::time::advance(QUIET).await;
    assert!(!place.is_over(Some(b"{}"), cx), "there they are");
    assert!(!place.is_over(None, cx) && held(&places, &one) == 1);
    tokio::time::advance(QUIET).await;
    assert!(!place.is_over(None, cx) && held(&places, &one) == 0);
    tokio::time::advance(LASTS).await;
    assert!(place.is_over(None, cx), "nothing of it is looked at for ever");
    let mut list = places.list(&one, false).await.unwrap();
    tokio::time::advance(QUIET).await;
    assert!(!list.is_over(None, cx));
}

#[tokio::test(start_paused = true)]
async fn a_state_is_over_with_its_marker_read() {
    let (places, one) = (Places::default(), person("one"));
    let cx = &mut Context::from_waker(Waker::noop());
    let mut place = places.start(&one, false, First::State).await.unwrap();
    place.begun();
    let text = format!(r#"{{"type":"BOOKMARK","{INITIAL_EVENTS_END}":"true"}}"#);
    let (some, rest) = text.as_bytes().split_at(text.len() / 2);
    assert!(!place.is_over(Some(some), cx) && !place.is_over(None, cx));
    assert_eq!(held(&places, &one), 1);
    assert!(!place.is_over(Some(rest), cx));
    assert_eq!(held(&places, &one), 1, "it is handed on, and may not be read");
    assert!(!place.is_over(None, cx));
    assert_eq!(held(&places, &one), 0);
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_a_version_has_a_place_until_its_head_and_while_it_is_not_read() {
    let (places, one) = (Places::default(), person("one"));
    let cx = &mut Context::from_waker(Waker::noop());
    let mut watches = Vec::new();
    for _ in 0..OWN_PLACES * 10 {
        let Poll::Ready(Some(mut watch)) = poll!(Box::pin(places.start(&one, false, First::Changes))) else {
            panic!("those before it are over");
        };
        watch.begun();
        assert_eq!(held(&places, &one), 1, "nobody has looked what follows");
        assert!(!watch.is_over(None, cx));
        assert_eq!(held(&places, &one), 0);
        watches.push(watch);
    }
    for watch in &mut watches {
        assert!(!watch.is_over(Some(b"{}"), cx) && !watch.is_over(Some(b"{}"), cx));
    }
    assert_eq!(held(&places, &one), OWN_PLACES * 10, "more than there are");
    let mut next = Box::pin(places.start(&one, false, First::Changes));
    assert!(poll!(&mut next).is_pending());
    for watch in &mut watches[OWN_PLACES - 1..] {
        assert!(!watch.is_over(None, cx));
    }
    assert!(poll!(&mut next).is_ready());
    tokio::time::advance(LASTS).await;
    drop(places.start(&one, false, First::Changes).await.unwrap());
    assert_eq!(held(&places, &one), 0, "that of who did not read is over");
    assert!(
        watches[0].is_over(Some(b"{}"), cx),
        "a watch that has long begun is none"
    );
    assert_eq!(held(&places, &one), 0);
    drop(watches);
    assert_eq!(places.starts.len(), 0);
}

/// What may happen to a tenant's places, of callers a, b and c.
#[derive(Debug, Clone)]
enum Step {
    /// Of this caller: a list, or a start that has the state or changes first, of a watch that runs or of a new one.
    Ask(usize, Option<First>, bool),
    /// One of those who wait, or nobody, is asked how it goes on.
    Poll(usize),
    /// One of those who wait goes away.
    Leave(usize),
    Begin(usize),
    /// One that has a place reads something, or finds nothing to read.
    Read(usize, bool),
    /// All that have one, at once.
    ReadAll(bool),
    /// One that has a place is over.
    End(usize),
    /// So many tenths of a second.
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let first = prop_oneof![
        Just(None),
        Just(Some(First::State)),
        Just(Some(First::Changes)),
        Just(Some(First::Changes))
    ];
    let step = prop_oneof![
        6 => (0..3_usize, first, any::<bool>()).prop_map(|(caller, first, running)| Step::Ask(caller, first, running)),
        3 => any::<usize>().prop_map(Step::Poll),
        1 => any::<usize>().prop_map(Step::Leave),
        2 => any::<usize>().prop_map(Step::Begin),
        4 => (any::<usize>(), any::<bool>()).prop_map(|(at, some)| Step::Read(at, some)),
        2 => any::<bool>().prop_map(Step::ReadAll),
        1 => any::<usize>().prop_map(Step::End),
        1 => (0..30_u64).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 0..120)
}

type Waiting<'a> = Pin<Box<dyn Future<Output = Option<Place>> + 'a>>;

/// One tenant, what waits, and what has a place; that of who waits is not polled unless a step says so.
struct Played<'a> {
    places: &'a Places,
    callers: &'a [Caller; 3],
    waiting: Vec<Waiting<'a>>,
    placed: Vec<Place>,
}

impl Played<'_> {
    async fn step(&mut self, step: Step) {
        let cx = &mut Context::from_waker(Waker::noop());
        let at = |index: usize, of: usize| (of > 0).then(|| index % of);
        match step {
            Step::Ask(caller, first, running) => {
                let caller = &self.callers[caller];
                self.waiting.push(match first {
                    None => Box::pin(self.places.list(caller, running)),
                    Some(first) => Box::pin(self.places.start(caller, running, first)),
                });
                self.poll(self.waiting.len() - 1);
            }
            Step::Poll(index) => {
                if let Some(index) = at(index, self.waiting.len()) {
                    self.poll(index);
                }
            }
            Step::Leave(index) => {
                let left = at(index, self.waiting.len()).map(|index| self.waiting.swap_remove(index));
                drop(left);
            }
            Step::Begin(index) => {
                if let Some(index) = at(index, self.placed.len()) {
                    self.placed[index].begun();
                }
            }
            Step::Read(index, some) => {
                if let Some(index) = at(index, self.placed.len())
                    && self.placed[index].is_over(some.then_some(b"{}"), cx)
                {
                    self.placed.swap_remove(index);
                }
            }
            Step::ReadAll(some) => {
                for place in &mut self.placed {
                    place.begun();
                    place.is_over(some.then_some(b"{}"), cx);
                }
            }
            Step::End(index) => {
                let ended = at(index, self.placed.len()).map(|index| self.placed.swap_remove(index));
                drop(ended);
            }
            Step::Wait(tenths) => tokio::time::advance(Duration::from_millis(100 * tenths)).await,
        }
    }

    fn poll(&mut self, index: usize) {
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(place) = self.waiting[index].as_mut().poll(&mut cx) {
            drop(self.waiting.swap_remove(index));
            self.placed.push(place.unwrap());
        }
    }
}

proptest! {
    /// Of any past: whoever waits, or comes, has its place soon, though those before it never read nor end; in the end nothing is
    /// taken.
    #[test]
    fn nobody_waits_for_ever(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (places, callers) = (Places::default(), ["a", "b", "c"].map(replica));
            let mut played = Played { places: &places, callers: &callers, waiting: Vec::new(), placed: Vec::new() };
            for step in steps {
                played.step(step).await;
            }
            let Played { mut waiting, placed, .. } = played;
            waiting.push(Box::pin(places.start(&callers[0], false, First::Changes)));
            // At the least a caller's own places are free every time.
            let rounds = u32::try_from(waiting.len() / OWN_PLACES + 2).unwrap();
            let all = tokio::time::timeout(LASTS * rounds, futures::future::join_all(waiting)).await;
            assert!(all.is_ok(), "somebody has no place after {rounds} times as long as one lasts");
            drop((all, placed));
            assert_eq!((places.lists.len(), places.starts.len()), (0, 0));
        });
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_and_is_not_polled_keeps_nobody_from_what_is_over() {
    let (places, one) = (Places::default(), person("one"));
    let mut held = Vec::new();
    for _ in 0..OWN_PLACES {
        held.push(places.start(&one, false, First::State).await.unwrap());
    }
    let mut frozen = Box::pin(places.start(&one, false, First::State));
    assert!(poll!(&mut frozen).is_pending(), "it is to take places back");
    let next = tokio::time::timeout(LASTS * 2, places.start(&one, false, First::State)).await;
    assert!(next.is_ok());
    drop((frozen, held));
}
