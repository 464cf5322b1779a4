//! What TokenReviews said, by hash of the token, for a few seconds; and one review at a time per token.
//!
//! Finds them by a SHA-256 of the token. Good answers live ten seconds (as the API server's own cache does) and never beyond
//! the token's expiry; bad ones too, in bounded number; failures to ask are not kept. A connection that sends the token of
//! its last request again needs no hash ([`LastToken`]): for that an answer that was asked for again keeps its token, until
//! the cache lets go of it, seconds after its time at the latest. Caller: `identify`.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use parking_lot::Mutex;
use portolan_runtime::Secret;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::token::Reviewed;
use crate::resource::keyed::{Entry, Keyed};
use crate::value::fault::Fault;

/// The API server trusts its own answer for as long, also after the Pod is gone.
pub(super) const TTL: Duration = Duration::from_secs(10);
/// Distinct good tokens within [`TTL`]: far more than callers of one router.
const MAX_GOOD: u64 = 16_384;
/// Distinct refused tokens within [`TTL`]. They are well signed, so only a member's own Pods can make them.
const MAX_BAD: u64 = 1_024;

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
pub(crate) enum AnswerSource {
    /// Kept from an earlier review.
    Kept,
    /// The review of another request with the same token.
    Joined,
    /// A review of its own.
    Asked,
}

impl AnswerSource {
    /// The word in metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Joined => "joined",
            Self::Asked => "asked",
        }
    }
}

/// What is kept and what is on its way.
#[derive(Default)]
pub(super) struct TokenCache {
    kept: Kept,
    /// One that nobody waits for any more is dropped, and the next request starts another.
    running: Keyed<TokenHash, Running>,
}

/// A review that is made.
pub(super) struct Running {
    outcome: Shared<BoxFuture<'static, Outcome>>,
    // One word to one waiter, kept until it listens.
    lease: Arc<Notify>,
}

/// Outcomes, each until a time of its own: a token may expire before the cache drops it. Good and bad ones apart, so that
/// no number of refused tokens pushes out good ones. Cheap to clone.
#[derive(Clone)]
struct Kept {
    /// The busiest stay when there are too many, as far as their requests are looked up here: those of a [`LastToken`] are not.
    good: Cache<TokenHash, Arc<Good>>,
    bad: Cache<TokenHash, (Instant, Fault)>,
}

/// A token that a member has confirmed.
struct Good {
    until: Instant,
    reviewed: Arc<Reviewed>,
    /// From its second request on, for [`LastToken`].
    token: OnceLock<Secret>,
    /// Its member has said otherwise since. The cache may hold what it has dropped for a while.
    over: AtomicBool,
}

/// By whose token the last request of a connection was known. It ends with what the cache keeps, of which it holds nothing.
#[derive(Default)]
pub(crate) struct LastToken {
    /// A mutex: held for a look.
    good: Mutex<Weak<Good>>,
}

impl std::fmt::Debug for LastToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LastToken")
    }
}

impl LastToken {
    /// Whose `token` is, if it is the last one and its answer is kept still.
    pub(super) fn is(&self, token: &str) -> Option<Arc<Reviewed>> {
        let good = self.good.lock().upgrade()?;
        let kept = good.token.get()?;
        let same = equal(kept.expose().as_bytes(), token.as_bytes());
        (same && good.counts()).then(|| good.reviewed.clone())
    }
}

impl Good {
    fn counts(&self) -> bool {
        !self.over.load(Ordering::Relaxed) && Instant::now() < self.until
    }
}

/// Compares in time that depends on the lengths alone, eight bytes at a time: tokens have a thousand.
fn equal(one: &[u8], other: &[u8]) -> bool {
    let ((words, rest), (other_words, other_rest)) = (one.as_chunks::<8>(), other.as_chunks::<8>());
    let words = words.iter().zip(other_words);
    let words = words.fold(0, |differ, (one, other)| {
        differ | (u64::from_ne_bytes(*one) ^ u64::from_ne_bytes(*other))
    });
    let rest = rest.iter().zip(other_rest);
    let rest = rest.fold(0, |differ, (one, other)| differ | (one ^ other));
    one.len() == other.len() && black_box(words | u64::from(rest)) == 0
}

