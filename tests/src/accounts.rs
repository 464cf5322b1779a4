//! A program's place in a cluster: a kubeconfig that is a ServiceAccount and nothing more.

use std::path::Path;

use anyhow::Context as _;
use portolan_testbed::Cluster;
use serde_json::{Value, json};

/// Writes the kubeconfig of a ServiceAccount, good for an hour, with the cluster's address past or through its stage.
pub async fn kubeconfig(cluster: &Cluster, account: (&str, &str), file: &Path) -> anyhow::Result<()> {
    let (namespace, name) = account;
    let token = cluster.issue_token(namespace, name, &[], None).await?;
    let text = std::fs::read_to_string(cluster.kubeconfig_path()).context("no kubeconfig")?;
    let mut kubeconfig: Value = serde_yaml_ng::from_str(&text)?;
    kubeconfig["users"][0]["user"] = json!({"token": token});
    std::fs::write(file, serde_yaml_ng::to_string(&kubeconfig)?).context("cannot write a kubeconfig")
}
