//! The small disk of the router's state, filled and emptied by the way that the kernel has into the router's mount namespace.

use std::fs::{File, Metadata};
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;

use crate::ground::Ground;

async fn folder(ground: &Ground) -> anyhow::Result<PathBuf> {
    let pid = ground.router.lock().await.pid().context("the router runs")?;
    let state = ground.state_dir();
    let state = state.strip_prefix("/").unwrap_or(&state);
    Ok(PathBuf::from(format!("/proc/{pid}/root")).join(state))
}

/// Leaves no byte.
pub(crate) async fn fill(ground: &Ground) -> anyhow::Result<()> {
    let folder = folder(ground).await?;
    anyhow::ensure!(folder.join("state.bin").exists(), "no state in {}", folder.display());
    let mut file = File::create(folder.join("filler"))?;
    let full = loop {
        if let Err(error) = file.write_all(&[0; 512]) {
            break error;
        }
    };
    anyhow::ensure!(full.kind() == std::io::ErrorKind::StorageFull, "{full}");
    Ok(())
}

pub(crate) async fn empty(ground: &Ground) -> anyhow::Result<()> {
    std::fs::remove_file(folder(ground).await?.join("filler"))?;
    Ok(())
}

/// Of the state file, as it is now.
pub(crate) async fn state(ground: &Ground) -> anyhow::Result<Metadata> {
    Ok(std::fs::metadata(folder(ground).await?.join("state.bin"))?)
}
