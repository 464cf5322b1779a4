//! What the agent tells the hub on one stream: everything once with `reset`, then differences.
//!
//! A difference counts at the hub when all of it has come: a reset that counted in pieces would make namespaces seem to vanish.
//! It goes out in `page`s of bounded size, or whole to a hub that does not take pages. Changes that come together are told
//! together. Caller: `stream`, anew for each stream.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_crds::GroupResource;
use portolan_wire::v1 as wire;
use portolan_wire::v1::agent_message::Kind as Said;
use prost::Message;
use tokio::sync::{mpsc, watch};

use self::page::{Page, paged};
use crate::bounds;
use crate::callers::CallerFacts;
use crate::facts::{FactMap, FactStore, Known, difference};
use crate::health::Beat;
use crate::mint::Tokens;
use crate::namespaces::NamespaceFacts;

mod page;

/// Coverage by kind.
pub(crate) type CoverageFacts = FactStore<GroupResource, wire::CoverageFact>;

/// Namespaces and callers: routing waits for them, so only bursts are gathered.
const SETTLE_FACTS: Duration = Duration::from_millis(50);
/// Coverage moves with each labelled object; a second hides the moment between creation and repair.
const SETTLE_COVERAGE: Duration = Duration::from_secs(1);
/// Texts of selectors that are told to a hub which knows them by nothing else: it takes twice as much.
const TEXTS_MAX_BYTES: usize = 256 * 1024;

/// Where Nodes come and go all the time, their names are gathered: each time all of them are told.
const SETTLE_NODES: Duration = Duration::from_secs(1);

/// All subjects, as sources that outlive streams.
#[derive(Debug, Clone)]
pub(crate) struct Subjects {
    pub(crate) namespaces: Arc<NamespaceFacts>,
    pub(crate) callers: Arc<CallerFacts>,
    pub(crate) coverage: Arc<CoverageFacts>,
    pub(crate) heartbeats: watch::Receiver<Option<Beat>>,
    pub(crate) tokens: watch::Receiver<Tokens>,
    pub(crate) allowed: watch::Receiver<Option<wire::Allowed>>,
    pub(crate) policies: watch::Receiver<Option<wire::AdmissionPolicies>>,
    pub(crate) excess: watch::Receiver<Option<wire::CallerExcess>>,
    pub(crate) fences: watch::Receiver<Option<wire::Fences>>,
    pub(crate) nodes: watch::Receiver<Option<wire::NodeNames>>,
}

/// Where messages of this stream go. Bounded: see `stream`.
pub(crate) type Outbox = mpsc::Sender<wire::AgentMessage>;

/// The stream is gone, or a source is (at shutdown): nothing can be told any more.
#[derive(Debug)]
pub(crate) struct Ended;

/// Where a stream leads, and what the hub there takes.
#[derive(Debug, Clone)]
pub(crate) struct Hub {
    pub(crate) outbox: Outbox,
    /// Whether it takes differences in pages, and what else came with them.
    pub(crate) takes_pages: bool,
}

/// One subject, as it is told.
struct Telling<'a, K, V> {
    store: &'a FactStore<K, V>,
    /// Changes within this time are told together.
    settle: Duration,
    /// Keeps all of it within bounds.
    bound: fn(FactMap<K, V>) -> FactMap<K, V>,
    make: fn(Page<K, V>) -> Said,
}

/// Reports on all subjects until the stream ends. Cancel-safe: it is dropped with its stream.
pub(crate) async fn run(subjects: Subjects, hub: Hub) -> Ended {
    let Subjects {
        namespaces,
        callers,
        coverage,
        heartbeats,
        tokens,
        allowed,
        policies,
        excess,
        fences,
        nodes,
    } = subjects;
    let since = Instant::now();
    let Hub { outbox, takes_pages } = hub.clone();
    tokio::select! {
        ended = deltas(of_namespaces(&namespaces), &hub) => ended,
        ended = deltas(of_callers(&callers), &hub) => ended,
        ended = deltas(of_coverage(&coverage), &hub) => ended,
        ended = latest(heartbeats, &outbox, |beat| Said::Heartbeat(beat.told(since))) => ended,
        ended = latest(allowed, &outbox, |allowed| Said::Allowed(allowed.clone())) => ended,
        ended = each_token(tokens, &outbox) => ended,
        ended = latest(policies, &outbox, |policies| Said::Policies(policies.clone())) => ended,
        ended = latest(excess, &outbox, |excess| Said::CallerExcess(excess_for(takes_pages, excess))) => ended,
        ended = latest(fences, &outbox, |fences| Said::Fences(fences.clone())) => ended,
        ended = now_and_then(nodes, &outbox) => ended,
    }
}

