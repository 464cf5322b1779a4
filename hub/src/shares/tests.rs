//! Laws of shares over a network that delays, loses and forgets, and how demand is followed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use portolan_crds::circuit_breaker::RATE_LIMITINGS_MAX;
use portolan_wire::v1;

use super::core::{Core, Message, Object, Registered, SAME_FOR};
use super::division::WHOLE;
use super::router::{SAYS_NOTHING_FOR, UNHEARD_FOR};
use super::rule::{TURN, WITHHELD_AFTER};
use super::withheld::{Why, Withheld};
use crate::compile::{SharedLimit, Supply};
use crate::facts::PolicyName;

mod fresh;
mod laws;
mod network;
mod revisions;
mod router;
mod tokens;

use network::{Network, key};
use router::Conduct;

const RATE: u64 = 100_000;

/// Two routers that have heard of their halves of one rule.
fn halves() -> Network {
    let mut network = Network::new(2);
    network.put_rule(key(0, 0));
    network.settle(4);
    assert_eq!(network.shares(&key(0, 0)), [500_000, 500_000]);
    network
}

#[test]
fn shares_begin_equal_at_once() {
    let mut network = Network::new(3);
    network.settle(2);
    network.put_rule(key(0, 0));
    // Before any router has even seen the rule: they have it when the policy comes.
    network.divide();
    network.deliver();
    network.keep_all();
    assert_eq!(network.shares(&key(0, 0)), [333_334, 333_333, 333_333]);
}

#[test]
fn who_has_nothing_need_say_so_only_once_however_early() {
    let now = Instant::now();
    let mut core = Core::default();
    core.connected(("r".to_owned(), "1".to_owned()), 1, true, now);
    core.reported("r", 1, &[], 0);
    core.set_rules(&BTreeMap::new(), BTreeMap::new(), now);
    let supply = Supply {
        rate: RATE,
        least: 1,
        fills_in: None,
    };
    let object = Object {
        uid: key(0, 0).uid,
        in_force: true,
    };
    core.set_rules(&[(key(0, 0), supply)].into(), [(key(0, 0).policy, object)].into(), now);
    let told = core.divide(now);
    assert_eq!(told.len(), 1, "it takes part");
    assert_eq!(told[0].shares.shares[0].millionths, WHOLE);
}

#[test]
fn a_share_grows_only_after_the_others_have_said_that_theirs_have_shrunk() {
    let mut network = halves();
    network.routers[0].asked = RATE;
    network.report();
    network.divide();
    let told = |network: &Network, router: usize| {
        network.routers[router]
            .to_hear
            .back()
            .map(|told| told.shares[0].millionths)
    };
    assert_eq!(
        (told(&network, 0), told(&network, 1)),
        (None, Some(25_000)),
        "first the one that shrinks"
    );
    network.deliver();
    network.divide();
    assert_eq!(told(&network, 0), None, "it has heard, and has not said so");
    network.report();
    network.divide();
    assert_eq!(told(&network, 0), Some(975_000));
}

#[test]
fn demand_that_moves_is_followed_and_noise_is_not() {
    let mut network = halves();
    network.routers[0].asked = RATE;
    network.settle(4);
    assert_eq!(network.shares(&key(0, 0)), [975_000, 25_000]);
    network.routers[0].asked = 0;
    network.routers[1].asked = RATE * 3 / 4;
    network.settle(4);
    let settled = network.shares(&key(0, 0));
    assert!(
        settled[1] >= 825_000 && settled.iter().sum::<u32>() == WHOLE,
        "{settled:?}"
    );
    let revision = network.routers[1].revision;
    for asked in [74, 76, 75, 77, 73] {
        network.routers[1].asked = asked * 1_000;
        network.settle(1);
    }
    assert_eq!(network.routers[1].revision, revision, "nobody was told anything");
}

#[test]
fn a_router_that_is_cut_off_keeps_its_share_until_it_is_back_or_forgotten() {
    let mut network = halves();
    network.break_stream(1);
    network.notice(1);
    network.routers[0].asked = RATE;
    network.settle(4);
    network.advance(UNHEARD_FOR.checked_sub(Duration::from_secs(10)).unwrap());
    network.settle(4);
    assert_eq!(
        network.shares(&key(0, 0)),
        [500_000, 500_000],
        "while it can pass anything"
    );
    network.reconnect(1);
    network.settle(4);
    assert_eq!(network.shares(&key(0, 0)), [975_000, 25_000]);
    network.break_stream(1);
    network.forget(1);
    network.settle(4);
    assert_eq!(network.shares(&key(0, 0))[0], WHOLE);
}

