//! Installs the admission policies (`policy`) in the member, keeps them as they shall be, and says for which kinds new
//! objects get their labels at admission.
//!
//! Where the API server has no MutatingAdmissionPolicy v1 (before Kubernetes 1.36), or has it switched off, the sweep
//! alone labels, a moment after creation, and coverage is never complete. Callers: `app` runs it; `sweep` asks [`Covered`].

pub(crate) mod policy;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DeleteParams, Patch, PatchParams, PostParams};
use kube::core::{DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Event, watcher};
use kube::{Api, Client};
use portolan_crds::GroupResource;
use portolan_crds::labels::{LabelKeys, MANAGER_AGENT, POLICY_LABELS, POLICY_RESERVED, SERVICE_ACCOUNT_AGENT};
use portolan_runtime::Chain;
use portolan_runtime::backoff::{Backoff, until_ok};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::explain::watch_broke;
use crate::label::Plan;
use crate::member::{CallError, bounded, watch_config};
use crate::metrics::{Metrics, Watched};
use policy::PolicyInput;

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
/// Tries to write one of our objects while somebody else writes it.
const WRITE_TRIES: u32 = 5;
/// Changes that come together are answered once.
const SETTLE: Duration = Duration::from_millis(200);

const GROUP: &str = "admissionregistration.k8s.io";
const MUTATING: [&str; 2] = ["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"];
const VALIDATING: [&str; 2] = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];

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

/// Installs and keeps the policies.
pub(crate) struct Admission {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) covered: watch::Sender<Covered>,
    pub(crate) metrics: Metrics,
}

/// What was written, by kind of object: the generation that the API server gave it.
type Generations = BTreeMap<String, i64>;

/// What somebody did to one of our objects: the kind, and its generation unless it is gone.
type Touched = (String, Option<i64>);

/// Whether the mutating policy could be installed.
#[derive(Debug, PartialEq, Eq)]
enum Installed {
    Both(Generations),
    /// The API server does not serve the mutating one.
    ReservingOnly(Generations),
}

impl Admission {
    /// Follows the plan until cancelled.
    pub(crate) async fn run(self, mut plan: watch::Receiver<Option<Arc<Plan>>>) {
        let agents = self.agents().await;
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
        loop {
            let Some(current) = plan.borrow_and_update().clone() else {
                if plan.changed().await.is_err() {
                    return;
                }
                continue;
            };
            let input = PolicyInput {
                keys: current.labelling.keys.clone(),
                kinds: current.kinds.keys().cloned().collect(),
                agents: agents.clone(),
            };
            match self.install(&input).await {
                Ok(installed) => {
                    backoff.reset();
                    self.keep(installed, input, &mut plan).await;
                }
                Err(error) => {
                    if is_verdict(&error) {
                        self.uncover();
                    }
                    tracing::warn!(error = %Chain(&error), "admission policies are not installed yet");
                    backoff.sleep().await;
                }
            }
        }
    }

    /// Our own user name, and the one that is meant to be ours.
    async fn agents(&self) -> BTreeSet<String> {
        let meant = format!("system:serviceaccount:{}:{SERVICE_ACCOUNT_AGENT}", self.namespace);
        let user = until_ok("find out the agent's own user name", || who_am_i(&self.client)).await;
        if user != meant {
            tracing::warn!(user, meant, "the label keys are reserved for this other user too");
        }
        BTreeSet::from([user, meant])
    }

    #[tracing::instrument(name = "install_policies", skip_all, fields(kinds = input.kinds.len()))]
    async fn install(&self, input: &PolicyInput) -> Result<Installed, CallError> {
        let mut generations = self.put_all(policy::reserving(input)).await?;
        match self.put_all(policy::labelling(input)).await {
            Ok(mutating) => {
                generations.extend(mutating);
                Ok(Installed::Both(generations))
            }
            Err(error) if error.status() == Some(404) => Ok(Installed::ReservingOnly(generations)),
            Err(error) => Err(error),
        }
    }

