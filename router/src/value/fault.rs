//! Everything that can go wrong with one request, in one enum. Stages return it; only `reply` turns it into an answer.

use thiserror::Error;

/// Who is turned away is told to come again within this time, later than what it is for is found out to be over; each at a time
/// of its own, so that all who are do not come at once.
pub(crate) const AGAIN_SECONDS: u32 = 5;

/// Why a request is refused or failed. Owned text, so that a fault outlives the snapshot that caused it.
#[derive(Debug, Clone, Error, PartialEq)]
pub(crate) enum Fault {
    /// 400: the request cannot be read as a Kubernetes API request, or breaks path hygiene.
    #[error("{0}")]
    BadRequest(String),
    /// 401: no identity, or one that does not verify.
    #[error("{0}")]
    Unauthenticated(String),
    /// 403: outside the caller's shard, no grant, or an impersonation that is not allowed.
    #[error("{0}")]
    Forbidden(String),
    /// 404: no such member cluster in the path.
    #[error("{0}")]
    NotFound(String),
    /// 405: the merged view cannot answer this over several members.
    #[error("{0}")]
    MethodNotAllowed(String),
    /// 406: the answer exists in no format that the client takes.
    #[error("{0}")]
    NotAcceptable(String),
    /// 409: the object is not as it was when it was read; the client reads it again.
    #[error("{0}")]
    Conflict(String),
    /// 409: there is one of this name.
    #[error("{message}")]
    AlreadyExists {
        /// Which, and where.
        message: String,
        /// The same as an API server names it.
        about: Box<AboutObject>,
    },
    /// 410: what the client resumes from is gone; it must list again.
    #[error("{0}")]
    Expired(String),
    /// 413: the body is over the bound.
    #[error("request body is larger than {limit} bytes")]
    TooLarge {
        /// The bound in bytes.
        limit: u64,
    },
    /// 431: the head is over the bound.
    #[error("{0}")]
    HeadTooLarge(String),
    /// 429: nothing was sent; try again.
    #[error("{message}")]
    TooManyRequests {
        /// What is full, open or incomplete, and which member.
        message: String,
        /// Seconds for `Retry-After`.
        retry_after_seconds: u32,
        /// The member, when one is at fault.
        cluster: Option<String>,
    },
    /// 502: a member's answer that must not pass.
    #[error("{message}")]
    BadGateway {
        /// What the member answered.
        message: String,
        /// The member.
        cluster: String,
    },
    /// 503: nothing was sent, or a read failed; `sent` decides whether `Retry-After` may be told.
    #[error("{message}")]
    Unavailable {
        /// What is unavailable and why.
        message: String,
        /// The member, when one is at fault.
        cluster: Option<String>,
        /// Whether bytes of the request left for the member.
        sent: bool,
    },
    /// 503: the hub would have to decide it, and is away. Nothing was sent; there is no `Retry-After`, as a person waits for the
    /// answer, and tools would repeat the request for a minute and then say a text of their own.
    #[error("{0}")]
    HubAway(String),
    /// 504: the member did not answer in time.
    #[error("{message}")]
    Timeout {
        /// What timed out.
        message: String,
        /// The member.
        cluster: String,
        /// Whether bytes of the request left for the member.
        sent: bool,
    },
    /// A request that was sent to several members, and failed in these: the code of all, or 500 if they differ.
    #[error("it failed in {} of the members it was sent to: {}", .0.len(), MemberFailure::all(.0))]
    Members(Vec<MemberFailure>),
    /// 415: a body in a format that must be read here and cannot be.
    #[error("{0}")]
    UnsupportedMediaType(String),
    /// 422: fields of the object that must not be so here.
    #[error("{message}")]
    Invalid {
        /// What is wrong and what to do.
        message: String,
        /// Each of them, for the causes.
        fields: Vec<InvalidField>,
    },
    /// 500: a fault of the router itself.
    #[error("{0}")]
    Internal(String),
    /// 429 or 503: a CircuitBreaker of the caller's refuses it. Nothing was sent.
    #[error("{} refuses this request: {}", .0.rule, .0.why)]
    Policy(Box<PolicyRefusal>),
    /// What a FaultInjection orders a request to be answered. Nothing was sent.
    #[error("FaultInjection {} has this request answered {}, as ordered", .0.name, .0.code.as_str())]
    Injected(Box<InjectedFault>),
}

