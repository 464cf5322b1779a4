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
use kube::runtime::watcher::{Event, watcher};
use portolan_crds::GroupResource;
use portolan_wire::v1::CoverageFact;
use tokio::sync::watch;
use tokio::time::{Instant, interval_at, sleep_until};

use super::inventory::{Inventory, Subject, Todo};
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
        let mut events = std::pin::pin!(watcher(objects, watch_config()).default_backoff());
        let mut patches = FuturesUnordered::new();
        let mut span = Some(tracing::info_span!(
            "sweep",
            kind = %self.kind,
            objects = tracing::field::Empty,
            patches = tracing::field::Empty
        ));
        let mut patched = 0_u64;
        let mut retry = interval_at(Instant::now() + RETRY_REFUSED, RETRY_REFUSED);
        let mut again: Option<Instant> = None;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(event)) => self.take(inventory, event),
                    Some(Err(error)) => watch_broke(&self.patcher.metrics, Watched::objects, &self.kind, &error),
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

    fn take(&self, inventory: &mut Inventory, event: Event<PartialObjectMeta<DynamicObject>>) {
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
            Subject::Namespaces => Some(true),
            Subject::Objects => self.covered.borrow().says(&self.kind, &self.labelling.keys),
        };
        let fact = CoverageFact {
            labelled: counts.labelled,
            total: counts.total,
            complete: inventory.swept() && at_admission == Some(true) && counts.labelled == counts.total,
            at_admission,
            ..uncounted(&self.kind, &self.labelling)
        };
        self.coverage.upsert(self.kind.clone(), fact);
    }
}
