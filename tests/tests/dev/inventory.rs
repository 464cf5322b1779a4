//! Everything a cluster holds, for comparing it before and after.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kube::api::{Api, DynamicObject, ListParams};
use kube::discovery::{Discovery, Scope, verbs};
use kube::{Client, ResourceExt as _};
use portolan_testbed::eventually;
use serde_json::Value;

/// They come and go by themselves, or are no objects.
const IGNORED: [&str; 5] = ["Event", "Lease", "EndpointSlice", "Endpoints", "ComponentStatus"];

/// A cluster that has not changed for so long is at rest: controllers work in bursts.
const REST: Duration = Duration::from_secs(3);

/// `kind namespace/name` → the object without what changes by itself.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Inventory(BTreeMap<String, Value>);

/// All objects of all kinds that can be listed. An error while a group is on its way out.
pub(crate) async fn take(client: &Client) -> kube::Result<Inventory> {
    let discovery = Discovery::new(client.clone()).run().await?;
    let mut objects = BTreeMap::new();
    for group in discovery.groups() {
        for (resource, capabilities) in group.recommended_resources() {
            if !capabilities.supports_operation(verbs::LIST) || IGNORED.contains(&resource.kind.as_str()) {
                continue;
            }
            assert!(matches!(capabilities.scope, Scope::Cluster | Scope::Namespaced));
            let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
            // A kind whose definition is being deleted answers 404 or 405 for a moment.
            let Ok(list) = api.list(&ListParams::default()).await else {
                objects.insert(format!("{} cannot be listed", resource.plural), Value::Null);
                continue;
            };
            for object in list {
                let name = format!(
                    "{}.{} {}/{}",
                    resource.plural,
                    resource.group,
                    object.namespace().unwrap_or_default(),
                    object.name_any()
                );
                objects.insert(name, essence(object));
            }
        }
    }
    Ok(Inventory(objects))
}

/// The same once controllers have made of the objects what they make of them.
pub(crate) async fn take_settled(client: &Client) -> Inventory {
    let last: RefCell<Option<(Instant, Inventory)>> = RefCell::default();
    eventually("the cluster comes to rest", || async {
        let now = take(client).await?;
        let mut last = last.borrow_mut();
        let since = match &*last {
            Some((since, same)) if *same == now => *since,
            _ => Instant::now(),
        };
        *last = Some((since, now));
        anyhow::ensure!(since.elapsed() >= REST, "it changes");
        Ok(())
    })
    .await;
    last.into_inner().unwrap().1
}

impl Inventory {
    /// What is here and was not, was here and is not, or is different.
    pub(crate) fn differences(&self, before: &Self) -> Vec<String> {
        let added = self.0.iter().filter(|(name, _)| !before.0.contains_key(*name));
        let gone = before.0.iter().filter(|(name, _)| !self.0.contains_key(*name));
        let changed = self
            .0
            .iter()
            .filter_map(|(name, object)| Some((name, object, before.0.get(name)?)))
            .filter(|(_, object, then)| object != then);
        added
            .map(|(name, _)| format!("left behind: {name}"))
            .chain(gone.map(|(name, _)| format!("gone: {name}")))
            .chain(changed.map(|(name, object, then)| format!("changed: {name} from {then} to {object}")))
            .collect()
    }
}

/// The object without status and versions; of its managers only those that are ours, so that none is left behind.
fn essence(object: DynamicObject) -> Value {
    let ours = |manager: &Option<String>| manager.as_deref().is_some_and(|name| name.starts_with("portolan"));
    let managers = object.metadata.managed_fields.iter().flatten();
    let managers: Vec<_> = managers.filter(|entry| ours(&entry.manager)).cloned().collect();
    let mut value = serde_json::to_value(&object).unwrap();
    value.as_object_mut().unwrap().remove("status");
    let metadata = value["metadata"].as_object_mut().unwrap();
    for field in ["resourceVersion", "generation", "managedFields"] {
        metadata.remove(field);
    }
    if !managers.is_empty() {
        metadata.insert("managedFields".to_owned(), serde_json::to_value(managers).unwrap());
    }
    value
}
