//! Placeholder callers: for each ShardingConfig one Pod that no node takes, whose bound token makes a kubeconfig on the
//! merged view. What runs with that kubeconfig is the operator.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use portolan_crds::{Selector, ShardingConfig};
use serde_json::{Value, json};

use crate::apply::apply_one;
use crate::connect::Cluster;
use crate::dev::fleet::{Fleet, Shard};
use crate::dev::token::TokenSource;
use crate::kubeconfig::TokenConfig;

/// Audience of caller tokens: what routers ask the member's TokenReview for.
const AUDIENCE: &str = "portolan";
/// No scheduler has this name, so no node ever runs the Pod.
const NO_SCHEDULER: &str = "portolan.dev/none";

/// One shard's placeholder: where it stands and whom it is.
pub(crate) struct Placeholder {
    pub(crate) shard_name: String,
    pub(crate) namespace: String,
    /// Home cluster: the first of callerClusters, else the first member.
    pub(crate) home: String,
    /// Name of both the Pod and its ServiceAccount.
    pub(crate) name: String,
    labels: BTreeMap<String, String>,
}

impl Placeholder {
    /// Plans the Pod of a ShardingConfig.
    pub(crate) fn of(config: &ShardingConfig, members: &[String]) -> anyhow::Result<Self> {
        let shard_name = config.name_any();
        let namespace = config.namespace().unwrap_or_else(|| "default".into());
        let what = format!("ShardingConfig {namespace}/{shard_name}");
        let home = match config.spec.caller_clusters.first() {
            Some(home) if members.contains(home) => home.clone(),
            Some(home) => bail!(
                "{what} names callerClusters {home:?}, which is none of --member {}",
                members.join(", ")
            ),
            None => members.first().cloned().context("no member")?,
        };
        let selector = config.spec.selector.clone().unwrap_or_default();
        let labels = labels_that_match(&selector).with_context(|| format!("{what}: spec.selector"))?;
        Ok(Self {
            name: format!("portolan-dev-{shard_name}"),
            shard_name,
            namespace,
            home,
            labels,
        })
    }

    /// `namespace/name` of the ServiceAccount, as `--allow` of join takes it.
    pub(crate) fn service_account(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// What every member needs before it lets the router act as this caller.
    pub(crate) fn member_objects(&self, role: &str) -> anyhow::Result<Vec<DynamicObject>> {
        objects(vec![
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}),
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": self.name, "namespace": self.namespace}}),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": {"name": format!("portolan-dev-{}-{}", self.namespace, self.shard_name)},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}],
            }),
        ])
    }

    fn pod(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": self.name, "namespace": self.namespace, "labels": self.labels},
            "spec": {
                "serviceAccountName": self.name,
                "automountServiceAccountToken": false,
                "schedulerName": NO_SCHEDULER,
                "containers": [{"name": "placeholder", "image": "registry.k8s.io/pause:3.10"}],
            },
        })
    }
}

impl Fleet {
    /// Creates the Pod, mints its token and writes `merged-<name>.kubeconfig`.
    pub(crate) async fn place(
        &mut self,
        placeholder: &Placeholder,
        home: &Cluster,
        router_ca: &str,
    ) -> anyhow::Result<()> {
        let uid = self.create_pod(placeholder, home).await?;
        let source = self.token_source(placeholder, uid)?;
        source.mint(&home.client).await?;
        let file = self.path(&format!("merged-{}.kubeconfig", placeholder.shard_name));
        TokenConfig {
            name: "merged",
            server: &self.router_url,
            ca_pem: router_ca,
            tls_server_name: None,
            token_file: &source.file,
            namespace: &placeholder.namespace,
        }
        .write(&file)?;
        self.tokens.push(source);
        self.shards.push(Shard {
            namespace: placeholder.namespace.clone(),
            name: placeholder.shard_name.clone(),
            kubeconfig: file,
        });
        self.write()
    }

    /// The uid of the Pod, which is recorded before it is created.
    async fn create_pod(&mut self, placeholder: &Placeholder, home: &Cluster) -> anyhow::Result<String> {
        let pod = serde_json::from_value(placeholder.pod())?;
        self.record(Some(&placeholder.home), &home.client, &pod).await?;
        let created = apply_one(&home.client, &pod).await?;
        created.uid().context("a created Pod has a uid")
    }

    fn token_source(&self, placeholder: &Placeholder, uid: String) -> anyhow::Result<TokenSource> {
        Ok(TokenSource {
            file: self.path(&format!("merged-{}.token", placeholder.shard_name)),
            kubeconfig: self.member(&placeholder.home)?.kubeconfig.clone(),
            namespace: placeholder.namespace.clone(),
            service_account: placeholder.name.clone(),
            audiences: vec![AUDIENCE.to_owned()],
            pod: Some((placeholder.name.clone(), uid)),
        })
    }
}

/// Turns JSON manifests into objects.
pub(crate) fn objects(manifests: Vec<Value>) -> anyhow::Result<Vec<DynamicObject>> {
    manifests
        .into_iter()
        .map(|manifest| serde_json::from_value(manifest).context("a manifest of ours is an object"))
        .collect()
}

/// The smallest labels a selector matches.
fn labels_that_match(selector: &LabelSelector) -> anyhow::Result<BTreeMap<String, String>> {
    let mut labels = selector.match_labels.clone().unwrap_or_default();
    for expression in selector.match_expressions.iter().flatten() {
        let first = expression.values.iter().flatten().next().cloned();
        match expression.operator.as_str() {
            "In" => labels.insert(expression.key.clone(), first.context("In needs values")?),
            "Exists" => labels
                .entry(expression.key.clone())
                .or_insert_with(|| "true".into())
                .clone()
                .into(),
            _ => None,
        };
    }
    let parsed = Selector::from_label_selector(selector)?;
    if !parsed.matches(&labels) {
        bail!("no label set matches it, so no Pod can be its caller");
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_for_a_selector() {
        let selector: LabelSelector = serde_json::from_value(json!({
            "matchLabels": {"app": "operator"},
            "matchExpressions": [
                {"key": "statefulset.kubernetes.io/pod-name", "operator": "In", "values": ["operator-0", "operator-1"]},
                {"key": "tier", "operator": "NotIn", "values": ["test"]},
                {"key": "owned", "operator": "Exists"},
            ],
        }))
        .unwrap();
        let labels = labels_that_match(&selector).unwrap();
        assert_eq!(labels["statefulset.kubernetes.io/pod-name"], "operator-0");
        assert_eq!(labels.len(), 3);
    }

    #[test]
    fn a_contradiction_is_refused() {
        let selector = serde_json::from_value(json!({
            "matchLabels": {"app": "a"},
            "matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}],
        }))
        .unwrap();
        assert!(labels_that_match(&selector).is_err());
    }
}
