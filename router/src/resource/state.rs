//! The last good state on disk: what the hub last told and the router accepted, so that a restart without the hub
//! serves on. Holds member tokens: mode 0600, written by rename, never shown on `/configz`. Not a database: whole in,
//! whole out, and a file that does not check out is as good as none. Caller: `subscribe`.

use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use portolan_runtime::files::{self, FileError};
use portolan_wire::v1::Resource;
use portolan_wire::v1::resource::Body;
use prost::Message;
use sha2::{Digest, Sha256};
use thiserror::Error;
use tokio::task::JoinError;

const FILE_NAME: &str = "state.bin";
/// Begins the first line of the file, which ends with the format's number.
const MAGIC: &[u8] = b"portolan-router-state ";
/// Changes with what the wire's resources mean; another one is not read, but for [`EARLIER`].
const FORMAT: &str = "3";
/// Written by routers that lose what is told of a shard's leader lock, and keep the version of what they were told.
const EARLIER: &str = "2";
const DIGEST_BYTES: usize = 32;

/// Why a state file cannot be used.
#[derive(Debug, Error)]
pub(crate) enum StateError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} is not a state file of a router", .0.display())]
    Foreign(PathBuf),
    #[error("{} is of format {format}, and this router reads format {FORMAT}: the hub is waited for instead", path.display())]
    Format { path: PathBuf, format: String },
    #[error("{} is damaged", .0.display())]
    Damaged(PathBuf),
    #[error("the thread that writes the state file ended")]
    Writer(#[from] JoinError),
}

/// The file of one router.
#[derive(Debug, Clone)]
pub(crate) struct StateFile {
    path: PathBuf,
}

/// What a state file kept.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Kept {
    pub(crate) resources: Vec<Resource>,
    /// When the hub was heard last, or earlier.
    pub(crate) heard: SystemTime,
}

impl StateFile {
    pub(crate) fn in_folder(folder: &Path) -> Self {
        Self {
            path: folder.join(FILE_NAME),
        }
    }

