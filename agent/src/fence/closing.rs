//! How far the fence of one namespace is: which API servers were seen to refuse the epoch before and to admit this one. Pure.
//!
//! An API server's admission sees the annotation late, but never goes back: one that was seen to go by it does so for ever.
//! Caller: `fence`.

use std::collections::BTreeSet;

/// Where API servers cannot be told apart, so many answers in a row for each of them are enough.
const IN_A_ROW: usize = 10;

/// What one API server did with a write of the epoch before and with one of this epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It refused the first and admitted the second.
    GoesByIt,
    /// It goes by an earlier annotation, or by no policy.
    NotYet,
    /// Neither can be told, because of this.
    Unclear(String),
}

/// The fence of one namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Closing {
    /// Whose earlier ones are to be refused.
    pub(crate) epoch: u64,
    pub(crate) standing: Standing,
    /// API servers by the address that they say they have.
    seen: BTreeSet<String>,
    in_a_row: usize,
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
}

impl Closing {
    pub(crate) fn new(epoch: u64) -> Self {
        Self {
            epoch,
            ..Self::default()
        }
    }

    /// There is no such Namespace: one that is made has no annotation, and no write that says an epoch is admitted there.
    pub(crate) fn gone(&mut self) {
        self.standing = Standing::Closed;
        "there is no such Namespace".clone_into(&mut self.message);
    }

    pub(crate) fn annotated(&mut self) {
        self.standing = Standing::Annotated;
        self.message.clear();
    }

    /// What the API server of this address did.
    pub(crate) fn heard(&mut self, server: &str, heard: Heard) {
        match heard {
            Heard::GoesByIt => {
                self.seen.insert(server.to_owned());
                self.in_a_row += 1;
            }
            Heard::NotYet => {
                // One that has gone back is no API server as we know them, or another one has its address.
                self.seen.remove(server);
                self.in_a_row = 0;
                self.message = format!(
                    "API server {server} does not refuse writes of earlier epochs yet; if that stays so run portolanctl join again"
                );
            }
            Heard::Unclear(reason) => {
                self.in_a_row = 0;
                // Looked at anew: the Namespace may be gone.
                self.standing = Standing::Ordered;
                self.message = reason;
            }
        }
    }

    /// So many API servers serve now.
    pub(crate) fn count(&mut self, servers: usize) {
        if self.standing != Standing::Annotated {
            return;
        }
        if servers == 0 {
            "how many API servers there are is not known: no Lease in kube-system tells".clone_into(&mut self.message);
        } else if self.seen.len() >= servers {
            self.standing = Standing::Closed;
            self.message.clear();
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
        let mut closing = Closing::new(5);
        closing.annotated();
        closing
    }

    #[test]
    fn it_is_closed_once_as_many_servers_as_there_are_go_by_it() {
        let mut closing = annotated();
        for server in ["a", "a", "b"] {
            closing.heard(server, Heard::GoesByIt);
            closing.count(3);
            assert_eq!(closing.standing, Standing::Annotated);
        }
        closing.heard("c", Heard::GoesByIt);
        // Another one has come meanwhile.
        closing.count(4);
        assert_eq!(closing.standing, Standing::Annotated);
        closing.heard("d", Heard::GoesByIt);
        closing.count(4);
        assert_eq!((closing.standing, closing.message.as_str()), (Standing::Closed, ""));
    }

    #[test]
    fn servers_of_one_address_are_asked_ten_times_their_number() {
        let mut closing = annotated();
        for _ in 0..19 {
            closing.heard("a", Heard::GoesByIt);
            closing.count(2);
            assert_eq!(closing.standing, Standing::Annotated);
        }
        let mut lagging = closing.clone();
        closing.heard("a", Heard::GoesByIt);
        closing.count(2);
        assert_eq!(closing.standing, Standing::Closed);
        assert!(
            closing.message.contains("1 told themselves apart"),
            "{}",
            closing.message
        );
        lagging.heard("a", Heard::NotYet);
        lagging.heard("a", Heard::GoesByIt);
        lagging.count(2);
        assert_eq!(lagging.standing, Standing::Annotated, "one of them does not go by it");
    }

    #[test]
    fn an_unknown_number_and_unclear_answers_close_nothing() {
        let mut closing = annotated();
        closing.heard("a", Heard::GoesByIt);
        closing.count(0);
        assert_eq!(closing.standing, Standing::Annotated);
        closing.heard("a", Heard::Unclear("no ServiceAccount".to_owned()));
        closing.count(1);
        assert_eq!(
            (closing.standing, closing.message.as_str()),
            (Standing::Ordered, "no ServiceAccount")
        );
    }

    #[test]
    fn nothing_that_is_only_ordered_is_closed() {
        let mut closing = Closing::new(5);
        closing.count(1);
        assert_eq!(closing.standing, Standing::Ordered);
        closing.gone();
        assert_eq!(closing.standing, Standing::Closed);
    }
}
