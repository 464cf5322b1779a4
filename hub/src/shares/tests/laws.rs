//! Whatever is delayed, lost, restarted, forgotten or edited: no bucket is given out twice; and once nothing goes wrong any
//! more, all of it is where it is asked for.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::shares::division::wanted;
use tokens::BURST;

const ROUTERS: usize = 4;

#[derive(Debug, Clone)]
enum Step {
    Say(usize),
    Hear(usize),
    Divide,
    Deliver(usize),
    Break(usize),
    Notice(usize),
    Reconnect(usize),
    Keep(usize),
    RestartRouter(usize),
    End(usize),
    Lose(usize),
    RestartHub,
    Forget(usize),
    Enrol(usize),
    Learn(usize),
    /// All policies, or the first alone, or none.
    See(usize, Option<usize>),
    Ask(usize, u64),
    /// All that it has, at once.
    Spend(usize),
    PutRule(u32, u32),
    /// By an edit: the object stays, and the rule may come back.
    DropRule(u32, u32),
    /// The object is out of force as a whole, or back.
    Withdraw(u32, bool),
    /// The object: another one of its name may come.
    Delete(u32),
    Advance(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let router = 0..ROUTERS;
    let often = prop_oneof![
        router.clone().prop_map(Step::Say),
        router.clone().prop_map(Step::Hear),
        Just(Step::Divide),
        router.clone().prop_map(Step::Deliver),
        router.clone().prop_map(Step::Learn),
        router.clone().prop_map(Step::Keep),
        router.clone().prop_map(Step::Spend),
        (router.clone(), prop_oneof![Just(0), 0..RATE, Just(RATE * 3)])
            .prop_map(|(router, asked)| Step::Ask(router, asked)),
        (0..1_500_u64).prop_map(Step::Advance),
    ];
    let seldom = prop_oneof![
        router.clone().prop_map(Step::Break),
        router.clone().prop_map(Step::Notice),
        router.clone().prop_map(Step::Reconnect),
        router.clone().prop_map(Step::RestartRouter),
        router.clone().prop_map(Step::End),
        router.clone().prop_map(Step::Lose),
        router.clone().prop_map(Step::Forget),
        router.clone().prop_map(Step::Enrol),
        (router, prop_oneof![Just(None), (0..2_usize).prop_map(Some)]).prop_map(|(router, few)| Step::See(router, few)),
        Just(Step::RestartHub),
        (0..2_u32, 0..2_u32).prop_map(|(policy, rule)| Step::PutRule(policy, rule)),
        (0..2_u32, 0..2_u32).prop_map(|(policy, rule)| Step::DropRule(policy, rule)),
        (0..2_u32, any::<bool>()).prop_map(|(policy, withdrawn)| Step::Withdraw(policy, withdrawn)),
        (0..2_u32).prop_map(Step::Delete),
    ];
    prop_oneof![6 => often, 1 => seldom]
}

fn take(network: &mut Network, step: &Step) {
    match *step {
        Step::Say(router) => network.say(router),
        Step::Hear(router) => network.hear_one(router),
        Step::Divide => network.divide(),
        Step::Deliver(router) => network.deliver_one(router),
        Step::Break(router) => network.break_stream(router),
        Step::Notice(router) => network.notice(router),
        Step::Reconnect(router) => network.reconnect(router),
        Step::Keep(router) => network.keep(router),
        Step::Lose(router) => network.lose(router),
        Step::RestartRouter(router) => network.restart_router(router),
        Step::End(router) => network.end(router),
        Step::RestartHub => network.restart_hub(),
        Step::Forget(router) => network.forget(router),
        Step::Enrol(router) => network.enrol(router),
        Step::Learn(router) => network.learn(router),
        Step::See(router, few) => {
            let sees = few.map(|few| [key(0, 0).policy].into_iter().take(few).collect());
            network.see(router, sees);
        }
        Step::Ask(router, asked) => network.routers[router].asked = asked,
        Step::Spend(router) => network.spend(router),
        Step::Withdraw(policy, withdrawn) => network.withdraw(policy, withdrawn),
        Step::PutRule(policy, rule) => network.put_rule(network.present(policy, rule)),
        Step::DropRule(policy, rule) => {
            network.rules.remove(&network.present(policy, rule));
            network.tell_rules();
        }
        Step::Delete(policy) => network.delete(policy),
        Step::Advance(milliseconds) => network.advance(Duration::from_millis(milliseconds)),
    }
}

/// How each router is: of which release, and whether it sees no policy any more at the end.
#[derive(Debug, Clone, Copy)]
struct Kind {
    conduct: Conduct,
    ends_blind: bool,
}

fn kind() -> impl Strategy<Value = Kind> {
    // An older one that sees nothing cannot say that it has let go.
    const KINDS: [(Conduct, bool); 3] = [(Conduct::Loyal, false), (Conduct::Loyal, true), (Conduct::Older, false)];
    prop::sample::select(&KINDS[..]).prop_map(|(conduct, ends_blind)| Kind { conduct, ends_blind })
}

/// Nothing goes wrong any more: all that are registered come, see all or nothing, learn, and go on asking for the same.
fn calm_down(network: &mut Network, kinds: &[Kind], hub_restarts: bool) {
    let all_come = |network: &mut Network| {
        for (router, kind) in kinds.iter().enumerate() {
            network.see(router, kind.ends_blind.then(BTreeSet::new));
            network.reconnect(router);
            network.forget_rules(router);
            network.learn(router);
        }
        network.settle(9);
    };
    for policy in [0, 1] {
        network.withdraw(policy, false);
    }
    all_come(network);
    if hub_restarts {
        network.restart_hub();
        all_come(network);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_bucket_is_given_out_twice_and_all_of_it_finds_demand(
        steps in vec(step(), 1..250), kinds in vec(kind(), ROUTERS), hub_restarts in any::<bool>(),
    ) {
        let mut network = Network::new(ROUTERS);
        for (router, kind) in network.routers.iter_mut().zip(&kinds) {
            router.conduct = kind.conduct;
        }
        network.put_rule(key(0, 0));
        for step in &steps {
            take(&mut network, step);
            for (rule, sum) in network.sums() {
                prop_assert!(sum <= u64::from(WHOLE), "{step:?}: {sum} of {rule:?}");
            }
            // In no time has more passed than a bucket holds and what came.
            for (rule, passed) in &network.passed {
                prop_assert!(*passed <= BURST, "{step:?}: {passed} of {rule:?}, not {BURST}");
            }
        }
        calm_down(&mut network, &kinds, hub_restarts);
        for router in 0..ROUTERS {
            network.spend(router);
        }
        for (rule, passed) in &network.passed {
            prop_assert!(*passed <= BURST, "at the end: {passed} of {rule:?}");
        }
        for (rule, sum) in network.sums() {
            prop_assert!(sum <= u64::from(WHOLE), "at the end: {sum} of {rule:?}");
        }
        let here: Vec<_> = network.connected().filter(|router| router.sees.is_none()).collect();
        let Some(count) = u32::try_from(here.len()).ok().filter(|count| *count > 0) else {
            return Ok(());
        };
        for rule in &network.rules {
            let shares: Vec<_> = here.iter().map(|router| router.shares.get(rule).copied().unwrap_or_default()).collect();
            let sum: u32 = shares.iter().sum();
            prop_assert!((WHOLE / 100 * 99..=WHOLE).contains(&sum), "{sum} of {rule:?}: {shares:?}");
            for (router, share) in here.iter().zip(&shares) {
                let due = wanted(router.asked, RATE).min(WHOLE / count);
                prop_assert!(share + share / 10 + WHOLE / 500 >= due, "{share} of {due}: {shares:?}");
            }
        }
    }
}
