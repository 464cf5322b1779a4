//! Tokens that come back, and what a request meets while rules are swapped.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseResult, TestRunner};

use super::*;

fn shared(rule: Value) -> Value {
    with(rule, "scope", json!("Shared"))
}

/// A router that was there when its limits came, with all of each that routers share.
fn whole_router(limits: &[Value]) -> World {
    let mut world = World::new(&[]);
    world.policies.heard_hub();
    world.policies.restore(shares(1, &[]));
    world.edit(limits);
    world
}

/// All of each shared limit, `had` of which are nothing new.
fn shares(revision: u64, had: &[&str]) -> ToldShares {
    let share = |rule: &&str| v1::RuleShare {
        policy: BREAKER.into(),
        uid: "u1".into(),
        rule: (*rule).to_owned(),
        millionths: 1_000_000,
        fresh: !had.contains(rule),
    };
    ToldShares::of(&v1::Shares {
        revision,
        shares: RULES.iter().map(share).collect(),
    })
}

/// Swaps in the order of [`Policies::follow`], which a request may come into the middle of.
#[tokio::test(start_paused = true)]
async fn who_meets_shared_rules_of_a_new_version_meets_its_own_of_that_too() {
    let version = |own: &str, all: &str| [limit("a", own, 1, 1), shared(limit("b", all, 1, 1))];
    let mut world = whole_router(&version("ForceOpened", "ForceClosed"));
    assert_eq!(refusal(world.asks("1")).rule, "CircuitBreaker/ops/calm/a");
    let next = version("ForceClosed", "ForceOpened");
    let next = told::upsert(&world.snapshot, "1", [Body::Policy(policy("u1", &spec(&next)))]).snapshot;
    let now = world.policies.clock.now();
    world.policies.shared.lock().follow(&next, true, now);
    assert_eq!(refusal(world.asks("1")).rule, "CircuitBreaker/ops/calm/b");
    assert_eq!(
        refusal(world.asks("2")).rule,
        "CircuitBreaker/ops/calm/b",
        "who has met none"
    );
    // As it is told that the policy holds it no more.
    let next = told::upsert(&next, "1", [caller("1", &[])]).snapshot;
    world.policies.shared.lock().follow(&next, true, now);
    assert!(world.asks("1").is_ok());
    let late = world.view("1");
    let generation = world.snapshot.generation;
    world.policies.follow(&next);
    world.snapshot = next;
    assert!(
        ask(&world.policies, &late, generation, "get").is_ok(),
        "nothing moves back"
    );
}

