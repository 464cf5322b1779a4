//! The highest term of a hub that this router has heard, kept over restarts: of two hubs the one of before is not listened to.

use std::path::{Path, PathBuf};

use portolan_runtime::Chain;
use portolan_runtime::files::{self, FileError};

const FILE_NAME: &str = "term";

/// The file of one state folder, and what is known beyond it.
#[derive(Debug)]
pub(super) struct Term {
    path: PathBuf,
    highest: u64,
    /// The term that the file says.
    written: u64,
    /// Writes in a row that failed.
    failures: u32,
}

impl Term {
    /// Nothing is known until it is loaded.
    pub(super) fn in_folder(folder: &Path) -> Self {
        Self {
            path: folder.join(FILE_NAME),
            highest: 0,
            written: 0,
            failures: 0,
        }
    }

    /// A file that says nothing warns, and counts as none: the hub would be refused for ever by one that says too much. Blocking.
    pub(super) fn load(&mut self) {
        match files::read(&self.path) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                if let Ok(term) = text.trim().parse() {
                    (self.highest, self.written) = (term, term);
                } else {
                    tracing::warn!(path = %self.path.display(), "the file tells no term");
                }
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => tracing::warn!(error = %Chain(&error), "the last term of the hub is not known"),
        }
    }

    /// The hub that speaks has this term; 0: it is of before there were any.
    ///
    /// # Errors
    /// The highest one, if this is lower.
    pub(super) fn hear(&mut self, term: u64) -> Result<(), u64> {
        if term != 0 && term < self.highest {
            return Err(self.highest);
        }
        self.highest = self.highest.max(term);
        Ok(())
    }

    /// Whether a restart remembers it.
    pub(super) fn is_written(&self) -> bool {
        self.written == self.highest
    }

    /// Writes in a row that failed.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// Writes what is not written. A failure warns.
    pub(super) async fn write(&mut self) {
        // Until it succeeds, also when it is dropped.
        self.failures += 1;
        let (path, term) = (self.path.clone(), self.highest);
        let write = tokio::task::spawn_blocking(move || files::write_private(path, format!("{term}\n")));
        match write.await {
            Ok(Ok(())) => (self.written, self.failures) = (term, 0),
            Ok(Err(error)) => warn(&error),
            Err(error) => tracing::warn!(%error, "the thread that writes the hub's term ended"),
        }
    }
}

fn warn(error: &FileError) {
    tracing::warn!(error = %Chain(error), "the hub's term was not written");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lower_term_is_refused_also_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let mut term = Term::in_folder(folder.path());
        term.load();
        assert_eq!(term.hear(7), Ok(()));
        assert!(!term.is_written());
        term.write().await;
        assert!(term.is_written());
        assert_eq!((term.hear(6), term.hear(7), term.hear(0)), (Err(7), Ok(()), Ok(())));
        let mut term = Term::in_folder(folder.path());
        term.load();
        assert_eq!((term.hear(6), term.hear(8)), (Err(7), Ok(())));
        std::fs::write(folder.path().join(FILE_NAME), "many").unwrap();
        let mut term = Term::in_folder(folder.path());
        term.load();
        assert_eq!(term.hear(1), Ok(()));
    }
}
