//! Closes namespaces against writes of their former owners, as the hub orders it: sets the annotation that the policy
//! `portolan-fence` compares with, and looks until every API server of the member goes by it.
//!
//! The annotation only grows, and the agent alone may set it. What an API server does is seen by dry runs as the agent itself,
//! over a new connection each time; how many there are, by their Leases, counted again before it is said that all are seen.
//! After a restart all is looked at anew. Not here: when a fence is needed, which is the hub's (`docs/semantics.md#handover`).
//! Callers: `app` runs it, `stream` gives the orders, `report` sends.

mod ask;
mod closing;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use kube::Client;
use portolan_runtime::{Backoff, Chain};
use portolan_wire::v1 as wire;
use tokio::sync::watch;

use self::ask::{Annotated, Connection, annotate, servers};
use self::closing::{Closing, Standing};
use crate::member::{self, Repeats};

/// Namespaces to close, with the epoch that is to be the only one.
pub(crate) type Orders = Arc<BTreeMap<String, u64>>;

/// Most orders of one configuration.
pub(crate) const MAX_ORDERS: usize = 1_000;
/// Between two looks while something is not closed; API servers see an annotation within milliseconds.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Where something hinders, there is no hurry.
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(5);
/// Namespaces that are annotated, or asked about, at once.
const AT_ONCE: usize = 16;

/// The task.
pub(crate) struct Fence {
    pub(crate) client: Client,
    /// For clients of one connection each.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// What the hub is told.
    pub(crate) told: watch::Sender<Option<wire::Fences>>,
}

type Closings = BTreeMap<String, Closing>;

impl Fence {
    /// Follows the orders until cancelled.
    pub(crate) async fn run(self, mut orders: watch::Receiver<Orders>) {
        let mut closings = Closings::new();
        let mut backoff = Backoff::new(LOOK_AGAIN, LOOK_AGAIN_MAX);
        loop {
            let ordered = orders.borrow_and_update().clone();
            if follow(&mut closings, &ordered) {
                backoff.reset();
            }
            let is_open = |closing: &Closing| closing.standing != Standing::Closed;
            if closings.values().any(is_open) {
                self.annotate_all(&mut closings).await;
                self.look(&mut closings).await;
            }
            self.tell(&closings);
            let waits = closings.values().any(is_open);
            tokio::select! {
                changed = orders.changed() => if changed.is_err() { return },
                () = backoff.sleep(), if waits => {}
            }
        }
    }

    async fn annotate_all(&self, closings: &mut Closings) {
        let ordered = closings
            .iter_mut()
            .filter(|(_, closing)| closing.standing == Standing::Ordered);
        let annotating = stream::iter(ordered).for_each_concurrent(AT_ONCE, |(namespace, closing)| async move {
            match annotate(&self.client, namespace, closing.epoch).await {
                Ok(Annotated::Set) => closing.annotated(),
                Ok(Annotated::Gone) => closing.gone(),
                Ok(Annotated::Raced) => {}
                Ok(Annotated::Beyond(known)) => {
                    closing.message = format!("its annotation says {known}, which is not below {}", closing.epoch);
                }
                Err(error) => {
                    closing.message = format!("cannot annotate the Namespace: {error}");
                    tracing::warn!(namespace, error = %Chain(&error), "cannot annotate a namespace");
                }
            }
        });
        annotating.await;
    }

    /// Asks one API server about all that are annotated, and closes those of which all have been seen.
    async fn look(&self, closings: &mut Closings) {
        if !closings.values().any(|one| one.standing == Standing::Annotated) {
            return;
        }
        let looked = self.ask(closings).await;
        let counted = match looked {
            Ok(()) => servers(&self.client).await.map_err(|error| Chain(&error).to_string()),
            Err(reason) => Err(reason),
        };
        match counted {
            Ok(servers) => closings.values_mut().for_each(|closing| closing.count(servers)),
            Err(reason) => {
                tracing::warn!(reason, "cannot ask the API servers about fences");
                let open = closings.values_mut().filter(|one| one.standing == Standing::Annotated);
                open.for_each(|closing| closing.message.clone_from(&reason));
            }
        }
    }

    /// Nothing counts unless it was one API server to the end.
    async fn ask(&self, closings: &mut Closings) -> Result<(), String> {
        let client = member::connect(self.kubeconfig.as_deref(), Repeats::Caller).await;
        let client = client.map_err(|error| format!("{error:#}"))?;
        let words = |error: member::CallError| Chain(&error).to_string();
        let connection = Connection::open(client).await.map_err(words)?;
        let annotated = closings.iter().filter(|(_, one)| one.standing == Standing::Annotated);
        let annotated: Vec<_> = annotated
            .map(|(namespace, one)| (namespace.clone(), one.epoch))
            .collect();
        let connection = &connection;
        let probing = stream::iter(annotated).map(async |(namespace, epoch)| {
            let heard = connection.probe(&namespace, epoch).await;
            (namespace, heard)
        });
        let heard: Vec<_> = probing.buffer_unordered(AT_ONCE).collect().await;
        if !connection.is_same().await.map_err(words)? {
            return Ok(());
        }
        for (namespace, heard) in heard {
            if let Some(closing) = closings.get_mut(&namespace) {
                closing.heard(connection.server(), heard);
            }
        }
        Ok(())
    }

    fn tell(&self, closings: &Closings) {
        let fences = closings.iter().map(|(namespace, closing)| wire::FenceState {
            namespace: namespace.clone(),
            epoch: closing.epoch,
            closed: closing.standing == Standing::Closed,
            message: closing.message.clone(),
        });
        let told = wire::Fences {
            fences: fences.collect(),
        };
        self.told.send_if_modified(|current| {
            let changed = current.as_ref() != Some(&told);
            *current = Some(told);
            changed
        });
    }
}

/// Takes new orders; true if there are any.
fn follow(closings: &mut Closings, orders: &BTreeMap<String, u64>) -> bool {
    closings.retain(|namespace, closing| orders.get(namespace) == Some(&closing.epoch));
    let mut new = false;
    for (namespace, epoch) in orders {
        closings.entry(namespace.clone()).or_insert_with(|| {
            new = true;
            Closing::new(*epoch)
        });
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_of_another_epoch_begins_anew_and_one_that_is_withdrawn_is_forgotten() {
        let mut closings = Closings::new();
        let orders = |all: &[(&str, u64)]| all.iter().map(|(name, epoch)| ((*name).to_owned(), *epoch)).collect();
        assert!(follow(&mut closings, &orders(&[("a", 2), ("b", 3)])));
        closings.values_mut().for_each(Closing::annotated);
        assert!(!follow(&mut closings, &orders(&[("a", 2)])));
        assert_eq!(closings.len(), 1);
        assert_eq!(closings["a"].standing, Standing::Annotated);
        assert!(follow(&mut closings, &orders(&[("a", 3)])));
        assert_eq!((closings["a"].epoch, closings["a"].standing), (3, Standing::Ordered));
    }
}
