//! The sweep of one kind: list and watch metadata, label what lacks its labels, for ever.
//!
//! A restart lists again and patches only what is wrong. Changed labels come back as events, so that a mark is set by
//! what the API server says, never by what was sent to it. Caller: `sweep`.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use kube::Api;
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use portolan_crds::GroupResource;
use portolan_wire::v1::CoverageFact;
use tokio::sync::watch;
use tokio::time::{Instant, interval, interval_at, sleep_until};

use super::inventory::{Inventory, Subject, Todo};
use super::outage::{Outage, Pauses};
use super::patch::Patcher;
use super::uncounted;
use crate::admission::Covered;
use crate::explain::watch_broke;
use crate::label::Labelling;
use crate::member::watch_config;
use crate::metrics::{Patched, SweepGauges, Watched};
use crate::report::CoverageFacts;

/// Patches of one kind under way or waiting for their turn: so few that kinds whose patches fail leave room for others.
const CONCURRENCY: usize = 16;
/// Objects whose patch was refused are tried again by a relist of their kind after this time.
const RETRY_REFUSED: Duration = Duration::from_mins(5);
/// How often it is looked whether the watch runs.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Objects whose patch failed wait this long, from the first of them on.
const RETRY_FAILED: Duration = Duration::from_secs(15);

/// One kind's sweep.
pub(crate) struct KindSweep {
    pub(crate) kind: GroupResource,
    pub(crate) labelling: Labelling,
    pub(crate) patcher: Patcher,
    pub(crate) coverage: Arc<CoverageFacts>,
    pub(crate) covered: watch::Receiver<Covered>,
    pub(crate) gauges: SweepGauges,
    /// Told when the first full list is through and labelled as far as it can be.
    pub(crate) first: watch::Sender<bool>,
    pub(crate) outage: Outage,
}

impl KindSweep {
    /// Sweeps until cancelled; what it reported is withdrawn by `sweep`.
    pub(crate) async fn run(mut self) {
        let mut inventory = Inventory::new(self.labelling.clone(), self.patcher.subject);
        loop {
            self.follow(&mut inventory).await;
            tracing::info!(kind = %self.kind, counts = ?inventory.counts(), "listing again for what is still unlabelled");
        }
    }

