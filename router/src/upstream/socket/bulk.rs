//! A TCP stream under TLS and HTTP/2 that moves much at a time when there is much to move.
//!
//! rustls asks for 4 KiB a read, and h2 flushes behind every frame of 16 KiB: a list of 100 MB would cost tens of
//! thousands of system calls on each side of the router. This reads ahead while the peer sends faster than it is read,
//! and gathers large writes until the connection has nothing more to write. Small ones, events and heads, go at once
//! and are not copied. Buffers live while bytes are in them: an idle connection has none.

use std::io::{self, IoSlice};
use std::pin::Pin;
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
        }
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