#[tokio::test(start_paused = true)]
async fn tokens_come_back_only_to_the_bucket_that_gave_them() {
    let calm = |burst: i64| limit("a", "LimiterOnly", burst, 0);
    for of in [calm, |burst| shared(limit("a", "LimiterOnly", burst, 0))] {
        let mut world = whole_router(&[of(5)]);
        let policies = world.policies.clone();
        let view = world.view("1");
        let judging = judging(&view, world.snapshot.generation, "get");
        let take = || policies.admit(&judging).ok().unwrap();
        let [first, second, third] = [take(), take(), take()];
        world.edit(&[of(5), limit("b", "LimiterOnly", 9, 0)]);
        drop(first);
        assert_eq!(tokens(&world, "1", "a"), 3, "an edit of another rule changes nothing");
        world.edit(&[of(6)]);
        assert_eq!(world.pass("1", 2), 2);
        drop(second);
        assert_eq!(tokens(&world, "1", "a"), 4, "it is another rule");
        world.edit(&[of(5)]);
        assert_eq!(world.pass("1", 2), 2);
        drop(third);
        assert_eq!(world.pass("1", 9), 3, "it is what it was, and begins anew");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_comes_back_late_for_which_others_had_a_token() {
    let burst = 10;
    let world = World::new(&[limit("a", "LimiterOnly", burst, 10)]);
    let view = world.view("1");
    let judging = judging(&view, world.snapshot.generation, "get");
    let queued: Vec<_> = (0..burst)
        .map(|_| world.policies.admit(&judging).ok().unwrap())
        .collect();
    advance(Duration::from_secs(1)).await;
    assert_eq!(world.pass("1", 20), 10, "what came");
    drop(queued);
    assert_eq!(world.pass("1", 20), 0, "the bucket would have been full all the time");
}

#[tokio::test(start_paused = true)]
async fn a_share_that_shrank_gets_nothing_back() {
    for (shrinks, left) in [(false, 3), (true, 2)] {
        let world = whole_router(&[shared(limit("a", "LimiterOnly", 4, 0))]);
        world.policies.restore(shares(2, &RULES));
        let share = |revision, millionths| {
            let mut told = shares(revision, &RULES);
            for share in told.shares.values_mut() {
                *share = millionths;
            }
            told
        };
        let view = world.view("1");
        let judging = judging(&view, world.snapshot.generation, "get");
        let late = world.policies.admit(&judging).ok().unwrap();
        world.policies.admit(&judging).ok().unwrap().keep();
        if shrinks {
            world.policies.restore(share(3, 750_000));
        }
        drop(late);
        assert_eq!(world.pass("1", 9), left);
    }
}

/// Of a rule that was met.
fn tokens(world: &World, uid: &str, rule: &str) -> u64 {
    let rules = world.report().rules;
    let of = |state: &&v1::RuleState| state.rule == rule && (state.caller.is_empty() || state.caller.ends_with(uid));
    let state = rules.iter().find(of);
    state.unwrap().tokens.unwrap()
}

const RULES: [&str; 3] = ["a", "b", "c"];
const CALLERS: [&str; 2] = ["1", "2"];

/// What a rule says, as far as it differs here.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Says {
    burst: u64,
    shared: bool,
    /// Tokens of a list.
    list: u64,
}

#[derive(Debug, Clone)]
enum Step {
    /// By one of the callers, a list or not.
    Ask(usize, bool),
    /// Of those that were asked and go on: the one at this place goes on for good, or gives back.
    End(prop::sample::Index, bool),
    Wait(u64),
    Edit([Option<Says>; 3]),
    /// The policy goes, or comes back.
    Turn,
    /// It holds one of the callers no more, or again.
    Select(usize),
}

fn says() -> impl Strategy<Value = Says> {
    let burst = prop_oneof![2..5_u64, 20..200_u64];
    (burst, any::<bool>(), 0..3_u64).prop_map(|(burst, shared, list)| Says { burst, shared, list })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..2_usize, any::<bool>()).prop_map(|(caller, list)| Step::Ask(caller, list)),
        8 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(place, kept)| Step::End(place, kept)),
        2 => (0..700_u64).prop_map(Step::Wait),
        2 => prop::array::uniform3(prop::option::weighted(0.8, says())).prop_map(Step::Edit),
        1 => Just(Step::Turn),
        1 => (0..2_usize).prop_map(Step::Select),
    ]
}

/// A bucket, by what was taken and came back.
#[derive(Debug, Clone)]
struct Account {
    says: Says,
    /// Another one is another bucket.
    number: usize,
    /// Milliseconds.
    since: u64,
    net: u64,
    /// Thousandths that its bucket is short of at most: a token that comes back late is none if one came in its place.
    short: u64,
    /// When tokens were taken that have not come back, and how many.
    taken: Vec<(u64, u64)>,
}

impl Account {
    /// What came in so many milliseconds, in thousandths.
    fn came(come: u64, milliseconds: u64) -> u64 {
        come * milliseconds
    }

    fn take(&mut self, cost: u64, now: u64) {
        self.net += cost;
        self.short += cost * 1_000;
        self.taken.push((now, cost));
    }

    fn give(&mut self, cost: u64, at: u64, came: u64) {
        self.net -= cost;
        self.short -= (cost * 1_000).saturating_sub(came);
        let place = self.taken.iter().position(|taken| *taken == (at, cost)).unwrap();
        self.taken.remove(place);
    }

    /// Whether in each time up to now no more was taken for good than burst and rate allow.
    fn keeps_to(&self, come: u64, now: u64) -> bool {
        let mut sum = 0;
        self.taken.iter().rev().all(|(at, cost)| {
            sum += cost * 1_000;
            sum <= self.says.burst * 1_000 + Self::came(come, now - at)
        })
    }
}

