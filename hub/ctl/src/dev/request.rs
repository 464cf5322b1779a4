//! What the supervisor is asked to do with a program: a file in the folder, which it looks for and takes away.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use portolan_runtime::files;

/// What to do with a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "the file's content is the variant's name")]
pub(crate) enum Request {
    restart,
    stop,
}

impl Request {
    const ALL: [Self; 2] = [Self::restart, Self::stop];

    fn file(dir: &Path, program: &str) -> PathBuf {
        dir.join(format!("{program}.request"))
    }

    /// What was asked for, if anything; it is not asked for any more.
    pub(crate) fn take(dir: &Path, program: &str) -> Option<Self> {
        let file = Self::file(dir, program);
        let text = std::fs::read_to_string(&file).ok()?;
        let _ = std::fs::remove_file(&file);
        Self::ALL.into_iter().find(|request| text == format!("{request:?}"))
    }

    pub(crate) fn ask(self, dir: &Path, program: &str) -> anyhow::Result<()> {
        files::write_private(Self::file(dir, program), format!("{self:?}")).context("cannot ask the supervisor")
    }
}
