//! Looks whether the member has its admission policies (`portolan_crds::policy`) as they shall be, and for which kinds new
//! objects get their labels at admission.
//!
//! `portolanctl join` writes them; the agent may read them by name and nothing more, and tells the hub which one is missing
//! or changed. Where the API server has no MutatingAdmissionPolicy (before Kubernetes 1.36, unless its v1beta1 is switched on), or has
//! it switched off, the sweep alone labels, a moment after creation, and coverage is never complete. Callers: `app` runs it; `sweep` asks
//! [`Covered`], `allowed` for the fence's, `report` sends what is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DeleteParams, ListParams, Patch, PatchParams};
use kube::core::{DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Event, watcher};
use kube::{Api, Client};
use portolan_crds::GroupResource;
use portolan_crds::labels::{LabelKeys, MANAGER_AGENT};
use portolan_crds::policy::{GROUP, INJECTION, INJECTION_VERSIONS, Policy, PolicyInput, difference, input_of};
use portolan_runtime::Chain;
use portolan_runtime::backoff::Backoff;
use portolan_wire::v1::AdmissionPolicies;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::explain::watch_broke;
use crate::label::Plan;
use crate::member::{CallError, bounded, watch_config};
use crate::metrics::{Metrics, Watched};

/// Time from the write of a policy until every new object meets it. Measured at 1-2 s; the sweep sees what slips through.
const TAKES_EFFECT: Duration = Duration::from_secs(3);
/// The policies are compared with what they shall be at least this often.
const LOOK_AGAIN: Duration = Duration::from_mins(10);
/// How often it is asked whether the policy works, until it does; after some tries in vain somebody should know.
const PROBE_PERIOD: Duration = Duration::from_secs(2);
const PROBES_BEFORE_WARNING: u32 = 5;
/// The namespace that is asked with: every cluster has it.
const PROBED: &str = "default";
const UNCOVERED: &str = "this API server does not label new objects: the sweep does, a moment after their creation, and \
    coverage is never complete";
/// Changes that come together are answered once.
const SETTLE: Duration = Duration::from_millis(200);
/// Kinds that are named when some have no policy.
const NAMED_KINDS: usize = 5;

/// The kinds whose new objects are labelled at admission now, and by which keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Covered {
    /// Nobody has looked yet whether the API server labels anything at admission.
    #[default]
    Unknown,
    /// What is not among them is known not to be.
    By(Arc<(LabelKeys, BTreeSet<GroupResource>)>),
    /// The API server labels no kind at admission.
    Nothing,
}

impl Covered {
    fn by(keys: LabelKeys, kinds: BTreeSet<GroupResource>) -> Self {
        Self::By(Arc::new((keys, kinds)))
    }

    fn covers(&self, kind: &GroupResource, keys: &LabelKeys) -> bool {
        self.says(kind, keys) == Some(true)
    }

    /// `None`: nobody has looked yet. A policy that writes other keys, of before a change of the prefix, covers nothing.
    pub(crate) fn says(&self, kind: &GroupResource, keys: &LabelKeys) -> Option<bool> {
        match self {
            Self::Unknown => None,
            Self::By(by) => Some(by.0 == *keys && by.1.contains(kind)),
            Self::Nothing => Some(false),
        }
    }
}

/// Reads the policies.
pub(crate) struct Admission {
    pub(crate) client: Client,
    pub(crate) covered: watch::Sender<Covered>,
    /// What the hub is told.
    pub(crate) told: watch::Sender<Option<AdmissionPolicies>>,
    pub(crate) metrics: Metrics,
}

/// One object: its policy, and whether it is the binding.
type Which = (Policy, bool);

/// What was read, by object: the generation that the API server gave it.
type Generations = BTreeMap<Which, i64>;

/// What somebody did to an object: its generation unless it is gone.
type Touched = (Which, Option<i64>);

/// How many epochs of a namespace the member's policies let be open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fenced {
    /// Nothing is compared.
    Not,
    /// One: by the policies of an earlier release.
    One,
    Lists,
}

