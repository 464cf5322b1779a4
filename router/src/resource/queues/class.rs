//! How urgent a request is at its member. Pure.

/// How urgent a request is, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Class {
    /// Renewals of Leases, and reviews of tokens: never wait.
    Lease,
    /// What a merged watch that runs asks: a leg that connects anew, a list of what its client holds.
    Running,
    /// What ends by itself and is no list.
    Single,
    /// Lists, and the starts of watches.
    List,
}

/// Those that wait.
pub(super) const WAITING: [Class; 3] = [Class::Running, Class::Single, Class::List];

impl Class {
    pub(crate) const ALL: [Self; 4] = [Self::Lease, Self::Running, Self::Single, Self::List];

    /// As in metrics and spans.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Running => "running",
            Self::Single => "single",
            Self::List => "list",
        }
    }

    /// Of its level.
    pub(super) fn level(self) -> usize {
        match self {
            Self::Lease | Self::Running => 0,
            Self::Single => 1,
            Self::List => 2,
        }
    }
}
