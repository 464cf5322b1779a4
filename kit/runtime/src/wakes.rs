//! Which parts of a task want to be polled: one bit each, so that a wake-up costs the polls of those that were woken.
//!
//! The parts are polled with wakers of their own, which set their bit and wake the task of the whole. A merged watch reads so many
//! legs; a connection waits beside its bytes for a drain, a ping or an end that hardly ever comes ([`when_woken`]).

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::task::AtomicWaker;
use tokio::task::coop::unconstrained;

const BITS: usize = u64::BITS as usize;

/// Bits of all parts, and the task that polls them.
#[derive(Debug)]
pub struct Wakes {
    bits: Box<[AtomicU64]>,
    task: AtomicWaker,
}

#[derive(Debug)]
struct Part {
    all: Arc<Wakes>,
    index: usize,
}

impl Wakes {
    /// All bits set: everything is polled once.
    pub fn new(parts: usize) -> Arc<Self> {
        let bits = (0..parts.div_ceil(BITS)).map(|_| AtomicU64::new(u64::MAX)).collect();
        Arc::new(Self {
            bits,
            task: AtomicWaker::new(),
        })
    }

    /// For the polls of one part.
    pub fn waker(self: &Arc<Self>, index: usize) -> Waker {
        let all = self.clone();
        Waker::from(Arc::new(Part { all, index }))
    }

    /// To be called before the bits are looked at.
    pub fn register(&self, task: &Waker) {
        self.task.register(task);
    }

    /// As if the part had been woken, but for the task.
    pub fn set(&self, index: usize) {
        if let Some(bits) = self.bits.get(index / BITS) {
            bits.fetch_or(1 << (index % BITS), Ordering::AcqRel);
        }
    }

    /// Whether it was set; it is not any more.
    pub fn take(&self, index: usize) -> bool {
        let mask = 1 << (index % BITS);
        let Some(bits) = self.bits.get(index / BITS) else {
            return false;
        };
        // Most are not: reading a line that nobody writes is cheap.
        bits.load(Ordering::Acquire) & mask != 0 && bits.fetch_and(!mask, Ordering::AcqRel) & mask != 0
    }
}

impl Wake for Part {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.all.set(self.index);
        self.all.task.wake();
    }
}

/// The same future, polled when it was woken itself and not whenever others of its task were. Worth its allocations where those
/// are polled often. Safe to drop.
pub fn when_woken<F: Future>(future: F) -> impl Future<Output = F::Output> + Unpin {
    let wakes = Wakes::new(1);
    let waker = wakes.waker(0);
    // It is asked so seldom that it takes nobody's time; and what is beside it may have used up all that the task may take at
    // once. Boxed: an async block would have room for it twice.
    let mut future = Box::pin(unconstrained(future));
    poll_fn(move |cx| {
        wakes.register(cx.waker());
        if wakes.take(0) {
            future.as_mut().poll(&mut Context::from_waker(&waker))
        } else {
            Poll::Pending
        }
    })
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use futures::FutureExt as _;
    use tokio::sync::Notify;

    use super::*;
    use crate::Tasks;

    #[test]
    fn a_part_is_read_once_per_wake_up() {
        let wakes = Wakes::new(70);
        assert!(wakes.take(0) && wakes.take(69));
        assert!(!wakes.take(0) && !wakes.take(69));
        let waker = wakes.waker(69);
        waker.wake_by_ref();
        assert!(!wakes.take(5 + 64) || !wakes.take(69));
        waker.wake();
        assert!(wakes.take(69) && !wakes.take(69) && !wakes.take(0));
    }

    #[tokio::test]
    async fn it_is_polled_when_it_was_woken_and_then_ends() {
        let (notify, polls) = (Notify::new(), AtomicUsize::new(0));
        let told = async {
            let mut notified = pin!(notify.notified());
            poll_fn(|cx| {
                polls.fetch_add(1, Ordering::Relaxed);
                notified.as_mut().poll(cx)
            })
            .await;
        };
        let mut whole = when_woken(told);
        for _ in 0..5 {
            assert_eq!((&mut whole).now_or_never(), None);
        }
        assert_eq!(polls.load(Ordering::Relaxed), 1);
        notify.notify_one();
        whole.await;
        assert_eq!(polls.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn who_wakes_itself_is_polled_again_and_lets_others_run() {
        when_woken(async {
            for _ in 0..1_000 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_wake_up_is_lost() {
        let (tasks, there, back) = (Tasks::new(), Arc::<Notify>::default(), Arc::<Notify>::default());
        tasks.spawn("other", {
            let (there, back) = (there.clone(), back.clone());
            async move {
                for _ in 0..20_000 {
                    when_woken(there.notified()).await;
                    back.notify_one();
                }
            }
        });
        let rounds = when_woken(async {
            for _ in 0..20_000 {
                there.notify_one();
                back.notified().await;
            }
        });
        let rounds = tokio::time::timeout(Duration::from_mins(1), rounds);
        rounds.await.expect("each is told");
    }

    #[tokio::test]
    async fn who_takes_all_that_a_task_may_take_at_once_delays_nobody() {
        let busy = async {
            loop {
                tokio::task::coop::consume_budget().await;
            }
        };
        let told = when_woken(async {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
                () = std::future::pending() => {}
            }
        });
        tokio::time::timeout(Duration::from_mins(1), async {
            tokio::select! {
                biased;
                () = busy => {}
                () = told => {}
            }
        })
        .await
        .expect("it is polled all the same");
    }
}
