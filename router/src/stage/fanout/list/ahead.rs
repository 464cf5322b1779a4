//! Reads members of a merged list ahead, so that none of them waits for those before it.
//!
//! While the member whose turn it is has nothing to give, the others' bodies are read and kept, in their order, within two
//! bounds: of one list and of all. Without room they wait with their HTTP/2 windows full.
//!
//! A member's deadline counts the time for which the list waits for that member alone: neither a slow neighbour nor a
//! client that reads slowly takes it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::Body as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

use crate::resource::upstream::{Body, BodyError};

/// What one list may hold of members that it has not come to yet: with their HTTP/2 windows less than 32 MiB.
const LIST_BYTES: usize = 24 << 20;
/// Largest frame of a member's answer (`upstream::connection`): there is room for one before it is read.
const FRAME_BYTES: u32 = 256 << 10;
/// What a chunk takes beside its bytes.
const CHUNK_BYTES: usize = 256;

type Read = Option<Result<Bytes, BodyError>>;

/// One member's body.
pub(super) struct MemberBody {
    body: Body,
    /// Already read, in order, with what it takes of the bound of all lists.
    kept: VecDeque<(Bytes, Option<OwnedSemaphorePermit>)>,
    kept_bytes: usize,
    /// How it ended, once that was read.
    over: Option<Result<(), BodyError>>,
    cluster: Arc<str>,
    /// For how long the list may still wait for it.
    patience: Duration,
    /// Since when it does, and until when it may.
    waits: Option<(Instant, Pin<Box<Sleep>>)>,
}

/// Reads members of one list ahead.
pub(super) struct ReadAhead {
    /// Bytes that all lists may keep.
    all: Arc<Semaphore>,
}

impl MemberBody {
    /// `patience`: how long the list may wait for it.
    pub(super) fn new(cluster: &Arc<str>, mut body: Body, patience: Duration) -> Self {
        body.clear_deadline();
        Self {
            body,
            kept: VecDeque::new(),
            kept_bytes: 0,
            over: None,
            cluster: cluster.clone(),
            patience,
            waits: None,
        }
    }

    /// What comes next of it, for which the list waits.
    pub(super) fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Read> {
        let read = self.poll(cx);
        self.wait(read, cx)
    }

    /// What comes next of it behind what is kept, for which the list waits.
    fn poll_further(&mut self, cx: &mut Context<'_>) -> Poll<Read> {
        let read = self.poll_body(cx);
        self.wait(read, cx)
    }

    /// `read`, or that the list's patience with it is over.
    fn wait(&mut self, read: Poll<Read>, cx: &mut Context<'_>) -> Poll<Read> {
        if let Poll::Ready(read) = read {
            if let Some((since, _)) = self.waits.take() {
                self.patience = self.patience.saturating_sub(since.elapsed());
            }
            return Poll::Ready(read);
        }
        let patience = self.patience;
        let (_, until) = self
            .waits
            .get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(patience))));
        ready!(until.as_mut().poll(cx));
        let cluster = self.cluster.clone();
        Poll::Ready(Some(Err(BodyError::Deadline { cluster })))
    }

    /// First what was kept.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Read> {
        if let Some((chunk, _)) = self.kept.pop_front() {
            self.kept_bytes -= weight(&chunk);
            return Poll::Ready(Some(Ok(chunk)));
        }
        match self.over.take() {
            None => self.poll_body(cx),
            Some(end) => Poll::Ready(end.err().map(Err)),
        }
    }

    /// The beginning of the body, which stays to be read.
    pub(super) async fn peek(&mut self) -> Result<&[u8], BodyError> {
        if self.kept.is_empty()
            && let Some(first) = std::future::poll_fn(|cx| self.poll_turn(cx)).await.transpose()?
        {
            self.keep(first, None);
        }
        Ok(self.kept.front().map(|(chunk, _)| chunk.as_ref()).unwrap_or_default())
    }

    /// All of it, which stays to be read, if it is no longer than `most` and there is room for it beside the `kept` bytes of others.
    /// An error, which stays to be read too, says why it can never be whole. May be given up at any time.
    pub(super) async fn whole(
        &mut self,
        ahead: &ReadAhead,
        kept: usize,
        most: usize,
    ) -> Result<Option<Vec<u8>>, String> {
        while self.over.is_none() {
            if self.kept_bytes > most {
                return Ok(None);
            }
            let Some(permit) = ahead.room(kept + self.kept_bytes) else {
                return Ok(None);
            };
            match std::future::poll_fn(|cx| self.poll_further(cx)).await {
                Some(Ok(frame)) => self.keep_copy(&frame, permit),
                Some(Err(error)) => self.over = Some(Err(error)),
                None => self.over = Some(Ok(())),
            }
        }
        if let Some(Err(error)) = &self.over {
            return Err(error.to_string());
        }
        let whole = || self.kept.iter().flat_map(|(chunk, _)| chunk.iter().copied()).collect();
        Ok((self.kept_bytes <= most).then(whole))
    }

    /// How much of it is kept.
    pub(super) fn kept(&self) -> usize {
        self.kept_bytes
    }

    /// `permit`: for a frame. A frame holds on to the whole buffer that it was read into, of up to twice its size.
    fn keep_copy(&mut self, frame: &Bytes, mut permit: OwnedSemaphorePermit) {
        let chunk = Bytes::copy_from_slice(frame);
        drop(permit.split((FRAME_BYTES as usize).saturating_sub(weight(&chunk))));
        self.keep(chunk, Some(permit));
    }

    fn keep(&mut self, chunk: Bytes, permit: Option<OwnedSemaphorePermit>) {
        self.kept_bytes += weight(&chunk);
        self.kept.push_back((chunk, permit));
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Read> {
        loop {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // Trailers say nothing here.
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    self.body = Body::Empty;
                    return Poll::Ready(None);
                }
            }
        }
    }
}

impl ReadAhead {
    /// `all`: bytes that all lists may keep together.
    pub(super) fn new(all: Arc<Semaphore>) -> Self {
        Self { all }
    }

    /// Keeps what is there of all but the member whose `turn` it is, of the next one first. Who waits for more of them is
    /// woken.
    pub(super) fn read(&self, members: &mut [MemberBody], turn: usize, cx: &mut Context<'_>) {
        let mut kept: usize = members.iter().map(|member| member.kept_bytes).sum();
        let (before, later) = members.split_at_mut(turn);
        for member in later.iter_mut().skip(1).chain(before) {
            while member.over.is_none() {
                let Some(permit) = self.room(kept) else { return };
                let Poll::Ready(read) = member.poll_body(cx) else { break };
                match read {
                    Some(Ok(frame)) => {
                        kept += weight(&frame);
                        member.keep_copy(&frame, permit);
                    }
                    Some(Err(error)) => member.over = Some(Err(error)),
                    None => member.over = Some(Ok(())),
                }
            }
        }
    }

    /// For one frame more, where this list keeps so much already. Of what others leave a list takes a quarter, so that lists which
    /// nobody reads leave something for the next one.
    pub(super) fn room(&self, kept: usize) -> Option<OwnedSemaphorePermit> {
        let most = LIST_BYTES.min((kept + self.all.available_permits()) / 4);
        let own = kept + FRAME_BYTES as usize <= most;
        own.then(|| self.all.clone().try_acquire_many_owned(FRAME_BYTES).ok())
            .flatten()
    }
}

/// What a chunk counts for.
fn weight(chunk: &Bytes) -> usize {
    chunk.len() + CHUNK_BYTES
}

#[cfg(test)]
mod tests;
