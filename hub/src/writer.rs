//! Writes to objects of the hub's API server: a few at a time, each in bounded time, counted; whose write failed rests.
//!
//! What is due and how it is written is the caller's. Callers: `status`, `finalize` and `children` by a [`Writer`]; `ledger`, which must
//! know what became of each write, by [`all`].

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::Error as KubeError;
use thiserror::Error;
use tokio::time::Instant;

use crate::metrics::WriteCounters;

/// Writes under way at once: enough for a fleet, few for an API server.
const CONCURRENCY: usize = 8;
/// A request that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(10);
/// An object that rests is left alone this long: what is refused would be sent again every second, and what was done comes
/// back by the watch within it.
pub(crate) const REST: Duration = Duration::from_secs(5);

/// Why an object is not written, or not known to be.
#[derive(Debug, Error)]
pub(crate) enum WriteError {
    #[error("not written in time")]
    Late,
    #[error(transparent)]
    Kube(#[from] KubeError),
}

/// Writes objects of one kind, told apart by `K`.
#[derive(Debug)]
pub(crate) struct Writer<K> {
    what: &'static str,
    resting: BTreeMap<K, Instant>,
}

impl<K: Ord + Clone + Debug> Writer<K> {
    /// `what` is written, for the log.
    pub(crate) fn new(what: &'static str) -> Self {
        Self {
            what,
            resting: BTreeMap::new(),
        }
    }

    pub(crate) fn rests(&self, object: &K) -> bool {
        self.resting.get(object).is_some_and(|since| since.elapsed() < REST)
    }

    /// Leaves the object alone for [`REST`], from now.
    pub(crate) fn rest(&mut self, object: K) {
        self.resting.insert(object, Instant::now());
    }

    /// Writes all that is `due`, and returns what got through. The rest rests: objects that are gone or were changed by
    /// others are no failures, the watch tells of them.
    pub(crate) async fn write<T: Clone, F>(
        &mut self,
        due: Vec<(K, T)>,
        write: impl Fn(K, T) -> F,
        counters: &WriteCounters,
    ) -> Vec<(K, T)>
    where
        F: Future<Output = kube::Result<()>>,
    {
        self.resting.retain(|_, since| since.elapsed() < REST);
        let writes = due.into_iter().map(|due| (due.clone(), write(due.0, due.1)));
        let mut writes = std::pin::pin!(all(writes.collect()));
        let mut written = Vec::new();
        while let Some(((object, change), outcome)) = writes.next().await {
            match outcome {
                Ok(()) => {
                    counters.count(true);
                    written.push((object, change));
                    continue;
                }
                Err(WriteError::Kube(KubeError::Api(status))) if [404, 409].contains(&status.code) => {}
                Err(error) => {
                    counters.count(false);
                    tracing::warn!(what = self.what, ?object, %error, "cannot write");
                }
            }
            self.rest(object);
        }
        written
    }
}

/// Carries out writes, a few at a time and each in bounded time: as they end, with what each was of.
pub(crate) fn all<T, R, F>(writes: Vec<(T, F)>) -> impl Stream<Item = (T, Result<R, WriteError>)>
where
    F: Future<Output = kube::Result<R>>,
{
    let bounded = |(of, write): (T, F)| async move {
        match tokio::time::timeout(TIMEOUT, write).await {
            Ok(outcome) => (of, outcome.map_err(WriteError::from)),
            Err(_) => (of, Err(WriteError::Late)),
        }
    };
    futures::stream::iter(writes).map(bounded).buffer_unordered(CONCURRENCY)
}
