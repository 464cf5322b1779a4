//! Watches of the hub's own objects, into the index: MemberClusters, ShardingConfigs, Routers, CircuitBreakers,
//! FaultInjections, and the ConfigMap that stops all faults.
//!
//! Objects are read untyped, so that a malformed one is an entry with a problem and not the end of its watch. A broken
//! watch starts again with back-off; a complete list replaces what was there. Waits first for the CRDs, saying which is
//! missing. Caller: `app`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Error as KubeError, Resource};
use portolan_crds::labels::CONFIG_MAP_FAULTS;
use portolan_crds::{MemberCluster, Router, ShardingConfig};
use portolan_runtime::{Backoff, ReadyHandle};
use tokio::sync::watch;

use crate::facts::{Facts, PolicyKind};
use crate::index::{Change, Index};
use crate::metrics::{Metrics, Watched};

/// How often a missing CRD is looked for.
const CRD_RETRY_MAX: Duration = Duration::from_secs(5);

/// A list that has taken so long is begun again, on another connection; the next one may take twice as long.
const LISTED_WITHIN: Duration = Duration::from_secs(10);
/// Kinds by which a hub judges what the ledger says.
const JUDGED_BY: [Watched; 3] = [Watched::ShardingConfigs, Watched::MemberClusters, Watched::Routers];

/// Has all watches begin anew, and knows which of them have. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Anew {
    ordered: watch::Sender<u64>,
    /// Up to which order each kind was listed.
    listed: watch::Sender<HashMap<Watched, u64>>,
}

impl Anew {
    /// Returns once the index has what there was when this was called, at least: of what an earlier hub went by, a watch that hangs
    /// may have told nothing yet, and what is not known would be taken for deleted. What an old stream would still tell is not heard.
    pub(crate) async fn list(&self) {
        let (mut listed, mut within) = (self.listed.subscribe(), LISTED_WITHIN);
        loop {
            self.ordered.send_modify(|order| *order += 1);
            let order = *self.ordered.borrow();
            let is_listed = |listed: &HashMap<Watched, u64>| {
                let kinds = JUDGED_BY.iter();
                kinds.map(|kind| listed.get(kind)).all(|of| of >= Some(&order))
            };
            if tokio::time::timeout(within, listed.wait_for(is_listed)).await.is_ok() {
                return;
            }
            tracing::warn!(?within, "what there is could not be listed: it is tried again");
            within *= 2;
        }
    }
}

/// Where what is told goes.
enum Destination {
    /// ShardingConfigs: each in its author's turn.
    Turns,
    /// All other kinds.
    Facts {
        apply: fn(&mut Facts, &DynamicObject) -> Change,
        delete: fn(&mut Facts, &DynamicObject) -> Change,
        reset: fn(&mut Facts, &[DynamicObject]) -> Change,
    },
}

impl Destination {
    fn apply(&self, index: &Index, object: &DynamicObject) {
        match self {
            Self::Turns => index.shard_applied(object),
            Self::Facts { apply, .. } => index.write(|facts| apply(facts, object)),
        }
    }

    fn delete(&self, index: &Index, object: &DynamicObject) {
        match self {
            Self::Turns => index.shard_deleted(object),
            Self::Facts { delete, .. } => index.write(|facts| delete(facts, object)),
        }
    }

    fn reset(&self, index: &Index, objects: &[DynamicObject], is_first: bool) {
        match self {
            Self::Turns if is_first => index.shards_begun(objects),
            Self::Turns => index.shards_listed(objects),
            Self::Facts { reset, .. } => index.write(|facts| reset(facts, objects)),
        }
    }
}

/// One kind that is watched.
pub(crate) struct Watch {
    api: Api<DynamicObject>,
    resource: ApiResource,
    /// The one object that is watched; none: all.
    name: Option<&'static str>,
    watched: Watched,
    into: Destination,
    /// The watch has broken since the last complete list.
    was_broken: AtomicBool,
}

impl Watch {
    pub(crate) fn members(client: Client) -> Self {
        let resource = ApiResource::erase::<MemberCluster>(&());
        Self {
            api: Api::all_with(client, &resource),
            resource,
            name: None,
            watched: Watched::MemberClusters,
            into: Destination::Facts {
                apply: Facts::apply_member,
                delete: |facts, object| facts.delete_member(object.meta().name.as_deref().unwrap_or_default()),
                reset: Facts::reset_members,
            },
            was_broken: AtomicBool::default(),
        }
    }

    pub(crate) fn shards(client: Client) -> Self {
        let resource = ApiResource::erase::<ShardingConfig>(&());
        Self {
            api: Api::all_with(client, &resource),
            resource,
            name: None,
            watched: Watched::ShardingConfigs,
            into: Destination::Turns,
            was_broken: AtomicBool::default(),
        }
    }

    pub(crate) fn routers(client: Client, namespace: &str) -> Self {
        let resource = ApiResource::erase::<Router>(&());
        Self {
            api: Api::namespaced_with(client, namespace, &resource),
            resource,
            name: None,
            watched: Watched::Routers,
            into: Destination::Facts {
                apply: Facts::apply_router,
                delete: Facts::delete_router,
                reset: Facts::reset_routers,
            },
            was_broken: AtomicBool::default(),
        }
    }

