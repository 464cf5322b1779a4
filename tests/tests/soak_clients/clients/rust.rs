//! Watchers of kube-rs in this process, their events kept as a reflector would: by list and by stream, typed, untyped and
//! metadata alone, over all namespaces and in one.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt as _};
use parking_lot::Mutex;
use portolan_tests::watch::Held;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::{Gone, Item, Report, WATCH_SECONDS};
use crate::ledger;

/// A running watcher, ended when dropped.
pub(super) struct Watcher {
    name: String,
    resource: &'static str,
    namespace: String,
    seen: Arc<Mutex<Seen>>,
    _task: JoinSet<()>,
}

/// What it was told.
#[derive(Default)]
struct Seen {
    held: Held,
    /// Initial objects, until all are there.
    coming: Held,
    gone: Vec<Gone>,
    lists: u64,
    expired: BTreeMap<String, u64>,
}

/// Each kind of object by each way to begin, and those of one namespace.
pub(super) fn all(config: &kube::Config, namespace: &str) -> anyhow::Result<Vec<Watcher>> {
    let greetings = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Greeting"));
    let mut all = Vec::new();
    for streaming in [false, true] {
        // A client has its own connections: they come to either router.
        let client = || Client::try_from(config.clone());
        all.push(start("typed", Api::<ConfigMap>::all(client()?), streaming));
        all.push(start(
            "metadata",
            Api::<PartialObjectMeta<ConfigMap>>::all(client()?),
            streaming,
        ));
        all.push(start(
            "typed",
            Api::<ConfigMap>::namespaced(client()?, namespace),
            streaming,
        ));
        all.push(start(
            "untyped",
            Api::<DynamicObject>::all_with(client()?, &greetings),
            streaming,
        ));
        all.push(start(
            "metadata",
            Api::<PartialObjectMeta<DynamicObject>>::all_with(client()?, &greetings),
            streaming,
        ));
    }
    Ok(all)
}

fn start<K>(how: &str, api: Api<K>, streaming: bool) -> Watcher
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let resource = if api.resource_url().ends_with("greetings") {
        "greetings"
    } else {
        "configmaps"
    };
    let namespace = api.namespace().unwrap_or_default().to_owned();
    let (begins, mut config) = ("list", watcher::Config::default().timeout(WATCH_SECONDS));
    let mut name = format!("kube-rs {begins} {how} {resource} {namespace}");
    if streaming {
        config = config.streaming_lists();
        name = name.replace(begins, "stream");
    }
    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut events = watcher::watcher(api, config).default_backoff().boxed();
    let (mut task, told) = (JoinSet::new(), seen.clone());
    task.spawn(async move {
        while let Some(event) = events.next().await {
            told.lock().tell(event);
        }
    });
    Watcher {
        name: name.trim_end().to_owned(),
        resource,
        namespace,
        seen,
        _task: task,
    }
}

impl Watcher {
    pub(super) fn report(&self) -> Report {
        let mut seen = self.seen.lock();
        let items = seen.held.iter().map(|(key, (uid, version))| Item {
            key: key.clone(),
            uid: uid.clone(),
            rv: version.clone(),
        });
        Report {
            name: self.name.clone(),
            resource: self.resource.to_owned(),
            namespace: self.namespace.clone(),
            items: items.collect(),
            lists: seen.lists,
            expired: seen.expired.clone(),
            gone: std::mem::take(&mut seen.gone),
        }
    }
}

impl Seen {
    fn tell<K: Resource>(&mut self, event: Result<Event<K>, watcher::Error>) {
        match event {
            Ok(Event::Apply(object)) => {
                self.held.insert(key(&object), version(&object));
            }
            Ok(Event::Delete(object)) => {
                self.held.remove(&key(&object));
                self.lost(key(&object), version(&object).0);
            }
            Ok(Event::Init) => self.coming.clear(),
            Ok(Event::InitApply(object)) => {
                self.coming.insert(key(&object), version(&object));
            }
            Ok(Event::InitDone) => {
                self.lists += 1;
                let before = std::mem::replace(&mut self.held, std::mem::take(&mut self.coming));
                for (key, (uid, _)) in before {
                    if !self.held.contains_key(&key) {
                        self.lost(key, uid);
                    }
                }
            }
            Err(error) => self.failed(&error),
        }
    }

    fn lost(&mut self, key: String, uid: String) {
        let at = ledger::now();
        self.gone.push(Gone { key, uid, at });
    }

    fn failed(&mut self, error: &watcher::Error) {
        let (watcher::Error::WatchError(status)
        | watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))) = error
        else {
            return;
        };
        if status.code == 410 {
            *self.expired.entry(status.message.clone()).or_default() += 1;
        }
    }
}

fn key(object: &impl Resource) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

fn version(object: &impl Resource) -> (String, String) {
    (
        object.uid().unwrap_or_default(),
        object.resource_version().unwrap_or_default(),
    )
}
