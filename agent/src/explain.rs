//! Errors as one readable line: causes in order, an API server's refusal as it said it, no dump of structures.
//!
//! Callers: whoever logs or reports an error.

use std::fmt::Display;

use kube::core::Status;
use kube::runtime::watcher;
use portolan_runtime::Chain;

use crate::metrics::{Metrics, Watched};

/// HTTP status with which the API server ends a watch whose place in history is gone: normal.
const GONE: u16 = 410;

/// An error of a call to the API server. Its own text would print the whole answer.
pub(crate) fn call(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => refusal(status),
        error => Chain(error).to_string(),
    }
}

fn refusal(status: &Status) -> String {
    format!(
        "the API server answers {} {}: {}",
        status.code, status.reason, status.message
    )
}

/// Counts and logs a broken watch, and says why it broke. What the API server refuses, a person must mend; that it is away,
/// `health` has said once already.
pub(crate) fn watch_broke(metrics: &Metrics, watched: Watched, of: impl Display, error: &watcher::Error) -> String {
    metrics.watch_failed(watched);
    let (refused, text) = match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => (
            matches!(error, kube::Error::Api(status) if status.code != GONE),
            call(error),
        ),
        watcher::Error::WatchError(status) => (status.code != GONE, refusal(status)),
        watcher::Error::NoResourceVersion => (true, error.to_string()),
    };
    if refused {
        tracing::warn!(?watched, %of, error = text, "watch refused");
    } else {
        tracing::debug!(?watched, %of, error = text, "watch broke");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::CallError;

    #[test]
    fn a_refusal_is_told_once_and_in_its_own_words() {
        let status = Status::failure("secrets is forbidden", "Forbidden").with_code(403);
        let error = CallError::Kube(kube::Error::Api(Box::new(status)));
        assert_eq!(
            Chain(&error).to_string(),
            "the API server answers 403 Forbidden: secrets is forbidden"
        );
    }
}
