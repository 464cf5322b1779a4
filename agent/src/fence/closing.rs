//! How far the fence of one namespace is: which API servers were seen to refuse the epoch before and to admit this one. Pure.
//!
//! An API server's admission sees the annotation late, but never goes back: one that was seen to go by it does so as long as
//! the Namespace is the same.
//! Caller: `fence`.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use portolan_crds::labels::POLICY_FENCE;
use portolan_wire::protocol::NO_SUCH_NAMESPACE;

/// Where API servers cannot be told apart, so many answers in a row for each of them are enough.
const IN_A_ROW: usize = 10;
/// So many writes of an earlier epoch that were admitted in a row are no delay.
const NOT_ENFORCED: usize = 10;
/// So many good answers are followed by the next question at once: enough for twenty that cannot be told apart.
const AT_ONCE: usize = 20 * IN_A_ROW;

/// Whether API servers can be told apart, by all that have answered since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// A hash of the first one.
    first: Option<u64>,
    differ: bool,
}

impl Addresses {
    pub(crate) fn saw(&mut self, address: &str) {
        let mut hasher = DefaultHasher::new();
        address.hash(&mut hasher);
        let address = hasher.finish();
        self.differ |= *self.first.get_or_insert(address) != address;
    }
}

/// What one API server did with a write of the epoch before and with one of this epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It refused the first and admitted the second.
    GoesByIt,
    /// It goes by an earlier annotation.
    NotYet,
    /// It admitted the first: it goes by an earlier annotation, or by no policy.
    NotRefused,
    /// Neither can be told, because of this.
    Unclear(String),
}

/// The fence of one namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Closing {
    /// The epochs that are to be open, in order: all others are to be refused.
    pub(crate) open: Vec<u64>,
    pub(crate) standing: Standing,
    /// What it was when it was doubted.
    doubted: Standing,
    /// The Namespace that was annotated; `None`: there was none.
    uid: Option<String>,
    /// API servers by the address that they say they have.
    seen: BTreeSet<String>,
    in_a_row: usize,
    /// Answers as they shall be.
    good: usize,
    admitted_in_a_row: usize,
    /// Why it is not closed yet, or what is doubtful about it.
    pub(crate) message: String,
}

/// How far it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The annotation is not known to be set.
    #[default]
    Ordered,
    /// API servers are being asked.
    Annotated,
    /// All of them go by it, or there is nothing that could be written to.
    Closed,
    /// Was annotated or [`Self::Closed`], and may be another Namespace by now, or have lost its annotation.
    Doubted,
}

impl Closing {
    pub(crate) fn new(open: Vec<u64>) -> Self {
        Self {
            open,
            ..Self::default()
        }
    }

    /// The highest that is to be open: whoever goes by it goes by all of the annotation.
    pub(crate) fn epoch(&self) -> u64 {
        self.open.last().copied().unwrap_or_default()
    }

    /// There is no such Namespace: one that is made has no annotation, and no write that says an epoch is admitted there.
    pub(crate) fn gone(&mut self) {
        *self = Self {
            standing: Standing::Closed,
            message: NO_SUCH_NAMESPACE.to_owned(),
            ..Self::new(std::mem::take(&mut self.open))
        };
    }

    /// The annotation of the Namespace with this uid is set: just now, or it was.
    pub(crate) fn annotated(&mut self, uid: &str, anew: bool) {
        let same = !anew && self.uid.as_deref() == Some(uid);
        if same && self.standing == Standing::Doubted {
            self.standing = self.doubted;
            return;
        }
        if !same {
            *self = Self {
                uid: Some(uid.to_owned()),
                ..Self::new(std::mem::take(&mut self.open))
            };
        }
        self.standing = Standing::Annotated;
    }

    /// Whether what is known of the Namespace, its uid and the epochs of its annotation, is what was closed. Of one that is being
    /// asked about the uid alone is compared: its annotation may be too new to be known.
    pub(crate) fn agrees(&self, known: Option<(&str, Vec<u64>)>) -> bool {
        if self.standing == Standing::Annotated {
            return known.map(|(uid, _)| uid) == self.uid.as_deref();
        }
        if self.standing != Standing::Closed {
            return true;
        }
        let closed = self.uid.as_deref().map(|uid| (uid, self.open.clone()));
        known == closed
    }

    /// It does not agree: looked at anew.
    pub(crate) fn doubt(&mut self) {
        (self.doubted, self.standing) = (self.standing, Standing::Doubted);
    }

