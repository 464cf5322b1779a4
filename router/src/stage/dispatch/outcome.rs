//! What the end of a request says of the member's health, in one table, and what the client is told of an error. Pure.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, Response, StatusCode};

use super::Leg;
use crate::decision::plan::Forward;
use crate::resource::breaker::Outcome;
use crate::resource::upstream::{AUDIT_ID, Body, BodyError, Broke, UpstreamError};
use crate::value::classify::Verb;
use crate::value::fault::Fault;
use crate::value::media::Media;
use crate::value::traffic::{Effect, Traffic};

/// Without the head of an answer, with the whole request in the member's hands. API servers answer most requests within one.
pub(super) const SILENCE: Duration = Duration::from_secs(5);

/// How a request to a member ended.
pub(super) enum End<'a> {
    Head(StatusCode, &'a HeaderMap),
    Error(&'a UpstreamError),
    /// No answer.
    Silence(Silence),
}

/// What a request waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Silence {
    /// Since it was sent.
    pub(super) waited: Duration,
    /// Up to this router's own deadline; else who asked gave up.
    pub(super) to_the_end: bool,
    /// The member has all of the request.
    pub(super) whole: bool,
    /// It may be silent for as long as nothing happens: followed logs, what is behind `proxy`.
    pub(super) patient: bool,
}

/// What was asked, as far as its end must be seen in its light.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    /// A program behind `proxy`, or an aggregated API, may have answered.
    pub(super) proxied: bool,
    /// A list or a watch: how long it takes is its size.
    pub(super) collection: bool,
    /// The client has set a deadline of its own.
    pub(super) shortened: bool,
}

impl Kind {
    /// What the router asks in its own name.
    pub(super) const OWN: Self = Self {
        proxied: false,
        collection: false,
        shortened: false,
    };

    /// Documents, which the router asks for as well: a group's may be an aggregated API's.
    pub(super) const DOCUMENT: Self = Self {
        proxied: true,
        ..Self::OWN
    };

    pub(super) fn of(leg: &Leg) -> Self {
        let Traffic { effect, .. } = leg.forward.traffic;
        Self {
            proxied: proxies(leg),
            collection: effect == Effect::Collection,
            shortened: leg.asked.query.first("timeout").is_some(),
        }
    }
}

/// **The table**: what counts as a failure. Whose it is decides `breaker::askers`. Each row has its line in the test below.
pub(super) fn judge(kind: Kind, end: &End<'_>) -> Outcome {
    let outcome = match end {
        End::Head(status, headers) => of_head(kind, *status, headers),
        End::Error(error) => of_error(error),
        End::Silence(silence) => of_silence(kind, *silence),
    };
    match outcome {
        Outcome::Unreachable => outcome,
        // What a program behind it makes of a request says nothing of the member.
        _ if kind.proxied => Outcome::Neutral,
        _ => outcome,
    }
}

fn of_head(kind: Kind, status: StatusCode, headers: &HeaderMap) -> Outcome {
    match status {
        // Pressure: it is well enough to say so.
        StatusCode::TOO_MANY_REQUESTS => Outcome::Neutral,
        _ if !status.is_server_error() => Outcome::Success,
        // A load balancer without a backend.
        _ if !is_api_server(headers) => Outcome::Failure,
        // The API server gave up itself. Of a collection: that there is much of it, or that its cache is behind the version
        // that was asked for (ResourceVersionTooLarge, which says when to come again). Of the rest: that its storage hangs.
        StatusCode::GATEWAY_TIMEOUT if kind.collection || kind.shortened || headers.contains_key(RETRY_AFTER) => {
            Outcome::Neutral
        }
        StatusCode::GATEWAY_TIMEOUT => Outcome::Slow,
        // Its own words: of an admission webhook, an aggregated API, a Pod's kubelet. Storage that fails says the same.
        _ => Outcome::Success,
    }
}

fn is_api_server(headers: &HeaderMap) -> bool {
    headers.contains_key(AUDIT_ID) || Media::of_content(headers).is_some()
}

fn of_error(error: &UpstreamError) -> Outcome {
    match error {
        // No connection, a certificate that is not the member's, no HTTP/2; or a connection that broke, or whose pings are
        // not answered.
        UpstreamError::Connect { .. }
        | UpstreamError::Lost {
            broke: Broke::Connection,
            ..
        } => Outcome::Unreachable,
        // The one stream was reset.
        UpstreamError::Lost {
            broke: Broke::Stream, ..
        } => Outcome::Failure,
        // A break that was counted already; what the request itself brought about; GOAWAY and refused streams: a member that
        // shuts down one connection of several, whose next dial tells more; the client's own failing.
        UpstreamError::Lost {
            broke: Broke::Known | Broke::Request,
            ..
        }
        | UpstreamError::Refused { .. }
        | UpstreamError::Withdrawn(_)
        | UpstreamError::Body(_)
        | UpstreamError::Request(_) => Outcome::Neutral,
    }
}

