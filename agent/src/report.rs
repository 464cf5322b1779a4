//! What the agent tells the hub on one stream: everything once with `reset`, then differences.
//!
//! A reset goes out whole in one message, because the hub forgets at its arrival: in pieces, namespaces would seem to
//! vanish. Changes that come together are told together. Caller: `stream`, anew for each stream.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_crds::GroupResource;
use portolan_wire::v1 as wire;
use portolan_wire::v1::agent_message::Kind as Said;
use tokio::sync::{mpsc, watch};

use crate::callers::CallerFacts;
use crate::facts::{Difference, FactMap, FactStore, difference};
use crate::health::Beat;
use crate::mint::Tokens;
use crate::namespaces::NamespaceFacts;

/// Coverage by kind.
pub(crate) type CoverageFacts = FactStore<GroupResource, wire::CoverageFact>;

/// Namespaces and callers: routing waits for them, so only bursts are gathered.
const SETTLE_FACTS: Duration = Duration::from_millis(50);
/// Coverage moves with each labelled object; a second hides the moment between creation and repair.
const SETTLE_COVERAGE: Duration = Duration::from_secs(1);

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
}

/// Where messages of this stream go. Bounded: see `stream`.
pub(crate) type Outbox = mpsc::Sender<wire::AgentMessage>;

/// The stream is gone, or a source is (at shutdown): nothing can be told any more.
#[derive(Debug)]
pub(crate) struct Ended;

/// Reports on all subjects until the stream ends. Cancel-safe: it is dropped with its stream.
pub(crate) async fn run(subjects: Subjects, outbox: Outbox) -> Ended {
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
    } = subjects;
    let since = Instant::now();
    tokio::select! {
        ended = deltas(&namespaces, SETTLE_FACTS, &outbox, namespace_delta) => ended,
        ended = deltas(&callers, SETTLE_FACTS, &outbox, caller_delta) => ended,
        ended = deltas(&coverage, SETTLE_COVERAGE, &outbox, coverage_delta) => ended,
        ended = latest(heartbeats, &outbox, |beat| Said::Heartbeat(beat.told(since))) => ended,
        ended = latest(allowed, &outbox, |allowed| Said::Allowed(allowed.clone())) => ended,
        ended = each_token(tokens, &outbox) => ended,
        ended = latest(policies, &outbox, |policies| Said::Policies(policies.clone())) => ended,
        ended = latest(excess, &outbox, |excess| Said::CallerExcess(excess.clone())) => ended,
        ended = latest(fences, &outbox, |fences| Said::Fences(fences.clone())) => ended,
    }
}

/// Sends one message; `Ended` if the stream is gone.
pub(crate) async fn say(outbox: &Outbox, said: Said) -> Result<(), Ended> {
    outbox
        .send(wire::AgentMessage { kind: Some(said) })
        .await
        .map_err(|_| Ended)
}

/// All facts with reset as soon as they are complete, then what changes.
async fn deltas<K: Ord + Clone, V: PartialEq>(
    store: &FactStore<K, V>,
    settle: Duration,
    outbox: &Outbox,
    make: fn(bool, Difference<K, V>) -> Said,
) -> Ended {
    let mut changed = store.subscribe();
    let mut sent: Option<FactMap<K, V>> = None;
    loop {
        changed.borrow_and_update();
        if let Some(now) = store.complete() {
            let reset = sent.is_none();
            let difference = difference(sent.as_ref().unwrap_or(&FactMap::new()), &now);
            if reset || !difference.is_empty() {
                let said = tracing::info_span!(
                    "report",
                    reset,
                    upserted = difference.upserted.len(),
                    removed = difference.removed.len()
                )
                .in_scope(|| make(reset, difference));
                if let Err(ended) = say(outbox, said).await {
                    return ended;
                }
            }
            sent = Some(now);
        }
        if changed.changed().await.is_err() {
            return Ended;
        }
        tokio::time::sleep(settle).await;
    }
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

fn owned<V: Clone>(facts: Vec<Arc<V>>) -> Vec<V> {
    facts.into_iter().map(Arc::unwrap_or_clone).collect()
}

fn namespace_delta(reset: bool, difference: Difference<String, wire::NamespaceFact>) -> Said {
    Said::Namespaces(wire::NamespaceDelta {
        reset,
        upserted: owned(difference.upserted),
        removed: difference.removed,
    })
}

fn caller_delta(reset: bool, difference: Difference<String, wire::CallerFact>) -> Said {
    Said::Callers(wire::CallerDelta {
        reset,
        upserted: owned(difference.upserted),
        removed: difference.removed,
    })
}

fn coverage_delta(reset: bool, difference: Difference<GroupResource, wire::CoverageFact>) -> Said {
    let removed = difference.removed.into_iter().map(wire::KindRef::from);
    Said::Coverage(wire::CoverageDelta {
        reset,
        upserted: owned(difference.upserted),
        removed: removed.collect(),
    })
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
        let reporting = deltas(&store, SETTLE_FACTS, &outbox, namespace_delta);
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
}
