//! The states of a breaker, and why it changed from one to another: in words of a closed set for metrics, in a sentence for people.
//! Pure.

/// What a breaker does with requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum State {
    Closed,
    Open,
    HalfOpen,
}

impl State {
    /// The word in metrics, reports and spans.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
        }
    }
}

/// A change of state, for metrics, logs and reports.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Transition {
    pub(crate) from: State,
    pub(crate) to: State,
    pub(crate) why: Why,
}

/// Why a breaker changed its state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Why {
    Consecutive(u32),
    Ratio { failures: u32, requests: u32 },
    Unreachable,
    Slower { slow: u32, requests: u32 },
    ProbeFailed,
    ProbeSucceeded,
    OpenTimeOver,
    MemberReady,
    ReadyzForbidden,
    MemberAnswers,
    AnswersOthers,
    ByHand,
    ByHandOver,
}

impl Why {
    /// The word in metrics: of a closed set.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Consecutive(_) => "consecutive-failures",
            Self::Ratio { .. } => "failure-ratio",
            Self::Unreachable => "unreachable",
            Self::Slower { .. } => "slower-than-itself",
            Self::ProbeFailed => "probe-failed",
            Self::ProbeSucceeded => "probe-succeeded",
            Self::OpenTimeOver => "open-time-over",
            Self::MemberReady => "readyz",
            Self::ReadyzForbidden => "readyz-forbidden",
            Self::MemberAnswers => "member-answers",
            Self::AnswersOthers => "answers-others",
            Self::ByHand => "by-hand",
            Self::ByHandOver => "by-hand-over",
        }
    }
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Consecutive(1) => f.write_str("a failure"),
            Self::Consecutive(failures) => write!(f, "{failures} failures in a row"),
            Self::Ratio { failures, requests } => write!(f, "{failures} of {requests} requests failed"),
            Self::Unreachable => f.write_str("it answers nobody, and takes no new connection either"),
            Self::Slower { slow, requests } => {
                write!(
                    f,
                    "{slow} of {requests} reads took several times as long as minutes ago; it is open for reads alone"
                )
            }
            Self::ProbeFailed => f.write_str("the probe failed"),
            Self::ProbeSucceeded => f.write_str("the probe succeeded"),
            Self::OpenTimeOver => f.write_str("the open time is over, one probe is let through"),
            Self::MemberReady => f.write_str("the member says that it is ready, one probe is let through"),
            Self::ReadyzForbidden => {
                f.write_str("the member is there, but its /readyz is not for this router: one probe is let through")
            }
            Self::MemberAnswers => f.write_str("the open time is over and the member answers other requests"),
            Self::AnswersOthers => f.write_str("the member answers other shards"),
            Self::ByHand => f.write_str("by hand"),
            Self::ByHandOver => f.write_str("what was set by hand is over"),
        }
    }
}