fn of_silence(kind: Kind, silence: Silence) -> Outcome {
    match silence {
        // It was the client's turn, or there was nothing to say.
        Silence { whole: false, .. } | Silence { patient: true, .. } => Outcome::Neutral,
        // A deadline that the client made shorter than what an API server may need is as if it had gone away.
        Silence { to_the_end: true, .. } if !kind.shortened => Outcome::TimedOut,
        // How long a collection takes is its size, as for an API server's own 504.
        Silence { waited, .. } if waited >= SILENCE && !kind.collection => Outcome::Slow,
        Silence { .. } => Outcome::Neutral,
    }
}

/// What the client is told. Reads are answered as if nothing had been sent: nothing can have changed, so asking again
/// is safe.
pub(crate) fn fault_of(forward: &Forward, error: &UpstreamError) -> Fault {
    match error {
        UpstreamError::Body(BodyError::TooLarge { limit }) => Fault::TooLarge { limit: *limit },
        UpstreamError::Body(error) => Fault::BadRequest(error.to_string()),
        UpstreamError::Request(_) => Fault::BadRequest(error.to_string()),
        UpstreamError::Withdrawn(fault) => fault.clone(),
        UpstreamError::Lost { .. } if !forward.traffic.is_read() => Fault::Unavailable {
            message: format!("{error}; the request may have run"),
            cluster: Some(forward.target.cluster.to_string()),
            sent: true,
        },
        UpstreamError::Lost { .. } | UpstreamError::Connect { .. } | UpstreamError::Refused { .. } => {
            forward.unavailable(error.to_string())
        }
    }
}

/// Whether a program behind `proxy` may have answered.
pub(super) fn proxies(leg: &Leg) -> bool {
    let resource = leg.asked.resource.as_ref();
    leg.asked.verb == Verb::Proxy || resource.is_some_and(|resource| resource.subresource.as_deref() == Some("proxy"))
}