#[test]
fn what_a_router_gives_back_at_its_end_others_have_at_once() {
    let mut network = halves();
    network.routers[0].asked = RATE;
    network.settle(1);
    // A share is under way to the one that ends.
    network.report();
    network.divide();
    network.end(1);
    network.settle(2);
    assert_eq!(network.shares(&key(0, 0)), [WHOLE, 0]);
    network.reconnect(1);
    network.settle(4);
    assert_eq!(network.shares(&key(0, 0)), [975_000, 25_000], "back with its folder");
    network.restart_hub();
    network.reconnect(1);
    network.end(1);
    network.reconnect(0);
    network.settle(4);
    assert_eq!(
        network.shares(&key(0, 0))[0],
        WHOLE,
        "who has said that waits for nobody"
    );
}

#[test]
fn what_it_may_have_heard_counts_when_its_stream_breaks() {
    let mut network = halves();
    network.routers[0].asked = RATE;
    network.settle(1);
    network.report();
    network.divide();
    // The larger share is under way, or lost: nobody knows.
    network.notice(0);
    network.break_stream(0);
    let bound = network.core.bounds()[&key(0, 0)]["r0"];
    assert_eq!(bound, 975_000);
    network.reconnect(0);
    network.settle(4);
    assert_eq!(network.shares(&key(0, 0)), [975_000, 25_000]);
}

#[test]
fn after_a_restart_of_the_hub_nothing_grows_until_all_have_spoken() {
    let mut network = halves();
    network.restart_hub();
    network.reconnect(0);
    network.routers[0].asked = RATE;
    network.settle(4);
    assert_eq!(
        network.shares(&key(0, 0)),
        [500_000, 500_000],
        "the other may have the rest"
    );
    network.reconnect(1);
    network.settle(4);
    assert_eq!(network.shares(&key(0, 0)), [975_000, 25_000]);
}

#[test]
fn who_is_away_for_so_long_that_it_can_pass_nothing_has_nothing() {
    let mut network = halves();
    network.restart_hub();
    network.reconnect(0);
    network.advance(UNHEARD_FOR.checked_sub(Duration::from_secs(10)).unwrap());
    network.settle(4);
    assert_eq!(network.shares(&key(0, 0))[0], 500_000);
    network.advance(Duration::from_secs(10));
    network.settle(4);
    assert_eq!(network.shares(&key(0, 0))[0], WHOLE);
    // It comes back all the same: there is too much for a moment, and then there is not.
    network.reconnect(1);
    network.settle(4);
    assert_eq!(network.shares(&key(0, 0)), [500_000, 500_000]);
    network.notice(1);
    network.break_stream(1);
    network.advance(UNHEARD_FOR);
    network.settle(4);
    assert_eq!(
        network.shares(&key(0, 0))[0],
        WHOLE,
        "nor has one of which it is known what it had"
    );
}

#[test]
fn a_rule_of_an_object_that_is_new_waits_for_nobody() {
    let mut network = halves();
    network.restart_hub();
    network.reconnect(0);
    network.put_rule(key(1, 0));
    network.settle(4);
    assert_eq!(network.shares(&key(1, 0))[0], WHOLE);
}

#[test]
fn who_enrols_later_is_not_presumed_to_have_anything() {
    let mut network = halves();
    network.advance(Duration::from_mins(2));
    network.join("late");
    network.routers[0].asked = RATE;
    network.settle(4);
    assert_eq!(network.shares(&key(0, 0)), [975_000, 25_000, 0]);
}

#[test]
fn a_router_that_serves_no_policies_has_no_share_and_holds_nobody_up() {
    let mut network = Network::new(2);
    network.put_rule(key(0, 0));
    network.break_stream(1);
    network.routers[1].serves = false;
    network.reconnect(1);
    network.settle(4);
    assert_eq!(network.shares(&key(0, 0)), [WHOLE, 0]);
}

