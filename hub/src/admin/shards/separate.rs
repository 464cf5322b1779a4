//! What a ledger of before would come to with owners of each operator: the compiler is run over what it is and over what it would be, and
//! whoever has a namespace then beside who has it now is told. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use portolan_crds::ShardName;
use serde::Serialize;

use super::plan::rest;
use crate::compile::State;
use crate::facts::Facts;
use crate::settings::Settings;

/// A pair that would have another owner beside the present one.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Second {
    cluster: String,
    namespace: String,
    /// Who has it, and goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<ShardName>,
    /// Who would have it, too.
    second: ShardName,
    /// `spec.operator` of that one.
    #[serde(skip_serializing_if = "Option::is_none")]
    operator: Option<String>,
}

/// By cluster and namespace; and whether it was found out where it ends.
pub(super) fn seconds(facts: &Facts, state: &State, settings: &Settings, now: Timestamp) -> (Vec<Second>, bool) {
    let (before, at_rest) = rest(facts.clone(), state, settings, now);
    let mut separate = state.clone();
    Arc::make_mut(&mut separate.ledger).separate(&state.accepted);
    let (after, rests) = rest(facts.clone(), &separate, settings, now);
    let mut seconds = Vec::new();
    for cluster in after.state.ledger.clusters() {
        for (operator, namespace, entry) in after.state.ledger.pairs_in(cluster) {
            let mut before = before.state.ledger.all_of(cluster, namespace);
            let owner = before.find_map(|(_, entry)| entry.owner.as_ref());
            let Some(second) = entry.owner.as_ref().filter(|second| Some(*second) != owner) else {
                continue;
            };
            seconds.push(Second {
                cluster: cluster.to_owned(),
                namespace: namespace.to_owned(),
                owner: owner.cloned(),
                second: second.clone(),
                operator: operator.name().map(str::to_owned),
            });
        }
    }
    seconds.sort();
    (seconds, at_rest && rests)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::Fleet;
    use super::*;

    #[test]
    fn who_would_have_a_namespace_beside_its_owner_is_told() {
        let mut fleet = Fleet::new(&["ns-a", "ns-b"]);
        let spec = |operator: &str, namespaces: &[&str]| {
            json!({
                "selector": {"matchLabels": {"app": "op"}},
                "operator": operator,
                "callerClusters": ["east"],
                "clusters": [{"name": "east", "namespaces": namespaces}],
            })
        };
        fleet.apply_spec("a", &spec("rollouts", &["ns-a", "ns-b"]));
        fleet.apply_spec("b", &spec("rollouts", &["ns-a"]));
        fleet.apply_spec("c", &spec("prometheus", &["ns-a"]));
        fleet.compile();
        let (seconds, rests) = seconds(&fleet.facts, &fleet.state, &Settings::default(), Timestamp::UNIX_EPOCH);
        let told = serde_json::to_value(&seconds).unwrap();
        let expected = json!([
            {"cluster": "east", "namespace": "ns-a", "owner": "ops/a", "second": "ops/c", "operator": "prometheus"},
        ]);
        assert!(rests);
        assert_eq!(told, expected);
        assert!(fleet.state.ledger.contention().is_fleet(), "nothing has changed");
    }
}
