//! Namespaces that the hub may have granted already, though this router was not told: the hub is asked before a request is
//! refused for the lack of one (`docs/semantics.md#namespaces`).
//!
//! The question is [`CatchUp`]'s: what any router was told, this one serves after the answer. However many ask, for however
//! many names, there is one question at a time; a name for which it did not help is refused unasked for a second. Caller:
//! `edge`, which plans the request once more after a yes, and waits for the grant of a Namespace that was just made.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use portolan_crds::names::is_dns_label;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::keyed::Keyed;
use super::routing::RoutingStore;
use crate::value::snapshot::{Binding, CallerKey, CallerView, GrantState, Pair, Snapshot};

/// For the hub's answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);
/// How long a no holds.
const NO_HOLDS: Duration = Duration::from_secs(1);
/// Names with a no. More are asked for all the same: one question serves them all.
const MOST_NOES: usize = 4_096;
/// Requests of one caller that wait for the hub; more are refused at once.
const MOST_OF_A_CALLER: usize = 16;
/// For the grant of a Namespace that was just made: some hundred milliseconds, where nothing is slow.
const GRANTED_WITHIN: Duration = Duration::from_secs(5);

/// Shard and namespace.
type Name = (String, String);

/// What was asked. One per process.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    /// Until when a no holds. A mutex: held for a look-up.
    noes: Mutex<HashMap<Name, Instant>>,
    /// Those who wait, by caller.
    waiting: Keyed<CallerKey, Arc<Semaphore>>,
}

impl Grants {
    /// Whether it is worth to plan anew a request that was refused because `namespace` is not the caller's.
    pub(crate) async fn ask(&self, routing: &RoutingStore, view: &CallerView, namespace: &str) -> bool {
        if !is_dns_label(namespace) {
            return false;
        }
        let name = (
            view.shard().map(ToString::to_string).unwrap_or_default(),
            namespace.to_owned(),
        );
        if self.noes.lock().get(&name).is_some_and(|until| Instant::now() < *until) {
            return false;
        }
        let waiting = self
            .waiting
            .entry(view.key.clone(), || Arc::new(Semaphore::new(MOST_OF_A_CALLER)));
        let Ok(_place) = waiting.clone().try_acquire_owned() else {
            return false;
        };
        let Ok(Ok(())) = timeout(ANSWERED_WITHIN, routing.catch_up.wait()).await else {
            return false;
        };
        let granted = grant(&routing.load().snapshot, view, namespace).is_some();
        if !granted {
            self.keep_no(name);
        }
        granted
    }

    fn keep_no(&self, name: Name) {
        let now = Instant::now();
        let mut noes = self.noes.lock();
        if noes.len() >= MOST_NOES {
            noes.retain(|_, until| now < *until);
        }
        if noes.len() < MOST_NOES {
            noes.insert(name, now + NO_HOLDS);
        }
    }
}

/// Waits until this router serves `namespace` of `cluster`, which was just made, to the caller; false if it does not in time. A grant
/// that this router had before, as `view` knows it, may be of the namespace that was there then: its epoch is no more, and writes
/// that say it are refused.
pub(crate) async fn served(routing: &RoutingStore, view: &CallerView, cluster: &str, namespace: &str) -> bool {
    let of_before = match &view.binding {
        Binding::One(shard) => shard.owner(namespace).map(|(_, grant)| grant.pair.owner_count),
        _ => None,
    };
    let is_here = |(place, pair): &(Arc<str>, Pair)| {
        let is_stale = pair.fenced && of_before == Some(pair.owner_count);
        **place == *cluster && pair.state == GrantState::Granted && !pair.vacant && !is_stale
    };
    let mut swaps = routing.subscribe();
    let granted = async {
        loop {
            swaps.borrow_and_update();
            if grant(&routing.load().snapshot, view, namespace).is_some_and(|place| is_here(&place)) {
                return;
            }
            // The sender lives in the store, so this cannot fail.
            let _ = swaps.changed().await;
        }
    };
    timeout(GRANTED_WITHIN, granted).await.is_ok()
}

/// Where the caller has the namespace now.
fn grant(snapshot: &Snapshot, view: &CallerView, namespace: &str) -> Option<(Arc<str>, Pair)> {
    let view = snapshot.callers.get(&view.key)?;
    let Binding::One(shard) = &view.binding else {
        return None;
    };
    let (member, grant) = shard.owner(namespace)?;
    Some((member.cluster.clone(), grant.pair))
}

#[cfg(test)]
mod tests;
