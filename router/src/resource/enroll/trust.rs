//! Which CAs the router trusts: those of `--hub-ca`, until the hub that they verified says otherwise.
//!
//! What it said is kept in the state folder, beside a hash of the file that it replaces: a file that is changed later, or while
//! the router is away, counts again. Caller: `enroll`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use portolan_runtime::files::{self, FileError};
use portolan_runtime::hex;
use portolan_runtime::tls::{CaFile, TlsError, TrustStore};
use sha2::{Digest, Sha256};

/// Name of the file in the state folder.
const TOLD_FILE: &str = "hub-ca.pem";
/// Its first line, which is followed by that hash. PEM ignores it.
const IN_PLACE_OF: &str = "# said by the hub, in place of --hub-ca ";

/// The trusted CAs, with the files that they come from.
#[derive(Debug, Clone)]
pub(crate) struct HubCa {
    given: CaFile,
    told: PathBuf,
    store: Arc<TrustStore>,
}

impl HubCa {
    /// `store` has what `given` has, and follows it.
    pub(crate) fn new(given: CaFile, state_dir: &Path, store: Arc<TrustStore>) -> Self {
        Self {
            given,
            told: state_dir.join(TOLD_FILE),
            store,
        }
    }

    /// Trusts what the hub said last, if the file is as it was then.
    pub(crate) fn recall(&self) {
        let outcome = match files::read(&self.told) {
            Err(error) if error.is_not_found() => return,
            outcome => outcome.map_err(TlsError::from).and_then(|text| self.recalled(&text)),
        };
        match outcome {
            Ok(true) => tracing::info!("trusting the CAs that the hub said last"),
            Ok(false) => tracing::info!("--hub-ca was changed since the hub said which CAs to trust: the file counts"),
            Err(error) => tracing::warn!(%error, "what the hub said of its CAs cannot be used, --hub-ca counts"),
        }
    }

    fn recalled(&self, text: &[u8]) -> Result<bool, TlsError> {
        let text = String::from_utf8_lossy(text);
        let Some((first, pem)) = text.split_once('\n') else {
            return Ok(false);
        };
        let same = first.strip_prefix(IN_PLACE_OF) == Some(self.given_hash()?.as_str());
        if same {
            self.store.set_pem(pem)?;
        }
        Ok(same)
    }

    /// Trusts these CAs and no others, now and after a restart.
    pub(crate) fn replace(&self, pem: &str) -> Result<(), TlsError> {
        // Judged before it is kept.
        TrustStore::from_pem(pem)?;
        let text = format!("{IN_PLACE_OF}{}\n{pem}", self.given_hash()?);
        files::write_public(&self.told, text)?;
        self.store.set_pem(pem)
    }

    fn given_hash(&self) -> Result<String, FileError> {
        let given = match files::read(&self.given.0) {
            // Taken away since: what the hub says goes on being kept.
            Err(error) if error.is_not_found() => Vec::new(),
            given => given?,
        };
        Ok(hex(Sha256::digest(given)))
    }
}

#[cfg(test)]
mod tests {
    use portolan_runtime::pki::CertificateAuthority;

    use super::*;

    #[test]
    fn what_the_hub_says_counts_until_the_file_is_changed() {
        let folder = tempfile::tempdir().unwrap();
        let given = folder.path().join("given.crt");
        let [old, new, other] = [(); 3].map(|()| CertificateAuthority::generate("hub CA").unwrap());
        let bundle = format!("{}{}", old.pem(), new.pem());
        // As the program starts: the file is loaded, then what was said is recalled.
        let start = || {
            let file = CaFile(given.clone());
            let ca = HubCa::new(file.clone(), folder.path(), file.load().unwrap());
            ca.recall();
            ca
        };
        let trusts = |ca: &HubCa, pem: &str| {
            assert_eq!(ca.store.fingerprint(), TrustStore::from_pem(pem).unwrap().fingerprint());
        };
        std::fs::write(&given, old.pem()).unwrap();
        trusts(&start(), old.pem());
        for said in [bundle.as_str(), new.pem()] {
            let ca = start();
            ca.replace(said).unwrap();
            trusts(&ca, said);
            trusts(&start(), said);
            assert!(ca.replace("no certificate").is_err());
            trusts(&start(), said);
        }
        std::fs::write(&given, other.pem()).unwrap();
        trusts(&start(), other.pem());
        std::fs::write(folder.path().join(TOLD_FILE), "spoilt").unwrap();
        trusts(&start(), other.pem());
    }
}
