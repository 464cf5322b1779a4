//! The requests behind a Greeting: applies its children, reports its status, and cleans up when it goes. What is wanted
//! is in `children`, what is said in `status`; the controller in `main` calls this.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType, Recorder};
use kube::runtime::finalizer::{self, finalizer};
use kube::{Api, Client, Resource, ResourceExt as _};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use thiserror::Error;
use tracing::warn;

use crate::children;
use crate::greeting::{Greeting, GreetingStatus, NAME};
use crate::status;

/// Keeps a Greeting until its guestbook entry is gone.
const FINALIZER: &str = "greetings.example.com/guestbook";
/// After a first failure, and at most, doubling in between: a recovery is seen soon, and what stays broken costs nearly
/// nothing.
const FIRST_RETRY: Duration = Duration::from_secs(2);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// What reconciling needs.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
    /// Image of the Pods that say a Greeting.
    pub(crate) image: String,
    pub(crate) failures: Failures,
}

/// Failures in a row, by the uid of the Greeting. A mutex: held for one look.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<HashMap<String, u32>>);

impl Failures {
    /// One more; when to try again.
    fn failed(&self, uid: &str) -> Duration {
        let mut failures = self.0.lock();
        let count = failures.entry(uid.to_owned()).or_default();
        let retry = FIRST_RETRY.saturating_mul(1 << (*count).min(16)).min(LAST_RETRY);
        *count += 1;
        retry
    }