    /// An API server could not be asked, or not be counted.
    pub(crate) fn silent(&mut self, reason: &str) {
        if self.standing == Standing::Annotated {
            self.in_a_row = 0;
            reason.clone_into(&mut self.message);
        }
    }

    /// What the API server of this address did.
    pub(crate) fn heard(&mut self, server: &str, heard: Heard) {
        match heard {
            Heard::GoesByIt => {
                self.seen.insert(server.to_owned());
                self.in_a_row += 1;
                self.good += 1;
                self.admitted_in_a_row = 0;
            }
            Heard::NotYet => {
                self.not_yet(server);
                self.admitted_in_a_row = 0;
                self.message = format!("API server {server} does not know the annotation yet");
            }
            Heard::NotRefused => {
                self.not_yet(server);
                self.admitted_in_a_row += 1;
                self.message = if self.admitted_in_a_row >= NOT_ENFORCED {
                    format!(
                        "API server {server} does not go by policy {POLICY_FENCE}: it admits writes of earlier epochs; run \
                         portolanctl join again, and let it have ValidatingAdmissionPolicy enabled"
                    )
                } else {
                    format!("API server {server} does not refuse writes of earlier epochs yet")
                };
            }
            Heard::Unclear(reason) => {
                (self.in_a_row, self.admitted_in_a_row) = (0, 0);
                // Looked at anew: the Namespace may be gone.
                self.standing = Standing::Ordered;
                self.message = reason;
            }
        }
    }

    /// One that has gone back is no API server as we know them, or another one has its address.
    fn not_yet(&mut self, server: &str) {
        self.seen.remove(server);
        self.in_a_row = 0;
    }

    /// Whether the next API server is to be asked at once.
    pub(crate) fn is_in_hurry(&self) -> bool {
        self.standing == Standing::Annotated && self.in_a_row > 0 && self.good < AT_ONCE
    }

