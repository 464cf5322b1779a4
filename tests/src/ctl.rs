//! `portolanctl` as people type it.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, bail, ensure};
use portolan_testbed::eventually;
use serde_json::Value;
use tokio::process::Command;

use crate::kubectl::Ended;
use crate::programs::{argument, program};

/// Runs it to its end.
pub async fn portolanctl(arguments: &[&str]) -> anyhow::Result<Ended> {
    let output = Command::new(program("portolanctl")?)
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("cannot run portolanctl")?;
    Ok(Ended::of(&output))
}

/// What it printed; an error carries what it complained.
pub async fn ok(arguments: &[&str]) -> anyhow::Result<String> {
    let ended = portolanctl(arguments).await?;
    if !ended.ok {
        bail!("portolanctl {}: {}{}", arguments.join(" "), ended.stdout, ended.stderr);
    }
    Ok(ended.stdout)
}

/// Has `portolanctl shards move` give a namespace of a member to a shard (`namespace/name`), in the fleet of this folder.
pub async fn begin_move(fleet: &Path, (cluster, namespace): (&str, &str), to: &str) -> anyhow::Result<()> {
    let dir = argument(fleet);
    let flags = ["--cluster", cluster, "--to", to, "--dir", &dir, "--yes"];
    ok(&[&["shards", "move", namespace], &flags[..]].concat())
        .await
        .map(drop)
}

/// Returns once that is done.
pub async fn moved(fleet: &Path, pair: (&str, &str), to: &str) -> anyhow::Result<()> {
    begin_move(fleet, pair, to).await?;
    had(fleet, pair, to).await;
    Ok(())
}

/// Waits until a namespace of a member is granted to this shard (`namespace/name`).
pub async fn had(fleet: &Path, (cluster, namespace): (&str, &str), to: &str) {
    let dir = argument(fleet);
    let who = [
        "shards",
        "who",
        namespace,
        "--cluster",
        cluster,
        "-o",
        "json",
        "--dir",
        &dir,
    ];
    eventually(&format!("{to} has {namespace}"), || async {
        let told: Value = serde_json::from_str(&ok(&who).await?)?;
        let mut pairs = told["pairs"].as_array().into_iter().flatten();
        let has = pairs.any(|pair| pair["owner"] == *to && pair["state"] == "Granted");
        ensure!(has, "{told}");
        anyhow::Ok(())
    })
    .await;
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
