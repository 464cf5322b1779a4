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

/// `None` is ready, otherwise what the part waits for.
type Parts = BTreeMap<Name, Option<Name>>;

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

    /// All parts by name, and what each waits for if it is not ready.
    pub fn checks(&self) -> Vec<(String, Option<String>)> {
        let owned = |(name, state): (&Name, &Option<Name>)| (name.to_string(), state.as_ref().map(ToString::to_string));
        self.parts.borrow().iter().map(owned).collect()
    }

    /// One line a part, as the API server's `/readyz?verbose` writes them.
    pub fn report(&self) -> String {
        let parts = self.parts.borrow();
        let mut text = String::new();
        for (name, state) in parts.iter() {
            let line = match state {
                None => writeln!(text, "[+]{name} ok"),
                Some(reason) => writeln!(text, "[-]{name} waiting for {reason}"),
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
        self.set(None);
    }

    /// `reason` completes "waiting for …". No secrets: it is printed on `/readyz`.
    pub fn not_ready(&self, reason: impl Into<Name>) {
        self.set(Some(reason.into()));
    }

    fn set(&self, state: Option<Name>) {
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
    parts.values().all(Option::is_none)
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
