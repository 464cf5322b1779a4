//! This router's shares of limits on disk: one that restarts without the hub keeps to the last it was told, and to no more.
//!
//! A share that shrank must be in the file before the hub hears that it did, as another router has the rest from then on.
//! Written by rename; a file that does not check out is as good as none, which is no share at all. Caller: `subscribe`.

use std::path::{Path, PathBuf};

use portolan_runtime::Chain;
use portolan_runtime::files::{self, FileError};
use portolan_wire::v1;
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::ToldShares;

const FILE_NAME: &str = "shares.bin";
/// Ends with the format's number: another one is not read.
const HEAD: &[u8] = b"portolan-router-shares 1\n";
const DIGEST_BYTES: usize = 32;

/// The file of one router.
#[derive(Debug, Clone)]
pub(crate) struct SharesFile {
    path: PathBuf,
}

impl SharesFile {
    pub(crate) fn in_folder(folder: &Path) -> Self {
        Self {
            path: folder.join(FILE_NAME),
        }
    }

    /// Replaces the file. Blocking.
    pub(crate) fn save(&self, told: &ToldShares) -> Result<(), FileError> {
        let body = told.to_wire().encode_to_vec();
        files::write_private(&self.path, [HEAD, Sha256::digest(&body).as_slice(), &body].concat())
    }

    /// What was told last; nothing if there is no file that can be read. Blocking.
    pub(crate) fn load(&self) -> ToldShares {
        let bytes = match files::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) => {
                if !error.is_not_found() {
                    tracing::warn!(error = %Chain(&error), "shares of limits are not known until the hub tells them");
                }
                return ToldShares::default();
            }
        };
        decode(&bytes).map_or_else(
            || {
                let path = self.path.display();
                tracing::warn!(%path, "the file is damaged: shares of limits are not known until the hub tells them");
                ToldShares::default()
            },
            |shares| ToldShares::of(&shares),
        )
    }
}

fn decode(bytes: &[u8]) -> Option<v1::Shares> {
    let (digest, body) = bytes.strip_prefix(HEAD)?.split_at_checked(DIGEST_BYTES)?;
    let whole = Sha256::digest(body).as_slice() == digest;
    v1::Shares::decode(body).ok().filter(|_| whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_survive_and_a_damaged_file_is_no_share() {
        let folder = tempfile::tempdir().unwrap();
        let file = SharesFile::in_folder(folder.path());
        assert_eq!(file.load(), ToldShares::default());
        let told = ToldShares {
            revision: 7,
            shares: [(("u1".into(), "all".into()), 250_000), (("u2".into(), "all".into()), 0)].into(),
            ..ToldShares::default()
        };
        file.save(&told).unwrap();
        assert_eq!(file.load(), told);
        let mut bytes = std::fs::read(&file.path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        for spoilt in [&bytes[..], &bytes[..bytes.len() - 1], b"", HEAD] {
            std::fs::write(&file.path, spoilt).unwrap();
            assert_eq!(file.load(), ToldShares::default());
        }
    }
}
