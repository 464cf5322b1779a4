//! Closes namespaces against writes of their former owners, as the hub orders it: sets the annotation that the policy
//! `portolan-fence` compares with, and looks until every API server of the member goes by it.
//!
//! The annotation only grows, and the agent alone may set it. What an API server does is seen by dry runs as the agent itself,
//! over a new connection each time; how many there are, by their Leases, counted again before it is said that all are seen.
//! What is closed is compared with the inventory of namespaces as long as it is ordered: one that was made anew is closed anew.
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
use self::closing::{Addresses, Closing, Heard, Standing};
use crate::facts::FactStore;
use crate::member;

/// Namespaces to close, with the epochs that are to be open there and no others, in order.
pub(crate) type Orders = Arc<BTreeMap<String, Vec<u64>>>;

/// Between two looks while something is not closed; API servers see an annotation within milliseconds.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Where something hinders, there is no hurry.
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(15);
/// How often what is closed is compared with the inventory, which costs no request.
const COMPARE: Duration = Duration::from_secs(1);
/// Namespaces that are annotated at once.
const AT_ONCE: usize = 16;
/// Namespaces that one connection is asked about, one by one, and connections at once.
const PER_CONNECTION: usize = 64;
const CONNECTIONS: usize = 4;

/// The task.
pub(crate) struct Fence {
    pub(crate) client: Client,
    /// For clients of one connection each.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The inventory.
    pub(crate) namespaces: Arc<FactStore<String, wire::NamespaceFact>>,
    /// What the hub is told.
    pub(crate) told: watch::Sender<Option<wire::Fences>>,
}

type Closings = BTreeMap<String, Closing>;

/// A namespace and the epochs that are to be open there.
type Order = (String, Vec<u64>);

