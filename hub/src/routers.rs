//! Routers that enrolled: a Router object for each, with the keys that are its own, for as long as it may go on.
//!
//! A certificate alone says too little: a stolen one names the router as well. So the object is asked for at each stream, all
//! the while that it is open, and at each renewal; whoever deletes it forgets the router, and a name that enrols anew has a
//! new object. The watch alone tells the index of objects, so that what is written here is waited for. Callers: `enroll`,
//! router sessions.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Error as KubeError, Resource};
use portolan_crds::{Router, RouterPod, RouterSpec};
use portolan_wire::subscription::Subscription;
use portolan_wire::v1;
use serde_json::json;
use tonic::Status;

use crate::facts::{PROCESS_ENDED, RouterObject};
use crate::index::{Change, Index};
use crate::vouched::Vouched;

/// Routers of a hub: each costs every member that it sees a Secret and a token.
const MAX_ROUTERS: usize = 1_000;
/// Attempts against concurrent writers of one object.
const ATTEMPTS: usize = 5;
/// For the watch to bring what was written: some milliseconds, where the API server is well.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

/// Reads and writes Router objects. Clones share everything.
#[derive(Clone)]
pub(crate) struct Routers {
    api: Api<Router>,
    pods: Api<Pod>,
    index: Arc<Index>,
    vouched: Vouched,
}

/// A router that asks for its first certificate.
#[derive(Debug)]
pub(crate) struct Enrolling<'a> {
    pub(crate) name: &'a str,
    pub(crate) key_hash: &'a str,
    pub(crate) subscription: &'a Subscription,
    /// The Pod that a member's agent vouched for.
    pub(crate) vouched_pod: Option<RouterPod>,
    /// The Pod that it says to run in.
    pub(crate) said_pod: Option<v1::RouterPod>,
    /// Uid of the object that was made for the same proof before.
    pub(crate) made: Option<&'a str>,
}

/// A router in good standing, by the key of its connection.
#[derive(Debug, Clone)]
pub(crate) struct Enrolled {
    pub(crate) name: String,
    key_hash: String,
    object: RouterObject,
}

impl Enrolled {
    /// Of its object.
    pub(crate) fn uid(&self) -> &str {
        &self.object.uid
    }

    /// What it may be told: what its object says, of which its certificate must not say less.
    pub(crate) fn subscription(&self, certified: &Subscription) -> Result<Subscription, Status> {
        let ours = self.object.subscription.as_ref();
        let ours = ours.filter(|ours| certified.covers(ours)).cloned();
        ours.ok_or_else(|| {
            Status::permission_denied(format!(
                "spec.subscription of Router {} is nothing that the router's certificate says ({}): enrol it anew with a token \
                 from portolanctl router-token",
                self.name,
                certified.scopes().join(",")
            ))
        })
    }
}

impl Routers {
    pub(crate) fn new(client: Client, namespace: &str, index: Arc<Index>, vouched: Vouched) -> Self {
        Self {
            api: Api::namespaced(client.clone(), namespace),
            pods: Api::namespaced(client, namespace),
            index,
            vouched,
        }
    }

    /// The router of this name, if it may go on with this key.
    pub(crate) fn check(&self, name: &str, key_hash: &str) -> Result<Enrolled, Status> {
        self.vouched.check_router(name)?;
        let object = self.index.read(|facts| facts.routers.get(name).cloned());
        let object = object.ok_or_else(|| forgotten(name))?;
        if !object.key_hashes.iter().any(|known| known == key_hash) {
            return Err(stranger(name));
        }
        Ok(Enrolled {
            name: name.to_owned(),
            key_hash: key_hash.to_owned(),
            object,
        })
    }

    /// Completes when `router` may not go on, with the reason.
    pub(crate) async fn until_gone(self, router: Enrolled) -> Status {
        let mut changes = self.index.compile_changes();
        loop {
            changes.borrow_and_update();
            match self.check(&router.name, &router.key_hash) {
                Ok(now) if now.object.uid != router.object.uid => return forgotten(&router.name),
                Ok(now) if now.object.subscription != router.object.subscription => {
                    return Status::aborted(format!("spec.subscription of Router {} was changed", router.name));
                }
                Ok(_) => {}
                Err(status) => return status,
            }
            // The sender lives in the index, so this cannot fail.
            let _ = changes.changed().await;
        }
    }

