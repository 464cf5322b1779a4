//! Questions to a member's API server in the router's own name: one POST of a review object, bounded in size and time.
//! Callers: `identify` (TokenReview) and `access` (SubjectAccessReview).

use bytes::Bytes;
use futures::future::BoxFuture;
use http::StatusCode;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::resource::queues::Turn;
use crate::value::fault::Fault;

/// What a member answered: its status code and its whole body.
pub(crate) type MemberAnswer = Result<(StatusCode, Bytes), Fault>;

/// Posts JSON to a member with the router's credential. A trait, because tests script the member: `OwnRequests` of
/// `dispatch` is the one that ships.
pub(crate) trait MemberApi: Send + Sync {
    /// A fault if the member cannot be asked: no such target, queues full, breaker open, unreachable, too slow. `turn`: at
    /// its queues.
    fn post(&self, cluster: &str, path: &'static str, turn: Turn, body: Vec<u8>) -> BoxFuture<'static, MemberAnswer>;
}

/// Posts a review object and reads it back with its status filled in.
pub(crate) async fn ask<T>(
    members: &dyn MemberApi,
    cluster: &str,
    path: &'static str,
    turn: Turn,
    question: &T,
) -> Result<T, Fault>
where
    T: Serialize + DeserializeOwned + Sync,
{
    let body = serde_json::to_vec(question).map_err(|error| Fault::Internal(format!("unwritable review: {error}")))?;
    let (code, body) = members.post(cluster, path, turn, body).await?;
    if !code.is_success() {
        return Err(unanswered(cluster, refusal(code)));
    }
    serde_json::from_slice(&body).map_err(|_| unanswered(cluster, "its answer is unreadable".to_owned()))
}

fn refusal(code: StatusCode) -> String {
    match code {
        StatusCode::UNAUTHORIZED => {
            "it does not accept the router's credential (401); is its agent connected?".to_owned()
        }
        StatusCode::FORBIDDEN => {
            "its RBAC does not let the router create reviews (403); run portolanctl join for it again".to_owned()
        }
        code => format!("it answered {code}"),
    }
}

/// 503: the caller may be anybody until the member can be asked.
fn unanswered(cluster: &str, why: String) -> Fault {
    Fault::Unavailable {
        message: format!("member {cluster} cannot be asked who you are and what you may do: {why}"),
        cluster: Some(cluster.to_owned()),
        sent: false,
    }
}
