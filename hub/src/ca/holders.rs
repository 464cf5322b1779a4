//! Which CAs each connected program trusts, and by which its certificate is: what a rotation waits for.
//!
//! A program that trusts something else than it should, or has a certificate of a CA that is going, is told so on its stream; one
//! whose certificate is of a CA that is gone is sent away. Callers: the sessions (`stream`), `rotation`.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use portolan_wire::identity::Identity;
use portolan_wire::v1;
use rustls_pki_types::CertificateDer;
use tokio::sync::watch;
use tonic::Status;

use super::{Authorities, Current};

/// What is known of a program that is connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    epoch: u64,
    /// Fingerprint of the CAs that it trusts; empty if it cannot be told.
    trusts: String,
    /// Whether its certificate is of the CA that issued when it was looked at.
    issued: bool,
    /// Serial of the CAs that it was looked at by.
    looked_at: u64,
}

/// By identity, in the words of its certificate.
// A lock: sessions write their own entry at their beginning, at changes and at their end.
pub(super) type Holders = Arc<Mutex<BTreeMap<String, Held>>>;

/// A program whose stream is open, as far as CAs go. Forgotten when dropped.
pub(crate) struct Holder {
    name: String,
    chain: Vec<CertificateDer<'static>>,
    held: Held,
    holders: Holders,
    changes: watch::Receiver<Arc<Current>>,
    /// What was looked at last.
    looked: Option<Arc<Current>>,
}

impl Authorities {
    /// A stream of this program begins, with this chain (leaf first); its Hello says what it trusts.
    pub(crate) fn holder(
        &self,
        identity: &Identity,
        epoch: u64,
        chain: Vec<CertificateDer<'static>>,
        trusts: String,
    ) -> Holder {
        Holder {
            name: identity.common_name(),
            chain,
            held: Held {
                epoch,
                trusts,
                issued: false,
                looked_at: 0,
            },
            holders: self.holders.clone(),
            changes: self.current.subscribe(),
            looked: None,
        }
    }

    /// Why a rotation cannot go on for this program; `None` if it can.
    pub(crate) fn waits_for(&self, identity: &Identity) -> Option<Waits> {
        let current = self.current();
        let holders = self.holders.lock();
        let Some(held) = holders.get(&identity.common_name()) else {
            return Some(Waits::Away);
        };
        if held.trusts.is_empty() {
            Some(Waits::Deaf)
        } else if held.trusts != current.fingerprint {
            Some(Waits::Trust)
        } else {
            // The session may be busy: what it found before a step says nothing after it.
            (!held.issued || held.looked_at != current.serial).then_some(Waits::Certificate)
        }
    }
}

/// What a program has not done yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// It is not connected.
    Away,
    /// Its release cannot be told.
    Deaf,
    Trust,
    Certificate,
}

impl Holder {
    /// Completes with what the program is to be told, or with why it may not stay. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Result<v1::Trust, Status> {
        loop {
            let current = self.changes.borrow_and_update().clone();
            let seen = self.looked.as_ref().is_some_and(|looked| Arc::ptr_eq(looked, &current));
            if !seen {
                self.looked = Some(current.clone());
                if let Some(told) = self.look(&current)? {
                    return Ok(told);
                }
            }
            if self.changes.changed().await.is_err() {
                // The hub is stopping.
                std::future::pending::<()>().await;
            }
        }
    }

    fn look(&mut self, current: &Current) -> Result<Option<v1::Trust>, Status> {
        if !current.trust.verifies_client(&self.chain) {
            return Err(Status::permission_denied(
                "the certificate is of a CA that the hub does not trust any more",
            ));
        }
        self.held.issued = current.issuer.verifies_client(&self.chain);
        self.held.looked_at = current.serial;
        self.holders.lock().insert(self.name.clone(), self.held.clone());
        let is_news = self.held.trusts != current.fingerprint || !self.held.issued;
        Ok((is_news && !self.held.trusts.is_empty()).then(|| v1::Trust {
            ca_pem: current.bundle.clone(),
            renew: !self.held.issued,
        }))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let mut holders = self.holders.lock();
        // A later stream of the same program has an entry of its own.
        if holders
            .get(&self.name)
            .is_some_and(|held| held.epoch == self.held.epoch)
        {
            holders.remove(&self.name);
        }
    }
}
