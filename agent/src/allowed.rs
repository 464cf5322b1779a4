//! Whom the router may act as in this member: read from the RBAC objects that `portolanctl` installs, and reported.
//!
//! Only objects of exactly these names with the managed-by label count; whatever else a Role grants is none of the
//! hub's business. Callers: `app` runs it, `report` sends.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use futures::stream::select;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Event, watcher};
use kube::{Api, Client, ResourceExt};
use portolan_crds::labels::{ROLE_IMPERSONATE, ROLE_IMPERSONATE_USERS};
use portolan_wire::v1::Allowed;
use tokio::sync::watch;

use crate::explain::watch_broke;
use crate::member::watch_config;
use crate::metrics::{Metrics, Watched};

/// Selects what `portolanctl` manages.
const MANAGED: &str = "app.kubernetes.io/managed-by=portolan";

/// Rules by namespace; the ClusterRole's under the empty one.
#[derive(Debug, Default)]
struct Granted {
    rules: BTreeMap<String, Vec<PolicyRule>>,
    roles_listed: bool,
    cluster_role_listed: bool,
}

/// What a watch of Roles or of ClusterRoles says of one role.
enum Change {
    Put(String, Vec<PolicyRule>),
    Gone(String),
    /// A list begins: what it does not contain is gone.
    RolesRestart,
    ClusterRoleRestart,
    RolesListed,
    ClusterRoleListed,
}

/// Watches for ever; `allowed` is set once both kinds are listed.
pub(crate) async fn run(client: Client, allowed: watch::Sender<Option<Allowed>>, metrics: Metrics) {
    let roles = watcher(
        Api::<Role>::all(client.clone()),
        watch_config()
            .labels(MANAGED)
            .fields(&format!("metadata.name={ROLE_IMPERSONATE}")),
    );
    let cluster_roles = watcher(
        Api::<ClusterRole>::all(client),
        watch_config()
            .labels(MANAGED)
            .fields(&format!("metadata.name={ROLE_IMPERSONATE_USERS}")),
    );
    let roles = roles.default_backoff().map(|event| event.map(role_change));
    let cluster_roles = cluster_roles
        .default_backoff()
        .map(|event| event.map(cluster_role_change));
    let mut changes = std::pin::pin!(select(roles, cluster_roles));
    let mut granted = Granted::default();
    while let Some(change) = changes.next().await {
        match change {
            Ok(change) => {
                granted.apply(change);
                if let Some(now) = granted.allowed() {
                    allowed.send_if_modified(|current| current.replace(now.clone()).as_ref() != Some(&now));
                }
            }
            Err(error) => watch_broke(&metrics, Watched::Roles, ROLE_IMPERSONATE, &error),
        }
    }
}

fn role_change(event: Event<Role>) -> Change {
    match event {
        Event::Init => Change::RolesRestart,
        Event::InitApply(role) | Event::Apply(role) => {
            Change::Put(role.namespace().unwrap_or_default(), role.rules.unwrap_or_default())
        }
        Event::InitDone => Change::RolesListed,
        Event::Delete(role) => Change::Gone(role.namespace().unwrap_or_default()),
    }
}

fn cluster_role_change(event: Event<ClusterRole>) -> Change {
    match event {
        Event::Init => Change::ClusterRoleRestart,
        Event::InitApply(role) | Event::Apply(role) => Change::Put(String::new(), role.rules.unwrap_or_default()),
        Event::InitDone => Change::ClusterRoleListed,
        Event::Delete(_) => Change::Gone(String::new()),
    }
}

impl Granted {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Put(namespace, rules) => {
                self.rules.insert(namespace, rules);
            }
            Change::Gone(namespace) => {
                self.rules.remove(&namespace);
            }
            // Between begin and end of a list nothing is reported, so that a relist never looks like a withdrawal.
            Change::RolesRestart => {
                self.roles_listed = false;
                self.rules.retain(|namespace, _| namespace.is_empty());
            }
            Change::ClusterRoleRestart => {
                self.cluster_role_listed = false;
                self.rules.remove("");
            }
            Change::RolesListed => self.roles_listed = true,
            Change::ClusterRoleListed => self.cluster_role_listed = true,
        }
    }

    /// `None` while a list is under way.
    fn allowed(&self) -> Option<Allowed> {
        if !(self.roles_listed && self.cluster_role_listed) {
            return None;
        }
        let mut accounts = BTreeSet::new();
        let mut users = BTreeSet::new();
        for (namespace, rules) in &self.rules {
            if namespace.is_empty() {
                users.extend(names(rules, "users"));
            } else {
                accounts.extend(names(rules, "serviceaccounts").map(|name| format!("{namespace}/{name}")));
            }
        }
        Some(Allowed {
            service_accounts: accounts.into_iter().collect(),
            users: users.into_iter().collect(),
        })
    }
}

/// The names that `rules` let be impersonated. A rule without names would allow all: it is none of ours and is not
/// reported.
fn names<'a>(rules: &'a [PolicyRule], resource: &'a str) -> impl Iterator<Item = String> + 'a {
    let has = |list: &Option<Vec<String>>, word: &str| list.iter().flatten().any(|item| item == word);
    rules
        .iter()
        .filter(move |rule| rule.verbs.iter().any(|verb| verb == "impersonate"))
        .filter(move |rule| has(&rule.api_groups, "") && has(&rule.resources, resource))
        .flat_map(|rule| rule.resource_names.iter().flatten().cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verb: &str, resource: &str, names: &[&str]) -> Vec<PolicyRule> {
        vec![PolicyRule {
            api_groups: Some(vec![String::new()]),
            resources: Some(vec![resource.to_owned()]),
            resource_names: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            verbs: vec![verb.to_owned()],
            ..PolicyRule::default()
        }]
    }

    fn listed() -> Granted {
        Granted {
            roles_listed: true,
            cluster_role_listed: true,
            ..Granted::default()
        }
    }

    #[test]
    fn names_what_the_roles_name_and_nothing_else() {
        let mut granted = listed();
        granted.apply(Change::Put(
            "ops".into(),
            rule("impersonate", "serviceaccounts", &["operator", "backup"]),
        ));
        granted.apply(Change::Put("dev".into(), rule("get", "serviceaccounts", &["reader"])));
        granted.apply(Change::Put("odd".into(), rule("impersonate", "users", &["root"])));
        granted.apply(Change::Put(String::new(), rule("impersonate", "users", &["ada"])));
        let allowed = granted.allowed().unwrap();
        assert_eq!(allowed.service_accounts, ["ops/backup", "ops/operator"]);
        assert_eq!(allowed.users, ["ada"]);
    }

    #[test]
    fn a_relist_is_no_withdrawal_until_it_is_through() {
        let mut granted = listed();
        granted.apply(Change::Put(
            "ops".into(),
            rule("impersonate", "serviceaccounts", &["operator"]),
        ));
        granted.apply(Change::RolesRestart);
        assert_eq!(granted.allowed(), None);
        granted.apply(Change::RolesListed);
        assert_eq!(granted.allowed(), Some(Allowed::default()));
    }
}
