//! Files that hold a secret: keys, and kubeconfigs with one inside.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};

/// Writes a file that holds a secret: mode 0600 from its first byte.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let _ = fs::remove_file(path);
        let mut file = fs::File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(text.as_bytes())
    };
    write().with_context(|| format!("writing {}", path.display()))
}