    async fn put_all(&self, objects: [Value; 2]) -> Result<Generations, CallError> {
        let mut generations = Generations::new();
        for object in objects {
            let kind = object["kind"].as_str().unwrap_or_default().to_owned();
            let generation = self.put(&kind, object).await?;
            generations.insert(kind, generation);
        }
        Ok(generations)
    }

    /// Creates or replaces, whole: an apply would leave in place what somebody else has added to a list. Replacing by
    /// the same changes nothing, not even the generation.
    async fn put(&self, kind: &str, mut object: Value) -> Result<i64, CallError> {
        let (name, params) = (
            name_of(kind),
            PostParams {
                field_manager: Some(MANAGER_AGENT.to_owned()),
                ..PostParams::default()
            },
        );
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &resource(kind));
        let mut tries = 0;
        loop {
            tries += 1;
            let known = bounded(api.get_metadata_opt(name)).await?;
            let version = known.map(|known| known.metadata.resource_version);
            object["metadata"]["resourceVersion"] = version.clone().flatten().into();
            let wanted = dynamic(object.clone())?;
            let (written, overtaken) = match version {
                Some(_) => (
                    bounded(api.replace(name, &params, &wanted)).await,
                    [404, 409].as_slice(),
                ),
                // 404 here says that the kind is not served.
                None => (bounded(api.create(&params, &wanted)).await, [409].as_slice()),
            };
            match written {
                Ok(written) => return Ok(written.metadata.generation.unwrap_or_default()),
                // Somebody wrote, made or deleted it since it was read.
                Err(error) if tries < WRITE_TRIES && error.status().is_some_and(|code| overtaken.contains(&code)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns when the policies must be looked at again.
    async fn keep(&self, installed: Installed, input: PolicyInput, plan: &mut watch::Receiver<Option<Arc<Plan>>>) {
        let (generations, served) = match installed {
            Installed::Both(generations) => (generations, true),
            Installed::ReservingOnly(generations) => (generations, false),
        };
        tokio::select! {
            _ = plan.changed() => {}
            () = self.until_touched(&generations, served) => tokio::time::sleep(SETTLE).await,
            () = tokio::time::sleep(LOOK_AGAIN) => {}
            never = self.cover(served, input) => match never {},
        }
    }

    /// Says that the kinds are covered once the policy is seen to work, and goes on looking.
    async fn cover(&self, served: bool, input: PolicyInput) -> Infallible {
        if !served {
            self.uncover();
            tracing::warn!(
                reason = "it serves no MutatingAdmissionPolicy v1, as Kubernetes 1.36 does",
                "{UNCOVERED}"
            );
            return std::future::pending().await;
        }
        // New kinds count only once the policy has them; kinds that are gone do not matter.
        let is_known = |kind| self.covered.borrow().covers(kind, &input.keys);
        let known = input.kinds.iter().all(is_known);
        if !known {
            tokio::time::sleep(TAKES_EFFECT).await;
        }
        for probe in 0_u32.. {
            match self.works(&input.keys).await {
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
            tracing::info!(kinds = input.kinds.len(), "new objects get their labels at admission");
        }
        self.covered.send_replace(Covered::by(input.keys, input.kinds));
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

    /// Returns when somebody changed or removed one of our objects.
    async fn until_touched(&self, generations: &Generations, served: bool) {
        let kinds = VALIDATING.into_iter().chain(MUTATING.into_iter().filter(|_| served));
        let mut touches: SelectAll<BoxStream<'_, Touched>> = kinds.map(|kind| self.touches(kind)).collect();
        while let Some((kind, generation)) = touches.next().await {
            if generation != generations.get(&kind).copied() {
                let gone = generation.is_none();
                tracing::warn!(kind, gone, "somebody touched an admission policy, putting it back");
                if gone && MUTATING.contains(&kind.as_str()) {
                    self.uncover();
                }
                return;
            }
        }
    }

    fn touches(&self, kind: &'static str) -> BoxStream<'_, Touched> {
        let objects = Api::<PartialObjectMeta<DynamicObject>>::all_with(self.client.clone(), &resource(kind));
        let config = watch_config().fields(&format!("metadata.name={}", name_of(kind)));
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
            std::future::ready(touched.map(|generation| (kind.to_owned(), generation)))
        });
        touched.boxed()
    }

    fn uncover(&self) {
        self.covered.send_replace(Covered::Nothing);
        self.metrics.admission(false);
    }
}

/// Removes the policies and bindings; what is absent is as good.
pub(crate) async fn remove(client: &Client) -> Result<(), CallError> {
    for kind in MUTATING.into_iter().rev().chain(VALIDATING.into_iter().rev()) {
        let api = Api::<DynamicObject>::all_with(client.clone(), &resource(kind));
        match bounded(
            api.delete(name_of(kind), &DeleteParams::default())
                .map(|deleted| deleted.map(drop)),
        )
        .await
        {
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

async fn who_am_i(client: &Client) -> Result<String, CallError> {
    let reviews = Api::<SelfSubjectReview>::all(client.clone());
    let review = bounded(reviews.create(&PostParams::default(), &SelfSubjectReview::default())).await?;
    let user = review.status.and_then(|status| status.user_info);
    Ok(user.and_then(|user| user.username).unwrap_or_default())
}

fn resource(kind: &str) -> ApiResource {
    // The plural of all four: "…policies" and "…bindings".
    let lower = kind.to_lowercase();
    let plural = lower
        .strip_suffix('y')
        .map_or_else(|| format!("{lower}s"), |stem| format!("{stem}ies"));
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, "v1", kind), &plural)
}

fn name_of(kind: &str) -> &'static str {
    if MUTATING.contains(&kind) {
        POLICY_LABELS
    } else {
        POLICY_RESERVED
    }
}

fn dynamic(object: Value) -> Result<DynamicObject, CallError> {
    serde_json::from_value(object).map_err(|error| CallError::Kube(kube::Error::SerdeError(error)))
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
        let plurals = MUTATING.into_iter().chain(VALIDATING).map(|kind| resource(kind).plural);
        let expected = [
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
        ];
        assert!(plurals.eq(expected));
    }

    fn admission(client: Client) -> Admission {
        Admission {
            client,
            namespace: "system".to_owned(),
            covered: watch::Sender::new(Covered::default()),
            metrics: Metrics::default(),
        }
    }

    /// A policy that is there when it is first read; what the writes are answered.
    fn overtaken(replaced: u16) -> Client {
        let reads = std::sync::atomic::AtomicU32::new(0);
        let writes = std::sync::atomic::AtomicU32::new(0);
        crate::testing::answering(move |method, _| {
            let count =
                |counter: &std::sync::atomic::AtomicU32| counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let written = json!({"metadata": {"name": POLICY_LABELS, "resourceVersion": "1", "generation": 7}});
            match method.as_str() {
                "GET" if replaced == 404 && count(&reads) > 0 => Err(404),
                "PUT" if count(&writes) == 0 => Err(replaced),
                _ => Ok(written),
            }
        })
    }

    #[tokio::test]
    async fn who_was_overtaken_by_somebody_writes_again() {
        for replaced in [404, 409] {
            let object = json!({"metadata": {"name": POLICY_LABELS}});
            let written = admission(overtaken(replaced)).put(MUTATING[0], object).await;
            assert_eq!(written.ok(), Some(7), "{replaced}");
        }
        let unserved = crate::testing::answering(|_, _| Err(404));
        let written = admission(unserved).put(MUTATING[0], json!({"metadata": {}})).await;
        assert_eq!(written.unwrap_err().status(), Some(404));
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
