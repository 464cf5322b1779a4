//! What of a world a router may be told, by its subscription. Pure.

use std::collections::BTreeSet;

use portolan_crds::ShardName;
use portolan_wire::subscription::{CallerPod, Subscription};
use portolan_wire::v1;
use portolan_wire::v1::ResourceKind;
use portolan_wire::v1::resource::Body;

use super::{Compiled, Ref, World};
use crate::facts::PolicyName;

/// A router's part of one world.
#[derive(Debug)]
pub(crate) enum Scope {
    Everything,
    Part(Part),
}

#[derive(Debug, Default)]
pub(crate) struct Part {
    shards: BTreeSet<ShardName>,
    views: BTreeSet<Ref>,
    /// Those that hold one of these callers.
    policies: BTreeSet<PolicyName>,
    /// Members that the shards use: theirs, homes of callers, primaries.
    clusters: BTreeSet<String>,
    /// Whether tokens that may act as others are among it.
    gateway: bool,
    /// Which shard is the router's is not known yet: what it holds is neither renewed nor taken away.
    uncertain: bool,
    /// Not all of its callers are known yet: no policy is taken away.
    uncertain_callers: bool,
}

impl Scope {
    pub(crate) fn of(subscription: &Subscription, world: &World) -> Self {
        match subscription {
            Subscription::Everything => Self::Everything,
            Subscription::Shards(shards) => Self::Part(Part::of_shards(shards, world)),
            Subscription::Caller(pod) => Self::Part(Part::of_caller(pod, world)),
        }
    }

    pub(crate) fn sees(&self, name: &Ref) -> bool {
        let Self::Part(part) = self else { return true };
        match name {
            Ref::Target(cluster) | Ref::Identity(cluster) | Ref::Coverage(cluster) | Ref::Nodes(cluster) => {
                self.sees_member(cluster)
            }
            Ref::Ownership { shard, .. } | Ref::Shard(shard) => part.shards.contains(shard),
            Ref::View { .. } => part.views.contains(name),
            Ref::Policy(policy) => part.policies.contains(policy),
            Ref::Credential { cluster, .. } => part.gateway && part.clusters.contains(cluster),
        }
    }

    /// Whether the router is told the way to a member.
    pub(crate) fn sees_member(&self, cluster: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Part(part) => part.clusters.contains(cluster),
        }
    }

    /// What all routers are told alike and this one may see. Not looked for in all that there is, where it is a part.
    pub(crate) fn resources<'a>(&'a self, world: &'a World) -> Box<dyn Iterator<Item = (&'a Ref, &'a Compiled)> + 'a> {
        match self {
            Self::Everything => Box::new(world.resources.iter()),
            Self::Part(part) => Box::new(part.resources(world)),
        }
    }

    /// Names of the views that the router may be told of.
    pub(crate) fn views<'a>(&'a self, world: &'a World) -> Box<dyn Iterator<Item = &'a Ref> + 'a> {
        match self {
            Self::Everything => Box::new(world.views.values().flatten()),
            Self::Part(part) => Box::new(part.views.iter()),
        }
    }

    /// The policies that the router may be told of, where these are not all.
    pub(crate) fn policies(&self) -> Option<&BTreeSet<PolicyName>> {
        match self {
            Self::Everything => None,
            Self::Part(part) => Some(&part.policies),
        }
    }

    /// Whether it cannot be said yet that the router may not see what it does not see.
    pub(crate) fn is_uncertain(&self, name: &Ref) -> bool {
        let Self::Part(part) = self else { return false };
        part.uncertain || (part.uncertain_callers && matches!(name, Ref::Policy(_)))
    }
}

impl Part {
    fn resources<'a>(&'a self, world: &'a World) -> impl Iterator<Item = (&'a Ref, &'a Compiled)> {
        let of_clusters = self.clusters.iter().flat_map(|cluster| {
            let name = || cluster.clone();
            [
                Ref::Target(name()),
                Ref::Identity(name()),
                Ref::Coverage(name()),
                Ref::Nodes(name()),
            ]
        });
        let shards = self.shards.iter().cloned().map(Ref::Shard);
        let policies = self.policies.iter().cloned().map(Ref::Policy);
        let single = of_clusters
            .chain(shards)
            .chain(policies)
            .chain(self.views.iter().cloned());
        let single = single.filter_map(|name| world.resources.get_key_value(&name));
        single.chain(self.shards.iter().flat_map(|shard| world.owned_by(shard)))
    }

    fn of_shards(shards: &BTreeSet<ShardName>, world: &World) -> Self {
        let mut part = Self {
            gateway: true,
            ..Self::default()
        };
        for name in shards {
            part.views
                .extend(world.callers.get(name).into_iter().flatten().cloned());
            part.add_shard(name, world);
            let Some(accepted) = world.state.accepted.get(name) else {
                continue;
            };
            part.clusters.extend(accepted.spec.caller_clusters.iter().cloned());
            // Of these nobody knows whether callers run there.
            let unknown = world
                .unknown
                .iter()
                .filter(|(kind, _)| *kind == ResourceKind::CallerView);
            if accepted.spec.caller_clusters.is_empty() {
                part.clusters.extend(unknown.map(|(_, cluster)| cluster.clone()));
            }
        }
        let homes = part.views.iter().filter_map(Ref::cluster).map(str::to_owned);
        part.clusters.extend(homes);
        part.add_policies(world);
        part
    }

    fn of_caller(pod: &CallerPod, world: &World) -> Self {
        let mut part = Self {
            clusters: BTreeSet::from([pod.cluster.clone()]),
            ..Self::default()
        };
        for name in world.views.get(pod).into_iter().flatten() {
            part.views.insert(name.clone());
            // In several shards it is served by none.
            let shards = world.view_of(name).map(|view| view.shards.as_slice());
            if let Some([shard]) = shards
                && let Ok(shard) = shard.parse()
            {
                part.add_shard(&shard, world);
            }
        }
        part.uncertain = part.views.is_empty() && world.is_unknown(ResourceKind::CallerView, &pod.cluster);
        part.add_policies(world);
        part
    }

    /// The policies that hold its callers.
    fn add_policies(&mut self, world: &World) {
        for view in &self.views {
            let policies = world.view_of(view).into_iter().flat_map(|view| &view.policies);
            self.policies.extend(policies.filter_map(|name| name.parse().ok()));
        }
        let mut clusters = self.clusters.iter();
        self.uncertain_callers = clusters.any(|cluster| world.is_unknown(ResourceKind::CallerView, cluster));
    }

    /// A shard, its members, and where its leader lock is or was; an empty name is the home cluster, which is added with the callers.
    fn add_shard(&mut self, name: &ShardName, world: &World) {
        self.shards.insert(name.clone());
        let compiled = world.resources.get(&Ref::Shard(name.clone()));
        let Some(Body::Shard(shard)) = compiled.and_then(|compiled| compiled.resource.body.as_ref()) else {
            return;
        };
        let from = shard.lock.as_ref().and_then(|lock| lock.from.as_ref());
        let members = shard.members.iter().map(|member: &v1::ShardMember| &member.cluster);
        let named = members
            .chain([&shard.primary_cluster])
            // What is recorded of its leader lock is brought from there.
            .chain(from.map(|from| &from.cluster))
            .filter(|cluster| !cluster.is_empty());
        self.clusters.extend(named.cloned());
    }
}