/// By which of the policies that compare what writes say of their epoch, and hold the agent to what it may set, the member has, with their
/// bindings. Whether it goes by them shows when a namespace is closed.
pub(crate) async fn fenced(client: &Client) -> Result<Fenced, CallError> {
    let keys = |policy: &Value| input_of(policy).map(|input| input.keys).unwrap_or_default();
    let mut fenced = Fenced::Lists;
    for policy in [Policy::Fence, Policy::AgentWrites] {
        let mut found = Vec::new();
        for is_binding in [false, true] {
            let read = read(client, (policy, is_binding)).await?.and_then(Read::into_found);
            found.extend(read.map(|(found, _)| found));
        }
        let input = PolicyInput {
            keys: found.first().map(keys).unwrap_or_default(),
            kinds: BTreeSet::new(),
        };
        let is = |manifests: [Value; 2]| {
            let mut pairs = manifests.iter().zip(&found);
            found.len() == manifests.len() && pairs.all(|(wanted, found)| difference(wanted, found).is_none())
        };
        if is(policy.manifests(&input)) {
            continue;
        }
        let is_of_before = policy == Policy::AgentWrites || is(policy.manifests_of_one_epoch(&input));
        fenced = if is_of_before && fenced != Fenced::Not {
            Fenced::One
        } else {
            Fenced::Not
        };
    }
    Ok(fenced)
}

/// An object as the API server has it.
struct Read {
    /// The version of the API by which its kind is served.
    version: &'static str,
    /// The object that was found, and its generation; `None`: there is none.
    found: Option<(Value, i64)>,
}

impl Read {
    fn into_found(self) -> Option<(Value, i64)> {
        self.found
    }
}

/// `None`: its kind is not served.
async fn read(client: &Client, which: Which) -> Result<Option<Read>, CallError> {
    // A list by name: a GET answers 404 for what is not there and for what is not served.
    let params = ListParams::default().fields(&format!("metadata.name={}", which.0.name()));
    for version in which.0.versions() {
        let api = Api::<DynamicObject>::all_with(client.clone(), &resource(kind_of(which), version));
        let list = match bounded(api.list(&params)).await {
            Err(error) if error.status() == Some(404) => continue,
            list => list?,
        };
        let found = list.items.into_iter().next().map(|object| {
            let generation = object.metadata.generation.unwrap_or_default();
            (object.data, generation)
        });
        return Ok(Some(Read { version, found }));
    }
    Ok(None)
}

/// What there is.
#[derive(Debug, Default)]
struct Found {
    generations: Generations,
    /// What is missing or not as it shall be.
    faults: Vec<String>,
    /// The kinds that the labelling policy names, while it is as it shall be.
    labelled: Option<BTreeSet<GroupResource>>,
    /// The version by which the API server serves the labelling policy's kind, if it does.
    served: Option<&'static str>,
}

impl Admission {
    /// Follows the plan until cancelled.
    pub(crate) async fn run(self, mut plan: watch::Receiver<Option<Arc<Plan>>>) {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
        loop {
            let Some(current) = plan.borrow_and_update().clone() else {
                if plan.changed().await.is_err() {
                    return;
                }
                continue;
            };
            match self.look(&current).await {
                Ok(found) => {
                    backoff.reset();
                    self.tell(&found.faults);
                    self.keep(found, &current, &mut plan).await;
                }
                Err(error) => {
                    if is_verdict(&error) {
                        self.uncover();
                        let told = format!(
                            "the agent cannot read the admission policies: {error}: run portolanctl join again"
                        );
                        self.tell(&[told]);
                    }
                    tracing::warn!(error = %Chain(&error), "cannot read the admission policies");
                    backoff.sleep().await;
                }
            }
        }
    }

    /// Reads all, and compares each with what it shall be for the hub's prefix and the kinds that it names itself: which
    /// kinds those are is the member's choice.
    #[tracing::instrument(name = "look_at_policies", skip_all)]
    async fn look(&self, plan: &Plan) -> Result<Found, CallError> {
        let mut found = Found::default();
        for policy in Policy::OF_LABELS {
            let Some(Read { version, found: object }) = read(&self.client, (policy, false)).await? else {
                continue;
            };
            if policy == Policy::Labels {
                found.served = Some(version);
            }
            let binding = read(&self.client, (policy, true)).await?.and_then(Read::into_found);
            let kinds = object.as_ref().and_then(|(object, _)| input_of(object));
            let input = PolicyInput {
                keys: plan.labelling.keys.clone(),
                kinds: kinds.map(|input| input.kinds).unwrap_or_default(),
            };
            let [wanted, wanted_binding] = policy.manifests(&input);
            let before = found.faults.len();
            found.compare((policy, false), &wanted, object);
            found.compare((policy, true), &wanted_binding, binding);
            if policy == Policy::Labels && found.faults.len() == before {
                found.faults.extend(unnamed(plan, &input.kinds));
                found.labelled = Some(input.kinds);
            }
        }
        Ok(found)
    }

