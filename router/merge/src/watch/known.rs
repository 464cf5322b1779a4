//! What the client holds of one member, keys only: enough to tell what a member's own relist changes for it (the known
//! objects of client-go's `DeltaFIFO`).
//!
//! Exact or not there: they begin with a stream that begins at nothing, follow every event, and are dropped when the
//! budget that all legs share is used up.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::budget::Budget;
use crate::object_meta::ObjectMeta;

/// What an entry takes beside its key's bytes, with the slack of a hash table.
const PER_KEY: usize = 112;

/// A UID, in 16 bytes where it is one as API servers make them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Uid {
    Uuid([u8; 16]),
    Other(Box<str>),
}

impl Uid {
    pub(super) fn of(text: &str) -> Self {
        uuid(text).map_or_else(|| Self::Other(text.into()), Self::Uuid)
    }

    pub(super) fn text(&self) -> String {
        let bytes = match self {
            Self::Uuid(bytes) => bytes,
            Self::Other(text) => return text.to_string(),
        };
        let mut text = String::with_capacity(36);
        for (index, byte) in bytes.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    let text = text.as_bytes();
    let mut bytes = [0; 16];
    let mut digits = 0;
    if text.len() != 36 {
        return None;
    }
    for (index, byte) in text.iter().enumerate() {
        let digit = match byte {
            b'-' if matches!(index, 8 | 13 | 18 | 23) => continue,
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        let byte: &mut u8 = bytes.get_mut(digits / 2)?;
        *byte = *byte << 4 | digit;
        digits += 1;
    }
    (digits == 32).then_some(bytes)
}

/// The version of what is no object, but a name that was barred.
const BARRED: u64 = 0;

/// One object that the client holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownObject {
    pub(super) uid: Uid,
    pub(super) version: u64,
    /// The pass over the member's state that saw the object last.
    pub(super) pass: u32,
    /// Of several members' objects under this name it is the one that this stream emitted last.
    pub(super) emitted: bool,
    /// The client holds another object under this name, or this one out of date: whatever the member says next is news.
    pub(super) stale: bool,
}

impl KnownObject {
    /// The version of this object that the client holds; 0: none.
    pub(super) fn client_version(&self) -> u64 {
        if self.stale { 0 } else { self.version }
    }
}

/// Writes `namespace/name` into a buffer that is used again and again.
pub(super) fn write_key(key: &mut String, meta: &ObjectMeta<'_>) {
    key.clear();
    key.push_str(&meta.namespace);
    key.push('/');
    key.push_str(&meta.name);
}

/// What the client holds of one member, by `namespace/name`.
#[derive(Debug)]
pub(super) struct KnownObjects {
    keys: HashMap<Box<str>, KnownObject>,
    pass: u32,
    bytes: usize,
    /// What all legs share; `None`: no bound.
    budget: Option<Budget>,
}

impl KnownObjects {
    pub(super) fn new(budget: Option<Budget>) -> Self {
        Self {
            keys: HashMap::new(),
            pass: 0,
            bytes: 0,
            budget,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn get(&self, key: &str) -> Option<&KnownObject> {
        self.keys.get(key)
    }

    /// Whether there is an object of this name; one that was barred is none.
    pub(super) fn has(&self, key: &str) -> bool {
        self.keys.get(key).is_some_and(|object| object.version != BARRED)
    }

    /// Whether there is an object of a namespace that is `wanted`.
    pub(super) fn any_namespace(&self, wanted: impl Fn(&str) -> bool) -> bool {
        let namespaces = self.keys.keys().filter_map(|key| key.split_once('/'));
        namespaces.into_iter().any(|(namespace, _)| wanted(namespace))
    }

    /// False if the budget is used up: they are of no use from then on.
    #[must_use]
    pub(super) fn set(&mut self, key: &str, uid: Uid, version: u64) -> bool {
        let pass = self.pass;
        if let Some(object) = self.keys.get_mut(key) {
            object.uid = uid;
            object.version = version;
            object.pass = pass;
            object.stale = false;
            return true;
        }
        let cost = key.len() + PER_KEY;
        if self.budget.as_ref().is_some_and(|budget| !budget.take(cost)) {
            return false;
        }
        self.bytes += cost;
        let object = KnownObject {
            uid,
            version,
            pass,
            emitted: false,
            stale: false,
        };
        self.keys.insert(key.into(), object);
        true
    }

    /// The object of this name that was emitted last is this one, or another member's.
    pub(super) fn set_emitted(&mut self, key: &str, emitted: bool) {
        if let Some(object) = self.keys.get_mut(key) {
            object.emitted = emitted;
        }
    }

    /// What the client holds under this name is not this object, or an older one.
    pub(super) fn mark_stale(&mut self, key: &str) {
        if let Some(object) = self.keys.get_mut(key) {
            object.stale = true;
        }
    }

    pub(super) fn remove(&mut self, key: &str) -> Option<KnownObject> {
        let object = self.keys.remove(key)?;
        self.release(key.len() + PER_KEY);
        Some(object)
    }

    /// Another leg has the last word about this name: a list of what the client held before must not bring it back.
    #[must_use]
    pub(super) fn bar(&mut self, key: &str) -> bool {
        self.set(key, Uid::of(""), BARRED)
    }

    /// Takes over what was told of late, which is newer, and leaves out what was barred there. False if there is no memory
    /// for it.
    #[must_use]
    pub(super) fn take_over(&mut self, mut later: Self) -> bool {
        later.drain().into_iter().all(|(key, object)| {
            if object.version == BARRED {
                self.remove(&key);
                return true;
            }
            self.set(&key, object.uid, object.version)
        })
    }

    /// Begins another pass over the member's state.
    pub(super) fn begin_pass(&mut self) {
        self.pass = self.pass.wrapping_add(1);
    }

    /// Takes these out, in the order of their keys.
    pub(super) fn extract(&mut self, which: impl Fn(&str) -> bool) -> Vec<(Box<str>, KnownObject)> {
        let mut these: Vec<_> = self.keys.extract_if(|key, _| which(key)).collect();
        these.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        self.release(these.iter().map(|(key, _)| key.len() + PER_KEY).sum());
        these
    }

    /// What this pass did not see of what it `read`, in the order of the keys: the same input makes the same stream. It is
    /// taken out.
    pub(super) fn sweep(&mut self, read: impl Fn(&str) -> bool) -> Vec<(Box<str>, KnownObject)> {
        let pass = self.pass;
        let unseen = self.keys.extract_if(|key, object| object.pass != pass && read(key));
        let mut gone: Vec<_> = unseen.collect();
        gone.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        self.release(gone.iter().map(|(key, _)| key.len() + PER_KEY).sum());
        gone
    }

    /// Takes all objects out, in the order of their keys.
    pub(super) fn drain(&mut self) -> Vec<(Box<str>, KnownObject)> {
        self.release(self.bytes);
        let mut all: Vec<_> = self.keys.drain().collect();
        all.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        all
    }

    fn release(&mut self, bytes: usize) {
        self.bytes -= bytes;
        if let Some(budget) = &self.budget {
            budget.give(bytes);
        }
    }
}

impl Drop for KnownObjects {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_come_back_as_they_were() {
        for text in [
            "0f9f7d4e-26a3-4a2b-8f3c-0123456789ab",
            "0F9F7D4E-26A3-4A2B-8F3C-0123456789AB",
            "",
            "some-uid",
            "0f9f7d4e026a304a2b08f3c00123456789ab",
            "0f9f7d4e-26a3-4a2b-8f3c-0123456789a-",
        ] {
            assert_eq!(Uid::of(text).text(), text);
        }
    }

    #[test]
    fn the_budget_is_shared_and_given_back() {
        let budget = Budget::new(2 * (PER_KEY + 3));
        let mut one = KnownObjects::new(Some(budget.clone()));
        let mut two = KnownObjects::new(Some(budget.clone()));
        assert!(one.set("a/a", Uid::of("u"), 1) && two.set("a/b", Uid::of("u"), 1));
        assert!(!one.set("a/c", Uid::of("u"), 1));
        assert!(budget.is_short());
        assert!(one.set("a/a", Uid::of("u"), 2), "what is object is not paid again");
        assert!(two.remove("a/b").is_some() && !budget.is_short());
        assert!(one.set("a/c", Uid::of("u"), 1));
        one.begin_pass();
        assert!(one.set("a/c", Uid::of("u"), 1));
        let gone = one.sweep(|_| true);
        assert_eq!((&*gone[0].0, gone.len(), one.len()), ("a/a", 1, 1));
        drop(one);
        assert_eq!(budget.used(), 0);
    }
}
