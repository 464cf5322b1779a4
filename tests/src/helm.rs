//! Helm as people type it, with the charts of `deploy/charts`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, bail};
use serde::Deserialize as _;
use serde_json::Value;
use tokio::process::Command;

use crate::kubectl::Ended;

/// Namespace of hub and agents.
pub const SYSTEM: &str = "portolan-system";

/// The folder of a chart.
pub fn chart(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/charts")).join(name)
}

/// `PORTOLAN_HELM`: another one of the testbed's programs than Helm 4, `helm3`.
#[expect(clippy::disallowed_methods, reason = "a setting of `make helm3`")]
fn program() -> PathBuf {
    let name = std::env::var("PORTOLAN_HELM");
    portolan_testbed::tool(name.as_deref().unwrap_or("helm"))
}

/// With these a release takes what `portolanctl` has made. Helm 3 merges by itself, and asks nobody about conflicts.
pub fn take_over() -> Vec<&'static str> {
    let is_3 = program().ends_with("helm3");
    [
        &["--take-ownership"][..],
        if is_3 { &[] } else { &["--force-conflicts"] },
    ]
    .concat()
}

/// Runs it to its end, on the cluster of a kubeconfig if there is one, in namespace [`SYSTEM`].
pub async fn helm(kubeconfig: Option<&Path>, arguments: &[&str]) -> anyhow::Result<Ended> {
    let folder = tempfile::tempdir()?;
    let mut command = Command::new(program());
    // What it keeps of users is none of its business here.
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, folder.path());
    }
    command.env_remove("KUBECONFIG").args(["--namespace", SYSTEM]);
    if let Some(kubeconfig) = kubeconfig {
        command.arg("--kubeconfig").arg(kubeconfig);
    }
    let output = command.args(arguments).stdin(Stdio::null()).kill_on_drop(true).output();
    let output = output.await.context("cannot run helm")?;
    Ok(Ended::of(&output))
}

/// What it printed; an error carries what it complained.
pub async fn ok(kubeconfig: Option<&Path>, arguments: &[&str]) -> anyhow::Result<String> {
    let ended = helm(kubeconfig, arguments).await?;
    if !ended.ok {
        bail!("helm {}: {}{}", arguments.join(" "), ended.stdout, ended.stderr);
    }
    Ok(ended.stdout)
}

/// The objects of a YAML stream.
pub fn objects(yaml: &str) -> anyhow::Result<Vec<Value>> {
    let documents = serde_yaml_ng::Deserializer::from_str(yaml).map(Value::deserialize);
    let objects = documents.filter(|object| !matches!(object, Ok(Value::Null)));
    objects.collect::<Result<_, _>>().context("not YAML")
}
