//! Files that must be whole or absent, with errors that name the path.
//!
//! Writes go to a temporary file in the same folder, are synced, then renamed: a reader sees the old bytes or
//! the new ones, and a crash leaves the old. Blocking: call at startup or from `spawn_blocking`, never in a
//! request. Callers: state files, kubeconfigs and private keys of every program.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Owner may read and write, nobody else anything: for what holds a secret.
const PRIVATE_MODE: u32 = 0o600;
/// Everybody may read: certificates, CA bundles.
const PUBLIC_MODE: u32 = 0o644;

/// An operation on one path that failed.
#[derive(Debug, Error)]
#[error("cannot {operation} {}: {source}", .path.display())]
pub struct FileError {
    /// A verb: "read", "write", "sync".
    pub operation: &'static str,
    /// The file it was about.
    pub path: PathBuf,
    /// What the system says.
    #[source]
    pub source: io::Error,
}

impl FileError {
    /// Whether there is no such file.
    pub fn is_not_found(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }

    /// Whether a write failed so late that the file may have the old bytes or the new ones, now or after a crash.
    pub fn may_have_replaced(&self) -> bool {
        self.operation == RENAME || self.operation == SYNC_FOLDER
    }
}

/// From here on the new bytes may be what a reader finds.
const RENAME: &str = "rename a temporary file to";
/// By then they are; without it a crash may bring the old ones back.
const SYNC_FOLDER: &str = "sync the folder";

/// Reads a whole file.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<u8>, FileError> {
    let path = path.as_ref();
    fs::read(path).map_err(failed("read", path))
}

/// Removes a file, for good: a crash does not bring it back. False if there was none.
pub fn remove(path: impl AsRef<Path>) -> Result<bool, FileError> {
    let path = path.as_ref();
    match fs::remove_file(path) {
        Ok(()) => sync_folder(path).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed("remove", path)(error)),
    }
}

/// Replaces `path` atomically with mode 0600.
pub fn write_private(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Result<(), FileError> {
    replace(path.as_ref(), bytes.as_ref(), PRIVATE_MODE)
}

/// Replaces `path` atomically with mode 0644.
pub fn write_public(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Result<(), FileError> {
    replace(path.as_ref(), bytes.as_ref(), PUBLIC_MODE)
}

fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), FileError> {
    let temporary = temporary_beside(path);
    let outcome = write_new(&temporary, bytes, mode)
        .and_then(|()| fs::rename(&temporary, path).map_err(failed(RENAME, path)))
        .and_then(|()| sync_folder(path));
    if outcome.is_err() {
        // Already failing; a leftover is only untidy.
        let _ = fs::remove_file(&temporary);
    }
    outcome
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), FileError> {
    // create_new: a file planted under this name would keep its own, wider mode.
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .map_err(failed("create", path))?;
    file.write_all(bytes).map_err(failed("write", path))?;
    file.sync_all().map_err(failed("sync", path))
}

/// A rename is durable once its folder is synced.
fn sync_folder(path: &Path) -> Result<(), FileError> {
    let folder = folder_of(path);
    File::open(folder)
        .and_then(|file| file.sync_all())
        .map_err(failed(SYNC_FOLDER, folder))
}

fn temporary_beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    folder_of(path).join(format!(".{name}.{:016x}.tmp", rand::random::<u64>()))
}

fn folder_of(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    move |source| FileError {
        operation,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn replaces_whole_and_private_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        fs::write(&path, b"a longer and world readable file").unwrap();
        write_private(&path, b"new").unwrap();
        assert_eq!(read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn errors_name_the_path_and_clean_up() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("no/such/file");
        let error = write_private(&missing, b"x").unwrap_err();
        assert!(error.to_string().contains("no/such"), "{error}");
        assert!(!error.may_have_replaced(), "nothing was replaced");
        assert!(error.is_not_found() && read(&missing).unwrap_err().is_not_found());

        let occupied = folder.path().join("folder");
        fs::create_dir(&occupied).unwrap();
        let error = write_private(&occupied, b"x").unwrap_err();
        assert!(error.to_string().contains("folder"), "{error}");
        assert!(error.may_have_replaced(), "not every file system says what it did");
        let error = sync_folder(&folder.path().join("gone/file")).unwrap_err();
        assert!(error.may_have_replaced(), "it was renamed by then");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
