//! The last gate before the network: nothing leaves while this hub may have slept and does not know whether it leads still.
//! What it has decided before it slept waits here until it is told so, or ends with it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::Stream;
use tokio::sync::mpsc;
use tokio::time::{Sleep, sleep};
use tonic::Status;

use crate::lead::Pulse;

/// Between two looks whether it is known again.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What goes to one peer.
#[derive(Debug)]
pub(crate) struct Mouth<T> {
    queue: mpsc::Receiver<Result<T, Status>>,
    pulse: Pulse,
    waits: Option<Pin<Box<Sleep>>>,
}

impl<T> Mouth<T> {
    pub(super) fn new(queue: mpsc::Receiver<Result<T, Status>>, pulse: Pulse) -> Self {
        Self {
            queue,
            pulse,
            waits: None,
        }
    }
}

impl<T> Stream for Mouth<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while !self.pulse.is_fresh() {
            let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(LOOK_EVERY)));
            ready!(waits.as_mut().poll(cx));
            self.waits = None;
        }
        self.queue.poll_recv(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt as _, poll};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_decided_before_a_sleep_is_not_told_until_the_hub_knows_that_it_leads() {
        let (queue, stream) = mpsc::channel(4);
        let pulse = Pulse::stopped(crate::lead::FRESH_FOR);
        let mut mouth = Mouth::new(stream, pulse.clone());
        queue.send(Ok(1)).await.unwrap();
        for _ in 0..3 {
            assert!(poll!(mouth.next()).is_pending());
            tokio::time::sleep(LOOK_EVERY).await;
        }
        pulse.beat(tokio::time::Instant::now());
        assert_eq!(mouth.next().await.unwrap().unwrap(), 1);
        drop(queue);
        assert!(mouth.next().await.is_none());
    }
}
