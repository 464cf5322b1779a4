//! `portolanctl join`: both halves of a registration that one person can do, who holds both kubeconfigs.
//!
//! In the member: namespace, ServiceAccounts, RBAC, and the Secret its agent starts from. On the hub: the MemberCluster
//! and a bootstrap token. Neither kubeconfig is kept.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams, ObjectMeta, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::labels::SECRET_AGENT_BOOTSTRAP;
use portolan_crds::{ClusterName, Endpoint, MemberCluster, MemberClusterSpec, labels, validate_member};
use serde_json::{Value, json};

use crate::apply::{self, MANAGER};
use crate::bootstrap::{self, Subject};
use crate::cli::JoinArgs;
use crate::connect::{Cluster, connect};
use crate::grant::Grants;
use crate::label_kinds::LabelKinds;

const MEMBER_RBAC: &str = include_str!("../../../deploy/member/rbac.yaml");
const CA_PATIENCE: Duration = Duration::from_secs(30);
const CA_POLL: Duration = Duration::from_millis(200);

/// What a join needs besides the two clusters.
pub(crate) struct Join<'a> {
    pub(crate) name: &'a str,
    pub(crate) hub_address: &'a str,
    pub(crate) endpoint: Option<&'a str>,
    pub(crate) accept: bool,
    pub(crate) labels: &'a [(String, String)],
    pub(crate) token_ttl: Duration,
    pub(crate) grants: &'a Grants,
    pub(crate) label_kinds: &'a LabelKinds,
}

pub(crate) async fn run(args: &JoinArgs) -> anyhow::Result<()> {
    let grants = Grants::parse(&args.grants)?;
    let label_kinds = LabelKinds::parse(&args.label_kinds)?;
    let hub = connect("the hub", args.hub.hub_kubeconfig.as_deref()).await?;
    let member = connect(&format!("member cluster {}", args.name), Some(&args.member_kubeconfig)).await?;
    let join = Join {
        name: &args.name,
        hub_address: &args.hub_address,
        endpoint: args.endpoint.as_deref(),
        accept: args.accept,
        labels: &args.labels,
        token_ttl: args.token_ttl,
        grants: &grants,
        label_kinds: &label_kinds,
    };
    join.run(&hub, &member).await?;
    println!(
        "member cluster {} is registered; its agent finds token, hub and CA in Secret {}/{SECRET_AGENT_BOOTSTRAP}",
        args.name,
        labels::SYSTEM_NAMESPACE
    );
    if grants.is_empty() {
        println!(
            "nobody may be acted as there yet: add callers with `portolanctl allow --member-kubeconfig … NAMESPACE/SERVICEACCOUNT`"
        );
    }
    if !args.accept {
        println!(
            "the hub has not accepted it yet: kubectl patch membercluster {} --type=merge -p '{{\"spec\":{{\"accept\":true}}}}'",
            args.name
        );
    }
    Ok(())
}

/// Objects of the member that no grant adds: namespace, ServiceAccounts, RBAC.
pub(crate) fn member_rbac() -> anyhow::Result<Vec<kube::api::DynamicObject>> {
    apply::parse("deploy/member/rbac.yaml", MEMBER_RBAC)
}

