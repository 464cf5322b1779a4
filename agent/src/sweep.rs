//! Keeps the shard labels where they shall be: one sweep per kind, started and stopped as configuration and the
//! member's kinds change.
//!
//! Namespaces are swept first and objects after them, because admission labels new objects by their namespace. Kinds are
//! discovered anew now and then and soon after any CustomResourceDefinition changed. Callers: `app` runs it; `admission`
//! follows what it finds.

mod buckets;
pub(crate) mod inventory;
mod kind;
mod outage;
pub(crate) mod pacer;
pub(crate) mod patch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryFutureExt};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ApiResource;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Event, watcher};
use kube::{Api, Client};
use portolan_crds::GroupResource;
use portolan_runtime::Tasks;
use portolan_runtime::backoff::until_ok;
use portolan_wire::v1 as wire;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::admission::Covered;
use crate::explain::watch_broke;
use crate::facts::FactMap;
use crate::kinds;
use crate::label::{Labelling, Plan};
use crate::member::{CallError, watch_config};
use crate::metrics::{Metrics, Watched};
use crate::report::CoverageFacts;
use crate::settings::Settings;
use inventory::Subject;
use kind::KindSweep;
use outage::Outage;
use pacer::Pacer;
use patch::Patcher;

/// Discovery is asked again this often even if no definition changed: aggregated APIs come and go too.
const REDISCOVER: Duration = Duration::from_mins(5);
/// A CRD serves a moment after it was created, and CRDs come in bundles.
const SETTLE: Duration = Duration::from_secs(1);
/// Discovery may lag behind a definition on a busy API server: look once more.
const LATE_LOOK: Duration = Duration::from_secs(10);
/// Longest wait for the namespaces' labels before objects are begun: they are few, but one may be refused.
const NAMESPACES_FIRST: Duration = Duration::from_secs(30);

/// How often it is told how far labelling is.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Kinds that are asked for and not labelled, as many as the log names: limits may name thousands that there are not.
const UNMET_NAMED: usize = 20;

/// A sweep ends at its next await.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts and stops sweeps.
pub(crate) struct Sweeper {
    /// One that repeats nothing by itself: see [`Patcher`].
    pub(crate) client: Client,
    pub(crate) pacer: Pacer,
    pub(crate) tasks: Tasks,
    pub(crate) metrics: Metrics,
    pub(crate) coverage: Arc<CoverageFacts>,
    pub(crate) plan: watch::Sender<Option<Arc<Plan>>>,
    pub(crate) covered: watch::Receiver<Covered>,
}

/// What runs now, all under one labelling.
struct Running {
    labelling: Labelling,
    namespaces: Tasks,
    /// The swept kinds, each with the API version that it is listed and watched in.
    kinds: BTreeMap<GroupResource, (ApiResource, Tasks)>,
}

impl Sweeper {
    /// Follows the settings until cancelled. Without settings nothing is touched.
    pub(crate) async fn run(self, mut settings: watch::Receiver<Option<Arc<Settings>>>) {
        let definitions = watch::Sender::new(0);
        let mut late_look = Instant::now() + REDISCOVER;
        let mut definitions_changed = definitions.subscribe();
        let mut running: Option<Running> = None;
        let turning = async {
            loop {
                let wanted = settings.borrow_and_update().clone();
                if let Some(wanted) = wanted {
                    self.turn_to(&wanted, &mut running).await;
                }
                tokio::select! {
                    changed = settings.changed() => {
                        if changed.is_err() {
                            return;
                        }
                        late_look = Instant::now() + LATE_LOOK;
                    }
                    () = settled(&mut definitions_changed) => late_look = Instant::now() + LATE_LOOK,
                    () = sleep_until(late_look) => late_look = Instant::now() + REDISCOVER,
                }
            }
        };
        tokio::select! {
            () = turning => {}
            () = self.follow_definitions(&definitions) => {}
            () = self.count_coverage() => {}
        }
    }

