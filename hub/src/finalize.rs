//! Keeps a deleted ShardingConfig until routers have let go of what it has.
//!
//! The ledger would keep its namespaces from others without it; the object stays so that whoever deletes it sees what is
//! waited for, and that nobody makes another of its name meanwhile. So each accepted shard has a finalizer, and loses it
//! when it was deleted and nothing is its any more. One replica writes; with several, only the leader would.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use portolan_crds::labels::{FINALIZER_SHARD, MANAGER_HUB};
use portolan_crds::{ShardName, ShardingConfig};
use serde_json::json;

use crate::compile::World;
use crate::distribute::{Worlds, news};
use crate::facts::Facts;
use crate::index::Index;
use crate::metrics::Metrics;
use crate::writer::{REST, Writer, in_turns};

/// Changes come in bursts; one pass for all of them.
const SETTLE: Duration = Duration::from_millis(100);

/// Adds and removes the finalizers of ShardingConfigs.
pub(crate) struct Finalizers {
    client: Client,
    index: Arc<Index>,
    writer: Writer<(ShardName, Step)>,
}

/// What is to be done with an object's finalizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Add,
    Remove,
}

impl Finalizers {
    pub(crate) fn new(client: Client, index: Arc<Index>) -> Self {
        Self {
            client,
            index,
            writer: Writer::new("finalizer"),
        }
    }

    /// Runs until cancelled.
    pub(crate) async fn run(mut self, mut worlds: Worlds, metrics: Metrics) {
        let mut facts = self.index.status_changes();
        let mut is_more = false;
        loop {
            let at_most = if is_more { Duration::ZERO } else { REST };
            let world = news(&mut facts, &mut worlds, (SETTLE, at_most)).await;
            let mut due = self.index.read(|facts| due(facts, &world));
            due.retain(|step| !self.writer.rests(step));
            let steps = due.into_iter().map(|step| (step, ())).collect();
            let due;
            (due, is_more) = in_turns(steps, |(name, _): &(ShardName, Step)| Some(name.namespace()));
            let client = &self.client;
            let write = |(name, step), ()| write(client, name, step);
            for (done, ()) in self.writer.write(due, write, &metrics.finalizers).await {
                self.writer.rest(done);
            }
        }
    }
}

/// What the objects lack, or have for nothing.
fn due(facts: &Facts, world: &World) -> Vec<(ShardName, Step)> {
    let accepted = |name: &ShardName, uid: &str| world.state.accepted.get(name).is_some_and(|one| one.uid == uid);
    let shards = facts.shards.iter().filter_map(|(name, object)| {
        let step = match (object.deleting, object.has_finalizer) {
            (false, false) if accepted(name, &object.uid) => Step::Add,
            // A root goes after its children.
            (true, true) if !world.state.ledger.is_owner(name) && !facts.has_children(&object.uid) => Step::Remove,
            _ => return None,
        };
        Some((name.clone(), step))
    });
    shards.collect()
}

/// Writes the finalizers against the version that was read: another's is never lost.
async fn write(client: &Client, name: ShardName, step: Step) -> kube::Result<()> {
    let resource = ApiResource::erase::<ShardingConfig>(&());
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), name.namespace(), &resource);
    let metadata = api.get_metadata(name.name()).await?.metadata;
    let mut finalizers = metadata.finalizers.unwrap_or_default();
    finalizers.retain(|one| one != FINALIZER_SHARD);
    if step == Step::Add {
        finalizers.push(FINALIZER_SHARD.to_owned());
    }
    let patch = json!({"metadata": {"resourceVersion": metadata.resource_version, "finalizers": finalizers}});
    let params = PatchParams {
        field_manager: Some(MANAGER_HUB.to_owned()),
        ..PatchParams::default()
    };
    api.patch_metadata(name.name(), &params, &Patch::Merge(patch))
        .await
        .map(drop)
}

#[cfg(test)]
mod tests;
