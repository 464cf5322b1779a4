//! What may rightly be told to be gone, noted before it is done: objects that are deleted, namespaces that leave the shard or
//! their member. [`crate::judge`] holds every DELETED that a client was told against it.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

/// Milliseconds since 1970, as clients tell theirs.
pub(crate) type Moment = u64;

pub(crate) fn now() -> Moment {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}

/// A mutex: writer, actions and truth note in turn, for no longer than a push.
#[derive(Default)]
pub(crate) struct Ledger(Mutex<Notes>);

#[derive(Default)]
struct Notes {
    /// By uid.
    deleted: HashMap<String, Vec<Moment>>,
    /// Member of each uid that was ever seen.
    homes: HashMap<String, String>,
    left: Vec<Left>,
}

struct Left {
    member: String,
    namespace: String,
    at: Moment,
}

impl Ledger {
    /// This object is about to be deleted.
    pub(crate) fn deleting(&self, uid: &str) {
        self.0.lock().deleted.entry(uid.to_owned()).or_default().push(now());
    }

    /// This namespace of a member is about to be deleted, or to be the shard's no more.
    pub(crate) fn leaving(&self, member: &str, namespace: &str) {
        self.0.lock().left.push(Left {
            member: member.to_owned(),
            namespace: namespace.to_owned(),
            at: now(),
        });
    }

    /// An object is in this member.
    pub(crate) fn found(&self, uid: &str, member: &str) {
        self.0.lock().homes.insert(uid.to_owned(), member.to_owned());
    }

    /// When an object began to be gone, each time; of one whose member was never seen, its namespace in any counts.
    pub(crate) fn gone(&self, uid: &str, namespace: &str) -> Vec<Moment> {
        let notes = self.0.lock();
        let home = notes.homes.get(uid);
        let left = notes
            .left
            .iter()
            .filter(|left| left.namespace == namespace && home.is_none_or(|home| *home == left.member));
        let mut all: Vec<Moment> = left.map(|left| left.at).collect();
        all.extend(notes.deleted.get(uid).into_iter().flatten());
        all.sort_unstable();
        all
    }
}