    /// Keeps the gauges of kinds, and tells how far labelling is; runs beside.
    async fn count_coverage(&self) {
        let mut changed = self.coverage.subscribe();
        let mut told = Instant::now();
        while changed.changed().await.is_ok() {
            let facts = self.coverage.complete().unwrap_or_default();
            let per_second = self.pacer.per_second();
            self.metrics
                .coverage(facts.len(), facts.values().filter(|fact| fact.complete).count());
            self.metrics.pace(per_second);
            let labelled: u64 = facts.values().map(|fact| fact.labelled).sum();
            let total: u64 = facts.values().map(|fact| fact.total).sum();
            if labelled < total && told.elapsed() > TELL_EVERY {
                told = Instant::now();
                tracing::info!(labelled, total, per_second, "labelling");
            }
            tokio::time::sleep(SETTLE).await;
        }
    }

    /// Wakes `changed` whenever a kind may have come or gone.
    async fn follow_definitions(&self, changed: &watch::Sender<u64>) {
        let definitions = Api::<PartialObjectMeta<CustomResourceDefinition>>::all(self.client.clone());
        let mut events = std::pin::pin!(watcher(definitions, watch_config()).default_backoff());
        let mut listed = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init | Event::InitApply(_)) => {}
                // What the first list holds, the first discovery finds.
                Ok(Event::InitDone) if !std::mem::replace(&mut listed, true) => {}
                Ok(_) => changed.send_modify(|count| *count += 1),
                Err(error) => {
                    watch_broke(&self.metrics, Watched::definitions, "all", &error);
                }
            }
        }
    }

    async fn turn_to(&self, settings: &Settings, running: &mut Option<Running>) {
        if running
            .as_ref()
            .is_some_and(|running| running.labelling != settings.labelling)
        {
            tracing::info!("labelling rule changed: everything is labelled anew");
            if let Some(old) = running.take() {
                old.stop().await;
            }
        }
        // Before the first word: a kind that is not told of has no labels to routers, and running watches are asked anew.
        let discover = || kinds::discover(self.client.clone()).map_err(CallError::from);
        let served = until_ok("discover the member's kinds", discover).await;
        let (kinds, unmet) = kinds::select(&settings.kinds, &served);
        let current = match running {
            Some(current) => current,
            None => running.insert(self.start(settings, &kinds).await),
        };
        for (at, (rule, reason)) in unmet.iter().enumerate() {
            if at < UNMET_NAMED {
                tracing::warn!(%rule, reason, "configured kind is not labelled");
            }
            self.coverage.remove(rule);
        }
        if unmet.len() > UNMET_NAMED {
            tracing::warn!(more = unmet.len() - UNMET_NAMED, "and so are other configured kinds");
        }
        self.turn_kinds(&kinds, current).await;
        self.plan.send_if_modified(|plan| {
            let now = Plan {
                labelling: settings.labelling.clone(),
                kinds,
            };
            let changed = plan.as_deref() != Some(&now);
            *plan = Some(Arc::new(now));
            changed
        });
    }

    /// Starts with the namespaces and waits until they are labelled.
    async fn start(&self, settings: &Settings, kinds: &BTreeMap<GroupResource, ApiResource>) -> Running {
        let labelling = settings.labelling.clone();
        self.coverage.replace(begun(settings, kinds));
        let (first, mut done) = watch::channel(false);
        let resource = ApiResource::erase::<Namespace>(&());
        let tasks = self.sweep(namespaces_kind(), &resource, &labelling, first);
        let waited = tokio::time::timeout(NAMESPACES_FIRST, done.wait_for(|done| *done)).await;
        if waited.is_err() {
            tracing::warn!("namespaces are not all labelled yet, going on with objects");
        }
        drop(waited);
        Running {
            labelling,
            namespaces: tasks,
            kinds: BTreeMap::new(),
        }
    }

    async fn turn_kinds(&self, wanted: &BTreeMap<GroupResource, ApiResource>, running: &mut Running) {
        let gone: Vec<GroupResource> = running
            .kinds
            .iter()
            .filter(|(kind, (resource, _))| wanted.get(kind) != Some(resource))
            .map(|(kind, _)| kind.clone())
            .collect();
        for kind in gone {
            tracing::info!(%kind, "kind is no longer labelled, or in another version");
            if let Some((_, tasks)) = running.kinds.remove(&kind) {
                stop(&tasks).await;
            }
            self.coverage.remove(&kind);
        }
        for (kind, resource) in wanted {
            running.kinds.entry(kind.clone()).or_insert_with(|| {
                let nobody_waits = watch::Sender::new(false);
                self.coverage.upsert(kind.clone(), uncounted(kind, &running.labelling));
                let tasks = self.sweep(kind.clone(), resource, &running.labelling, nobody_waits);
                (resource.clone(), tasks)
            });
        }
    }

    fn sweep(
        &self,
        kind: GroupResource,
        resource: &ApiResource,
        labelling: &Labelling,
        first: watch::Sender<bool>,
    ) -> Tasks {
        let subject = if kind == namespaces_kind() {
            Subject::Namespaces
        } else {
            Subject::Objects
        };
        let sweep = KindSweep {
            kind,
            labelling: labelling.clone(),
            patcher: Patcher {
                client: self.client.clone(),
                resource: resource.clone(),
                subject,
                pacer: self.pacer.clone(),
                metrics: self.metrics.clone(),
            },
            coverage: self.coverage.clone(),
            covered: self.covered.clone(),
            gauges: self.metrics.sweep(),
            first,
            outage: Outage::default(),
        };
        let tasks = self.tasks.child();
        let token = tasks.token();
        tasks.spawn("sweep", async move {
            let _ = token.run_until_cancelled(sweep.run()).await;
        });
        tasks
    }
}

