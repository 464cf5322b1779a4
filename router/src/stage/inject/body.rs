//! A body with the faults of its stream: what comes of it is handed on, held back, cut or added to as they say.
//!
//! It reads nothing ahead but for a delay, whose bytes wait here up to a bound; beyond that, and in a stall, the member
//! waits as for a client that does not read. Made by `inject`; read by hyper, a WebSocket or the merge core.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::StatusCode;
use http_body::{Body as _, Frame};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::StreamInjection;
use super::scan::Scan;
use crate::decision::injection;
use crate::decision::injection::stream::{Place, Step};
use crate::resource::upstream::{Body, BodyError, Ended, Ending};
use crate::stage::reply;
use crate::value::event_boundary::EventBoundary;
use crate::value::injection::Action;

/// What is put off waits here up to so many bytes, per stream; beyond, its sender waits.
const HELD_BYTES: usize = 256 << 10;
/// What was handed on before a cut is given so long to leave: a reset takes back what has not.
const LEAVES: Duration = Duration::from_millis(20);
/// Between two looks at the clock, whose seconds the times of a fault are in.
const LOOK: Duration = Duration::from_secs(1);

/// One connection of a stream.
pub(super) struct InjectedBody {
    injection: Arc<StreamInjection>,
    body: Body,
    scan: Scan,
    /// What is being handed on.
    current: Bytes,
    /// What comes after it, with the times at which it came.
    held: VecDeque<(Instant, Bytes)>,
    held_bytes: usize,
    life: Life,
    timer: Pin<Box<Sleep>>,
    /// Ends with the next swap of the snapshot.
    swapped: BoxFuture<'static, ()>,
    drained: Pin<Box<WaitForCancellationFutureOwned>>,
    ending: Ending,
}

/// Where it is.
enum Life {
    Running,
    /// The body below has ended so.
    Ended(Option<BodyError>),
    /// It is cut when the timer is over.
    Cut(BodyError),
    Over,
}

type Polled = Option<Result<Frame<Bytes>, BodyError>>;

impl InjectedBody {
    pub(super) fn new(injection: Arc<StreamInjection>, boundary: EventBoundary, body: Body, ending: Ending) -> Self {
        let injector = &injection.watch.injector;
        Self {
            swapped: swapped(&injection),
            drained: Box::pin(injector.tasks.token().cancelled_owned()),
            timer: Box::pin(sleep_until(Instant::now())),
            injection,
            body,
            scan: Scan::new(boundary),
            current: Bytes::new(),
            held: VecDeque::new(),
            held_bytes: 0,
            life: Life::Running,
            ending,
        }
    }

    fn place(&self) -> Place {
        Place {
            now: self.injection.now(),
            between: self.scan.is_between(),
            framed: self.scan.format().is_some(),
            bookmark: self.scan.last_bookmark().is_some(),
        }
    }

    /// The fault happens. What is to be handed on for it, if anything.
    fn begin(&mut self, index: usize) -> Option<Bytes> {
        self.injection.began(index);
        let fault = self.injection.fault(index);
        let name = &fault.name;
        match fault.fault.action {
            Action::Stall(_) | Action::Delay(_) => None,
            Action::RepeatBookmark => self.scan.last_bookmark().cloned(),
            Action::Drop => {
                let error = BodyError::Injected(name.to_string());
                self.ending.set(Ended::Injected);
                self.timer.as_mut().reset(Instant::now() + LEAVES);
                self.life = Life::Cut(error);
                None
            }
            Action::Expire => {
                self.ending.set(Ended::Injected);
                self.life = Life::Over;
                self.body = Body::Empty;
                let expired = injection::ordered(StatusCode::GONE, name, &self.injection.watch.asked);
                self.scan.format().map(|format| reply::error_event(&expired, format))
            }
        }
    }

