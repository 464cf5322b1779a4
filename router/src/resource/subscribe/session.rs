//! One stream to the hub, from Hello to its end.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};
use portolan_runtime::{ReadyHandle, telemetry};
use portolan_wire::client::{CaNews, HubLink, OPEN_TIMEOUT};
use portolan_wire::protocol::{NAMESPACES, Spoken, welcomed};
use portolan_wire::v1;
use portolan_wire::v1::router_control_client::RouterControlClient;
use portolan_wire::v1::router_message::Kind as Out;
use portolan_wire::v1::router_update::Kind as In;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::held;
use super::hub_state::HubState;
use super::introduction::introduction;
use super::policies::PolicyReports;
use super::replicas::ReplicaReports;
use super::{MAX_MESSAGE_BYTES, SessionError};
use crate::resource::access::{Asked, Carrier, Decision};
use crate::resource::held::OtherLease;
use crate::resource::policies::ToldShares;
use crate::resource::question;
use crate::resource::routing::RoutingStore;
use crate::resource::subscribe::HubMetrics;
use crate::resource::whereabouts::{self, Found};
use crate::value::snapshot::build::Transaction;

/// Messages on their way out. More only pile up when the hub does not read, and then the stream is better ended.
const OUTBOX: usize = 64;
/// For a place in the outbox.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Until the hub has heard that this router ends; what is not heard by then is not said.
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time between two reports: a hub that hears none does not know until when members have answered this router.
const REPORT_EVERY: Duration = Duration::from_secs(3);
/// Transitions within this go out as one report.
const REPORT_DELAY: Duration = Duration::from_millis(100);
/// Unanswered questions beyond which those that nobody waits for any more are forgotten.
const MAX_PENDING: usize = 1_024;

type AskedLastAnswers = question::Asked<Vec<String>, HashMap<String, i64>>;

pub(super) struct Session {
    outbox: mpsc::Sender<v1::RouterMessage>,
    updates: Streaming<v1::RouterUpdate>,
    /// Changes when the identity is renewed: the hub must see the new certificate before the old one expires.
    identity: watch::Receiver<u64>,
    /// Changes when other CAs are trusted: the hub is told by a Hello, on a connection that they verified.
    trust: watch::Receiver<u64>,
    news: Arc<CaNews>,
    transaction: Transaction,
    /// Questions to the hub by id, until they are answered.
    pending: HashMap<u64, oneshot::Sender<Decision>>,
    next_id: u64,
    /// For how long a leader lock counts at most, as the hub says; 0: it has not.
    longest_lease_seconds: u32,
    /// Of which members another task waits to hear when they answered last, by id.
    last_answers: HashMap<u64, oneshot::Sender<HashMap<String, i64>>>,
    /// The last transaction that is in force and not acknowledged, as the state file does not have it.
    unsaved: Option<u64>,
    /// Who waits to hear which members have a namespace, by id.
    whereabouts: HashMap<u64, oneshot::Sender<Found>>,
}

