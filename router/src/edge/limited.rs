//! An answer that is over at its deadline, whether the client reads it or not; of a list or a watch, also if nobody reads it.
//!
//! hyper asks a body for more only when the client's window has room. Whoever opens many lists and reads none of them
//! would keep permits, seats at members and members' streams for ever, and shut everybody else out. So body and places
//! are in a cell that a timer empties. Caller: `answer`.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use parking_lot::Mutex;
use portolan_runtime::Tasks;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::passing::Passing;
use crate::resource::upstream::BodyError;

/// A client takes something of a list, or of the state that a watch begins with, at least this often. A member may keep a place of
/// its own for it until then, and refuses requests that wait for one after 15 s.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// The same of a watch that has had nothing for its client for [`QUIET`]: its state is read, and no place is kept for it.
const EVENTS_READ_WITHIN: Duration = Duration::from_mins(1);
/// Within the state of a watch a member does not pause for so long, however busy it is.
const QUIET: Duration = Duration::from_secs(5);

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
    /// Since when what was handed over is not taken, as far as is known.
    unread_since: Option<Instant>,
    /// Since when there is nothing to hand over.
    empty_since: Option<Instant>,
    /// There was nothing for [`QUIET`], once.
    was_quiet: bool,
}

impl Cell {
    /// When it is cut, as things stand: at its deadline, or because nobody reads it. `None`: it was cut.
    fn ends(&self, deadline: Option<Instant>) -> Option<Instant> {
        let is_collection = self.passing.as_ref()?.is_collection();
        let unread = self.unread_since.filter(|_| is_collection);
        // While it waits for its member it is looked at again when it would be due if it had just been handed something.
        let within = if self.was_quiet {
            EVENTS_READ_WITHIN
        } else {
            READ_WITHIN
        };
        let due = unread.unwrap_or_else(Instant::now) + within;
        Some(match deadline {
            Some(deadline) if is_collection => due.min(deadline),
            Some(deadline) => deadline,
            None => due,
        })
    }
}

