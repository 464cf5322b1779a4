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
/// Writes of one pass: a second of an API server that is not well. Who has more due than others goes on in the next.
const PASS: usize = 128;
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

/// What of `due` is written in one pass, and whether anything is left for the next: one of each author in turn, so that nobody
/// waits for all that another has due. `author`: a namespace of the hub; what is no author's goes with the first of each.
pub(crate) fn in_turns<K, T>(due: Vec<(K, T)>, author: impl Fn(&K) -> Option<&str>) -> (Vec<(K, T)>, bool) {
    let mut rounds = BTreeMap::<String, usize>::new();
    let round = |(object, _): &(K, T)| {
        let Some(author) = author(object) else { return 0 };
        match rounds.get_mut(author) {
            Some(round) => {
                *round += 1;
                *round
            }
            None => rounds.insert(author.to_owned(), 0).unwrap_or(0),
        }
    };
    let ranks: Vec<_> = due.iter().map(round).collect();
    let mut ranked: Vec<_> = ranks.into_iter().zip(due).collect();
    ranked.sort_by_key(|(round, _)| *round);
    let first = ranked.partition_point(|(round, _)| *round == 0);
    let is_more = ranked.len() > PASS.max(first);
    ranked.truncate(PASS.max(first));
    (ranked.into_iter().map(|(_, due)| due).collect(), is_more)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_all_that_another_has_due() {
        fn author<'a>(object: &'a (Option<&'static str>, i32)) -> Option<&'a str> {
            object.0
        }
        let mut due: Vec<_> = (0..1000).map(|index| ((Some("much"), index), ())).collect();
        due.extend((0..3).map(|index| ((Some("little"), index), ())));
        due.extend((0..50).map(|index| ((None, index), ())));
        let (now, is_more) = in_turns(due, author);
        let of = |who: Option<&str>| now.iter().filter(|((author, _), ())| *author == who).count();
        assert_eq!((now.len(), of(Some("little")), of(None), is_more), (PASS, 3, 50, true));
        let last = now.iter().rposition(|((author, _), ())| *author == Some("little"));
        assert!(last.is_some_and(|last| last < 60), "{last:?}");
        let (all, is_more) = in_turns(now, author);
        assert_eq!((all.len(), is_more), (PASS, false));
    }
}
