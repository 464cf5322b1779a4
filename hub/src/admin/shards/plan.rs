//! What an edit of ShardingConfigs would come to: the compiler is run over the facts as they are and over the facts as they
//! would be, each until nothing is on its way any more, and what differs is the plan. Pure.
//!
//! It holds no rule of its own, so it says what the hub would do; what goes on meanwhile anyway is in both and no part of it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::api::DynamicObject;
use portolan_crds::labels::GROUP;
use portolan_crds::{ConditionReason, ShardName};
use serde::Serialize;

use super::kinds::{self, KindMove};
use super::moves::{Move, moves};
use super::roots::{self, RootPlan};
use crate::children;
use crate::compile::{Decided, Given, LockNews, Memo, Released, State, Verdict, decide, lock_place};
use crate::facts::{Facts, MemberObject, ShardObject};
use crate::index::shard_from;
use crate::settings::Settings;

/// Runs until all is at rest: a pair takes two to go from one shard to the next, and what waits for it goes on from there.
const MAX_RUNS: usize = 32;
/// The uid of an object that is not there yet.
const PLANNED: &str = "planned";

/// ShardingConfigs as they would be.
#[derive(Debug, Default)]
pub(super) struct Edits(BTreeMap<ShardName, ShardObject>);

/// What would come of it.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Plan {
    /// Shards whose spec would change.
    changed: BTreeSet<ShardName>,
    /// Shards of which the hub has exactly this spec.
    unchanged: BTreeSet<ShardName>,
    /// Pairs that would have another owner, by cluster and namespace.
    pub(super) moves: Vec<Move>,
    /// Kinds without namespaces that another shard would see alone.
    kinds: Vec<KindMove>,
    /// Leader locks that would be elsewhere.
    locks: Vec<LockMove>,
    /// Shards whose spec would not be taken.
    pub(super) refused: Vec<Refused>,
    /// Shards that are not edited, whose present spec is refused and would be taken then.
    freed: BTreeSet<ShardName>,
    roots: Vec<RootPlan>,
    /// What specs that are told of name or choose, and would not have, although they are taken.
    unresolved: Vec<Unresolved>,
    /// It was not found out where all this ends.
    endless: bool,
}

/// A leader lock that would be elsewhere.
#[derive(Debug, PartialEq, Serialize)]
struct LockMove {
    shard: ShardName,
    from: String,
    to: String,
}

/// A spec that would not be taken.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Refused {
    pub(super) shard: ShardName,
    reason: String,
    message: String,
    /// An earlier spec stays in force.
    keeps_earlier: bool,
}

/// Member clusters that a spec names and would not have.
#[derive(Debug, PartialEq, Serialize)]
struct Unresolved {
    shard: ShardName,
    reason: String,
    /// Field and fix of each.
    message: String,
}

impl Edits {
    /// Fails on what is no ShardingConfig with a usable name, naming it.
    pub(super) fn read(objects: &[DynamicObject]) -> Result<Self, String> {
        let mut edits = Self::default();
        for object in objects {
            let (api_version, kind) = match &object.types {
                Some(types) => (types.api_version.as_str(), types.kind.as_str()),
                None => ("", ""),
            };
            let name = object.metadata.name.as_deref().unwrap_or_default();
            let group = api_version.split('/').next();
            if group != Some(GROUP) || kind != "ShardingConfig" {
                return Err(format!("{kind} {name:?} of {api_version:?} is no ShardingConfig"));
            }
            let read = shard_from(object, None);
            let (name, shard) = read.ok_or_else(|| format!("ShardingConfig {name:?}: needs a namespace and a name"))?;
            if edits.0.insert(name.clone(), shard).is_some() {
                return Err(format!("ShardingConfig {name} is there twice"));
            }
        }
        Ok(edits)
    }

    /// Makes `facts` what they would be, as far as the API server has a say.
    fn apply(self, facts: &mut Facts, now: Timestamp, plan: &mut Plan) {
        for (name, mut shard) in self.0 {
            match facts.shards.get(&name) {
                Some(before) if before.spec == shard.spec => {
                    plan.unchanged.insert(name);
                    continue;
                }
                Some(before) => {
                    let mut edited = before.clone();
                    edited.keep_spec_of(&shard);
                    edited.generation = before.generation + 1;
                    shard = edited;
                }
                None => {
                    PLANNED.clone_into(&mut shard.uid);
                    (shard.generation, shard.created, shard.deleting) = (1, now, false);
                }
            }
            plan.changed.insert(name.clone());
            facts.shards.insert(name, shard);
        }
    }
}

