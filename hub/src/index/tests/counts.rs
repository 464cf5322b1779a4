//! Counts of objects by bucket, as agents tell them.

use super::*;

fn told(reset: bool, kinds: &[(&str, usize)], removed: &[&str]) -> Report {
    let kind = |name: &str| v1::KindRef {
        group: String::new(),
        resource: name.to_owned(),
    };
    let fact = |(name, buckets): &(&str, usize)| v1::CoverageFact {
        kind: Some(kind(name)),
        by_bucket: vec![7; *buckets],
        ..v1::CoverageFact::default()
    };
    Report::Coverage(v1::CoverageDelta {
        reset,
        upserted: kinds.iter().map(fact).collect(),
        removed: removed.iter().map(|name| kind(name)).collect(),
        ..v1::CoverageDelta::default()
    })
}

#[test]
fn only_the_first_counts_of_all_kinds_wake_the_compiler() {
    let mut facts = Facts::default();
    facts.agent_connected("east", 1, &v1::AgentHello::default());
    let counted = |facts: &Facts| facts.agents["east"].counts.len();
    assert_eq!(
        folded(&mut facts, 1, told(true, &[("pods", 0), ("services", 0)], &[])),
        Change::Compile
    );
    assert_eq!(
        folded(&mut facts, 1, told(false, &[("pods", 32)], &[])),
        Change::Nothing
    );
    assert_eq!(
        folded(&mut facts, 1, told(false, &[("services", 32)], &[])),
        Change::Compile,
        "somebody may be waiting for them"
    );
    assert_eq!(
        folded(&mut facts, 1, told(false, &[("pods", 31)], &[])),
        Change::Nothing
    );
    assert_eq!(
        facts.agents["east"]
            .counts
            .values()
            .map(|kind| kind.len())
            .sum::<usize>(),
        63
    );
    folded(&mut facts, 1, told(false, &[], &["services"]));
    assert_eq!(counted(&facts), 1, "it is not labelled any more");
    folded(&mut facts, 1, told(false, &[("pods", 0)], &[]));
    assert_eq!(counted(&facts), 0, "it is listed anew");
    folded(&mut facts, 1, told(false, &[("pods", 32)], &[]));
    folded(&mut facts, 1, told(true, &[("services", 32)], &[]));
    assert_eq!(counted(&facts), 1);
}

#[test]
fn nobody_has_more_buckets_than_there_can_be() {
    let mut facts = Facts::default();
    facts.agent_connected("east", 1, &v1::AgentHello::default());
    folded(&mut facts, 1, told(true, &[("pods", 1024)], &[]));
    let more = facts.apply_report("east", 1, told(false, &[("pods", 1025)], &[]));
    assert!(matches!(more, Err(OutOfBounds::TooMany { .. })), "{more:?}");
}
