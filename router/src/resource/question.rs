//! Questions to the hub over the router's stream, many at a time.
//!
//! Whoever asks holds [`Questions`]; `subscribe` carries them, by a [`Carrier`] while its stream is up. Without one, and after
//! the time that the asker allows, the hub is away. Callers: `access` asks who may use a member, `fanout` when members
//! answered last.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

/// Questions waiting to be written to the stream. Beyond it the hub is slower than people ask: fail, do not queue.
const QUEUE: usize = 256;

/// The hub could not be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HubAway;

/// A question on its way, with where to send the answer.
#[derive(Debug)]
pub(crate) struct Asked<Q, A> {
    pub(crate) question: Q,
    pub(crate) answer: oneshot::Sender<A>,
}

/// Where questions go.
type Way<Q, A> = mpsc::Sender<Asked<Q, A>>;

/// The way to the hub for questions of one kind, if there is one. Clones share it.
#[derive(Debug)]
pub(crate) struct Questions<Q, A> {
    // A mutex: held to clone or replace a sender.
    stream: Arc<Mutex<Option<Way<Q, A>>>>,
}

/// Held by the stream while it is up; dropped, questions fail at once again.
#[derive(Debug)]
pub(crate) struct Carrier<Q, A> {
    asked_by: Questions<Q, A>,
    pub(crate) questions: mpsc::Receiver<Asked<Q, A>>,
}

impl<Q, A> Questions<Q, A> {
    /// Questions go to this stream from now on.
    pub(crate) fn carry(&self) -> Carrier<Q, A> {
        let (sender, questions) = mpsc::channel(QUEUE);
        *self.stream.lock() = Some(sender);
        Carrier {
            asked_by: self.clone(),
            questions,
        }
    }

    pub(crate) async fn ask(&self, question: Q, within: Duration) -> Result<A, HubAway> {
        let stream = self.stream.lock().clone().ok_or(HubAway)?;
        let (answer, answered) = oneshot::channel();
        stream.try_send(Asked { question, answer }).map_err(|_| HubAway)?;
        match tokio::time::timeout(within, answered).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) => Err(HubAway),
        }
    }
}

impl<Q, A> Clone for Questions<Q, A> {
    fn clone(&self) -> Self {
        Self {
            stream: self.stream.clone(),
        }
    }
}

impl<Q, A> Default for Questions<Q, A> {
    fn default() -> Self {
        Self { stream: Arc::default() }
    }
}

impl<Q, A> Drop for Carrier<Q, A> {
    fn drop(&mut self) {
        // There is one stream at a time: `subscribe` opens the next after this one is gone.
        *self.asked_by.stream.lock() = None;
    }
}