/// What `edits` would come to, given `state`.
pub(super) fn plan(facts: &Facts, state: &State, settings: &Settings, edits: Edits, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let mut edited = facts.clone();
    edits.apply(&mut edited, now, &mut plan);
    let members = edited.members.clone();
    let (before, at_rest) = rest(facts.clone(), state, settings, now);
    plan.endless |= !at_rest;
    let (after, at_rest) = rest(edited, state, settings, now);
    plan.endless |= !at_rest;
    plan.moves = moves(&before.state.ledger, &after.state.ledger);
    plan.kinds = kinds::moves(&before.state, &after.state);
    plan.locks = locks(&before.state, &after.state);
    for (name, verdict) in &after.verdicts {
        let refused = verdict.refusal.as_ref();
        let was_refused = before
            .verdicts
            .get(name)
            .is_some_and(|verdict| verdict.refusal.is_some());
        let is_edited = plan.changed.contains(name);
        // Whoever asks about what the hub has exactly so wants to know how it stands.
        let is_asked = is_edited || plan.unchanged.contains(name);
        match refused {
            Some(_) if was_refused && !is_asked => {}
            Some(_) => plan.refused.extend(refusal(name, verdict, &after.state)),
            None if was_refused && !is_edited => drop(plan.freed.insert(name.clone())),
            None => {}
        }
    }
    let named = plan.changed.iter().chain(&plan.unchanged);
    let unresolved = named.filter_map(|name| unresolved(&members, &after, name));
    plan.unresolved.extend(unresolved);
    for name in &plan.changed {
        plan.roots.extend(roots::plan(&after.state, name));
    }
    plan
}

/// The facts' outcome, with every router answering and every child of a root written at once; and whether there is one.
pub(super) fn rest(mut facts: Facts, state: &State, settings: &Settings, now: Timestamp) -> (Decided, bool) {
    let mut last = Decided {
        state: state.clone(),
        ..Decided::default()
    };
    let mut memo = Memo::default();
    for _ in 0..MAX_RUNS {
        let released = Released {
            by_all: last.state.run,
            locks_are_handed_over: true,
            locks: last
                .state
                .moving_locks()
                .map(|(name, _)| (name.clone(), handed_over(settings)))
                .collect(),
            ..Released::default()
        };
        let given = Given {
            facts: &facts,
            settings,
            before: &last.state,
            released: &released,
            now,
        };
        let next = decide(given, &mut memo);
        let rests = next.state.ledger == last.state.ledger
            && next.state.accepted == last.state.accepted
            && next.state.roots == last.state.roots;
        last = next;
        if !children::write_into(&mut facts, &last, now) && rests {
            return (last, true);
        }
    }
    (last, false)
}

/// Whatever the handover of a lock may wait for has come.
fn handed_over(settings: &Settings) -> LockNews {
    LockNews {
        closed_for: Some(settings.longest_lease),
        brought: true,
        ..LockNews::default()
    }
}

fn locks(before: &State, after: &State) -> Vec<LockMove> {
    let moved = after.accepted.iter().filter_map(|(shard, accepted)| {
        let (from, to) = (
            lock_place(&before.accepted.get(shard)?.spec)?,
            lock_place(&accepted.spec)?,
        );
        (from != to && accepted.spec.root.is_none()).then(|| LockMove {
            shard: shard.clone(),
            from: from.to_string(),
            to: to.to_string(),
        })
    });
    moved.collect()
}

fn refusal(name: &ShardName, verdict: &Verdict, state: &State) -> Option<Refused> {
    let refusal = verdict.refusal.as_ref()?;
    Some(Refused {
        shard: name.clone(),
        reason: refusal.reason.to_string(),
        message: refusal.message.clone(),
        keeps_earlier: state.accepted.contains_key(name),
    })
}

