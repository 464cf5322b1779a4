//! Whether every write that earlier processes have sent is answered, as far as their state folder tells: there was no such process, or
//! the last one ended by itself, after its last answer, and left a file that says so.
//!
//! The file is gone before the next process serves anything: one that is killed leaves none. Two processes of one name, or a folder
//! from a backup, the hub finds out (`docs/semantics.md#handover`). Callers: `app` asks at the start, `subscribe` leaves it at the end.

use std::fs;
use std::path::{Path, PathBuf};

use portolan_runtime::files::{self, FileError};

const FILE_NAME: &str = "ended";
/// What a new file system has in its first folder.
const OF_THE_FILE_SYSTEM: &str = "lost+found";

/// The file of one state folder.
#[derive(Debug, Clone)]
pub(crate) struct EndedFile {
    folder: PathBuf,
}

impl EndedFile {
    pub(crate) fn in_folder(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
        }
    }

    /// Whether no write of an earlier process with this folder is open; from then on the folder tells so no more. To be called before
    /// anything is kept there or served. Blocking.
    pub(crate) fn take(&self) -> Result<bool, FileError> {
        Ok(files::remove(self.file())? || self.is_new()?)
    }

    /// This process has sent its last write, and all are answered, those of earlier ones too. Blocking.
    pub(crate) fn leave(&self) -> Result<(), FileError> {
        files::write_private(self.file(), b"every write is answered\n")
    }

    fn file(&self) -> PathBuf {
        self.folder.join(FILE_NAME)
    }

    /// A router keeps its identity here before it has anything to serve.
    fn is_new(&self) -> Result<bool, FileError> {
        let failed = |source| FileError {
            operation: "list",
            path: self.folder.clone(),
            source,
        };
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            if entry.map_err(failed)?.file_name() != OF_THE_FILE_SYSTEM {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_folder_and_an_orderly_end_are_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = EndedFile::in_folder(folder.path());
        fs::create_dir(folder.path().join(OF_THE_FILE_SYSTEM)).unwrap();
        assert!(file.take().unwrap(), "nothing was ever kept there");
        fs::write(folder.path().join("identity.pem"), "").unwrap();
        assert!(!file.take().unwrap(), "who kept that was killed");
        file.leave().unwrap();
        assert!(file.take().unwrap());
        assert!(!file.take().unwrap(), "who took it was killed");
    }

    #[test]
    fn a_folder_that_cannot_be_read_tells_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = EndedFile::in_folder(&folder.path().join("none"));
        file.take().unwrap_err();
        file.leave().unwrap_err();
    }
}
