//! What each agent must label, which Pods it must report, and which routers it must give a token.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_crds::{GroupResource, Selector, ShardName};
use portolan_wire::subscription::Subscription;
use portolan_wire::v1;

use super::callers::{caller_selector, homes};
use super::reference::Earlier;
use super::roots::roots;
use super::{Accepted, Ref, Scope, World, fence};
use crate::facts::Facts;
use crate::settings::Settings;

/// What one agent is told. The routers are mostly the same for all members, and many, and the rest is mostly as it was in the world
/// before: both are shared until they are sent.
#[derive(Debug, Clone)]
pub(crate) struct AgentOrders {
    /// All but the routers.
    rest: Arc<v1::AgentConfig>,
    routers: Arc<v1::Routers>,
}

impl PartialEq for AgentOrders {
    fn eq(&self, other: &Self) -> bool {
        let same = Arc::ptr_eq(&self.routers, &other.routers) || self.routers == other.routers;
        same && (Arc::ptr_eq(&self.rest, &other.rest) || self.rest == other.rest)
    }
}

impl AgentOrders {
    pub(crate) fn to_wire(&self) -> v1::AgentConfig {
        v1::AgentConfig {
            routers: Some(v1::Routers::clone(&self.routers)),
            ..v1::AgentConfig::clone(&self.rest)
        }
    }

    /// Those that are to have a token of the member.
    pub(crate) fn routers(&self) -> &[v1::RouterRef] {
        &self.routers.routers
    }

    #[cfg(test)]
    pub(crate) fn rest(&self) -> &v1::AgentConfig {
        &self.rest
    }
}