/// A 401 that is the router's and not the caller's: the member knows nobody else's credential. A client that got it
/// would give up its own. `None` for any other answer, and for programs behind `proxy`, which know clients of their own.
pub(super) fn refused_us(leg: &Leg, response: &Response<Body>) -> Option<Fault> {
    let refused = response.status() == StatusCode::UNAUTHORIZED && !proxies(leg);
    refused.then(|| {
        leg.forward.unavailable(format!(
            "member cluster {} does not accept this router's credential (401); is its agent connected?",
            leg.forward.target.cluster
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::upstream::ConnectError;
    use crate::value::media::PROTOBUF;

    const JSON: (&str, &str) = ("content-type", "application/json");
    const SINGLE: Kind = Kind::OWN;
    const LIST: Kind = Kind {
        collection: true,
        ..Kind::OWN
    };
    const SHORTENED: Kind = Kind {
        shortened: true,
        ..Kind::OWN
    };
    const PROXIED: Kind = Kind {
        proxied: true,
        ..Kind::OWN
    };

    fn head(kind: Kind, status: u16, headers: &[(&'static str, &'static str)]) -> Outcome {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), http::HeaderValue::from_static(value)))
            .collect();
        judge(kind, &End::Head(StatusCode::from_u16(status).unwrap(), &headers))
    }

    fn lost(broke: Broke) -> UpstreamError {
        UpstreamError::Lost {
            cluster: "east".into(),
            reason: "x".to_owned(),
            broke,
        }
    }

    fn connect(source: ConnectError) -> UpstreamError {
        UpstreamError::Connect {
            cluster: "east".into(),
            source,
        }
    }

    fn silence(waited: Duration, to_the_end: bool) -> Silence {
        Silence {
            waited,
            to_the_end,
            whole: true,
            patient: false,
        }
    }

    #[test]
    fn what_is_answered() {
        let (audited, html) = (("audit-id", "1"), ("content-type", "text/html"));
        let (text, later) = (("content-type", "text/plain"), ("retry-after", "1"));
        for (row, kind, status, headers, expected) in [
            ("an answer", SINGLE, 200, vec![], Outcome::Success),
            ("none such", SINGLE, 404, vec![JSON], Outcome::Success),
            ("a conflict", SINGLE, 409, vec![JSON], Outcome::Success),
            ("too old", LIST, 410, vec![JSON], Outcome::Success),
            ("pressure", SINGLE, 429, vec![JSON], Outcome::Neutral),
            ("admission fails", SINGLE, 500, vec![JSON], Outcome::Success),
            (
                "in protobuf",
                SINGLE,
                500,
                vec![("content-type", PROTOBUF)],
                Outcome::Success,
            ),
            (
                "an aggregated API is away",
                SINGLE,
                503,
                vec![text, audited],
                Outcome::Success,
            ),
            ("a balancer's own", SINGLE, 502, vec![html], Outcome::Failure),
            ("nobody's", SINGLE, 503, vec![], Outcome::Failure),
            ("a balancer waits no longer", LIST, 504, vec![html], Outcome::Failure),
            ("a long list", LIST, 504, vec![JSON, audited], Outcome::Neutral),
            (
                "ResourceVersionTooLarge of a list",
                LIST,
                504,
                vec![JSON, audited, later],
                Outcome::Neutral,
            ),
            (
                "and of an object",
                SINGLE,
                504,
                vec![JSON, audited, later],
                Outcome::Neutral,
            ),
            (
                "the client's own time-out",
                SHORTENED,
                504,
                vec![JSON, audited],
                Outcome::Neutral,
            ),
            ("storage hangs", SINGLE, 504, vec![JSON, audited], Outcome::Slow),
            ("behind proxy", PROXIED, 200, vec![], Outcome::Neutral),
            ("behind proxy, and broken", PROXIED, 503, vec![], Outcome::Neutral),
        ] {
            assert_eq!(head(kind, status, &headers), expected, "{row}");
        }
    }

    #[test]
    fn what_breaks() {
        let address = || "10.0.0.1:6443".to_owned();
        let reason = || "x".to_owned();
        let tcp = ConnectError::Tcp {
            address: address(),
            reason: reason(),
        };
        let tls = ConnectError::Tls {
            address: address(),
            reason: "certificate expired".to_owned(),
        };
        let cut = ConnectError::Cut {
            address: address(),
            reason: reason(),
        };
        let late = ConnectError::Timeout {
            address: address(),
            after: SILENCE,
        };
        let goaway = UpstreamError::Refused {
            cluster: "east".into(),
            reason: "GOAWAY".to_owned(),
        };
        let too_large = UpstreamError::Body(BodyError::TooLarge { limit: 1 });
        for (row, kind, error, expected) in [
            ("no connection", SINGLE, connect(tcp.clone()), Outcome::Unreachable),
            ("cut while it greets", SINGLE, connect(cut), Outcome::Unreachable),
            (
                "TLS: an expired certificate",
                SINGLE,
                connect(tls),
                Outcome::Unreachable,
            ),
            ("no answer to SYN", LIST, connect(late), Outcome::Unreachable),
            ("no way, behind proxy too", PROXIED, connect(tcp), Outcome::Unreachable),
            (
                "the connection is reset",
                SINGLE,
                lost(Broke::Connection),
                Outcome::Unreachable,
            ),
            ("and was told of", SINGLE, lost(Broke::Known), Outcome::Neutral),
            ("the stream is reset", SINGLE, lost(Broke::Stream), Outcome::Failure),
            ("behind proxy", PROXIED, lost(Broke::Stream), Outcome::Neutral),
            ("for what was asked", SINGLE, lost(Broke::Request), Outcome::Neutral),
            ("GOAWAY", SINGLE, goaway, Outcome::Neutral),
            ("the client's body", SINGLE, too_large, Outcome::Neutral),
        ] {
            assert_eq!(judge(kind, &End::Error(&error)), expected, "{row}");
        }
    }

    #[test]
    fn what_is_not_answered() {
        let short = SILENCE / 2;
        let unsent = Silence {
            whole: false,
            ..silence(SILENCE, true)
        };
        let log = Silence {
            patient: true,
            ..silence(SILENCE, true)
        };
        for (row, kind, silence, expected) in [
            ("to the deadline", SINGLE, silence(short, true), Outcome::TimedOut),
            (
                "a list to the deadline",
                LIST,
                silence(SILENCE, true),
                Outcome::TimedOut,
            ),
            ("to the client's own", SHORTENED, silence(short, true), Outcome::Neutral),
            ("and that was long", SHORTENED, silence(SILENCE, true), Outcome::Slow),
            ("the client cancels", SINGLE, silence(short, false), Outcome::Neutral),
            ("after long", SINGLE, silence(SILENCE, false), Outcome::Slow),
            (
                "a list is as long as it is",
                LIST,
                silence(SILENCE, false),
                Outcome::Neutral,
            ),
            ("its own body is not there", SINGLE, unsent, Outcome::Neutral),
            ("there is nothing to log", SINGLE, log, Outcome::Neutral),
            ("behind proxy", PROXIED, silence(SILENCE, true), Outcome::Neutral),
        ] {
            assert_eq!(judge(kind, &End::Silence(silence)), expected, "{row}");
        }
    }
}
