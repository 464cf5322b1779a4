//! Sessions of agents: configuration and review questions out, facts in.
//!
//! The cluster is the one that the certificate names; it must be accepted, pinned, and still the cluster it was, and the
//! certificate's key the one that is pinned. Tokens pass through here into the index and are never logged.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use jiff::Timestamp;
use portolan_runtime::Tasks;
use portolan_wire::identity::Identity;
use portolan_wire::v1;
use portolan_wire::v1::agent_control_server::AgentControl;
use portolan_wire::v1::agent_message::Kind as Said;
use portolan_wire::v1::agent_update::Kind as Told;
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status, Streaming};

use self::pages::Pages;
use super::reviews::{AgentSessions, Question, Registered};
use super::{Mouth, OUTBOUND, Outbound, end, first, next_epoch, send, welcome};
use crate::ca::{Authorities, Holder};
use crate::distribute::Worlds;
use crate::facts::Pin;
use crate::index::{Index, OutOfBounds, Report};
use crate::jwks;
use crate::lead::Mandate;
use crate::metrics::{Metrics, Program};
use crate::peer::Peer;
use crate::pins::{AgentKey, PinError, Pins, still_published};
use crate::proof::{Nonce, proven};
use crate::standing::{for_log, not_pinned, pin_or_note, standing};

mod pages;

/// Two restores of one member are counted at least this far apart, as each makes its callers list anew.
const BETWEEN_RESTORES: Duration = Duration::from_mins(5);

/// An agent shows a key when it connects and when its member signs by another: far less often.
const BETWEEN_PROOFS: Duration = Duration::from_millis(500);

/// The service. Clones share everything.
#[derive(Clone)]
pub(crate) struct AgentService {
    pub(crate) index: Arc<Index>,
    pub(crate) worlds: Worlds,
    pub(crate) sessions: Arc<AgentSessions>,
    pub(crate) pins: Pins,
    pub(crate) ca: Arc<Authorities>,
    pub(crate) mandate: Mandate,
    pub(crate) metrics: Metrics,
    pub(crate) tasks: Tasks,
}

#[tonic::async_trait]
impl AgentControl for AgentService {
    type ConnectStream = Mouth<v1::AgentUpdate>;

    async fn connect(
        &self,
        request: Request<Streaming<v1::AgentMessage>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let peer = Peer::of(&request)?;
        let Identity::Agent(cluster) = peer.identity()? else {
            return Err(Status::permission_denied(
                "only an agent's certificate opens this stream",
            ));
        };
        let mut inbound = request.into_inner();
        let Some(Said::Hello(hello)) = first(&mut inbound).await?.kind else {
            return Err(Status::invalid_argument("the first message must be a hello"));
        };
        let welcome = welcome((hello.protocol, hello.oldest_protocol), self.mandate.term)?;
        self.check_standing(&cluster, &peer.key_hash()?, &hello).await?;

        let epoch = next_epoch();
        let registered = self.sessions.register(&cluster, epoch);
        self.index.write(|facts| facts.agent_connected(&cluster, epoch, &hello));
        tracing::info!(cluster, remote = %peer.remote, version = hello.version, "agent connected");
        let (outbound, stream) = mpsc::channel(OUTBOUND);
        // The channel is empty, and its other end is here.
        let nonce = Nonce::new();
        for kind in [Told::Welcome(welcome), Told::KeyChallenge(nonce.challenge())] {
            let _ = outbound.try_send(Ok(v1::AgentUpdate { kind: Some(kind) }));
        }
        let identity = Identity::Agent(cluster.clone());
        let session = AgentSession {
            service: self.clone(),
            holder: self.ca.holder(&identity, epoch, peer.chain, hello.trusts),
            cluster,
            epoch,
            outbound,
            reviews: BTreeMap::new(),
            next_review: 1,
            nonce,
            proved: None,
            pages: Pages::default(),
        };
        let token = self.tasks.token();
        self.tasks.spawn("agent-session", async move {
            token.run_until_cancelled(session.serve(inbound, registered)).await;
        });
        Ok(Response::new(Mouth::new(stream, self.mandate.pulse.clone())))
    }
}

impl AgentService {
    /// Accepted, pinned, and the cluster that was pinned; keys that are published no longer are forgotten.
    async fn check_standing(&self, cluster: &str, key: &str, hello: &v1::AgentHello) -> Result<(), Status> {
        let pin = standing(&self.index, cluster)?;
        // An agent that cannot reach its API server may not know its keys; then the pinned ones stay.
        let signing_keys = match jwks::parse(&hello.jwks) {
            Ok(published) => still_published(&pin, &published),
            Err(_) if hello.jwks.is_empty() => pin.signing_keys.clone(),
            Err(error) => return Err(Status::invalid_argument(error.to_string())),
        };
        let present = Pin {
            member_uid: pin.member_uid.clone(),
            cluster_uid: hello.cluster_uid.clone(),
            signing_keys,
            agent_keys: pin.agent_keys.clone(),
            history: pin.history,
        };
        if present == pin && pin.agent_keys.iter().any(|known| known == key) {
            self.index.write(|facts| facts.note_refusal(cluster, None));
            return Ok(());
        }
        pin_or_note(&self.pins, &self.index, cluster, &present, AgentKey::Presented(key)).await
    }
}

