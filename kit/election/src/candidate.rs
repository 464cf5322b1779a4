//! Who takes part in an election, and who leads.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

/// One that leads, as its Lease tells of it.
pub trait Leads: Debug + Clone + PartialEq + Send + Sync + 'static {
    /// Whose the Lease is: two processes of one identity take it for one.
    fn identity(&self) -> &str;

    /// The one of whom a Lease says this.
    fn read(identity: String, annotations: &BTreeMap<String, String>) -> Self;
}

/// One that takes part.
pub trait Candidate: Send + Sync + 'static {
    /// What others see of it once it leads.
    type Leader: Leads;

    /// Whose the Lease is to be.
    fn identity(&self) -> &str;

    /// What else the Lease is to say; asked at each renewal.
    fn annotations(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// For how much longer this one waits, where `leader` is gone, before it takes its place.
    fn patience(&self, _leader: &Self::Leader) -> Duration {
        Duration::ZERO
    }

    /// Whether `leader` is what ran in the place of this one before.
    fn ran_as(&self, _leader: &Self::Leader) -> bool {
        false
    }

    /// The one that leads has renewed its Lease, with these annotations, since this one looked before.
    fn heard(&self, _annotations: &BTreeMap<String, String>) {}

    /// Whether this one is to lead in place of `leader`, although that renews its Lease. Asked at each look.
    fn supersedes(&self, _leader: &Self::Leader) -> impl Future<Output = bool> + Send {
        std::future::ready(false)
    }
}
