//! Named parts of a program that must all be ready before it takes traffic.
//!
//! Each part holds a [`ReadyHandle`] and says when it is ready or why it is not; `/readyz` prints the list.
//! Not liveness: a part that lost its peer is unready, not dead. Callers: `app.rs` of every program hands out
//! handles; `admin` reads.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

use tokio::sync::watch;

/// Why a part is not ready before it has said anything.
const STARTING: &str = "its first report";
/// Part added by [`Readiness::begin_shutdown`].
const SHUTDOWN: &str = "shutdown";

type Name = Cow<'static, str>;

type Parts = BTreeMap<Name, State>;

/// How one part is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Ready,
    /// It is ready, and waits for this all the same.
    Degraded(Name),
    /// What it waits for.
    NotReady(Name),
}

/// One part, as `/readyz` tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// The part's name.
    pub name: String,
    /// What it waits for.
    pub waits_for: Option<String>,
    /// The program is not ready while it waits.
    pub required: bool,
}

/// All parts of this program. Cheap to clone; clones are the same set.
#[derive(Debug, Clone)]
pub struct Readiness {
    // A watch: one consistent map for readers, and a wake-up for those who wait.
    parts: watch::Sender<Parts>,
}

/// Tells whether one part of the program is ready. Dropping it changes nothing: a ready part that finished stays ready.
#[derive(Debug, Clone)]
pub struct ReadyHandle {
    name: Name,
    parts: watch::Sender<Parts>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

impl Readiness {
    /// Without parts: ready at once.
    pub fn new() -> Self {
        Self {
            parts: watch::Sender::new(Parts::new()),
        }
    }

    /// Adds a part, not ready. A name used twice is one part.
    pub fn task(&self, name: impl Into<Name>) -> ReadyHandle {
        let handle = ReadyHandle {
            name: name.into(),
            parts: self.parts.clone(),
        };
        handle.not_ready(STARTING);
        handle
    }

    /// All parts are ready (true of no parts).
    pub fn is_ready(&self) -> bool {
        all_ready(&self.parts.borrow())
    }

    /// Resolves once all parts are ready.
    pub async fn wait_ready(&self) {
        let mut parts = self.parts.subscribe();
        // The sender is held by self: it cannot be gone.
        let _ = parts.wait_for(all_ready).await;
    }

    /// First step of every shutdown: load balancers must look away before listeners close.
    pub fn begin_shutdown(&self) {
        self.task(SHUTDOWN).not_ready("the end of this process");
    }

    /// All parts, by name.
    pub fn checks(&self) -> Vec<Check> {
        let check = |(name, state): (&Name, &State)| Check {
            name: name.to_string(),
            waits_for: match state {
                State::Ready => None,
                State::Degraded(reason) | State::NotReady(reason) => Some(reason.to_string()),
            },
            required: !matches!(state, State::Degraded(_)),
        };
        self.parts.borrow().iter().map(check).collect()
    }

    /// One line a part, as the API server's `/readyz?verbose` writes them.
    pub fn report(&self) -> String {
        let parts = self.parts.borrow();
        let mut text = String::new();
        for (name, state) in parts.iter() {
            let line = match state {
                State::Ready => writeln!(text, "[+]{name} ok"),
                State::Degraded(reason) => writeln!(text, "[!]{name} ready, waiting for {reason}"),
                State::NotReady(reason) => writeln!(text, "[-]{name} waiting for {reason}"),
            };
            line.expect("writing to a String cannot fail");
        }
        text.push_str(if all_ready(&parts) { "ready\n" } else { "not ready\n" });
        text
    }
}

impl ReadyHandle {
    /// The part is ready.
    pub fn ready(&self) {
        self.set(State::Ready);
    }

    /// The part is ready, and not well: `reason` is told on `/readyz?verbose` and fails nothing.
    pub fn degraded(&self, reason: impl Into<Name>) {
        self.set(State::Degraded(reason.into()));
    }

    /// `reason` completes "waiting for …". No secrets: it is printed on `/readyz`.
    pub fn not_ready(&self, reason: impl Into<Name>) {
        self.set(State::NotReady(reason.into()));
    }

    fn set(&self, state: State) {
        self.parts.send_if_modified(|parts| {
            let changed = parts.get(&self.name) != Some(&state);
            if changed {
                parts.insert(self.name.clone(), state);
            }
            changed
        });
    }
}

fn all_ready(parts: &Parts) -> bool {
    parts.values().all(|state| !matches!(state, State::NotReady(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_all_are_and_names_the_rest() {
        let readiness = Readiness::new();
        assert!(readiness.is_ready());
        let snapshot = readiness.task("snapshot");
        let listener = readiness.task("listener");
        listener.ready();
        snapshot.not_ready("the hub's first snapshot");
        assert!(!readiness.is_ready());
        assert_eq!(
            readiness.report(),
            "[+]listener ok\n[-]snapshot waiting for the hub's first snapshot\nnot ready\n"
        );
        snapshot.ready();
        assert!(readiness.is_ready());
        assert!(readiness.report().ends_with("[+]snapshot ok\nready\n"));
        snapshot.degraded("a newer one");
        assert!(readiness.is_ready());
        assert!(
            readiness
                .report()
                .contains("[!]snapshot ready, waiting for a newer one\n")
        );
        snapshot.ready();
        drop(snapshot);
        assert!(readiness.is_ready());
        readiness.begin_shutdown();
        let shutdown = "[-]shutdown waiting for the end of this process\n";
        assert!(!readiness.is_ready() && readiness.report().contains(shutdown));
    }

    #[tokio::test]
    async fn waiters_wake_at_the_last_part() {
        let readiness = Readiness::new();
        let (a, b) = (readiness.task("a"), readiness.task("b"));
        let waiter = readiness.wait_ready();
        tokio::pin!(waiter);
        assert!(futures::poll!(&mut waiter).is_pending());
        a.ready();
        assert!(futures::poll!(&mut waiter).is_pending());
        b.ready();
        waiter.await;
    }
}
