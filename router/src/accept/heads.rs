//! Heads of requests on their way in: how long one may take to come, and how much memory those may take that are of nobody yet.
//!
//! What is decoded of one head is bounded by hyper and h2, at [`MOST_HEAD_BYTES`]. Thousands of clients that nobody knows could fill
//! the memory with halves of such heads, so that what is more than a usual head waits for room that all of them share. In HTTP/2 a
//! few bytes may stand for many, so there a head that takes more than one frame, or a large one, waits before it is decoded. Caller: `accept`.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Response, StatusCode};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

use crate::edge::{Answer, Connection, MOST_HEAD_BYTES};
use crate::resource::upstream::BodyError;

/// Half a head of a client that is not known may be as large without asking: all but few heads are smaller.
const FREE_BYTES: usize = 64 << 10;
/// Beyond that, for all clients that are not known.
const STRANGERS_BYTES: usize = 64 << 20;
/// What an HTTP/2 client sends before its first frame.
const PREFACE_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 9;
/// A frame of a client that is not known may be as large without asking: a byte of it may stand for a header of sixty.
const FREE_FRAME_BYTES: usize = 4 << 10;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
/// The head is whole with this frame.
const END_HEADERS: u8 = 4;

/// Room for the heads of all clients that are not known. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(STRANGERS_BYTES / MOST_HEAD_BYTES)))
    }
}

/// The requests of one HTTP/1.1 connection, of which one is served at a time. Shared by its stream and its service.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Whose heads were whole.
    begun: AtomicU64,
    over: AtomicU64,
    /// For the head that is coming. A mutex: given back by whoever serves it.
    room: Mutex<Option<OwnedSemaphorePermit>>,
}

/// One of them. Dropped, it is over.
pub(super) struct Serving(Option<Arc<Requests>>);

/// Its answer, which is part of it.
pub(super) struct Served {
    body: Answer,
    _serving: Serving,
}

impl Requests {
    /// A head is whole.
    pub(super) fn begin(self: &Arc<Self>) -> Serving {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.room.lock().take();
        Serving(Some(self.clone()))
    }

    fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    fn is_serving(&self) -> bool {
        self.begun() != self.over.load(Ordering::Relaxed)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(requests) = &self.0 {
            requests.over.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Serving {
    pub(super) fn answer(mut self, answer: Response<Answer>) -> Response<Served> {
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            // No head comes on this connection any more.
            self.0 = None;
        }
        answer.map(|body| Served { body, _serving: self })
    }
}

impl http_body::Body for Served {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A client's stream.
pub(super) struct Heads<T> {
    stream: T,
    client: Arc<Connection>,
    reads: Reads,
    room: Room,
    waits: Option<BoxFuture<'static, OwnedSemaphorePermit>>,
    /// Read, and not passed on yet: there is no room.
    held: BytesMut,
}

/// What is read.
enum Reads {
    Http1(Whole),
    Http2(Frames),
}

/// Of HTTP/1.1: bytes up to the first empty line.
struct Whole {
    requests: Arc<Requests>,
    /// Heads that were whole, as far as was looked.
    begun: u64,
    /// Of the head that is coming.
    bytes: usize,
    within: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

/// Of HTTP/2: frames, of which the one header is read.
#[derive(Debug)]
struct Frames {
    /// To be passed over: the preface, or the rest of a frame.
    skip: usize,
    header: [u8; FRAME_HEADER_BYTES],
    read: usize,
    /// A head is not whole, or its frame is large.
    open: bool,
    /// It is whole with this frame.
    ends: bool,
    permit: Option<OwnedSemaphorePermit>,
}

impl Frames {
    fn new() -> Self {
        Self {
            skip: PREFACE_BYTES,
            header: [0; FRAME_HEADER_BYTES],
            read: 0,
            open: false,
            ends: false,
            permit: None,
        }
    }

    /// How many of these bytes may be decoded: up to where a head goes on behind its frame, unless there is room for it.
    fn pass(&mut self, bytes: &[u8], has_room: bool) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            if self.open && !has_room {
                break;
            }
            let passed = self.skip.min(bytes.len() - at);
            self.skip -= passed;
            at += passed;
            while self.skip == 0 && self.read < FRAME_HEADER_BYTES && at < bytes.len() {
                self.header[self.read] = bytes[at];
                self.read += 1;
                at += 1;
            }
            if self.read == FRAME_HEADER_BYTES {
                let [high, middle, low, kind, flags, ..] = self.header;
                self.read = 0;
                self.skip = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                if [HEADERS, CONTINUATION].contains(&kind) {
                    self.ends = flags & END_HEADERS != 0;
                    self.open |= !self.ends || self.skip > FREE_FRAME_BYTES;
                }
            }
            if self.skip == 0 && self.read == 0 && self.ends {
                self.open = false;
                self.ends = false;
            }
        }
        at
    }
}

impl Whole {
    /// Whether some of a head is here, and not all of it.
    fn is_coming(&mut self) -> bool {
        let begun = self.requests.begun();
        if self.requests.is_serving() || self.begun != begun {
            self.begun = begun;
            self.bytes = 0;
            self.timer = None;
        }
        !self.requests.is_serving()
    }

    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        self.is_coming()
            && self
                .timer
                .as_mut()
                .is_some_and(|timer| timer.as_mut().poll(cx).is_ready())
    }

    /// How many of so many bytes may be read.
    fn pass(&mut self, bytes: usize, has_room: bool) -> usize {
        if !self.is_coming() {
            return bytes;
        }
        if self.bytes + bytes > FREE_BYTES && !has_room {
            return 0;
        }
        self.bytes += bytes;
        let within = self.within;
        self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(within)));
        bytes
    }
}

