//! A program of this machine, and what it takes to run it elsewhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::archive::Content;

/// CA certificates as Debian, Alpine and Arch have them: programs look for them at the same place in an image.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The shared libraries that a program loads and the program that loads them, at the paths where ldd(1) finds them.
pub(super) fn libraries(program: &Path) -> Result<Vec<Content>> {
    let output = Command::new("ldd").arg(program).output().context("running ldd")?;
    let said = String::from_utf8_lossy(&output.stdout);
    // "libc.so.6 => /lib/libc.so.6 (0x…)", "/lib64/ld-linux.so.2 (0x…)"; of a program without any it says so, and fails.
    let paths = said.lines().filter_map(|line| {
        let path = line.split_once("=> ").map_or(line.trim(), |(_, path)| path);
        path.starts_with('/').then(|| path.split(' ').next().unwrap_or(path))
    });
    let mut found = paths.map(|path| file(path, 0o755)).collect::<Result<Vec<_>>>()?;
    found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

/// Whom programs trust outside of clusters: collectors of traces.
pub(super) fn certificates() -> Result<Content> {
    file(CERTIFICATES, 0o644).context("no CA certificates: install the package ca-certificates")
}

fn file(path: &str, mode: u32) -> Result<Content> {
    Ok(Content {
        path: PathBuf::from(path.trim_start_matches('/')),
        mode,
        bytes: fs::read(path).with_context(|| format!("reading {path}"))?,
    })
}

/// The program without debug information. What names the file that has it stays.
pub(super) fn stripped(program: &Path) -> Result<Vec<u8>> {
    let into = tempfile::NamedTempFile::new()?;
    let output = Command::new("strip")
        .args(["--keep-section=.gnu_debuglink", "-o"])
        .args([into.path(), program])
        .output();
    let output = output.context("running strip (package binutils)")?;
    ensure!(
        output.status.success(),
        "strip: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(fs::read(into.path())?)
}