/// Sends one message; `Ended` if the stream is gone.
pub(crate) async fn say(outbox: &Outbox, said: Said) -> Result<(), Ended> {
    outbox
        .send(wire::AgentMessage { kind: Some(said) })
        .await
        .map_err(|_| Ended)
}

/// All facts with reset as soon as they are complete, then what changes. A hub that takes no pages does not know what it means
/// that they are complete but for some namespaces: it is told once they are.
async fn deltas<K: Ord + Clone, V: PartialEq + Message>(telling: Telling<'_, K, V>, hub: &Hub) -> Ended {
    let mut changed = telling.store.subscribe();
    let mut sent: Option<Known<K, V>> = None;
    loop {
        changed.borrow_and_update();
        let known = telling.store.known();
        if let Some(known) = known.filter(|known| hub.takes_pages || known.pending.is_empty()) {
            let now = Known {
                facts: (telling.bound)(known.facts),
                ..known
            };
            if let Err(ended) = tell(telling.make, hub, sent.as_ref(), &now).await {
                return ended;
            }
            sent = Some(now);
        }
        if changed.changed().await.is_err() {
            return Ended;
        }
        tokio::time::sleep(telling.settle).await;
    }
}

/// Tells a hub that knows what was `sent` what is so now.
async fn tell<K: Ord + Clone, V: PartialEq + Message>(
    make: fn(Page<K, V>) -> Said,
    hub: &Hub,
    sent: Option<&Known<K, V>>,
    now: &Known<K, V>,
) -> Result<(), Ended> {
    let nothing = (FactMap::new(), BTreeSet::new());
    let (facts, pending) = sent.map_or((&nothing.0, &nothing.1), |sent| (&sent.facts, &sent.pending));
    let (reset, difference) = (sent.is_none(), difference(facts, &now.facts));
    if !reset && difference.is_empty() && *pending == now.pending {
        return Ok(());
    }
    let span = tracing::info_span!(
        "report",
        reset,
        upserted = difference.upserted.len(),
        removed = difference.removed.len(),
        pages = tracing::field::Empty
    );
    let whole = Page {
        reset,
        upserted: difference.upserted,
        removed: difference.removed,
        pending: now.pending.iter().cloned().collect(),
        more: false,
    };
    let pages = if hub.takes_pages { paged(whole) } else { vec![whole] };
    span.record("pages", pages.len());
    for page in pages {
        let said = span.in_scope(|| make(page));
        say(&hub.outbox, said).await?;
    }
    Ok(())
}

/// The value there is, then each newer one.
async fn latest<T>(mut source: watch::Receiver<Option<T>>, outbox: &Outbox, make: impl Fn(&T) -> Said) -> Ended {
    source.mark_changed();
    loop {
        if source.changed().await.is_err() {
            // The program ends; the stream ends with it, and not because of this.
            std::future::pending::<()>().await;
        }
        // Made before the send: a watch must not be borrowed across an await.
        let said = source.borrow_and_update().as_ref().map(&make);
        if let Some(said) = said
            && let Err(ended) = say(outbox, said).await
        {
            return ended;
        }
    }
}

/// The names of Nodes that there are, then newer ones, at most once in [`SETTLE_NODES`]: each time they are told whole.
async fn now_and_then(mut source: watch::Receiver<Option<wire::NodeNames>>, outbox: &Outbox) -> Ended {
    source.mark_changed();
    loop {
        if source.changed().await.is_err() {
            // The program ends; the stream ends with it, and not because of this.
            std::future::pending::<()>().await;
        }
        // Made before the send: a watch must not be borrowed across an await.
        let names = source.borrow_and_update().clone();
        let Some(names) = names else { continue };
        if let Err(ended) = say(outbox, Said::NodeNames(names)).await {
            return ended;
        }
        tokio::time::sleep(SETTLE_NODES).await;
    }
}

