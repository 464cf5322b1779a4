//! Condition Distributed of policies: how many of the routers that may be told of a policy hold it as it is now, with the
//! present views of the callers that it holds. Pure; called by `policies`.

use std::collections::BTreeSet;

use portolan_crds::{ConditionReason, ConditionType, Finding};
use portolan_wire::v1::resource::Body;

use super::super::Routers;
use crate::acks::RouterState;
use crate::compile::{Ref, Scope, Standing, World, some_of};
use crate::facts::PolicyName;

const TYPE: ConditionType = ConditionType::Distributed;

/// Routers that are connected, as far as policies are concerned.
pub(super) struct Connected<'a>(Vec<Router<'a>>);

struct Router<'a> {
    name: &'a str,
    state: &'a RouterState,
    scope: Scope,
    /// Policies of callers of which it does not hold the present view.
    lagging: BTreeSet<&'a str>,
}

impl<'a> Connected<'a> {
    pub(super) fn of(world: &'a World, routers: &'a Routers) -> Self {
        if world.policies.is_empty() {
            return Self(Vec::new());
        }
        let connected = routers.iter().filter(|(_, state)| state.left.is_none());
        let looked_at = connected.map(|(name, state)| {
            let scope = Scope::of(&state.subscription, world);
            Router {
                name,
                state,
                lagging: lagging(world, state, &scope),
                scope,
            }
        });
        Self(looked_at.collect())
    }

    pub(super) fn distributed(&self, world: &World, name: &PolicyName, standing: Standing) -> Finding {
        let policy = Ref::Policy(name.clone());
        if standing == Standing::NoneGood {
            let message = "this hub knows no good spec of it, see Accepted: routers that have one keep it";
            return Finding::unknown(TYPE, ConditionReason::Invalid, message);
        }
        let Some(compiled) = world.resources.get(&policy) else {
            return self.withdrawn(&policy);
        };
        let told: Vec<_> = self.0.iter().filter(|router| router.scope.sees(&policy)).collect();
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
            Finding::fails(TYPE, ConditionReason::Progressing, count)
        } else {
            Finding::holds(TYPE, count)
        }
    }

    /// Of a policy that is to be held by none.
    fn withdrawn(&self, policy: &Ref) -> Finding {
        let holding = self.0.iter().filter(|router| router.state.held.contains_key(policy));
        let holding: Vec<_> = holding.map(|router| router.name).collect();
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

fn lagging<'a>(world: &'a World, state: &RouterState, scope: &Scope) -> BTreeSet<&'a str> {
    let views = world.resources.iter().filter_map(|(name, compiled)| {
        let Some(Body::CallerView(view)) = &compiled.resource.body else {
            return None;
        };
        let lags = scope.sees(name) && state.held.get(name) != Some(compiled.version());
        lags.then_some(&view.policies)
    });
    views.flatten().map(String::as_str).collect()
}
