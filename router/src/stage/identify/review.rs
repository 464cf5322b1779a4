//! Asks the member that signed a token whether it is still good: one TokenReview, with the router's own credential.
//! No other member is ever asked. Caller: `identify`, behind its cache.

use std::sync::Arc;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use portolan_crds::names::service_account_user;

use super::token::Reviewed;
use crate::resource::access::{self, MemberApi};
use crate::resource::queues::Turn;
use crate::value::fault::Fault;

const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// Confirms `claimed`, which the signature already vouches for. 401 if the member does not know it any more, 503 if
/// the member cannot be asked.
pub(super) async fn review(
    members: Arc<dyn MemberApi>,
    token: String,
    claimed: Reviewed,
) -> Result<Arc<Reviewed>, Fault> {
    let cluster = claimed.key.home_cluster.clone();
    let question = TokenReview {
        spec: TokenReviewSpec {
            token,
            audiences: claimed.audience.clone().map(|audience| vec![audience]),
        },
        ..TokenReview::default()
    };
    let answer: TokenReview = access::ask(&*members, &cluster, PATH, Turn::First, &question).await?;
    match confirm(&claimed, answer.status.unwrap_or_default()) {
        Ok(()) => Ok(Arc::new(claimed)),
        Err(reason) => Err(Fault::Unauthenticated(format!(
            "member {cluster} does not accept the token: {reason}"
        ))),
    }
}

/// The member's word against the token's. Its `error` is not repeated: API servers quote what they were given.
fn confirm(claimed: &Reviewed, status: TokenReviewStatus) -> Result<(), &'static str> {
    if status.authenticated != Some(true) {
        return Err("it is expired or invalid there, or its Pod or ServiceAccount is gone");
    }
    if let Some(audience) = &claimed.audience
        && !status.audiences.unwrap_or_default().contains(audience)
    {
        return Err("it is for another audience");
    }
    let user = status.user.unwrap_or_default();
    let expected = service_account_user(&claimed.namespace, &claimed.service_account);
    if user.username.as_deref() != Some(&expected) {
        return Err("it belongs to another ServiceAccount than it says");
    }
    let extra = user.extra.unwrap_or_default();
    let is = |key: &str, value: &str| extra.get(key).is_some_and(|values| values.as_slice() == [value]);
    if !is(POD_NAME, &claimed.pod) || !is(POD_UID, &claimed.key.pod_uid) {
        return Err("it belongs to another Pod than it says");
    }
    Ok(())
}
