//! Roots from run to run, and from one start of the hub to the next.

use super::roots::{check_whole, fleet, owners, sized};
use super::*;

/// What somebody made of children while no hub looked does not decide who has what.
#[test]
fn edits_of_children_do_not_count_after_a_restart() {
    let mut fleet = fleet();
    fleet.apply("root", sized(2));
    let before = owners(&fleet.settle());
    let object = |fleet: &Fleet, name: &str| (**fleet.facts.shards[&shard_name(name)].spec.as_ref().unwrap()).clone();
    let specs = ["op-1-normal", "op-2-normal"].map(|name| object(&fleet, name));
    for (name, spec) in ["op-2-normal", "op-1-normal"].into_iter().zip(specs) {
        fleet.apply(name, spec);
    }
    fleet.restart();
    let world = fleet.settle();
    assert_eq!(owners(&world), before);
    let first = |(cluster, namespace): &(String, String)| {
        let entry = world
            .state
            .ledger
            .get(&OperatorName::default(), cluster, namespace)
            .unwrap();
        entry.owner_count == entry.view_revision
    };
    assert!(before.keys().all(first), "nothing has had another owner");
}

/// Sharing out takes time: what was found out stays until something else does.
#[test]
fn a_root_that_is_refused_is_not_shared_out_anew_in_every_run() {
    let mut fleet = fleet();
    fleet.apply("mine", spec(&[("east", &["a"])]));
    fleet.apply("root", sized(3));
    let attempt = |fleet: &Fleet| {
        let attempts = &fleet.state.attempts[&shard_name("root")];
        assert_eq!(attempts.len(), 1);
        attempts[0].came_of_it.clone().unwrap()
    };
    assert_eq!(fleet.settle().refusal("root"), Some(ConditionReason::Overlap));
    let first = attempt(&fleet);
    fleet.compile(0);
    assert!(Arc::ptr_eq(&first, &attempt(&fleet)));
    fleet.apply("root", sized(2));
    fleet.compile(0);
    assert_eq!(attempt(&fleet).expansion.children.len(), 2);
    fleet.delete("mine");
    check_whole(&fleet.settle());
}
