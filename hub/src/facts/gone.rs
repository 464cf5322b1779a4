//! Callers of a member that are certainly gone, while not all of its callers are known.
//!
//! Views do not say which namespace they are of, so one of which nothing is known might be of any. Whoever this process knew, and was
//! told to be gone, is not. Those that went last: who makes and deletes Pods all the time takes the place of what routers have long heard.

use std::collections::BTreeSet;
use std::sync::Arc;

/// So many are known at least once as many are gone: what agents tell of one member at once.
const MOST: usize = 5_000;

/// UIDs of Pods. Clones share everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GoneCallers {
    newer: Arc<BTreeSet<String>>,
    older: Arc<BTreeSet<String>>,
}

impl GoneCallers {
    pub(crate) fn add(&mut self, uid: String) {
        if self.newer.len() >= MOST {
            self.older = std::mem::take(&mut self.newer);
        }
        Arc::make_mut(&mut self.newer).insert(uid);
    }

    pub(crate) fn contains(&self, uid: &str) -> bool {
        self.newer.contains(uid) || self.older.contains(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_went_last_are_known() {
        let mut gone = GoneCallers::default();
        (0..100_000).for_each(|uid| gone.add(uid.to_string()));
        assert!((100_000 - MOST..100_000).all(|uid| gone.contains(&uid.to_string())));
        assert!(gone.newer.len() + gone.older.len() <= 2 * MOST && !gone.contains("7"));
    }
}