#[test]
fn what_is_not_in_force_stays_as_it_is_while_routers_have_it() {
    let mut network = halves();
    // The object has no good spec that this hub knows, or is about to be taken from routers.
    network.rules.clear();
    network.tell_rules();
    network.put_rule(key(1, 1));
    network.settle(4);
    assert_eq!(network.shares(&key(0, 0)), [500_000, 500_000]);
    for router in &mut network.routers {
        router.has.remove(&key(0, 0));
    }
    network.settle(4);
    assert_eq!(network.shares(&key(0, 0)), [0, 0]);
    assert!(!network.core.bounds().contains_key(&key(0, 0)) || network.core.bounds()[&key(0, 0)].is_empty());
}

#[test]
fn a_router_of_a_part_has_no_share_of_what_it_is_not_told_of() {
    let mut network = Network::new(2);
    network.put_rule(key(0, 0));
    network.routers[1].sees = Some(BTreeSet::new());
    network.register();
    network.settle(4);
    assert_eq!(network.shares(&key(0, 0)), [WHOLE, 0]);
}

#[test]
fn what_a_router_had_counts_until_it_has_kept_less_though_it_is_told_of_the_policy_no_more() {
    let mut network = halves();
    network.put_rule(key(1, 0));
    network.settle(4);
    network.routers[0].asked = RATE;
    network.see(1, Some([key(1, 0).policy].into()));
    network.divide();
    let told = network.core.bounds()[&key(0, 0)].values().sum::<u32>();
    assert_eq!(told, WHOLE, "the other has its half until it says otherwise");
    network.routers[1].has.remove(&key(0, 0));
    network.settle(6);
    assert_eq!(network.shares(&key(0, 0)), [WHOLE, 0]);
}

#[test]
fn names_that_a_router_makes_up_are_few() {
    let mut network = halves();
    let epoch = network.epoch_of(0);
    let made_up = |from: usize| -> Vec<_> {
        let demand = |number| v1::SharedDemand {
            policy: key(0, 0).policy.to_string(),
            rule: format!("made-up-{number}"),
            share_millionths: 1,
            ..v1::SharedDemand::default()
        };
        (from..from + 1_000).map(demand).collect()
    };
    network.core.reported("r0", epoch + 100, &made_up(0), 0);
    assert_eq!(network.core.bounds().len(), 1, "on no stream of it");
    for from in [0, 10_000, 20_000] {
        network.core.reported("r0", epoch, &made_up(from), 0);
    }
    assert_eq!(network.core.bounds().len(), 1 + RATE_LIMITINGS_MAX);
    network.put_rule(key(0, 1));
    network.settle(6);
    assert_eq!(
        network.shares(&key(0, 1)),
        [500_000, 500_000],
        "what is in force has room"
    );
    network.tell_rules();
    assert_eq!(network.core.bounds().len(), 2, "and the rest goes");
}

#[test]
fn time_counts_from_the_first_division() {
    let mut network = halves();
    network.restart_hub();
    network.core = Core::default();
    network.advance(UNHEARD_FOR * 2);
    network.core.begin(1 << 40);
    network.reconnect(0);
    network.tell_rules();
    network.register();
    network.settle(4);
    assert_eq!(network.shares(&key(0, 0))[0], 500_000, "the other may have the rest");
}

#[test]
fn who_sees_nothing_any_more_says_that_it_has_let_go() {
    let mut network = halves();
    network.routers[0].asked = RATE;
    network.see(1, Some(BTreeSet::new()));
    network.forget_rules(1);
    network.settle(5);
    assert_eq!(network.shares(&key(0, 0)), [WHOLE, 0]);
    network.restart_hub();
    for router in [0, 1] {
        network.reconnect(router);
    }
    network.put_rule(key(0, 1));
    network.settle(5);
    assert_eq!(
        network.shares(&key(0, 0)),
        [WHOLE, 0],
        "also to a hub that knows nothing of it"
    );
    assert_eq!(network.shares(&key(0, 1)), [WHOLE, 0]);
}

#[test]
fn an_older_router_that_sees_nothing_any_more_is_waited_for_ten_minutes_after_a_restart() {
    let mut network = halves();
    network.routers[1].conduct = Conduct::Older;
    network.see(1, Some(BTreeSet::new()));
    network.forget_rules(1);
    network.restart_hub();
    for router in [0, 1] {
        network.reconnect(router);
    }
    network.settle(5);
    assert_eq!(network.shares(&key(0, 0))[0], 500_000);
    network.advance(SAYS_NOTHING_FOR);
    network.settle(5);
    assert_eq!(network.shares(&key(0, 0)), [WHOLE, 0]);
}

