//! What a router serves to its callers, beside what the hub's ledger says. Pure; reads `/configz` of both.
//!
//! A router keeps shards by caller: of a shard without callers it serves nothing, and nothing is compared.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use super::{items, texts};
use crate::router::text;

/// A pair that the two do not see alike.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Difference {
    pub(super) shard: String,
    /// `cluster/namespace`
    pub(super) pair: String,
    pub(super) router: String,
    pub(super) hub: String,
}

/// In words, whose it is in which state; of each pair of one shard.
type Pairs = BTreeMap<String, String>;

/// `router` and `hub`: their `/configz`.
pub(super) fn differences(router: &Value, hub: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    for (shard, served) in served(router) {
        let told = told(hub, &shard);
        let pairs: BTreeSet<_> = served.keys().chain(told.keys()).collect();
        for pair in pairs {
            let (ours, theirs) = (served.get(pair), told.get(pair));
            if ours != theirs {
                found.push(Difference {
                    shard: shard.clone(),
                    pair: pair.clone(),
                    router: ours.cloned().unwrap_or_else(|| "does not serve it".to_owned()),
                    hub: theirs.cloned().unwrap_or_else(|| owner(hub, pair)),
                });
            }
        }
    }
    found
}

/// By shard; all callers of one are served the same.
fn served(router: &Value) -> BTreeMap<String, Pairs> {
    let mut shards = BTreeMap::<String, Pairs>::new();
    for caller in items(&router["snapshot"]["callers"]) {
        let ([name], members) = (&texts(&caller["shards"])[..], items(&caller["shard"]["members"])) else {
            continue;
        };
        let pairs = shards.entry((*name).to_owned()).or_default();
        for member in members {
            let cluster = text(&member["cluster"]);
            for namespace in items(&member["namespaces"]) {
                let pair = format!("{cluster}/{}", text(&namespace["name"]));
                pairs.insert(pair, state(&text(&namespace["state"]), &namespace["viewRevision"]));
            }
        }
    }
    shards
}

/// What the hub's ledger says that `shard` has.
fn told(hub: &Value, shard: &str) -> Pairs {
    let mut pairs = Pairs::new();
    for (cluster, namespaces) in hub["world"]["ledger"].as_object().into_iter().flatten() {
        for (namespace, entries) in namespaces.as_object().into_iter().flatten() {
            if let Some(entry) = items(entries).iter().find(|entry| entry["owner"] == shard) {
                let word = if entry["releasing"] == true {
                    "Releasing"
                } else {
                    "Granted"
                };
                pairs.insert(format!("{cluster}/{namespace}"), state(word, &entry["viewRevision"]));
            }
        }
    }
    pairs
}

fn state(word: &str, view_revision: &Value) -> String {
    format!("{word} since {view_revision}")
}

/// Whose the hub says a pair is that is not the shard's, of each operator.
fn owner(hub: &Value, pair: &str) -> String {
    let (cluster, namespace) = pair.split_once('/').unwrap_or((pair, ""));
    let entries = items(&hub["world"]["ledger"][cluster][namespace]);
    let owners: Vec<_> = entries.iter().filter_map(|entry| entry["owner"].as_str()).collect();
    if owners.is_empty() {
        return "nobody has it".to_owned();
    }
    let has = if owners.len() == 1 { "has" } else { "have" };
    format!("{} {has} it", owners.join(" and "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_pair_that_is_not_seen_alike_is_told() {
        let served =
            |name: &str, state: &str, revision: u32| json!({"name": name, "state": state, "viewRevision": revision});
        let member = json!({"cluster": "east", "namespaces": [
            served("ns-a", "Granted", 1), served("ns-b", "Granted", 2), served("ns-c", "Granted", 3), served("ns-d", "Granted", 4),
        ]});
        let router = json!({"snapshot": {"callers": [
            {"shards": ["ops/a"], "shard": {"members": [member]}},
            {"shards": ["ops/a", "ops/b"], "shard": null},
        ]}});
        let entry = |owner: Value, revision: u32, releasing: bool| json!([{"owner": owner, "viewRevision": revision, "releasing": releasing}]);
        let hub = json!({"world": {"ledger": {"east": {
            "ns-a": entry(json!("ops/a"), 1, false), "ns-b": entry(json!("ops/a"), 2, true), "ns-c": entry(json!("ops/b"), 5, false),
            "ns-d": entry(Value::Null, 4, false), "ns-e": entry(json!("ops/a"), 6, false),
        }}}});
        let told: Vec<_> = differences(&router, &hub)
            .into_iter()
            .map(|one| format!("{} {}: {}, {}", one.shard, one.pair, one.router, one.hub))
            .collect();
        assert_eq!(
            told,
            [
                "ops/a east/ns-b: Granted since 2, Releasing since 2",
                "ops/a east/ns-c: Granted since 3, ops/b has it",
                "ops/a east/ns-d: Granted since 4, nobody has it",
                "ops/a east/ns-e: does not serve it, Granted since 6",
            ]
        );
    }
}
