//! Where the built programs are: beside the test binary, in the profile's folder of the target directory.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

/// The file of a program of this workspace, built by `make programs`.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let mut dir = std::env::current_exe().context("cannot tell where this program is")?;
    dir.pop();
    if dir.ends_with("deps") {
        dir.pop();
    }
    let file = dir.join(name);
    ensure!(
        file.is_file(),
        "{} is not built: run `make programs`, or cargo build -p for its package",
        file.display()
    );
    Ok(file)
}

/// A path as a command-line argument.
pub fn argument(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
