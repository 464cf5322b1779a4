//! Cluster-scoped kinds that this router has brought to the members a moment ago (`docs/semantics.md#replicated-kinds`).
//!
//! Who makes a definition makes an object next and watches from that object's version, which is the primary's and says nothing of
//! other members. While a kind is young it is known where each of those stands at which it had none yet: there the watch begins,
//! and nothing can have been missed. Callers: `replicate` remembers, `watch` asks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use http::{Request, StatusCode};
use parking_lot::Mutex;
use portolan_merge::cursor::{Cursor, Slot};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::leg::Asking;
use super::{FanOuts, Told};
use crate::decision::plan::{Candidate, FanOut, Forward};
use crate::resource::routing::Routing;
use crate::stage::preflight::Pending;
use crate::value::classify::ResourceRequest;
use crate::value::snapshot::{Binding, Caller};

/// Clients of a new kind come at once; members remember as long.
const YOUNG: Duration = Duration::from_mins(5);
/// Of all shards. Who makes more in that time has the eldest forgotten, and its watches list once.
const MOST: usize = 256;
/// For a storage that is being set up: members take some tenths of a second.
const SET_UP: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(50);
/// From the member's watch cache: of an earlier version than that has, no watch begins.
const CACHED: &str = "limit=1&resourceVersion=0";
const NEWEST: &str = "limit=1";

/// Those of all shards. A mutex: taken when a definition is made, and when a watch has no other beginning.
#[derive(Debug, Default)]
pub(crate) struct YoungKinds(Mutex<HashMap<Key, Young>>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    /// `namespace/name` of the ShardingConfig.
    shard: Arc<str>,
    group: String,
    resource: String,
}

#[derive(Debug, Clone, PartialEq)]
struct Young {
    since: Instant,
    /// Objects of the kind have later versions at the primary than its definition.
    primary: Arc<str>,
    defined_at: u64,
    /// Where each other member stood when it had none.
    empty_at: HashMap<Arc<str>, u64>,
}

impl YoungKinds {
    fn remember(&self, key: Key, young: Young) {
        let mut kinds = self.0.lock();
        kinds.retain(|_, known| young.since.duration_since(known.since) < YOUNG);
        if kinds.len() >= MOST {
            let eldest = kinds.iter().min_by_key(|(_, known)| known.since);
            if let Some(eldest) = eldest.map(|(key, _)| key.clone()) {
                kinds.remove(&eldest);
            }
        }
        kinds.insert(key, young);
    }

    fn get(&self, key: &Key, now: Instant) -> Option<Young> {
        let known = self.0.lock().get(key).cloned();
        known.filter(|known| now.duration_since(known.since) < YOUNG)
    }
}

impl Young {
    /// Where each leg begins whose member is named, for a client that has an object of this version at the primary.
    fn begins<'c>(&self, clusters: impl Iterator<Item = &'c Arc<str>>, version: u64) -> Option<Vec<u64>> {
        let begin = |cluster: &Arc<str>| {
            if *cluster == self.primary {
                (version > self.defined_at).then_some(version)
            } else {
                self.empty_at.get(cluster).copied()
            }
        };
        clusters.map(begin).collect()
    }
}

/// What is read of a list that may be empty.
#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
    /// Null where there are none, in lists of metadata.
    items: Option<Vec<serde::de::IgnoredAny>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
}

fn shard_of(caller: &Caller) -> Option<Arc<str>> {
    let Caller::Pod(view) = caller else { return None };
    match &view.binding {
        Binding::One(shard) => Some(shard.name.clone()),
        _ => None,
    }
}

/// Group, plural and a version of the cluster-scoped kind that a CustomResourceDefinition defines, and its own version.
fn defined(definition: &Value) -> Option<(ResourceRequest, u64)> {
    let spec = definition.get("spec")?;
    if spec["scope"] != "Cluster" {
        return None;
    }
    let versions = spec["versions"].as_array()?;
    let version = versions.iter().find(|version| version["served"] == true)?;
    let kind = ResourceRequest {
        group: spec["group"].as_str()?.to_owned(),
        version: version["name"].as_str()?.to_owned(),
        resource: spec.pointer("/names/plural")?.as_str()?.to_owned(),
        subresource: None,
        namespace: None,
        name: None,
        named_by_path: false,
    };
    let own = definition.pointer("/metadata/resourceVersion")?.as_str()?;
    Some((kind, own.parse().ok()?))
}

fn collection(kind: &ResourceRequest) -> String {
    format!("/apis/{}/{}/{}", kind.group, kind.version, kind.resource)
}

impl FanOuts {
    /// Remembers where the others stand that serve the kind of this definition now and have no object of it.
    pub(super) async fn is_young(
        &self,
        (primary, definition): (&Forward, &Value),
        others: Vec<&Candidate>,
        pending: Pending<'_>,
    ) {
        let (Some((kind, defined_at)), Some(shard)) = (defined(definition), shard_of(pending.caller)) else {
            return;
        };
        let path = collection(&kind);
        let until = pending.deadline.min(Instant::now() + SET_UP);
        let empty = others.into_iter().map(async |other| {
            let cluster = other.forward.target.cluster.clone();
            loop {
                match self.emptiness(&other.forward, (&path, CACHED), pending).await {
                    Emptiness::SetUp if Instant::now() < until => sleep(PAUSE).await,
                    Emptiness::At(version) => return Some((cluster, version)),
                    Emptiness::SetUp | Emptiness::Not => return None,
                }
            }
        });
        let empty_at = join_all(empty).await.into_iter().flatten().collect();
        let key = Key {
            shard,
            group: kind.group,
            resource: kind.resource,
        };
        let young = Young {
            since: Instant::now(),
            primary: primary.target.cluster.clone(),
            defined_at,
            empty_at,
        };
        self.young.remember(key, young);
    }