struct AgentSession {
    service: AgentService,
    holder: Holder,
    cluster: String,
    epoch: u64,
    outbound: Outbound<v1::AgentUpdate>,
    /// Questions that the agent has not answered. Bounded by their queue: one is removed before the next is asked.
    reviews: BTreeMap<u64, oneshot::Sender<v1::TokenReviewed>>,
    next_review: u64,
    nonce: Nonce,
    /// When the agent showed a key last.
    proved: Option<Instant>,
    pages: Pages,
}

impl AgentSession {
    async fn serve(mut self, inbound: Streaming<v1::AgentMessage>, registered: Registered) {
        let _stream = self.service.metrics.stream(Program::Agent);
        let Err(status) = self.run(inbound, registered).await;
        self.service.sessions.unregister(&self.cluster, self.epoch);
        // An end is always taken.
        let _ = self
            .service
            .index
            .report(&self.cluster, self.epoch, Report::Disconnected);
        tracing::info!(cluster = self.cluster, reason = status.message(), "agent disconnected");
        let _ = end(&self.outbound, status).await;
    }

    async fn run(
        &mut self,
        mut inbound: Streaming<v1::AgentMessage>,
        mut registered: Registered,
    ) -> Result<std::convert::Infallible, Status> {
        let mut worlds = self.service.worlds.clone();
        worlds.mark_changed();
        let mut configured = None;
        loop {
            tokio::select! {
                message = inbound.next() => match message {
                    Some(message) => {
                        let message = message?;
                        if let Some(Said::Heartbeat(beat)) = &message.kind {
                            self.note_version(beat.resource_version, beat.fell_from).await?;
                        }
                        match message.kind {
                            Some(Said::SigningKeys(keys)) => self.prove(&keys).await?,
                            kind => self.hear(kind)?,
                        }
                    }
                    None => return Err(Status::cancelled("the agent closed the stream")),
                },
                changed = worlds.changed() => {
                    changed.map_err(|_| Status::unavailable("the hub is stopping"))?;
                    let world = worlds.borrow_and_update().as_ref().map(|published| published.world.clone());
                    let Some(world) = world else { continue };
                    self.check_known()?;
                    // None: this world is of before the member was let in, which the facts know already.
                    let config = world.agent_configs.get(&self.cluster).cloned();
                    if let Some(config) = config && configured.as_ref() != Some(&config) {
                        let told = v1::AgentConfig {
                            term: self.service.mandate.term,
                            ..config.to_wire()
                        };
                        self.send(Told::Config(told)).await?;
                        configured = Some(config);
                    }
                }
                trust = self.holder.next() => self.send(Told::Trust(trust?)).await?,
                Some(question) = registered.questions.recv() => self.ask(question).await?,
                () = registered.replaced.cancelled() => {
                    return Err(Status::aborted("another agent of this cluster has connected"));
                }
            }
        }
    }

    /// Whether the facts, which no compiled world is ahead of, still know this stream and its member. A MemberCluster that was
    /// deleted takes its agent's reports along, also if another has its name by now.
    fn check_known(&self) -> Result<(), Status> {
        let epoch = |agent: &crate::facts::AgentReport| agent.epoch >= self.epoch;
        let (known, joined) = self.service.index.read(|facts| {
            let known = facts.agents.get(&self.cluster).is_some_and(epoch);
            (known, facts.joined(&self.cluster).is_some())
        });
        let what = match (known, joined) {
            (true, true) => return Ok(()),
            (true, false) => "is gone or no longer accepted",
            (false, _) => "was deleted, or made anew: run portolanctl join",
        };
        Err(Status::permission_denied(format!(
            "MemberCluster {} {what}",
            self.cluster
        )))
    }

