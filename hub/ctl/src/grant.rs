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

/// API group of the uid and the extras that a request may impersonate.
const AUTHENTICATION: &str = "authentication.k8s.io";
/// What the resource of an extra's key begins with.
const EXTRAS: &str = "userextras/";
/// Groups of the control plane's that everybody of a kind is in, and that a request must name to keep them.
const COMMON_GROUPS: [&str; 2] = ["system:authenticated", "system:serviceaccounts"];
const NAMESPACE_GROUP: &str = "system:serviceaccounts:";

/// Whom the router may act as, by the rules of what may ever be allowed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Grants {
    /// By namespace.
    service_accounts: BTreeMap<String, BTreeSet<String>>,
    identities: Identities,
}

/// What has no namespace: each is a rule of one ClusterRole.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Identities {
    users: BTreeSet<String>,
    groups: BTreeSet<String>,
    uids: BTreeSet<String>,
    /// Keys of extras; their values are free.
    extras: BTreeSet<String>,
}

impl Grants {
    /// Refuses what no member should let a router be: the control plane's own identities.
    pub(crate) fn parse(args: &GrantArgs) -> anyhow::Result<Self> {
        let mut grants = Self::default();
        for text in &args.service_accounts {
            let (namespace, name) = service_account_of(text)?;
            let names = grants.service_accounts.entry(namespace.to_owned()).or_default();
            names.insert(name.to_owned());
        }
        for user in &args.users {
            if user.is_empty() || user.starts_with("system:") || user.contains('*') {
                bail!(
                    "--allow-user {user:?}: the router never acts as a user of the control plane (system:…) or a wildcard; name one person"
                );
            }
        }
        grants.identities.users = args.users.iter().cloned().collect();
        Ok(grants)
    }

    fn parse_all(args: &AllowArgs) -> anyhow::Result<Self> {
        let mut grants = Self::parse(&GrantArgs {
            service_accounts: args.service_accounts.clone(),
            users: args.users.clone(),
        })?;
        if let Some(group) = args.groups.iter().find(|group| !may_be_group(group)) {
            bail!(
                "--group {group:?}: the router never acts in a group of the control plane's (system:…) or a wildcard, but for {} and {NAMESPACE_GROUP}NAMESPACE",
                COMMON_GROUPS.join(", ")
            );
        }
        if let Some(uid) = args.uids.iter().find(|uid| uid.is_empty() || uid.contains('*')) {
            bail!("--uid {uid:?}: name one uid");
        }
        if let Some(key) = args.extras.iter().find(|key| !may_be_extra(key)) {
            bail!(
                "--extra {key:?}: name one key in lower case, as in scopes or example.com/team; those of kubernetes.io are the control plane's own"
            );
        }
        let set = |texts: &[String]| texts.iter().cloned().collect();
        grants.identities.groups = set(&args.groups);
        grants.identities.uids = set(&args.uids);
        grants.identities.extras = set(&args.extras);
        Ok(grants)
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Namespaces of the ServiceAccounts, of which the member must have each.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.service_accounts.keys().map(String::as_str)
    }

    /// Adds the grants to those the member has.
    pub(crate) async fn install(&self, member: &Client) -> anyhow::Result<()> {
        for (namespace, names) in &self.service_accounts {
            allow_service_accounts(member, namespace, names).await?;
        }
        if self.identities != Identities::default() {
            allow_identities(member, &self.identities).await?;
        }
        Ok(())
    }

    /// All of them, in words.
    fn words(&self) -> String {
        let accounts = self.service_accounts.iter();
        let accounts =
            accounts.flat_map(|(namespace, names)| names.iter().map(move |name| format!("{namespace}/{name}")));
        let Identities {
            users,
            groups,
            uids,
            extras,
        } = &self.identities;
        let named = |what: &'static str, names: &BTreeSet<String>| {
            let names: Vec<String> = names.iter().map(|name| format!("{what} {name}")).collect();
            names
        };
        let named = [
            named("user", users),
            named("group", groups),
            named("uid", uids),
            named("extra", extras),
        ];
        accounts
            .chain(named.into_iter().flatten())
            .collect::<Vec<_>>()
            .join(", ")
    }
}

impl Identities {
    /// The rules of a role that has those of `before` too.
    fn rules(&self, before: &[PolicyRule]) -> Vec<PolicyRule> {
        let is = |rule: &PolicyRule, group: &str, resource: &str| {
            let has = |list: &Option<Vec<String>>, word: &str| list.iter().flatten().any(|item| item == word);
            has(&rule.api_groups, group) && has(&rule.resources, resource)
        };
        let named = [
            ("", "users", &self.users),
            ("", "groups", &self.groups),
            (AUTHENTICATION, "uids", &self.uids),
        ];
        let named = named.into_iter().filter_map(|(group, resource, names)| {
            let same: Vec<_> = before
                .iter()
                .filter(|rule| is(rule, group, resource))
                .cloned()
                .collect();
            (!names.is_empty() || !same.is_empty()).then(|| impersonate(group, resource, names, &same))
        });
        let kept = before.iter().flat_map(|rule| rule.resources.iter().flatten());
        let kept = kept.filter(|resource| resource.starts_with(EXTRAS)).cloned();
        let extras: BTreeSet<String> = self
            .extras
            .iter()
            .map(|key| format!("{EXTRAS}{key}"))
            .chain(kept)
            .collect();
        let extras = (!extras.is_empty()).then(|| PolicyRule {
            api_groups: Some(vec![AUTHENTICATION.to_owned()]),
            resources: Some(extras.into_iter().collect()),
            verbs: vec!["impersonate".to_owned()],
            ..PolicyRule::default()
        });
        named.chain(extras).collect()
    }
}