impl Running {
    async fn stop(self) {
        stop(&self.namespaces).await;
        for (_, tasks) in self.kinds.values() {
            stop(tasks).await;
        }
    }
}

/// Returns a while after the last change.
async fn settled(changed: &mut watch::Receiver<u64>) {
    // An error means that the program ends, and with it the waiting.
    let _ = changed.changed().await;
    while tokio::time::timeout(SETTLE, changed.changed())
        .await
        .is_ok_and(|changed| changed.is_ok())
    {}
}

/// Waits for the end, so that a sweep that is over cannot report any more.
async fn stop(tasks: &Tasks) {
    tasks.shutdown(STOP_TIMEOUT).await;
}

/// What is told before the first list: namespaces alone, all labelled, would look like everything.
fn begun(
    settings: &Settings,
    served: &BTreeMap<GroupResource, ApiResource>,
) -> FactMap<GroupResource, wire::CoverageFact> {
    let named = settings.kinds.iter().filter(|rule| kinds::is_exact(rule));
    let named = named.chain(served.keys()).cloned();
    let all = named.chain([namespaces_kind()]).map(|kind| {
        let fact = uncounted(&kind, &settings.labelling);
        (kind, Arc::new(fact))
    });
    all.collect()
}

/// What is told of a kind that nobody has looked at yet.
fn uncounted(kind: &GroupResource, labelling: &Labelling) -> wire::CoverageFact {
    wire::CoverageFact {
        kind: Some(kind.clone().into()),
        rule: Some(wire::LabelRule::from(labelling)),
        ..wire::CoverageFact::default()
    }
}

/// Namespaces as a kind.
pub(crate) fn namespaces_kind() -> GroupResource {
    GroupResource::new("", "namespaces")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_the_first_list_no_kind_that_was_asked_for_is_complete() {
        let rule = GroupResource::new;
        let settings = Settings {
            kinds: [rule("", "pods"), rule("apps", "*")].into(),
            ..Settings::default()
        };
        let deployments = ApiResource::erase::<k8s_openapi::api::apps::v1::Deployment>(&());
        let kind = GroupResource::new(&deployments.group, &deployments.plural);
        let facts = begun(&settings, &BTreeMap::from([(kind, deployments)]));
        let kinds: Vec<_> = facts.keys().map(ToString::to_string).collect();
        assert_eq!(kinds, ["namespaces", "pods", "deployments.apps"]);
        // Nobody has looked whether admission labels them: running watches go on as they are.
        assert!(facts.values().all(|fact| !fact.complete && fact.at_admission.is_none()));
    }
}
