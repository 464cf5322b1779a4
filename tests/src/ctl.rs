//! `portolanctl` as people type it.

use std::process::Stdio;

use anyhow::{Context as _, bail};
use tokio::process::Command;

use crate::kubectl::Ended;
use crate::programs::program;

/// Runs it to its end.
pub async fn portolanctl(arguments: &[&str]) -> anyhow::Result<Ended> {
    let output = Command::new(program("portolanctl")?)
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("cannot run portolanctl")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Ended {
        ok: output.status.success(),
        code: output.status.code(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    })
}

/// What it printed; an error carries what it complained.
pub async fn ok(arguments: &[&str]) -> anyhow::Result<String> {
    let ended = portolanctl(arguments).await?;
    if !ended.ok {
        bail!("portolanctl {}: {}{}", arguments.join(" "), ended.stdout, ended.stderr);
    }
    Ok(ended.stdout)
}

/// All it printed, complaints included; an error if it went well.
pub async fn refused(arguments: &[&str]) -> anyhow::Result<String> {
    let ended = portolanctl(arguments).await?;
    if ended.ok {
        bail!(
            "portolanctl {} was to be refused, but: {}",
            arguments.join(" "),
            ended.stdout
        );
    }
    Ok(ended.stdout + &ended.stderr)
}
