//! Which revision of the protocol two programs speak: the one place where hub, routers and agents negotiate it. Pure.
//!
//! A client tells the newest and the oldest revision that it speaks in its Hello, the hub answers with the one that the
//! stream is of, see [`crate::v1::Welcome`]. From revision 3 on every program speaks the one before its own too, so that
//! hub, routers and agents can be replaced one after the other.

use std::time::Duration;

use thiserror::Error;

/// Newest revision that programs of this release speak.
pub const PROTOCOL: u32 = 2;

/// Capability of a router that reads cursors of format 2, as its Hello tells it.
pub const CURSOR_FORMAT_2: &str = "cursor-format-2";

/// Lifetime that agents ask for with tokens of routers. A router has no way to members but these, and gets new ones through the
/// hub alone: one that is cut off from it passes nothing any more after this time.
pub const TOKEN_LIFE: Duration = Duration::from_hours(24);

/// Capability of a router that serves Policy resources, as its Hello tells it.
pub const POLICIES: &str = "policies";

/// Capability of a router whose writes say their epoch, and that tells which releases have no write open, as its Hello tells it.
pub const FENCE: &str = "fence";

/// Capability of a router that hands leader locks over, and tells how far it is with that, as its Hello tells it.
pub const LOCKS: &str = "locks";

/// Capability of a router that refuses writes of callers which may lead another shard, and tells which locks callers may hold, as
/// its Hello tells it.
pub const HELD_LOCKS: &str = "held-locks";

/// Capability of a router that knows that a namespace has an owner of each operator, as its Hello tells it.
pub const OPERATORS: &str = "operators";

/// Capability of a router that takes an Ownership as what is different in it, as its Hello tells it.
pub const OWNERSHIP_CHANGES: &str = "ownership-changes";

/// Capability of a hub that takes an agent's deltas in several messages, as its Welcome tells it.
pub const REPORT_PAGES: &str = "report-pages";

/// Capability of a hub that says which members have a namespace, as its Welcome tells it.
pub const NAMESPACES: &str = "namespaces";

/// Most bytes of a message by which an agent reports, to a hub that takes its deltas in several.
pub const REPORT_PAGE_MAX_BYTES: usize = 1024 * 1024;

/// Most bytes of what a router's Hello names as held, and of one page of it before the Hello: with all else a Hello stays below the
/// 16 MiB of a message that hubs take.
pub const HELLO_KNOWN_MAX_BYTES: usize = 15 * 1024 * 1024;

/// Most bytes of one object's labels that agents tell: far less is in use. The API server bounds them by the object's size alone.
pub const LABELS_MAX_BYTES: usize = 64 * 1024;

/// Most bytes of labels of all Namespaces that an agent tells: 50,000 of them with a third of a kilobyte each. Where they have more, those
/// with the most are cut below [`LABELS_MAX_BYTES`].
pub const NAMESPACES_LABELS_MAX_BYTES: usize = 16 * 1024 * 1024;

/// Most selectors of which an agent reports that not all of their Pods are told.
pub const EXCESS_MAX: usize = 2_000;

/// Most bytes of a text by which an agent reports why something cannot be had.
pub const FAULT_MAX_BYTES: usize = 256;

/// Most bytes of a message that agents take, and so of a configuration.
pub const AGENT_UPDATE_MAX_BYTES: usize = 4 * 1024 * 1024;

/// How long what was sent may still arrive and be carried out, whatever became of who sent it: a quarter of an hour is the longest
/// that systems go on sending what the other side does not take, and what arrives is worked on for a minute. Routers and hub go by it.
pub const UNDER_WAY_FOR: Duration = Duration::from_mins(20);

/// What FenceState.message says of a namespace that is closed because there is no such Namespace.
pub const NO_SUCH_NAMESPACE: &str = "there is no such Namespace";

/// Namespaces of one member that are ordered to be closed at a time, and told of: FenceOrder, FenceState. Each takes the agent
/// some requests; the others follow.
pub const MAX_FENCES: usize = 1_000;

