//! Caller facts: which Pods of this member the hub's ShardingConfigs select, by one watch per selector.
//!
//! Of a Pod only the facts are decoded and kept. A Pod that two selectors match is one fact; it is gone when the last
//! of them loses it. Pods that have ended call nobody and are not told. Of a selector that matches too many the oldest are
//! told, and that it does: whoever may create Pods in one namespace must not keep the callers of others from being known.
//! For the same reason a selector that cannot be listed holds back nobody but the Pods of its namespace that others there do
//! not see, and why it cannot is told. Callers: `app` runs it, `report` sends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ApiResource;
use kube::core::Object;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Event, watcher};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use portolan_crds::fair::most_of_each;
use portolan_crds::labels::VOLUME_ACCOUNT;
use portolan_runtime::Tasks;
use portolan_wire::protocol::{EXCESS_MAX, FAULT_MAX_BYTES};
use portolan_wire::v1::{CallerExcess, CallerFact, ExcessSelector};
use serde::Deserialize;
use tokio::sync::watch;

use crate::bounds;
use crate::explain::watch_broke;
use crate::facts::{FactMap, FactStore};
use crate::member::{FAT_PAGE, watch_config};
use crate::metrics::{Metrics, Watched};
use crate::settings::{CallerSelector, Settings};

/// Pods of one selector that are told, by what each counts as ([`bounds::counts_as`]).
const MOST_OF_SELECTOR: usize = 500;
/// Pods of all selectors that are told, counted so: what the hub takes of one member.
const MOST_OF_ALL: usize = 5_000;
/// So many tries to list a selector's Pods fail before it is told that they cannot be listed: an API server may be busy.
const TRIES_UNTOLD: u32 = 2;
/// Pods in these phases run nothing any more.
const ENDED: [&str; 2] = ["Succeeded", "Failed"];

/// Pods by uid.
pub(crate) type CallerFacts = FactStore<String, CallerFact>;

/// A Pod of which only what a fact needs is decoded.
type PodFacts = Object<PodSpecFacts, PodStatusFacts>;

