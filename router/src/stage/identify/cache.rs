//! What TokenReviews said, by hash of the token, for a few seconds; and one review at a time per token.
//!
//! Keeps no token: a SHA-256 of it. Good answers live ten seconds (as the API server's own cache does) and never beyond
//! the token's expiry; bad ones too, in bounded number; failures to ask are not kept. Caller: `identify`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::token::Reviewed;
use crate::value::fault::Fault;

/// The API server trusts its own answer for as long, also after the Pod is gone.
pub(super) const TTL: Duration = Duration::from_secs(10);
/// Distinct good tokens within [`TTL`]: far more than callers of one router.
const MAX_GOOD: usize = 16_384;
/// Distinct refused tokens within [`TTL`]. They are well signed, so only a member's own Pods can make them.
const MAX_BAD: usize = 1_024;

/// What a review says of a token.
pub(super) type Outcome = Result<Arc<Reviewed>, Fault>;

/// SHA-256 of a token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TokenHash([u8; 32]);

impl TokenHash {
    pub(super) fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }
}

/// Where an answer came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Kept from an earlier review.
    Kept,
    /// The review of another request with the same token.
    Joined,
    /// A review of its own.
    Asked,
}

impl Source {
    /// The word in metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Joined => "joined",
            Self::Asked => "asked",
        }
    }
}

/// Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct TokenCache {
    // A mutex: held for a map operation, never across an await.
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    kept: Kept,
    // Weak: a review that nobody waits for any more is dropped, and the next request starts another.
    running: HashMap<TokenHash, WeakShared<BoxFuture<'static, Outcome>>>,
}

#[derive(Default)]
struct Kept {
    good: HashMap<TokenHash, (Instant, Arc<Reviewed>)>,
    bad: HashMap<TokenHash, (Instant, Fault)>,
}

impl TokenCache {
    /// An answer that is kept, or one that is on its way.
    pub(super) fn get(&self, hash: TokenHash) -> Option<Lookup> {
        let inner = self.inner.lock();
        if let Some(outcome) = inner.kept.get(hash, Instant::now()) {
            return Some(Lookup::Kept(outcome));
        }
        inner
            .running
            .get(&hash)
            .and_then(WeakShared::upgrade)
            .map(Lookup::Running)
    }

    /// Runs `review` for this token, or joins the one that runs. `life`: what is left of the token's own.
    pub(super) async fn review<F>(&self, hash: TokenHash, life: Duration, review: F) -> (Outcome, Source)
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let (running, source) = self.join_or_start(hash, life, review);
        (running.await, source)
    }

    /// Entries kept, good and bad.
    pub(super) fn len(&self) -> usize {
        let inner = self.inner.lock();
        inner.kept.good.len() + inner.kept.bad.len()
    }

    fn join_or_start<F>(&self, hash: TokenHash, life: Duration, review: F) -> (Running, Source)
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let mut inner = self.inner.lock();
        if let Some(running) = inner.running.get(&hash).and_then(WeakShared::upgrade) {
            return (running, Source::Joined);
        }
        let cache = self.clone();
        let keep_until = Instant::now() + life.min(TTL);
        let running = async move {
            let outcome = review.await;
            let mut inner = cache.inner.lock();
            inner.kept.put(hash, keep_until, &outcome);
            inner.running.remove(&hash);
            outcome
        }
        .boxed()
        .shared();
        if let Some(weak) = running.downgrade() {
            inner.running.insert(hash, weak);
        }
        // Reviews that were given up leave their weak entry behind.
        if inner.running.len() > MAX_BAD {
            inner.running.retain(|_, weak| weak.upgrade().is_some());
        }
        (running, Source::Asked)
    }
}

type Running = Shared<BoxFuture<'static, Outcome>>;

/// See [`TokenCache::get`].
pub(super) enum Lookup {
    Kept(Outcome),
    Running(Running),
}

impl Kept {
    fn get(&self, hash: TokenHash, now: Instant) -> Option<Outcome> {
        if let Some((until, reviewed)) = self.good.get(&hash) {
            return (now < *until).then(|| Ok(reviewed.clone()));
        }
        let (until, fault) = self.bad.get(&hash)?;
        (now < *until).then(|| Err(fault.clone()))
    }