impl TokenCache {
    /// An answer that is kept. `None`: the token is to be verified and reviewed.
    pub(super) fn kept(&self, hash: TokenHash) -> Option<Outcome> {
        self.kept.get(hash)
    }

    /// The same for a token that comes over a connection, which knows it by its bytes from then on.
    pub(super) fn kept_over(&self, last: &LastToken, token: &str, hash: TokenHash) -> Option<Outcome> {
        let Some(good) = self.kept.good(hash) else {
            return self.kept.bad(hash);
        };
        good.token.get_or_init(|| Secret::from(token));
        *last.good.lock() = Arc::downgrade(&good);
        Some(Ok(good.reviewed.clone()))
    }

    /// The review of this token that runs; else this one is to be run, once it has the permit, from when on its answer
    /// counts. The permit is asked for with what says that a Lease waits. `life`: what is left of the token's own.
    pub(super) fn review<P, R, H>(
        &self,
        hash: TokenHash,
        life: Duration,
        permit: impl FnOnce(Arc<Notify>) -> P,
        review: R,
    ) -> (Entry<TokenHash, Running>, AnswerSource)
    where
        P: Future<Output = Result<H, Fault>> + Send + 'static,
        R: Future<Output = Outcome> + Send + 'static,
        H: Send,
    {
        let mut source = AnswerSource::Joined;
        let running = self.running.entry(hash, || {
            source = AnswerSource::Asked;
            let (kept, came, lease) = (self.kept.clone(), Instant::now(), Arc::<Notify>::default());
            let permit = permit(lease.clone());
            let reviewed = async move {
                let _permit = permit.await?;
                let begun = Instant::now();
                let outcome = review.await;
                let until = begun + TTL.min(life.saturating_sub(begun - came));
                kept.put(hash, until, &outcome);
                outcome
            };
            let outcome = reviewed.boxed().shared();
            Running { outcome, lease }
        });
        (running, source)
    }

    /// Entries kept, good and bad.
    pub(super) fn len(&self) -> u64 {
        self.kept.len()
    }

    /// Lets go of what is over: by itself the cache does so only where it is used. Runs for ever, and tells how many are kept.
    pub(super) fn forget<F: Fn(u64)>(&self, kept: F) -> impl Future<Output = ()> + use<F> {
        let outcomes = self.kept.clone();
        async move {
            loop {
                tokio::time::sleep(TTL / 2).await;
                kept(outcomes.len());
            }
        }
    }
}

impl Kept {
    fn len(&self) -> u64 {
        self.good.run_pending_tasks();
        self.bad.run_pending_tasks();
        self.good.entry_count() + self.bad.entry_count()
    }
}

impl Running {
    /// A Lease waits for it.
    pub(super) fn hurry(&self) {
        self.lease.notify_one();
    }

    pub(super) async fn outcome(&self) -> Outcome {
        self.outcome.clone().await
    }
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            good: bounded(MAX_GOOD),
            bad: bounded(MAX_BAD),
        }
    }
}

/// The least recently used goes first: it only costs one review.
fn bounded<V: Clone + Send + Sync + 'static>(most: u64) -> Cache<TokenHash, V> {
    let cache = Cache::builder().max_capacity(most).time_to_live(TTL);
    cache.eviction_policy(EvictionPolicy::lru()).build()
}

impl Kept {
    fn get(&self, hash: TokenHash) -> Option<Outcome> {
        let good = self.good(hash).map(|good| Ok(good.reviewed.clone()));
        good.or_else(|| self.bad(hash))
    }

    fn good(&self, hash: TokenHash) -> Option<Arc<Good>> {
        self.good.get(&hash).filter(|good| good.counts())
    }

    fn bad(&self, hash: TokenHash) -> Option<Outcome> {
        let (until, fault) = self.bad.get(&hash)?;
        (Instant::now() < until).then_some(Err(fault))
    }

