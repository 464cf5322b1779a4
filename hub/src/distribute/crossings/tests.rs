//! A pair that is let go of is granted again in the end, be the agent away, the fence broken or a router silent.

use proptest::prelude::*;

use portolan_crds::ledger::{Chunk, Pair, PairFence, Slot};
use portolan_crds::{Contention, OperatorName, ShardName};
use portolan_wire::v1;

use super::*;
use crate::acks::RouterState;
use crate::facts::{AgentReport, Heartbeat, MemberObject, Namespace};

const SECOND: Duration = Duration::from_secs(1);

fn shard() -> ShardName {
    ShardName::new("ops", "a").unwrap()
}

fn pair() -> PairEpoch {
    ("east".to_owned(), "ns-b".to_owned(), 1)
}

/// ns-b of east, which every router has let go of.
fn closing() -> Ledger {
    let mut chunk = Chunk::new("east", Slot::WHOLE);
    let pair = Pair {
        fence: PairFence { epoch: 1, whole: true },
        owner: Some(shard()),
        owner_count: 1,
        view_revision: 1,
        releasing: true,
    };
    chunk.add("ns-b", OperatorName::default(), pair);
    let mut ledger = Ledger::restore(Contention::Fleet, [chunk], 1, false);
    ledger.close_all();
    ledger
}

fn member() -> MemberObject {
    MemberObject {
        generation: 1,
        accept: true,
        ..MemberObject::default()
    }
}

/// East, whose agent is connected and has told all but that it closed anything.
fn facts() -> Facts {
    let mut facts = Facts::default();
    facts.members.insert("east".to_owned(), member());
    let agent = AgentReport {
        connected: true,
        allowed: Some(v1::Allowed {
            extras: [portolan_crds::labels::FENCE_EPOCH, portolan_crds::labels::FENCE_SHARD]
                .map(str::to_owned)
                .into(),
            ..v1::Allowed::default()
        }),
        namespaces: Some([("ns-b".to_owned(), Namespace::default())].into()).into(),
        ..AgentReport::default()
    };
    facts.agents.insert("east".to_owned(), agent);
    facts
}

fn agent(facts: &mut Facts) -> &mut AgentReport {
    facts.agents.get_mut("east").unwrap()
}

fn namespace(facts: &mut Facts) -> &mut Namespace {
    agent(facts).namespaces.as_mut().unwrap().get_mut("ns-b").unwrap()
}

fn says(facts: &mut Facts, closed: bool, message: &str) {
    let state = v1::FenceState {
        namespace: "ns-b".to_owned(),
        epoch: 2,
        closed,
        open: Vec::new(),
        message: message.to_owned(),
    };
    agent(facts).fences.insert("ns-b".to_owned(), state);
    if closed {
        namespace(facts).epochs = vec![2];
    }
}