/// Nodes of one member whose names are told: three times what Kubernetes is tested with; eight bytes each.
pub const MAX_NODE_NAMES: usize = 16_384;

/// Revision from which on the one before is spoken too. Revision 2 shares no resource with 1.
const FIRST_WITH_A_PREDECESSOR: u32 = 3;

/// Revisions that a program speaks, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spoken {
    oldest: u32,
    newest: u32,
}

/// Two programs of which neither speaks what the other does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the hub's protocol is {hub} and the client's {client}: install programs of releases that follow each other")]
pub struct Mismatch {
    hub: Spoken,
    client: Spoken,
}

impl std::fmt::Display for Spoken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.oldest == self.newest {
            return write!(f, "{}", self.newest);
        }
        write!(f, "{} to {}", self.oldest, self.newest)
    }
}

impl Spoken {
    /// What this release speaks.
    pub const OURS: Self = Self::of(PROTOCOL);

    /// What a program speaks whose newest revision is `newest`.
    pub const fn of(newest: u32) -> Self {
        let oldest = if newest >= FIRST_WITH_A_PREDECESSOR {
            newest - 1
        } else {
            newest
        };
        Self { oldest, newest }
    }

    /// What a Hello or a Welcome tells. Without `oldest`, as revision 1 told it: that one alone.
    pub const fn told(newest: u32, oldest: u32) -> Self {
        let oldest = if oldest == 0 || oldest > newest { newest } else { oldest };
        Self { oldest, newest }
    }

    /// Newest revision spoken.
    pub const fn newest(self) -> u32 {
        self.newest
    }

    /// Oldest revision spoken.
    pub const fn oldest(self) -> u32 {
        self.oldest
    }
}

/// The newest revision that both speak.
///
/// # Errors
/// [`Mismatch`], naming what either speaks, if there is none.
pub fn negotiate(hub: Spoken, client: Spoken) -> Result<u32, Mismatch> {
    let newest = hub.newest.min(client.newest);
    if newest < hub.oldest.max(client.oldest) {
        return Err(Mismatch { hub, client });
    }
    Ok(newest)
}

/// What a client makes of the revision in the hub's [`crate::v1::Welcome`].
///
/// # Errors
/// [`Mismatch`] if the stream is of a revision that this release does not speak.
pub fn welcomed(protocol: u32) -> Result<u32, Mismatch> {
    negotiate(Spoken::told(protocol, 0), Spoken::OURS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a release to come.
    const MADE_UP: Spoken = Spoken::of(3);

    #[test]
    fn neighbours_speak_the_older_both_ways() {
        assert_eq!(negotiate(Spoken::OURS, MADE_UP), Ok(2));
        assert_eq!(negotiate(MADE_UP, Spoken::OURS), Ok(2));
        assert_eq!(negotiate(MADE_UP, MADE_UP), Ok(3));
        assert_eq!(negotiate(Spoken::OURS, Spoken::OURS), Ok(PROTOCOL));
    }

    #[test]
    fn what_is_further_apart_is_refused_naming_both() {
        let first = Spoken::told(1, 0);
        let text = |hub, client| negotiate(hub, client).unwrap_err().to_string();
        assert!(text(Spoken::OURS, first).contains("hub's protocol is 2 and the client's 1"));
        assert!(text(first, Spoken::OURS).contains("hub's protocol is 1 and the client's 2"));
        assert!(text(MADE_UP, first).contains("2 to 3 and the client's 1"));
        assert!(text(Spoken::of(4), Spoken::OURS).contains("3 to 4 and the client's 2"));
    }

    #[test]
    fn what_is_told_badly_widens_nothing() {
        assert_eq!(Spoken::told(2, 7), Spoken::told(2, 0));
        assert_eq!(Spoken::told(0, 0).newest(), 0);
        assert!(negotiate(Spoken::OURS, Spoken::told(0, 0)).is_err());
    }
}
