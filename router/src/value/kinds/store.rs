//! Where the kinds of this moment are kept, and who is woken when somebody needs one that is not known.
//!
//! Writer: `discovery`. Readers: every request, once.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use super::{Kinds, MemberKinds};

/// What all members serve at this moment. Cheap to clone: clones share one value.
#[derive(Clone, Default)]
pub(crate) struct KindStore(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// An `ArcSwap`: every request reads it and must not wait.
    current: ArcSwap<Kinds>,
    /// A `Notify`: many askers, one look.
    missed: Notify,
}

impl fmt::Debug for KindStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.0.current.load().members.len();
        f.debug_tuple("KindStore").field(&known).finish()
    }
}

impl KindStore {
    /// The kinds of this moment. Load them once per request.
    pub(crate) fn load(&self) -> Arc<Kinds> {
        self.0.current.load_full()
    }

    /// Replaces what one member serves. Called by `discovery`, whenever a member's documents changed.
    pub(crate) fn set(&self, cluster: &Arc<str>, served: &Arc<MemberKinds>) {
        self.change(|kinds| kinds.set(cluster, served.clone()));
    }

    /// Forgets members that are no targets any more.
    pub(crate) fn retain(&self, known: impl Fn(&str) -> bool) {
        if self.0.current.load().members.keys().all(|cluster| known(cluster)) {
            return;
        }
        self.change(|kinds| kinds.retain(&known));
    }

    fn change(&self, change: impl Fn(&mut Kinds)) {
        self.0.current.rcu(|kinds| {
            let mut next = Kinds::clone(kinds);
            change(&mut next);
            next
        });
    }

    /// A request needed a kind that no member is known to serve: `discovery` is to look again soon.
    pub(crate) fn miss(&self) {
        self.0.missed.notify_one();
    }

    /// Waits for the next [`Self::miss`].
    pub(crate) async fn missed(&self) {
        self.0.missed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_are_gone_are_forgotten() {
        let store = KindStore::default();
        store.set(&"east".into(), &Arc::default());
        store.set(&"west".into(), &Arc::default());
        let before = store.load();
        store.retain(|cluster| cluster == "east");
        assert!(before.member("west").is_some(), "frozen for who has it");
        assert!(store.load().member("west").is_none() && store.load().member("east").is_some());
    }
}
