//! Condition Distributed of policies: how many of the routers that may be told of a policy hold it as it is now, with the
//! present views of the callers that it holds. Pure; called by `policies`.

use std::collections::{BTreeMap, BTreeSet};

use portolan_crds::{ConditionReason, ConditionType, Finding};

use super::super::Routers;
use crate::acks::RouterState;
use crate::compile::{Ref, Scope, Standing, World, some_of};
use crate::facts::PolicyName;

const TYPE: ConditionType = ConditionType::Distributed;

/// Routers that are connected, as far as policies are concerned. A fleet has a router for each Pod of some operators: what is asked
/// of each policy is looked up, and asked of none but those whom it concerns.
#[derive(Default)]
pub(super) struct Connected<'a> {
    routers: Vec<Router<'a>>,
    /// Places of those that are told of all policies.
    of_all: Vec<usize>,
    /// Places of the others, by what they are told of.
    told: BTreeMap<PolicyName, Vec<usize>>,
    /// Places of those that hold it, whether or not they are to.
    holding: BTreeMap<&'a PolicyName, Vec<usize>>,
}

struct Router<'a> {
    name: &'a str,
    state: &'a RouterState,
    /// Policies of callers of which it does not hold the present view.
    lagging: BTreeSet<&'a str>,
}

impl<'a> Connected<'a> {
    pub(super) fn of(world: &'a World, routers: &'a Routers) -> Self {
        let mut connected = Self::default();
        if world.policies.is_empty() {
            return connected;
        }
        let here = routers.iter().filter(|(_, state)| state.left.is_none());
        for (place, (name, state)) in here.enumerate() {
            let scope = Scope::of(&state.subscription, world);
            match scope.policies() {
                None => connected.of_all.push(place),
                Some(policies) => {
                    for policy in policies {
                        connected.told.entry(policy.clone()).or_default().push(place);
                    }
                }
            }
            for policy in state.held.common().keys().filter_map(policy_of) {
                connected.holding.entry(policy).or_default().push(place);
            }
            connected.routers.push(Router {
                name,
                state,
                lagging: lagging(world, state, &scope),
            });
        }
        connected
    }

    fn at<'b>(&'b self, places: impl IntoIterator<Item = &'b usize>) -> Vec<&'b Router<'a>> {
        places.into_iter().map(|place| &self.routers[*place]).collect()
    }

    pub(super) fn distributed(&self, world: &World, name: &PolicyName, standing: Standing) -> Finding {
        let policy = Ref::Policy(name.clone());
        if standing == Standing::NoneGood {
            let message = "this hub knows no good spec of it, see Accepted: routers that have one keep it";
            return Finding::unknown(TYPE, ConditionReason::Invalid, message);
        }
        let Some(compiled) = world.resources.get(&policy) else {
            return self.withdrawn(name);
        };
        let mut places: Vec<_> = self
            .of_all
            .iter()
            .chain(self.told.get(name).into_iter().flatten())
            .collect();
        places.sort_unstable();
        let told = self.at(places);
        if told.is_empty() {
            let message = "no router is connected that is to be told of it";
            return Finding::unknown(TYPE, ConditionReason::WaitingForRouter, message);
        }
        let version = compiled.version();
        let text = name.to_string();
        let holds = told
            .iter()
            .filter(|router| router.holds(&policy, version, &text))
            .count();
        let count = format!("{holds} of {} routers hold the present version", told.len());
        let refused = told.iter().filter_map(|router| router.refusal(&policy, version));
        let refused: Vec<_> = refused.collect();
        let older = told.iter().filter(|router| !router.state.serves_policies);
        let older: Vec<_> = older.map(|router| router.name).collect();
        if !refused.is_empty() {
            let message = format!("{count}; refused by {}", some_of(&refused, "; "));
            Finding::fails(TYPE, ConditionReason::Rejected, message)
        } else if !older.is_empty() {
            let message = format!(
                "{count}; of a release that serves no policies, so that requests through them are held by nothing: {}",
                some_of(&older, ", ")
            );
            Finding::fails(TYPE, ConditionReason::NotImplemented, message)
        } else if holds < told.len() {
            let unsaved = told.iter().filter(|router| router.state.unsaved);
            let unsaved: Vec<_> = unsaved.map(|router| router.name).collect();
            let message = if unsaved.is_empty() {
                count
            } else {
                let names = some_of(unsaved, ", ");
                format!("{count}; in force but not on disk, as its state folder cannot be written: router {names}")
            };
            Finding::fails(TYPE, ConditionReason::Progressing, message)
        } else {
            Finding::holds(TYPE, count)
        }
    }

    /// Of a policy that is to be held by none.
    fn withdrawn(&self, policy: &PolicyName) -> Finding {
        let holding = self.at(self.holding.get(policy).into_iter().flatten());
        let holding: Vec<_> = holding.iter().map(|router| router.name).collect();
        if holding.is_empty() {
            return Finding::holds(TYPE, "no router that is connected holds it");
        }
        let message = format!("it is being taken from {}", some_of(&holding, ", "));
        Finding::fails(TYPE, ConditionReason::Progressing, message)
    }
}

impl Router<'_> {
    fn holds(&self, policy: &Ref, version: &String, name: &str) -> bool {
        self.state.serves_policies && self.state.held.get(policy) == Some(version) && !self.lagging.contains(name)
    }

    fn refusal(&self, policy: &Ref, version: &String) -> Option<String> {
        let (refused, reason) = self.state.rejected.get(policy)?;
        (refused == version).then(|| format!("{}: {reason}", self.name))
    }
}

fn policy_of(held: &Ref) -> Option<&PolicyName> {
    match held {
        Ref::Policy(name) => Some(name),
        _ => None,
    }
}

fn lagging<'a>(world: &'a World, state: &RouterState, scope: &Scope) -> BTreeSet<&'a str> {
    let lags = |view: &&Ref| {
        let present = world.resources.get(*view);
        present.is_some_and(|present| state.held.get(view) != Some(present.version()))
    };
    let views = scope.views(world).filter(lags).filter_map(|view| world.view_of(view));
    views.flat_map(|view| &view.policies).map(String::as_str).collect()
}