impl Limited {
    pub(super) fn new(passing: Passing, first: Polled, deadline: Option<Instant>, tasks: &Tasks) -> Self {
        let cell = Arc::new(Mutex::new(Cell {
            passing: Some(passing),
            first,
            waker: None,
            unread_since: Some(Instant::now()),
            empty_since: None,
            was_quiet: false,
        }));
        let limited = cell.clone();
        // Not cancelled by a drain: answers go on meanwhile, and the timer ends with its answer.
        let timer = tasks.spawn("answer-deadline", async move {
            let due = Instant::now() + READ_WITHIN;
            let mut look = deadline.map_or(due, |deadline| deadline.min(due));
            let (passing, waker) = loop {
                tokio::time::sleep_until(look).await;
                let mut cell = limited.lock();
                match cell.ends(deadline) {
                    Some(ends) if ends > Instant::now() => look = ends,
                    Some(_) => {
                        cell.first = None;
                        break (cell.passing.take(), cell.waker.take());
                    }
                    None => return,
                }
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
        cell.unread_since = None;
        if let Some(first) = cell.first.take() {
            cell.unread_since = Some(Instant::now());
            return Poll::Ready(Some(first));
        }
        let Some(passing) = &mut cell.passing else {
            return Poll::Ready(Some(Err(BodyError::Overdue)));
        };
        let is_watch = passing.is_watch();
        let polled = passing.poll_frame(cx);
        if polled.is_pending() {
            cell.empty_since.get_or_insert_with(Instant::now);
            // Of the same task as a rule, whose waker is not cloned for each frame.
            match &mut cell.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
        } else {
            let now = Instant::now();
            let empty_since = cell.empty_since.take();
            cell.was_quiet |= is_watch && empty_since.is_some_and(|since| now - since >= QUIET);
            cell.unread_since = Some(now);
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
    use std::sync::Arc;
    use std::time::Duration;

    use http_body_util::BodyExt as _;
    use tokio::sync::Notify;

    use super::{Passing, QUIET};
    use crate::edge::Answer;
    use crate::edge::harness::{Bounds, OTHER, Router};
    use crate::resource::upstream::scripted::{Backend, head, script, until_reset};

    const PATIENCE: Duration = Duration::from_secs(20);
    const PODS: &str = "/clusters/east/api/v1/namespaces/ns/pods";

    #[test]
    fn an_answer_is_small() {
        assert_eq!(size_of::<Answer>(), size_of::<Passing>());
    }

    /// More than the client's window, the sockets' and the router's buffers hold.
    const LARGE: usize = 32 << 20;

    /// A member whose answers to what ends in `large` are, and a client's bounds.
    async fn large(bounds: Bounds) -> (Backend, Router) {
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
        (backend, router)
    }

    /// Waits until no request is under way at the member.
    async fn streams_end(router: &Router) {
        let ended = async {
            let under_way = || {
                router
                    .routing
                    .load()
                    .upstreams
                    .pools()
                    .iter()
                    .any(|(_, unary, watch)| unary.streams + watch.streams > 0)
            };
            while under_way() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ended)
            .await
            .expect("the member's stream is free");
    }

    #[tokio::test]
    async fn a_list_that_nobody_reads_is_cut_long_before_its_deadline() {
        let (_backend, router) = large(Bounds {
            request_timeout: Duration::from_mins(5),
            ..Bounds::default()
        })
        .await;
        let list = router.get("/clusters/east/api/v1/namespaces/ns/large").await;
        let object = router.get(&format!("{PODS}/large")).await;
        assert_eq!((list.status().as_u16(), object.status().as_u16()), (200, 200));
        let one_left = async {
            while router.routing.load().upstreams.pools()[0].1.streams > 1 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, one_left).await.expect("the list is cut");
        assert!(list.into_body().collect().await.is_err(), "half of it is not whole");
        assert_eq!(object.into_body().collect().await.unwrap().to_bytes().len(), LARGE);
        streams_end(&router).await;
    }

    #[tokio::test]
    async fn a_watch_whose_state_is_read_waits_longer_for_its_reader() {
        let began = Arc::new(Notify::new());
        let begins = began.clone();
        let backend = Backend::start(100, {
            script(move |request, mut respond| {
                let begins = begins.clone();
                async move {
                    let mut body = respond.send_response(head(200), false).unwrap();
                    if request.uri().path().contains("/quiet/") {
                        body.send_data("{}\n".into(), false).unwrap();
                        tokio::time::sleep(QUIET + Duration::from_millis(100)).await;
                    }
                    body.send_data(vec![b'x'; LARGE].into(), true).unwrap();
                    begins.notify_one();
                    until_reset(&mut body).await;
                }
            })
        })
        .await;
        let router = Router::start([backend.target("east")], Bounds::default()).await;
        let watch = |namespace: &str| {
            let path = format!("/clusters/east/api/v1/namespaces/{namespace}/pods?watch=true");
            let router = &router;
            async move {
                let get = router.get(&path);
                tokio::time::timeout(PATIENCE, get).await.unwrap().into_body()
            }
        };
        let mut quiet = watch("quiet").await;
        let first = quiet.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(&first[..], b"{}\n");
        began.notified().await;
        let state = watch("ns").await;
        let one_left = async {
            while router.routing.load().upstreams.pools()[0].2.streams > 1 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, one_left)
            .await
            .expect("the state is cut");
        assert!(state.collect().await.is_err(), "half of it is not whole");
        assert_eq!(quiet.collect().await.unwrap().to_bytes().len(), LARGE);
        streams_end(&router).await;
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_keeps_nothing_past_the_deadline() {
        let (_backend, router) = large(Bounds {
            max_requests: 1,
            // Nobody can wait.
            max_waiting: 0,
            request_timeout: Duration::from_secs(3),
            ..Bounds::default()
        })
        .await;
        let unread = router.get(&format!("{PODS}/large")).await;
        assert_eq!(unread.status(), 200);
        assert_eq!(router.get_as(OTHER, PODS).await.status(), 429, "it has the one permit");
        let again = async {
            while router.get_as(OTHER, PODS).await.status() != 200 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, again)
            .await
            .expect("its permits are free");
        streams_end(&router).await;
        assert!(unread.into_body().collect().await.is_err(), "half of it is not whole");
    }
}
