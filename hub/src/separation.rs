//! The switch of a ledger of before, in which a namespace has one owner, to one that has owners of each operator
//! (`docs/semantics.md#operators`): when somebody wants it and nothing stands against it, once.
//!
//! That it is wanted comes by a ConfigMap that the hub looks at every second while its ledger is one of before
//! (`portolan_crds::separation`). `distribute` carries it out. Caller: `app`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use kube::{Client, Error as KubeError};
use portolan_crds::ShardName;
use portolan_crds::labels::CONFIG_MAP_SEPARATION;
use portolan_crds::separation::Separation;
use portolan_runtime::Chain;
use tokio::sync::watch;

use crate::acks::{Acks, RouterState};
use crate::compile::{World, some_of};
use crate::distribute::Worlds;
use crate::facts::Facts;
use crate::index::Index;

/// Between two looks. One small read, by hubs with a ledger of before alone.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Looks whether it is wanted.
pub(crate) struct Separating {
    pub(crate) client: Client,
    /// The hub's own.
    pub(crate) namespace: String,
    pub(crate) index: Arc<Index>,
    pub(crate) acks: Arc<Acks>,
    pub(crate) worlds: Worlds,
    /// Tells `distribute`.
    pub(crate) order: watch::Sender<bool>,
}

impl Separating {
    /// Looks until cancelled.
    pub(crate) async fn run(self) {
        let mut failing = false;
        loop {
            match self.look().await {
                // Nobody goes back.
                Ok(true) => break,
                Ok(false) => failing = false,
                Err(error) if failing => drop(error),
                Err(error) => {
                    failing = true;
                    tracing::warn!(error = %Chain(&error), "cannot read or write ConfigMap {CONFIG_MAP_SEPARATION}");
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        std::future::pending::<()>().await;
    }

    /// Whether there is nothing left to do.
    async fn look(&self) -> Result<bool, KubeError> {
        let world = self.worlds.borrow().as_ref().map(|published| published.world.clone());
        let Some(world) = world else { return Ok(false) };
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), &self.namespace);
        let present = maps.get_opt(CONFIG_MAP_SEPARATION).await?;
        let data = present.as_ref().and_then(|map| map.data.clone()).unwrap_or_default();
        let is_wanted = Separation::from_data(&data).wanted;
        let is_over = !world.state.ledger.contention().is_fleet();
        let against = self
            .index
            .read(|facts| self.acks.read(|routers| against(facts, &world, routers)));
        let is_due = is_wanted && !is_over && against.is_empty();
        self.order
            .send_if_modified(|order| std::mem::replace(order, is_due) != is_due);
        if let Some(present) = present.filter(|_| is_wanted && !is_due) {
            let answer = Separation {
                wanted: false,
                refused: if is_over { Vec::new() } else { against },
            };
            let map = ConfigMap {
                data: Some(answer.to_data()),
                ..present
            };
            match maps.replace(CONFIG_MAP_SEPARATION, &PostParams::default(), &map).await {
                // Somebody writes at the same time: the next look sees it.
                Err(KubeError::Api(status)) if status.code == 409 => return Ok(false),
                written => drop(written?),
            }
            if is_over {
                tracing::info!("namespaces have an owner of each operator from now on");
            }
        }
        Ok(is_over)
    }
}

/// Why namespaces cannot have owners of each operator yet, a line each. Routers that know nothing of them would take one of two for
/// the owner; what nobody knows the operator of would be free for another one.
pub(crate) fn against(facts: &Facts, world: &World, routers: &BTreeMap<String, RouterState>) -> Vec<String> {
    let (state, mut lines) = (&world.state, Vec::new());
    for name in facts.routers.keys() {
        let forget = format!("or, if it is gone for good, portolanctl router forget {name}");
        match routers.get(name) {
            Some(router) if router.knows_operators => {}
            Some(router) if router.left.is_none() => {
                lines.push(format!("router {name} is of a release that knows one owner of a namespace: upgrade it, {forget}"));
            }
            Some(_) => lines.push(format!(
                "router {name} is of a release that knows one owner of a namespace, and not connected: upgrade it, {forget}"
            )),
            None => lines.push(format!("router {name} was not heard of since the hub started: wait for it, {forget}")),
        }
    }
    if state.ledger.is_withholding() {
        lines.push("the ledger was adopted, and routers are being heard: wait for them".to_owned());
    }
    let inseparable = state.ledger.inseparable(&state.accepted);
    if !inseparable.is_empty() {
        let pairs: Vec<_> = inseparable
            .iter()
            .map(|(pair, owner)| format!("{pair} (of {owner})"))
            .collect();
        lines.push(format!(
            "{} are being released by shards that are gone: wait for it",
            some_of(&pairs, ", ")
        ));
    }
    let behind = behind(world);
    if !behind.is_empty() {
        lines.push(format!(
            "children {} have another spec.operator than their root: wait for them",
            some_of(&behind, ", ")
        ));
    }
    lines
}

/// Children in force whose operator is not the one that their root gives them by now.
fn behind(world: &World) -> Vec<String> {
    let roots = world.state.roots.iter();
    let generated = roots.filter_map(|(root, children)| Some((root, children.in_force.as_ref()?)));
    let children = generated.flat_map(|(root, generated)| {
        let children = generated.expansion.children.iter();
        children.filter_map(move |child| Some((ShardName::new(root.namespace(), &child.name).ok()?, child)))
    });
    let behind = children.filter(|(name, child)| {
        let accepted = world.state.accepted.get(name);
        accepted.is_some_and(|accepted| accepted.spec.operator != child.spec.operator)
    });
    behind.map(|(name, _)| name.to_string()).collect()
}

#[cfg(test)]
mod tests;