    /// What the body below has, as far as it may be read.
    fn read(&mut self, cx: &mut Context<'_>, delay: Duration) {
        let ahead = if delay.is_zero() { 0 } else { HELD_BYTES };
        while matches!(self.life, Life::Running) && self.current.len() + self.held_bytes <= ahead {
            // Nothing ahead means nothing at all.
            if ahead == 0 && !(self.current.is_empty() && self.held.is_empty()) {
                return;
            }
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(frame))) => {
                    // An empty one would be taken for the last that there is now.
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        self.held_bytes += data.len();
                        self.held.push_back((Instant::now(), data));
                    }
                }
                Poll::Ready(Some(Err(error))) => self.life = Life::Ended(Some(error)),
                Poll::Ready(None) => self.life = Life::Ended(None),
            }
        }
    }

    /// The next piece that is due; else when there will be one.
    fn piece(&mut self, delay: Duration) -> Result<Bytes, Option<Instant>> {
        while self.current.is_empty() {
            let Some((came, data)) = self.held.front() else {
                return Err(None);
            };
            let due = *came + delay;
            if due > Instant::now() {
                return Err(Some(due));
            }
            self.held_bytes -= data.len();
            self.current = data.clone();
            self.held.pop_front();
        }
        let faults = &mut self.injection.state.lock().faults;
        let mut length = if faults.is_settled() {
            self.current.len()
        } else {
            self.scan.event(&self.current)
        };
        if let Some(room) = faults.room() {
            length = length.min(usize::try_from(room).unwrap_or(usize::MAX));
        }
        let piece = self.current.split_to(length);
        let event = if faults.is_settled() {
            self.scan.pass_unread(&piece);
            false
        } else {
            self.scan.pass(&piece, faults.wants_bookmark())
        };
        faults.passed(piece.len(), event);
        Ok(piece)
    }

    /// Waits for the earliest of what may come: ready when it is to be looked again.
    fn wait(&mut self, cx: &mut Context<'_>, until: Option<Instant>) -> Poll<()> {
        if self.swapped.poll_unpin(cx).is_ready() {
            self.swapped = swapped(&self.injection);
            return Poll::Ready(());
        }
        let begun = self.injection.watch.begun;
        let next = self.injection.state.lock().faults.next_look(self.injection.now());
        let look = self.injection.is_timed().then(|| Instant::now() + LOOK);
        let due = [until, next.map(|next| begun + next), look].into_iter().flatten().min();
        let Some(due) = due else { return Poll::Pending };
        self.timer.as_mut().reset(due);
        self.timer.as_mut().poll(cx)
    }

    fn end(&mut self, error: Option<BodyError>) -> Polled {
        self.life = Life::Over;
        self.injection.set_silent(false);
        self.ending.set(self.body.ended());
        error.map(Err)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Polled> {
        loop {
            match &mut self.life {
                Life::Over => return Poll::Ready(None),
                Life::Cut(_) => {
                    ready!(self.timer.as_mut().poll(cx));
                    let Life::Cut(error) = std::mem::replace(&mut self.life, Life::Over) else {
                        return Poll::Ready(None);
                    };
                    self.body = Body::Empty;
                    return Poll::Ready(Some(Err(error)));
                }
                Life::Running | Life::Ended(_) => {}
            }
            let released = self.drained.as_mut().poll(cx).is_ready();
            let due = self.injection.due(self.place(), released);
            match due.step {
                Step::Begin(index) => {
                    if let Some(said) = self.begin(index) {
                        return Poll::Ready(Some(Ok(Frame::data(said))));
                    }
                    continue;
                }
                Step::Stalled(until) => {
                    let (begun, ends) = (self.injection.watch.begun, self.injection.watch.ends);
                    if Instant::now() >= ends {
                        // Of what is held the client has seen nothing: it asks for it where it goes on.
                        self.body = Body::Empty;
                        return Poll::Ready(self.end(None));
                    }
                    self.injection.set_silent(true);
                    let until = until.map_or(ends, |until| (begun + until).min(ends));
                    ready!(self.wait(cx, Some(until)));
                    continue;
                }
                Step::Pass => {}
            }
            self.read(cx, due.delay);
            let wakes = match self.piece(due.delay) {
                Ok(piece) => {
                    self.injection.set_silent(false);
                    return Poll::Ready(Some(Ok(Frame::data(piece))));
                }
                Err(wakes) => wakes,
            };
            self.injection.set_silent(wakes.is_some());
            if let (None, Life::Ended(error)) = (wakes, &mut self.life) {
                let error = error.take();
                return Poll::Ready(self.end(error));
            }
            ready!(self.wait(cx, wakes));
        }
    }
}

fn swapped(injection: &StreamInjection) -> BoxFuture<'static, ()> {
    let mut swaps = injection.watch.injector.routing.subscribe();
    async move {
        if swaps.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
    .boxed()
}

impl http_body::Body for InjectedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Polled> {
        self.poll(cx)
    }
}

impl Drop for InjectedBody {
    /// A leg that is connected anew has not been silent by order.
    fn drop(&mut self) {
        self.injection.set_silent(false);
    }
}