#[derive(Debug, Clone, Default, Deserialize)]
struct PodSpecFacts {
    #[serde(rename = "serviceAccountName", default)]
    service_account: String,
    #[serde(default)]
    volumes: Vec<VolumeName>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct VolumeName {
    name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct PodStatusFacts {
    #[serde(default)]
    phase: String,
}

/// What each selector sees.
type FactsBySelector = BTreeMap<CallerSelector, Seen>;

/// What one selector sees.
#[derive(Debug, Default)]
struct Seen {
    pods: FactMap<String, CallerFact>,
    stage: Stage,
}

/// How far the watch of a selector is.
#[derive(Debug, Default, PartialEq, Eq)]
enum Stage {
    /// The first list of the selector's Pods is not through.
    #[default]
    Asked,
    /// The Pods could not be listed so often in a row; the text says why at last.
    Failing(u32, String),
    /// The Pods were listed, and a watch follows them.
    Listed,
    /// What selectors of one namespace saw that the hub asks for no more, together. It stays until all that the hub asks for there is
    /// listed, among it what stands for these selectors now.
    Retired,
}

impl Stage {
    fn is_pending(&self) -> bool {
        matches!(self, Self::Asked | Self::Failing(..))
    }
}

/// What is told of all selectors.
#[derive(Debug, Default, PartialEq)]
struct Union {
    pods: FactMap<String, CallerFact>,
    /// Namespaces of which not all selectors are listed.
    pending: BTreeSet<String>,
    excess: CallerExcess,
}

/// Starts and stops watches as the settings change.
#[derive(Clone)]
pub(crate) struct Callers {
    pub(crate) client: Client,
    pub(crate) facts: Arc<CallerFacts>,
    pub(crate) metrics: Metrics,
    pub(crate) excess: watch::Sender<Option<CallerExcess>>,
    // A mutex: every watch writes its own entry and the union is made from all; never held across an await.
    seen: Arc<Mutex<FactsBySelector>>,
}

impl Callers {
    pub(crate) fn new(
        client: Client,
        facts: Arc<CallerFacts>,
        excess: watch::Sender<Option<CallerExcess>>,
        metrics: Metrics,
    ) -> Self {
        Self {
            client,
            facts,
            metrics,
            excess,
            seen: Arc::default(),
        }
    }

    /// Follows the settings until cancelled.
    pub(crate) async fn run(self, tasks: Tasks, mut settings: watch::Receiver<Option<Arc<Settings>>>) {
        let mut running = BTreeMap::<CallerSelector, Tasks>::new();
        loop {
            let wanted = settings
                .borrow_and_update()
                .as_ref()
                .map(|settings| settings.callers.clone());
            if let Some(wanted) = wanted {
                self.turn_to(&wanted, &mut running, &tasks);
            }
            if settings.changed().await.is_err() {
                return;
            }
        }
    }

    fn turn_to(&self, wanted: &BTreeSet<CallerSelector>, running: &mut BTreeMap<CallerSelector, Tasks>, tasks: &Tasks) {
        running.retain(|selector, watch| {
            let keep = wanted.contains(selector);
            if !keep {
                watch.cancel();
            }
            keep
        });
        ask(&mut self.seen.lock(), wanted);
        for selector in wanted {
            running.entry(selector.clone()).or_insert_with(|| {
                let watch = tasks.child();
                let (this, selector, token) = (self.clone(), selector.clone(), watch.token());
                watch.spawn("caller-watch", async move {
                    let _ = token.run_until_cancelled(this.follow(selector)).await;
                });
                watch
            });
        }
        self.publish();
    }

    async fn follow(self, selector: CallerSelector) {
        let pods = Api::<PodFacts>::namespaced_with(
            self.client.clone(),
            &selector.namespace,
            &ApiResource::erase::<Pod>(&()),
        );
        let config = watch_config().page_size(FAT_PAGE).labels(&selector.selector);
        let mut events = std::pin::pin!(watcher(pods, config).default_backoff());
        let mut listed = FactMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(pod)) => insert(&mut listed, pod),
                Ok(Event::InitDone) => self.update(&selector, |seen| {
                    seen.pods = std::mem::take(&mut listed);
                    seen.stage = Stage::Listed;
                }),
                Ok(Event::Apply(pod)) => self.update(&selector, |seen| insert(&mut seen.pods, pod)),
                Ok(Event::Delete(pod)) => self.update(&selector, |seen| {
                    seen.pods.remove(&pod.uid().unwrap_or_default());
                }),
                Err(error) => {
                    let text = watch_broke(&self.metrics, Watched::callers, &selector.namespace, &error);
                    self.update(&selector, |seen| seen.failed(text));
                }
            }
        }
    }

    /// A watch that was cancelled meanwhile has no entry that is its own, and changes nothing.
    fn update(&self, selector: &CallerSelector, change: impl FnOnce(&mut Seen)) {
        let mut seen = self.seen.lock();
        if let Some(seen) = seen.get_mut(selector) {
            change(seen);
        }
        drop(seen);
        self.publish();
    }

    fn publish(&self) {
        // Held over the replacement: two watches that publish at once must not end with the older union.
        let mut seen = self.seen.lock();
        let Union { pods, pending, excess } = union(&mut seen);
        self.facts.replace_but(pods, pending);
        self.excess.send_if_modified(|told| {
            let changed = told.as_ref() != Some(&excess);
            if changed && !excess.selectors.is_empty() {
                let namespaces: BTreeSet<_> = excess.selectors.iter().map(|cut| &cut.namespace).collect();
                tracing::warn!(
                    selectors = excess.selectors.len(),
                    ?namespaces,
                    "not all Pods of these selectors are told: see the conditions of the ShardingConfigs there"
                );
            }
            *told = Some(excess);
            changed
        });
    }
}

impl Seen {
    /// As how many Pods those of it that are told may count.
    fn most(&self) -> usize {
        match self.stage {
            Stage::Retired => MOST_OF_ALL,
            _ => MOST_OF_SELECTOR,
        }
    }

    /// A try to list or to watch failed. Of what was listed once the watch goes on by itself.
    fn failed(&mut self, why: String) {
        let tries = match self.stage {
            Stage::Asked => 1,
            Stage::Failing(tries, _) => tries.saturating_add(1),
            Stage::Listed | Stage::Retired => return,
        };
        self.stage = Stage::Failing(tries, why);
    }

    /// Why its Pods cannot be listed, once that is worth a word.
    fn fault(&self) -> Option<&str> {
        match &self.stage {
            Stage::Failing(tries, why) if *tries > TRIES_UNTOLD => {
                Some(&why[..why.floor_char_boundary(FAULT_MAX_BYTES)])
            }
            _ => None,
        }
    }
}

/// Notes what the hub asks for from now on. Who edits selectors all the time, in a namespace of which one cannot be listed, leaves
/// no more behind than may be told.
fn ask(seen: &mut FactsBySelector, wanted: &BTreeSet<CallerSelector>) {
    let is_kept = |selector: &CallerSelector, seen: &Seen| wanted.contains(selector) || seen.stage == Stage::Retired;
    for (selector, over) in seen
        .extract_if(.., |selector, seen| !is_kept(selector, seen))
        .collect::<Vec<_>>()
    {
        if over.pods.is_empty() {
            continue;
        }
        let retired = seen.entry(retired_in(&selector.namespace)).or_default();
        retired.stage = Stage::Retired;
        retired.pods.extend(over.pods);
        retired.pods = oldest(&retired.pods, MOST_OF_ALL).into_iter().collect();
    }
    for selector in wanted {
        seen.entry(selector.clone()).or_default();
    }
}