impl<T> Heads<T> {
    /// `within`: for a head, from its first byte; of the first, from now on.
    pub(super) fn http1(
        stream: T,
        client: Arc<Connection>,
        room: Room,
        (requests, within): (Arc<Requests>, Duration),
    ) -> Self {
        let whole = Whole {
            requests,
            begun: 0,
            bytes: 0,
            within,
            timer: Some(Box::pin(tokio::time::sleep(within))),
        };
        Self::new(stream, client, room, Reads::Http1(whole))
    }

    pub(super) fn http2(stream: T, client: Arc<Connection>, room: Room) -> Self {
        Self::new(stream, client, room, Reads::Http2(Frames::new()))
    }

    fn new(stream: T, client: Arc<Connection>, room: Room, reads: Reads) -> Self {
        Self {
            stream,
            client,
            reads,
            room,
            waits: None,
            held: BytesMut::new(),
        }
    }

    fn has_room(&self) -> bool {
        self.client.has_client()
            || match &self.reads {
                Reads::Http1(whole) => whole.requests.room.lock().is_some(),
                Reads::Http2(frames) => frames.permit.is_some(),
            }
    }

    /// How many of these bytes go on.
    fn pass(&mut self, bytes: &[u8]) -> usize {
        let has_room = self.has_room();
        match &mut self.reads {
            Reads::Http1(whole) => whole.pass(bytes.len(), has_room),
            Reads::Http2(frames) => frames.pass(bytes, has_room),
        }
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_room() {
            self.waits = None;
            return Poll::Ready(());
        }
        let room = self.room.0.clone();
        let waits = self.waits.get_or_insert_with(|| {
            async move {
                let permit = room.acquire_owned().await;
                permit.expect("the semaphore is never closed")
            }
            .boxed()
        });
        let permit = ready!(waits.as_mut().poll(cx));
        self.waits = None;
        match &mut self.reads {
            Reads::Http1(whole) => *whole.requests.room.lock() = Some(permit),
            Reads::Http2(frames) => frames.permit = Some(permit),
        }
        Poll::Ready(())
    }

