//! Certificates for people to compare. Caller: `portolanctl ca show`.

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use sha2::{Digest, Sha256};

use super::{PkiError, Subject, subject_of};
use crate::hex::hex;

/// A certificate as a person may want to compare it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// What it says of its owner.
    pub subject: Subject,
    /// Of the whole certificate, in hex.
    pub sha256: String,
}

/// Reads all certificates of a PEM text. Verifies nothing.
pub fn certificates(pem: &str) -> Result<Vec<Shown>, PkiError> {
    let all = CertificateDer::pem_slice_iter(pem.as_bytes());
    all.map(|der| {
        let der = der.map_err(|error| PkiError::Certificate(error.to_string()))?;
        Ok(Shown {
            subject: subject_of(&der)?,
            sha256: hex(Sha256::digest(&der)),
        })
    })
    .collect()
}