    /// One watch, until a relist is due. The span covers the sweep proper: from the list to the last label it asks for.
    async fn follow(&mut self, inventory: &mut Inventory) {
        let objects =
            Api::<PartialObjectMeta<DynamicObject>>::all_with(self.patcher.client.clone(), &self.patcher.resource);
        let mut events = std::pin::pin!(watcher(objects, watch_config()).backoff(Pauses::default()));
        let mut patches = FuturesUnordered::new();
        let mut span = Some(tracing::info_span!(
            "sweep",
            kind = %self.kind,
            objects = tracing::field::Empty,
            patches = tracing::field::Empty
        ));
        let mut patched = 0_u64;
        let mut retry = interval_at(Instant::now() + RETRY_REFUSED, RETRY_REFUSED);
        let mut looks = interval(LOOK_EVERY);
        let mut again: Option<Instant> = None;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(event) => self.hear(inventory, event),
                    None => return,
                },
                Some(failed) = patches.next() => match failed {
                    Some(todo) => {
                        inventory.put_aside(todo);
                        again.get_or_insert_with(|| Instant::now() + RETRY_FAILED);
                    }
                    None => patched += 1,
                },
                () = sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {
                    again = None;
                    inventory.again();
                }
                Ok(()) = self.covered.changed() => {}
                _ = looks.tick() => {}
                _ = retry.tick() => {
                    if inventory.has_leftovers() && patches.is_empty() {
                        return;
                    }
                }
            }
            while patches.len() < CONCURRENCY
                && let Some(todo) = inventory.next()
            {
                patches.push(self.label(todo));
            }
            self.publish(inventory);
            let idle = patches.is_empty() && !inventory.has_work();
            if idle && inventory.swept() {
                if let Some(span) = span.take() {
                    span.record("objects", inventory.counts().total)
                        .record("patches", patched);
                }
                self.first.send_if_modified(|first| !std::mem::replace(first, true));
            }
            if idle && inventory.has_overflowed() {
                return;
            }
        }
    }

    /// Labels one object, which is returned if that failed for now.
    fn label(&self, todo: Todo) -> BoxFuture<'static, Option<Todo>> {
        let (patcher, labelling) = (self.patcher.clone(), self.labelling.clone());
        let labelled = async move {
            let labels = labelling.wanted(&todo.namespace)?;
            (patcher.label(&todo, &labels).await == Patched::failed).then_some(todo)
        };
        labelled.boxed()
    }

    fn hear(&mut self, inventory: &mut Inventory, event: watcher::Result<Event<PartialObjectMeta<DynamicObject>>>) {
        match event {
            Ok(event) => self.take(inventory, event),
            Err(error) => {
                watch_broke(&self.patcher.metrics, Watched::objects, &self.kind, &error);
                self.outage.failed(Instant::now());
            }
        }
    }

    fn take(&mut self, inventory: &mut Inventory, event: Event<PartialObjectMeta<DynamicObject>>) {
        if matches!(event, Event::InitDone | Event::Apply(_) | Event::Delete(_)) {
            self.outage.heard();
        }
        match event {
            Event::Init => inventory.begin(),
            Event::InitApply(object) => inventory.listed(&object.metadata),
            Event::InitDone => {
                inventory.end();
                let counts = inventory.counts();
                tracing::info!(kind = %self.kind, labelled = counts.labelled, total = counts.total, "listed");
            }
            Event::Apply(object) => inventory.changed(&object.metadata),
            Event::Delete(object) => inventory.deleted(&object.metadata),
        }
    }

    fn publish(&mut self, inventory: &Inventory) {
        let counts = inventory.counts();
        self.gauges.set(inventory.queued(), counts.total, counts.labelled);
        // Namespaces cannot get their labels at admission: their bucket is a hash. Nothing lives in one before it
        // exists, so their own coverage needs no policy.
        let at_admission = match self.patcher.subject {
            // What is made now is not seen.
            _ if self.outage.lasts(Instant::now()) => Some(false),
            Subject::Namespaces => Some(true),
            Subject::Objects => self.covered.borrow().says(&self.kind, &self.labelling.keys),
        };
        let fact = CoverageFact {
            labelled: counts.labelled,
            total: counts.total,
            complete: inventory.swept() && at_admission == Some(true) && counts.labelled == counts.total,
            at_admission,
            by_bucket: inventory.by_bucket(),
            ..uncounted(&self.kind, &self.labelling)
        };
        self.coverage.upsert(self.kind.clone(), fact);
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::atomic::{AtomicBool, Ordering};

    use k8s_openapi::api::core::v1::Namespace;
    use kube::Client;
    use kube::api::ApiResource;
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::facts::FactMap;
    use crate::metrics::Metrics;
    use crate::sweep::namespaces_kind;
    use crate::sweep::pacer::Pacer;

    /// A member whose watches say nothing until it refuses everything.
    fn silent_until(refused: Arc<AtomicBool>) -> Client {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let refused = refused.clone();
            async move {
                let is_watch = request.uri().query().is_some_and(|query| query.contains("watch="));
                while is_watch && !refused.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                let list = json!({"kind": "NamespaceList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": []});
                let refusal = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden"});
                let (code, body) = if refused.load(Ordering::Relaxed) {
                    (403, refusal)
                } else {
                    (200, list)
                };
                let answer = http::Response::builder().status(code);
                Ok::<_, std::convert::Infallible>(answer.body(Body::from(body.to_string().into_bytes())).unwrap())
            }
        });
        Client::new(service, "default")
    }

    /// The agent's right to see the kind is taken away, or the API server is gone.
    #[tokio::test(start_paused = true)]
    async fn a_kind_that_is_not_seen_for_half_a_minute_is_not_complete() {
        let refuses = Arc::new(AtomicBool::new(false));
        let client = silent_until(refuses.clone());
        let coverage = Arc::new(CoverageFacts::new());
        coverage.replace(FactMap::new());
        let sweep = KindSweep {
            kind: namespaces_kind(),
            labelling: Labelling::default(),
            patcher: Patcher {
                client,
                resource: ApiResource::erase::<Namespace>(&()),
                subject: Subject::Namespaces,
                pacer: Pacer::new(NonZeroU32::new(100).unwrap()),
                metrics: Metrics::default(),
            },
            coverage: coverage.clone(),
            covered: watch::channel(Covered::default()).1,
            gauges: Metrics::default().sweep(),
            first: watch::Sender::new(false),
            outage: Outage::default(),
        };
        let said = || {
            let fact = coverage.complete().unwrap()[&namespaces_kind()].clone();
            (fact.complete, fact.at_admission)
        };
        let script = async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            assert_eq!(said(), (true, Some(true)));
            refuses.store(true, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(20)).await;
            assert_eq!(said(), (true, Some(true)), "not long enough");
            tokio::time::sleep(Duration::from_secs(30)).await;
            assert_eq!(said(), (false, Some(false)));
            tokio::time::sleep(Duration::from_mins(2)).await;
            assert_eq!(said(), (false, Some(false)));
            refuses.store(false, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(40)).await;
            assert_eq!(said(), (true, Some(true)));
        };
        tokio::select! {
            () = sweep.run() => panic!("ended"),
            () = script => {}
        }
    }
}