    fn tell(&self, faults: &[String]) {
        let told = AdmissionPolicies {
            fault: faults.join("; "),
        };
        self.told.send_if_modified(|current| {
            let changed = current.as_ref() != Some(&told);
            if changed && !faults.is_empty() {
                tracing::warn!(fault = told.fault, "the admission policies are not as they shall be");
            }
            *current = Some(told);
            changed
        });
    }

    /// Returns when the policies must be looked at again.
    async fn keep(&self, found: Found, current: &Plan, plan: &mut watch::Receiver<Option<Arc<Plan>>>) {
        let Found {
            generations,
            labelled,
            served,
            ..
        } = found;
        let keys = current.labelling.keys.clone();
        tokio::select! {
            _ = plan.changed() => {}
            () = self.until_touched(&generations, served) => tokio::time::sleep(SETTLE).await,
            () = tokio::time::sleep(LOOK_AGAIN) => {}
            never = self.cover(served.is_some(), keys, labelled) => match never {},
        }
    }

    /// Says that the kinds are covered once the policy is seen to work, and goes on looking.
    async fn cover(&self, served: bool, keys: LabelKeys, labelled: Option<BTreeSet<GroupResource>>) -> Infallible {
        let Some(kinds) = labelled else {
            self.uncover();
            if !served {
                let reason = "it serves no MutatingAdmissionPolicy, as Kubernetes 1.36 does, and before where the beta is switched on";
                tracing::warn!(reason, "{UNCOVERED}");
            }
            return std::future::pending().await;
        };
        // New kinds count only once the policy has them; kinds that are gone do not matter.
        let is_known = |kind| self.covered.borrow().covers(kind, &keys);
        let known = kinds.iter().all(is_known);
        if !known {
            tokio::time::sleep(TAKES_EFFECT).await;
        }
        for probe in 0_u32.. {
            match self.works(&keys).await {
                Ok(true) => break,
                Ok(false) if probe == PROBES_BEFORE_WARNING => {
                    self.uncover();
                    tracing::warn!(reason = "it serves the policy and does not apply it", "{UNCOVERED}");
                }
                Ok(false) => {}
                Err(error) => tracing::warn!(error = %Chain(&error), "cannot find out whether the policy works"),
            }
            tokio::time::sleep(PROBE_PERIOD).await;
        }
        if !known {
            tracing::info!(kinds = kinds.len(), "new objects get their labels at admission");
        }
        self.covered.send_replace(Covered::by(keys, kinds));
        self.metrics.admission(true);
        std::future::pending().await
    }

