//! Which routers begin with a full share: each part of a bucket is full once, for the first router that has it.

use super::*;

/// Rounds in which shares of a new rule arrive everywhere.
const ARRIVES: usize = 1;

/// What each router lets pass of the rule, in millionths of the bucket.
fn holds(network: &Network, rule: &SharedLimit) -> Vec<u64> {
    let routers = network.routers.iter();
    routers.map(|router| router.holds(rule)).collect()
}

/// Two routers that were there when the rule came, and have spent what they had of it.
fn spent() -> Network {
    let mut network = Network::new(2);
    network.settle(2);
    network.put_rule(key(0, 0));
    network.settle(ARRIVES);
    assert_eq!(network.shares(&key(0, 0)), [500_000, 500_000]);
    spend(&mut network);
    network
}

fn spend(network: &mut Network) {
    for router in 0..network.routers.len() {
        network.spend(router);
    }
}

/// A second brings a hundredth of the bucket.
fn is_empty(network: &Network, rule: &SharedLimit, seconds: u64) {
    let sum: u64 = holds(network, rule).iter().sum();
    assert!(sum <= seconds * 10_000, "{:?}", holds(network, rule));
}

#[test]
fn a_new_rule_begins_full_everywhere() {
    let mut network = Network::new(3);
    network.settle(2);
    network.put_rule(key(0, 0));
    network.settle(2);
    assert_eq!(holds(&network, &key(0, 0)), [333_334, 333_333, 333_333]);
}

#[test]
fn who_sees_a_rule_after_others_begins_with_nothing() {
    let mut network = Network::new(2);
    network.see(1, Some(BTreeSet::new()));
    network.settle(2);
    network.put_rule(key(0, 0));
    network.settle(ARRIVES);
    assert_eq!(holds(&network, &key(0, 0)), [1_000_000, 0]);
    spend(&mut network);
    network.see(1, None);
    network.settle(4);
    assert_eq!(network.shares(&key(0, 0)), [500_000, 500_000]);
    is_empty(&network, &key(0, 0), 5);
}

#[test]
fn who_is_the_first_to_see_a_rule_begins_with_all_of_it_however_late() {
    let mut network = Network::new(1);
    network.see(0, Some(BTreeSet::new()));
    network.put_rule(key(0, 0));
    network.settle(3_600);
    network.see(0, None);
    network.settle(2);
    assert_eq!(holds(&network, &key(0, 0)), [1_000_000]);
}

#[test]
fn after_a_restart_of_the_hub_what_was_there_before_is_new_to_nobody() {
    let mut network = spent();
    network.restart_hub();
    network.join("late");
    for router in 0..3 {
        network.reconnect(router);
    }
    network.routers[2].asked = RATE;
    network.settle(5);
    assert!(network.shares(&key(0, 0))[2] > 900_000);
    is_empty(&network, &key(0, 0), 6);
    // What an edit adds to the same object is new, once all have spoken.
    network.put_rule(key(0, 1));
    network.settle(2);
    assert_eq!(holds(&network, &key(0, 1)).iter().sum::<u64>(), 1_000_000);
}

#[test]
fn a_rule_that_was_out_of_force_with_its_object_is_as_it_was_left() {
    let mut network = spent();
    let out = |network: &mut Network, rounds: u64| {
        network.withdraw(0, true);
        for router in 0..network.routers.len() {
            network.learn(router);
        }
        network.settle(4);
        network.advance(Duration::from_secs(rounds));
        network.tell_rules();
        network.withdraw(0, false);
        network.settle(2);
    };
    out(&mut network, 10);
    assert_eq!(network.shares(&key(0, 0)), [500_000, 500_000]);
    is_empty(&network, &key(0, 0), 5);
    out(&mut network, SAME_FOR.as_secs());
    assert_eq!(
        holds(&network, &key(0, 0)),
        [500_000, 500_000],
        "nobody knows it any more"
    );
}

#[test]
fn a_rule_that_an_edit_took_out_is_another_one_when_it_is_back() {
    let mut network = spent();
    network.rules.clear();
    network.tell_rules();
    for router in [0, 1] {
        network.learn(router);
    }
    network.settle(4);
    network.tell_rules();
    assert!(network.core.bounds().is_empty());
    network.put_rule(key(0, 0));
    network.settle(2);
    assert_eq!(holds(&network, &key(0, 0)), [500_000, 500_000]);
}

/// It was told twice before it has said that it has heard: the first may have been overwritten on the way to it.
#[test]
fn a_part_is_said_to_be_fresh_until_that_was_heard_and_no_more_of_it() {
    let mut network = Network::new(1);
    network.settle(2);
    network.put_rule(key(0, 0));
    network.divide();
    network.routers[0].to_hear.clear();
    network.advance(Duration::from_secs(4));
    network.put_rule(key(1, 0));
    network.divide();
    network.settle(2);
    assert_eq!(
        (holds(&network, &key(0, 0)), holds(&network, &key(1, 0))),
        (vec![1_000_000], vec![1_000_000])
    );
    spend(&mut network);
    network.put_rule(key(1, 1));
    network.settle(1);
    is_empty(&network, &key(0, 0), 2);
}