    /// Where a client goes on that has an object of this version of a young kind: the version is the primary's as long as no other
    /// member has an object yet.
    pub(super) async fn from_young(
        self: &Arc<Self>,
        (asking, plan): (&Asking, &FanOut),
        routing: &Arc<Routing>,
        version: u64,
    ) -> Option<(Cursor, Told)> {
        let kind = asking.asked.resource.as_ref().filter(|_| plan.unique)?;
        let key = Key {
            shard: shard_of(&asking.caller)?,
            group: kind.group.clone(),
            resource: kind.resource.clone(),
        };
        let young = self.young.get(&key, Instant::now())?;
        let begins = young.begins(plan.clusters(), version)?;
        let (head, ()) = Request::new(()).into_parts();
        let pending = Pending {
            head: &head,
            asked: &asking.asked,
            caller: &asking.caller,
            routing,
            received: &asking.received,
            deadline: Instant::now() + SET_UP,
        };
        let path = collection(kind);
        let others = plan.legs.iter().filter(|leg| *leg.cluster() != young.primary);
        let empty = others.map(|leg| self.emptiness(&leg.forward, (&path, NEWEST), pending));
        if !join_all(empty)
            .await
            .iter()
            .all(|found| matches!(found, Emptiness::At(_)))
        {
            return None;
        }
        let mut cursor = Cursor::new(&plan.universe);
        for (leg, begin) in plan.legs.iter().zip(begins) {
            cursor.set(leg.slot, Slot::At(begin));
        }
        Some((cursor, self.begin(asking, plan)))
    }

    async fn emptiness(&self, forward: &Forward, asked: (&str, &'static str), pending: Pending<'_>) -> Emptiness {
        let Ok((status, bytes)) = self.preflight.first_of(forward, asked, pending).await else {
            return Emptiness::Not;
        };
        match status {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND | StatusCode::TOO_MANY_REQUESTS => return Emptiness::SetUp,
            _ => return Emptiness::Not,
        }
        empty_at(&bytes).map_or(Emptiness::Not, Emptiness::At)
    }
}

/// The version of a list that has nothing in it.
fn empty_at(list: &[u8]) -> Option<u64> {
    let list: List = serde_json::from_slice(list).ok()?;
    let is_empty = list.items.is_none_or(|items| items.is_empty());
    is_empty.then(|| list.metadata.resource_version.parse().ok()).flatten()
}

/// What a member says of a kind's objects.
enum Emptiness {
    /// It had none at this version.
    At(u64),
    /// Its storage is not there yet.
    SetUp,
    /// It has some, or does not say.
    Not,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(resource: &str) -> Key {
        Key {
            shard: "ops/blue".into(),
            group: "a.b".to_owned(),
            resource: resource.to_owned(),
        }
    }

    fn young(since: Instant) -> Young {
        Young {
            since,
            primary: "east".into(),
            defined_at: 7,
            empty_at: HashMap::from([("west".into(), 40)]),
        }
    }

    #[test]
    fn a_young_kind_begins_at_the_primarys_version_and_where_others_had_none() {
        let clusters: Vec<Arc<str>> = vec!["east".into(), "west".into()];
        let known = young(Instant::now());
        assert_eq!(known.begins(clusters.iter(), 9), Some(vec![9, 40]));
        assert_eq!(
            known.begins(clusters.iter(), 7),
            None,
            "no object is as old as its definition"
        );
        let more: Vec<Arc<str>> = vec!["east".into(), "north".into()];
        assert_eq!(known.begins(more.iter(), 9), None, "of whom nothing is known");
    }

    #[test]
    fn kinds_are_young_for_minutes_and_bounded() {
        let (kinds, now) = (YoungKinds::default(), Instant::now());
        for index in 0..=MOST {
            let since = now + Duration::from_millis(index as u64);
            kinds.remember(key(&index.to_string()), young(since));
        }
        let later = now + Duration::from_secs(1);
        assert_eq!(kinds.get(&key("0"), later), None, "the eldest of too many");
        assert!(kinds.get(&key("1"), later).is_some());
        assert_eq!(kinds.get(&key("1"), later + YOUNG), None);
        kinds.remember(key("new"), young(later + YOUNG));
        assert_eq!(kinds.0.lock().len(), 1);
    }

    #[test]
    fn an_empty_list_says_where_its_member_stands() {
        let metadata = json!({"resourceVersion": "12"});
        let at = |list: Value| empty_at(list.to_string().as_bytes());
        for empty in [json!(null), json!([])] {
            assert_eq!(at(json!({"metadata": metadata, "items": empty})), Some(12), "{empty}");
        }
        assert_eq!(at(json!({"metadata": metadata, "items": [{"metadata": {}}]})), None);
        assert_eq!(at(json!({"metadata": {"resourceVersion": ""}, "items": []})), None);
    }

    #[test]
    fn a_definition_says_which_cluster_scoped_kind_it_makes() {
        let mut definition = json!({
            "metadata": {"resourceVersion": "12"},
            "spec": {
                "group": "a.b", "scope": "Cluster", "names": {"plural": "cs"},
                "versions": [{"name": "v1alpha1", "served": false}, {"name": "v1", "served": true}],
            },
        });
        let (kind, at) = defined(&definition).unwrap();
        assert_eq!((&*collection(&kind), at), ("/apis/a.b/v1/cs", 12));
        definition["spec"]["scope"] = json!("Namespaced");
        assert_eq!(defined(&definition), None);
    }
}