    /// Takes a label off a labelled Namespace, as a dry run, and looks whether the policy puts it back.
    async fn works(&self, keys: &LabelKeys) -> Result<bool, CallError> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let params = PatchParams {
            dry_run: true,
            field_manager: Some(MANAGER_AGENT.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({ "metadata": { "labels": { keys.control(): null } } }));
        match bounded(namespaces.patch_metadata(PROBED, &params, &patch)).await {
            Ok(probed) => Ok(probed
                .metadata
                .labels
                .is_some_and(|labels| labels.contains_key(keys.control()))),
            // The reserving policy refuses it where the labelling one did nothing.
            Err(error) if error.status() == Some(403) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns when somebody changed, made or removed one of the objects.
    async fn until_touched(&self, generations: &Generations, served: Option<&str>) {
        let version = |policy: Policy| match policy {
            Policy::Labels => served,
            _ => policy.versions().first().copied(),
        };
        let policies = Policy::OF_LABELS
            .into_iter()
            .filter_map(|policy| Some((policy, version(policy)?)));
        let objects = policies.flat_map(|(policy, version)| [((policy, false), version), ((policy, true), version)]);
        let mut touches: SelectAll<BoxStream<'_, Touched>> =
            objects.map(|(which, version)| self.touches(which, version)).collect();
        while let Some((which, generation)) = touches.next().await {
            if generation != generations.get(&which).copied() {
                let (kind, name, gone) = (kind_of(which), which.0.name(), generation.is_none());
                tracing::info!(kind, name, gone, "somebody touched an admission policy, looking at it");
                if gone && which.0 == Policy::Labels {
                    self.uncover();
                }
                return;
            }
        }
    }

    fn touches(&self, which: Which, version: &str) -> BoxStream<'_, Touched> {
        let kind = kind_of(which);
        let objects = Api::<PartialObjectMeta<DynamicObject>>::all_with(self.client.clone(), &resource(kind, version));
        let config = watch_config().fields(&format!("metadata.name={}", which.0.name()));
        let mut seen = false;
        let touched = watcher(objects, config).default_backoff().filter_map(move |event| {
            let touched = match event {
                Ok(Event::Init) => {
                    seen = false;
                    None
                }
                Ok(Event::InitApply(object) | Event::Apply(object)) => {
                    seen = true;
                    Some(Some(object.metadata.generation.unwrap_or_default()))
                }
                // A list without it: it went while nobody watched.
                Ok(Event::InitDone) => (!seen).then_some(None),
                Ok(Event::Delete(_)) => Some(None),
                Err(error) => {
                    watch_broke(&self.metrics, Watched::policies, kind, &error);
                    None
                }
            };
            std::future::ready(touched.map(|generation| (which, generation)))
        });
        touched.boxed()
    }

    fn uncover(&self) {
        self.covered.send_replace(Covered::Nothing);
        self.metrics.admission(false);
    }
}

impl Found {
    fn compare(&mut self, which: Which, wanted: &Value, found: Option<(Value, i64)>) {
        let (kind, name) = (kind_of(which), which.0.name());
        let Some((found, generation)) = found else {
            self.faults
                .push(format!("{kind} {name} is missing: run portolanctl join again"));
            return;
        };
        self.generations.insert(which, generation);
        if let Some(path) = difference(wanted, &found) {
            self.faults.push(format!(
                "{kind} {name} is not what this agent's portolanctl writes ({path} differs): run portolanctl join again"
            ));
        }
    }
}

/// The planned kinds whose new objects the policy does not label.
fn unnamed(plan: &Plan, named: &BTreeSet<GroupResource>) -> Option<String> {
    let unnamed: Vec<_> = plan.kinds.keys().filter(|kind| !named.contains(kind)).collect();
    let first = unnamed.iter().take(NAMED_KINDS).map(ToString::to_string);
    let (names, more) = (
        first.collect::<Vec<_>>().join(", "),
        unnamed.len().saturating_sub(NAMED_KINDS),
    );
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    (!unnamed.is_empty()).then(|| {
        format!("the policies do not name {names}{more}: run portolanctl join again, with --label-kind for each")
    })
}

/// Removes the policies and bindings; what is absent is as good. With the rights of who runs it: the agent has none.
pub(crate) async fn remove(client: &Client) -> Result<(), CallError> {
    let bindings_first = Policy::ALL
        .into_iter()
        .rev()
        .flat_map(|policy| [(policy, true), (policy, false)]);
    let of_labels = bindings_first.flat_map(|which| {
        let versions = which.0.versions().iter();
        versions.map(move |version| (kind_of(which), which.0.name(), *version))
    });
    let injection = INJECTION
        .into_iter()
        .flat_map(|(kind, name)| INJECTION_VERSIONS.map(|version| (kind, name, version)));
    for (kind, name, version) in injection.chain(of_labels) {
        let api = Api::<DynamicObject>::all_with(client.clone(), &resource(kind, version));
        let params = DeleteParams::default();
        let deleted = api.delete(name, &params).map(|deleted| deleted.map(drop));
        match bounded(deleted).await {
            Err(error) if error.status() != Some(404) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Whether an error says that the policies are not as they shall be. Without an answer, or with one about the moment or
/// about us, nothing is known to be otherwise than it was, and routers would begin running watches anew for nothing.
fn is_verdict(error: &CallError) -> bool {
    let status = error.status();
    status.is_some_and(|status| status < 500 && !matches!(status, 401 | 408 | 409 | 429))
}

fn kind_of((policy, binding): Which) -> &'static str {
    policy.kinds()[usize::from(binding)]
}

fn resource(kind: &str, version: &str) -> ApiResource {
    // The plural of all four: "…policies" and "…bindings".
    let lower = kind.to_lowercase();
    let plural = lower
        .strip_suffix('y')
        .map_or_else(|| format!("{lower}s"), |stem| format!("{stem}ies"));
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, version, kind), &plural)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Routers begin watches anew for what is known to be otherwise, and not for an agent that has just started.
    #[test]
    fn what_nobody_has_looked_at_is_not_said() {
        let kind = |resource| GroupResource::new("", resource);
        let keys = LabelKeys::default();
        let covered = Covered::by(keys.clone(), BTreeSet::from([kind("pods")]));
        assert_eq!(covered.says(&kind("pods"), &keys), Some(true));
        assert_eq!(covered.says(&kind("secrets"), &keys), Some(false));
        // A policy that writes other keys, of before a change of the prefix.
        let others = LabelKeys::new("other.example/").unwrap();
        assert_eq!(covered.says(&kind("pods"), &others), Some(false));
        assert_eq!(Covered::Nothing.says(&kind("pods"), &keys), Some(false));
        assert_eq!(Covered::default().says(&kind("pods"), &keys), None);
    }

    #[test]
    fn resources_of_the_four_kinds() {
        let kinds = [Policy::Labels, Policy::Reserved].into_iter().flat_map(Policy::kinds);
        let plurals = kinds.map(|kind| resource(kind, "v1").plural);
        let expected = [
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
        ];
        assert!(plurals.eq(expected));
    }

    /// A member that holds these, and answers 404 for what it does not serve: of mutating policies all but these versions.
    fn holding(objects: Vec<Value>, mutating: &'static [&'static str]) -> Admission {
        let client = crate::testing::answering(move |_, path| {
            let is_served = mutating.iter().any(|version| path.contains(&format!("/{version}/")));
            if path.contains("/mutating") && !is_served {
                return Err(404);
            }
            let (_, plural) = path.split('?').next().unwrap_or_default().rsplit_once('/').unwrap();
            let is_here = |object: &&Value| resource(object["kind"].as_str().unwrap(), "v1").plural == plural;
            let items: Vec<_> = objects.iter().filter(is_here).collect();
            Ok(json!({"metadata": {}, "items": items}))
        });
        Admission {
            client,
            covered: watch::Sender::new(Covered::default()),
            told: watch::Sender::new(None),
            metrics: Metrics::default(),
        }
    }

