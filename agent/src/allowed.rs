//! Whom the router may act as in this member: read from the RBAC objects that `portolanctl` installs, and reported.
//!
//! Only objects of exactly these names with the managed-by label count; whatever else a Role grants is none of the
//! hub's business. Callers: `app` runs it, `report` sends.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use portolan_crds::labels::{ROLE_IMPERSONATE, ROLE_IMPERSONATE_USERS};
use portolan_wire::v1::Allowed;
use tokio::sync::watch;

use crate::explain::watch_broke;
use crate::member::watch_config;
use crate::metrics::{Metrics, Watched};

/// Selects what `portolanctl` manages.
const MANAGED: &str = "app.kubernetes.io/managed-by=portolan";

/// The rules of one kind of roles, by namespace; a ClusterRole's under the empty one.
#[derive(Debug, Default)]
struct Roles {
    rules: BTreeMap<String, Vec<PolicyRule>>,
    listed: bool,
}

/// Watches for ever; `allowed` is set once both kinds are listed.
pub(crate) async fn run(client: Client, allowed: watch::Sender<Option<Allowed>>, metrics: Metrics) {
    let config = |name: &str| watch_config().labels(MANAGED).fields(&format!("metadata.name={name}"));
    let roles = watcher(Api::<Role>::all(client.clone()), config(ROLE_IMPERSONATE)).default_backoff();
    let cluster_roles = watcher(Api::<ClusterRole>::all(client), config(ROLE_IMPERSONATE_USERS)).default_backoff();
    let (mut roles, mut cluster_roles) = (std::pin::pin!(roles), std::pin::pin!(cluster_roles));
    let (mut accounts, mut users) = (Roles::default(), Roles::default());
    loop {
        let applied = tokio::select! {
            Some(event) = roles.next() => event.map(|event| accounts.apply(event, |role| role.rules)),
            Some(event) = cluster_roles.next() => event.map(|event| users.apply(event, |role| role.rules)),
            else => return,
        };
        if let Err(error) = applied {
            watch_broke(&metrics, Watched::roles, ROLE_IMPERSONATE, &error);
        } else if let Some(now) = by(&accounts, &users) {
            allowed.send_if_modified(|current| current.replace(now.clone()).as_ref() != Some(&now));
        }
    }
}

impl Roles {
    /// Between begin and end of a list nothing is reported, so that a relist never looks like a withdrawal.
    fn apply<K: Resource>(&mut self, event: Event<K>, rules: fn(K) -> Option<Vec<PolicyRule>>) {
        match event {
            Event::Init => *self = Self::default(),
            Event::InitApply(role) | Event::Apply(role) => {
                let namespace = role.namespace().unwrap_or_default();
                self.rules.insert(namespace, rules(role).unwrap_or_default());
            }
            Event::InitDone => self.listed = true,
            Event::Delete(role) => drop(self.rules.remove(&role.namespace().unwrap_or_default())),
        }
    }
}

/// Whom the roles allow; `None` while a list is under way.
fn by(accounts: &Roles, users: &Roles) -> Option<Allowed> {
    if !(accounts.listed && users.listed) {
        return None;
    }
    let accounts = accounts
        .rules
        .iter()
        .flat_map(|(namespace, rules)| names(rules, "serviceaccounts").map(move |name| format!("{namespace}/{name}")));
    let users = users.rules.values().flat_map(|rules| names(rules, "users"));
    let (accounts, users): (BTreeSet<_>, BTreeSet<_>) = (accounts.collect(), users.collect());
    Some(Allowed {
        service_accounts: accounts.into_iter().collect(),
        users: users.into_iter().collect(),
    })
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

    fn listed() -> Roles {
        Roles {
            listed: true,
            ..Roles::default()
        }
    }

    fn role(namespace: &str, verb: &str, resource: &str, names: &[&str]) -> Event<Role> {
        let rule = PolicyRule {
            api_groups: Some(vec![String::new()]),
            resources: Some(vec![resource.to_owned()]),
            resource_names: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            verbs: vec![verb.to_owned()],
            ..PolicyRule::default()
        };
        let mut role = Role {
            rules: Some(vec![rule]),
            ..Role::default()
        };
        role.metadata.namespace = Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty());
        Event::Apply(role)
    }

    fn apply(roles: &mut Roles, event: Event<Role>) {
        roles.apply(event, |role| role.rules);
    }

    #[test]
    fn names_what_the_roles_name_and_nothing_else() {
        let (mut accounts, mut users) = (listed(), listed());
        for event in [
            role("ops", "impersonate", "serviceaccounts", &["operator", "backup"]),
            role("dev", "get", "serviceaccounts", &["reader"]),
            role("odd", "impersonate", "users", &["root"]),
        ] {
            apply(&mut accounts, event);
        }
        apply(&mut users, role("", "impersonate", "users", &["ada"]));
        let allowed = by(&accounts, &users).unwrap();
        assert_eq!(allowed.service_accounts, ["ops/backup", "ops/operator"]);
        assert_eq!(allowed.users, ["ada"]);
    }

    #[test]
    fn a_relist_is_no_withdrawal_until_it_is_through() {
        let (mut accounts, users) = (listed(), listed());
        apply(
            &mut accounts,
            role("ops", "impersonate", "serviceaccounts", &["operator"]),
        );
        apply(&mut accounts, Event::Init);
        assert_eq!(by(&accounts, &users), None);
        apply(&mut accounts, Event::InitDone);
        assert_eq!(by(&accounts, &users), Some(Allowed::default()));
    }
}
