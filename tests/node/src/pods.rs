//! The Pods that are bound to the node, by one watch; each has a worker from when it is seen until nothing is left of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use parking_lot::RwLock;
use portolan_runtime::{Chain, Tasks};
use tokio::sync::watch;

use crate::machine::Machine;
use crate::pod::{Seen, Worker};

/// Pods by uid, for those who are asked about one: a name can have a successor before its first is over.
pub(crate) type Workers = BTreeMap<String, watch::Sender<Seen>>;

/// All Pods of the node. Clones are the same.
#[derive(Clone)]
pub(crate) struct Pods {
    machine: Arc<Machine>,
    tasks: Tasks,
    /// A lock: held for one look or one entry.
    workers: Arc<RwLock<Workers>>,
}

impl Pods {
    pub(crate) fn new(machine: Arc<Machine>, tasks: Tasks) -> Self {
        Self {
            machine,
            tasks,
            workers: Arc::default(),
        }
    }

    /// Watches for ever.
    pub(crate) async fn run(self) {
        let config = watcher::Config::default().fields(&format!("spec.nodeName={}", self.machine.node));
        let pods = Api::<Pod>::all(self.machine.client.clone());
        let mut events = std::pin::pin!(watcher(pods, config).default_backoff());
        let mut listed = Vec::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(pod)) => {
                    listed.push(uid(&pod).to_owned());
                    self.see(pod);
                }
                Ok(Event::InitDone) => self.retain(&std::mem::take(&mut listed)),
                Ok(Event::Apply(pod)) => self.see(pod),
                Ok(Event::Delete(pod)) => self.lose(uid(&pod)),
                Err(error) => tracing::warn!(error = %Chain(&error), "the watch of Pods broke"),
            }
        }
    }

    /// The Pod that has this name now, or had it last.
    pub(crate) fn find(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let workers = self.workers.read();
        let all = workers.values().map(|seen| seen.borrow().clone());
        let named = |seen: &Seen| {
            let metadata = &seen.pod.metadata;
            metadata.namespace.as_deref() == Some(namespace) && metadata.name.as_deref() == Some(name)
        };
        let found = all
            .filter(named)
            .max_by_key(|seen| (!seen.gone, seen.pod.metadata.creation_timestamp.clone()));
        found.map(|seen| seen.pod)
    }

    fn see(&self, pod: Pod) {
        let seen = Seen {
            pod: Arc::new(pod),
            gone: false,
        };
        let uid = uid(&seen.pod).to_owned();
        let mut workers = self.workers.write();
        if let Some(worker) = workers.get(&uid) {
            worker.send_replace(seen);
            return;
        }
        let (sender, receiver) = watch::channel(seen);
        workers.insert(uid.clone(), sender);
        drop(workers);
        let worker = Worker::new(self.machine.clone(), receiver, self.tasks.clone());
        let (workers, stop) = (self.workers.clone(), self.tasks.token());
        self.tasks.spawn("pod", async move {
            let _ = stop.run_until_cancelled(worker.run()).await;
            workers.write().remove(&uid);
        });
    }

    fn lose(&self, uid: &str) {
        if let Some(worker) = self.workers.read().get(uid) {
            worker.send_modify(|seen| seen.gone = true);
        }
    }

    fn retain(&self, listed: &[String]) {
        let gone: Vec<_> = self
            .workers
            .read()
            .keys()
            .filter(|uid| !listed.contains(uid))
            .cloned()
            .collect();
        for uid in gone {
            self.lose(&uid);
        }
    }
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}