    pub(crate) fn circuit_breakers(client: Client) -> Self {
        let resource = PolicyKind::CircuitBreaker.resource();
        Self {
            api: Api::all_with(client, &resource),
            resource,
            name: None,
            watched: Watched::CircuitBreakers,
            into: Destination::Facts {
                apply: |facts, object| facts.apply_policy(PolicyKind::CircuitBreaker, object),
                delete: |facts, object| facts.delete_policy(PolicyKind::CircuitBreaker, object),
                reset: |facts, objects| facts.reset_policies(PolicyKind::CircuitBreaker, objects),
            },
            was_broken: AtomicBool::default(),
        }
    }

    pub(crate) fn fault_injections(client: Client) -> Self {
        let resource = PolicyKind::FaultInjection.resource();
        Self {
            api: Api::all_with(client, &resource),
            resource,
            name: None,
            watched: Watched::FaultInjections,
            into: Destination::Facts {
                apply: |facts, object| facts.apply_policy(PolicyKind::FaultInjection, object),
                delete: |facts, object| facts.delete_policy(PolicyKind::FaultInjection, object),
                reset: |facts, objects| facts.reset_policies(PolicyKind::FaultInjection, objects),
            },
            was_broken: AtomicBool::default(),
        }
    }

    /// The ConfigMap that stops all faults.
    pub(crate) fn fault_switch(client: Client, namespace: &str) -> Self {
        let resource = ApiResource::erase::<ConfigMap>(&());
        Self {
            api: Api::namespaced_with(client, namespace, &resource),
            resource,
            name: Some(CONFIG_MAP_FAULTS),
            watched: Watched::FaultSwitch,
            into: Destination::Facts {
                apply: Facts::apply_fault_switch,
                delete: Facts::delete_fault_switch,
                reset: Facts::reset_fault_switch,
            },
            was_broken: AtomicBool::default(),
        }
    }

    /// Feeds the index until cancelled, from the beginning whenever `anew` orders so. `ready` are all set at the first complete list.
    pub(crate) async fn run(self, index: Arc<Index>, ready: [ReadyHandle; 2], metrics: Metrics, anew: Anew) {
        self.wait_for_crd(&ready).await;
        let mut ordered = anew.ordered.subscribe();
        loop {
            let order = *ordered.borrow_and_update();
            let listed = || {
                ready.iter().for_each(ReadyHandle::ready);
                anew.listed.send_modify(|listed| {
                    listed.insert(self.watched, order);
                });
            };
            tokio::select! {
                () = self.follow(&index, &metrics, listed) => return,
                _ = ordered.changed() => {}
            }
        }
    }

    /// One complete list from the API server's store, and what follows it.
    async fn follow(&self, index: &Index, metrics: &Metrics, done: impl Fn()) {
        let config = match self.field_selector() {
            Some(fields) => watcher::Config::default().fields(&fields),
            None => watcher::Config::default(),
        };
        let mut events = std::pin::pin!(watcher(self.api.clone(), config).default_backoff());
        let (mut listed, mut is_first) = (Vec::new(), true);
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => listed.push(object),
                Ok(Event::InitDone) => {
                    self.into.reset(index, &listed, is_first);
                    if self.watched == Watched::Routers && (!is_first || self.was_broken.swap(false, Ordering::Relaxed))
                    {
                        // Some may have come and gone while nothing was heard.
                        index.write(|facts| {
                            facts.note_router_gone();
                            Change::Nothing
                        });
                    }
                    tracing::info!(kind = self.resource.kind, objects = listed.len(), "listed");
                    (listed, is_first) = (Vec::new(), false);
                    done();
                }
                Ok(Event::Apply(object)) => self.into.apply(index, &object),
                Ok(Event::Delete(object)) => self.into.delete(index, &object),
                Err(error) => {
                    metrics.watch_failed(self.watched);
                    self.was_broken.store(true, Ordering::Relaxed);
                    tracing::warn!(kind = self.resource.kind, %error, "watch broke");
                }
            }
        }
    }

    fn field_selector(&self) -> Option<String> {
        self.name.map(|name| format!("metadata.name={name}"))
    }

    async fn wait_for_crd(&self, ready: &[ReadyHandle]) {
        let waiting = |reason: String| ready.iter().for_each(|part| part.not_ready(reason.clone()));
        let mut backoff = Backoff::new(Duration::from_millis(500), CRD_RETRY_MAX);
        loop {
            let params = ListParams {
                field_selector: self.field_selector(),
                ..ListParams::default().limit(1)
            };
            match self.api.list_metadata(&params).await {
                Ok(_) => return,
                Err(KubeError::Api(status)) if status.code == 404 => {
                    let message = format!(
                        "CustomResourceDefinition {}.{}: install the CRDs with portolanctl install",
                        self.resource.plural, self.resource.group
                    );
                    tracing::warn!("waiting for {message}");
                    waiting(message);
                }
                Err(error) => {
                    tracing::warn!(kind = self.resource.kind, %error, "cannot list");
                    waiting("the hub's API server".to_owned());
                }
            }
            backoff.sleep().await;
        }
    }
}

#[cfg(test)]
mod tests;
