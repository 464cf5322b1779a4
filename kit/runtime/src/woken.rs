//! A future that is polled when it was woken itself, and not whenever the task that it is a part of was.
//!
//! A connection's task is woken by its bytes, and waits beside them for a drain, a ping or an end that hardly ever comes. Without
//! this each of those is asked anew with every read.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::task::AtomicWaker;
use tokio::task::coop::unconstrained;

struct Woken {
    due: AtomicBool,
    /// Of the whole.
    task: AtomicWaker,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.due.swap(true, Ordering::AcqRel);
        self.task.wake();
    }
}

/// The same future, which costs next to nothing while others of its task are polled. Worth an allocation where that is often.
/// Safe to drop.
pub async fn when_woken<F: Future>(future: F) -> F::Output {
    let woken = Arc::new(Woken {
        due: AtomicBool::new(true),
        task: AtomicWaker::new(),
    });
    let waker = Waker::from(woken.clone());
    // It is asked so seldom that it takes nobody's time; and what is beside it may have used up all that the task may take at once.
    let mut future = pin!(unconstrained(future));
    poll_fn(|cx| {
        // First: what wakes it from here on is seen below, or wakes the task.
        woken.task.register(cx.waker());
        if !woken.due.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        // Swapped, on both sides, so that what came since it was looked at is seen by the poll.
        woken.due.swap(false, Ordering::AcqRel);
        future.as_mut().poll(&mut Context::from_waker(&waker))
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use futures::FutureExt as _;
    use tokio::sync::Notify;

    use super::*;
    use crate::Tasks;

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
        let mut whole = pin!(when_woken(told));
        for _ in 0..5 {
            assert_eq!(whole.as_mut().now_or_never(), None);
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
}
