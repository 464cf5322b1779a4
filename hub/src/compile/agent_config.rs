//! What each agent must label, which Pods it must report, and which routers it must give a token.

use std::collections::{BTreeMap, BTreeSet};

use portolan_crds::{GroupResource, Selector, ShardName};
use portolan_wire::subscription::Subscription;
use portolan_wire::v1;

use super::callers::{caller_selector, runs_in};
use super::roots::roots;
use super::{Accepted, Ref, Scope, World, fence};
use crate::facts::Facts;
use crate::settings::Settings;

/// One configuration for each accepted member.
pub(super) fn render(facts: &Facts, settings: &Settings, world: &World) -> BTreeMap<String, v1::AgentConfig> {
    let accepted = &world.state.accepted;
    let routers = scopes(facts, world);
    let kinds: Vec<_> = kinds(settings, accepted).into_iter().map(v1::KindRef::from).collect();
    let members = facts.members.iter().filter(|(_, member)| member.accept);
    members
        .map(|(cluster, _)| {
            let config = v1::AgentConfig {
                label_prefix: settings.keys.prefix().to_owned(),
                bucketing: Some(settings.bucketing.into()),
                labelled_kinds: kinds.clone(),
                caller_selectors: selectors(cluster, facts, world),
                routers: Some(who_acts_in(cluster, &routers)),
                fences: fence::orders(facts, &world.state.ledger, cluster),
            };
            (cluster.clone(), config)
        })
        .collect()
}

/// What each router may be told. Most are told the same, and one look at the world is enough for those.
fn scopes<'a>(facts: &'a Facts, world: &World) -> Vec<(Scope, Vec<v1::RouterRef>)> {
    let mut alike = BTreeMap::<Vec<String>, (&'a Subscription, Vec<v1::RouterRef>)>::new();
    for (name, router) in &facts.routers {
        let Some(subscription) = &router.subscription else {
            continue;
        };
        let (_, routers) = alike
            .entry(subscription.scopes())
            .or_insert_with(|| (subscription, Vec::new()));
        routers.push(v1::RouterRef {
            name: name.clone(),
            uid: router.uid.clone(),
        });
    }
    let scoped = alike.into_values();
    scoped
        .map(|(subscription, routers)| (Scope::of(subscription, world), routers))
        .collect()
}

/// The routers that are given this member's token.
fn who_acts_in(cluster: &str, scopes: &[(Scope, Vec<v1::RouterRef>)]) -> v1::Routers {
    let token = Ref::gateway_credential(cluster);
    let told = scopes.iter().filter(|(scope, _)| scope.sees(&token));
    let mut routers: Vec<_> = told.flat_map(|(_, routers)| routers.iter().cloned()).collect();
    routers.sort_by(|a, b| a.name.cmp(&b.name));
    v1::Routers { routers }
}

/// The configured kinds and those that limits in force name, without repetition.
fn kinds(settings: &Settings, accepted: &BTreeMap<ShardName, Accepted>) -> BTreeSet<GroupResource> {
    let named = accepted.values().flat_map(|accepted| accepted.spec.limited_kinds());
    // Subresources have no labels of their own.
    let whole = named.map(|kind| GroupResource::new(kind.group, kind.resource.split('/').next().unwrap_or_default()));
    settings.label_kinds.iter().cloned().chain(whole).collect()
}

fn selectors(cluster: &str, facts: &Facts, world: &World) -> Vec<v1::CallerSelector> {
    let accepted = &world.state.accepted;
    let roots = roots(facts);
    let is_told = |name: &ShardName| {
        let root = roots.get(name).and_then(|root| Some((*root, accepted.get(*root)?)));
        root.is_some_and(|(root, of_root)| tells_of_all(cluster, facts, root, of_root))
    };
    let here = accepted.iter().filter(|(_, accepted)| runs_in(accepted, cluster));
    let selectors = here.filter_map(|(name, accepted)| {
        let selector = match accepted.spec.active_root() {
            Some(_) => selector_of_root(accepted),
            None => caller_selector(accepted).filter(|_| !is_told(name)),
        };
        Some((name.namespace().to_owned(), selector?.to_string()))
    });
    let unique: BTreeSet<_> = selectors.collect();
    unique
        .into_iter()
        .map(|(namespace, selector)| v1::CallerSelector { namespace, selector })
        .collect()
}

/// Which Pods a root's children choose theirs of, and perhaps some that are nobody's; `None`: it does not say.
pub(crate) fn selector_of_root(accepted: &Accepted) -> Option<Selector> {
    Selector::from_label_selector(accepted.spec.selector.as_ref()?).ok()
}

/// Whether the agent tells of all Pods of the root's children when it is asked for the root's, which is one question.
fn tells_of_all(cluster: &str, facts: &Facts, root: &ShardName, accepted: &Accepted) -> bool {
    let Some(selector) = selector_of_root(accepted).filter(|_| accepted.spec.active_root().is_some()) else {
        return false;
    };
    let selector = selector.to_string();
    let agent = facts.agents.get(cluster);
    let mut excess = agent.into_iter().flat_map(|agent| &agent.excess);
    !excess.any(|excess| excess.namespace == root.namespace() && excess.selector == selector)
}
