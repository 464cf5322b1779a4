//! What all routers of the fleet have been told: how many have acknowledged what is waited for, and when the last did; and who
//! has which namespace, as the first of them was told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;
use tokio::sync::watch;

/// What is waited for.
#[derive(Debug, Clone)]
pub(super) enum Awaited {
    /// This generation of a shard's spec, or a later one. Shards by their names on the wire, here and below.
    Spec { shard: String, generation: i64 },
    /// A namespace that a shard has and that is not being released.
    Grant {
        shard: String,
        cluster: String,
        namespace: String,
    },
}

impl Awaited {
    fn is_in(&self, resource: &v1::Resource) -> bool {
        match (self, &resource.body) {
            (Self::Spec { shard, generation }, Some(Body::Shard(told))) => {
                told.name == *shard && told.config_generation >= *generation
            }
            (
                Self::Grant {
                    shard,
                    cluster,
                    namespace,
                },
                _,
            ) => {
                let granted = |grant: &v1::NamespaceGrant| grant.namespace == *namespace && is_granted(grant);
                let told = told_of(resource).filter(|told| told.shard == *shard && told.cluster == *cluster);
                told.is_some_and(|told| told.namespaces.iter().any(granted))
            }
            _ => false,
        }
    }
}

/// What is told of an Ownership: all of it, or what is different.
fn told_of(resource: &v1::Resource) -> Option<&v1::Ownership> {
    match &resource.body {
        Some(Body::Ownership(told)) => Some(told),
        Some(Body::OwnershipChange(change)) => change.now.as_ref(),
        _ => None,
    }
}

fn is_granted(grant: &v1::NamespaceGrant) -> bool {
    grant.state() == v1::GrantState::Granted
}

/// A (cluster, namespace).
pub(super) type Pair = (String, String);

/// Who has what, as one router was told.
#[derive(Debug, Clone, Default)]
pub(super) struct Record {
    /// Namespaces by cluster and shard.
    granted: BTreeMap<(String, String), BTreeSet<String>>,
    /// When it was told of any ownership last.
    pub(super) changed: Option<Instant>,
}

impl Record {
    /// The shard of each pair that one of `of` has.
    pub(super) fn owners(&self, of: impl Fn(&str) -> bool) -> BTreeMap<Pair, String> {
        let owned = self.granted.iter().filter(|((_, shard), _)| of(shard));
        let pairs = owned.flat_map(|((cluster, shard), namespaces)| {
            let pair = move |namespace: &String| ((cluster.clone(), namespace.clone()), shard.clone());
            namespaces.iter().map(pair)
        });
        pairs.collect()
    }

    pub(super) fn count(&self) -> usize {
        self.granted.values().map(BTreeSet::len).sum()
    }

    fn learn(&mut self, at: Instant, resources: &[v1::Resource]) {
        for resource in resources {
            let Some(told) = told_of(resource) else { continue };
            let granted = self
                .granted
                .entry((told.cluster.clone(), told.shard.clone()))
                .or_default();
            match &resource.body {
                Some(Body::OwnershipChange(change)) => {
                    let others = told.namespaces.iter().map(|grant| &grant.namespace);
                    others
                        .chain(&change.gone)
                        .for_each(|namespace| _ = granted.remove(namespace));
                }
                _ => granted.clear(),
            }
            let now = told.namespaces.iter().filter(|grant| is_granted(grant));
            granted.extend(now.map(|grant| grant.namespace.clone()));
            self.changed = Some(at);
        }
    }
}

/// All routers' acknowledgements.
#[derive(Debug)]
pub(super) struct Board {
    seats: AtomicUsize,
    // A mutex: each router holds it for a look, once in a transaction.
    round: Mutex<Round>,
    // A watch: who waits wants the newest count only.
    heard: watch::Sender<(usize, Option<Instant>)>,
    record: Mutex<Record>,
    lost: Mutex<Lost>,
    /// When the stream began on which each router has acknowledged something last.
    streams: Mutex<BTreeMap<usize, Instant>>,
    transactions: AtomicUsize,
}

/// Streams that ended.
#[derive(Debug, Default)]
struct Lost {
    count: usize,
    /// Why the last one did.
    last: String,
}

#[derive(Debug, Default)]
struct Round {
    awaited: Option<Awaited>,
    heard: BTreeSet<usize>,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            seats: AtomicUsize::new(0),
            round: Mutex::default(),
            heard: watch::Sender::new((0, None)),
            record: Mutex::default(),
            lost: Mutex::default(),
            streams: Mutex::default(),
            transactions: AtomicUsize::new(0),
        }
    }
}

impl Board {
    /// The number of another router.
    pub(super) fn seat(&self) -> usize {
        self.seats.fetch_add(1, Ordering::Relaxed)
    }

    /// From now on this is waited for.
    pub(super) fn await_next(&self, awaited: Awaited) {
        let mut round = self.round.lock();
        *round = Round {
            awaited: Some(awaited),
            heard: BTreeSet::new(),
        };
        self.heard.send_replace((0, None));
    }

    /// When the last of so many routers had acknowledged what is waited for.
    pub(super) async fn all(&self, routers: usize, patience: Duration) -> anyhow::Result<Instant> {
        let mut heard = self.heard.subscribe();
        let all = tokio::time::timeout(patience, heard.wait_for(|(count, _)| *count >= routers)).await;
        let Ok(all) = all else {
            let (count, _) = *self.heard.borrow();
            bail!(
                "{count} of {routers} routers have acknowledged {:?}; {}",
                self.round.lock().awaited,
                self.losses()
            );
        };
        all?.1.context("somebody has acknowledged")
    }

    pub(super) fn record(&self) -> Record {
        self.record.lock().clone()
    }

    /// Pairs that are granted, as one router was told, and when it was told of any last.
    pub(super) fn count(&self) -> (usize, Option<Instant>) {
        let record = self.record.lock();
        (record.count(), record.changed)
    }

    /// Transactions that were acknowledged so far, by all routers.
    pub(super) fn transactions(&self) -> usize {
        self.transactions.load(Ordering::Relaxed)
    }

    /// How many routers have acknowledged something on a stream that began after `since`.
    pub(super) fn back(&self, since: Instant) -> usize {
        let streams = self.streams.lock();
        streams.values().filter(|began| **began > since).count()
    }

    /// `began`: the router's stream.
    pub(super) fn acked(&self, (seat, began): (usize, Instant), at: Instant, resources: &[v1::Resource]) {
        self.transactions.fetch_add(1, Ordering::Relaxed);
        self.streams.lock().insert(seat, began);
        if seat == 0 {
            self.record.lock().learn(at, resources);
        }
        let mut round = self.round.lock();
        let awaited = round.awaited.as_ref();
        if awaited.is_some_and(|awaited| resources.iter().any(|resource| awaited.is_in(resource)))
            && round.heard.insert(seat)
        {
            let count = round.heard.len();
            self.heard
                .send_modify(|(heard, last)| (*heard, *last) = (count, (*last).max(Some(at))));
        }
    }

    pub(super) fn lost(&self, error: &anyhow::Error) {
        let mut lost = self.lost.lock();
        lost.count += 1;
        lost.last = format!("{error:#}");
    }

    /// How many streams have ended that began anew, in words.
    pub(super) fn losses(&self) -> String {
        let lost = self.lost.lock();
        match lost.count {
            0 => "no stream has ended".to_owned(),
            count => format!("{count} streams have ended and begun anew, the last one: {}", lost.last),
        }
    }
}