/// What must hold of the buckets of a caller, or (`None`) of those that are shared.
type Owner = Option<usize>;

struct Ledger {
    come: u64,
    rules: [Option<Says>; 3],
    there: bool,
    held: [bool; 2],
    accounts: HashMap<(Owner, usize), Account>,
    began: usize,
    /// Milliseconds.
    now: u64,
}

impl Ledger {
    /// An owner whom the policy does not hold keeps what it had.
    fn follow(&mut self) {
        for owner in [None, Some(0), Some(1)] {
            if !self.there || owner.is_some_and(|caller| !self.held[caller]) {
                continue;
            }
            for (rule, says) in self.rules.into_iter().enumerate() {
                let says = says.filter(|says| says.shared == owner.is_none());
                let account = self.accounts.remove(&(owner, rule));
                let Some(says) = says else { continue };
                let account = account.filter(|account| account.says == says).unwrap_or_else(|| {
                    self.began += 1;
                    Account {
                        says,
                        number: self.began,
                        since: self.now,
                        net: 0,
                        short: 0,
                        taken: Vec::new(),
                    }
                });
                self.accounts.insert((owner, rule), account);
            }
        }
    }

    /// What a request of the caller's takes of which buckets.
    fn takes(&self, caller: usize, list: bool) -> Vec<((Owner, usize), usize, u64)> {
        if !self.there || !self.held[caller] {
            return Vec::new();
        }
        let met = self.accounts.iter();
        let met = met.filter(|((owner, _), _)| owner.is_none_or(|owner| owner == caller));
        met.map(|(key, account)| (*key, account.number, if list { account.says.list } else { 1 }))
            .collect()
    }

    /// What was taken at that time is taken now, or comes back.
    fn settle(&mut self, takes: &[((Owner, usize), usize, u64)], at: u64, taken: bool) {
        let came = Account::came(self.come, self.now - at);
        for (key, number, cost) in takes {
            let account = self.accounts.get_mut(key).filter(|account| account.number == *number);
            match account {
                Some(account) if taken => account.take(*cost, at),
                Some(account) => account.give(*cost, at, came),
                None => {}
            }
        }
    }

    /// No bucket that is looked at holds what it did not get, nor has less than it must.
    fn check(&self, world: &World) -> TestCaseResult {
        for state in world.report().rules {
            let owner = CALLERS.iter().position(|uid| state.caller == format!("east/{uid}"));
            let rule = RULES.iter().position(|rule| *rule == state.rule).unwrap();
            let account = &self.accounts[&(owner, rule)];
            let tokens = state.tokens.unwrap();
            let came = Account::came(self.come, self.now - account.since) / 1_000;
            prop_assert!(tokens <= account.says.burst);
            prop_assert!(
                account.net + tokens <= account.says.burst + came,
                "{:?} {:?}",
                state,
                account
            );
            if self.come == 0 {
                prop_assert_eq!(account.net + tokens, account.says.burst, "{:?} {:?}", state, account);
            }
        }
        Ok(())
    }
}

struct History {
    world: World,
    ledger: Ledger,
    /// Of the shares that were told last.
    revision: u64,
}

impl History {
    fn new(come: u64) -> Self {
        let ledger = Ledger {
            come,
            rules: [None; 3],
            there: true,
            held: [true; 2],
            accounts: HashMap::new(),
            began: 0,
            now: 0,
        };
        Self {
            world: whole_router(&[]),
            ledger,
            revision: 1,
        }
    }

    /// As the hub does: who has nothing of a rule that is gone gets all of it, new, when there is one of that name again.
    fn reshare(&mut self) {
        let had = |rule: &usize| self.ledger.accounts.contains_key(&(None, *rule));
        let had: Vec<_> = (0..RULES.len()).filter(had).map(|rule| RULES[rule]).collect();
        let mut without = shares(self.revision + 1, &RULES);
        without.shares.retain(|(_, rule), _| had.contains(&&**rule));
        self.revision += 2;
        self.world.policies.restore(without);
        self.world.policies.restore(shares(self.revision, &had));
    }