    /// Makes the router's object, in place of one of another key; returns its uid once the index knows it. A repetition with
    /// the same key and proof finds what it made before.
    pub(crate) async fn enrol(&self, router: Enrolling<'_>) -> Result<String, Status> {
        let object = self.object_of(&router).await?;
        for _ in 0..ATTEMPTS {
            let present = self.api.get_opt(router.name).await.map_err(|error| broken(&error))?;
            if let Some(uid) = present.as_ref().and_then(|present| same(present, &object.spec)) {
                return match router.made {
                    Some(made) if made != uid => Err(over(router.name)),
                    _ => self.known(router.name, uid, router.key_hash).await,
                };
            }
            if router.made.is_some() {
                return Err(over(router.name));
            }
            match self.replace(present, &object).await {
                Ok(made) => {
                    let uid = made.metadata.uid.unwrap_or_default();
                    self.index.write(|facts| {
                        facts.enrolled_here.insert(uid.clone());
                        Change::Nothing
                    });
                    tracing::info!(router = router.name, key = router.key_hash, "router enrolled");
                    return self.known(router.name, uid, router.key_hash).await;
                }
                Err(KubeError::Api(status)) if [404, 409].contains(&status.code) => {}
                Err(error) => return Err(broken(&error)),
            }
        }
        Err(Status::unavailable(format!(
            "Router {} is changed too often by others, or stays although it was deleted (see its metadata.finalizers)",
            router.name
        )))
    }

    async fn replace(&self, present: Option<Router>, object: &Router) -> kube::Result<Router> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        if let Some(present) = present {
            let this_one = Preconditions {
                uid: present.metadata.uid,
                resource_version: None,
            };
            tracing::info!(
                router = name,
                "a router of this name enrols anew: the one before is forgotten"
            );
            let params = DeleteParams::default().preconditions(this_one);
            self.api.delete(name, &params).await?;
        }
        self.api.create(&PostParams::default(), object).await
    }

    async fn object_of(&self, router: &Enrolling<'_>) -> Result<Router, Status> {
        let name = router.name;
        let others = self
            .index
            .read(|facts| facts.routers.keys().filter(|other| *other != name).count());
        if others >= MAX_ROUTERS {
            return Err(Status::resource_exhausted(format!(
                "there are {MAX_ROUTERS} routers already: forget those that are gone, with portolanctl router forget"
            )));
        }
        let spec = RouterSpec {
            key_hashes: vec![router.key_hash.to_owned()],
            subscription: router.subscription.scopes(),
            pod: router.vouched_pod.clone(),
        };
        let mut object = Router::new(name, spec);
        if let Some(said) = &router.said_pod
            && let Some(owner) = self.pod_of_hub(said).await?
        {
            object.spec.pod = Some(RouterPod {
                cluster: None,
                name: owner.name.clone(),
                uid: owner.uid.clone(),
            });
            object.metadata.owner_references = Some(vec![owner]);
        }
        Ok(object)
    }

    /// The Pod, if it runs in the hub's own namespace: Kubernetes deletes with it what it owns.
    async fn pod_of_hub(&self, said: &v1::RouterPod) -> Result<Option<OwnerReference>, Status> {
        if !portolan_crds::names::is_dns_subdomain(&said.name) || said.uid.is_empty() {
            return Err(Status::invalid_argument("pod: needs name and uid, or leave it out"));
        }
        let pod = self.pods.get_opt(&said.name).await.map_err(|error| broken(&error))?;
        let pod = pod.filter(|pod| pod.metadata.uid.as_ref() == Some(&said.uid));
        Ok(pod.and_then(|pod| pod.owner_ref(&())))
    }

    /// Moves the pin on to the key that is about to be certified; the present one is good until the router has shown the new.
    pub(crate) async fn renew(&self, router: &Enrolled, issued: &str) -> Result<(), Status> {
        let keys = [issued, &router.key_hash];
        let keys = if issued == router.key_hash {
            &keys[..1]
        } else {
            &keys[..]
        };
        self.pin(router, keys).await?;
        self.known(&router.name, router.object.uid.clone(), issued)
            .await
            .map(drop)
    }

    /// The router has shown its newest key: those before it are nobody's any more.
    pub(crate) async fn seen(&self, router: &Enrolled) {
        let keys = &router.object.key_hashes;
        if keys.len() > 1
            && keys[0] == router.key_hash
            && let Err(status) = self.pin(router, &[&router.key_hash]).await
        {
            // The next stream tries again.
            tracing::warn!(
                router = router.name,
                reason = status.message(),
                "an older key stays good"
            );
        }
    }

    /// The router has ended for good, and its name is free. Where its object cannot be deleted people forget it.
    pub(crate) async fn forget(self, router: Enrolled) {
        // Whoever sees the object go is to know that it ended in order.
        let ended = json!({"metadata": {"uid": router.object.uid}, "status": {"process": PROCESS_ENDED}});
        let params = PatchParams::default();
        let marked = self
            .api
            .patch_status(&router.name, &params, &Patch::Merge(&ended))
            .await;
        if let Err(error) = marked {
            tracing::warn!(router = router.name, %error, "a router ended, and its status does not tell");
        }
        let this_one = Preconditions {
            uid: Some(router.object.uid),
            resource_version: None,
        };
        let params = DeleteParams::default().preconditions(this_one);
        match self.api.delete(&router.name, &params).await {
            Ok(_) => tracing::info!(router = router.name, "router ended and is forgotten"),
            Err(KubeError::Api(status)) if [404, 409].contains(&status.code) => {}
            Err(error) => tracing::warn!(router = router.name, %error, "a router ended and stays on record"),
        }
    }

    async fn pin(&self, router: &Enrolled, keys: &[&str]) -> Result<(), Status> {
        let wanted: Vec<_> = keys.iter().map(|&key| key.to_owned()).collect();
        for _ in 0..ATTEMPTS {
            let present = self.api.get_opt(&router.name).await.map_err(|error| broken(&error))?;
            let present = present.filter(|present| {
                present.metadata.deletion_timestamp.is_none()
                    && present.metadata.uid.as_ref() == Some(&router.object.uid)
            });
            let mut object = present.ok_or_else(|| forgotten(&router.name))?;
            if !object.spec.key_hashes.contains(&router.key_hash) {
                return Err(stranger(&router.name));
            }
            if object.spec.key_hashes == wanted {
                return Ok(());
            }
            object.spec.key_hashes.clone_from(&wanted);
            match self.api.replace(&router.name, &PostParams::default(), &object).await {
                Ok(_) => return Ok(()),
                Err(KubeError::Api(status)) if [404, 409].contains(&status.code) => {}
                Err(error) => return Err(broken(&error)),
            }
        }
        Err(Status::unavailable(format!(
            "Router {} is changed too often by others",
            router.name
        )))
    }

    /// Waits until the index knows the object with this key: the router comes back at once, and is not to be refused.
    async fn known(&self, name: &str, uid: String, key_hash: &str) -> Result<String, Status> {
        let mut changes = self.index.compile_changes();
        let known = async {
            loop {
                changes.borrow_and_update();
                let is_known = self.index.read(|facts| {
                    let router = facts.routers.get(name).filter(|router| router.uid == uid);
                    router.is_some_and(|router| router.key_hashes.iter().any(|known| known == key_hash))
                });
                if is_known || changes.changed().await.is_err() {
                    return;
                }
            }
        };
        let known = tokio::time::timeout(SEEN_WITHIN, known).await;
        known.map_err(|_| {
            Status::unavailable(format!("the hub's watch does not tell of Router {name} yet: try again"))
        })?;
        Ok(uid)
    }
}

