//! Reviews tokens of this cluster for hub and routers: one TokenReview each, here where they were signed.
//!
//! The token is never logged, nor is an error text that could hold it. Caller: `stream`.

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::PostParams;
use kube::{Api, Client};
use portolan_crds::names::bound_pod;
use portolan_wire::v1::{ReviewToken, TokenReviewed};

use crate::member::bounded;

/// Asks the member's API server. An answer that never came is `error`, never "not authenticated" alone.
#[tracing::instrument(name = "review_token", skip_all, fields(id = request.id))]
pub(crate) async fn review(client: Client, request: ReviewToken) -> TokenReviewed {
    let id = request.id;
    let review = TokenReview {
        spec: TokenReviewSpec {
            token: request.token,
            audiences: (!request.audiences.is_empty()).then_some(request.audiences),
        },
        ..TokenReview::default()
    };
    let reviews = Api::<TokenReview>::all(client);
    match bounded(reviews.create(&PostParams::default(), &review)).await {
        Ok(answer) => reviewed(id, answer.status.unwrap_or_default()),
        Err(error) => {
            tracing::warn!(status = error.status(), "the member's API server gave no token review");
            let text = error
                .status()
                .map_or("no answer".to_owned(), |status| format!("status {status}"));
            refused(id, format!("the member's API server gave no token review: {text}"))
        }
    }
}

/// The answer to a review that was not made.
pub(crate) fn refused(id: u64, error: String) -> TokenReviewed {
    TokenReviewed {
        id,
        error,
        ..TokenReviewed::default()
    }
}

fn reviewed(id: u64, status: TokenReviewStatus) -> TokenReviewed {
    if status.authenticated != Some(true) {
        // The API server's text says why ("token has expired") and quotes no token.
        return refused(id, status.error.unwrap_or_default());
    }
    let user = status.user.unwrap_or_default();
    let (pod, pod_uid) = bound_pod(user.extra.as_ref());
    TokenReviewed {
        id,
        authenticated: true,
        pod,
        pod_uid,
        username: user.username.unwrap_or_default(),
        groups: user.groups.unwrap_or_default(),
        error: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
    const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

    fn status(json: serde_json::Value) -> TokenReviewed {
        reviewed(7, serde_json::from_value(json).unwrap())
    }

    #[test]
    fn a_good_token_tells_its_pod() {
        let answer = status(serde_json::json!({"authenticated": true, "user": {
            "username": "system:serviceaccount:ops:operator", "groups": ["system:authenticated"],
            "extra": {POD_NAME: ["operator-0"], POD_UID: ["u1"]}}}));
        assert!(answer.authenticated && answer.id == 7 && answer.error.is_empty());
        assert_eq!((answer.pod.as_str(), answer.pod_uid.as_str()), ("operator-0", "u1"));
    }

    #[test]
    fn a_bad_token_tells_nothing_else() {
        let answer = status(serde_json::json!({"authenticated": false, "error": "token has expired",
            "user": {"username": "system:admin"}}));
        assert!(!answer.authenticated && answer.username.is_empty());
        assert_eq!(answer.error, "token has expired");
        assert!(!status(serde_json::json!({})).authenticated);
    }

    #[test]
    fn two_pods_are_no_pod() {
        let answer = status(serde_json::json!({"authenticated": true, "user": {
            "username": "u", "extra": {POD_UID: ["u1", "u2"]}}}));
        assert_eq!(answer.pod_uid, "");
    }
}
