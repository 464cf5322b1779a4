//! May this user do this with a member? The hub's own RBAC decides: the verb `proxy` for the explicit view, `shard` for who
//! writes ShardingConfigs.
//!
//! One SubjectAccessReview per question; routers cache the answers. Callers: router sessions, `authors`.

use std::collections::BTreeMap;
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
/// What a person must be allowed to do with a MemberCluster to use its explicit view.
const PROXY: &str = "proxy";
pub(crate) const RESOURCE: &str = "memberclusters";

/// Asks the hub's API server. Clones share the bound.
#[derive(Clone)]
pub(crate) struct AccessReviewer {
    api: Api<SubjectAccessReview>,
    // A semaphore: bounds all sessions together.
    permits: Arc<Semaphore>,
}

/// Whether somebody may do something with member clusters.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) user: String,
    pub(crate) uid: Option<String>,
    pub(crate) groups: Vec<String>,
    pub(crate) extra: Option<BTreeMap<String, Vec<String>>>,
    pub(crate) verb: &'static str,
    /// `None`: with all of them.
    pub(crate) cluster: Option<String>,
}

/// What the API server says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) allowed: bool,
    pub(crate) reason: String,
}

impl AccessReviewer {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            api: Api::all(client),
            permits: Arc::new(Semaphore::new(MAX_REVIEWS)),
        }
    }

    /// Decides whether a person may use the explicit view; what cannot be decided is refused, saying why.
    pub(crate) async fn review(&self, review: v1::AccessReview) -> v1::AccessDecision {
        let id = review.id;
        let decision = match self.permits.try_acquire() {
            Ok(_permit) => self.decide(proxy(review)).await,
            Err(_) => Err("the hub has too many reviews under way".to_owned()),
        };
        let Decision { allowed, reason } = decision.unwrap_or_else(|reason| Decision { allowed: false, reason });
        v1::AccessDecision { id, allowed, reason }
    }

    /// Asks at once, whatever else is under way; the caller bounds how often. `Err`: nobody decided.
    pub(crate) async fn decide(&self, question: Question) -> Result<Decision, String> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(question.user),
                uid: question.uid,
                groups: Some(question.groups),
                extra: question.extra,
                resource_attributes: Some(ResourceAttributes {
                    group: Some(GROUP.to_owned()),
                    version: Some(VERSION.to_owned()),
                    resource: Some(RESOURCE.to_owned()),
                    verb: Some(question.verb.to_owned()),
                    name: question.cluster,
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let asked = tokio::time::timeout(TIMEOUT, self.api.create(&PostParams::default(), &review)).await;
        let answer = match asked {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot review access");
                return Err("the hub's API server did not decide".to_owned());
            }
            Err(_) => return Err("the hub's API server did not decide in time".to_owned()),
        };
        let status = answer.status.unwrap_or_default();
        Ok(Decision {
            allowed: status.allowed && !status.denied.unwrap_or_default(),
            reason: status.reason.unwrap_or_default(),
        })
    }
}

fn proxy(review: v1::AccessReview) -> Question {
    Question {
        user: review.user,
        uid: None,
        groups: review.groups,
        extra: None,
        verb: PROXY,
        cluster: Some(review.cluster),
    }
}
