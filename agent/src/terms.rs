//! The highest term of a hub that this agent has heard, kept in its member: of two hubs the one of before gives no orders.
//!
//! Callers: `stream`, at each word that tells a term.

use std::sync::atomic::{AtomicU64, Ordering};

use portolan_runtime::Chain;
use thiserror::Error;

use crate::join::identity::IdentitySecret;

/// A hub that is not the hub any more.
#[derive(Debug, Error)]
#[error("its term is {theirs}, and this agent has heard a hub of term {highest}: it is not the hub any more")]
pub(crate) struct Superseded {
    theirs: u64,
    highest: u64,
}

/// What is known of terms.
#[derive(Debug)]
pub(crate) struct Terms {
    secret: IdentitySecret,
    // Atomics: one session at a time changes them.
    highest: AtomicU64,
    kept: AtomicU64,
}

impl Terms {
    /// Nothing is known until it is loaded.
    pub(crate) fn new(secret: IdentitySecret) -> Self {
        Self {
            secret,
            highest: AtomicU64::new(0),
            kept: AtomicU64::new(0),
        }
    }

    /// What an earlier process has kept. Where that cannot be read, a hub is heard all the same: the member may be away for long.
    pub(crate) async fn load(&self) {
        match self.secret.term().await {
            Ok(term) => {
                self.highest.fetch_max(term, Ordering::Relaxed);
                self.kept.fetch_max(term, Ordering::Relaxed);
            }
            Err(error) => tracing::warn!(error = %Chain(&error), "the last term of the hub is not known"),
        }
    }

    /// The hub that speaks has this term; 0: it is of before there were any. It is kept before what it says counts, if it can be.
    pub(crate) async fn hear(&self, term: u64) -> Result<(), Superseded> {
        let highest = self.highest.fetch_max(term, Ordering::Relaxed);
        if term != 0 && term < highest {
            return Err(Superseded { theirs: term, highest });
        }
        if self.kept.load(Ordering::Relaxed) < term {
            match self.secret.note_term(term).await {
                Ok(()) => self.kept.store(term, Ordering::Relaxed),
                Err(error) => tracing::warn!(error = %Chain(&error), "the hub's term is not kept yet"),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use crate::testing::answering;

    #[tokio::test]
    async fn a_lower_term_than_was_kept_is_refused() {
        let writes = std::sync::Arc::<Mutex<usize>>::default();
        let counted = writes.clone();
        let client = answering(move |method, _| {
            if method == Method::PUT {
                *counted.lock() += 1;
            }
            // What an earlier process kept: 7.
            Ok(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "data": {"term": "Nw=="}}))
        });
        let terms = Terms::new(IdentitySecret::new(client, "portolan-system"));
        terms.load().await;
        assert!(terms.hear(6).await.is_err());
        terms.hear(7).await.unwrap();
        terms.hear(0).await.unwrap();
        assert_eq!(*writes.lock(), 0, "it is kept already");
        terms.hear(8).await.unwrap();
        assert_eq!(*writes.lock(), 1);
        assert!(terms.hear(7).await.is_err());
    }
}
