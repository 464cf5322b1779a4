//! Programs of this machine that a network of our own and a Node cannot do without, by absolute path: the folders of
//! administrators are seldom in a user's `PATH`.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// Where programs are looked for after `PATH`.
const MORE: [&str; 5] = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// Where the programs are that make a network.
#[derive(Clone, Debug)]
pub(crate) struct System {
    /// A POSIX shell.
    pub(crate) sh: String,
    /// Of util-linux.
    pub(crate) unshare: String,
    /// Of iproute2.
    pub(crate) ip: String,
}

impl System {
    /// The error names what is missing, and the package that has it.
    pub(crate) fn find() -> Result<Self> {
        Ok(Self {
            sh: find("sh", "any POSIX shell")?,
            unshare: find("unshare", "package util-linux")?,
            ip: find("ip", "package iproute2")?,
        })
    }
}

/// `PATH`, and the folders where a system has its own programs.
pub(crate) fn path() -> String {
    let path = std::env::var_os("PATH").unwrap_or_default();
    [&[&*path.to_string_lossy()], &MORE[..]].concat().join(":")
}

/// An executable by its name, in `PATH` and where the system has its own.
pub(crate) fn find(name: &str, from: &str) -> Result<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(MORE.iter().map(PathBuf::from));
    folders
        .filter(|folder| folder.is_absolute())
        .filter_map(|folder| folder.join(name).into_os_string().into_string().ok())
        .find(|file| is_file(file))
        .with_context(|| format!("{name} is missing ({from})"))
}

fn is_file(path: &str) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        assert!(find("sh", "").unwrap().starts_with('/'));
        let missing = find("no-such-program", "package none").unwrap_err().to_string();
        assert_eq!(missing, "no-such-program is missing (package none)");
    }
}
