//! Revisions of shares that routers say are believed as far as the next ones can be beyond them.

use super::*;

/// Two routers that say these revisions once; then the first is asked for all.
fn claimed(revisions: [u64; 2]) -> Network {
    let mut network = halves();
    for (router, revision) in revisions.into_iter().enumerate() {
        network.routers[router].revision = revision;
    }
    network.keep_all();
    for router in [0, 1] {
        network.reconnect(router);
    }
    network.report();
    network.routers[0].asked = RATE;
    network.routers[1].revision = 0;
    network.settle(6);
    network
}

#[test]
fn a_revision_is_beyond_what_routers_say_and_nobody_uses_them_up() {
    let network = claimed([7_000, u64::MAX]);
    let revision = network.routers[0].revision;
    assert!((7_001..8_000).contains(&revision), "{revision}");
}

#[test]
fn revisions_of_a_term_of_today_are_believed() {
    let said = (1_764_374_400 << 32) + 7_000;
    let network = claimed([said, u64::MAX]);
    let revision = network.routers[0].revision;
    assert!((said + 1..said + 1_000).contains(&revision), "{revision}");
}

#[test]
fn the_highest_revision_that_is_believed_is_followed_by_others_that_are_heard() {
    let mut network = halves();
    network.routers[1].revision = (u64::MAX << 32) - 1;
    network.keep_all();
    for router in [0, 1] {
        network.reconnect(router);
    }
    network.report();
    network.routers[0].asked = RATE;
    network.routers[1].revision = 0;
    network.settle(6);
    assert_eq!(network.shares(&key(0, 0))[0], WHOLE - network.shares(&key(0, 0))[1]);
    assert!(
        network.shares(&key(0, 0))[0] > 500_000,
        "{:?}",
        network.shares(&key(0, 0))
    );
}