/// Of a spec that would be refused its refusal is what is told.
fn unresolved(members: &BTreeMap<String, MemberObject>, after: &Decided, name: &ShardName) -> Option<Unresolved> {
    let verdict = after.verdicts.get(name).filter(|verdict| verdict.refusal.is_none())?;
    let spec = &after.state.accepted.get(name)?.spec;
    let mut messages: Vec<_> = verdict
        .wanted
        .refusal()
        .map(|(_, message)| message)
        .into_iter()
        .collect();
    for (index, entry) in spec
        .clusters
        .iter()
        .enumerate()
        .filter(|(_, entry)| entry.name.is_none())
    {
        let is_chosen = entry.cluster_filter();
        if !members
            .iter()
            .any(|(cluster, member)| is_chosen(cluster, &member.labels))
        {
            messages.push(format!(
                "spec.clusters[{index}].selector: chooses no MemberCluster: label one so, or correct the selector"
            ));
        }
    }
    (!messages.is_empty()).then(|| Unresolved {
        shard: name.clone(),
        reason: ConditionReason::UnknownCluster.to_string(),
        message: messages.join("; "),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use std::sync::Arc;

    use portolan_crds::Contention;

    use super::super::testing::{Fleet, object, shard, with_spec};
    use super::*;
    use crate::compile::Ledger;

    fn planned(fleet: &Fleet, objects: &[DynamicObject]) -> Plan {
        let edits = Edits::read(objects).unwrap();
        plan(
            &fleet.facts,
            &fleet.state,
            &Settings::default(),
            edits,
            Timestamp::UNIX_EPOCH,
        )
    }

    fn moved(plan: &Plan) -> Vec<String> {
        let name = |shard: &Option<ShardName>| shard.as_ref().map_or("nobody", ShardName::name).to_owned();
        let moves = plan.moves.iter();
        moves
            .map(|one| {
                format!(
                    "{}/{}: {} to {}",
                    one.cluster,
                    one.namespace,
                    name(&one.from),
                    name(&one.to)
                )
            })
            .collect()
    }

    fn named(namespaces: &[&str]) -> Value {
        json!([{"name": "east", "namespaces": namespaces}])
    }

    /// `a` has ns-a and ns-b of east, `b` has ns-c.
    fn fleet() -> Fleet {
        let mut fleet = Fleet::new(&["ns-a", "ns-b", "ns-c"]);
        fleet.apply("a", &named(&["ns-a", "ns-b"]));
        fleet.apply("b", &named(&["ns-c"]));
        fleet.compile();
        fleet
    }

    #[test]
    fn what_moves_is_told_with_both_owners() {
        let fleet = fleet();
        let both = [object("a", &named(&["ns-a"])), object("b", &named(&["ns-b", "ns-c"]))];
        let plan = planned(&fleet, &both);
        assert_eq!(moved(&plan), ["east/ns-b: a to b"]);
        assert_eq!((plan.refused.len(), plan.endless), (0, false));
        assert_eq!(plan.changed, [shard("a"), shard("b")].into());
        let less = planned(&fleet, &both[..1]);
        assert_eq!(moved(&less), ["east/ns-b: a to nobody"]);
    }

    #[test]
    fn what_would_be_refused_is_told_and_moves_nothing() {
        let plan = planned(
            &fleet(),
            &[
                object("b", &named(&["ns-b", "ns-c"])),
                object("c", &json!([{"name": "north"}])),
            ],
        );
        assert_eq!(moved(&plan), [""; 0]);
        let told: Vec<_> = plan
            .refused
            .iter()
            .map(|one| (one.shard.name(), one.reason.as_str(), one.keeps_earlier))
            .collect();
        assert_eq!(told, [("b", "Overlap", true), ("c", "UnknownCluster", false)]);
        assert!(
            plan.refused[0].message.contains("east/ns-b (of ops/a)"),
            "{:?}",
            plan.refused
        );
    }

    #[test]
    fn the_plan_is_what_the_hub_then_does() {
        let mut fleet = fleet();
        let plan = planned(
            &fleet,
            &[
                object("a", &json!([{"name": "west"}])),
                object("b", &named(&["ns-a", "ns-c"])),
            ],
        );
        let before = fleet.state.clone();
        fleet.apply("a", &json!([{"name": "west"}]));
        fleet.apply("b", &named(&["ns-a", "ns-c"]));
        for _ in 0..3 {
            fleet.compile();
        }
        assert_eq!(plan.moves, moves(&before.ledger, &fleet.state.ledger));
        assert!(plan.moves.len() > 3, "{:?}", moved(&plan));
    }

    /// A move that is under way is no part of what an edit would move.
    #[test]
    fn what_is_on_its_way_is_not_told() {
        let mut fleet = fleet();
        fleet.apply("a", &named(&["ns-a"]));
        fleet.compile_seen(0);
        let plan = planned(&fleet, &[object("a", &named(&["ns-a"]))]);
        assert_eq!((moved(&plan), plan.unchanged.len()), (Vec::new(), 1));
        let plan = planned(&fleet, &[object("b", &named(&["ns-b", "ns-c"]))]);
        assert_eq!(moved(&plan), ["east/ns-b: nobody to b"]);
    }

    #[test]
    fn a_shard_that_was_refused_and_then_is_not_is_told() {
        let mut fleet = fleet();
        fleet.apply("b", &named(&["ns-b", "ns-c"]));
        fleet.compile();
        let plan = planned(&fleet, &[object("a", &named(&["ns-a"]))]);
        assert_eq!(plan.freed, [shard("b")].into());
        assert_eq!(moved(&plan), ["east/ns-b: a to b"]);
    }

    /// What is told of kinds: kind, from, to.
    fn kinds(plan: &Plan) -> Vec<String> {
        let name = |shard: &Option<ShardName>| shard.as_ref().map_or("all", ShardName::name).to_owned();
        let told = |one: &KindMove| {
            assert_eq!((one.namespace.as_str(), one.operator.as_deref()), ("ops", None));
            format!("{}: {} to {}", one.kind, name(&one.from), name(&one.to))
        };
        plan.kinds.iter().map(told).collect()
    }

    #[test]
    fn a_kind_that_one_shard_is_to_see_is_told() {
        let with = |name: &str, namespace: &str, kinds: &[&str]| {
            let resources = json!([{"apiGroups": ["shop.example"], "resources": kinds}]);
            let mut spec = json!({
                "selector": {"matchLabels": {"app": "op"}}, "callerClusters": ["east"], "clusters": named(&[namespace]),
            });
            if !kinds.is_empty() {
                spec["clusterScoped"] = json!({"resources": resources});
            }
            with_spec(name, &spec)
        };
        let mut fleet = Fleet::new(&["ns-a", "ns-b"]);
        // In a ledger of before the field waits.
        let plan = planned(&fleet, &[with("a", "ns-a", &["fleets"])]);
        assert_eq!(kinds(&plan), [""; 0]);
        fleet.state.ledger = Arc::new(Ledger::restore(Contention::Operator, [], 0, false));
        let plan = planned(&fleet, &[with("a", "ns-a", &["fleets", "ports"])]);
        assert_eq!(
            kinds(&plan),
            ["fleets.shop.example: all to a", "ports.shop.example: all to a"]
        );
        fleet.apply_object(&with("a", "ns-a", &["fleets"]));
        fleet.apply_object(&with("b", "ns-b", &[]));
        fleet.compile();
        let both = [with("a", "ns-a", &[]), with("b", "ns-b", &["fleets"])];
        let plan = planned(&fleet, &both);
        assert_eq!(
            (kinds(&plan), plan.refused.len()),
            (vec!["fleets.shop.example: a to b".to_owned()], 0)
        );
        assert_eq!(kinds(&planned(&fleet, &both[..1])), ["fleets.shop.example: a to all"]);
        let refused = planned(&fleet, &both[1..]);
        assert_eq!((kinds(&refused).len(), refused.refused.len()), (0, 1));
    }

    #[test]
    fn what_is_no_sharding_config_or_there_twice_is_named() {
        let twice = [object("a", &named(&[])), object("a", &named(&[]))];
        assert_eq!(Edits::read(&twice).unwrap_err(), "ShardingConfig ops/a is there twice");
        let mut nowhere = object("a", &named(&[]));
        nowhere.metadata.namespace = None;
        assert!(Edits::read(&[nowhere]).unwrap_err().contains("needs a namespace"));
    }
}
