//! How the leader lock of a shard came to be where its spec in force says.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Handovers of a shard's leader lock: how many there were, and the one that is under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LockInForce {
    /// Counts handovers.
    pub generation: u64,
    /// The name by which callers asked for the lock before it had its present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_name: Option<String>,
    /// The one that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover: Option<LockHandover>,
    /// Nobody is known to have held it since it is there. Absent: somebody has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vacancy: Option<Vacancy>,
}

/// A lock that nobody is known to have held since its shard was made, or since its place changed while nobody ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Vacancy {
    /// Whoever comes first may lead.
    Open,
    /// Routers are to let nobody use it: callers of the shard may lead by another lock still.
    Closed,
}

/// A handover of a leader lock that is under way, to where the spec in force says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockHandover {
    /// Where the lock was.
    pub from: LockPlace,
    /// How far it is.
    pub phase: LockPhase,
}

/// Where a leader lock is, or was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockPlace {
    /// The member cluster.
    pub cluster: String,
    /// As `controller.leaderElectionName`.
    pub name: String,
    /// The resource of the core group that carries it beside a Lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
}

impl fmt::Display for LockPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.resource {
            Some(resource) => write!(f, "{} ({resource} too) in {}", self.name, self.cluster),
            None => write!(f, "{} in {}", self.name, self.cluster),
        }
    }
}

/// How far the handover of a leader lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockPhase {
    /// Routers are to let nobody use it, at neither place.
    Closing,
    /// All have: they bring what is recorded of it to its new place before they use it there.
    Bringing,
    /// That was not done in time: routers are to let nobody use it, and then begin anew at the new place.
    Ending,
}