impl Fence {
    /// Follows the orders until cancelled.
    pub(crate) async fn run(self, mut orders: watch::Receiver<Orders>) {
        let mut closings = Closings::new();
        let mut addresses = Addresses::default();
        let mut backoff = Backoff::new(LOOK_AGAIN, LOOK_AGAIN_MAX);
        loop {
            let ordered = orders.borrow_and_update().clone();
            if follow(&mut closings, &ordered) {
                backoff.reset();
            }
            self.compare(&mut closings);
            self.annotate_all(&mut closings).await;
            self.look(&mut closings, &mut addresses).await;
            self.tell(&closings);
            if closings.values().any(Closing::is_in_hurry) {
                backoff.reset();
            }
            let waits = closings.values().any(|closing| closing.standing != Standing::Closed);
            let due = async {
                if waits {
                    backoff.sleep().await;
                } else {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                changed = orders.changed() => if changed.is_err() { return },
                () = due => {}
                () = self.until_contradicted(&closings) => {}
            }
        }
    }

    /// Doubts what is closed and, by the inventory, is not.
    fn compare(&self, closings: &mut Closings) {
        for (namespace, closing) in closings {
            if self.contradicts(namespace, closing) {
                closing.doubt();
            }
        }
    }

    /// The inventory may lag: what it says is a reason to look.
    fn contradicts(&self, namespace: &String, closing: &Closing) -> bool {
        self.namespaces.is(namespace, |known| {
            !closing.agrees(known.map(|fact| (fact.uid.as_str(), epochs_of(fact))))
        })
    }

    /// By the clock, not by each change of the inventory: it may change all the time.
    async fn until_contradicted(&self, closings: &Closings) {
        loop {
            tokio::time::sleep(COMPARE).await;
            if closings
                .iter()
                .any(|(namespace, closing)| self.contradicts(namespace, closing))
            {
                return;
            }
        }
    }

    async fn annotate_all(&self, closings: &mut Closings) {
        let ordered = closings
            .iter_mut()
            .filter(|(_, closing)| matches!(closing.standing, Standing::Ordered | Standing::Doubted));
        let annotating = stream::iter(ordered).for_each_concurrent(AT_ONCE, |(namespace, closing)| async move {
            match annotate(&self.client, namespace, &closing.open).await {
                Ok(Annotated::Set { uid, anew }) => closing.annotated(&uid, anew),
                Ok(Annotated::Gone) => closing.gone(),
                Ok(Annotated::Raced) => {}
                Ok(Annotated::Beyond(known)) => {
                    closing.message = format!("its annotation says {known}, which is not below {}", closing.epoch());
                }
                Err(error) => {
                    closing.message = format!("cannot annotate the Namespace: {error}");
                    tracing::warn!(namespace, error = %Chain(&error), "cannot annotate a namespace");
                }
            }
        });
        annotating.await;
    }

    /// Asks API servers about all that are annotated, and closes those of which all have been seen.
    async fn look(&self, closings: &mut Closings, addresses: &mut Addresses) {
        let annotated = closings.iter().filter(|(_, one)| one.standing == Standing::Annotated);
        let annotated: Vec<Order> = annotated
            .map(|(namespace, one)| (namespace.clone(), one.open.clone()))
            .collect();
        if annotated.is_empty() {
            return;
        }
        let ask = |orders: &[Order]| {
            let orders = orders.to_vec();
            async move {
                let answer = self.ask(&orders).await;
                (orders, answer)
            }
        };
        let asking: Vec<_> = annotated.chunks(PER_CONNECTION).map(ask).collect();
        let asked: Vec<_> = stream::iter(asking).buffer_unordered(CONNECTIONS).collect().await;
        let servers = servers(&self.client).await.map_err(|error| Chain(&error).to_string());
        for (orders, answer) in asked {
            if let Ok((server, _)) = &answer {
                addresses.saw(server);
            } else if let Err(reason) = &answer {
                tracing::warn!(reason, "cannot ask an API server about fences");
            }
            for (place, (namespace, _)) in orders.iter().enumerate() {
                let Some(closing) = closings.get_mut(namespace) else {
                    continue;
                };
                match &answer {
                    Ok((server, heard)) => closing.heard(server, heard[place].clone()),
                    Err(reason) => closing.silent(reason),
                }
            }
        }
        let open = closings.values_mut();
        match servers {
            Ok(servers) => open.for_each(|closing| closing.count(servers, *addresses)),
            Err(reason) => open.for_each(|closing| closing.silent(&reason)),
        }
    }

    /// What one API server does, over a connection of its own. Nothing counts unless it was one API server to the end.
    async fn ask(&self, orders: &[Order]) -> Result<(String, Vec<Heard>), String> {
        let client = member::connect_once(self.kubeconfig.as_deref()).await;
        let client = client.map_err(|error| format!("{error:#}"))?;
        let words = |error: member::CallError| Chain(&error).to_string();
        let connection = Connection::open(client).await.map_err(words)?;
        let mut heard = Vec::with_capacity(orders.len());
        for (namespace, open) in orders {
            heard.push(connection.probe(namespace, open).await);
        }
        if !connection.is_same().await.map_err(words)? {
            return Err("requests over one connection are answered by different API servers".to_owned());
        }
        Ok((connection.server().to_owned(), heard))
    }

    fn tell(&self, closings: &Closings) {
        let fences = closings.iter().map(|(namespace, closing)| wire::FenceState {
            namespace: namespace.clone(),
            epoch: closing.epoch(),
            closed: closing.standing == Standing::Closed,
            message: closing.message.clone(),
            open: Some(&closing.open)
                .filter(|open| open.len() > 1)
                .cloned()
                .unwrap_or_default(),
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

/// The epochs that the annotation says.
fn epochs_of(fact: &wire::NamespaceFact) -> Vec<u64> {
    if fact.epochs.is_empty() {
        fact.epoch.into_iter().collect()
    } else {
        fact.epochs.clone()
    }
}

/// Takes new orders; true if there are any.
fn follow(closings: &mut Closings, orders: &BTreeMap<String, Vec<u64>>) -> bool {
    closings.retain(|namespace, closing| orders.get(namespace) == Some(&closing.open));
    let mut new = false;
    for (namespace, open) in orders {
        closings.entry(namespace.clone()).or_insert_with(|| {
            new = true;
            Closing::new(open.clone())
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
        let order = |(name, epoch): &(&str, u64)| ((*name).to_owned(), vec![*epoch]);
        let orders = |all: &[(&str, u64)]| all.iter().map(order).collect();
        assert!(follow(&mut closings, &orders(&[("a", 2), ("b", 3)])));
        for closing in closings.values_mut() {
            closing.annotated("u", true);
        }
        assert!(!follow(&mut closings, &orders(&[("a", 2)])));
        assert_eq!(closings.len(), 1);
        assert_eq!(closings["a"].standing, Standing::Annotated);
        assert!(follow(&mut closings, &orders(&[("a", 3)])));
        assert_eq!((closings["a"].epoch(), closings["a"].standing), (3, Standing::Ordered));
    }
}