/// After how many whole seconds it is given up, with a look in each.
fn given_up_after(facts: &Facts, started: Instant, at_most: u32) -> Option<u32> {
    let mut crossings = Crossings::new(started);
    let begin = started + 100 * SECOND;
    (0..=at_most).find(|seconds| {
        crossings.observe(facts, &closing(), begin + *seconds * SECOND);
        !crossings.given_up().is_empty()
    })
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_not_heard_holds_nothing_up_longer_than_a_router_does() {
    let now = Instant::now();
    let mut facts = facts();
    assert_eq!(given_up_after(&facts, now, 1_000), Some(600), "whatever it does");
    agent(&mut facts).connected = false;
    agent(&mut facts).left = Some(now.into_std());
    assert_eq!(
        given_up_after(&facts, now, 1_000),
        Some(500),
        "ten minutes after it left"
    );
    facts.agents.clear();
    assert_eq!(given_up_after(&facts, now, 1_000), Some(0), "the hub started long ago");
    let just_started = now + 90 * SECOND;
    let mut crossings = Crossings::new(just_started);
    crossings.observe(&facts, &closing(), just_started + 59 * SECOND);
    assert!(crossings.given_up().is_empty());
    crossings.observe(&facts, &closing(), just_started + 60 * SECOND);
    assert_eq!(crossings.given_up(), [pair()].into());
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_says_why_it_cannot_is_believed_after_a_minute_of_it() {
    let now = Instant::now();
    let mut facts = facts();
    says(&mut facts, false, "no policy");
    assert_eq!(given_up_after(&facts, now, 1_000), Some(60));
    // Its API server is away: that is what late writes come from.
    agent(&mut facts).heartbeat = Some(Heartbeat {
        at: jiff::Timestamp::UNIX_EPOCH,
        api_ready: false,
        latency_milliseconds: 0,
        message: String::new(),
    });
    assert_eq!(given_up_after(&facts, now, 1_000), Some(600));
    agent(&mut facts).heartbeat = None;
    // It said so twice, and not in between.
    let mut crossings = Crossings::new(now);
    crossings.observe(&facts, &closing(), now);
    says(&mut facts, false, "");
    crossings.observe(&facts, &closing(), now + 30 * SECOND);
    says(&mut facts, false, "no policy");
    crossings.observe(&facts, &closing(), now + 31 * SECOND);
    crossings.observe(&facts, &closing(), now + 90 * SECOND);
    assert!(crossings.given_up().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_being_deleted_is_not_waited_for() {
    let mut facts = facts();
    namespace(&mut facts).terminating = true;
    assert_eq!(given_up_after(&facts, Instant::now(), 1_000), Some(0));
}

#[tokio::test(start_paused = true)]
async fn what_is_closed_is_over_with_the_last_answer_or_a_minute_later() {
    let now = Instant::now();
    let mut facts = facts();
    let acks = Acks::default();
    let mut router = RouterState::new(1, [].into());
    acks.connected("gateway", router.clone());
    let mut crossings = Crossings::new(now);
    crossings.observe(&facts, &closing(), now);
    assert!(crossings.over(&acks, &closing(), now + 300 * SECOND).is_empty());
    says(&mut facts, true, "");
    crossings.observe(&facts, &closing(), now + 300 * SECOND);
    assert!(crossings.over(&acks, &closing(), now + 359 * SECOND).is_empty());
    assert_eq!(crossings.over(&acks, &closing(), now + 360 * SECOND), [pair()].into());
    router.answered = [pair()].into();
    acks.update("gateway", 1, |state| state.answered = router.answered.clone());
    assert_eq!(crossings.over(&acks, &closing(), now + 301 * SECOND), [pair()].into());
    // Whatever its agent does from here on, it was closed.
    facts.agents.clear();
    crossings.observe(&facts, &closing(), now + 2_000 * SECOND);
    assert!(crossings.given_up().is_empty());
}

#[derive(Debug, Clone)]
enum Happens {
    Leaves,
    Comes,
    Says(&'static str),
    Closes,
    Unready(bool),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        Just(Happens::Leaves),
        Just(Happens::Comes),
        Just(Happens::Says("")),
        Just(Happens::Says("cannot")),
        Just(Happens::Closes),
        any::<bool>().prop_map(Happens::Unready),
    ]
}

proptest! {
    /// Whatever an agent does: ten minutes after all routers have let go it is closed, or given up, never both; and a minute
    /// after that nothing is waited for.
    #[test]
    fn every_crossing_ends(steps in prop::collection::vec((happens(), 0_u32..200), 0..12)) {
        let started = Instant::now();
        let mut now = started;
        let (mut facts, ledger, acks) = (facts(), closing(), Acks::default());
        acks.connected("gateway", RouterState::new(1, [].into()));
        let mut crossings = Crossings::new(started);
        crossings.observe(&facts, &ledger, now);
        for (step, seconds) in steps {
            match step {
                Happens::Leaves => {
                    agent(&mut facts).connected = false;
                    agent(&mut facts).left = Some(now.into_std());
                }
                Happens::Comes => {
                    agent(&mut facts).connected = true;
                    agent(&mut facts).left = None;
                }
                Happens::Says(message) => says(&mut facts, false, message),
                Happens::Closes => says(&mut facts, true, ""),
                Happens::Unready(unready) => agent(&mut facts).heartbeat = Some(Heartbeat {
                    at: jiff::Timestamp::UNIX_EPOCH,
                    api_ready: !unready,
                    latency_milliseconds: 0,
                    message: String::new(),
                }),
            }
            for _ in 0..=seconds / 10 {
                crossings.observe(&facts, &ledger, now);
                now += 10 * SECOND;
            }
            let (over, given_up) = (crossings.over(&acks, &ledger, now), crossings.given_up());
            prop_assert!(over.is_disjoint(&given_up));
        }
        now = now.max(started + FORGOTTEN_AFTER);
        crossings.observe(&facts, &ledger, now);
        crossings.observe(&facts, &ledger, now + REQUEST_TIMEOUT);
        let over = crossings.over(&acks, &ledger, now + REQUEST_TIMEOUT);
        prop_assert!(over == [pair()].into() || crossings.given_up() == [pair()].into());
    }
}

/// As an agent speaks of what a hub told it that had the epoch kept for another operator's pair of the namespace.
#[test]
fn what_its_member_still_takes_is_not_closed() {
    let (mut facts, now) = (facts(), Instant::now());
    let open = |facts: &mut Facts, epochs: &[u64]| {
        says(facts, true, "");
        agent(facts).fences.get_mut("ns-b").unwrap().open = epochs.to_vec();
        namespace(facts).epochs = epochs.to_vec();
    };
    let mut crossings = Crossings::new(now);
    open(&mut facts, &[1, 2]);
    crossings.observe(&facts, &closing(), now);
    let later = now + 61 * SECOND;
    crossings.observe(&facts, &closing(), later);
    assert!(crossings.over(&Acks::default(), &closing(), later).is_empty());
    open(&mut facts, &[2, 3]);
    crossings.observe(&facts, &closing(), later);
    let over = crossings.over(&Acks::default(), &closing(), later + 60 * SECOND);
    assert_eq!(over, [pair()].into());
}