fn service_account_of(text: &str) -> anyhow::Result<(&str, &str)> {
    let Some((namespace, name)) = text.split_once('/') else {
        bail!("--allow {text:?} is not NAMESPACE/SERVICEACCOUNT");
    };
    if !portolan_crds::names::is_dns_label(namespace) || !portolan_crds::names::is_dns_subdomain(name) {
        bail!("--allow {text:?} is not NAMESPACE/SERVICEACCOUNT: both are lower-case DNS names, without wildcards");
    }
    if portolan_crds::system_namespace(namespace) {
        bail!(
            "--allow {text:?}: the router never acts as a ServiceAccount of {namespace}; use one in a namespace of your own"
        );
    }
    Ok((namespace, name))
}

fn may_be_group(group: &str) -> bool {
    let of_namespace = group.strip_prefix(NAMESPACE_GROUP);
    let of_a_users = of_namespace.is_some_and(|namespace| {
        portolan_crds::names::is_dns_label(namespace) && !portolan_crds::system_namespace(namespace)
    });
    let own = !group.is_empty() && !group.starts_with("system:") && !group.contains('*');
    own || of_a_users || COMMON_GROUPS.contains(&group)
}

fn may_be_extra(key: &str) -> bool {
    let of_the_control_plane = key
        .split('/')
        .next()
        .is_some_and(|domain| domain.ends_with("kubernetes.io"));
    let plain = |letter: char| letter.is_ascii_graphic() && !letter.is_ascii_uppercase() && letter != '*';
    !key.is_empty() && key.chars().all(plain) && !(key.contains('/') && of_the_control_plane)
}

pub(crate) async fn run(args: &AllowArgs) -> anyhow::Result<()> {
    let grants = Grants::parse_all(args)?;
    if grants.is_empty() {
        bail!("nothing to allow: name a NAMESPACE/SERVICEACCOUNT, --user, --group, --uid or --extra");
    }
    let member = connect("the member", Some(&args.member_kubeconfig)).await?;
    grants.install(&member.client).await?;
    println!("{} lets the router act as {}", member.url, grants.words());
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

async fn allow_identities(member: &Client, identities: &Identities) -> anyhow::Result<()> {
    let roles: Api<ClusterRole> = Api::all(member.clone());
    let wider = |before: &[PolicyRule]| identities.rules(before);
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
    service_account(labels::ROUTERS_NAMESPACE, labels::SERVICE_ACCOUNT_ROUTER)
}

/// A ServiceAccount of Portolan's own in the member, as the subject of a binding.
pub(crate) fn service_account(namespace: &str, name: &str) -> Subject {
    Subject {
        kind: "ServiceAccount".into(),
        name: name.to_owned(),
        namespace: Some(namespace.into()),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

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
            (&["portolan-routers/portolan-router"], &[]),
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

    fn allow(more: &[&str]) -> anyhow::Result<Grants> {
        let words = ["portolanctl", "allow", "--member-kubeconfig", "f"];
        let Command::Allow(args) = Cli::parse_from(words.iter().chain(more)).command else {
            panic!("another command");
        };
        Grants::parse_all(&args)
    }

    #[test]
    fn groups_uids_and_extras_of_the_control_plane_are_never_allowed() {
        for (flag, value) in [
            ("--group", "system:masters"),
            ("--group", "system:nodes"),
            ("--group", "system:serviceaccounts:kube-system"),
            ("--group", "system:serviceaccounts:*"),
            ("--group", "*"),
            ("--group", ""),
            ("--uid", "*"),
            ("--uid", ""),
            ("--extra", "*"),
            ("--extra", ""),
            ("--extra", "Scopes"),
            ("--extra", "authentication.kubernetes.io/node-name"),
        ] {
            let error = allow(&[flag, value]).unwrap_err().to_string();
            assert!(error.contains(flag), "{error}");
        }
        for (flag, value) in [
            ("--group", "sre"),
            ("--group", "system:authenticated"),
            ("--group", "system:serviceaccounts:ns-a"),
            ("--uid", "6d9c"),
            ("--extra", "scopes"),
            ("--extra", "example.com/team"),
        ] {
            assert!(!allow(&[flag, value]).unwrap().is_empty(), "{flag} {value}");
        }
    }

    #[test]
    fn grants_of_before_are_kept_beside_new_ones() {
        let rules = |grants: Grants, before: &[PolicyRule]| grants.identities.rules(before);
        let first = rules(allow(&["--user", "ada", "--group", "sre"]).unwrap(), &[]);
        let second = allow(&[
            "--group",
            "dev",
            "--uid",
            "6d9c",
            "--extra",
            "scopes",
            "--extra",
            "example.com/team",
        ]);
        let second = second.unwrap();
        let words = "group dev, uid 6d9c, extra example.com/team, extra scopes";
        assert_eq!(second.words(), words);
        let all = rules(second, &first);
        let told: Vec<_> = all
            .iter()
            .map(|rule| {
                let words = |list: &Option<Vec<String>>| list.clone().unwrap_or_default().join(" ");
                assert_eq!(rule.verbs, ["impersonate"]);
                [
                    words(&rule.api_groups),
                    words(&rule.resources),
                    words(&rule.resource_names),
                ]
                .join(": ")
            })
            .collect();
        let wanted = [
            ": users: ada",
            ": groups: dev sre",
            "authentication.k8s.io: uids: 6d9c",
            "authentication.k8s.io: userextras/example.com/team userextras/scopes: ",
        ];
        assert_eq!(told, wanted);
        assert_eq!(rules(allow(&["--user", "ada"]).unwrap(), &all), all);
    }
}
