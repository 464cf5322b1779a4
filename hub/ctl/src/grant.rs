//! `portolanctl allow`, and the `--allow` of join: RBAC in the member that names, one by one, whom the router may act as.
//!
//! Written here and nowhere else: what Portolan may do in a member is decided by somebody who holds that member.

use anyhow::{Context as _, bail};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::api::entry::CommitError;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::labels;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use crate::apply::MANAGER;
use crate::cli::{AllowArgs, GrantArgs};
use crate::connect::connect;

/// After so many writes of others to one object it is rather a fight than a coincidence.
pub(crate) const WRITES_OF_OTHERS: u32 = 50;

/// ServiceAccounts by namespace, and users, that passed the rules of what may ever be allowed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Grants {
    service_accounts: BTreeMap<String, BTreeSet<String>>,
    users: BTreeSet<String>,
}

impl Grants {
    /// Refuses what no member should let a router be: the control plane's own identities.
    pub(crate) fn parse(args: &GrantArgs) -> anyhow::Result<Self> {
        let mut grants = Self::default();
        for text in &args.service_accounts {
            let Some((namespace, name)) = text.split_once('/') else {
                bail!("--allow {text:?} is not NAMESPACE/SERVICEACCOUNT");
            };
            if !portolan_crds::names::is_dns_label(namespace) || !portolan_crds::names::is_dns_subdomain(name) {
                bail!(
                    "--allow {text:?} is not NAMESPACE/SERVICEACCOUNT: both are lower-case DNS names, without wildcards"
                );
            }
            if portolan_crds::system_namespace(namespace) {
                bail!(
                    "--allow {text:?}: the router never acts as a ServiceAccount of {namespace}; use one in a namespace of your own"
                );
            }
            grants
                .service_accounts
                .entry(namespace.to_owned())
                .or_default()
                .insert(name.to_owned());
        }
        for user in &args.users {
            if user.is_empty() || user.starts_with("system:") || user.contains('*') {
                bail!(
                    "--allow-user {user:?}: the router never acts as a user of the control plane (system:…) or a wildcard; name one person"
                );
            }
            grants.users.insert(user.clone());
        }
        Ok(grants)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.service_accounts.is_empty() && self.users.is_empty()
    }

    /// Adds the grants to those the member has.
    pub(crate) async fn install(&self, member: &Client) -> anyhow::Result<()> {
        for (namespace, names) in &self.service_accounts {
            allow_service_accounts(member, namespace, names).await?;
        }
        if !self.users.is_empty() {
            allow_users(member, &self.users).await?;
        }
        Ok(())
    }
}

pub(crate) async fn run(args: &AllowArgs) -> anyhow::Result<()> {
    let grants = Grants::parse(&GrantArgs {
        service_accounts: args.service_accounts.clone(),
        users: args.users.clone(),
    })?;
    if grants.is_empty() {
        bail!("nothing to allow: name a NAMESPACE/SERVICEACCOUNT or --user USER");
    }
    let member = connect("the member", Some(&args.member_kubeconfig)).await?;
    grants.install(&member.client).await?;
    println!(
        "{} lets the router act as {}",
        member.url,
        args.service_accounts
            .iter()
            .chain(&args.users)
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ")
    );
    Ok(())
}

async fn allow_service_accounts(member: &Client, namespace: &str, names: &BTreeSet<String>) -> anyhow::Result<()> {
    let roles: Api<Role> = Api::namespaced(member.clone(), namespace);
    let wider = |before: &[PolicyRule]| vec![impersonate("", "serviceaccounts", names, before)];
    widen(&roles, labels::ROLE_IMPERSONATE, |role| &mut role.rules, wider)
        .await
        .with_context(|| format!("is there a namespace {namespace} in the member?"))?;
    let binding = RoleBinding {
        metadata: managed(labels::ROLE_IMPERSONATE),
        role_ref: role_ref("Role", labels::ROLE_IMPERSONATE),
        subjects: Some(vec![router()]),
    };
    put(&Api::namespaced(member.clone(), namespace), &binding).await
}

