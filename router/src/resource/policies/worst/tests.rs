//! Who is told and who is left out, whatever policies have.

use proptest::prelude::*;
use tokio::time::Instant;

use super::super::found::{Name, Rank};
use super::*;

/// A rule of a policy, refusing all or not, and how much it refused.
type Rule = (usize, usize, bool, u64);

const POLICIES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn found<'a>(policy: &'a str, rule: &'a str, opened: bool, last_minute: u64) -> Found<'a> {
    Found {
        rank: Rank {
            closed: !opened,
            last_minute: Reverse(last_minute),
            total: Reverse(0),
            tokens: None,
        },
        name: Name {
            policy,
            rule,
            cluster: None,
            caller: None,
        },
        reason: "",
        since: None,
    }
}

fn all(most: usize, rules: &[Found<'_>]) -> (Vec<v1::RuleState>, Vec<v1::RulesLeftOut>) {
    let mut worst = Worst::new(most, Clock { began: Instant::now() });
    for rule in rules {
        worst.add(rule);
        assert!(worst.told.len() < most * HELD, "few are held");
    }
    worst.all()
}

fn told(rules: &[Found<'_>]) -> Vec<String> {
    all(3, rules).0.into_iter().map(|rule| rule.rule).collect()
}

#[test]
fn the_worst_are_kept_the_worst_first() {
    let names: Vec<_> = (0..50_u64).map(|index| index.to_string()).collect();
    let mut rules: Vec<_> = names
        .iter()
        .zip(0..)
        .map(|(name, index)| found("a", name, false, index))
        .collect();
    rules.push(found("a", "100", true, 0));
    assert_eq!(told(&rules), ["100", "49", "48"]);
    rules.reverse();
    assert_eq!(told(&rules), ["100", "49", "48"]);
}

#[test]
fn of_rules_that_are_alike_the_same_are_told_each_time() {
    let names: Vec<_> = (10..60_u64).map(|index| index.to_string()).collect();
    let mut rules: Vec<_> = names.iter().map(|name| found("a", name, false, 7)).collect();
    assert_eq!(told(&rules), ["10", "11", "12"]);
    rules.reverse();
    assert_eq!(told(&rules), ["10", "11", "12"]);
}

#[test]
fn who_has_many_bad_rules_pushes_nobody_out() {
    let names: Vec<_> = (0..256).map(|index| format!("rule-{index:03}")).collect();
    let mut rules: Vec<_> = names.iter().map(|name| found("loud", name, true, 900)).collect();
    rules.push(found("quiet", "slow", true, 1));
    rules.push(found("mild", "slow", false, 1));
    let (rules, left_out) = all(20, &rules);
    let of = |policy: &str| rules.iter().filter(|rule| rule.policy == policy).count();
    assert_eq!((of("loud"), of("quiet"), of("mild")), (18, 1, 1));
    assert!(
        rules[0].opened && rules[0].policy == "loud" && !rules[19].opened,
        "the worst first"
    );
    let left_out: Vec<_> = left_out
        .iter()
        .map(|left| (left.policy.as_str(), left.opened))
        .collect();
    assert_eq!(left_out, [("loud", 238)]);
}

/// What ought to be told: the worst of each policy, then the second worst of each, and so on.
fn wanted(most: usize, rules: &[Rule]) -> Vec<(bool, u64, usize, usize)> {
    let mut by_place = Vec::new();
    for policy in 0..POLICIES.len() {
        let own = rules.iter().filter(|(of, ..)| *of == policy);
        let mut own: Vec<_> = own
            .map(|&(policy, rule, opened, minute)| (!opened, u64::MAX - minute, policy, rule))
            .collect();
        own.sort_unstable();
        by_place.extend(own.into_iter().enumerate());
    }
    by_place.sort_unstable();
    by_place.truncate(most);
    let mut wanted: Vec<_> = by_place.into_iter().map(|(_, rule)| rule).collect();
    wanted.sort_unstable();
    wanted
}

proptest! {
    #[test]
    fn each_policy_has_its_part_and_what_is_left_out_is_counted(
        mut rules in prop::collection::vec((0..POLICIES.len(), any::<bool>(), 0..4_u64), 0..120),
        most in 1..20_usize,
    ) {
        // Most are of one policy.
        for (policy, ..) in rules.iter_mut().skip(20) {
            *policy = if *policy == 5 { 5 } else { 0 };
        }
        let rules: Vec<Rule> = rules
            .into_iter()
            .enumerate()
            .map(|(number, (policy, opened, minute))| (policy, 1_000 + number, opened, minute))
            .collect();
        let names: Vec<_> = rules.iter().map(|(_, rule, ..)| rule.to_string()).collect();
        let found = rules
            .iter()
            .zip(&names)
            .map(|(&(policy, _, opened, minute), name)| found(POLICIES[policy], name, opened, minute));
        let (told, left_out) = all(most, &found.collect::<Vec<_>>());
        let place = |policy: &str| POLICIES.iter().position(|name| *name == policy).unwrap();
        let keys = told.iter().map(|rule| {
            (!rule.opened, u64::MAX - rule.last_minute, place(&rule.policy), rule.rule.parse::<usize>().unwrap())
        });
        prop_assert_eq!(keys.collect::<Vec<_>>(), wanted(most, &rules));
        for (place, policy) in POLICIES.iter().enumerate() {
            let all = rules.iter().filter(|(of, _, opened, _)| *of == place && *opened).count();
            let told = told.iter().filter(|rule| rule.policy == *policy && rule.opened).count();
            let left = left_out.iter().find(|left| left.policy == *policy).map_or(0, |left| left.opened);
            prop_assert_eq!(u64::try_from(all - told).unwrap(), left);
        }
    }
}
