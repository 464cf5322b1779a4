//! The merged list on its way to the client: reads its members when it is read, and holds nothing but what is in flight
//! and what was read ahead (`ahead`) while there was nothing to pass on.
//!
//! A member that fails in mid-body ends it with an error: hyper resets the client's stream, and nobody takes half a list
//! for a whole one.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Frame;
use portolan_merge::list::{LegMeta, ListError, ListMerge, MergedMeta, Wants};
use portolan_runtime::telemetry;
use tracing::Span;

use super::ahead::{MemberBody, ReadAhead};
use crate::resource::upstream::BodyError;
use crate::stage::fanout::metrics::FanOutMetrics;
use crate::stage::fanout::open::OpenWatches;

/// What is put together of the members' metadata, once all of it is known.
pub(super) type Assemble = Box<dyn FnOnce(&[Option<LegMeta>]) -> Result<MergedMeta, String> + Send>;

/// Of the answer in one piece: with the head of its HTTP/2 frame it fills a TLS record, which holds 16 KiB.
const PIECE_BYTES: usize = (16 << 10) - 9;

/// Why there is no more of it.
#[derive(Debug)]
pub(super) enum Broken {
    /// A member's body broke off.
    Body(usize, BodyError),
    /// A member's body is no list.
    List(ListError),
    /// The metadata cannot be told.
    Meta(String),
}

/// The body.
pub(super) struct ListBody {
    merge: ListMerge,
    sources: Vec<MemberBody>,
    ahead: ReadAhead,
    out: VecDeque<Bytes>,
    assemble: Option<Assemble>,
    done: bool,
    foreign: Option<Foreign>,
    /// Ends with it.
    _span: Span,
}

/// Counts what members sent though it was not asked for.
pub(super) struct Foreign {
    pub(super) metrics: FanOutMetrics,
    /// Those that were to leave out themselves what is not the caller's.
    pub(super) legs: Vec<(usize, Arc<str>)>,
}

impl Drop for ListBody {
    fn drop(&mut self) {
        let Some(Foreign { metrics, legs }) = &self.foreign else {
            return;
        };
        for (leg, cluster) in legs {
            let objects = self.merge.left_out(*leg);
            if objects > 0 {
                tracing::debug!(%cluster, objects, "a member listed objects of namespaces that it was not asked for");
                metrics.foreign(cluster, objects);
            }
        }
    }
}

impl ListBody {
    pub(super) fn new(merge: ListMerge, sources: Vec<MemberBody>, ahead: ReadAhead, assemble: Assemble) -> Self {
        let members = sources.len();
        Self {
            _span: telemetry::child(|| tracing::info_span!("merge", members)),
            merge,
            sources,
            ahead,
            out: VecDeque::new(),
            assemble: Some(assemble),
            done: false,
            foreign: None,
        }
    }

    pub(super) fn counting(mut self, foreign: Foreign) -> Self {
        self.foreign = Some(foreign);
        self
    }

    /// Objects left out so far because an earlier member has their name.
    pub(super) fn collisions(&self) -> u64 {
        self.merge.collisions()
    }

    pub(super) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        loop {
            if let Some(mut chunk) = self.out.pop_front() {
                if chunk.is_empty() {
                    continue;
                }
                // Members' frames are as large as that, or much larger.
                if chunk.len() > 2 * PIECE_BYTES {
                    self.out.push_front(chunk.split_off(PIECE_BYTES));
                }
                return Poll::Ready(Some(Ok(chunk)));
            }
            if self.done {
                return Poll::Ready(None);
            }
            if let Err(broken) = ready!(self.step(cx)) {
                self.done = true;
                self.sources.clear();
                return Poll::Ready(Some(Err(broken)));
            }
        }
    }

    fn step(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let stepped = match self.merge.wants() {
            Wants::Leg(leg) => {
                let Some(source) = self.sources.get_mut(leg) else {
                    return Poll::Ready(Err(Broken::Meta("there is no such leg".to_owned())));
                };
                let Poll::Ready(read) = source.poll_turn(cx) else {
                    self.ahead.read(&mut self.sources, leg, cx);
                    return Poll::Pending;
                };
                match read {
                    Some(Ok(chunk)) => self.merge.push(leg, chunk, &mut self.out),
                    Some(Err(error)) => return Poll::Ready(Err(Broken::Body(leg, error))),
                    None => self.merge.end(leg, &mut self.out),
                }
            }
            Wants::Meta => {
                let assemble = self.assemble.take();
                let meta = assemble.map_or_else(
                    || Err("its metadata was told already".to_owned()),
                    |assemble| assemble(self.merge.metas()),
                );
                match meta {
                    Ok(meta) => self.merge.set_meta(meta, &mut self.out),
                    Err(why) => return Poll::Ready(Err(Broken::Meta(why))),
                }
            }
            Wants::Done => {
                self.done = true;
                Ok(())
            }
        };
        Poll::Ready(stepped.map_err(Broken::List))
    }
}

/// A beginning that was read before the head of the answer, and the rest.
pub(super) struct Begun {
    pub(super) first: VecDeque<Bytes>,
    pub(super) rest: Option<ListBody>,
    /// Names that collided in the beginning: these are counted.
    pub(super) counted: u64,
    /// Where those of the rest are.
    pub(super) open: Arc<OpenWatches>,
}

impl http_body::Body for Begun {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(chunk) = self.first.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        let Some(rest) = &mut self.rest else {
            return Poll::Ready(None);
        };
        let chunk = ready!(rest.poll_chunk(cx));
        let chunk = chunk.map(|chunk| chunk.map(Frame::data).map_err(BodyError::from));
        if !matches!(chunk, Some(Ok(_))) {
            let later = rest.collisions() - self.counted;
            if later > 0 {
                self.open.metrics.collided(later);
            }
            self.rest = None;
        }
        Poll::Ready(chunk)
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && self.rest.is_none()
    }
}

impl From<Broken> for BodyError {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Body(_, error) => error,
            Broken::List(error) => Self::Member {
                cluster: error.cluster.clone(),
                reason: error.fault.to_string(),
            },
            Broken::Meta(reason) => Self::Member {
                cluster: "all".into(),
                reason,
            },
        }
    }
}
