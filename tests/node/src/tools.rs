//! Programs of this machine that the node cannot do without: they make and enter namespaces, which Rust does not without
//! unsafe code. Found once, by absolute path, because they are started with the environment of containers.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// Where programs are looked for after `PATH`: that of a user seldom has the folders of administrators.
const MORE: [&str; 5] = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// Where the programs are.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    /// A POSIX shell.
    pub(crate) sh: String,
    /// Of util-linux, as [`Self::nsenter`].
    pub(crate) unshare: String,
    pub(crate) nsenter: String,
    /// Of iproute2.
    pub(crate) ip: String,
}

impl Tools {
    /// The error names what is missing, and the package that has it.
    pub(crate) fn find() -> Result<Self> {
        Ok(Self {
            sh: find("sh", "any POSIX shell")?,
            unshare: find("unshare", "package util-linux")?,
            nsenter: find("nsenter", "package util-linux")?,
            ip: find("ip", "package iproute2")?,
        })
    }
}

/// An executable by its name, in `PATH` and where the system has its own.
fn find(name: &str, from: &str) -> Result<String> {
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
