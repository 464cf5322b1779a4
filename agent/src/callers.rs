//! Caller facts: which Pods of this member the hub's ShardingConfigs select, by one watch per selector.
//!
//! Of a Pod only the facts are decoded and kept. A Pod that two selectors match is one fact; it is gone when the last
//! of them loses it. Pods that have ended call nobody and are not told. Of a selector that matches too many the oldest are
//! told, and that it does: whoever may create Pods in one namespace must not keep the callers of others from being known.
//! Callers: `app` runs it, `report` sends.

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
use portolan_runtime::Tasks;
use portolan_wire::v1::{CallerExcess, CallerFact, ExcessSelector};
use serde::Deserialize;
use tokio::sync::watch;

use crate::explain::watch_broke;
use crate::facts::{FactMap, FactStore};
use crate::member::watch_config;
use crate::metrics::{Metrics, Watched};
use crate::settings::{CallerSelector, Settings};

/// Pods of one selector that are told.
const MOST_OF_SELECTOR: usize = 500;
/// Pods of all selectors that are told: what the hub takes of one member.
const MOST_OF_ALL: usize = 5_000;
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
}

#[derive(Debug, Clone, Default, Deserialize)]
struct PodStatusFacts {
    #[serde(default)]
    phase: String,
}

/// What each selector sees; `None` until its first list is through.
type FactsBySelector = BTreeMap<CallerSelector, Option<FactMap<String, CallerFact>>>;

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
        self.seen.lock().retain(|selector, _| wanted.contains(selector));
        for selector in wanted {
            running.entry(selector.clone()).or_insert_with(|| {
                self.seen.lock().insert(selector.clone(), None);
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
        let config = watch_config().labels(&selector.selector);
        let mut events = std::pin::pin!(watcher(pods, config).default_backoff());
        let mut listed = FactMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(pod)) => insert(&mut listed, pod),
                Ok(Event::InitDone) => self.update(&selector, |seen| *seen = Some(std::mem::take(&mut listed))),
                Ok(Event::Apply(pod)) => self.update(&selector, |seen| insert(seen.get_or_insert_default(), pod)),
                Ok(Event::Delete(pod)) => self.update(&selector, |seen| {
                    seen.get_or_insert_default().remove(&pod.uid().unwrap_or_default());
                }),
                Err(error) => watch_broke(&self.metrics, Watched::callers, &selector.namespace, &error),
            }
        }
    }

    /// A watch that was cancelled meanwhile has no entry, and changes nothing.
    fn update(&self, selector: &CallerSelector, change: impl FnOnce(&mut Option<FactMap<String, CallerFact>>)) {
        if let Some(seen) = self.seen.lock().get_mut(selector) {
            change(seen);
        }
        self.publish();
    }

    fn publish(&self) {
        // Held over the replacement: two watches that publish at once must not end with the older union.
        let seen = self.seen.lock();
        if let Some((union, excess)) = union(&seen) {
            self.facts.replace(union);
            self.excess.send_if_modified(|told| {
                let changed = told.as_ref() != Some(&excess);
                if changed && !excess.selectors.is_empty() {
                    tracing::warn!(selectors = ?excess.selectors, "selectors match more Pods than are told: the oldest are");
                }
                *told = Some(excess);
                changed
            });
        }
    }
}

/// All Pods that any selector sees, as far as they are told; `None` while one has not listed yet. Shared by namespaces first:
/// who writes many ShardingConfigs in one takes nothing from others.
fn union(seen: &FactsBySelector) -> Option<(FactMap<String, CallerFact>, CallerExcess)> {
    let mut counts = BTreeMap::<&str, Vec<usize>>::new();
    for (selector, facts) in seen {
        let count = facts.as_ref()?.len();
        counts.entry(&selector.namespace).or_default().push(count);
    }
    let told = |counts: &Vec<usize>| counts.iter().map(|count| (*count).min(MOST_OF_SELECTOR)).sum();
    let share = most_of_each(&counts.values().map(told).collect::<Vec<_>>(), MOST_OF_ALL, MOST_OF_ALL);
    let most: BTreeMap<_, _> = counts
        .into_iter()
        .map(|(namespace, counts)| (namespace, most_of_each(&counts, share, MOST_OF_SELECTOR)))
        .collect();
    let (mut union, mut excess) = (FactMap::new(), CallerExcess::default());
    for (selector, facts) in seen {
        let (facts, most) = (facts.as_ref()?, most[&*selector.namespace]);
        if facts.len() <= most {
            union.extend(facts.iter().map(|(uid, fact)| (uid.clone(), fact.clone())));
            continue;
        }
        let mut oldest: Vec<_> = facts.iter().collect();
        oldest.sort_by_key(|(uid, fact)| (fact.created_unix_seconds, *uid));
        union.extend(
            oldest
                .into_iter()
                .take(most)
                .map(|(uid, fact)| (uid.clone(), fact.clone())),
        );
        excess.selectors.push(ExcessSelector {
            namespace: selector.namespace.clone(),
            selector: selector.selector.clone(),
            matched: facts.len() as u64,
            told: most as u64,
        });
    }
    Some((union, excess))
}