    fn succeeded(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}

/// Why a reconcile failed.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error("the Greeting has no {0}")]
    Incomplete(&'static str),
    #[error("cannot {what}: {}", told(source))]
    Request { what: &'static str, source: kube::Error },
    #[error(transparent)]
    Finalizer(#[from] Box<finalizer::Error<Error>>),
}

impl Error {
    fn of(what: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Request { what, source }
    }
}

/// Brings one Greeting's children and status up to date, or says farewell.
pub(crate) async fn reconcile(greeting: Arc<Greeting>, context: Arc<Context>) -> Result<Action, Error> {
    let namespace = greeting.namespace().ok_or(Error::Incomplete("namespace"))?;
    let greetings: Api<Greeting> = Api::namespaced(context.client.clone(), &namespace);
    let uid = greeting.uid().unwrap_or_default();
    let work = async |event| match event {
        finalizer::Event::Apply(greeting) => context.greet(&greeting, &namespace).await,
        finalizer::Event::Cleanup(greeting) => context.farewell(&greeting, &namespace).await,
    };
    let done = finalizer(&greetings, FINALIZER, greeting, work)
        .await
        .map_err(|error| Error::Finalizer(Box::new(error)))?;
    context.failures.succeeded(&uid);
    Ok(done)
}

/// Tries again, later each time.
pub(crate) fn on_error(greeting: Arc<Greeting>, _: &Error, context: Arc<Context>) -> Action {
    Action::requeue(context.failures.failed(&greeting.uid().unwrap_or_default()))
}

impl Context {
    async fn greet(&self, greeting: &Greeting, namespace: &str) -> Result<Action, Error> {
        let now = Time(Timestamp::now());
        let deployment = match self.apply_children(greeting, namespace).await {
            Ok(deployment) => deployment,
            Err(error) => {
                let why = error.to_string();
                self.tell(greeting, EventType::Warning, ["ApplyFailed", "Apply"], why.clone())
                    .await;
                let found = status::of_failure(greeting, &why, &now);
                if let Err(error) = self.report(greeting, namespace, found).await {
                    warn!(%error, "the failure cannot be reported either");
                }
                return Err(error);
            }
        };
        let found = status::of_children(greeting, &deployment, &now);
        self.report(greeting, namespace, found).await?;
        if status::is_news(greeting) {
            let (name, message) = (greeting.name_any(), &greeting.spec.message);
            let note = format!("ConfigMap and Deployment {name} say {message:?}");
            self.tell(greeting, EventType::Normal, ["Greeted", "Apply"], note).await;
        }
        Ok(Action::await_change())
    }

    /// Applies everything a Greeting wants; returns the Deployment as the API server has it.
    async fn apply_children(&self, greeting: &Greeting, namespace: &str) -> Result<Deployment, Error> {
        let owner = children::owner(greeting).ok_or(Error::Incomplete("uid"))?;
        let config_map = children::config_map(greeting, &owner);
        self.apply::<ConfigMap>(namespace, &config_map, NAME)
            .await
            .map_err(Error::of("apply the ConfigMap"))?;
        let deployment = children::deployment(greeting, &owner, &self.image);
        let deployment = self
            .apply(namespace, &deployment, NAME)
            .await
            .map_err(Error::of("apply the Deployment"))?;
        self.apply::<ConfigMap>(namespace, &children::entry(greeting), &children::signer(greeting))
            .await
            .map_err(Error::of("apply the guestbook entry"))?;
        Ok(deployment)
    }

    async fn apply<K>(&self, namespace: &str, object: &Value, manager: &str) -> kube::Result<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let params = PatchParams::apply(manager).force();
        api.patch(name, &params, &Patch::Apply(object)).await
    }

    /// Applies the status if it is not so already.
    async fn report(&self, greeting: &Greeting, namespace: &str, found: GreetingStatus) -> Result<(), Error> {
        if greeting.status.as_ref() == Some(&found) {
            return Ok(());
        }
        // With the uid, a Greeting made anew under this name in the meantime does not get the status of the old one.
        let body = json!({
            "apiVersion": Greeting::api_version(&()), "kind": Greeting::kind(&()),
            "metadata": {"name": greeting.name_any(), "uid": greeting.uid()},
            "status": found,
        });
        let greetings: Api<Greeting> = Api::namespaced(self.client.clone(), namespace);
        let params = PatchParams::apply(NAME).force();
        match greetings
            .patch_status(&greeting.name_any(), &params, &Patch::Apply(body))
            .await
        {
            Err(error) if !is_gone(&error) => Err(Error::of("report the status")(error)),
            _ => Ok(()),
        }
    }

    /// Takes the entry out of the guestbook, which no owner reference can do; the finalizer lets the Greeting go then.
    /// Its own ConfigMap and Deployment are the garbage collector's.
    async fn farewell(&self, greeting: &Greeting, namespace: &str) -> Result<Action, Error> {
        // Not an apply: in a namespace that is being deleted it would create the guestbook again, be refused for ever,
        // and keep the namespace.
        let books: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let params = PatchParams {
            field_manager: Some(children::signer(greeting)),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(children::no_entry(greeting));
        match books.patch(children::GUESTBOOK, &params, &patch).await {
            Err(error) if !is_gone(&error) => return Err(Error::of("take the entry out of the guestbook")(error)),
            _ => {}
        }
        let note = format!("{} left the guestbook", greeting.name_any());
        self.tell(greeting, EventType::Normal, ["Farewell", "Cleanup"], note)
            .await;
        Ok(Action::await_change())
    }

    /// Publishes an Event; nothing fails for want of one.
    async fn tell(&self, greeting: &Greeting, type_: EventType, [reason, action]: [&str; 2], note: String) {
        let event = Event {
            type_,
            reason: reason.to_owned(),
            action: action.to_owned(),
            note: Some(note),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, &greeting.object_ref(&())).await {
            warn!(error = told(&error), reason, "an Event could not be published");
        }
    }
}

/// What the API server said, for people; the error itself prints the whole Status.
fn told(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_come_later_each_time_and_soon_again_after_a_success() {
        let failures = Failures::default();
        let seconds: Vec<_> = (0..40).map(|_| failures.failed("a").as_secs()).collect();
        assert_eq!(seconds[..5], [2, 4, 8, 16, 30]);
        assert_eq!(seconds[39], 30);
        assert_eq!(failures.failed("b"), FIRST_RETRY);
        failures.succeeded("a");
        assert_eq!(failures.failed("a"), FIRST_RETRY);
    }
}