/// Stands for all retired selectors of a namespace: none that is asked for has an empty digest.
fn retired_in(namespace: &str) -> CallerSelector {
    CallerSelector {
        namespace: namespace.to_owned(),
        selector: String::new(),
        digest: String::new(),
    }
}

/// All Pods that any selector sees, as far as they are told. Shared by namespaces first: who writes many ShardingConfigs in one
/// takes nothing from others. Forgets what is retired in namespaces of which all is listed.
fn union(seen: &mut FactsBySelector) -> Union {
    let waiting = seen.iter().filter(|(_, seen)| seen.stage.is_pending());
    let pending: BTreeSet<String> = waiting.map(|(selector, _)| selector.namespace.clone()).collect();
    seen.retain(|selector, seen| seen.stage != Stage::Retired || pending.contains(&selector.namespace));
    let most = shares(seen);
    let mut union = Union {
        pending,
        ..Union::default()
    };
    for (selector, seen) in &*seen {
        let told = oldest(&seen.pods, most[&*selector.namespace].min(seen.most()));
        if seen.stage == Stage::Retired {
            union.pods.extend(told);
            continue;
        }
        let cut = ExcessSelector {
            namespace: selector.namespace.clone(),
            selector: selector.selector.clone(),
            digest: selector.digest.clone(),
            matched: seen.pods.len() as u64,
            told: told.len() as u64,
            fault: seen.fault().unwrap_or_default().to_owned(),
        };
        if cut.told < cut.matched || !cut.fault.is_empty() {
            union.excess.selectors.push(cut);
        }
        union.pods.extend(told);
    }
    in_turn(&mut union.excess.selectors);
    union
}

/// What each selector of a namespace may tell, in Pods that count once.
fn shares(seen: &FactsBySelector) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::<&str, Vec<usize>>::new();
    for (selector, seen) in seen {
        let pods = seen.pods.values();
        let count = pods.map(|pod| bounds::counts_as(pod)).sum::<usize>();
        counts
            .entry(&selector.namespace)
            .or_default()
            .push(count.min(seen.most()));
    }
    let share = most_of_each(counts.values().map(|counts| counts.iter().sum()), MOST_OF_ALL);
    let shares = counts
        .into_iter()
        .map(|(namespace, counts)| (namespace.to_owned(), most_of_each(counts, share)));
    shares.collect()
}

/// The oldest of these Pods, as many as count for `most` at most.
fn oldest(pods: &FactMap<String, CallerFact>, most: usize) -> Vec<(String, Arc<CallerFact>)> {
    let mut all: Vec<_> = pods.iter().map(|(uid, pod)| (uid.clone(), pod.clone())).collect();
    if all.iter().map(|(_, pod)| bounds::counts_as(pod)).sum::<usize>() <= most {
        return all;
    }
    all.sort_by(|(a, one), (b, other)| (one.created_unix_seconds, a).cmp(&(other.created_unix_seconds, b)));
    let mut left = most;
    all.retain(|(_, pod)| {
        let fits = bounds::counts_as(pod) <= left;
        left = if fits { left - bounds::counts_as(pod) } else { 0 };
        fits
    });
    all
}

/// As many of them as the hub takes: of each namespace as many as of others, if it has so many.
fn in_turn(excess: &mut Vec<ExcessSelector>) {
    let mut counts = BTreeMap::<String, usize>::new();
    for cut in &*excess {
        *counts.entry(cut.namespace.clone()).or_default() += 1;
    }
    let most = most_of_each(counts.into_values(), EXCESS_MAX);
    let mut told = BTreeMap::<String, usize>::new();
    excess.retain(|cut| {
        let told = told.entry(cut.namespace.clone()).or_default();
        *told += 1;
        *told <= most
    });
}

fn insert(facts: &mut FactMap<String, CallerFact>, pod: PodFacts) {
    let uid = pod.uid().unwrap_or_default();
    let phase = pod
        .status
        .as_ref()
        .map(|status| status.phase.clone())
        .unwrap_or_default();
    if ENDED.contains(&phase.as_str()) {
        facts.remove(&uid);
        return;
    }
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let (labels, labels_cut) = bounds::of_pod(pod.metadata.labels.unwrap_or_default());
    let pointed = pod.spec.volumes.iter().any(|volume| volume.name == VOLUME_ACCOUNT);
    let fact = CallerFact {
        namespace,
        pod: name,
        uid: uid.clone(),
        service_account: pod.spec.service_account,
        phase,
        created_unix_seconds: pod.metadata.creation_timestamp.map(|created| created.0.as_second()),
        labels,
        labels_cut,
        pointed: Some(pointed),
    };
    facts.insert(uid, Arc::new(fact));
}

#[cfg(test)]
mod tests;