/// How many of each may be told of `all` together, `cap` at most: those with few lose none while others have more.
fn most_of_each(counts: &[usize], all: usize, cap: usize) -> usize {
    let told = |most: usize| counts.iter().map(|count| (*count).min(most)).sum::<usize>();
    // It grows with `most`: the last that fits.
    let sizes: Vec<usize> = (0..=cap).collect();
    sizes.partition_point(|most| told(*most) <= all).saturating_sub(1)
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
    facts.insert(
        uid.clone(),
        Arc::new(CallerFact {
            namespace: pod.namespace().unwrap_or_default(),
            pod: pod.name_any(),
            uid,
            service_account: pod.spec.service_account,
            phase,
            created_unix_seconds: pod.metadata.creation_timestamp.map(|created| created.0.as_second()),
            labels: pod.metadata.labels.unwrap_or_default().into_iter().collect(),
        }),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> FactMap<String, CallerFact> {
        let mut facts = FactMap::new();
        let pod = serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "operator-0", "namespace": "ops", "uid": uid, "labels": {"app": "operator"},
                         "creationTimestamp": "2026-11-23T06:00:00Z"},
            "spec": {"serviceAccountName": "operator", "containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1"}
        });
        insert(&mut facts, serde_json::from_value(pod).unwrap());
        facts
    }

    fn selector(text: &str) -> CallerSelector {
        selector_in("ops", text)
    }

    fn selector_in(namespace: &str, text: &str) -> CallerSelector {
        CallerSelector {
            namespace: namespace.into(),
            selector: text.into(),
        }
    }

    #[test]
    fn a_fact_is_what_the_wire_asks_for() {
        let facts = pod("u1");
        let fact = &facts["u1"];
        assert_eq!((fact.namespace.as_str(), fact.pod.as_str()), ("ops", "operator-0"));
        assert_eq!(
            (fact.service_account.as_str(), fact.phase.as_str()),
            ("operator", "Running")
        );
        assert_eq!(fact.labels["app"], "operator");
        assert_eq!(fact.created_unix_seconds, Some(1_795_413_600));
    }

    #[test]
    fn a_pod_goes_when_the_last_selector_loses_it() {
        let told = |seen: &FactsBySelector| union(seen).map(|(union, _)| union);
        let mut seen = FactsBySelector::from([(selector("a=1"), Some(pod("u1"))), (selector("b=2"), None)]);
        assert_eq!(told(&seen), None, "one list is not through");
        seen.insert(selector("b=2"), Some(pod("u1")));
        assert_eq!(told(&seen).unwrap().len(), 1);
        seen.insert(selector("a=1"), Some(FactMap::new()));
        assert_eq!(told(&seen).unwrap().len(), 1);
        seen.insert(selector("b=2"), Some(FactMap::new()));
        assert_eq!(told(&seen), Some(FactMap::new()));
        assert_eq!(told(&FactsBySelector::new()), Some(FactMap::new()));
    }

    #[test]
    fn who_makes_thousands_of_pods_is_cut_and_others_are_not() {
        let fact = |at: usize| CallerFact {
            created_unix_seconds: i64::try_from(at).ok(),
            ..CallerFact::default()
        };
        let pods = |prefix: &str, count: usize| {
            let pods = (0..count).map(|at| (format!("{prefix}-{at}"), Arc::new(fact(count - at))));
            Some(pods.collect::<FactMap<_, _>>())
        };
        let mut seen = FactsBySelector::from([
            (selector("app=flood"), pods("flood", 5_001)),
            (selector("app=few"), pods("few", 3)),
        ]);
        let (told, excess) = union(&seen).unwrap();
        assert_eq!(told.len(), MOST_OF_SELECTOR + 3);
        assert!(
            told.contains_key("flood-5000") && !told.contains_key("flood-0"),
            "the oldest"
        );
        let ExcessSelector {
            selector: cut,
            matched,
            told: kept,
            ..
        } = &excess.selectors[0];
        assert_eq!(
            (excess.selectors.len(), cut.as_str(), *matched, *kept),
            (1, "app=flood", 5_001, 500)
        );
        for shard in 0..40 {
            seen.insert(selector(&format!("app=s{shard}")), pods(&format!("s{shard}"), 200));
        }
        let (told, excess) = union(&seen).unwrap();
        assert!((4_900..=MOST_OF_ALL).contains(&told.len()), "{}", told.len());
        assert!((0..3).all(|at| told.contains_key(&format!("few-{at}"))));
        assert_eq!(excess.selectors.len(), 41, "all that have more than their part");
        // Another namespace has its own part, however many selectors there are here.
        seen.insert(selector_in("others", "app=mine"), pods("mine", 400));
        let (told, excess) = union(&seen).unwrap();
        assert!(told.len() <= MOST_OF_ALL, "{}", told.len());
        assert!((0..400).all(|at| told.contains_key(&format!("mine-{at}"))));
        assert!(excess.selectors.iter().all(|cut| cut.namespace == "ops"));
    }

    #[test]
    fn a_pod_that_has_ended_calls_nobody() {
        let mut facts = pod("u1");
        let ended = serde_json::json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator-0", "namespace": "ops", "uid": "u1"},
            "spec": {}, "status": {"phase": "Succeeded"}
        });
        insert(&mut facts, serde_json::from_value(ended).unwrap());
        assert!(facts.is_empty());
    }
}
