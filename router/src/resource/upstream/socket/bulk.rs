//! A TCP stream under TLS and HTTP/2 that moves much at a time when there is much to move.
//!
//! rustls asks for 4 KiB a read, and h2 flushes behind every frame of 16 KiB: a list of 100 MB would cost tens of
//! thousands of system calls on each side of the router. This reads ahead while the peer sends faster than it is read,
//! and gathers large writes until the connection has nothing more to write. Small ones, events and heads, go at once
//! and are not copied. Buffers live while bytes are in them: an idle connection has none.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::io::{poll_read_buf, poll_write_buf};

/// Read at a time from a peer that sends much: four TLS records.
const AHEAD_BYTES: usize = 64 << 10;
/// Gathered at most before it is written.
const GATHER_BYTES: usize = 64 << 10;
/// A write of this size is part of something large: a full TLS record is twice that.
const LARGE_WRITE: usize = 8 << 10;

/// The stream.
#[derive(Debug)]
pub(crate) struct Bulk {
    stream: TcpStream,
    ahead: BytesMut,
    /// The last read brought all that was asked for.
    flowing: bool,
    gathered: BytesMut,
    gathers: bool,
    /// A flush was put off, and nothing was written since.
    put_off: bool,
    /// Reads that brought something. Shared with who judges whether the peer lives.
    received: Arc<AtomicUsize>,
}

impl Bulk {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            ahead: BytesMut::new(),
            flowing: false,
            gathered: BytesMut::new(),
            gathers: false,
            put_off: false,
            received: Arc::default(),
        }
    }

    /// Counts what comes from the peer, in reads; wraps around.
    pub(crate) fn received(&self) -> Arc<AtomicUsize> {
        self.received.clone()
    }

    /// Puts off flushes of large writes from now on: until the second in a row, or until the task was polled once more.
    /// Only for a writer that flushes whenever it is polled, as h2 does; a tunnel's last bytes would stay here.
    pub(crate) fn gather(&mut self) {
        self.gathers = true;
    }

    /// Writes what was gathered, until less than `keep` is left.
    fn poll_drain(&mut self, cx: &mut Context<'_>, keep: usize) -> Poll<io::Result<()>> {
        while self.gathered.len() > keep {
            if ready!(poll_write_buf(Pin::new(&mut self.stream), cx, &mut self.gathered))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
        }
        if self.gathered.is_empty() {
            self.gathered = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Bulk {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.ahead.is_empty() {
            if !this.flowing {
                ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
                this.received.fetch_add(1, Ordering::Relaxed);
                this.flowing = buf.remaining() == 0;
                return Poll::Ready(Ok(()));
            }
            this.ahead.reserve(AHEAD_BYTES);
            let read = poll_read_buf(Pin::new(&mut this.stream), cx, &mut this.ahead);
            this.flowing = matches!(read, Poll::Ready(Ok(count)) if count > buf.remaining());
            if !matches!(read, Poll::Ready(Ok(1..))) {
                this.ahead = BytesMut::new();
            }
            ready!(read)?;
            this.received.fetch_add(1, Ordering::Relaxed);
        }
        let length = this.ahead.len().min(buf.remaining());
        buf.put_slice(&this.ahead[..length]);
        this.ahead.advance(length);
        if this.ahead.is_empty() && !this.flowing {
            this.ahead = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Bulk {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let size: usize = bufs.iter().map(|buf| buf.len()).sum();
        if this.gathered.is_empty() && !(this.gathers && (LARGE_WRITE..GATHER_BYTES).contains(&size)) {
            return Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        }
        ready!(this.poll_drain(cx, GATHER_BYTES - 1))?;
        this.put_off = false;
        this.gathered.reserve(size.min(GATHER_BYTES));
        let before = this.gathered.len();
        for buf in bufs {
            let room = GATHER_BYTES - this.gathered.len();
            this.gathered.extend_from_slice(&buf[..buf.len().min(room)]);
        }
        Poll::Ready(Ok(this.gathered.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.gathered.is_empty() {
            if !std::mem::replace(&mut self.put_off, true) {
                // Polled once more even if nothing else happens, so that nothing stays here.
                cx.waker().wake_by_ref();
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_drain(cx, 0))?;
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx, 0))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (Bulk, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (Bulk::new(ours), listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn what_was_gathered_leaves_in_order_and_whole() {
        let (mut bulk, mut peer) = pair().await;
        bulk.gather();
        let all: Vec<u8> = (0..1_000_003_u32).map(|byte| byte.to_le_bytes()[0]).collect();
        let sizes = [16_393, 9, 8_192, 70_000, 1, 40_000];
        let writing = async {
            let mut rest = all.as_slice();
            for size in sizes.iter().cycle() {
                let (now, later) = rest.split_at((*size).min(rest.len()));
                bulk.write_all(now).await.unwrap();
                bulk.flush().await.unwrap();
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            bulk.shutdown().await.unwrap();
            assert_eq!(bulk.gathered.capacity(), 0, "an idle connection holds nothing");
        };
        let mut read = Vec::new();
        let ((), count) = tokio::join!(writing, peer.read_to_end(&mut read));
        count.unwrap();
        assert!(read == all);
    }

    #[tokio::test]
    async fn a_flush_that_was_put_off_wakes_its_task() {
        let (mut bulk, mut peer) = pair().await;
        bulk.gather();
        bulk.write_all(&[7; 10_000]).await.unwrap();
        let mut polls = 0;
        poll_fn(|cx| {
            polls += 1;
            let flushed = Pin::new(&mut bulk).poll_flush(cx);
            if polls == 1 { Poll::Pending } else { flushed }
        })
        .await
        .unwrap();
        assert_eq!(polls, 2);
        peer.read_exact(&mut [0; 10_000]).await.unwrap();
    }

    #[tokio::test]
    async fn what_was_read_ahead_is_handed_out_in_any_pieces() {
        let (mut bulk, mut peer) = pair().await;
        let all: Vec<u8> = (0..300_001_u32).map(|byte| byte.to_le_bytes()[0]).collect();
        let reading = async {
            let (mut read, mut piece) = (Vec::new(), [0; 4_096]);
            loop {
                match bulk.read(&mut piece).await.unwrap() {
                    0 => return read,
                    count => read.extend_from_slice(&piece[..count]),
                }
            }
        };
        let writing = async {
            peer.write_all(&all).await.unwrap();
            peer.shutdown().await.unwrap();
        };
        let (read, ()) = tokio::join!(reading, writing);
        assert!(read == all);
        assert_eq!(bulk.ahead.capacity(), 0, "an idle connection holds nothing");
    }
}