    /// Replaces the file, which is as old as the hub's last word. Blocking.
    pub(crate) fn save<'a>(
        &self,
        resources: impl Iterator<Item = &'a Resource>,
        heard: SystemTime,
    ) -> Result<(), StateError> {
        files::write_private(&self.path, encode(resources))?;
        let file = fs::File::options().write(true).open(&self.path);
        Ok(file
            .and_then(|file| file.set_modified(heard))
            .map_err(self.failed("date"))?)
    }

    /// Removes the file, if there is one. Blocking.
    pub(crate) fn remove(&self) -> Result<(), FileError> {
        files::remove(&self.path).map(drop)
    }

    /// `None` if there is no file. Blocking.
    pub(crate) fn load(&self) -> Result<Option<Kept>, StateError> {
        match files::read(&self.path) {
            Ok(bytes) => {
                let heard = fs::metadata(&self.path).and_then(|file| file.modified());
                Ok(Some(Kept {
                    resources: self.decode(&bytes)?,
                    heard: heard.map_err(self.failed("read the date of"))?,
                }))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn failed(&self, operation: &'static str) -> impl FnOnce(io::Error) -> FileError {
        let path = self.path.clone();
        move |source| FileError {
            operation,
            path,
            source,
        }
    }

    fn decode(&self, bytes: &[u8]) -> Result<Vec<Resource>, StateError> {
        let damaged = || StateError::Damaged(self.path.clone());
        let foreign = || StateError::Foreign(self.path.clone());
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(foreign)?;
        let end = rest.iter().position(|byte| *byte == b'\n').ok_or_else(damaged)?;
        let (format, rest) = (&rest[..end], &rest[end + 1..]);
        let is_earlier = format == EARLIER.as_bytes();
        if !is_earlier && format != FORMAT.as_bytes() {
            return Err(StateError::Format {
                path: self.path.clone(),
                format: String::from_utf8_lossy(format).into_owned(),
            });
        }
        let (digest, mut body) = rest.split_at_checked(DIGEST_BYTES).ok_or_else(damaged)?;
        if Sha256::digest(body).as_slice() != digest {
            return Err(damaged());
        }
        let mut resources = Vec::new();
        while !body.is_empty() {
            resources.push(Resource::decode_length_delimited(&mut body).map_err(|_| damaged())?);
        }
        if is_earlier {
            // A version that the hub never gave: it tells them again.
            let shards = resources
                .iter_mut()
                .filter(|one| matches!(one.body, Some(Body::Shard(_))));
            shards.for_each(|shard| shard.version.clear());
        }
        Ok(resources)
    }
}

fn encode<'a>(resources: impl Iterator<Item = &'a Resource>) -> Vec<u8> {
    let body: Vec<u8> = resources.flat_map(Message::encode_length_delimited_to_vec).collect();
    let digest = Sha256::digest(&body);
    [MAGIC, FORMAT.as_bytes(), b"\n", digest.as_slice(), &body].concat()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use std::time::Duration;

    use portolan_wire::v1::{Credential, Shard, Target};

    use super::*;

    fn resources() -> Vec<Resource> {
        let target = Target {
            cluster: "east".into(),
            ..Target::default()
        };
        let credential = Credential {
            cluster: "east".into(),
            identity: "ns/account".into(),
            token: "canary".into(),
            expires_unix_seconds: 7,
        };
        vec![
            Resource {
                version: "1".into(),
                body: Some(Body::Target(target)),
            },
            Resource {
                version: "2".into(),
                body: Some(Body::Credential(credential)),
            },
        ]
    }

    #[test]
    fn what_was_saved_is_loaded_and_nobody_else_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::in_folder(folder.path());
        assert!(file.load().unwrap().is_none());
        for saved in [resources(), Vec::new(), resources()] {
            let heard = SystemTime::now() - Duration::from_mins(4);
            file.save(saved.iter(), heard).unwrap();
            let kept = file.load().unwrap().unwrap();
            let age = heard.duration_since(kept.heard).unwrap_or_default();
            assert!(kept.resources == saved && age < Duration::from_secs(1), "{kept:?}");
        }
        assert_eq!(fs::metadata(&file.path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_of_another_format_is_told_with_both() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::in_folder(folder.path());
        fs::write(&file.path, b"portolan-router-state 1\nanything").unwrap();
        let error = file.load().unwrap_err().to_string();
        assert!(
            error.contains("is of format 1, and this router reads format 3"),
            "{error}"
        );
        fs::write(&file.path, b"something else").unwrap();
        assert!(matches!(file.load(), Err(StateError::Foreign(_))));
    }

    #[test]
    fn of_a_router_that_knew_no_locks_shards_are_of_no_version() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::in_folder(folder.path());
        let mut saved = resources();
        saved.push(Resource {
            version: "3".into(),
            body: Some(Body::Shard(Shard::default())),
        });
        let bytes = encode(saved.iter());
        let at = MAGIC.len();
        let versions = |format: &str| {
            let mut bytes = bytes.clone();
            bytes.splice(at..=at, format.bytes());
            fs::write(&file.path, bytes).unwrap();
            let kept = file.load().unwrap().unwrap().resources;
            kept.into_iter().map(|one| one.version).collect::<Vec<_>>()
        };
        assert_eq!(versions(FORMAT), ["1", "2", "3"]);
        assert_eq!(versions(EARLIER), ["1", "2", ""]);
    }

    #[test]
    fn a_damaged_file_is_told_and_names_no_content() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::in_folder(folder.path());
        let good = encode(resources().iter());
        for cut in [0, MAGIC.len() - 1, MAGIC.len() + 3, good.len() - 1] {
            fs::write(&file.path, &good[..cut]).unwrap();
            let error = file.load().unwrap_err().to_string();
            assert!(error.contains(FILE_NAME) && !error.contains("canary"), "{cut}: {error}");
        }
        let mut flipped = good;
        *flipped.last_mut().unwrap() ^= 1;
        fs::write(&file.path, flipped).unwrap();
        assert!(matches!(file.load(), Err(StateError::Damaged(_))));
    }
}
