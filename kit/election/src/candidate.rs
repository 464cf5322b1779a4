//! Who takes part in an election.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

/// One that takes part, as its Lease tells of it once it leads.
pub trait Candidate: Debug + Clone + PartialEq + Send + Sync + 'static {
    /// Whose the Lease is to be: two processes of one identity take it for one.
    fn identity(&self) -> &str;

    /// What else the Lease is to say.
    fn annotations(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// The one of whom a Lease says this.
    fn read(identity: String, annotations: &BTreeMap<String, String>) -> Self;

    /// For how much longer this one waits, where `holder` is gone, before it takes its place.
    fn patience(&self, _holder: &Self) -> Duration {
        Duration::ZERO
    }

    /// Whether `holder` is what ran in the place of this one before.
    fn ran_as(&self, _holder: &Self) -> bool {
        false
    }
}
