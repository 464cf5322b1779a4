//! What the shard owns: namespaces of members by name, as its ShardingConfig says. Edits go one after the other, each until
//! the hub takes it.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use portolan_crds::ShardingConfig;
use portolan_testbed::eventually;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::ledger::Ledger;

/// Of each member.
pub(crate) type Owned = BTreeMap<String, BTreeSet<String>>;

/// A mutex: it is held over a whole edit.
pub(crate) struct Share {
    name: &'static str,
    hub: Client,
    owned: Mutex<Owned>,
}

impl Share {
    pub(crate) fn new(name: &'static str, hub: Client, owned: &[(&str, &[&str])]) -> Self {
        let set = |namespaces: &[&str]| namespaces.iter().map(|namespace| (*namespace).to_owned()).collect();
        let owned = owned
            .iter()
            .map(|(member, namespaces)| ((*member).to_owned(), set(namespaces)));
        Self {
            name,
            hub,
            owned: Mutex::new(owned.collect()),
        }
    }

    pub(crate) async fn owned(&self) -> Owned {
        self.owned.lock().await.clone()
    }

    /// Returns when the hub's API server has taken it.
    pub(crate) async fn edit(&self, ledger: &Ledger, change: impl FnOnce(&mut Owned)) {
        let mut owned = self.owned.lock().await;
        let before = owned.clone();
        change(&mut owned);
        for (member, namespaces) in &before {
            for namespace in namespaces.difference(&owned[member]) {
                ledger.leaving(member, namespace);
            }
        }
        let clusters = owned
            .iter()
            .map(|(member, namespaces)| json!({"name": member, "namespaces": namespaces}));
        self.patch(json!({"clusters": clusters.collect::<Vec<_>>()})).await;
    }

    /// A part of the spec that is not who owns what.
    pub(crate) async fn patch(&self, spec: Value) {
        let shards: Api<ShardingConfig> = Api::namespaced(self.hub.clone(), "operators");
        let patch = Patch::Merge(json!({"spec": spec}));
        let params = PatchParams::default();
        eventually("an edit is taken", || shards.patch(self.name, &params, &patch)).await;
    }
}