impl Join<'_> {
    /// Everything that can be refused is checked before anything is written; every step may be repeated.
    pub(crate) async fn run(&self, hub: &Cluster, member: &Cluster) -> anyhow::Result<()> {
        let spec = self.spec(member)?;
        self.check_identity(hub, member).await?;
        let hub_ca = hub_ca(&hub.client).await?;
        apply::apply(&member.client, &member_rbac()?).await?;
        self.grants.install(&member.client).await?;
        self.label_kinds.install(&member.client).await?;
        self.register(&hub.client, &spec).await?;
        let token = bootstrap::create(&hub.client, &Subject::Agent(self.name), self.token_ttl).await?;
        self.leave_bootstrap(&member.client, &token, &hub_ca).await
    }

    fn spec(&self, member: &Cluster) -> anyhow::Result<MemberClusterSpec> {
        let _: ClusterName = self.name.parse().context("the member's name")?;
        if self
            .hub_address
            .rsplit_once(':')
            .is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err())
        {
            bail!("--hub-address {:?} is not HOST:PORT", self.hub_address);
        }
        if member.ca_pem.is_empty() {
            bail!(
                "the kubeconfig of {} has no certificate-authority-data: routers verify the member's API server by it",
                self.name
            );
        }
        let url = self.endpoint.unwrap_or(&member.url).to_owned();
        let spec = MemberClusterSpec {
            accept: self.accept,
            endpoints: vec![Endpoint {
                url,
                tls_server_name: member.tls_server_name.clone(),
            }],
            ca_bundle: Some(ByteString(member.ca_pem.clone().into_bytes())),
            ..Default::default()
        };
        match validate_member(self.name, &spec).as_slice() {
            [] => Ok(spec),
            problems => {
                let texts: Vec<String> = problems
                    .iter()
                    .map(|problem| format!("{}: {}", problem.field, problem.message))
                    .collect();
                bail!("MemberCluster {} would be refused: {}", self.name, texts.join("; "))
            }
        }
    }

    /// The name is free or this cluster's own, and the cluster has no other name. The hub pins the same when the agent comes.
    async fn check_identity(&self, hub: &Cluster, member: &Cluster) -> anyhow::Result<()> {
        let uid = member
            .uid()
            .await
            .with_context(|| format!("member cluster {}", self.name))?;
        let known = Api::<MemberCluster>::all(hub.client.clone())
            .list(&ListParams::default())
            .await;
        for other in known.context("cannot list MemberClusters; has `portolanctl install` been run?")? {
            let name = other.name_any();
            let Some(pinned) = other.status.and_then(|status| status.cluster_uid) else {
                continue;
            };
            if name == self.name && pinned != uid {
                bail!(
                    "member cluster {name} is pinned to another cluster (clusterUID {pinned}, this one has {uid}): \
                     give this one another name, or delete MemberCluster {name} first"
                );
            }
            if name != self.name && pinned == uid {
                bail!("this cluster is a member already, as {name}: a cluster is a member once");
            }
        }
        Ok(())
    }

    async fn register(&self, hub: &Client, spec: &MemberClusterSpec) -> anyhow::Result<()> {
        let clusters: Api<MemberCluster> = Api::all(hub.clone());
        let registered = || format!("cannot register MemberCluster {} on the hub", self.name);
        let present = clusters.get_opt(self.name).await.with_context(registered)?;
        let body = self.registration(spec, present.as_ref());
        clusters
            .patch(self.name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&body))
            .await
            .map(|_| ())
            .with_context(registered)
    }

    /// What is applied. An apply takes back what its manager applied before and now leaves out, so an earlier acceptance
    /// and earlier labels are said again: a second join, for a new token, must not expel the member.
    fn registration(&self, spec: &MemberClusterSpec, present: Option<&MemberCluster>) -> Value {
        let mut labels = present
            .and_then(|present| present.metadata.labels.clone())
            .unwrap_or_default();
        labels.extend(self.labels.iter().cloned());
        let mut body = json!({
            "apiVersion": format!("{}/{}", labels::GROUP, labels::VERSION),
            "kind": "MemberCluster",
            "metadata": {"name": self.name, "labels": labels},
            "spec": {"endpoints": spec.endpoints, "caBundle": spec.ca_bundle},
        });
        if self.accept || present.is_some_and(|present| present.spec.accept) {
            body["spec"]["accept"] = json!(true);
        }
        body
    }

    async fn leave_bootstrap(&self, member: &Client, token: &str, hub_ca: &str) -> anyhow::Result<()> {
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(SECRET_AGENT_BOOTSTRAP.into()),
                namespace: Some(labels::SYSTEM_NAMESPACE.into()),
                ..Default::default()
            },
            string_data: Some(BTreeMap::from([
                ("token".to_owned(), token.to_owned()),
                ("hub".to_owned(), self.hub_address.to_owned()),
                ("ca.crt".to_owned(), hub_ca.to_owned()),
            ])),
            ..Default::default()
        };
        let secrets: Api<Secret> = Api::namespaced(member.clone(), labels::SYSTEM_NAMESPACE);
        secrets
            .patch(
                &secret.name_any(),
                &PatchParams::apply(MANAGER).force(),
                &Patch::Apply(&secret),
            )
            .await
            .map(|_| ())
            .context("cannot leave the bootstrap Secret in the member")
    }
}

/// The hub's CA certificate, which agents and routers pin. The hub makes it when it first starts.
pub(crate) async fn hub_ca(hub: &Client) -> anyhow::Result<String> {
    let secret = ca_secret(hub).await?;
    text_of(&secret, "tls.crt")
}

/// The CA Secret, waited for a little: the hub may be starting.
pub(crate) async fn ca_secret(hub: &Client) -> anyhow::Result<Secret> {
    let secrets: Api<Secret> = Api::namespaced(hub.clone(), labels::SYSTEM_NAMESPACE);
    let started = Instant::now();
    loop {
        if let Some(secret) = secrets
            .get_opt(labels::SECRET_CA)
            .await
            .context("cannot read the hub's CA")?
        {
            return Ok(secret);
        }
        if started.elapsed() > CA_PATIENCE {
            bail!(
                "the hub has no Secret {}/{}: start portolan-hub, which makes it",
                labels::SYSTEM_NAMESPACE,
                labels::SECRET_CA
            );
        }
        tokio::time::sleep(CA_POLL).await;
    }
}

/// A text entry of a Secret.
pub(crate) fn text_of(secret: &Secret, key: &str) -> anyhow::Result<String> {
    let bytes = secret.data.as_ref().and_then(|data| data.get(key));
    let bytes = bytes.with_context(|| format!("Secret {} has no {key}", secret.name_any()))?;
    String::from_utf8(bytes.0.clone())
        .with_context(|| format!("Secret {} has a {key} that is not text", secret.name_any()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_join_takes_nothing_back() {
        let (grants, kinds) = (Grants::default(), LabelKinds::default());
        let again = [("tier".to_owned(), "one".to_owned())];
        let join = Join {
            name: "east",
            hub_address: "hub:7443",
            endpoint: None,
            accept: false,
            labels: &again,
            token_ttl: Duration::from_mins(1),
            grants: &grants,
            label_kinds: &kinds,
        };
        let spec = MemberClusterSpec::default();
        let first = join.registration(&spec, None);
        assert_eq!(
            first["spec"]["accept"],
            Value::Null,
            "the hub's half is not ours to give"
        );
        let mut present = MemberCluster::new("east", MemberClusterSpec::default());
        present.spec.accept = true;
        present.metadata.labels = Some(BTreeMap::from([("region".to_owned(), "eu".to_owned())]));
        let second = join.registration(&spec, Some(&present));
        assert_eq!(second["spec"]["accept"], true);
        assert_eq!(second["metadata"]["labels"], json!({"region": "eu", "tier": "one"}));
        present.spec.accept = false;
        assert_eq!(join.registration(&spec, Some(&present))["spec"]["accept"], Value::Null);
    }
}
