//! The hub's own pages on the admin server. Here what `/configz` shows: settings, members, policies, shares of limits, routers, the
//! world; no token, key or other secret. `shards` has those about shards. Caller: `app`.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_crds::ShardName;
use serde_json::{Value, json};

use crate::acks::Acks;
use crate::args::Config;
use crate::compile::World;
use crate::distribute::Worlds;
use crate::facts::{Facts, PolicyName, PolicyObject};
use crate::index::Index;
use crate::shares::Arbiter;

mod shards;

pub(crate) use shards::Pages;

/// Makes the dump, at each request.
pub(crate) fn configz(
    config: &Config,
    index: Arc<Index>,
    acks: Arc<Acks>,
    shares: Arc<Arbiter>,
    worlds: Worlds,
) -> impl Fn() -> Value + Send + Sync + 'static {
    let settings = json!({
        "bind": config.bind.to_string(),
        "namespace": config.namespace,
        "advertise": config.advertise,
        "labelPrefix": config.settings.keys.prefix(),
        "buckets": config.settings.bucketing.buckets(),
    });
    move || {
        let world = worlds.borrow().as_ref().map(|published| published.world.clone());
        json!({
            "settings": settings,
            "members": index.read(members),
            "routers": routers(&acks),
            "policies": index.read(|facts| policies(facts, world.as_deref())),
            "shares": shares.dump(),
            "world": world.as_deref().map(self::world),
        })
    }
}

fn members(facts: &Facts) -> Value {
    let member = |cluster: &String| {
        let agent = facts.agents.get(cluster);
        json!({
            "accepted": facts.members.get(cluster).is_some_and(|member| member.accept),
            "joined": facts.joined(cluster).is_some(),
            "agentConnected": agent.is_some_and(|agent| agent.connected),
            "namespaces": agent.and_then(|agent| agent.namespaces.as_ref()).map(std::collections::BTreeMap::len),
            "callers": agent.and_then(|agent| agent.callers.as_ref()).map(std::collections::BTreeMap::len),
            "tokens": agent.map(|agent| agent.tokens.len()),
        })
    };
    facts
        .members
        .keys()
        .map(|cluster| (cluster.clone(), member(cluster)))
        .collect()
}

/// How policies stand; what they say is in their objects.
fn policies(facts: &Facts, world: Option<&World>) -> Value {
    let policy = |name: &PolicyName, object: &PolicyObject| {
        let reach = world.and_then(|world| world.policies.get(name));
        json!({
            "standing": reach.map(|reach| format!("{:?}", reach.standing)),
            "callers": reach.map(|reach| reach.callers.count),
            "generation": object.generation,
            "inForce": object.in_force.as_ref().map(|good| good.generation),
        })
    };
    let stopped = facts.faults_stopped.as_ref();
    let policies = facts.policies.iter();
    json!({
        "faultsStopped": stopped.map(|stopped| json!({"by": stopped.by, "reason": stopped.reason, "since": stopped.since})),
        "objects": policies.map(|(name, object)| (name.to_string(), policy(name, object))).collect::<Value>(),
    })
}

fn routers(acks: &Acks) -> Value {
    acks.read(|routers| {
        let router = |state: &crate::acks::RouterState| {
            json!({
                "connected": state.left.is_none(),
                "version": state.version,
                "ackedRun": state.acked_run,
                "unsaved": state.unsaved,
                "servesPolicies": state.serves_policies,
                "openedRules": state.rules.opened(),
                "holds": names(state.held.iter().map(|(name, version)| (name, version.as_str()))),
                "refused": names(state.rejected.iter().map(|(name, (_, reason))| (name, reason.as_str()))),
            })
        };
        routers
            .iter()
            .map(|(name, state)| (name.clone(), router(state)))
            .collect()
    })
}

fn names<'a>(entries: impl Iterator<Item = (&'a crate::compile::Ref, &'a str)>) -> Value {
    entries
        .map(|(name, text)| {
            let wire = name.to_wire();
            (format!("{:?}/{}", wire.kind(), wire.name), Value::from(text))
        })
        .collect()
}

fn world(world: &World) -> Value {
    let versions = world
        .resources
        .iter()
        .map(|(name, compiled)| (name, compiled.resource.version.as_str()));
    let ledger = |cluster: &str| -> Value {
        let mut of_namespaces = BTreeMap::<_, Vec<_>>::new();
        for (operator, namespace, entry) in world.state.ledger.pairs_in(cluster) {
            let entry = json!({
                "operator": operator.to_string(),
                "owner": entry.owner.as_ref().map(ToString::to_string),
                "ownerCount": entry.owner_count,
                "viewRevision": entry.view_revision,
                "releasing": entry.releasing_since.is_some(),
            });
            of_namespaces.entry(namespace.to_owned()).or_default().push(entry);
        }
        of_namespaces.into_iter().collect()
    };
    let of_clusters = |what: &dyn Fn(&str) -> Value| -> Value {
        let clusters = world.state.ledger.clusters().into_iter();
        clusters.map(|cluster| (cluster.to_owned(), what(cluster))).collect()
    };
    json!({
        "run": world.state.run,
        "resources": names(versions),
        "viewRevision": world.state.ledger.view_revision(),
        "ledger": of_clusters(&ledger),
        "departures": of_clusters(&|cluster| departures(world, cluster)),
    })
}

/// What left the shards that there are.
fn departures(world: &World, cluster: &str) -> Value {
    let ledger = &world.state.ledger;
    let of_shard = |shard: &ShardName| -> Value {
        let departures = ledger.departures(cluster, shard);
        let departures: Value = departures
            .map(|(namespace, departure)| {
                let departure = json!({
                    "viewRevision": departure.view_revision,
                    "unixSeconds": departure.unix_seconds,
                });
                (namespace.to_owned(), departure)
            })
            .collect();
        json!({
            "droppedUpTo": ledger.departures_dropped_up_to(cluster, shard),
            "namespaces": departures,
        })
    };
    let shards = world.shards.keys();
    shards.map(|shard| (shard.to_string(), of_shard(shard))).collect()
}
