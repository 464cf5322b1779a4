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
    /// The join whose hub's terms these are: hash of its bootstrap token.
    join: String,
}

impl Terms {
    /// Nothing is known until it is loaded.
    pub(crate) fn new(secret: IdentitySecret) -> Self {
        Self {
            secret,
            highest: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            join: String::new(),
        }
    }

    /// What an earlier process has kept. Where that cannot be read, a hub is heard all the same: the member may be away for long.
    /// `join`: of the identity in use; what the hub of another one said counts no more.
    pub(crate) async fn load(&mut self, join: &str) {
        if self.join != join {
            join.clone_into(&mut self.join);
            *self.highest.get_mut() = 0;
            *self.kept.get_mut() = 0;
        }
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
    use kube::Client;
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use std::sync::Arc;

    use super::*;
    use crate::join::identity::tests::identity;
    use crate::testing::{answering, answering_bodies};

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
        let mut terms = Terms::new(IdentitySecret::new(client, "portolan-system"));
        terms.load("join").await;
        assert!(terms.hear(6).await.is_err());
        terms.hear(7).await.unwrap();
        terms.hear(0).await.unwrap();
        assert_eq!(*writes.lock(), 0, "it is kept already");
        terms.hear(8).await.unwrap();
        assert_eq!(*writes.lock(), 1);
        assert!(terms.hear(7).await.is_err());
    }
    /// An API server with the one Secret, which refuses what is written by an older version of it. `meanwhile` is done to it after the
    /// first read.
    fn one_secret(meanwhile: Value) -> (Client, Arc<Mutex<Value>>) {
        let kept = Arc::new(Mutex::new(json!({})));
        let (secret, meanwhile) = (kept.clone(), Mutex::new(Some(meanwhile)));
        let client = answering_bodies(move |method, _, body| {
            let mut secret = secret.lock();
            let version = |secret: &Value| {
                secret["metadata"]["resourceVersion"]
                    .as_str()
                    .map_or(0, |text| text.parse().unwrap())
            };
            let was: u32 = version(&secret);
            if method == Method::GET {
                let answer = secret.clone();
                if let Some(data) = meanwhile.lock().take().filter(|data| !data.is_null()) {
                    secret["data"] = data;
                    secret["metadata"]["resourceVersion"] = json!((was + 1).to_string());
                }
                return if was == 0 { Err(404) } else { Ok(answer) };
            }
            let said = &body["metadata"]["resourceVersion"];
            if !said.is_null() && version(&body) != was {
                return Err(409);
            }
            *secret = body;
            secret["metadata"]["resourceVersion"] = json!((was + 1).to_string());
            Ok(secret.clone())
        });
        (client, kept)
    }

    #[tokio::test]
    async fn the_term_of_the_hub_of_before_goes_with_a_join_and_stays_with_a_renewal() {
        let (client, kept) = one_secret(Value::Null);
        *kept.lock() = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x", "resourceVersion": "1"}});
        let secret = IdentitySecret::new(client, "portolan-system");
        let mine = identity("portolan:agent:east", "portolan:agents").unwrap();
        secret.store_joined(&mine).await.unwrap();
        let mut terms = Terms::new(secret.clone());
        terms.load("first").await;
        terms.hear(7).await.unwrap();
        secret.store(&mine).await.unwrap();
        assert_eq!(secret.term().await.unwrap(), 7, "it was renewed");
        terms.load("first").await;
        assert!(terms.hear(3).await.is_err());
        secret.store_joined(&mine).await.unwrap();
        terms.load("second").await;
        terms.hear(3).await.unwrap();
        assert_eq!(secret.term().await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_term_that_is_noted_while_an_identity_is_written_is_not_lost() {
        // 7.
        let (client, kept) = one_secret(json!({"term": "Nw=="}));
        *kept.lock() = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x", "resourceVersion": "1"}});
        let secret = IdentitySecret::new(client, "portolan-system");
        let mine = identity("portolan:agent:east", "portolan:agents").unwrap();
        secret.store(&mine).await.unwrap();
        assert_eq!(secret.term().await.unwrap(), 7);
    }
}
