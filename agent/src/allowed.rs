//! Whom the router may act as in this member: read from the RBAC objects that `portolanctl` installs, and reported.
//!
//! Only objects of exactly these names with the managed-by label count; whatever else a Role grants is none of the
//! hub's business. Callers: `app` runs it, `report` sends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::api::ListParams;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use portolan_crds::labels::{FENCE_EPOCH, FENCE_SHARD, ROLE_FENCE, ROLE_IMPERSONATE, ROLE_IMPERSONATE_USERS};
use portolan_wire::v1::Allowed;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::admission::{self, Fenced};
use crate::explain::watch_broke;
use crate::member::{CallError, bounded, watch_config};
use crate::metrics::{Metrics, Watched};

/// Selects what `portolanctl` manages.
const MANAGED: &str = "app.kubernetes.io/managed-by=portolan";
/// The right to say an epoch comes with `portolanctl join`, as does the policy that compares it, and seldom goes. Where an older one was run the agent may not look:
/// a watch would fail for ever.
const LOOK_FOR_EXTRAS: Duration = Duration::from_secs(30);
/// While the API server does not answer.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The rules of one kind of roles, by namespace; a ClusterRole's under the empty one.
#[derive(Debug, Default)]
struct Roles {
    rules: BTreeMap<String, Vec<PolicyRule>>,
    listed: bool,
}

/// Watches for ever; `allowed` is set once both kinds are listed and the extras are known.
pub(crate) async fn run(client: Client, allowed: watch::Sender<Option<Allowed>>, metrics: Metrics) {
    let looked_by = client.clone();
    // Not told before it is known: that the right is gone would be news.
    let mut fence = None;
    let mut looks = tokio::time::interval(LOOK_FOR_EXTRAS);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let config = |name: &str| watch_config().labels(MANAGED).fields(&format!("metadata.name={name}"));
    let roles = watcher(Api::<Role>::all(client.clone()), config(ROLE_IMPERSONATE)).default_backoff();
    let cluster_roles = watcher(Api::<ClusterRole>::all(client), config(ROLE_IMPERSONATE_USERS)).default_backoff();
    let (mut roles, mut cluster_roles) = (std::pin::pin!(roles), std::pin::pin!(cluster_roles));
    let (mut accounts, mut users) = (Roles::default(), Roles::default());
    loop {
        let applied = tokio::select! {
            Some(event) = roles.next() => event.map(|event| accounts.apply(event, |role| role.rules)),
            Some(event) = cluster_roles.next() => event.map(|event| users.apply(event, |role| role.rules)),
            _ = looks.tick() => {
                match extras_of(&looked_by).await {
                    Some(now) => fence = Some(now),
                    None => looks.reset_after(LOOK_AGAIN),
                }
                Ok(())
            }
            else => return,
        };
        if let Err(error) = applied {
            watch_broke(&metrics, Watched::roles, ROLE_IMPERSONATE, &error);
        } else if let (Some(mut now), Some((extras, fence_lists))) = (by(&accounts, &users), &fence) {
            now.extras = extras.iter().cloned().collect();
            now.fence_lists = *fence_lists;
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
        ..Allowed::default()
    })
}

/// The extras of fences that the router may act with, whatever their values, where the policy that compares them is there, and whether
/// several epochs may be open; `None`: that cannot be told now.
async fn extras_of(client: &Client) -> Option<(BTreeSet<String>, bool)> {
    let found = async {
        let fenced = admission::fenced(client).await?;
        if fenced == Fenced::Not {
            return Ok((BTreeSet::new(), false));
        }
        let roles = Api::<ClusterRole>::all(client.clone());
        let params = ListParams::default().fields(&format!("metadata.name={ROLE_FENCE}"));
        let list = bounded(roles.list(&params)).await?;
        let rules: Vec<_> = list.items.into_iter().filter_map(|role| role.rules).flatten().collect();
        Ok::<_, CallError>((extras(&rules), fenced == Fenced::Lists))
    };
    match found.await {
        Err(error) if error.status() == Some(403) => Some((BTreeSet::new(), false)),
        found => found.ok(),
    }
}

fn extras(rules: &[PolicyRule]) -> BTreeSet<String> {
    let has = |list: &Option<Vec<String>>, word: &str| list.iter().flatten().any(|item| item == word);
    let may = |key: &&str| {
        let resource = format!("userextras/{key}");
        rules.iter().any(|rule| {
            rule.verbs.iter().any(|verb| verb == "impersonate")
                && has(&rule.api_groups, "authentication.k8s.io")
                && has(&rule.resources, &resource)
                && rule.resource_names.is_none()
        })
    };
    [FENCE_SHARD, FENCE_EPOCH]
        .into_iter()
        .filter(may)
        .map(str::to_owned)
        .collect()
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
    fn extras_are_those_of_fences_with_any_value() {
        let rule = |group: &str, key: &str, names: Option<&str>| PolicyRule {
            api_groups: Some(vec![group.to_owned()]),
            resources: Some(vec![format!("userextras/{key}")]),
            resource_names: names.map(|name| vec![name.to_owned()]),
            verbs: vec!["impersonate".to_owned()],
            ..PolicyRule::default()
        };
        let both = [
            rule("authentication.k8s.io", FENCE_SHARD, None),
            rule("authentication.k8s.io", FENCE_EPOCH, None),
            rule("authentication.k8s.io", "scopes", None),
        ];
        assert_eq!(extras(&both), [FENCE_EPOCH, FENCE_SHARD].map(str::to_owned).into());
        assert!(extras(&[rule("", FENCE_EPOCH, None)]).is_empty());
        assert!(extras(&[rule("authentication.k8s.io", FENCE_EPOCH, Some("4"))]).is_empty());
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