    fn tell(&mut self) {
        self.reshare();
        let (ledger, world) = (&mut self.ledger, &mut self.world);
        if !ledger.there {
            world.removed(v1::ResourceKind::Policy, BREAKER);
        }
        let rules = RULES.iter().zip(ledger.rules).filter_map(|(name, says)| {
            let says = says?;
            let rule = limit(name, "LimiterOnly", says.burst.cast_signed(), ledger.come.cast_signed());
            let rule = with(rule, "cost", json!({"list": says.list}));
            Some(if says.shared { shared(rule) } else { rule })
        });
        let document = Body::Policy(policy("u1", &spec(&rules.collect::<Vec<_>>())));
        let held = CALLERS.iter().zip(ledger.held);
        let held = held.map(|(uid, held)| caller(uid, if held { &[BREAKER] } else { &[] }));
        let there = ledger.there.then_some(document);
        assert_eq!(world.told(held.chain(there).collect::<Vec<_>>()), []);
        ledger.follow();
    }
}

async fn holds(come: u64, steps: Vec<Step>) -> TestCaseResult {
    let mut history = History::new(come);
    let policies = history.world.policies.clone();
    let mut going = Vec::new();
    for step in steps {
        match step {
            Step::Ask(caller, list) => {
                let view: &CallerView = Box::leak(Box::new(history.world.view(CALLERS[caller])));
                let verb = if list { "list" } else { "get" };
                let judging = Box::leak(Box::new(judging(view, history.world.snapshot.generation, verb)));
                let takes = history.ledger.takes(caller, list);
                let account = |(key, _, cost): &((Owner, usize), usize, u64)| {
                    let account = &history.ledger.accounts[key];
                    account.short + cost * 1_000 <= account.says.burst * 1_000
                };
                let affords = takes.iter().all(account);
                let judged = policies.admit(judging);
                prop_assert!(!affords || judged.is_ok(), "a token is lost");
                prop_assert!(affords || come > 0 || judged.is_err(), "a token is made");
                if let Ok(taken) = judged {
                    let ledger = &mut history.ledger;
                    ledger.settle(&takes, ledger.now, true);
                    let keeps_to = |(key, ..): &((Owner, usize), usize, u64)| {
                        ledger.accounts[key].keeps_to(ledger.come, ledger.now)
                    };
                    prop_assert!(takes.iter().all(keeps_to), "a token is made");
                    going.push((taken, takes, ledger.now));
                }
            }
            Step::End(place, kept) if !going.is_empty() => {
                let (taken, takes, at) = going.swap_remove(place.index(going.len()));
                if kept {
                    taken.keep();
                } else {
                    drop(taken);
                    history.ledger.settle(&takes, at, false);
                }
            }
            Step::End(..) => {}
            Step::Wait(milliseconds) => {
                advance(Duration::from_millis(milliseconds)).await;
                history.ledger.now += milliseconds;
            }
            Step::Edit(rules) => {
                history.ledger.rules = rules;
                history.tell();
            }
            Step::Turn => {
                history.ledger.there = !history.ledger.there;
                history.tell();
            }
            Step::Select(caller) => {
                history.ledger.held[caller] = !history.ledger.held[caller];
                history.tell();
            }
        }
        history.ledger.check(&history.world)?;
    }
    Ok(())
}

/// An edit while the router is told nothing of the policy, too.
#[tokio::test(start_paused = true)]
async fn a_policy_that_comes_back_without_a_rule_has_ended_it() {
    for shared in [false, true] {
        let says = Says {
            burst: 2,
            shared,
            list: 1,
        };
        let rule = [Some(says), None, None];
        let (ask, edit) = (Step::Ask(0, false), Step::Edit);
        let steps = [
            edit(rule),
            ask.clone(),
            Step::Turn,
            edit([None; 3]),
            Step::Turn,
            edit(rule),
            ask,
        ];
        holds(0, steps.into()).await.unwrap();
    }
}

#[test]
fn what_was_taken_and_not_given_back_is_what_passed_over_all_swaps() {
    let strategy = (prop_oneof![Just(0), 1..50_u64], vec(step(), 1..120));
    let law = |(come, steps): (u64, Vec<Step>)| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(holds(come, steps))
    };
    TestRunner::default().run(&strategy, law).unwrap();
}
