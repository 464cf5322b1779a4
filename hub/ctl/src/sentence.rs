//! An error as one plain sentence: what API servers say in their own words, and nothing twice. Called by `main`.

use std::error::Error;
use std::fmt::Write as _;

use kube::core::Status;

/// The error and its causes as one sentence, from what was tried to what stood in the way.
pub(crate) fn of(error: &anyhow::Error) -> String {
    let mut sentence = String::new();
    for cause in error.chain() {
        let status = status_of(cause);
        let text = status.map_or_else(|| cause.to_string(), say);
        // Many errors print their source, and are their own source again.
        if !sentence.contains(&text) {
            let colon = if sentence.is_empty() { "" } else { ": " };
            let _ = write!(sentence, "{colon}{text}");
        }
        if status.is_some() {
            break;
        }
    }
    sentence
}

/// What an API server said, if one did.
pub(crate) fn status(error: &anyhow::Error) -> Option<&Status> {
    error.chain().find_map(status_of)
}

fn status_of<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a Status> {
    match cause.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => Some(status),
        _ => cause.downcast_ref::<Status>(),
    }
}

fn say(status: &Status) -> String {
    match (status.message.as_str(), status.reason.as_str()) {
        ("", "") => format!("the API server answered {} without a reason", status.code),
        ("", reason) => format!("the API server answered {} {reason}", status.code),
        (message, _) => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn an_api_server_is_quoted() {
        let refused = || {
            kube::Error::Api(Box::new(
                Status::failure("pods \"p\" is forbidden", "Forbidden").with_code(403),
            ))
        };
        let error = Err::<(), _>(refused()).context("cannot apply Pod ops/p").unwrap_err();
        assert_eq!(of(&error), "cannot apply Pod ops/p: pods \"p\" is forbidden");
        let silent = kube::Error::Api(Box::new(Status::failure("", "").with_code(500)));
        assert_eq!(of(&silent.into()), "the API server answered 500 without a reason");
    }

    #[test]
    fn nothing_is_said_twice() {
        let inner = std::io::Error::other("connection refused");
        let error = anyhow::Error::new(inner)
            .context("error: connection refused")
            .context("cannot connect");
        assert_eq!(of(&error), "cannot connect: error: connection refused");
    }
}
