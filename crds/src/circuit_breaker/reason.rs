//! Why a rule is opened or closed: the words that routers report and statuses show. The only home of them.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Why a rule of a CircuitBreaker is as it is. A variant's name is what stands on the wire, in statuses and in Events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PolicyReason {
    /// Its bucket was empty.
    LimitExceeded,
    /// `triggerPolicy: ForceOpened`.
    ForceOpened,
    /// `triggerPolicy: ForceClosed`.
    ForceClosed,
    /// So many requests failed in a row.
    ConsecutiveFailures,
    /// Such a share of the window's requests failed.
    FailureRatio,
    /// One request tries whether the member is well again.
    Probing,
    /// A person closed it.
    ClosedByHand,
    /// Its sleepingWindowSize went by.
    SleepingWindowOver,
    /// What tried it went well.
    Recovered,
}

/// A word that is none of [`PolicyReason`]'s: a newer router says it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no reason that this version knows")]
pub struct UnknownReason(pub String);

impl PolicyReason {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::LimitExceeded,
        Self::ForceOpened,
        Self::ForceClosed,
        Self::ConsecutiveFailures,
        Self::FailureRatio,
        Self::Probing,
        Self::ClosedByHand,
        Self::SleepingWindowOver,
        Self::Recovered,
    ];

    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LimitExceeded => "LimitExceeded",
            Self::ForceOpened => "ForceOpened",
            Self::ForceClosed => "ForceClosed",
            Self::ConsecutiveFailures => "ConsecutiveFailures",
            Self::FailureRatio => "FailureRatio",
            Self::Probing => "Probing",
            Self::ClosedByHand => "ClosedByHand",
            Self::SleepingWindowOver => "SleepingWindowOver",
            Self::Recovered => "Recovered",
        }
    }
}

impl fmt::Display for PolicyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for PolicyReason {
    type Err = UnknownReason;

    fn from_str(text: &str) -> Result<Self, UnknownReason> {
        let known = Self::ALL.into_iter().find(|reason| reason.as_str() == text);
        known.ok_or_else(|| UnknownReason(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back() {
        for reason in PolicyReason::ALL {
            assert_eq!(reason.to_string(), format!("{reason:?}"));
            assert_eq!(reason.as_str().parse(), Ok(reason));
        }
        assert_eq!(
            "Weather".parse::<PolicyReason>(),
            Err(UnknownReason("Weather".to_owned()))
        );
    }
}
