//! What each agent must label, which Pods it must report, and which routers it must give a token.

use std::collections::{BTreeMap, BTreeSet};

use portolan_crds::{GroupResource, ShardName};
use portolan_wire::subscription::Subscription;
use portolan_wire::v1;

use super::callers::{caller_selector, runs_in};
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
                caller_selectors: selectors(cluster, accepted),
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

fn selectors(cluster: &str, accepted: &BTreeMap<ShardName, Accepted>) -> Vec<v1::CallerSelector> {
    let here = accepted.iter().filter(|(_, accepted)| runs_in(accepted, cluster));
    let selectors =
        here.filter_map(|(name, accepted)| Some((name.namespace().to_owned(), caller_selector(accepted)?.to_string())));
    let unique: BTreeSet<_> = selectors.collect();
    unique
        .into_iter()
        .map(|(namespace, selector)| v1::CallerSelector { namespace, selector })
        .collect()
}
