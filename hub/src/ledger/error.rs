//! What can be wrong with the ledger.

use kube::Error as KubeError;
use thiserror::Error;

use super::import::ImportError;

/// Why the ledger cannot be read or written.
#[derive(Debug, Error)]
pub(crate) enum LedgerError {
    #[error(
        "another hub has started: ConfigMap {name} has term {theirs}, and this hub's is {ours}. One hub writes the ledger: \
         this one ends"
    )]
    Superseded { name: String, ours: u64, theirs: u64 },
    #[error(
        "ConfigMap {name} of the ledger was {what} by someone else: the hub does not go on without knowing who holds what. \
         Put it back, or see portolanctl ledger adopt --help"
    )]
    Edited { name: String, what: &'static str },
    #[error("ConfigMap {name} of the ledger: {reason}. Put it back, or see portolanctl ledger adopt --help")]
    Damaged { name: String, reason: String },
    #[error("{0}: who holds which namespace must be told once, by portolanctl ledger adopt")]
    Import(#[from] ImportError),
    #[error("cannot {what} ConfigMap {name} of the ledger")]
    Kube {
        what: &'static str,
        name: String,
        #[source]
        source: Box<KubeError>,
    },
    #[error("ConfigMap {name} of the ledger was not written in time")]
    Late { name: String },
    #[error(
        "ConfigMap {name} of the ledger was {what} while the ledger was taken over, by the hub of before for example"
    )]
    Overtaken { name: String, what: &'static str },
}

impl LedgerError {
    /// Whether trying again is of no use.
    pub(crate) fn is_final(&self) -> bool {
        !matches!(self, Self::Kube { .. } | Self::Late { .. } | Self::Overtaken { .. })
    }

    /// Whether the ConfigMap was not as it was left.
    pub(super) fn is_conflict(&self) -> bool {
        let Self::Kube { source, .. } = self else { return false };
        matches!(&**source, KubeError::Api(status) if [404, 409].contains(&status.code))
    }
}

pub(super) fn failed(what: &'static str, name: &str, error: KubeError) -> LedgerError {
    LedgerError::Kube {
        what,
        name: name.to_owned(),
        source: Box::new(error),
    }
}

pub(super) fn damaged(name: &str, reason: impl std::fmt::Display) -> LedgerError {
    LedgerError::Damaged {
        name: name.to_owned(),
        reason: reason.to_string(),
    }
}