/// The uid of an object of this very router.
fn same(present: &Router, wanted: &RouterSpec) -> Option<String> {
    let is_same = present.metadata.deletion_timestamp.is_none()
        && present.spec.subscription == wanted.subscription
        && present.spec.key_hashes == wanted.key_hashes;
    present.metadata.uid.clone().filter(|_| is_same)
}

fn forgotten(name: &str) -> Status {
    Status::permission_denied(format!(
        "router {name} was forgotten (there is no Router {name} on the hub, or another one by now): if it is to serve again, \
         enrol it anew with a token from portolanctl router-token {name} and an empty state folder"
    ))
}

fn stranger(name: &str) -> Status {
    Status::permission_denied(format!(
        "the certificate's key is not the one that router {name} enrolled or renewed with last: two programs use its \
         identity, or it was stolen; if so, run portolanctl router forget {name} and enrol it anew with an empty state folder"
    ))
}

/// A bootstrap token whose router was forgotten.
fn over(name: &str) -> Status {
    Status::permission_denied(format!(
        "bootstrapToken: router {name} enrolled with this token and was forgotten since: make a new one with portolanctl \
         router-token {name}"
    ))
}

fn broken(error: &KubeError) -> Status {
    tracing::error!(%error, "cannot read or write a Router");
    Status::unavailable("the hub cannot record routers now: try again")
}