/// Of an object that was deleted and made anew it has its half already, and its policy is still the one of before.
#[test]
fn what_is_said_of_an_object_of_before_is_not_of_the_one_of_now() {
    let mut network = halves();
    network.delete(0);
    let anew = network.present(0, 0);
    network.put_rule(anew.clone());
    network.report();
    network.divide();
    network.deliver();
    network.keep_all();
    let halves = network.shares(&anew);
    assert_eq!(halves, [500_000, 500_000]);
    network.reconnect(0);
    network.hear_one(0);
    assert_eq!(network.core.bounds()[&anew]["r0"], 500_000);
}

#[test]
fn who_keeps_what_others_are_to_have_is_named_with_the_reason() {
    let mut network = halves();
    let withheld = |network: &Network| {
        let mut all = network.core.withheld(network.now());
        all.remove(&key(0, 0).policy).unwrap_or_default()
    };
    let kept = |router: &str, share: u32, why: Why| Withheld {
        rule: key(0, 0).rule,
        router: router.to_owned(),
        share,
        why,
    };
    // It is connected, hears, and goes on saying that it has its half.
    network.routers[0].asked = RATE;
    network.routers[1].conduct = Conduct::Deaf;
    network.settle(20);
    assert_eq!(withheld(&network), [], "too early to tell");
    network.settle(20);
    let beyond = 500_000 - 25_000;
    assert_eq!(withheld(&network), [kept("r1", beyond, Why::Unconfirmed)]);
    network.notice(1);
    network.break_stream(1);
    network.settle(1);
    assert_eq!(withheld(&network), [kept("r1", 500_000, Why::Away)]);
    network.restart_hub();
    network.reconnect(0);
    network.settle(1);
    network.advance(WITHHELD_AFTER);
    network.settle(1);
    assert_eq!(withheld(&network), [kept("r1", 500_000, Why::NotHeard)]);
    network.routers[1].conduct = Conduct::Loyal;
    network.reconnect(1);
    network.settle(5);
    assert_eq!(withheld(&network), []);
    // It says that it keeps to what it is told, and that it has all of it.
    network.routers[1].conduct = Conduct::Claims(WHOLE);
    network.settle(40);
    assert_eq!(withheld(&network), [kept("r1", WHOLE - 25_000, Why::Unconfirmed)]);
}

#[test]
fn what_a_router_was_told_counts_until_it_has_kept_it() {
    let mut network = halves();
    network.routers[0].asked = RATE;
    network.settle(1);
    network.report();
    network.divide();
    network.deliver();
    assert_eq!(
        network.shares(&key(0, 0)),
        [500_000, 25_000],
        "its disk is slow: it does not use it yet"
    );
    // On the next stream it says what it had before, and it may have been about to write the rest.
    network.reconnect(0);
    network.deliver();
    assert_eq!(network.core.bounds()[&key(0, 0)]["r0"], 975_000);
    network.settle(4);
    assert_eq!(network.core.bounds()[&key(0, 0)]["r0"], 975_000);
}

/// A bucket of one token, or of two, for three routers that are asked for little.
#[test]
fn with_too_few_tokens_for_all_each_router_that_wants_some_has_its_turn() {
    for (least, at_once) in [(WHOLE, 1), (WHOLE / 2, 2)] {
        let mut network = Network::new(3);
        network.supply.least = least;
        network.put_rule(key(0, 0));
        for router in &mut network.routers {
            router.asked = 10;
        }
        let mut turns = [0; 3];
        let round = TURN.as_secs() * 3;
        for _ in 0..round * 2 {
            network.settle(1);
            let shares = network.shares(&key(0, 0));
            assert!(shares.iter().sum::<u32>() <= WHOLE, "{shares:?}");
            for (turns, share) in turns.iter_mut().zip(shares) {
                *turns += u64::from(share >= least);
            }
        }
        // But for the moments in which shares move.
        assert!(turns.iter().all(|has| *has >= round * at_once / 3), "{turns:?}");
        network.routers[0].asked = 0;
        network.routers[1].asked = 0;
        network.settle(6);
        let revision = network.routers[2].revision;
        assert!(network.shares(&key(0, 0))[2] >= least, "who alone wants it has it");
        network.settle(usize::try_from(round).unwrap());
        assert_eq!(network.routers[2].revision, revision, "and nobody takes turns with it");
    }
}
