//! Condition Replicated of a ShardingConfig: which copies of its objects of replicated kinds are not what the primary has, as routers
//! know (`docs/semantics.md#replicated-kinds`). Pure; called by `shard`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use portolan_crds::{ConditionReason, ConditionType, Finding, ShardName};

use super::Routers;
use crate::acks::CopyBehind;
use crate::compile::Accepted;

/// Copies that the message names: what a member says of each may take a line or two.
const NAMED_MAX: usize = 4;

/// Whether some router is here to tell of copies. Else the condition stays as it was.
pub(super) fn is_known(routers: &Routers) -> bool {
    routers.values().any(|router| router.left.is_none())
}

/// `None`: the shard replicates nothing, or no router knows of a copy that is behind. What one knew that has left counts until it is
/// forgotten.
pub(super) fn replicated(routers: &Routers, name: &ShardName, accepted: Option<&Accepted>) -> Option<Finding> {
    let accepted = accepted.filter(|accepted| !accepted.spec.replicated_kinds().is_empty())?;
    let mut behind = BTreeSet::new();
    let mut more = 0_u64;
    for of_shard in routers.values().filter_map(|router| router.copies.get(name)) {
        behind.extend(&of_shard.behind);
        more = more.saturating_add(of_shard.more);
    }
    let first = behind.first()?;
    let reason = if first.may_pass {
        ConditionReason::Behind
    } else {
        ConditionReason::Conflict
    };
    // Several routers may know of the same copy, in other words.
    let mut copies: Vec<&CopyBehind> = Vec::new();
    for one in behind {
        let is_same =
            |other: &&CopyBehind| (&one.cluster, &one.name, &one.kind) == (&other.cluster, &other.name, &other.kind);
        if !copies.iter().any(is_same) {
            copies.push(one);
        }
    }
    Some(Finding::fails(
        ConditionType::Replicated,
        reason,
        message(&copies, more, accepted.spec.primary_cluster()),
    ))
}

fn message(copies: &[&CopyBehind], more: u64, primary: Option<&str>) -> String {
    let named = copies.iter().take(NAMED_MAX).map(|copy| {
        let CopyBehind {
            cluster,
            kind,
            name,
            message,
            ..
        } = copy;
        format!("{kind} {name} in member cluster {cluster}: {message}")
    });
    let mut text = format!(
        "not as {} has it: {}",
        primary.map_or_else(
            || "the primary".to_owned(),
            |primary| format!("primary cluster {primary}")
        ),
        named.collect::<Vec<_>>().join("; ")
    );
    let unnamed = u64::try_from(copies.len().saturating_sub(NAMED_MAX)).unwrap_or(u64::MAX);
    let more = more.saturating_add(unnamed);
    if more > 0 {
        let _ = write!(text, "; and {more} more");
    }
    if copies.iter().any(|copy| !copy.may_pass) {
        text += "; nothing is forced: let the other manager give up the fields there, or write the same in the primary";
    }
    text + "; it is tried again, each minute at least, when callers with the account that wrote it ask for anything"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use portolan_crds::ShardingConfigSpec;
    use serde_json::json;

    use super::*;
    use crate::acks::{Copies, RouterState};

    fn accepted(replicated: serde_json::Value) -> Accepted {
        let mut spec = json!({
            "selector": {}, "callerClusters": ["east"], "primaryCluster": "east",
            "clusters": [{"name": "east"}, {"name": "west"}],
        });
        spec["replicated"] = replicated;
        let spec: ShardingConfigSpec = serde_json::from_value(spec).unwrap();
        Accepted {
            spec: Arc::new(spec),
            ..Accepted::default()
        }
    }

    fn copy(name: &str, may_pass: bool, message: &str) -> CopyBehind {
        CopyBehind {
            may_pass,
            kind: "customresourcedefinitions.apiextensions.k8s.io".to_owned(),
            name: name.to_owned(),
            cluster: "west".to_owned(),
            message: message.to_owned(),
        }
    }

    fn router(shard: &str, behind: &[CopyBehind], more: u64) -> RouterState {
        let copies = Copies {
            behind: behind.to_vec(),
            more,
        };
        RouterState {
            copies: Arc::new([(shard.parse().unwrap(), copies)].into()),
            ..RouterState::new(1, BTreeMap::new())
        }
    }

    fn found(routers: impl IntoIterator<Item = RouterState>, replicated: serde_json::Value) -> Option<Finding> {
        let routers = routers.into_iter().enumerate();
        let routers: Routers = routers.map(|(index, router)| (index.to_string(), router)).collect();
        super::replicated(&routers, &"ops/blue".parse().unwrap(), Some(&accepted(replicated)))
    }

    #[test]
    fn it_is_told_to_the_shard_whose_copy_it_is_while_it_replicates_anything() {
        let of = |shard: &str| router(shard, &[copy("cs.a.b", true, "it is away")], 0);
        let told = found([of("ops/green"), of("ops/blue")], json!(null)).unwrap();
        assert_eq!((told.status, told.reason), (Some(false), ConditionReason::Behind));
        for word in [
            "primary cluster east",
            "cs.a.b in member cluster west: it is away",
            "tried again",
        ] {
            assert!(told.message.contains(word), "{word}: {}", told.message);
        }
        assert!(
            !told.message.contains("forced") && !told.message.contains("more"),
            "{}",
            told.message
        );
        assert_eq!(found([of("ops/blue")], json!([])), None);
        assert_eq!(found([of("ops/green")], json!(null)), None);
        let mut left = of("ops/blue");
        left.left = Some(tokio::time::Instant::now());
        assert!(found([left.clone()], json!(null)).is_some(), "until it is forgotten");
        assert!(!is_known(&[("r".to_owned(), left)].into()) && !is_known(&Routers::new()));
    }

    #[test]
    fn conflicts_come_first_each_copy_once_and_few_are_named() {
        let late: Vec<_> = (0..9).map(|index| copy(&format!("cs-{index}"), true, "late")).collect();
        let conflict = |word: &str| copy("zs.a.b", false, &format!("conflict with \"{word}\": .spec.names"));
        let routers = [
            router("ops/blue", &late, 5),
            router("ops/blue", &[conflict("first"), late[0].clone()], 0),
            router("ops/blue", &[conflict("second")], 0),
        ];
        let told = found(routers, json!(null)).unwrap();
        assert_eq!(told.reason, ConditionReason::Conflict);
        let (first, rest) = told.message.split_once("; ").unwrap();
        assert!(
            first.ends_with("zs.a.b in member cluster west: conflict with \"first\": .spec.names"),
            "{first}"
        );
        assert!(
            rest.contains("cs-2") && !rest.contains("cs-3") && !rest.contains("second"),
            "{rest}"
        );
        assert!(rest.contains("; and 11 more; nothing is forced"), "{rest}");
    }
}
