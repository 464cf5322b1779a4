//! The stream to the hub: connect, say hello, take the configuration, answer reviews, report; again when it breaks.
//!
//! One session at a time. Whatever ends it (the hub, the network, a renewed identity) the next one starts from nothing
//! and tells everything anew, so that no state is shared between sessions. Caller: `app`.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kube::Client;
use portolan_runtime::{Backoff, Chain, ReadyHandle};
use portolan_wire::client::{CaNews, LinkError, OPEN_TIMEOUT};
use portolan_wire::protocol::{AGENT_UPDATE_MAX_BYTES, Mismatch, REPORT_PAGES, Spoken, welcomed};
use portolan_wire::v1 as wire;
use portolan_wire::v1::agent_control_client::AgentControlClient;
use portolan_wire::v1::agent_message::Kind as Said;
use portolan_wire::v1::agent_update::Kind as Heard;
use thiserror::Error;
use tokio::sync::{Notify, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::fence::Orders;
use crate::join::identity::AgentIdentity;
use crate::lead::Holder;
use crate::member;
use crate::metrics::Metrics;
use crate::mint::Wanted;
use crate::prove::Prover;
use crate::report::{self, Ended, Hub, Outbox, Subjects, say};
use crate::review::{refused, review};
use crate::settings::{self, Settings, SettingsError};
use crate::terms::{Superseded, Terms};

/// Messages that wait for the network. When full, reports wait and gather: nothing is lost, as they are differences.
const OUTBOX: usize = 64;
/// Reviews under way; more are refused at once, so that a flood cannot pile up on the member's API server.
const MAX_REVIEWS: usize = 64;
/// A hello waits so long for fresh facts of the member: the hub must hear from us also while its API server hangs.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait between two tries.
const RECONNECT_MAX: Duration = Duration::from_secs(15);

/// Why a session ended.
#[derive(Debug, Error)]
enum SessionError {
    #[error("no way to the hub")]
    Link(#[from] LinkError),
    #[error("the hub did not open the stream within {} s", OPEN_TIMEOUT.as_secs())]
    OpenTimeout,
    #[error("the hub answers {:?}: {}", .0.code(), .0.message())]
    Hub(Box<Status>),
    #[error("the hub closed the stream")]
    Closed,
    #[error(transparent)]
    Protocol(#[from] Mismatch),
    #[error(transparent)]
    Superseded(#[from] Superseded),
    #[error("the identity was renewed")]
    Renewed,
}

impl SessionError {
    /// The hub answered, and not to us.
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Hub(status) if matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied))
    }

    /// Another agent of the cluster has connected since.
    fn is_replaced(&self) -> bool {
        matches!(self, Self::Hub(status) if status.code() == Code::Aborted)
    }
}

/// What sessions are made of.
pub(crate) struct Stream {
    pub(crate) client: Client,
    pub(crate) holder: Holder,
    pub(crate) prover: Prover,
    /// None only before the first join, and no stream begins before that.
    pub(crate) identity: watch::Receiver<Option<Arc<AgentIdentity>>>,
    pub(crate) subjects: Subjects,
    pub(crate) settings: watch::Sender<Option<Arc<Settings>>>,
    /// Who gets a token.
    pub(crate) routers: watch::Sender<Wanted>,
    /// Which namespaces are to be closed against writes of earlier epochs.
    pub(crate) fences: watch::Sender<Orders>,
    /// Told when the hub would not take the identity: `join` looks for another one then.
    pub(crate) refused: Arc<Notify>,
    /// What the hub says of its CAs is for `join`, too.
    pub(crate) news: Arc<CaNews>,
    /// The member's facts as they were last read: a hello must be possible while its API server is down.
    pub(crate) facts: wire::MemberFacts,
    /// Which hubs are listened to.
    pub(crate) terms: Terms,
    pub(crate) ready: ReadyHandle,
    pub(crate) metrics: Metrics,
}

/// What the hub has said to begin a stream with. Watches: the tasks of the session wait for it.
struct Greeting {
    nonce: watch::Sender<Option<String>>,
    welcome: watch::Sender<Option<wire::Welcome>>,
}

/// Reports from the hub's Welcome on, which is its first message and tells what the hub takes.
async fn report(subjects: Subjects, outbox: Outbox, mut welcome: watch::Receiver<Option<wire::Welcome>>) -> Ended {
    let takes_pages = match welcome.wait_for(Option::is_some).await {
        Ok(welcome) => {
            let welcome = welcome.as_ref().into_iter();
            welcome
                .flat_map(|welcome| &welcome.capabilities)
                .any(|word| word == REPORT_PAGES)
        }
        Err(_) => return Ended,
    };
    report::run(subjects, Hub { outbox, takes_pages }).await
}

impl Stream {
    /// Sessions, one after the other, until cancelled.
    pub(crate) async fn run(mut self) {
        let mut backoff = Backoff::new(Duration::from_millis(200), RECONNECT_MAX);
        loop {
            let Err(error) = self.session().await;
            // Who the routers are is the hub's to say: what is not told any more takes no token back.
            self.routers.send_replace(None);
            self.metrics.hub_connected(false);
            if let SessionError::Renewed = error {
                tracing::info!("reconnecting to the hub with the renewed identity");
                continue;
            }
            self.ready.not_ready("a stream to the hub");
            tracing::warn!(error = %Chain(&error), "no stream to the hub");
            if error.is_refusal() {
                self.refused.notify_one();
            }
            if error.is_replaced() {
                // Two that take turns would each end the other's stream.
                self.holder.is_this().await;
            }
            backoff.sleep().await;
        }
    }

    async fn session(&mut self) -> Result<std::convert::Infallible, SessionError> {
        let identity = self.identity.borrow_and_update().clone();
        let identity = identity.expect("a stream begins after the first join");
        self.metrics.identity_until(identity.certificate.not_after());
        self.terms.load(&identity.origin.bootstrap).await;
        let link = identity.link()?;
        let channel = link.channel();
        let (outbox, queue) = mpsc::channel(OUTBOX);
        let hello = self.hello(link.trust().fingerprint()).await;
        let _ = say(&outbox, Said::Hello(hello)).await;
        let mut client = AgentControlClient::new(channel).max_decoding_message_size(AGENT_UPDATE_MAX_BYTES);
        let opened = tokio::time::timeout(OPEN_TIMEOUT, client.connect(ReceiverStream::new(queue))).await;
        let updates = opened
            .map_err(|_| SessionError::OpenTimeout)?
            .map_err(ended_by)?
            .into_inner();
        tracing::info!(
            hub = identity.origin.hub,
            cluster = identity.cluster,
            "stream to the hub is open"
        );
        self.metrics.hub_connected(true);
        let said = Greeting {
            nonce: watch::Sender::new(None),
            welcome: watch::Sender::new(None),
        };
        let (subjects, mut renewed) = (self.subjects.clone(), self.identity.clone());
        let nonce = said.nonce.subscribe();
        tokio::select! {
            ended = self.listen(updates, &outbox, &said) => ended,
            // Boxed: a session is large with them.
            _ = Box::pin(report(subjects, outbox.clone(), said.welcome.subscribe())) => Err(SessionError::Closed),
            Ok(()) = renewed.changed() => Err(SessionError::Renewed),
            Err(_) = Box::pin(self.prover.run(nonce, &outbox)) => Err(SessionError::Closed),
        }
    }

    /// The member's facts as of now if it answers, else as they were.
    async fn hello(&mut self, trusts: String) -> wire::AgentHello {
        let fresh = tokio::time::timeout(HELLO_TIMEOUT, member::facts(&self.client)).await;
        if let Ok(Ok(facts)) = fresh {
            self.facts = facts;
        } else {
            tracing::warn!("the member's API server does not answer: greeting the hub with older facts of it");
        }
        wire::AgentHello {
            protocol: Spoken::OURS.newest(),
            oldest_protocol: Spoken::OURS.oldest(),
            capabilities: Vec::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cluster_uid: self.facts.cluster_uid.clone(),
            kubernetes_version: self.facts.kubernetes_version.clone(),
            jwks: self.facts.jwks.clone(),
            trusts,
        }
    }

    async fn listen(
        &self,
        mut updates: Streaming<wire::AgentUpdate>,
        outbox: &Outbox,
        said: &Greeting,
    ) -> Result<std::convert::Infallible, SessionError> {
        let mut reviews = FuturesUnordered::new();
        loop {
            tokio::select! {
                update = updates.message() => match update.map_err(ended_by)?.ok_or(SessionError::Closed)?.kind {
                    Some(Heard::Config(config)) => {
                        self.terms.hear(config.term).await?;
                        self.configure(&config);
                    }
                    Some(Heard::ReviewToken(request)) if reviews.len() < MAX_REVIEWS => {
                        self.metrics.reviewed();
                        reviews.push(review(self.client.clone(), request));
                    }
                    Some(Heard::ReviewToken(request)) => {
                        let answer = refused(request.id, "too many token reviews under way".to_owned());
                        say(outbox, Said::TokenReviewed(answer)).await.map_err(|_| SessionError::Closed)?;
                    }
                    Some(Heard::Welcome(welcome)) => {
                        welcomed(welcome.protocol)?;
                        self.terms.hear(welcome.term).await?;
                        said.welcome.send_replace(Some(welcome));
                    }
                    Some(Heard::KeyChallenge(challenge)) => drop(said.nonce.send_replace(Some(challenge.nonce))),
                    Some(Heard::Trust(trust)) => self.news.put(trust),
                    // A newer hub may say what this agent does not know.
                    None => tracing::debug!("the hub sent a message of an unknown kind"),
                },
                Some(answer) = reviews.next() => {
                    say(outbox, Said::TokenReviewed(answer)).await.map_err(|_| SessionError::Closed)?;
                }
            }
        }
    }

    /// Checks all before any of it counts. Who gets a token is told at once, and kept apart: routers come and go more often
    /// than the rest changes.
    fn read(&self, config: &wire::AgentConfig) -> Result<Settings, SettingsError> {
        let settings = Settings::try_from(config)?;
        let fences = settings::fences(config)?;
        if let Some(routers) = settings::routers(config)? {
            self.routers.send_if_modified(|current| {
                let changed = current.as_deref() != Some(&routers);
                if changed {
                    *current = Some(Arc::new(routers));
                }
                changed
            });
        }
        self.fences.send_if_modified(|current| {
            let changed = *current != fences;
            *current = fences;
            changed
        });
        Ok(settings)
    }

    fn configure(&self, config: &wire::AgentConfig) {
        match self.read(config) {
            Ok(settings) => {
                let buckets = settings.labelling.bucketing.buckets();
                let changed = self.settings.send_if_modified(|current| {
                    let changed = current.as_deref() != Some(&settings);
                    if changed {
                        *current = Some(Arc::new(settings));
                    }
                    changed
                });
                if changed {
                    tracing::info!(
                        kinds = config.labelled_kinds.len(),
                        caller_selectors = config.caller_selectors.len(),
                        buckets,
                        "configuration of the hub applied"
                    );
                }
                self.ready.ready();
            }
            Err(error) => {
                self.metrics.config_refused();
                tracing::error!(%error, "configuration of the hub refused, the last good one stays");
            }
        }
    }
}

fn ended_by(status: Status) -> SessionError {
    SessionError::Hub(Box::new(status))
}