async fn allow_users(member: &Client, users: &BTreeSet<String>) -> anyhow::Result<()> {
    let roles: Api<ClusterRole> = Api::all(member.clone());
    let wider = |before: &[PolicyRule]| vec![impersonate("", "users", users, before)];
    widen(&roles, labels::ROLE_IMPERSONATE_USERS, |role| &mut role.rules, wider).await?;
    let binding = ClusterRoleBinding {
        metadata: managed(labels::ROLE_IMPERSONATE_USERS),
        role_ref: role_ref("ClusterRole", labels::ROLE_IMPERSONATE_USERS),
        subjects: Some(vec![router()]),
    };
    put(&Api::all(member.clone()), &binding).await
}

/// The rule that lets the router impersonate `names` and whom the rules of `before` name.
fn impersonate(group: &str, resource: &str, names: &BTreeSet<String>, before: &[PolicyRule]) -> PolicyRule {
    let kept = before
        .iter()
        .flat_map(|rule| rule.resource_names.iter().flatten().cloned());
    let all: BTreeSet<String> = names.iter().cloned().chain(kept).collect();
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        resource_names: Some(all.into_iter().collect()),
        verbs: vec!["impersonate".to_owned()],
        ..Default::default()
    }
}

/// Replaces the rules of a Role or ClusterRole by what `wider` makes of them. Somebody else may be widening the same role
/// (two people, or two commands of a script): the write holds only against the version that was read, else it is read
/// again, so that nobody's grant is lost.
pub(crate) async fn widen<K>(
    roles: &Api<K>,
    name: &str,
    rules: fn(&mut K) -> &mut Option<Vec<PolicyRule>>,
    wider: impl Fn(&[PolicyRule]) -> Vec<PolicyRule>,
) -> anyhow::Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + Default + Serialize + DeserializeOwned,
{
    let params = PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    };
    let mut others = 0;
    loop {
        let mut entry = roles.entry(name).await?.or_insert(K::default);
        let role = entry.get_mut();
        let labels = role.meta_mut().labels.get_or_insert_default();
        labels.extend(managed(name).labels.unwrap_or_default());
        let before = rules(role);
        *before = Some(wider(before.as_deref().unwrap_or_default()));
        match entry.commit(&params).await {
            Ok(()) => return Ok(()),
            // Conflict, or AlreadyExists: each time another's write went through.
            Err(CommitError::Save(kube::Error::Api(status))) if status.code == 409 && others < WRITES_OF_OTHERS => {
                others += 1;
            }
            Err(error) => return Err(error).with_context(|| format!("cannot write {} {name}", K::kind(&()))),
        }
    }
}

pub(crate) async fn put<K>(api: &Api<K>, object: &K) -> anyhow::Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let name = object.name_any();
    api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(object))
        .await
        .map(|_| ())
        .with_context(|| format!("cannot apply {} {name}", K::kind(&())))
}

pub(crate) fn managed(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some(BTreeMap::from([(
            "app.kubernetes.io/managed-by".to_owned(),
            "portolan".to_owned(),
        )])),
        ..Default::default()
    }
}

pub(crate) fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef {
        api_group: Some("rbac.authorization.k8s.io".into()),
        kind: kind.into(),
        name: name.into(),
    }
}

fn router() -> Subject {
    service_account(labels::SERVICE_ACCOUNT_ROUTER)
}

/// A ServiceAccount of Portolan's own in the member, as the subject of a binding.
pub(crate) fn service_account(name: &str) -> Subject {
    Subject {
        kind: "ServiceAccount".into(),
        name: name.to_owned(),
        namespace: Some(labels::SYSTEM_NAMESPACE.into()),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(service_accounts: &[&str], users: &[&str]) -> anyhow::Result<Grants> {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Grants::parse(&GrantArgs {
            service_accounts: owned(service_accounts),
            users: owned(users),
        })
    }

    #[test]
    fn the_control_plane_is_never_allowed() {
        for (accounts, users) in [
            (&["kube-system/default"][..], &[][..]),
            (&["portolan-system/portolan-agent"], &[]),
            (&["*/default"], &[]),
            (&["ns/*"], &[]),
            (&["ns"], &[]),
            (&[], &["system:masters"]),
            (&[], &["system:node:a"]),
            (&[], &["*"]),
            (&[], &[""]),
        ] {
            assert!(parse(accounts, users).is_err(), "{accounts:?} {users:?}");
        }
        assert!(parse(&["ns-a/operator"], &["ada@example.com"]).is_ok());
    }
}
