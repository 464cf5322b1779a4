//! Limits against each other: read word by word, and found as by comparing each two rules.

use std::collections::BTreeSet;

use super::*;
use crate::names::WILDCARD;
use crate::selector::Selector;
use crate::sharding::{ObjectLimiter, ResourceGroup};

/// Whether both name a resource, rule by rule.
fn meet(one: &ObjectLimiter, other: &ObjectLimiter) -> bool {
    let all = [ResourceGroup {
        api_groups: vec![WILDCARD.to_owned()],
        resources: vec![WILDCARD.to_owned()],
    }];
    let rules = |limit: &ObjectLimiter| match limit.relate_resources.as_slice() {
        [] => all.to_vec(),
        rules => rules.to_vec(),
    };
    let common = |a: &[String], b: &[String]| {
        let is_wild = |list: &[String]| list.iter().any(|word| word == WILDCARD);
        let (a_set, b_set): (BTreeSet<_>, BTreeSet<_>) = (a.iter().collect(), b.iter().collect());
        (is_wild(a) && !b.is_empty()) || (is_wild(b) && !a.is_empty()) || !a_set.is_disjoint(&b_set)
    };
    rules(one).iter().any(|ours| {
        let theirs = rules(other);
        let mut theirs = theirs.iter();
        theirs.any(|theirs| common(&ours.api_groups, &theirs.api_groups) && common(&ours.resources, &theirs.resources))
    })
}

fn any_limit() -> impl Strategy<Value = ObjectLimiter> {
    let words = |words: &'static [&'static str]| prop::collection::vec(prop::sample::select(words), 0..3);
    let rule = (words(&["", "apps", "*"]), words(&["pods", "jobs", "*"])).prop_map(|(groups, resources)| {
        let owned = |words: Vec<&str>| words.into_iter().map(str::to_owned).collect();
        ResourceGroup {
            api_groups: owned(groups),
            resources: owned(resources),
        }
    });
    let value = prop::option::of(prop::sample::select(&["1", "2"][..]));
    (prop::collection::vec(rule, 0..3), value).prop_map(|(relate_resources, value)| ObjectLimiter {
        relate_resources,
        selector: value.map(|value| LabelSelector {
            match_labels: Some([("a".to_owned(), value.to_owned())].into()),
            match_expressions: None,
        }),
    })
}

proptest! {
    #[test]
    fn limits_contradict_each_other_where_two_rules_name_one_resource(
        limits in prop::collection::vec(any_limit(), 0..5)
    ) {
        let selectors: Vec<_> = limits
            .iter()
            .map(|limit| limit.selector.as_ref().map(|selector| Selector::from_label_selector(selector).unwrap()))
            .collect();
        let contradicts = |one: usize, other: usize| match (&selectors[one], &selectors[other]) {
            (Some(a), Some(b)) => a.and(b).is_nothing() && meet(&limits[one], &limits[other]),
            _ => false,
        };
        let wanted: Vec<_> = (0..limits.len())
            .filter_map(|index| {
                let earlier = (0..index).find(|earlier| contradicts(*earlier, index))?;
                Some((format!("spec.limits[{index}].selector"), format!("contradicts spec.limits[{earlier}] ")))
            })
            .collect();
        let spec = ShardingConfigSpec { limits, ..ShardingConfigSpec::default() };
        let found: Vec<_> = validate_sharding("demo", "ops", &spec)
            .into_iter()
            .filter(|problem| problem.message.starts_with("contradicts"))
            .collect();
        prop_assert_eq!(found.len(), wanted.len());
        for (found, (field, beginning)) in found.iter().zip(&wanted) {
            prop_assert_eq!(&found.field, field);
            prop_assert!(found.message.starts_with(beginning), "{}", found.message);
        }
    }
}

/// The most rules there may be, each of which nearly names what each other does: words are read once, not once for each two rules.
#[test]
fn many_rules_are_read_in_no_time() {
    let limits: Vec<_> = (0..32)
        .map(|limit| {
            let rules = (0..32).map(|rule| ResourceGroup {
                api_groups: vec!["apps".to_owned()],
                resources: (0..24).map(|word| format!("r{word:02}-{limit:02}-{rule:02}")).collect(),
            });
            ObjectLimiter {
                relate_resources: rules.collect(),
                selector: Some(LabelSelector {
                    match_labels: Some([("a".to_owned(), limit.to_string())].into()),
                    match_expressions: None,
                }),
            }
        })
        .collect();
    let spec = ShardingConfigSpec {
        limits,
        ..ShardingConfigSpec::default()
    };
    let begun = std::time::Instant::now();
    for _ in 0..5 {
        let problems = validate_sharding("demo", "ops", &spec);
        assert!(!problems.iter().any(|problem| problem.message.contains("contradicts")));
    }
    let took = begun.elapsed();
    // Rule by rule it takes minutes where nothing is optimized.
    assert!(took < std::time::Duration::from_secs(10), "{took:?}");
}
