//! Placeholder callers: for each ShardingConfig one Pod in each of its caller clusters, that no node takes, whose bound token
//! makes a kubeconfig on the merged view. What runs with that kubeconfig is a replica of the operator there.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use portolan_crds::{Selector, ShardingConfig};
use serde_json::{Value, json};

use crate::apply::apply_one;
use crate::connect::Cluster;
use crate::dev::fleet::{Caller, Fleet, Shard};
use crate::dev::token::TokenSource;
use crate::kubeconfig::TokenConfig;

/// Audience of caller tokens: what routers ask the member's TokenReview for.
const AUDIENCE: &str = portolan_crds::labels::DEFAULT_AUDIENCE;
/// No scheduler has this name, so no node ever runs the Pod.
const NO_SCHEDULER: &str = "portolan.dev/none";

/// One shard's placeholder: where it stands and who it is.
pub(crate) struct Placeholder {
    pub(crate) shard_name: String,
    pub(crate) namespace: String,
    /// Home clusters: those of callerClusters that are given, else the first member. Never empty.
    pub(crate) homes: Vec<String>,
    /// Name of both the Pod and its ServiceAccount, in every home.
    pub(crate) name: String,
    labels: BTreeMap<String, String>,
}

impl Placeholder {
    /// Plans the Pod of a ShardingConfig.
    pub(crate) fn of(config: &ShardingConfig, members: &[String]) -> anyhow::Result<Self> {
        let shard_name = config.name_any();
        let namespace = config.namespace().unwrap_or_else(|| "default".into());
        let what = format!("ShardingConfig {namespace}/{shard_name}");
        let mut homes = config.spec.caller_clusters.clone();
        if homes.is_empty() {
            homes.extend(members.first().cloned());
        }
        // Others may be members of the hub already, with callers of their own.
        homes.retain(|home| members.contains(home));
        if homes.is_empty() {
            let named = config.spec.caller_clusters.join(", ");
            bail!(
                "{what} names callerClusters {named}, of which --member {} has none",
                members.join(", ")
            );
        }
        let selector = config.spec.selector.clone().unwrap_or_default();
        let labels = labels_that_match(&selector).with_context(|| format!("{what}: spec.selector"))?;
        Ok(Self {
            name: format!("portolan-dev-{shard_name}"),
            shard_name,
            namespace,
            homes,
            labels,
        })
    }

    /// `namespace/name` of the ServiceAccount, as `--allow` of join takes it.
    pub(crate) fn service_account(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Name of its files for one home. No cluster or shard has an `@` in its name.
    fn file(&self, home: &str) -> String {
        if self.homes.first().is_some_and(|first| first == home) {
            format!("merged-{}", self.shard_name)
        } else {
            format!("merged-{}@{home}", self.shard_name)
        }
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
    /// Creates the Pod in one home, mints its token and writes its kubeconfig.
    pub(crate) async fn place(
        &mut self,
        placeholder: &Placeholder,
        (home, cluster): (&str, &Cluster),
        router_ca: &str,
    ) -> anyhow::Result<()> {
        let uid = self.create_pod(placeholder, home, cluster).await?;
        let file = placeholder.file(home);
        let source = self.token_source(placeholder, home, uid)?;
        source.mint(&cluster.client).await?;
        let kubeconfig = self.path(&format!("{file}.kubeconfig"));
        TokenConfig {
            name: "merged",
            server: &self.router_url,
            ca_pem: router_ca,
            tls_server_name: None,
            token_file: &source.file,
            namespace: &placeholder.namespace,
        }
        .write(&kubeconfig)?;
        self.tokens.push(source);
        let (namespace, name) = (&placeholder.namespace, &placeholder.shard_name);
        let at = self
            .shards
            .iter()
            .position(|shard| (&shard.namespace, &shard.name) == (namespace, name));
        let at = at.unwrap_or_else(|| {
            self.shards.push(Shard {
                namespace: namespace.clone(),
                name: name.clone(),
                callers: Vec::new(),
            });
            self.shards.len() - 1
        });
        self.shards[at].callers.push(Caller {
            home: home.to_owned(),
            kubeconfig,
        });
        self.write()
    }

    /// The uid of the Pod, which is recorded before it is created.
    async fn create_pod(&mut self, placeholder: &Placeholder, home: &str, cluster: &Cluster) -> anyhow::Result<String> {
        let pod = serde_json::from_value(placeholder.pod())?;
        self.record(Some(home), &cluster.client, &pod).await?;
        let created = apply_one(&cluster.client, &pod).await?;
        created.uid().context("a created Pod has a uid")
    }

    fn token_source(&self, placeholder: &Placeholder, home: &str, uid: String) -> anyhow::Result<TokenSource> {
        Ok(TokenSource {
            file: self.path(&format!("{}.token", placeholder.file(home))),
            kubeconfig: self.member(home)?.kubeconfig.clone(),
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
    fn every_caller_cluster_has_a_caller_with_files_of_its_own() {
        let spec = |callers: &[&str]| {
            let selector = json!({"matchLabels": {"app": "operator"}});
            let spec = json!({"selector": selector, "callerClusters": callers});
            let mut config = ShardingConfig::new("demo", serde_json::from_value(spec).unwrap());
            config.metadata.namespace = Some("ops".into());
            config
        };
        let members = ["east".to_owned(), "west".to_owned()];
        let placeholder = Placeholder::of(&spec(&["west", "east"]), &members).unwrap();
        let files: Vec<_> = placeholder.homes.iter().map(|home| placeholder.file(home)).collect();
        assert_eq!(files, ["merged-demo", "merged-demo@east"]);
        assert_eq!(Placeholder::of(&spec(&[]), &members).unwrap().homes, ["east"]);
        assert_eq!(
            Placeholder::of(&spec(&["north", "west"]), &members).unwrap().homes,
            ["west"]
        );
        let error = Placeholder::of(&spec(&["north"]), &members).err().unwrap().to_string();
        assert!(
            error.contains("callerClusters north, of which --member east, west has none"),
            "{error}"
        );
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