    /// So many API servers serve now. Where they can be told apart, each must have been seen: whatever stands between may
    /// keep one from us that others reach.
    pub(crate) fn count(&mut self, servers: usize, addresses: Addresses) {
        if self.standing != Standing::Annotated {
            return;
        }
        if servers == 0 {
            "how many API servers there are is not known: no Lease in kube-system tells".clone_into(&mut self.message);
        } else if self.seen.len() >= servers {
            self.standing = Standing::Closed;
            self.message.clear();
        } else if addresses.differ && self.in_a_row > 0 {
            self.message = format!(
                "{} of {servers} API servers were seen to refuse earlier epochs: one that is gone counts until its Lease in \
                 kube-system runs out or is deleted",
                self.seen.len()
            );
        } else if self.in_a_row >= servers * IN_A_ROW {
            self.standing = Standing::Closed;
            self.message = format!(
                "of {servers} API servers {} told themselves apart: {} answers in a row refused earlier epochs",
                self.seen.len(),
                self.in_a_row
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotated() -> Closing {
        let mut closing = Closing::new(vec![5]);
        closing.annotated("u", true);
        closing
    }

    #[test]
    fn it_is_closed_once_as_many_servers_as_there_are_go_by_it() {
        let mut closing = annotated();
        for server in ["a", "a", "b"] {
            closing.heard(server, Heard::GoesByIt);
            closing.count(3, Addresses::default());
            assert_eq!(closing.standing, Standing::Annotated);
        }
        closing.heard("c", Heard::GoesByIt);
        // Another one has come meanwhile.
        closing.count(4, Addresses::default());
        assert_eq!(closing.standing, Standing::Annotated);
        closing.heard("d", Heard::GoesByIt);
        closing.count(4, Addresses::default());
        assert_eq!((closing.standing, closing.message.as_str()), (Standing::Closed, ""));
    }

    #[test]
    fn servers_of_one_address_are_asked_ten_times_their_number() {
        let mut closing = annotated();
        for _ in 0..19 {
            closing.heard("a", Heard::GoesByIt);
            closing.count(2, Addresses::default());
            assert_eq!(closing.standing, Standing::Annotated);
        }
        let mut lagging = closing.clone();
        closing.heard("a", Heard::GoesByIt);
        closing.count(2, Addresses::default());
        assert_eq!(closing.standing, Standing::Closed);
        assert!(
            closing.message.contains("1 told themselves apart"),
            "{}",
            closing.message
        );
        lagging.heard("a", Heard::NotYet);
        lagging.heard("a", Heard::GoesByIt);
        lagging.count(2, Addresses::default());
        assert_eq!(lagging.standing, Standing::Annotated, "one of them does not go by it");
    }

    #[test]
    fn an_unknown_number_and_unclear_answers_close_nothing() {
        let mut closing = annotated();
        closing.heard("a", Heard::GoesByIt);
        closing.count(0, Addresses::default());
        assert_eq!(closing.standing, Standing::Annotated);
        closing.heard("a", Heard::Unclear("no ServiceAccount".to_owned()));
        closing.count(1, Addresses::default());
        assert_eq!(
            (closing.standing, closing.message.as_str()),
            (Standing::Ordered, "no ServiceAccount")
        );
    }

    #[test]
    fn nothing_that_is_only_ordered_is_closed() {
        let mut closing = Closing::new(vec![5]);
        closing.count(1, Addresses::default());
        assert_eq!(closing.standing, Standing::Ordered);
        closing.gone();
        assert_eq!(closing.standing, Standing::Closed);
    }

    #[test]
    fn where_they_can_be_told_apart_each_must_have_been_seen() {
        let mut addresses = Addresses::default();
        addresses.saw("a");
        addresses.saw("a");
        assert!(!addresses.differ);
        addresses.saw("b");
        let mut closing = annotated();
        for _ in 0..100 {
            closing.heard("a", Heard::GoesByIt);
            closing.count(2, addresses);
        }
        assert_eq!(closing.standing, Standing::Annotated);
        assert!(closing.message.starts_with("1 of 2"), "{}", closing.message);
        closing.heard("b", Heard::GoesByIt);
        closing.count(2, addresses);
        assert_eq!((closing.standing, closing.message.as_str()), (Standing::Closed, ""));
    }

    #[test]
    fn one_that_cannot_be_asked_breaks_the_row() {
        let mut closing = annotated();
        for _ in 0..19 {
            closing.heard("a", Heard::GoesByIt);
        }
        closing.silent("no answer");
        closing.heard("a", Heard::GoesByIt);
        closing.count(2, Addresses::default());
        assert_eq!(closing.standing, Standing::Annotated);
    }

    #[test]
    fn a_namespace_that_was_made_anew_is_closed_anew() {
        let closed = |uid| {
            let mut closing = Closing::new(vec![5]);
            closing.annotated(uid, true);
            closing.heard("a", Heard::GoesByIt);
            closing.count(1, Addresses::default());
            assert_eq!(closing.standing, Standing::Closed);
            closing
        };
        let mut closing = closed("u");
        assert!(closing.agrees(Some(("u", vec![5]))));
        for known in [
            None,
            Some(("u", vec![])),
            Some(("u", vec![4])),
            Some(("u", vec![4, 5])),
            Some(("v", vec![5])),
        ] {
            assert!(!closing.agrees(known.clone()), "{known:?}");
        }
        // The inventory was late.
        closing.doubt();
        closing.annotated("u", false);
        assert_eq!(closing.standing, Standing::Closed);
        // It lost its annotation; it is another one.
        for (uid, anew) in [("u", true), ("v", true), ("v", false)] {
            let mut closing = closed("u");
            closing.doubt();
            closing.annotated(uid, anew);
            closing.count(1, Addresses::default());
            assert_eq!(closing.standing, Standing::Annotated, "nothing of before counts");
        }
        closing.gone();
        assert!(closing.agrees(None) && !closing.agrees(Some(("u", vec![]))));
    }

    /// Between two questions: it is never annotated unless that is looked at.
    #[test]
    fn a_namespace_that_was_made_anew_while_it_is_asked_about_is_annotated_anew() {
        let mut closing = annotated();
        closing.heard("a", Heard::GoesByIt);
        for known in [Some(("u", vec![])), Some(("u", vec![5]))] {
            assert!(closing.agrees(known), "the inventory lags");
        }
        for known in [None, Some(("v", vec![]))] {
            assert!(!closing.agrees(known.clone()), "{known:?}");
        }
        let mut same = closing.clone();
        same.doubt();
        same.annotated("u", false);
        assert_eq!((same.standing, same.in_a_row), (Standing::Annotated, 1));
        closing.doubt();
        closing.annotated("v", true);
        closing.count(1, Addresses::default());
        assert_eq!((closing.standing, closing.in_a_row), (Standing::Annotated, 0));
    }

    #[test]
    fn what_goes_by_no_policy_is_told_so_after_some_tries() {
        let mut closing = annotated();
        for _ in 0..NOT_ENFORCED {
            assert!(!closing.message.contains("does not go by policy"));
            closing.heard("a", Heard::NotRefused);
        }
        assert!(closing.message.contains("does not go by policy"), "{}", closing.message);
    }
}
