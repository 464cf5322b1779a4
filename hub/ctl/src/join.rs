//! `portolanctl join`: both halves of a registration that one person can do, who holds both kubeconfigs.
//!
//! In the member: namespace, ServiceAccounts, RBAC, admission policies, and the Secret its agent starts from. On the hub: the MemberCluster
//! and a bootstrap token. Neither kubeconfig is kept.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams, ObjectMeta, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::labels::SECRET_AGENT_BOOTSTRAP;
use portolan_crds::names::check_dns_label;
use portolan_crds::{Endpoint, MemberCluster, MemberClusterSpec, labels, validate, validate_member};
use serde_json::{Value, json};

use crate::admission::Policies;
use crate::apply::{self, MANAGER};
use crate::bootstrap::{self, Subject};
use crate::cli::{GatewayAddress, JoinArgs};
use crate::connect::{Cluster, connect};
use crate::grant::{Grants, WRITES_OF_OTHERS};
use crate::hub_ca;
use crate::injection;
use crate::label_kinds::LabelKinds;

const MEMBER_RBAC: &str = include_str!("../../../deploy/member/rbac.yaml");

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
    pub(crate) label_prefix: Option<&'a str>,
    pub(crate) gateway: Option<&'a GatewayAddress>,
}

/// What a join writes that was found out before.
pub(crate) struct Checked {
    spec: MemberClusterSpec,
    /// PEM.
    hub_ca: String,
}

impl Checked {
    /// The hub's CA, PEM.
    pub(crate) fn hub_ca(&self) -> &str {
        &self.hub_ca
    }
}

