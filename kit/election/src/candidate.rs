//! Who takes part in an election, and who leads.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

/// One that leads, as its Lease tells of it.
pub trait Leads: Debug + Clone + PartialEq + Send + Sync + 'static {
    /// The name that the Lease has of its holder: two processes of one name pass for one.
    fn identity(&self) -> &str;

    /// The one of whom a Lease says this.
    fn read(identity: String, annotations: &BTreeMap<String, String>) -> Self;
}

/// One that takes part.
pub trait Candidate: Send + Sync + 'static {
    /// The candidate as others see it once it leads.
    type Leader: Leads;

    /// The name that the Lease is to have of its holder.
    fn identity(&self) -> &str;

    /// Annotations of the Lease while this candidate holds it; asked at each renewal.
    fn annotations(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// The time that this candidate waits longer than others, where `leader` is gone, before it takes its place.
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