    /// Passes on what was held.
    fn release(&mut self, buf: &mut ReadBuf<'_>) {
        let most = self.held.len().min(buf.remaining());
        let held = std::mem::take(&mut self.held);
        let passed = self.pass(&held[..most]);
        buf.put_slice(&held[..passed]);
        self.held = held;
        self.held.advance(passed);
        if self.held.is_empty() {
            self.held = BytesMut::new();
        }
    }

    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let late = match &mut self.reads {
            Reads::Http1(whole) => whole.is_late(cx),
            Reads::Http2(_) => false,
        };
        if late {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Heads<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Reads::Http2(frames) = &mut this.reads
            && !frames.open
        {
            // What it was for is decoded by now.
            frames.permit = None;
        }
        loop {
            let before = buf.filled().len();
            if this.held.is_empty() {
                if Pin::new(&mut this.stream).poll_read(cx, buf)?.is_pending() {
                    return this.poll_late(cx);
                }
                let read = buf.filled().len() - before;
                if read == 0 {
                    return Poll::Ready(Ok(()));
                }
                let passed = this.pass(&buf.filled()[before..]);
                this.held.extend_from_slice(&buf.filled()[before + passed..]);
                buf.set_filled(before + passed);
            } else {
                if this.poll_room(cx).is_pending() {
                    return this.poll_late(cx);
                }
                this.release(buf);
            }
            if buf.filled().len() > before || buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Heads<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let length = u32::try_from(length).unwrap();
        let [_, high, middle, low] = length.to_be_bytes();
        let mut frame = vec![high, middle, low, kind, flags, 0, 0, 0, 1];
        frame.resize(frame.len() + length as usize, 7);
        frame
    }

    #[test]
    fn a_head_of_several_frames_waits_before_it_is_decoded() {
        let whole = [
            vec![b'x'; PREFACE_BYTES],
            frame(4, 0, 6),
            frame(HEADERS, END_HEADERS | 1, 100),
        ]
        .concat();
        let half = frame(HEADERS, 0, 50);
        let rest = [
            frame(CONTINUATION, 0, 30),
            frame(CONTINUATION, END_HEADERS, 30),
            frame(0, 1, 10),
        ]
        .concat();
        let all = [&whole[..], &half[..], &rest[..]].concat();
        // Wherever the bytes are cut, what goes on is the same.
        for cut in 1..all.len() {
            let mut frames = Frames::new();
            let (mut passed, mut held) = (0, false);
            for part in all.chunks(cut) {
                let now = if held { 0 } else { frames.pass(part, false) };
                held |= now < part.len();
                passed += now;
            }
            assert_eq!(passed, whole.len() + FRAME_HEADER_BYTES, "{cut}");
            assert!(frames.open);
            assert_eq!(frames.pass(&all[passed..], true), all.len() - passed);
            assert!(!frames.open, "{cut}");
        }
    }

    /// A byte of it may stand for a whole header.
    #[test]
    fn a_large_frame_waits_before_it_is_decoded() {
        let preface = vec![b'x'; PREFACE_BYTES];
        let small = frame(HEADERS, END_HEADERS, FREE_FRAME_BYTES);
        let large = frame(HEADERS, END_HEADERS, FREE_FRAME_BYTES + 1);
        let all = [preface, small, large].concat();
        let before = all.len() - FREE_FRAME_BYTES - 1;
        let mut frames = Frames::new();
        assert_eq!(frames.pass(&all, false), before);
        assert!(frames.open);
        assert_eq!(frames.pass(&all[before..], true), FREE_FRAME_BYTES + 1);
        assert!(!frames.open);
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_head_has_a_time_and_an_idle_connection_has_none() {
        let requests = Arc::<Requests>::default();
        let mut whole = Whole {
            requests: requests.clone(),
            begun: 0,
            bytes: 0,
            within: Duration::from_secs(20),
            timer: None,
        };
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert_eq!(whole.pass(10, false), 10);
        tokio::time::advance(Duration::from_secs(19)).await;
        assert!(!whole.is_late(&mut cx));
        // All of it is here, and it is answered before anybody looks.
        drop(requests.begin());
        tokio::time::advance(Duration::from_mins(2)).await;
        assert!(!whole.is_late(&mut cx), "nothing is coming");
        assert_eq!(whole.pass(10, false), 10);
        tokio::time::advance(Duration::from_secs(21)).await;
        assert!(whole.is_late(&mut cx));
        let serving = requests.begin();
        assert!(!whole.is_late(&mut cx));
        assert_eq!(whole.pass(1 << 20, false), 1 << 20, "a body has bounds of its own");
        drop(serving);
        assert_eq!(
            whole.pass(FREE_BYTES + 1, false),
            0,
            "more than a usual head waits for room"
        );
        assert_eq!(whole.pass(FREE_BYTES + 1, true), FREE_BYTES + 1);
    }
}
