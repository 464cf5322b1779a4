//! Where the built programs are (beside the test binary, in the profile's folder of the target directory), and what their
//! admin servers answer.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};

/// The file of a program of this workspace, built by `make programs`.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let file = folder()?.join(name);
    ensure!(
        file.is_file(),
        "{} is not built: run `make programs`, or cargo build -p for its package",
        file.display()
    );
    Ok(file)
}

/// `PORTOLAN_PROGRAMS`: where programs are that are built otherwise than those beside the test.
pub fn chosen() -> Option<PathBuf> {
    let dir = std::env::var_os("PORTOLAN_PROGRAMS").filter(|dir| !dir.is_empty());
    dir.map(PathBuf::from)
}

fn folder() -> anyhow::Result<PathBuf> {
    if let Some(dir) = chosen() {
        return Ok(dir);
    }
    let mut dir = std::env::current_exe().context("cannot tell where this program is")?;
    dir.pop();
    if dir.ends_with("deps") {
        dir.pop();
    }
    Ok(dir)
}

/// A path as a command-line argument.
pub fn argument(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The body of one GET of a program's admin server; an error unless it is 200.
pub async fn admin_get(address: &str, path: &str) -> anyhow::Result<String> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address)
        .await
        .with_context(|| format!("no admin server at {address}"))?;
    stream
        .write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a head")?;
    if head.split(' ').nth(1) != Some("200") {
        bail!("{path}: {} {body}", head.lines().next().unwrap_or_default());
    }
    Ok(body.to_owned())
}