/// Why a CircuitBreaker refuses a request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PolicyRefusal {
    /// `<kind>/<namespace>/<name>/<rule>`.
    pub(crate) rule: String,
    pub(crate) by: RefusedBy,
    /// For people.
    pub(crate) why: String,
    /// A list or the start of a watch: informers list anew after a 503.
    pub(crate) collection: bool,
    /// Where a `Retry-After` is told.
    pub(crate) retry_after_seconds: u32,
    /// What the request is about.
    pub(crate) about: Option<AboutObject>,
}

/// What of a CircuitBreaker refuses. A closed set: the words of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum RefusedBy {
    /// An empty bucket.
    Limit,
    /// A rule that has opened.
    Opened,
    /// `ForceOpened`.
    Forced,
    /// A breaker of the caller's, for one member.
    Breaker,
}

impl RefusedBy {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::Limit, Self::Opened, Self::Forced, Self::Breaker];

    /// The word.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Limit => "limited",
            Self::Opened => "opened",
            Self::Forced => "forced",
            Self::Breaker => "breaker",
        }
    }
}

impl PolicyRefusal {
    /// Over a limit there is always a time to come again. What is opened is told so to who lists or watches; others would
    /// repeat it in the worker's own time.
    fn says_when(&self) -> bool {
        self.collection || self.by == RefusedBy::Limit
    }
}

/// An error that was ordered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InjectedFault {
    /// Any error.
    pub(crate) code: http::StatusCode,
    /// `<namespace>/<name>/<rule>` of what orders it.
    pub(crate) name: String,
    /// Whether the request makes an object: a conflict of these is another one.
    pub(crate) creates: bool,
    /// Whether it is a watch whose client reads a stream: API servers say within it what has expired, and some clients
    /// repeat for ever what is refused before.
    pub(crate) streams: bool,
    /// What the request is about.
    pub(crate) about: Option<AboutObject>,
}

/// An object, or a collection, as the details of a Status name it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AboutObject {
    /// API group.
    pub(crate) group: String,
    /// Plural name.
    pub(crate) resource: String,
    /// Its name, if it is one object.
    pub(crate) name: Option<String>,
}

/// A field of an object that must not be so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InvalidField {
    /// As `metadata.annotations`.
    pub(crate) field: String,
    /// Why.
    pub(crate) message: String,
}

impl InvalidField {
    pub(crate) fn of(field: &str, message: String) -> Self {
        let field = field.to_owned();
        Self { field, message }
    }
}

/// What one of several members answered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MemberFailure {
    pub(crate) cluster: String,
    pub(crate) status: http::StatusCode,
    pub(crate) message: String,
}

impl MemberFailure {
    fn all(failures: &[Self]) -> String {
        let each = failures.iter().map(|one| format!("{}: {}", one.cluster, one.message));
        each.collect::<Vec<_>>().join("; ")
    }
}

/// Whose fault it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The request.
    Client,
    /// This router.
    Router,
    /// A member cluster.
    Cluster(String),
    /// A policy, `<kind>/<namespace>/<name>/<rule>`, and what it says.
    Policy(String),
}

impl Fault {
    /// 422 for one field.
    pub(crate) fn invalid(field: &str, message: String) -> Self {
        Self::Invalid {
            message: format!("{field}: {message}"),
            fields: vec![InvalidField::of(field, message)],
        }
    }

    /// A refusal by a CircuitBreaker, which knows rules and no objects, is of this request.
    pub(crate) fn of_request(mut self, about: impl FnOnce() -> Option<AboutObject>) -> Self {
        if let Self::Policy(refusal) = &mut self {
            refusal.about = about();
        }
        self
    }