    fn put(&self, hash: TokenHash, until: Instant, outcome: &Outcome) {
        match outcome {
            Ok(reviewed) => {
                let good = Good {
                    until,
                    reviewed: reviewed.clone(),
                    token: OnceLock::new(),
                    over: AtomicBool::new(false),
                };
                self.bad.invalidate(&hash);
                self.good.insert(hash, Arc::new(good));
            }
            Err(fault @ Fault::Unauthenticated(_)) => {
                if let Some(good) = self.good.remove(&hash) {
                    good.over.store(true, Ordering::Relaxed);
                }
                self.bad.insert(hash, (until, fault.clone()));
            }
            // Nobody was asked: ask again.
            Err(_) => {}
        }
    }
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
        if let Some(outcome) = cache.kept(hash) {
            return outcome;
        }
        let asked = asked.clone();
        let review = async move {
            asked.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(5)).await;
            outcome
        };
        let (running, _) = cache.review(hash, life, |_| async { Ok(()) }, review);
        running.outcome().await
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
    async fn a_connection_knows_its_last_token_for_as_long_as_the_answer_is_kept() {
        let (cache, last) = (TokenCache::default(), LastToken::default());
        let hash = TokenHash::of("a token");
        let review = async |life, outcome| {
            let (running, _) = cache.review(hash, life, |_| async { Ok(()) }, async { outcome });
            running.outcome().await
        };
        review(TTL, Ok(reviewed())).await.unwrap();
        assert!(last.is("a token").is_none(), "nothing was sent over it");
        assert!(cache.kept_over(&last, "a token", hash).is_some());
        assert!(last.is("a token").is_some());
        for other in ["a tokem", "b token", "a toke", "a token ", "a token of others", ""] {
            assert!(last.is(other).is_none(), "{other:?}");
        }
        assert!(LastToken::default().is("a token").is_none(), "another connection");
        tokio::time::sleep(TTL).await;
        assert!(last.is("a token").is_none(), "its answer is old");

        review(TTL / 2, Ok(reviewed())).await.unwrap();
        assert!(last.is("a token").is_none(), "it is another answer");
        assert!(cache.kept_over(&last, "a token", hash).is_some());
        assert!(last.is("a token").is_some());
        tokio::time::sleep(TTL / 2).await;
        assert!(last.is("a token").is_none(), "the token has expired");

        review(TTL, Ok(reviewed())).await.unwrap();
        assert!(cache.kept_over(&last, "a token", hash).is_some());
        review(TTL, Err(Fault::Unauthenticated("no".into()))).await.unwrap_err();
        assert!(last.is("a token").is_none(), "its member takes it for nobody's now");
        assert!(cache.kept_over(&last, "a token", hash).unwrap().is_err());
    }

    #[test]
    fn tokens_are_compared_whole() {
        let token = "0123456789abcdefghij".as_bytes();
        assert!(equal(token, token) && equal(b"", b""));
        for at in 0..token.len() {
            let mut other = token.to_vec();
            other[at] ^= 1;
            assert!(!equal(token, &other) && !equal(token, &token[..at]), "{at}");
        }
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
    async fn what_is_kept_counts_from_when_there_is_a_permit() {
        let (cache, hash) = (TokenCache::default(), TokenHash::of("a"));
        let wait = TTL / 2;
        let review = async |life| {
            let waited = |_| tokio::time::sleep(wait).map(Ok);
            let (running, _) = cache.review(hash, life, waited, async { Ok(reviewed()) });
            running.outcome().await.unwrap();
        };
        review(TTL / 10 * 19).await;
        tokio::time::sleep(TTL / 10 * 9).await;
        assert!(cache.kept(hash).is_some(), "the wait does not count");
        tokio::time::sleep(TTL / 10).await;
        assert!(cache.kept(hash).is_none());
        review(TTL).await;
        tokio::time::sleep(wait).await;
        assert!(cache.kept(hash).is_none(), "but of the token's own life it does");
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
        assert!(cache.running.len() == 0);
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
