//! Questions to the hub over the router's stream, many at a time: who may use the explicit view of a member. Callers:
//! `access` asks; `subscribe` carries, by installing itself while its stream is up.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

/// Questions waiting to be written to the stream. Beyond it the hub is slower than people ask: fail, do not queue.
const QUEUE: usize = 256;
/// For one answer; a person waits for it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Who wants to use which member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ProxyQuestion {
    pub(crate) user: String,
    pub(crate) groups: Vec<String>,
    pub(crate) cluster: String,
}

/// The hub's word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) allowed: bool,
    pub(crate) reason: String,
}

/// The hub could not be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HubAway;

/// A question on its way, with where to send the answer.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) question: ProxyQuestion,
    pub(crate) answer: oneshot::Sender<Decision>,
}

/// The way to the hub, if there is one. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct HubReviews {
    // A mutex: held to clone or replace a sender.
    stream: Arc<Mutex<Option<mpsc::Sender<Asked>>>>,
}

/// Held by the stream while it is up; dropped, questions fail at once again.
#[derive(Debug)]
pub(crate) struct Carrier {
    reviews: HubReviews,
    pub(crate) questions: mpsc::Receiver<Asked>,
}

impl HubReviews {
    /// Questions go to this stream from now on.
    pub(crate) fn carry(&self) -> Carrier {
        let (sender, questions) = mpsc::channel(QUEUE);
        *self.stream.lock() = Some(sender);
        Carrier {
            reviews: self.clone(),
            questions,
        }
    }

    pub(super) async fn ask(&self, question: ProxyQuestion) -> Result<Decision, HubAway> {
        let stream = self.stream.lock().clone().ok_or(HubAway)?;
        let (answer, answered) = oneshot::channel();
        stream.try_send(Asked { question, answer }).map_err(|_| HubAway)?;
        match tokio::time::timeout(TIMEOUT, answered).await {
            Ok(Ok(decision)) => Ok(decision),
            Ok(Err(_)) | Err(_) => Err(HubAway),
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        // There is one stream at a time: `subscribe` opens the next after this one is gone.
        *self.reviews.stream.lock() = None;
    }
}