/// One configuration for each accepted member.
pub(super) fn render(
    facts: &Facts,
    settings: &Settings,
    world: &World,
    earlier: Earlier<'_>,
) -> BTreeMap<String, AgentOrders> {
    let accepted = &world.state.accepted;
    let routers = scopes(facts, world);
    let mut acting = BTreeMap::new();
    let kinds: Vec<_> = kinds(settings, accepted).into_iter().map(v1::KindRef::from).collect();
    let callers = Callers::of(facts, world);
    let members = facts.members.iter().filter(|(_, member)| member.accept);
    members
        .map(|(cluster, _)| {
            let (selectors, fences) = (
                callers.selectors(cluster),
                fence::orders(facts, &world.state.ledger, cluster),
            );
            let told = earlier.0.and_then(|world| world.agent_configs.get(cluster));
            let same = told.map(|told| &told.rest).filter(|rest| {
                rest.labelled_kinds == kinds && rest.caller_selectors == selectors && rest.fences == fences
            });
            let make = || v1::AgentConfig {
                label_prefix: settings.keys.prefix().to_owned(),
                bucketing: Some(settings.bucketing.into()),
                labelled_kinds: kinds.clone(),
                caller_selectors: selectors.clone(),
                routers: None,
                fences: fences.clone(),
            };
            let rest = same.cloned().unwrap_or_else(|| Arc::new(make()));
            let routers = who_acts_in(cluster, &routers, &mut acting, earlier);
            (cluster.clone(), AgentOrders { rest, routers })
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

/// The routers that are given this member's token. `known`: by the scopes that see it, as made for members before.
fn who_acts_in(
    cluster: &str,
    scopes: &[(Scope, Vec<v1::RouterRef>)],
    known: &mut BTreeMap<Vec<bool>, Arc<v1::Routers>>,
    earlier: Earlier<'_>,
) -> Arc<v1::Routers> {
    let token = Ref::gateway_credential(cluster);
    let told: Vec<_> = scopes.iter().map(|(scope, _)| scope.sees(&token)).collect();
    let make = || {
        let seeing = scopes.iter().zip(&told).filter(|(_, sees)| **sees);
        let mut routers: Vec<_> = seeing.flat_map(|((_, routers), _)| routers.iter().cloned()).collect();
        routers.sort_by(|a, b| a.name.cmp(&b.name));
        as_before(earlier, cluster, v1::Routers { routers })
    };
    known.entry(told.clone()).or_insert_with(make).clone()
}

/// These routers, as an agent was told before if they are the same.
fn as_before(earlier: Earlier<'_>, cluster: &str, routers: v1::Routers) -> Arc<v1::Routers> {
    let told = earlier.0.and_then(|world| world.agent_configs.get(cluster));
    let same = told.filter(|told| *told.routers == routers);
    same.map_or_else(|| Arc::new(routers), |told| told.routers.clone())
}

/// The configured kinds and those that limits in force name, without repetition.
fn kinds(settings: &Settings, accepted: &BTreeMap<ShardName, Accepted>) -> BTreeSet<GroupResource> {
    let named = accepted.values().flat_map(|accepted| accepted.spec.limited_kinds());
    // Subresources have no labels of their own.
    let whole = named.map(|kind| GroupResource::new(kind.group, kind.resource.split('/').next().unwrap_or_default()));
    settings.label_kinds.iter().cloned().chain(whole).collect()
}

/// The shards in force that have callers, by where these run.
struct Callers<'a> {
    facts: &'a Facts,
    roots: BTreeMap<&'a ShardName, &'a ShardName>,
    asked: BTreeMap<&'a ShardName, Asked>,
    anywhere: Vec<&'a ShardName>,
    in_cluster: BTreeMap<&'a str, Vec<&'a ShardName>>,
}

/// What agents are asked for a shard.
struct Asked {
    is_root: bool,
    selector: String,
}

impl<'a> Callers<'a> {
    fn of(facts: &'a Facts, world: &'a World) -> Self {
        let mut callers = Self {
            facts,
            roots: roots(facts),
            asked: BTreeMap::new(),
            anywhere: Vec::new(),
            in_cluster: BTreeMap::new(),
        };
        for (name, accepted) in &world.state.accepted {
            let Some(asked) = Asked::of(accepted) else { continue };
            callers.asked.insert(name, asked);
            match homes(accepted) {
                None => callers.anywhere.push(name),
                Some(clusters) => {
                    for cluster in clusters {
                        callers.in_cluster.entry(cluster).or_default().push(name);
                    }
                }
            }
        }
        callers
    }

    fn selectors(&self, cluster: &str) -> Vec<v1::CallerSelector> {
        let here = self.in_cluster.get(cluster).into_iter().flatten();
        let names = here.chain(&self.anywhere).filter(|name| !self.is_told(cluster, name));
        let asked = names.filter_map(|name| Some((name.namespace(), self.asked.get(name)?.selector.as_str())));
        let unique: BTreeSet<_> = asked.collect();
        unique
            .into_iter()
            .map(|(namespace, selector)| v1::CallerSelector {
                namespace: namespace.to_owned(),
                selector: selector.to_owned(),
            })
            .collect()
    }

    /// Whether the agent tells of all Pods of a root's child when it is asked for the root's, which is one question.
    fn is_told(&self, cluster: &str, child: &ShardName) -> bool {
        let root = self.roots.get(child);
        let root = root.and_then(|root| Some((*root, self.asked.get(root).filter(|asked| asked.is_root)?)));
        let Some((root, asked)) = root else { return false };
        let agent = self.facts.agents.get(cluster);
        let mut excess = agent.into_iter().flat_map(|agent| &agent.excess);
        !excess.any(|excess| excess.namespace == root.namespace() && excess.selector == asked.selector)
    }
}

impl Asked {
    /// `None`: it has no callers of its own, or does not say which.
    fn of(accepted: &Accepted) -> Option<Self> {
        let is_root = accepted.spec.active_root().is_some();
        let selector = if is_root {
            selector_of_root(accepted)
        } else {
            caller_selector(accepted)
        };
        Some(Self {
            is_root,
            selector: selector?.to_string(),
        })
    }
}

/// Which Pods a root's children choose theirs of, and perhaps some that are nobody's; `None`: it does not say.
pub(crate) fn selector_of_root(accepted: &Accepted) -> Option<Selector> {
    Selector::from_label_selector(accepted.spec.selector.as_ref()?).ok()
}