pub(crate) async fn run(args: &JoinArgs) -> anyhow::Result<()> {
    let grants = Grants::parse(&args.membership.grants)?;
    let label_kinds = LabelKinds::parse(&args.membership.label_kinds)?;
    let hub = connect("the hub", args.hub.hub_kubeconfig.as_deref()).await?;
    let member = connect(&format!("member cluster {}", args.name), Some(&args.member_kubeconfig)).await?;
    let join = Join {
        name: &args.name,
        hub_address: &args.hub_address,
        endpoint: args.endpoint.as_deref(),
        accept: args.accept,
        labels: &args.membership.labels,
        token_ttl: args.token_ttl,
        grants: &grants,
        label_kinds: &label_kinds,
        label_prefix: args.membership.label_prefix.as_deref(),
        gateway: args.membership.gateway.as_ref(),
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
        let checked = self.check(hub, member).await?;
        self.write_member(&member.client, &checked).await?;
        self.register(&hub.client, &checked).await?;
        self.invite(hub, member, &checked).await
    }

    /// What can be refused; writes nothing.
    pub(crate) async fn check(&self, hub: &Cluster, member: &Cluster) -> anyhow::Result<Checked> {
        let spec = self.spec(member)?;
        self.check_identity(hub, member).await?;
        let hub_ca = hub_ca::awaited(&hub.client).await?;
        Ok(Checked { spec, hub_ca })
    }

    /// The member's half but for the agent's invitation: namespaces, ServiceAccounts, RBAC, policies.
    pub(crate) async fn write_member(&self, member: &Client, checked: &Checked) -> anyhow::Result<()> {
        let rbac = member_rbac()?;
        apply::apply(member, &rbac).await?;
        self.grants.install(member).await?;
        self.label_kinds.install(member).await?;
        let policies = Policies {
            rbac: &rbac,
            prefix: self.label_prefix,
        };
        policies.install(member).await?;
        injection::install(member, self.gateway, &checked.hub_ca).await
    }

    /// Lets the member's agent ask for a certificate: a bootstrap token of the hub's, and where the hub is.
    pub(crate) async fn invite(&self, hub: &Cluster, member: &Cluster, checked: &Checked) -> anyhow::Result<()> {
        let token = bootstrap::create(&hub.client, &Subject::Agent(self.name), self.token_ttl).await?;
        self.leave_bootstrap(&member.client, &token, &checked.hub_ca).await
    }

    fn spec(&self, member: &Cluster) -> anyhow::Result<MemberClusterSpec> {
        check_dns_label(self.name).context("the member's name")?;
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
        let problems = validate_member(self.name, &spec);
        if !problems.is_empty() {
            bail!(
                "MemberCluster {} would be refused: {}",
                self.name,
                validate::summary(&problems)
            );
        }
        Ok(spec)
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

    /// Applies the registration against the version it was made from: somebody else may be withdrawing the acceptance
    /// or changing labels meanwhile, and the hub writes status.
    pub(crate) async fn register(&self, hub: &Client, Checked { spec, .. }: &Checked) -> anyhow::Result<()> {
        let clusters: Api<MemberCluster> = Api::all(hub.clone());
        let registered = || format!("cannot register MemberCluster {} on the hub", self.name);
        let mut others = 0;
        loop {
            let present = clusters.get_opt(self.name).await.with_context(registered)?;
            let body = self.registration(spec, present.as_ref());
            let params = PatchParams::apply(MANAGER).force();
            match clusters.patch(self.name, &params, &Patch::Apply(&body)).await {
                Ok(_) => {
                    if let Some(told) = present
                        .filter(|_| self.endpoint.is_none())
                        .and_then(|kept| differs(&kept.spec, spec))
                    {
                        println!("{told}");
                    }
                    return Ok(());
                }
                // Conflicts of field managers are forced: this one is of the version.
                Err(kube::Error::Api(status)) if status.code == 409 && others < WRITES_OF_OTHERS => others += 1,
                Err(error) => return Err(error).with_context(registered),
            }
        }
    }

    /// What is applied. An apply takes back what its manager applied before and now leaves out, so that is said again, as
    /// it is now: a second join, for a new token, must not expel the member. What others have written is left to them.
    fn registration(&self, spec: &MemberClusterSpec, present: Option<&MemberCluster>) -> Value {
        let mut body = json!({
            "apiVersion": format!("{}/{}", labels::GROUP, labels::VERSION),
            "kind": "MemberCluster",
            "metadata": {"name": self.name},
        });
        let mut labels: BTreeMap<_, _> = self.labels.iter().cloned().collect();
        let mut accept = self.accept;
        let mut reached = json!({"endpoints": spec.endpoints, "caBundle": spec.ca_bundle});
        if let Some(present) = present {
            body["metadata"]["resourceVersion"] = json!(present.metadata.resource_version);
            for (key, value) in present.labels() {
                if is_ours(present, &["metadata", "labels", key]) {
                    labels.entry(key.clone()).or_insert_with(|| value.clone());
                }
            }
            accept |= present.spec.accept && is_ours(present, &["spec", "accept"]);
            if self.endpoint.is_none() {
                keep(&mut reached, present);
            }
        }
        body["metadata"]["labels"] = json!(labels);
        body["spec"] = reached;
        if accept {
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

/// What to say if the kubeconfig knows another way to the member than the one that stays.
fn differs(kept: &MemberClusterSpec, given: &MemberClusterSpec) -> Option<String> {
    let url = |spec: &MemberClusterSpec| spec.endpoints.first().map(|endpoint| endpoint.url.clone());
    let (kept_url, given_url) = (url(kept)?, url(given)?);
    let ca_differs = kept.ca_bundle.is_some() && kept.ca_bundle != given.ca_bundle;
    (kept_url != given_url || ca_differs).then(|| {
        format!(
            "routers go on reaching it at {kept_url}, with the CA certificates that are registered; the kubeconfig says \
             {given_url}{}: with --endpoint {given_url} its URL and certificates are taken instead",
            if ca_differs { " and other CA certificates" } else { "" }
        )
    })
}

/// Leaves how routers reach the member as it is registered, whoever wrote it: a URL in a kubeconfig is that of whoever
/// holds it. What others wrote is left out, and stays theirs.
fn keep(reached: &mut Value, present: &MemberCluster) {
    let known = json!({"endpoints": present.spec.endpoints, "caBundle": present.spec.ca_bundle});
    for field in ["endpoints", "caBundle"] {
        let known = &known[field];
        if known.is_null() || known.as_array().is_some_and(Vec::is_empty) {
            continue;
        }
        if is_ours(present, &["spec", field]) {
            reached[field] = known.clone();
        } else if let Some(fields) = reached.as_object_mut() {
            fields.remove(field);
        }
    }
}

/// Whether an earlier apply of portolanctl said the field, and nobody has changed it since.
fn is_ours(present: &MemberCluster, path: &[&str]) -> bool {
    let applied = present.managed_fields().iter().filter(|entry| {
        entry.manager.as_deref() == Some(MANAGER)
            && entry.operation.as_deref() == Some("Apply")
            && entry.subresource.is_none()
    });
    let mut fields = applied.filter_map(|entry| Some(&entry.fields_v1.as_ref()?.0));
    fields.any(|fields| {
        let mut path = path.iter();
        path.try_fold(fields, |fields, name| fields.get(format!("f:{name}")))
            .is_some()
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};

    use super::*;

    #[test]
    fn a_second_join_takes_nothing_back() {
        let (grants, kinds) = (Grants::default(), LabelKinds::default());
        let again = [("tier".to_owned(), "one".to_owned())];
        let join = join(&again, &grants, &kinds);
        let spec = MemberClusterSpec::default();
        let first = join.registration(&spec, None);
        assert_eq!(
            first["spec"]["accept"],
            Value::Null,
            "the hub's half is not ours to give"
        );
        let mut present = MemberCluster::new("east", MemberClusterSpec::default());
        present.metadata.resource_version = Some("7".to_owned());
        present.spec.accept = true;
        present.metadata.labels = Some(BTreeMap::from([("region".to_owned(), "eu".to_owned())]));
        present.metadata.managed_fields = Some(vec![applied_by(MANAGER)]);
        let second = join.registration(&spec, Some(&present));
        assert_eq!(second["spec"]["accept"], true);
        assert_eq!(second["metadata"]["labels"], json!({"region": "eu", "tier": "one"}));
        assert_eq!(second["metadata"]["resourceVersion"], "7");
        present.metadata.managed_fields = Some(vec![applied_by("gitops")]);
        let third = join.registration(&spec, Some(&present));
        assert_eq!(third["spec"]["accept"], Value::Null, "it is another's, and stays");
        assert_eq!(third["metadata"]["labels"], json!({"tier": "one"}));
        present.spec.accept = false;
        present.metadata.managed_fields = Some(vec![applied_by(MANAGER)]);
        assert_eq!(join.registration(&spec, Some(&present))["spec"]["accept"], Value::Null);
    }

    #[test]
    fn a_second_join_keeps_how_the_member_is_reached() {
        let (grants, kinds) = (Grants::default(), LabelKinds::default());
        let reached = |url: &str, ca: &str| MemberClusterSpec {
            endpoints: vec![Endpoint {
                url: url.to_owned(),
                tls_server_name: None,
            }],
            ca_bundle: Some(ByteString(ca.as_bytes().to_vec())),
            ..Default::default()
        };
        let mut join = join(&[], &grants, &kinds);
        let spec = reached("https://127.0.0.1:6443", "laptop");
        let mut present = MemberCluster::new("east", reached("https://10.0.0.1:6443", "site"));
        let body = |value: &Value| {
            (
                value["spec"]["endpoints"][0]["url"].clone(),
                value["spec"]["caBundle"].clone(),
            )
        };
        present.metadata.managed_fields = Some(vec![applied_by(MANAGER)]);
        let site = (json!("https://10.0.0.1:6443"), json!(present.spec.ca_bundle));
        assert_eq!(body(&join.registration(&spec, Some(&present))), site);
        present.metadata.managed_fields = Some(vec![applied_by("gitops")]);
        let nothing = (Value::Null, Value::Null);
        assert_eq!(body(&join.registration(&spec, Some(&present))), nothing);
        let laptop = (json!("https://127.0.0.1:6443"), json!(spec.ca_bundle));
        join.endpoint = Some("https://127.0.0.1:6443");
        assert_eq!(body(&join.registration(&spec, Some(&present))), laptop);
    }

    fn join<'a>(labels: &'a [(String, String)], grants: &'a Grants, label_kinds: &'a LabelKinds) -> Join<'a> {
        Join {
            name: "east",
            hub_address: "hub:7443",
            endpoint: None,
            accept: false,
            labels,
            token_ttl: Duration::from_mins(1),
            grants,
            label_kinds,
            label_prefix: None,
            gateway: None,
        }
    }

    fn applied_by(manager: &str) -> ManagedFieldsEntry {
        let fields = json!({
            "f:metadata": {"f:labels": {"f:region": {}}},
            "f:spec": {"f:accept": {}, "f:endpoints": {}, "f:caBundle": {}},
        });
        ManagedFieldsEntry {
            manager: Some(manager.to_owned()),
            operation: Some("Apply".to_owned()),
            fields_v1: Some(FieldsV1(fields)),
            ..Default::default()
        }
    }
}
