//! What routers keep of limits that they have together, though others are to have it: for statuses, metrics and the log.

use std::collections::BTreeMap;

use crate::facts::PolicyName;

/// By policy; in the order of rules and routers.
pub(crate) type WithheldShares = BTreeMap<PolicyName, Vec<Withheld>>;

/// A share that does not go where it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Withheld {
    pub(crate) rule: String,
    pub(crate) router: String,
    /// In millionths of the bucket, at most.
    pub(crate) share: u32,
    pub(crate) why: Why,
}

/// Why a router keeps a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Why {
    /// It has not been heard since the hub began: it may have all that no other says that he has.
    NotHeard,
    /// Its stream is over, and it goes on with what it had.
    Away,
    /// It is connected and was told less, and does not say that it keeps to that.
    Unconfirmed,
}
