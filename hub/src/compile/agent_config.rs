//! What each agent must label, which Pods it must report, and which routers it must give a token.
//!
//! Of kinds and selectors it is what the shards of its own member ask for, within [`bounds`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_crds::selector::digest_of;
use portolan_crds::{Selector, ShardName};
use portolan_wire::subscription::Subscription;
use portolan_wire::v1;

use super::callers::{caller_selector, homes};
use super::reference::Earlier;
use super::roots::roots;
use super::{Accepted, Ref, Scope, World, fence};
use crate::facts::Facts;
use crate::settings::Settings;

mod bounds;
mod kinds;

use bounds::Asks;
pub(crate) use bounds::LeftOut;
use kinds::Kinds;

/// What one agent is told. The routers are mostly the same for all members, and many, and the rest is mostly as it was in the world
/// before: both are shared until they are sent.
#[derive(Debug, Clone)]
pub(crate) struct AgentOrders {
    /// All but the routers.
    rest: Arc<v1::AgentConfig>,
    routers: Arc<v1::Routers>,
    /// What it is not told.
    left_out: Arc<LeftOut>,
}

impl PartialEq for AgentOrders {
    fn eq(&self, other: &Self) -> bool {
        let same = Arc::ptr_eq(&self.routers, &other.routers) || self.routers == other.routers;
        let same = same && (Arc::ptr_eq(&self.rest, &other.rest) || self.rest == other.rest);
        same && self.left_out == other.left_out
    }
}

impl AgentOrders {
    pub(crate) fn to_wire(&self) -> v1::AgentConfig {
        v1::AgentConfig {
            routers: Some(v1::Routers::clone(&self.routers)),
            ..v1::AgentConfig::clone(&self.rest)
        }
    }

    /// What ShardingConfigs ask the agent for and it is not told.
    pub(crate) fn left_out(&self) -> &LeftOut {
        &self.left_out
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
    let routers = scopes(facts, world);
    let mut acting = BTreeMap::new();
    let kinds = Kinds::of(facts, &world.state.accepted);
    let callers = Callers::of(facts, world);
    let members = facts.members.iter().filter(|(_, member)| member.accept);
    members
        .map(|(cluster, _)| {
            let mut left_out = LeftOut::default();
            let asks = Asks {
                kinds: kinds.asked(cluster),
                selectors: callers.asked(cluster),
            };
            let asked = asks.bounded_kinds(&mut left_out);
            let asked: BTreeSet<_> = settings.label_kinds.iter().chain(asked).collect();
            let asked: Vec<_> = asked.into_iter().cloned().map(v1::KindRef::from).collect();
            let selectors = asks
                .bounded_selectors(&mut left_out)
                .into_iter()
                .map(caller_selector_of);
            callers.leave_out_children(cluster, &mut left_out);
            let rest = v1::AgentConfig {
                label_prefix: settings.keys.prefix().to_owned(),
                bucketing: Some(settings.bucketing.into()),
                labelled_kinds: asked,
                caller_selectors: selectors.collect(),
                routers: None,
                fences: fence::orders(facts, &world.state.ledger, cluster),
                // The session's to say.
                term: 0,
            };
            let told = earlier.0.and_then(|world| world.agent_configs.get(cluster));
            let same = told.map(|told| &told.rest).filter(|told| ***told == rest);
            let orders = AgentOrders {
                rest: same.cloned().unwrap_or_else(|| Arc::new(rest)),
                routers: who_acts_in(cluster, &routers, &mut acting, earlier),
                left_out: left_out.into(),
            };
            (cluster.clone(), orders)
        })
        .collect()
}

fn caller_selector_of((namespace, selector): (&str, &str)) -> v1::CallerSelector {
    v1::CallerSelector {
        namespace: namespace.to_owned(),
        selector: selector.to_owned(),
    }
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

    fn in_cluster(&self, cluster: &str) -> impl Iterator<Item = &'a ShardName> {
        let here = self.in_cluster.get(cluster).into_iter().flatten();
        here.chain(&self.anywhere).copied()
    }

    /// The selectors that are asked for in `cluster`, by the namespaces of their shards.
    fn asked(&self, cluster: &str) -> BTreeMap<&str, BTreeSet<&str>> {
        let names = self
            .in_cluster(cluster)
            .filter(|name| self.told_by(cluster, name).is_none());
        let mut selectors = BTreeMap::<_, BTreeSet<_>>::new();
        for name in names {
            if let Some(asked) = self.asked.get(name) {
                selectors
                    .entry(name.namespace())
                    .or_default()
                    .insert(asked.selector.as_str());
            }
        }
        selectors
    }

    /// Leaves the selectors of children out whose root's is.
    fn leave_out_children(&self, cluster: &str, left_out: &mut LeftOut) {
        let of_children = self.in_cluster(cluster).filter_map(|name| {
            let (root, selector) = self.told_by(cluster, name)?;
            let is_out = left_out.has_selector(root, selector);
            is_out.then_some((name, &self.asked.get(name)?.selector))
        });
        for (child, selector) in of_children.collect::<Vec<_>>() {
            left_out.add_selector(child, selector);
        }
    }

    /// The root by whose selector, which is one question, the agent tells of all Pods of its child; `None`: it is asked for them.
    fn told_by(&self, cluster: &str, child: &ShardName) -> Option<(&'a ShardName, &str)> {
        let root = *self.roots.get(child)?;
        let asked = self.asked.get(root).filter(|asked| asked.is_root)?;
        let agent = self.facts.agents.get(cluster);
        let excess = agent.into_iter().flat_map(|agent| &agent.excess);
        let mut excess = excess.filter(|excess| excess.namespace == root.namespace()).peekable();
        // Few are.
        let digest = excess.peek().map(|_| digest_of(&asked.selector));
        let is_cut = excess.any(|excess| Some(&excess.digest) == digest.as_ref());
        (!is_cut).then_some((root, asked.selector.as_str()))
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
