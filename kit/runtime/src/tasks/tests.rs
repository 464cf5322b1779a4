//! Names, drains and panics of tracked tasks.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_tasks_and_is_clean() {
    let tasks = Tasks::new();
    let done = Arc::new(AtomicBool::new(false));
    let (inside, flag) = (tasks.clone(), done.clone());
    tasks.spawn("slow", async move {
        inside.cancelled().await;
        tokio::time::sleep(SECOND).await;
        flag.store(true, Ordering::SeqCst);
    });
    let report = tasks.shutdown(2 * SECOND).await;
    assert!(report.is_clean() && done.load(Ordering::SeqCst), "{report:?}");
    assert_eq!(report.took, SECOND);
    assert_eq!(tasks.scope.tracker.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn stragglers_are_named_and_cut() {
    let tasks = Tasks::new();
    let held = Arc::new(());
    for _ in 0..2 {
        let held = held.clone();
        tasks.spawn("deaf", async move {
            std::future::pending::<()>().await;
            drop(held);
        });
    }
    tasks.spawn("obedient", {
        let tasks = tasks.clone();
        async move { tasks.cancelled().await }
    });
    let report = tasks.shutdown(SECOND).await;
    assert_eq!(report.cut, BTreeMap::from([("deaf", 2)]));
    assert!(!report.is_clean() && report.clone().into_result().is_ok());
    assert_eq!(Arc::strong_count(&held), 1, "cut tasks are dropped");
    assert!(
        tasks.shutdown(SECOND).await.is_clean(),
        "nothing is left for a second call"
    );
}

#[tokio::test]
async fn a_panic_is_counted_and_ends_nothing_else() {
    let tasks = Tasks::new();
    tasks.spawn("bad", async { panic!("boom") });
    while !tasks.scope.tracker.is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(tasks.panics(), 1);
    assert!(!tasks.is_cancelled() && tasks.scope.shared.failure.lock().is_none());
}

#[tokio::test]
async fn the_early_end_of_a_critical_task_ends_the_program_also_from_a_child() {
    type End = fn() -> anyhow::Result<()>;
    let ends: [(End, &str); 3] = [
        (|| Ok(()), "returned before shutdown"),
        (
            || Err(anyhow::anyhow!("socket").context("listener")),
            "listener: socket",
        ),
        (|| panic!("boom"), "panicked: boom"),
    ];
    for (end, reason) in ends {
        let tasks = Tasks::new();
        tasks.child().spawn_critical("listener", async move { end() });
        assert_eq!(tasks.until_stopped().await, StopCause::Cancelled);
        let report = tasks.shutdown(SECOND).await;
        assert_eq!(
            report.failure,
            Some(TaskFailure {
                task: "listener",
                reason: reason.into()
            })
        );
        let error = report.into_result().unwrap_err().to_string();
        assert_eq!(error, format!("task listener ended the program: {reason}"));
    }
}

#[tokio::test]
async fn critical_tasks_may_end_in_a_shutdown() {
    let tasks = Tasks::new();
    for outcome in [true, false] {
        let inside = tasks.clone();
        tasks.spawn_critical("stream", async move {
            inside.cancelled().await;
            anyhow::ensure!(outcome, "closed");
            Ok(())
        });
    }
    assert!(tasks.shutdown(SECOND).await.is_clean());
}

#[tokio::test(start_paused = true)]
async fn children_drain_alone_and_with_their_parent() {
    let tasks = Tasks::new();
    let child = tasks.child();
    let inside = child.clone();
    child.spawn("leaf", async move { inside.cancelled().await });
    tasks.spawn("other", {
        let tasks = tasks.clone();
        async move { tasks.cancelled().await }
    });
    assert_eq!((child.scope.tracker.len(), tasks.scope.tracker.len()), (1, 2));
    assert!(child.shutdown(SECOND).await.is_clean());
    assert!(!tasks.is_cancelled());
    assert_eq!(tasks.scope.tracker.len(), 1);

    let second = tasks.child();
    second.spawn("deaf", std::future::pending());
    let report = tasks.shutdown(SECOND).await;
    assert_eq!(report.cut, BTreeMap::from([("deaf", 1)]));
    assert!(second.is_cancelled() && second.scope.tracker.is_empty());
}

#[tokio::test]
async fn an_aborted_task_leaves_no_trace() {
    let tasks = Tasks::new();
    let handle = tasks.spawn("connection", std::future::pending());
    handle.abort();
    assert!(tasks.shutdown(SECOND).await.is_clean());
}

/// Looks how many tasks count as running when its own is dropped.
struct Dropped(Tasks, Arc<Mutex<Vec<usize>>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.1.lock().push(self.0.scope.tracker.len());
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_counts_until_its_future_is_gone() {
    let running = Arc::default();
    let tasks = Tasks::new();
    let task = |ends: bool| {
        let dropped = Dropped(tasks.clone(), Arc::clone(&running));
        tasks.spawn("counted", async move {
            let _dropped = dropped;
            if !ends {
                std::future::pending::<()>().await;
            }
        })
    };
    task(true);
    tokio::task::yield_now().await;
    task(false).abort();
    tokio::task::yield_now().await;
    let aborted = task(false);
    tokio::task::yield_now().await;
    aborted.abort();
    tokio::task::yield_now().await;
    task(false);
    assert!(!tasks.shutdown(SECOND).await.is_clean(), "the last is cut");
    assert_eq!(
        *running.lock(),
        [1; 4],
        "ended, aborted before and after it was polled, cut"
    );
}

#[test]
fn spawns_on_the_runtime_asked_for() {
    let build = |name| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(name)
            .enable_all()
            .build()
            .unwrap()
    };
    let (control, traffic) = (build("control"), build("traffic"));
    let tasks = Tasks::new();
    let on_traffic = tasks.on(traffic.handle().clone());
    let name = control.block_on(async {
        let (tell, told) = tokio::sync::oneshot::channel();
        on_traffic.spawn("where", async move {
            tell.send(std::thread::current().name().map(str::to_owned)).unwrap();
        });
        let name = told.await.unwrap();
        assert!(tasks.shutdown(SECOND).await.is_clean());
        name
    });
    assert_eq!(name.as_deref(), Some("traffic"));
}