impl Session {
    /// Connects and says Hello.
    pub(super) async fn open(link: &HubLink, state: &HubState, news: Arc<CaNews>) -> Result<Self, SessionError> {
        let (mut identity, mut trust) = (link.identity().subscribe(), link.trust().subscribe());
        identity.mark_unchanged();
        trust.mark_unchanged();
        let mut client = RouterControlClient::new(link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let (outbox, messages) = mpsc::channel(OUTBOX);
        let (seen_incarnation, seen_view_revision) = state.seen();
        let hello = v1::RouterHello {
            protocol: Spoken::OURS.newest(),
            oldest_protocol: Spoken::OURS.oldest(),
            capabilities: state.capabilities(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            // All that the certificate says.
            subscription: Vec::new(),
            seen_incarnation,
            seen_view_revision,
            known: state.known(),
            trusts: link.trust().fingerprint(),
            process: state.process(),
            earlier_answered: state.routing().writes.is_earlier_answered(),
        };
        let told = async {
            for message in introduction(hello) {
                // If the stream is gone, its answer says why.
                let _ = outbox.send(message).await;
            }
        };
        let opened = async { tokio::join!(told, client.connect(ReceiverStream::new(messages))).1 };
        let opened = tokio::time::timeout(OPEN_TIMEOUT, opened).await;
        let updates = opened.map_err(|_| SessionError::Slow("answer"))??.into_inner();
        Ok(Self {
            outbox,
            updates,
            identity,
            trust,
            news,
            transaction: Transaction::default(),
            pending: HashMap::new(),
            next_id: 0,
            longest_lease_seconds: 0,
            last_answers: HashMap::new(),
            unsaved: None,
            whereabouts: HashMap::new(),
        })
    }

    /// Follows the stream to its end.
    pub(super) async fn run(
        &mut self,
        state: &mut HubState,
        mut carrier: Carrier,
        metrics: &HubMetrics,
        ready: &ReadyHandle,
    ) -> Result<Infallible, SessionError> {
        let routing = state.routing().clone();
        let mut views = routing.catch_up.carry();
        let mut last_answers = routing.last_answers.carry();
        let mut namespaces = None;
        let mut breakers = routing.breaker_changes();
        let (mut report_at, mut told) = (Instant::now(), Told::default());
        let hub_heard = routing.writes.stream();
        // What was told on an earlier stream the hub does not know any more.
        self.report_handovers(state, &mut told).await?;
        let mut held = held::Reports::default();
        self.report_held(&routing, &mut held).await?;
        let mut policies = PolicyReports::new(routing.load().policies.clone());
        let mut replicas = ReplicaReports::new(&routing.replicas);
        routing.load().policies.forget_unsecured();
        loop {
            tokio::select! {
                update = self.updates.message() => {
                    let update = update?.ok_or(SessionError::Closed)?;
                    if let Some(In::CaughtUp(caught_up)) = &update.kind {
                        views.answered(caught_up.id);
                    }
                    hear(update.kind.as_ref(), &routing, state, &mut namespaces).await?;
                    if let Some(commit) = self.take(update)? {
                        state.hear_term(commit.term)?;
                        let rejected = self.commit(&commit, state, metrics);
                        // Before the answer: what callers of their shards of before hold is known once all have answered.
                        self.report_held(&routing, &mut held).await?;
                        routing.load().policies.heard_hub();
                        ready.ready();
                        self.answer(state, commit.nonce, rejected).await?;
                        // What the hub has told by now is all that it knows.
                        routing.writes.inherit(&routing.load().snapshot);
                        hub_heard.told();
                        self.report_handovers(state, &mut told).await?;
                    }
                }
                Some(asked) = carrier.questions.recv() => self.ask(asked).await?,
                Some(asked) = last_answers.questions.recv() => self.ask_last_answers(asked).await?,
                Some(asked) = next_question(namespaces.as_mut()) => self.ask_whereabouts(asked).await?,
                id = views.next() => self.send(Out::CatchUp(v1::CatchUp { id })).await?,
                () = handovers(&routing) => self.report_handovers(state, &mut told).await?,
                () = held.due(&routing.held) => self.report_held(&routing, &mut held).await?,
                () = replicas.due() => self.report_replicas(&mut replicas).await?,
                Ok(()) = breakers.changed() => report_at = report_at.min(Instant::now() + REPORT_DELAY),
                () = tokio::time::sleep_until(report_at) => {
                    report_at = Instant::now() + REPORT_EVERY;
                    self.send(Out::Breakers(report(&routing))).await?;
                    self.report_handovers(state, &mut told).await?;
                }
                () = policies.due() => self.report_policies(state, &mut policies).await?,
                () = state.save_due() => {
                    state.save_if_changed().await;
                    self.acknowledge(state).await?;
                    self.report_handovers(state, &mut told).await?;
                }
                _ = self.identity.changed() => return Err(SessionError::Renewed),
                _ = self.trust.changed() => return Err(SessionError::Renewed),
            }
        }
    }

    /// This router serves nobody any more. If every write is answered the hub is told so, and has heard it once it closes the stream.
    pub(super) async fn end(&mut self, state: &mut HubState) -> SessionError {
        if !state.routing().writes.is_over() {
            return SessionError::Stopped { ended: false };
        }
        // What others get for it must be gone from here before they hear of it.
        let ended = state.give_up().await;
        let heard = async {
            self.send(Out::Ended(ended)).await.ok()?;
            loop {
                match self.updates.message().await {
                    Ok(None) => return Some(()),
                    Ok(Some(_)) => {}
                    Err(_) => return None,
                }
            }
        };
        let heard = tokio::time::timeout(END_TIMEOUT, heard).await;
        SessionError::Stopped {
            ended: matches!(heard, Ok(Some(()))),
        }
    }

    /// Collects; `Some` at the end of a transaction.
    fn take(&mut self, update: v1::RouterUpdate) -> Result<Option<v1::Commit>, SessionError> {
        match update.kind {
            Some(In::Resource(resource)) => self.transaction.upserted.push(resource),
            Some(In::Removed(reference)) => self.transaction.removed.push(reference),
            Some(In::Commit(commit)) => return Ok(Some(commit)),
            Some(In::Welcome(welcome)) => {
                welcomed(welcome.protocol)?;
                self.longest_lease_seconds = welcome.longest_lease_seconds;
            }
            Some(In::AccessDecision(decision)) => {
                if let Some(waiting) = self.pending.remove(&decision.id) {
                    // Nobody waits any more: fine.
                    let _ = waiting.send(Decision {
                        allowed: decision.allowed,
                        reason: decision.reason,
                    });
                }
            }
            Some(In::LastAnswers(last)) => {
                if let Some(waiting) = self.last_answers.remove(&last.id) {
                    let answered = last.answered.into_iter();
                    // Nobody waits any more: fine.
                    let _ = waiting.send(answered.map(|one| (one.cluster, one.until_unix_seconds)).collect());
                }
            }
            Some(In::NamespaceFound(found)) => {
                if let Some(waiting) = self.whereabouts.remove(&found.id) {
                    // Nobody waits any more: fine.
                    let _ = waiting.send(Found {
                        there: found.there,
                        away: found.away,
                        unknown: found.unknown,
                    });
                }
            }
            Some(In::Trust(trust)) => self.news.put(trust),
            // The session's own loop reads it.
            Some(In::CaughtUp(_) | In::Alone(_) | In::Shares(_)) => {}
            // Of a newer hub: what this router does not know it was not promised to need.
            None => tracing::debug!("an update of an unknown kind"),
        }
        Ok(None)
    }

    fn commit(&mut self, commit: &v1::Commit, state: &mut HubState, metrics: &HubMetrics) -> Vec<v1::Rejected> {
        let transaction = std::mem::take(&mut self.transaction);
        let (upserted, removed) = (transaction.upserted.len(), transaction.removed.len());
        let span = tracing::info_span!(
            "swap",
            nonce = commit.nonce,
            upserted,
            removed,
            rejected = tracing::field::Empty
        );
        telemetry::set_parent(&span, telemetry::extract_context(&trace_headers(&commit.traceparent)));
        let _entered = span.enter();
        let rejected = state.apply(transaction);
        span.record("rejected", rejected.len());
        metrics.transaction(rejected.len());
        let generation = state.generation();
        for refused in &rejected {
            let name = refused.r#ref.as_ref().map_or("", |reference| reference.name.as_str());
            tracing::warn!(
                name,
                version = refused.version,
                reason = refused.reason,
                "refused what the hub sent"
            );
        }
        tracing::info!(nonce = commit.nonce, generation, upserted, removed, "swapped");
        rejected
    }

    /// An answer is of all transactions before it, too: what is acknowledged is on disk.
    async fn answer(
        &mut self,
        state: &mut HubState,
        nonce: u64,
        rejected: Vec<v1::Rejected>,
    ) -> Result<(), SessionError> {
        let answer = if !state.secure().await {
            self.unsaved = Some(nonce);
            return self.send(Out::Unsaved(v1::Unsaved { nonce, rejected })).await;
        } else if rejected.is_empty() {
            Out::Ack(v1::Ack { nonce })
        } else {
            Out::Nack(v1::Nack { nonce, rejected })
        };
        self.unsaved = None;
        self.send(answer).await
    }

    /// Acknowledges what could not be written before, once it is.
    async fn acknowledge(&mut self, state: &HubState) -> Result<(), SessionError> {
        match self.unsaved.take_if(|_| state.is_secure()) {
            Some(nonce) => self.send(Out::Ack(v1::Ack { nonce })).await,
            None => Ok(()),
        }
    }

    async fn ask(&mut self, asked: Asked) -> Result<(), SessionError> {
        if self.pending.len() >= MAX_PENDING {
            self.pending.retain(|_, waiting| !waiting.is_closed());
        }
        let id = self.next_id;
        self.next_id += 1;
        self.pending.insert(id, asked.answer);
        let crate::resource::access::ProxyQuestion { user, groups, cluster } = asked.question;
        self.send(Out::AccessReview(v1::AccessReview {
            id,
            user,
            groups,
            cluster,
        }))
        .await
    }

    /// Of which releases no write is open, and how far handovers of leader locks are, if that is news to the hub.
    async fn report_handovers(&self, state: &HubState, told: &mut Told) -> Result<(), SessionError> {
        let routing = state.routing();
        let snapshot = &routing.load().snapshot;
        let answered = routing.writes.answered(snapshot);
        if let Some(answered) = answered.filter(|answered| told.answered != *answered) {
            told.answered.clone_from(&answered);
            self.send(Out::WritesAnswered(answered)).await?;
        }
        let locks = routing.locks.report(snapshot, &routing.writes, &routing.held);
        // A file that would open again what is closed must not be there any more.
        if state.is_secure() && told.locks != locks {
            told.locks.clone_from(&locks);
            self.send(Out::Locks(locks)).await?;
        }
        Ok(())
    }

    /// Which locks callers may hold, as far as that is news to the hub.
    async fn report_held(&self, routing: &RoutingStore, reports: &mut held::Reports) -> Result<(), SessionError> {
        routing.held.set_longest(self.longest_lease_seconds);
        for report in reports.next(&routing.held) {
            self.send(Out::HeldLocks(report)).await?;
        }
        Ok(())
    }

    /// How policies stand, if there is anything to tell. Shares that it says are kept to must be on disk before.
    async fn report_policies(&self, state: &mut HubState, reports: &mut PolicyReports) -> Result<(), SessionError> {
        state.secure_shares().await;
        match reports.next(&state.routing().load().snapshot) {
            Some(report) => self.send(Out::Policies(report)).await,
            None => Ok(()),
        }
    }

    /// Which copies are not what the primary has, if that is news to the hub.
    async fn report_replicas(&self, reports: &mut ReplicaReports) -> Result<(), SessionError> {
        match reports.next() {
            Some(report) => self.send(Out::Replicas(report)).await,
            None => Ok(()),
        }
    }

    async fn ask_last_answers(&mut self, asked: AskedLastAnswers) -> Result<(), SessionError> {
        self.last_answers.retain(|_, waiting| !waiting.is_closed());
        let id = self.next_id;
        self.next_id += 1;
        self.last_answers.insert(id, asked.answer);
        let clusters = asked.question;
        self.send(Out::LastAnswersQuery(v1::LastAnswersQuery { id, clusters }))
            .await
    }

    async fn ask_whereabouts(&mut self, asked: whereabouts::Asked) -> Result<(), SessionError> {
        if self.whereabouts.len() >= MAX_PENDING {
            self.whereabouts.retain(|_, waiting| !waiting.is_closed());
        }
        let id = self.next_id;
        self.next_id += 1;
        self.whereabouts.insert(id, asked.answer);
        let whereabouts::Question { namespace, clusters } = asked.question;
        let query = v1::NamespaceQuery {
            id,
            namespace,
            clusters,
        };
        self.send(Out::NamespaceQuery(query)).await
    }

    async fn send(&self, kind: Out) -> Result<(), SessionError> {
        match tokio::time::timeout(SEND_TIMEOUT, self.outbox.send(message(kind))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(SessionError::Closed),
            Err(_) => Err(SessionError::Slow("read")),
        }
    }
}

/// Takes in what the hub tells beside transactions.
async fn hear(
    told: Option<&In>,
    routing: &RoutingStore,
    state: &mut HubState,
    namespaces: &mut Option<whereabouts::Carrier>,
) -> Result<(), SessionError> {
    match told {
        // A hub of an earlier release answers no question of these, and each would wait for that.
        Some(In::Welcome(welcome)) => {
            state.hear_term(welcome.term)?;
            let answers = welcome.capabilities.iter().any(|word| word == NAMESPACES);
            // The way of before is taken down first.
            *namespaces = None;
            *namespaces = answers.then(|| routing.whereabouts.carry());
        }
        Some(In::Alone(alone)) => routing.alone.told(Duration::from_secs(alone.for_seconds)),
        Some(In::Shares(shares)) => state.reshare(ToldShares::of(shares)).await,
        _ => {}
    }
    Ok(())
}

/// The next question that the hub can answer.
async fn next_question(namespaces: Option<&mut whereabouts::Carrier>) -> Option<whereabouts::Asked> {
    match namespaces {
        Some(carrier) => carrier.questions.recv().await,
        None => std::future::pending().await,
    }
}

/// Completes when there may be news of handovers. Of a write that was lost there is none: the next report is soon.
async fn handovers(routing: &RoutingStore) {
    tokio::select! {
        () = routing.writes.changed() => {}
        () = routing.locks.changed() => {}
    }
}

/// What the hub was told of handovers last.
#[derive(Default)]
struct Told {
    answered: v1::WritesAnswered,
    locks: v1::LockReport,
}

fn message(kind: Out) -> v1::RouterMessage {
    v1::RouterMessage { kind: Some(kind) }
}

fn trace_headers(traceparent: &str) -> HeaderMap {
    let value = HeaderValue::from_str(traceparent)
        .ok()
        .filter(|value| !value.is_empty());
    value
        .map(|value| (HeaderName::from_static("traceparent"), value))
        .into_iter()
        .collect()
}

fn report(routing: &RoutingStore) -> v1::BreakerReport {
    let upstreams = &routing.load().upstreams;
    let state = |status: crate::resource::upstream::BreakerStatus| v1::BreakerState {
        cluster: status.cluster.to_string(),
        traffic_class: status.class.as_str().to_owned(),
        state: status.report.state.as_str().to_owned(),
        reason: status.report.reason,
        since_unix_seconds: status
            .report
            .since
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX)),
    };
    let answered = |(cluster, until_unix_seconds): (Arc<str>, i64)| v1::MemberAnswered {
        cluster: cluster.to_string(),
        until_unix_seconds,
    };
    let other_lease = |(lease, renewed_unix_seconds): (OtherLease, i64)| v1::OtherLease {
        shard: lease.shard,
        lease: lease.name,
        renewed_unix_seconds,
    };
    v1::BreakerReport {
        breakers: upstreams.breakers().into_iter().map(state).collect(),
        answered: upstreams.answered_until().into_iter().map(answered).collect(),
        other_leases: routing.held.beside().into_iter().map(other_lease).collect(),
    }
}