    /// The HTTP status code.
    pub(crate) fn status_code(&self) -> http::StatusCode {
        use http::StatusCode;
        match self {
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotAcceptable(_) => StatusCode::NOT_ACCEPTABLE,
            Self::Conflict(_) | Self::AlreadyExists { .. } => StatusCode::CONFLICT,
            Self::Expired(_) => StatusCode::GONE,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::HeadTooLarge(_) => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::TooManyRequests { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::BadGateway { .. } => StatusCode::BAD_GATEWAY,
            Self::Timeout { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::Members(failures) => match failures.as_slice() {
                [first, others @ ..] if others.iter().all(|other| other.status == first.status) => first.status,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            },
            Self::UnsupportedMediaType(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Invalid { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Policy(refusal) if refusal.says_when() => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable { .. } | Self::HubAway(_) | Self::Policy(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Injected(injected) => injected.code,
        }
    }

    /// A closed set of words: metric label and span attribute.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::BadRequest(_) => "bad-request",
            Self::Unauthenticated(_) => "unauthenticated",
            Self::Forbidden(_) => "forbidden",
            Self::NotFound(_) => "not-found",
            Self::MethodNotAllowed(_) => "method-not-allowed",
            Self::NotAcceptable(_) => "not-acceptable",
            Self::Conflict(_) => "conflict",
            Self::AlreadyExists { .. } => "already-exists",
            Self::Expired(_) => "expired",
            Self::TooLarge { .. } | Self::HeadTooLarge(_) => "too-large",
            Self::TooManyRequests { .. } => "too-many-requests",
            Self::BadGateway { .. } => "bad-gateway",
            Self::Unavailable { .. } | Self::HubAway(_) => "unavailable",
            Self::Timeout { .. } => "timeout",
            Self::Members(_) => "members",
            Self::UnsupportedMediaType(_) => "unsupported-media-type",
            Self::Invalid { .. } => "invalid",
            Self::Internal(_) => "internal",
            Self::Policy(_) => "policy",
            Self::Injected(_) => "injected",
        }
    }

    /// Whose fault it is.
    pub(crate) fn origin(&self) -> Origin {
        match self {
            Self::TooManyRequests {
                cluster: Some(cluster), ..
            }
            | Self::Unavailable {
                cluster: Some(cluster), ..
            }
            | Self::BadGateway { cluster, .. }
            | Self::Timeout { cluster, .. } => Origin::Cluster(cluster.clone()),
            Self::TooManyRequests { cluster: None, .. }
            | Self::Unavailable { cluster: None, .. }
            | Self::HubAway(_)
            // Their causes name them.
            | Self::Members(_)
            | Self::Internal(_) => Origin::Router,
            Self::Policy(refusal) => Origin::Policy(format!("{}: {}", refusal.rule, refusal.why)),
            Self::Injected(injected) => Origin::Policy(format!("FaultInjection/{}: ordered", injected.name)),
            Self::BadRequest(_)
            | Self::Unauthenticated(_)
            | Self::Forbidden(_)
            | Self::NotFound(_)
            | Self::MethodNotAllowed(_)
            | Self::NotAcceptable(_)
            | Self::Conflict(_)
            | Self::AlreadyExists { .. }
            | Self::Expired(_)
            | Self::TooLarge { .. }
            | Self::HeadTooLarge(_)
            | Self::Invalid { .. }
            | Self::UnsupportedMediaType(_) => Origin::Client,
        }
    }

    /// Whether bytes of the request may have left, so that it may have run.
    pub(crate) fn may_have_run(&self) -> bool {
        match self {
            Self::Unavailable { sent, .. } | Self::Timeout { sent, .. } => *sent,
            Self::BadGateway { .. } | Self::Members(_) | Self::Internal(_) => true,
            _ => false,
        }
    }

    /// Seconds for `Retry-After`. `None` whenever something was sent: clients resend any verb on 429 and 5xx that has it.
    /// `None` also where the hub is to decide and is away, and where a member is away: client-go would repeat the request ten times in the worker's own time, and an
    /// operator with one worker stand still for the members that are well. Its own back-off per object does better.
    pub(crate) fn retry_after_seconds(&self) -> Option<u32> {
        match self {
            Self::TooManyRequests {
                retry_after_seconds, ..
            } => Some(*retry_after_seconds),
            Self::Policy(refusal) if refusal.says_when() => Some(refusal.retry_after_seconds),
            Self::Unavailable {
                sent: false,
                cluster: None,
                ..
            } => Some(1),
            // As API servers do who have no room; they say so in no other error.
            Self::Injected(injected) if injected.code == http::StatusCode::TOO_MANY_REQUESTS => Some(1),
            _ => None,
        }
    }
}