/// All tokens there are, then each newer one. That one is gone the hub knows: it has forgotten its router.
async fn each_token(mut source: watch::Receiver<Tokens>, outbox: &Outbox) -> Ended {
    let mut sent = BTreeMap::new();
    source.mark_changed();
    loop {
        if source.changed().await.is_err() {
            // The program ends; the stream ends with it, and not because of this.
            std::future::pending::<()>().await;
        }
        // Made before the send: a watch must not be borrowed across an await.
        let now = source.borrow_and_update().clone();
        let newer = now.iter().filter(|(router, minted)| sent.get(*router) != Some(*minted));
        for (router, minted) in newer {
            let told = wire::MemberToken {
                token: minted.token.expose().clone(),
                expires_unix_seconds: minted.expires_unix_seconds,
                router: Some(wire::RouterRef {
                    name: router.name.clone(),
                    uid: router.uid.clone(),
                }),
            };
            if let Err(ended) = say(outbox, Said::MemberToken(told)).await {
                return ended;
            }
        }
        sent = now;
    }
}

/// What is told of selectors of which not all Pods are: by their digests, or to a hub that knows none by their texts, as far as
/// there is room, the shortest first. Of those that cannot be listed such a hub is told nothing.
fn excess_for(takes_pages: bool, excess: &wire::CallerExcess) -> wire::CallerExcess {
    let mut told = excess.clone();
    if takes_pages {
        told.selectors.iter_mut().for_each(|cut| cut.selector.clear());
        return told;
    }
    told.selectors.retain(|cut| cut.fault.is_empty());
    told.selectors.sort_by_key(|cut| cut.selector.len());
    let mut bytes = 0;
    told.selectors.retain_mut(|cut| {
        cut.digest.clear();
        bytes += cut.encoded_len();
        bytes <= TEXTS_MAX_BYTES
    });
    told
}

fn owned<V: Clone>(facts: Vec<Arc<V>>) -> Vec<V> {
    facts.into_iter().map(Arc::unwrap_or_clone).collect()
}

fn of_namespaces(store: &NamespaceFacts) -> Telling<'_, String, wire::NamespaceFact> {
    Telling {
        store,
        settle: SETTLE_FACTS,
        bound: bounds::namespaces,
        make: |page| {
            Said::Namespaces(wire::NamespaceDelta {
                reset: page.reset,
                upserted: owned(page.upserted),
                removed: page.removed,
                more: page.more,
            })
        },
    }
}

fn of_callers(store: &CallerFacts) -> Telling<'_, String, wire::CallerFact> {
    Telling {
        store,
        settle: SETTLE_FACTS,
        bound: std::convert::identity,
        make: |page| {
            Said::Callers(wire::CallerDelta {
                reset: page.reset,
                upserted: owned(page.upserted),
                removed: page.removed,
                more: page.more,
                pending: page.pending,
            })
        },
    }
}

