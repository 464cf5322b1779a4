//! A rule as it stands in this router: how bad that is, and what is written down of it once it is to be told. Pure; called by
//! `report` and `worst`.

use std::cmp::{Ordering, Reverse};
use std::time::{SystemTime, UNIX_EPOCH};

use portolan_wire::v1;

use super::Clock;
use crate::decision::policy::Tick;

/// A rule as it stands. Of thousands few are told, so that nothing is written down of it yet.
pub(super) struct Found<'a> {
    pub(super) rank: Rank,
    pub(super) name: Name<&'a str>,
    pub(super) reason: &'static str,
    pub(super) since: Option<Since>,
}

/// How bad it is; what is less is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) closed: bool,
    pub(super) last_minute: Reverse<u64>,
    pub(super) total: Reverse<u64>,
    pub(super) tokens: Option<u64>,
}

/// By what it is told from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name<T> {
    pub(super) policy: T,
    pub(super) rule: T,
    /// Of a breaker.
    pub(super) cluster: Option<T>,
    /// Home cluster and uid; `None`: all callers share it.
    pub(super) caller: Option<(T, T)>,
}

/// When it became what it is.
pub(super) enum Since {
    Tick(Tick),
    Time(SystemTime),
}

/// One that is told; those that are less are worse.
pub(super) struct Told {
    pub(super) rank: Rank,
    pub(super) name: Name<Box<str>>,
    reason: &'static str,
    since_unix_milliseconds: i64,
}

impl Found<'_> {
    pub(super) fn is_milder(&self, told: &Told) -> bool {
        (self.rank, self.name) >= told.key()
    }
}

impl<T> Name<T> {
    fn map<'a, U>(&'a self, to: impl Fn(&'a T) -> U) -> Name<U> {
        Name {
            policy: to(&self.policy),
            rule: to(&self.rule),
            cluster: self.cluster.as_ref().map(&to),
            caller: self.caller.as_ref().map(|(home, uid)| (to(home), to(uid))),
        }
    }
}

impl Told {
    /// Written down.
    pub(super) fn of(found: &Found<'_>, clock: Clock) -> Self {
        let since = found.since.as_ref().map(|since| match since {
            Since::Tick(at) => clock.system_time(*at),
            Since::Time(at) => *at,
        });
        Self {
            rank: found.rank,
            name: found.name.map(|word| (*word).into()),
            reason: found.reason,
            since_unix_milliseconds: since.map_or(0, unix_milliseconds),
        }
    }

    fn key(&self) -> (Rank, Name<&str>) {
        (self.rank, self.name.map(|word| &**word))
    }
}

impl PartialEq for Told {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Told {}

impl PartialOrd for Told {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Told {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl From<Told> for v1::RuleState {
    fn from(told: Told) -> Self {
        let Name {
            policy,
            rule,
            cluster,
            caller,
        } = told.name;
        Self {
            policy: policy.into(),
            rule: cluster.map_or_else(|| rule.to_string(), |cluster| format!("{rule}@{cluster}")),
            caller: caller.map(|(home, uid)| format!("{home}/{uid}")).unwrap_or_default(),
            opened: !told.rank.closed,
            reason: told.reason.to_owned(),
            since_unix_milliseconds: told.since_unix_milliseconds,
            last_minute: told.rank.last_minute.0,
            total: told.rank.total.0,
            tokens: told.rank.tokens,
        }
    }
}

pub(super) fn unix_milliseconds(at: SystemTime) -> i64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
