//! Asking a member's agent to review a token of that member: a question over its stream, an answer in time.
//!
//! Also the register of agent sessions: a second stream of a cluster replaces the first. Callers: `enroll` asks, agent
//! sessions answer.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use portolan_runtime::Secret;
use portolan_wire::v1;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// An agent that takes longer does not answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Questions that wait for one agent; more are refused at once.
const WAITING: usize = 64;

#[derive(Debug, Error)]
pub(crate) enum ReviewError {
    #[error("the agent of cluster {0} is not connected to the hub")]
    NoAgent(String),
    #[error("the agent of cluster {0} has too many reviews under way")]
    Busy(String),
    #[error("the agent of cluster {0} did not answer in time")]
    Slow(String),
}

/// One question.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) token: Secret,
    pub(super) audiences: Vec<String>,
    pub(super) answer: oneshot::Sender<v1::TokenReviewed>,
}

/// What a session gets when it registers.
pub(super) struct Registered {
    pub(super) questions: mpsc::Receiver<Question>,
    /// Cancelled when a later stream of the cluster takes over.
    pub(super) replaced: CancellationToken,
}

/// The connected agents.
#[derive(Debug, Default)]
pub(crate) struct AgentSessions {
    // A mutex: held for one map operation.
    sessions: Mutex<BTreeMap<String, SessionHandle>>,
}

/// The session of one agent.
#[derive(Debug)]
struct SessionHandle {
    epoch: u64,
    questions: mpsc::Sender<Question>,
    replaced: CancellationToken,
}

impl AgentSessions {
    pub(super) fn register(&self, cluster: &str, epoch: u64) -> Registered {
        let (sender, questions) = mpsc::channel(WAITING);
        let replaced = CancellationToken::new();
        let session = SessionHandle {
            epoch,
            questions: sender,
            replaced: replaced.clone(),
        };
        if let Some(earlier) = self.sessions.lock().insert(cluster.to_owned(), session) {
            earlier.replaced.cancel();
        }
        Registered { questions, replaced }
    }

    pub(super) fn unregister(&self, cluster: &str, epoch: u64) {
        let mut sessions = self.sessions.lock();
        if sessions.get(cluster).is_some_and(|session| session.epoch == epoch) {
            sessions.remove(cluster);
        }
    }

    /// Has the agent of `cluster` review `token`.
    pub(crate) async fn review(
        &self,
        cluster: &str,
        token: Secret,
        audiences: Vec<String>,
    ) -> Result<v1::TokenReviewed, ReviewError> {
        let no_agent = || ReviewError::NoAgent(cluster.to_owned());
        let questions = self
            .sessions
            .lock()
            .get(cluster)
            .map(|session| session.questions.clone())
            .ok_or_else(no_agent)?;
        let (answer, answered) = oneshot::channel();
        let question = Question {
            token,
            audiences,
            answer,
        };
        questions
            .try_send(question)
            .map_err(|_| ReviewError::Busy(cluster.to_owned()))?;
        match tokio::time::timeout(TIMEOUT, answered).await {
            Ok(Ok(reviewed)) => Ok(reviewed),
            Ok(Err(_)) => Err(no_agent()),
            Err(_) => Err(ReviewError::Slow(cluster.to_owned())),
        }
    }
}
