//! Callers as an agent tells them, folded into what is known.
//!
//! The agent names the namespaces of whose Pods it does not know all yet: a selector there has not been listed. What was known
//! of those before its stream began stays until it knows, as unknown is not gone. Pure. Caller: `agents`.

use std::collections::{BTreeMap, BTreeSet};

use portolan_wire::v1;

use super::Change;
use super::fold::fold;
use crate::facts::{AgentReport, GoneCallers};

pub(super) fn callers(agent: &mut AgentReport, delta: v1::CallerDelta) -> Change {
    let pending: BTreeSet<String> = delta.pending.into_iter().collect();
    let is_pending = |fact: &v1::CallerFact| pending.contains(&fact.namespace);
    let mut upserted: BTreeMap<String, v1::CallerFact> = delta
        .upserted
        .into_iter()
        .map(|fact| (fact.uid.clone(), fact))
        .collect();
    let known = agent.callers.as_ref();
    let still_unknown = |namespace: &&String| known.is_none() || agent.unknown_callers.contains(*namespace);
    let unknown: BTreeSet<String> = pending.iter().filter(still_unknown).cloned().collect();
    if delta.reset {
        let owed = known.into_iter().flatten();
        let owed = owed.filter(|(uid, fact)| is_pending(fact) && !upserted.contains_key(*uid));
        let owed: BTreeMap<_, _> = owed.map(|(uid, fact)| (uid.clone(), fact.clone())).collect();
        agent.kept_callers = owed.keys().cloned().collect();
        upserted.extend(owed);
    } else {
        agent.kept_callers.retain(|uid| !upserted.contains_key(uid));
    }
    let mut removed: BTreeSet<String> = delta.removed.into_iter().collect();
    // Of namespaces that are pending no more all is told, and of what was not there is nothing.
    let over = |uid: &&String| {
        known
            .and_then(|known| known.get(*uid))
            .is_none_or(|fact| !is_pending(fact))
    };
    removed.extend(agent.kept_callers.iter().filter(over).cloned());
    agent.kept_callers.retain(|uid| !removed.contains(uid));
    let before = (!unknown.is_empty()).then(|| agent.callers.clone()).flatten();
    let change = fold(&mut agent.callers, delta.reset, upserted, removed);
    let left = agent.callers.as_ref();
    let gone = before.into_iter().flatten().map(|(uid, _)| uid);
    gone.filter(|uid| left.is_some_and(|left| !left.contains_key(uid)))
        .for_each(|uid| agent.gone_callers.add(uid));
    if unknown.is_empty() {
        agent.gone_callers = GoneCallers::default();
    }
    if agent.unknown_callers == unknown {
        return change;
    }
    agent.unknown_callers = unknown;
    Change::Compile
}
