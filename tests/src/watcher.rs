//! kube-rs' watcher with its default back-off, its events kept as a reflector would.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt as _};
use parking_lot::{Mutex, MutexGuard};
use tokio::task::JoinSet;

/// `namespace/name` → resourceVersion.
pub type Objects = BTreeMap<String, String>;

/// What it was told.
#[derive(Debug, Default)]
pub struct Seen {
    /// What it holds.
    pub held: Objects,
    /// Keys of what it was told or found to be gone.
    pub deleted: BTreeSet<String>,
    /// How often it began anew.
    pub lists: u64,
    /// What it complained of.
    pub errors: Vec<String>,
    coming: Objects,
}

/// A running watcher of ConfigMaps, ended when dropped.
#[derive(Debug)]
pub struct Watcher {
    seen: Arc<Mutex<Seen>>,
    _task: JoinSet<()>,
}

impl Watcher {
    /// Of this collection, as configured.
    pub fn start(api: Api<ConfigMap>, config: watcher::Config) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mut events = watcher::watcher(api, config).default_backoff().boxed();
        let (mut task, told) = (JoinSet::new(), seen.clone());
        task.spawn(async move {
            while let Some(event) = events.next().await {
                told.lock().tell(event);
            }
        });
        Self { seen, _task: task }
    }

    /// What it was told so far.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock()
    }
}

impl Seen {
    fn tell(&mut self, event: Result<Event<ConfigMap>, watcher::Error>) {
        match event {
            Ok(Event::Apply(object)) => {
                self.held
                    .insert(key(&object), object.resource_version().unwrap_or_default());
            }
            Ok(Event::Delete(object)) => {
                self.held.remove(&key(&object));
                self.deleted.insert(key(&object));
            }
            Ok(Event::Init) => {
                self.lists += 1;
                self.coming.clear();
            }
            Ok(Event::InitApply(object)) => {
                let version = object.resource_version().unwrap_or_default();
                self.coming.insert(key(&object), version);
            }
            Ok(Event::InitDone) => {
                let before = std::mem::replace(&mut self.held, std::mem::take(&mut self.coming));
                let gone = before.into_keys().filter(|key| !self.held.contains_key(key));
                self.deleted.extend(gone);
            }
            Err(error) => self.errors.push(error.to_string()),
        }
    }
}

fn key(object: &ConfigMap) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}
