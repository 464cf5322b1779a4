//! As whom a cluster knows who asks: what is written beside what people do by hand. Called by `breaker` and `faults`.

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::Client;
use kube::api::{Api, PostParams};

/// At most so many bytes of the name; empty if the cluster does not say.
pub(crate) async fn whoami(cluster: &Client, max: usize) -> String {
    let reviews = Api::<SelfSubjectReview>::all(cluster.clone());
    let review = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await;
    let user = review.ok().and_then(|review| review.status?.user_info?.username);
    let mut user = user.unwrap_or_default();
    user.truncate(user.floor_char_boundary(max));
    user
}
