//! May this person use the explicit view of a member? The hub's own RBAC decides.
//!
//! One SubjectAccessReview per question; routers cache the answers. Caller: router sessions.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use portolan_crds::labels::{GROUP, VERSION};
use portolan_wire::v1;
use tokio::sync::Semaphore;

/// Questions under way at the API server; the rest is refused, so that a flood of people cannot pile up.
const MAX_REVIEWS: usize = 64;
/// An API server that takes longer is down for this purpose.
const TIMEOUT: Duration = Duration::from_secs(5);
/// What a person must be allowed to do with a MemberCluster.
const VERB: &str = "proxy";
const RESOURCE: &str = "memberclusters";

/// Asks the hub's API server. Clones share the bound.
#[derive(Clone)]
pub(crate) struct AccessReviewer {
    api: Api<SubjectAccessReview>,
    // A semaphore: bounds all sessions together.
    permits: Arc<Semaphore>,
}

impl AccessReviewer {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            api: Api::all(client),
            permits: Arc::new(Semaphore::new(MAX_REVIEWS)),
        }
    }

    /// Decides; what cannot be decided is refused, saying why.
    pub(crate) async fn review(&self, review: v1::AccessReview) -> v1::AccessDecision {
        let id = review.id;
        let (allowed, reason) = match self.ask(review).await {
            Ok(decision) => decision,
            Err(reason) => (false, reason),
        };
        v1::AccessDecision { id, allowed, reason }
    }

    async fn ask(&self, review: v1::AccessReview) -> Result<(bool, String), String> {
        let _permit = self
            .permits
            .try_acquire()
            .map_err(|_| "the hub has too many reviews under way".to_owned())?;
        let question = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(review.user),
                groups: Some(review.groups),
                resource_attributes: Some(ResourceAttributes {
                    group: Some(GROUP.to_owned()),
                    version: Some(VERSION.to_owned()),
                    resource: Some(RESOURCE.to_owned()),
                    verb: Some(VERB.to_owned()),
                    name: Some(review.cluster),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let asked = tokio::time::timeout(TIMEOUT, self.api.create(&PostParams::default(), &question)).await;
        let answer = match asked {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot review access");
                return Err("the hub's API server did not decide".to_owned());
            }
            Err(_) => return Err("the hub's API server did not decide in time".to_owned()),
        };
        let status = answer.status.unwrap_or_default();
        Ok((
            status.allowed && !status.denied.unwrap_or_default(),
            status.reason.unwrap_or_default(),
        ))
    }
}
