//! The hub's stream, as one router lives it: Hello with what it still holds, transactions in, acks and reports out,
//! reconnecting for ever.
//!
//! A transaction is checked whole, swapped in at once, answered, then written to the state file; written before it is
//! acknowledged unless it is known only to widen. What cannot be written is in force, and the hub is told so. While the hub is away the last state is served on, also after a restart.
//! Not here: what a resource means (`snapshot::build`). Caller: `app`.

mod held;
mod hub_state;
mod introduction;
mod metrics;
mod narrows;
mod policies;
mod replicas;
mod session;
mod state_file;
mod term;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use portolan_runtime::{Backoff, ReadyHandle, Tasks};
use portolan_wire::client::{CaNews, HubLink};
use portolan_wire::protocol::Mismatch;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

pub(crate) use self::hub_state::HubState;
pub(crate) use self::metrics::HubMetrics;
use self::session::Session;
pub(crate) use self::state_file::StateFileHealth;
use crate::resource::access::HubReviews;

/// A CallerView with ten thousand namespaces is under one megabyte.
const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// Ceiling between two tries: a hub that is back is found within seconds, and a fleet does not hammer it.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Why a stream ended.
#[derive(Debug, Error)]
enum SessionError {
    #[error("the hub answers {:?}: {}", .0.code(), .0.message())]
    Status(Box<tonic::Status>),
    #[error("the hub closed the stream")]
    Closed,
    #[error(transparent)]
    Protocol(#[from] Mismatch),
    #[error("the hub did not {0} in time")]
    Slow(&'static str),
    #[error("its term is {theirs}, and this router has heard a hub of term {highest}: it is not the hub any more")]
    Superseded { theirs: u64, highest: u64 },
    #[error("the identity was renewed, or other CAs are trusted")]
    Renewed,
    #[error("this router stops")]
    Stopped {
        /// The hub knows that every write is answered.
        ended: bool,
    },
}

impl SessionError {
    /// What the hub says if it takes this router for nobody, or for one that was forgotten.
    fn refusal(&self) -> Option<&str> {
        match self {
            Self::Status(status) if status.code() == tonic::Code::PermissionDenied => Some(status.message()),
            _ => None,
        }
    }
}

/// The client. One per process; the only one who swaps snapshots.
pub(crate) struct Subscriber {
    link: HubLink,
    state: HubState,
    reviews: HubReviews,
    metrics: HubMetrics,
    ready: ReadyHandle,
    /// What the hub says of its CAs is for `enroll`.
    news: Arc<CaNews>,
}

impl Subscriber {
    pub(crate) fn new(
        link: HubLink,
        state: HubState,
        reviews: HubReviews,
        metrics: HubMetrics,
        ready: ReadyHandle,
    ) -> Self {
        Self {
            link,
            state,
            reviews,
            metrics,
            ready,
            news: Arc::default(),
        }
    }

    /// Tells there what the hub says of its CAs.
    pub(crate) fn telling(mut self, news: Arc<CaNews>) -> Self {
        self.news = news;
        self
    }

    /// Serves what the state file kept, before anything is asked of the hub; false if it kept nothing. Blocking.
    pub(crate) fn load_last_good(&mut self) -> bool {
        let serving = self.state.load();
        if serving {
            self.ready.ready();
        } else {
            self.ready.not_ready("the first snapshot of the hub");
        }
        serving
    }

    /// Follows the hub until cancelled. Waits for an identity first.
    pub(crate) async fn run(mut self, tasks: Tasks) -> anyhow::Result<()> {
        let stop = tasks.token();
        let ended = self.follow(&tasks, &stop).await;
        self.state.lost_hub();
        self.state.save_if_changed().await;
        if ended {
            self.state.leave_ended().await;
        }
        Ok(())
    }

    /// Until it stops; true if the hub knows then that every write is answered.
    async fn follow(&mut self, tasks: &Tasks, stop: &CancellationToken) -> bool {
        let mut backoff = Backoff::new(Duration::from_millis(200), MAX_WAIT);
        let mut identity = self.link.identity().subscribe();
        self.state.lost_hub();
        self.metrics.disconnected(self.state.heard());
        loop {
            // The sender lives in the link, so this cannot fail.
            let known = self.without_hub(async { drop(identity.wait_for(|generation| *generation > 0).await) });
            if stop.run_until_cancelled(known).await.is_none() {
                return false;
            }
            let Err(error) = self.session(tasks, stop).await;
            if let SessionError::Stopped { ended } = error {
                return ended;
            }
            self.state.lost_hub();
            self.metrics.disconnected(self.state.heard());
            if matches!(error, SessionError::Renewed) {
                tracing::info!("reconnecting to the hub with the renewed identity or trust");
                continue;
            }
            if let Some(refusal) = error.refusal() {
                // Its tokens are taken back, or about to be: clients are better off at another router.
                self.ready
                    .not_ready(format!("the hub, which refuses this router: {refusal}"));
            }
            let serving = self.state.generation();
            tracing::warn!(hub = self.link.address(), %error, serving, "the hub's stream ended, serving the last state");
            if stop
                .run_until_cancelled(self.without_hub(backoff.sleep()))
                .await
                .is_none()
            {
                return false;
            }
        }
    }

    /// Waits, and does what is due without a hub.
    async fn without_hub(&mut self, waited_for: impl Future<Output = ()>) {
        let mut waited_for = pin!(waited_for);
        loop {
            tokio::select! {
                () = &mut waited_for => return,
                () = self.state.save_due() => self.state.save_if_changed().await,
                () = self.state.coverage_ages() => self.state.age_coverage(),
            }
        }
    }

    async fn session(&mut self, tasks: &Tasks, stop: &CancellationToken) -> Result<Infallible, SessionError> {
        let open = Session::open(&self.link, &self.state, self.news.clone());
        let open = stop.run_until_cancelled(open).await;
        let mut session = open.ok_or(SessionError::Stopped { ended: false })??;
        self.metrics.connected();
        tracing::info!(hub = self.link.address(), "connected to the hub");
        let carrier = self.reviews.carry();
        let run = session.run(&mut self.state, carrier, &self.metrics, &self.ready);
        let ended = stop.run_until_cancelled(run).await;
        let ended = match ended {
            Some(ended) => ended,
            // Clients were not waited for: something may still be sent.
            None if tasks.has_failed() => Err(SessionError::Stopped { ended: false }),
            None => Err(session.end(&mut self.state).await),
        };
        self.state.routing().alone.lost();
        ended
    }
}

impl From<tonic::Status> for SessionError {
    fn from(status: tonic::Status) -> Self {
        Self::Status(Box::new(status))
    }
}

#[cfg(test)]
pub(crate) mod scripted;
#[cfg(test)]
mod tests;
