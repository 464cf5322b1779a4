//! What routers hold, beside what the hub would have them hold: where a router is behind, and by what it refuses. Pure.

use std::collections::BTreeMap;

use portolan_crds::ShardName;
use serde::Serialize;

use crate::acks::RouterState;
use crate::compile::{Ref, Scope, World};

/// Routers by name.
pub(super) type Routers = BTreeMap<String, RouterState>;

/// One router.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Held {
    router: String,
    connected: bool,
    /// Seconds since it left; such a router goes on serving what it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    away_seconds: Option<u64>,
    version: String,
    /// The last run of the compiler that it has acknowledged whole.
    acked_run: u64,
    /// What it does not hold in the present version, as on the wire.
    behind: Vec<String>,
    /// What it holds and should not.
    beyond: Vec<String>,
    /// What it refused, and why.
    refused: Vec<Refused>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Refused {
    entry: String,
    reason: String,
}

/// A router that is not connected.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Away {
    router: String,
    away_seconds: u64,
}

pub(super) fn of_all(world: &World, routers: &Routers) -> Vec<Held> {
    let there = routers.iter().filter(|(_, state)| !state.gone);
    there.map(|(name, state)| held(world, name, state)).collect()
}

/// Those that hold handovers up, as nobody knows what they let through.
pub(super) fn away(routers: &Routers) -> Vec<Away> {
    let there = routers.iter().filter(|(_, state)| !state.gone);
    let away = there.filter_map(|(router, state)| {
        Some(Away {
            router: router.clone(),
            away_seconds: state.left?.elapsed().as_secs(),
        })
    });
    away.collect()
}

/// What a router does not hold in the present version, though it may be told it.
pub(super) fn behind<'a>(world: &'a World, name: &str, state: &RouterState) -> Vec<&'a Ref> {
    let scope = Scope::of(&state.subscription, world);
    let due = world.all_for(name).filter(|entry| {
        let held = state.held.get(entry.name);
        let is_current = held == Some(entry.version);
        // Of policies such a router is told nothing; what was made without all facts replaces nothing.
        let is_told = state.serves_policies || !matches!(entry.name, Ref::Policy(_));
        !is_current && is_told && scope.sees(entry.name) && !(entry.provisional && held.is_some())
    });
    let mut due: Vec<_> = due.map(|entry| entry.name).collect();
    due.sort();
    due
}

/// Routers that do not serve `shard` as it is at present, by name.
pub(super) fn lagging(world: &World, routers: &Routers, shard: &ShardName) -> Vec<String> {
    let is_of = |entry: &&Ref| match entry {
        Ref::Shard(name) | Ref::Ownership { shard: name, .. } => name == shard,
        Ref::View { .. } => world.callers.get(shard).is_some_and(|views| views.contains(*entry)),
        _ => false,
    };
    let there = routers.iter().filter(|(_, state)| !state.gone);
    let lagging = there.filter(|(name, state)| {
        state.left.is_some() && state.may_serve(shard) || behind(world, name, state).iter().any(is_of)
    });
    lagging.map(|(name, _)| name.clone()).collect()
}

/// Routers that may still let callers of `shard` write to what it lets go of since `run`, by name.
pub(super) fn holding_up(routers: &Routers, shard: &ShardName, run: u64) -> Vec<String> {
    let holding = routers
        .iter()
        .filter(|(_, state)| state.may_serve(shard) && state.acked_run < run);
    holding.map(|(name, _)| name.clone()).collect()
}

fn held(world: &World, name: &str, state: &RouterState) -> Held {
    let scope = Scope::of(&state.subscription, world);
    let beyond = state.held.keys().filter(|entry| {
        let is_told = world.has_for(name, entry);
        !(is_told && scope.sees(entry)) && (world.is_gone(entry) || (is_told && !scope.is_uncertain(entry)))
    });
    let refused = state.rejected.iter().map(|(entry, (_, reason))| Refused {
        entry: text(entry),
        reason: reason.clone(),
    });
    Held {
        router: name.to_owned(),
        connected: state.left.is_none(),
        away_seconds: state.left.map(|left| left.elapsed().as_secs()),
        version: state.version.clone(),
        acked_run: state.acked_run,
        behind: behind(world, name, state).into_iter().map(text).collect(),
        beyond: beyond.map(text).collect(),
        refused: refused.collect(),
    }
}

/// `<kind>/<name>`, as `/configz` writes it.
fn text(entry: &Ref) -> String {
    let wire = entry.to_wire();
    format!("{:?}/{}", wire.kind(), wire.name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{Fleet, shard};
    use super::*;

    /// A gateway that holds all of `world`.
    fn current(world: &World) -> RouterState {
        let held = world
            .all_for("gateway")
            .map(|entry| (entry.name.clone(), entry.version.clone()));
        RouterState {
            acked_run: world.state.run,
            ..RouterState::new(1, held.collect())
        }
    }

    fn world() -> World {
        let mut fleet = Fleet::new(&["ns-a", "ns-b"]);
        fleet.apply("a", &json!([{"name": "east", "namespaces": ["ns-a", "ns-b"]}]));
        fleet.compile()
    }

    #[test]
    fn a_router_that_holds_all_is_not_behind() {
        let world = world();
        let routers = Routers::from([("gateway".to_owned(), current(&world))]);
        let told = &of_all(&world, &routers)[0];
        assert_eq!((told.connected, &told.behind, &told.beyond), (true, &vec![], &vec![]));
        assert_eq!(lagging(&world, &routers, &shard("a")), [""; 0]);
        assert_eq!(holding_up(&routers, &shard("a"), world.state.run), [""; 0]);
        assert_eq!(holding_up(&routers, &shard("a"), world.state.run + 1), ["gateway"]);
    }

    #[test]
    fn what_is_missing_another_version_refused_or_gone_is_told() {
        let world = world();
        let mut state = current(&world);
        let owned = Ref::Ownership {
            cluster: "east".to_owned(),
            shard: shard("a"),
        };
        let gone = Ref::Shard(shard("gone"));
        state.held.insert(owned.clone(), "old".to_owned());
        state.held.insert(gone, "1".to_owned());
        state.rejected.insert(owned, ("new".to_owned(), "too many".to_owned()));
        state.left = Some(tokio::time::Instant::now());
        let routers = Routers::from([("gateway".to_owned(), state)]);
        let told = &of_all(&world, &routers)[0];
        assert_eq!(told.behind, ["Ownership/east/ops/a"]);
        assert_eq!(told.beyond, ["Shard/ops/gone"]);
        assert_eq!(
            (told.refused[0].reason.as_str(), told.away_seconds),
            ("too many", Some(0))
        );
        assert_eq!(lagging(&world, &routers, &shard("a")), ["gateway"]);
        assert_eq!(
            lagging(&world, &routers, &shard("b")),
            ["gateway"],
            "a gateway that is away"
        );
        assert_eq!(away(&routers)[0].router, "gateway");
    }
}