    fn plan(kinds: &[&str]) -> Plan {
        let pods = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
        Plan {
            kinds: kinds
                .iter()
                .map(|kind| (GroupResource::new("", *kind), pods.clone()))
                .collect(),
            ..Plan::default()
        }
    }

    /// Of the labelling policy alone: the answers do not tell names apart.
    async fn faults(objects: Vec<Value>, kinds: &[&str]) -> Vec<String> {
        let found = holding(objects, &["v1"]).look(&plan(kinds)).await.unwrap();
        found
            .faults
            .into_iter()
            .filter(|fault| !fault.contains("Validating"))
            .collect()
    }

    #[tokio::test]
    async fn what_is_missing_or_changed_is_named_with_the_fix() {
        let input = PolicyInput {
            keys: LabelKeys::default(),
            kinds: [GroupResource::new("", "pods")].into(),
        };
        let [policy, binding] = Policy::Labels.manifests(&input);
        let whole = || vec![policy.clone(), binding.clone()];
        assert!(faults(whole(), &["pods"]).await.is_empty());
        let fewer = faults(whole(), &["pods", "secrets"]).await;
        assert!(
            fewer.len() == 1 && fewer[0].contains("do not name secrets:"),
            "{fewer:?}"
        );
        let gone = faults(vec![policy.clone()], &["pods"]).await;
        let named = "MutatingAdmissionPolicyBinding portolan-labels is missing: run portolanctl join";
        assert!(gone.len() == 1 && gone[0].starts_with(named), "{gone:?}");
        let mut changed = whole();
        changed[0]["spec"]["matchConditions"][0]["expression"] = json!("false");
        let changed = faults(changed, &["pods"]).await;
        assert!(
            changed.len() == 1 && changed[0].contains("(spec.matchConditions[0].expression differs)"),
            "{changed:?}"
        );
        let unserved = holding(whole(), &[]).look(&plan(&["pods"])).await.unwrap();
        assert!(unserved.served.is_none() && unserved.labelled.is_none());
        for (served, best) in [(&["v1beta1"][..], "v1beta1"), (&["v1beta1", "v1"], "v1")] {
            let found = holding(whole(), served).look(&plan(&["pods"])).await.unwrap();
            assert_eq!((found.served, found.labelled), (Some(best), Some(input.kinds.clone())));
        }
    }

    #[test]
    fn only_what_says_something_about_the_policies_takes_coverage_back() {
        let error = |code| {
            let status = kube::core::Status::failure("no", "Reason").with_code(code);
            CallError::Kube(kube::Error::Api(Box::new(status)))
        };
        for code in [400, 403, 404, 422] {
            assert!(is_verdict(&error(code)), "{code}");
        }
        for code in [401, 408, 409, 429, 500, 503] {
            assert!(!is_verdict(&error(code)), "{code}");
        }
        assert!(!is_verdict(&CallError::Timeout(crate::member::CALL_TIMEOUT)));
    }
}
