//! The namespace inventory: every Namespace of the member with its labels, by one metadata-only watch.
//!
//! Not here: labelling them (`sweep`). Callers: `app` runs it, `report` sends.

use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Event, watcher};
use kube::{Api, Client};
use portolan_crds::labels::FENCE_EPOCH;
use portolan_crds::policy::annotated_epochs;
use portolan_wire::v1::NamespaceFact;

use crate::bounds;
use crate::explain::watch_broke;
use crate::facts::{FactMap, FactStore};
use crate::member::{FAT_PAGE, watch_config};
use crate::metrics::{Metrics, Watched};

/// Namespaces by name.
pub(crate) type NamespaceFacts = FactStore<String, NamespaceFact>;

/// Watches for ever. During a relist readers keep the last complete inventory.
pub(crate) async fn run(client: Client, facts: Arc<NamespaceFacts>, metrics: Metrics) {
    let namespaces = Api::<PartialObjectMeta<Namespace>>::all(client);
    let mut events = std::pin::pin!(watcher(namespaces, watch_config().page_size(FAT_PAGE)).default_backoff());
    let mut listed = FactMap::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(namespace)) => {
                let fact = fact(namespace.metadata);
                listed.insert(fact.name.clone(), Arc::new(fact));
            }
            Ok(Event::InitDone) => facts.replace(std::mem::take(&mut listed)),
            Ok(Event::Apply(namespace)) => {
                let fact = fact(namespace.metadata);
                facts.upsert(fact.name.clone(), fact);
            }
            Ok(Event::Delete(namespace)) => facts.remove(&namespace.metadata.name.unwrap_or_default()),
            Err(error) => {
                watch_broke(&metrics, Watched::namespaces, "all", &error);
            }
        }
    }
}

fn fact(metadata: ObjectMeta) -> NamespaceFact {
    let annotation = metadata.annotations.as_ref().and_then(|all| all.get(FENCE_EPOCH));
    let uid = metadata.uid.unwrap_or_default();
    let open = annotation
        .map(|annotation| annotated_epochs(annotation, &uid))
        .unwrap_or_default();
    let (labels, labels_cut) = bounds::of_namespace(metadata.labels.unwrap_or_default());
    NamespaceFact {
        epoch: open.last().copied(),
        epochs: if open.len() > 1 { open } else { Vec::new() },
        name: metadata.name.unwrap_or_default(),
        uid,
        labels,
        labels_cut,
        terminating: metadata.deletion_timestamp.is_some(),
    }
}
