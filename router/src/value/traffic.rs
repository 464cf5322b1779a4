//! Classes of traffic: what has connections and a breaker of its own. Said by `plan`, used by `upstream` and all above.

/// Kinds of traffic that do not share connections or breakers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum TrafficClass {
    /// Everything that ends by itself.
    Unary,
    /// Watches and followed logs.
    Watch,
    /// Requests that ask for another protocol.
    Upgrade,
}

impl TrafficClass {
    /// As in metrics and breaker reports.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::Watch => "watch",
            Self::Upgrade => "upgrade",
        }
    }
}