    /// Compares what the member's versions are at with what was known. A restore is owed until it is counted, also to later
    /// streams: by then the versions may be beyond what was known.
    async fn note_version(&self, version: u64, fell_from: u64) -> Result<(), Status> {
        if version == 0 {
            return Ok(());
        }
        let (index, cluster) = (&self.service.index, &self.cluster);
        let known = index.read(|facts| {
            let agent = facts.agents.get(cluster).filter(|agent| agent.epoch == self.epoch)?;
            let pinned = facts.pins.get(cluster)?.history.version;
            // What it fell from is news to a hub alone that was not there.
            let missed = if agent.version_read == 0 { fell_from } else { 0 };
            let known = agent.version_read.max(pinned).max(missed);
            Some((known, agent.owes_restore, agent.restored))
        });
        // What the stream of an agent that was replaced still says is of before.
        let Some((known, owed, restored)) = known else {
            return Ok(());
        };
        if !owed && version >= known {
            return Ok(());
        }
        if !owed {
            tracing::warn!(cluster, version, known, "the member was restored from a backup");
        }
        index.write(|facts| facts.went_back(cluster, version));
        if restored.is_some_and(|at| at.elapsed() < BETWEEN_RESTORES) {
            return Ok(());
        }
        let noted = self.service.pins.note_restore(cluster, version).await;
        noted.map_err(|error| not_pinned(cluster, &error))?;
        index.write(|facts| facts.restore_counted(cluster));
        Ok(())
    }

    async fn send(&self, kind: Told) -> Result<(), Status> {
        send(&self.outbound, "agent", v1::AgentUpdate { kind: Some(kind) }).await
    }

    async fn ask(&mut self, question: Question) -> Result<(), Status> {
        // Whoever asked may have given up.
        self.reviews.retain(|_, answer| !answer.is_closed());
        let id = self.next_review;
        self.next_review += 1;
        self.reviews.insert(id, question.answer);
        self.send(Told::ReviewToken(v1::ReviewToken {
            id,
            token: question.token.expose().clone(),
            audiences: question.audiences,
        }))
        .await
    }

    /// Takes the key that signed the proof. One that cannot be taken is dropped by itself: what the agent says of other
    /// matters counts all the same.
    async fn prove(&mut self, keys: &v1::SigningKeys) -> Result<(), Status> {
        let before = self.proved.replace(Instant::now());
        if before.is_some_and(|before| before.elapsed() < BETWEEN_PROOFS) {
            return Err(Status::resource_exhausted("signing keys are shown too often"));
        }
        let (service, cluster) = (&self.service, &self.cluster);
        let refused = match proven(keys, &self.nonce) {
            Ok((key, published)) => match service.pins.prove(cluster, &key, &published).await {
                Ok(()) => None,
                Err(PinError::Refused(reason)) => Some(reason),
                Err(error) => return Err(not_pinned(cluster, &error)),
            },
            Err(error) => Some(format!(
                "the agent's proof of a token-signing key does not hold: {error}"
            )),
        };
        if let Some(reason) = &refused {
            tracing::warn!(cluster, reason = for_log(reason), "a token-signing key is not taken");
        }
        let reported = service.index.report(cluster, self.epoch, Report::Key(refused));
        reported.map_err(|error| beyond(cluster, &error))
    }

    fn hear(&mut self, said: Option<Said>) -> Result<(), Status> {
        let Some(said) = said else { return Ok(()) };
        let whole = self.pages.take(said).map_err(|error| beyond(&self.cluster, &error))?;
        if whole.is_none() {
            return Ok(());
        }
        let report = match whole {
            Some(Said::Heartbeat(beat)) => Report::Heartbeat(beat, Timestamp::now()),
            Some(Said::Namespaces(delta)) => Report::Namespaces(delta),
            Some(Said::Coverage(delta)) => Report::Coverage(delta),
            Some(Said::Callers(delta)) => Report::Callers(delta),
            Some(Said::MemberToken(token)) => Report::Token(token),
            Some(Said::Allowed(allowed)) => Report::Allowed(allowed),
            Some(Said::CallerExcess(excess)) => Report::Excess(excess),
            Some(Said::Fences(fences)) => Report::Fences(fences),
            Some(Said::NodeNames(names)) => Report::Nodes(names),
            Some(Said::Policies(policies)) => Report::Policies(policies),
            Some(Said::TokenReviewed(reviewed)) => {
                if let Some(answer) = self.reviews.remove(&reviewed.id) {
                    let _ = answer.send(reviewed);
                }
                return Ok(());
            }
            Some(Said::Hello(_)) => return Err(Status::invalid_argument("a second hello")),
            // Taken before; or of a later release of this protocol.
            Some(Said::SigningKeys(_)) | None => return Ok(()),
        };
        let reported = self.service.index.report(&self.cluster, self.epoch, report);
        reported.map_err(|error| beyond(&self.cluster, &error))
    }
}

/// The stream is ended for it: the agent's next one begins with everything it has, so that nothing is half told.
fn beyond(cluster: &str, error: &OutOfBounds) -> Status {
    tracing::warn!(cluster, %error, "a report of the agent is refused, and what was known of its cluster stays");
    let message = format!("the report is refused: {error}");
    match error {
        OutOfBounds::Text { .. } => Status::invalid_argument(message),
        OutOfBounds::TooMany { .. } | OutOfBounds::TooMuch { .. } => Status::resource_exhausted(message),
    }
}