fn of_coverage(store: &CoverageFacts) -> Telling<'_, GroupResource, wire::CoverageFact> {
    Telling {
        store,
        settle: SETTLE_COVERAGE,
        bound: std::convert::identity,
        make: |page| {
            Said::Coverage(wire::CoverageDelta {
                reset: page.reset,
                upserted: owned(page.upserted),
                removed: page.removed.into_iter().map(wire::KindRef::from).collect(),
                more: page.more,
            })
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(name: &str) -> wire::NamespaceFact {
        wire::NamespaceFact {
            name: name.into(),
            ..wire::NamespaceFact::default()
        }
    }

    fn of_pages(outbox: Outbox) -> Hub {
        Hub {
            outbox,
            takes_pages: true,
        }
    }

    async fn next(inbox: &mut mpsc::Receiver<wire::AgentMessage>) -> wire::NamespaceDelta {
        match inbox.recv().await.unwrap().kind.unwrap() {
            Said::Namespaces(delta) => delta,
            _ => panic!("another subject"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn first_all_then_what_changed_and_nothing_before_it_is_complete() {
        let store = NamespaceFacts::new();
        let (outbox, mut inbox) = mpsc::channel(4);
        let (telling, hub) = (of_namespaces(&store), of_pages(outbox));
        let reporting = deltas(telling, &hub);
        let script = async {
            store.upsert("early".into(), fact("early"));
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert!(inbox.try_recv().is_err());
            store.replace([("a".to_owned(), Arc::new(fact("a")))].into());
            let first = next(&mut inbox).await;
            assert!(first.reset && first.upserted == [fact("a")] && first.removed.is_empty());
            store.upsert("b".into(), fact("b"));
            store.remove(&"a".to_owned());
            let second = next(&mut inbox).await;
            assert!(
                !second.reset && second.upserted == [fact("b")] && second.removed == ["a"],
                "{second:?}"
            );
        };
        tokio::select! {
            _ = reporting => panic!("ended"),
            () = script => {}
        }
    }

    #[tokio::test]
    async fn a_new_stream_is_told_the_latest_value_at_once() {
        let (sender, receiver) = watch::channel(None);
        sender.send_replace(Some(Beat::default()));
        let (outbox, mut inbox) = mpsc::channel(4);
        tokio::select! {
            _ = latest(receiver, &outbox, |beat: &Beat| Said::Heartbeat(beat.told(Instant::now()))) => panic!("ended"),
            message = inbox.recv() => assert!(matches!(message.unwrap().kind, Some(Said::Heartbeat(_)))),
        }
    }

    /// Ten thousand Namespaces, of which the first report is some megabytes.
    #[tokio::test(start_paused = true)]
    async fn a_large_report_goes_in_pages_and_to_an_older_hub_whole() {
        let fact = |at: usize| wire::NamespaceFact {
            labels: [("l".to_owned(), "v".repeat(400))].into(),
            ..fact(&format!("ns-{at}"))
        };
        for takes_pages in [true, false] {
            let store = NamespaceFacts::new();
            store.replace((0..10_000).map(|at| (format!("ns-{at}"), Arc::new(fact(at)))).collect());
            let (outbox, mut inbox) = mpsc::channel(64);
            let (telling, hub) = (of_namespaces(&store), Hub { outbox, takes_pages });
            let mut pages = Vec::new();
            let script = async {
                while pages.last().is_none_or(|page: &wire::NamespaceDelta| page.more) {
                    pages.push(next(&mut inbox).await);
                }
            };
            tokio::select! {
                _ = deltas(telling, &hub) => panic!("ended"),
                () = script => {}
            }
            let resets: Vec<_> = pages.iter().map(|page| page.reset).collect();
            assert_eq!(resets.iter().filter(|reset| **reset).count(), 1);
            assert!(resets[0], "the first says so");
            assert_eq!(pages.iter().map(|page| page.upserted.len()).sum::<usize>(), 10_000);
            assert_eq!(pages.len() > 1, takes_pages);
            let largest = pages.iter().map(Message::encoded_len).max();
            assert!(!takes_pages || largest < Some(1 << 20), "{largest:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_pending_is_told_and_an_older_hub_waits_for_all() {
        let callers = |uids: &[&str]| {
            let fact = |uid: &&str| ((*uid).to_owned(), Arc::new(wire::CallerFact::default()));
            uids.iter().map(fact).collect::<FactMap<_, _>>()
        };
        for takes_pages in [true, false] {
            let store = CallerFacts::new();
            store.replace_but(callers(&["a"]), ["ops".to_owned()].into());
            let (outbox, mut inbox) = mpsc::channel(4);
            let (telling, hub) = (of_callers(&store), Hub { outbox, takes_pages });
            let script = async {
                tokio::time::sleep(Duration::from_secs(5)).await;
                let early = inbox.try_recv().ok();
                store.replace(callers(&["a"]));
                (early, inbox.recv().await.unwrap())
            };
            let (early, late) = tokio::select! {
                _ = deltas(telling, &hub) => panic!("ended"),
                told = script => told,
            };
            let callers = |message: wire::AgentMessage| match message.kind.unwrap() {
                Said::Callers(delta) => delta,
                _ => panic!("another subject"),
            };
            let early = early.map(callers);
            assert_eq!(
                early.as_ref().map(|delta| &*delta.pending),
                takes_pages.then_some(&["ops".to_owned()][..])
            );
            let late = callers(late);
            assert_eq!(
                (late.reset, late.upserted.len()),
                (!takes_pages, usize::from(!takes_pages))
            );
            assert!(late.pending.is_empty());
        }
    }

    /// Of ten selectors of 950 values each.
    #[test]
    fn excess_is_told_by_digests_and_to_an_older_hub_within_bounds() {
        let cut = |at: usize| wire::ExcessSelector {
            namespace: "evil".to_owned(),
            selector: format!("app in ({at},{})", "x".repeat(57_000)),
            digest: format!("{at:032}"),
            matched: 520,
            told: 500,
            ..wire::ExcessSelector::default()
        };
        let excess = wire::CallerExcess {
            selectors: (0..10).map(cut).collect(),
        };
        let told = excess_for(true, &excess);
        assert!(told.encoded_len() < 1_000, "{}", told.encoded_len());
        assert!(told.selectors.iter().all(|cut| cut.digest.len() == 32));
        let told = excess_for(false, &excess);
        assert!(
            told.encoded_len() < 256 * 1024 && told.selectors.len() == 4,
            "{}",
            told.encoded_len()
        );
        assert!(told.selectors.iter().all(|cut| cut.selector.len() > 57_000));
    }
}
