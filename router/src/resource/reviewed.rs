//! Whom members have authenticated by TokenReviews of callers: what a review of rights says of such a user concerns that member
//! (`docs/semantics.md#reviews`). By shard, so that none has a say in another's. Caller: `edge`.

use std::sync::Arc;
use std::time::Duration;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;

/// How long it is known. Who asks about a user reviews the token before.
const KEPT: Duration = Duration::from_hours(1);
/// Users of all shards. The least recently used go first.
const MOST: u64 = 8_192;

/// Shard, and UID of the user.
type User = (Arc<str>, String);

/// One per process.
#[derive(Debug)]
pub(crate) struct Authenticated {
    by: Cache<User, Arc<str>>,
}

impl Default for Authenticated {
    fn default() -> Self {
        let by = Cache::builder().max_capacity(MOST).time_to_live(KEPT);
        Self {
            by: by.eviction_policy(EvictionPolicy::lru()).build(),
        }
    }
}

impl Authenticated {
    /// A member knows a token of this user.
    pub(crate) fn note(&self, shard: &Arc<str>, uid: String, cluster: &Arc<str>) {
        self.by.insert((shard.clone(), uid), cluster.clone());
    }

    /// The member that knew a token of this user last.
    pub(crate) fn member(&self, shard: &Arc<str>, uid: &str) -> Option<Arc<str>> {
        self.by.get(&(shard.clone(), uid.to_owned()))
    }
}