    fn put(&mut self, hash: TokenHash, until: Instant, outcome: &Outcome) {
        self.good.remove(&hash);
        self.bad.remove(&hash);
        match outcome {
            Ok(reviewed) => put_bounded(&mut self.good, MAX_GOOD, hash, (until, reviewed.clone())),
            Err(fault @ Fault::Unauthenticated(_)) => put_bounded(&mut self.bad, MAX_BAD, hash, (until, fault.clone())),
            // Nobody was asked: ask again.
            Err(_) => {}
        }
    }
}

fn put_bounded<V>(map: &mut HashMap<TokenHash, (Instant, V)>, max: usize, hash: TokenHash, value: (Instant, V)) {
    if map.len() >= max {
        let now = Instant::now();
        map.retain(|_, (until, _)| now < *until);
        // Still full: any of them may go, it only costs one review.
        let victim = (map.len() >= max).then(|| map.keys().next().copied()).flatten();
        if let Some(victim) = victim {
            map.remove(&victim);
        }
    }
    map.insert(hash, value);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn reviewed() -> Arc<Reviewed> {
        Arc::new(Reviewed::of_pod("east", "ns", "sa", ("pod", "uid")))
    }

    async fn ask(
        cache: &TokenCache,
        token: &str,
        life: Duration,
        outcome: Outcome,
        asked: &Arc<AtomicUsize>,
    ) -> Outcome {
        let hash = TokenHash::of(token);
        match cache.get(hash) {
            Some(Lookup::Kept(outcome)) => outcome,
            Some(Lookup::Running(running)) => running.await,
            None => {
                let asked = asked.clone();
                let review = async move {
                    asked.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    outcome
                };
                cache.review(hash, life, review).await.0
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_review_per_token_and_ten_seconds() {
        let (cache, asked) = (TokenCache::default(), Arc::default());
        let life = Duration::from_hours(1);
        let all = futures::future::join_all((0..50).map(|_| ask(&cache, "a", life, Ok(reviewed()), &asked))).await;
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        tokio::time::sleep(TTL / 10 * 9).await;
        ask(&cache, "a", life, Ok(reviewed()), &asked).await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        tokio::time::sleep(TTL / 10).await;
        ask(&cache, "a", life, Ok(reviewed()), &asked).await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn never_beyond_the_tokens_own_life() {
        let (cache, asked) = (TokenCache::default(), Arc::default());
        let life = Duration::from_secs(1);
        ask(&cache, "a", life, Ok(reviewed()), &asked).await.unwrap();
        tokio::time::sleep(life).await;
        ask(&cache, "a", life, Ok(reviewed()), &asked).await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_are_kept_and_failures_to_ask_are_not() {
        let (cache, asked) = (TokenCache::default(), Arc::default());
        let life = Duration::from_hours(1);
        for _ in 0..2 {
            ask(&cache, "bad", life, Err(Fault::Unauthenticated("no".into())), &asked)
                .await
                .unwrap_err();
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        for _ in 0..2 {
            let away = Fault::Unavailable {
                message: "away".into(),
                cluster: None,
                sent: false,
            };
            ask(&cache, "away", life, Err(away), &asked).await.unwrap_err();
        }
        assert_eq!(asked.load(Ordering::SeqCst), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn bounded_in_number() {
        let (cache, asked) = (TokenCache::default(), Arc::default());
        for number in 0..MAX_BAD + 100 {
            let no = Err(Fault::Unauthenticated("no".into()));
            let _ = ask(&cache, &number.to_string(), TTL, no, &asked).await;
        }
        assert!(cache.len() <= MAX_BAD);
        assert!(cache.inner.lock().running.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_review_given_up_blocks_nobody() {
        let (cache, asked) = (TokenCache::default(), Arc::default());
        {
            let given_up = ask(&cache, "a", TTL, Ok(reviewed()), &asked);
            tokio::pin!(given_up);
            assert!(futures::poll!(&mut given_up).is_pending());
        }
        ask(&cache, "a", TTL, Ok(reviewed()), &asked).await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }
}
