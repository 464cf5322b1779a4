//! Watchers of kube-rs in this process, their events kept as a reflector would: by list and by stream, typed, untyped and
//! metadata alone, over all namespaces and in one.

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
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::{Report, Seen, WATCH_SECONDS};

/// A running watcher, ended when dropped.
pub(super) struct Watcher {
    name: String,
    resource: &'static str,
    namespace: String,
    seen: Arc<Mutex<Seen>>,
    _task: JoinSet<()>,
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
            if let Err(error) = &event {
                println!("  kube-rs: {error}");
            }
            tell(&mut told.lock(), event);
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
        seen.report(self.name.clone(), self.resource, &self.namespace)
    }
}

fn tell<K: Resource>(seen: &mut Seen, event: Result<Event<K>, watcher::Error>) {
    match event {
        Ok(Event::Apply(object)) => seen.apply(key(&object), version(&object)),
        Ok(Event::Delete(object)) => seen.delete(key(&object)),
        Ok(Event::Init) => seen.coming.clear(),
        Ok(Event::InitApply(object)) => drop(seen.coming.insert(key(&object), version(&object))),
        Ok(Event::InitDone) => seen.listed(),
        Err(
            watcher::Error::WatchError(status)
            | watcher::Error::InitialListFailed(kube::Error::Api(status))
            | watcher::Error::WatchStartFailed(kube::Error::Api(status))
            | watcher::Error::WatchFailed(kube::Error::Api(status)),
        ) if status.code == 410 => seen.expire(&status.message),
        Err(_) => {}
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
