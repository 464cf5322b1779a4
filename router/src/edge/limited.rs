//! An answer that is over at its deadline, whether the client reads it or not.
//!
//! hyper asks a body for more only when the client's window has room. Whoever opens many lists and reads none of them
//! would keep permits, places in bulkheads and members' streams for ever, and shut everybody else out. So body and places
//! are in a cell that a timer empties. Only for what ends by itself: watches cost nothing of this. Caller: `answer`.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::Frame;
use parking_lot::Mutex;
use portolan_runtime::Tasks;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::passing::Passing;
use crate::resource::upstream::BodyError;

type Polled = Option<Result<Frame<Bytes>, BodyError>>;

/// What is left of the answer. Dropped, it stops its timer.
pub(crate) struct Limited {
    // A mutex: whoever sends the answer polls it, and the timer empties it once.
    cell: Arc<Mutex<Cell>>,
    timer: AbortHandle,
}

struct Cell {
    /// `None` after the deadline.
    passing: Option<Passing>,
    /// Read before the head was sent.
    first: Polled,
    /// Who waits for more.
    waker: Option<Waker>,
}

impl Limited {
    pub(super) fn new(passing: Passing, first: Polled, deadline: Instant, tasks: &Tasks) -> Self {
        let cell = Arc::new(Mutex::new(Cell {
            passing: Some(passing),
            first,
            waker: None,
        }));
        let limited = cell.clone();
        // Not cancelled by a drain: answers go on meanwhile, and the timer ends with its answer.
        let timer = tasks.spawn("answer-deadline", async move {
            tokio::time::sleep_until(deadline).await;
            let (passing, waker) = {
                let mut cell = limited.lock();
                cell.first = None;
                (cell.passing.take(), cell.waker.take())
            };
            if let Some(passing) = passing {
                passing.cut();
            }
            if let Some(waker) = waker {
                waker.wake();
            }
        });
        Self { cell, timer }
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Polled> {
        let mut cell = self.cell.lock();
        if let Some(first) = cell.first.take() {
            return Poll::Ready(Some(first));
        }
        let Some(passing) = &mut cell.passing else {
            return Poll::Ready(Some(Err(BodyError::Overdue)));
        };
        let polled = passing.poll_frame(cx);
        if polled.is_pending() {
            cell.waker = Some(cx.waker().clone());
        }
        polled
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let cell = self.cell.lock();
        cell.first.is_none() && cell.passing.as_ref().is_some_and(Passing::is_end_stream)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        self.timer.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::BodyExt as _;

    use super::Passing;
    use crate::edge::Answer;
    use crate::edge::harness::{Bounds, OTHER, Router};
    use crate::resource::upstream::scripted::{Backend, head, script, until_reset};

    const PATIENCE: Duration = Duration::from_secs(20);
    const PODS: &str = "/clusters/east/api/v1/namespaces/ns/pods";

    #[test]
    fn a_watch_pays_nothing_for_it() {
        assert_eq!(size_of::<Answer>(), size_of::<Passing>());
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_keeps_nothing_past_the_deadline() {
        /// More than the client's window, the sockets' and the router's buffers hold.
        const LARGE: usize = 32 << 20;
        let bounds = Bounds {
            max_requests: 1,
            request_timeout: Duration::from_secs(3),
            ..Bounds::default()
        };
        let backend = Backend::start(100, {
            script(|request, mut respond| async move {
                let size = if request.uri().path().ends_with("large") {
                    LARGE
                } else {
                    2
                };
                let mut body = respond.send_response(head(200), false).unwrap();
                body.send_data(vec![b'x'; size].into(), true).unwrap();
                until_reset(&mut body).await;
            })
        })
        .await;
        let router = Router::start([backend.target("east")], bounds).await;
        let unread = router.get(&format!("{PODS}/large")).await;
        assert_eq!(unread.status(), 200);
        assert_eq!(router.get_as(OTHER, PODS).await.status(), 429, "it has the one permit");
        let again = async {
            while router.get_as(OTHER, PODS).await.status() != 200 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            while router
                .routing
                .load()
                .upstreams
                .pools()
                .iter()
                .any(|(_, unary, _)| unary.streams > 0)
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, again)
            .await
            .expect("its permits and the member's stream are free");
        assert!(unread.into_body().collect().await.is_err(), "half of it is not whole");
    }
}
