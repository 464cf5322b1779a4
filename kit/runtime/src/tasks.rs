//! Every task of a program: named, counted, cancelled together, its end observed.
//!
//! The only caller of `tokio::spawn` (clippy bans it elsewhere). A task is *asked* to end through the token and
//! drained up to a deadline; only then is it cut. A panic is caught, counted and logged; the end of a critical
//! task ends the program. Not a supervisor: nothing is restarted. Callers: `app.rs` and whoever it hands a clone.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::try_join;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::future::FutureExt as _;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use tokio_util::task::TaskTracker;

use crate::when_woken;

/// How long cut tasks get to run their destructors, after the deadline.
const CUT_GRACE: Duration = Duration::from_millis(500);

/// The tasks of a program, or of one part of it (see [`Tasks::child`]). Clones are the same set.
#[derive(Debug, Clone)]
pub struct Tasks {
    scope: Arc<Scope>,
    /// `None`: the runtime of the caller of `spawn`.
    runtime: Option<Handle>,
}

#[derive(Debug)]
struct Scope {
    parent: Option<Arc<Scope>>,
    tracker: TaskTracker,
    /// Asks tasks to end.
    stop: CancellationToken,
    /// Ends tasks that did not, by dropping them at their next await.
    cut: CancellationToken,
    /// Running tasks by name, for the report on stragglers. A mutex: held for one map operation.
    running: Mutex<BTreeMap<&'static str, usize>>,
    shared: Arc<Shared>,
}

/// What all scopes of one program have in common.
#[derive(Debug)]
struct Shared {
    program: CancellationToken,
    panics: Counter,
    /// [`Tasks::until_stopped`] was called: signals are ours.
    listens: AtomicBool,
    /// The first critical task that ended early. A mutex: written at most once, read at the end.
    failure: Mutex<Option<TaskFailure>>,
}

/// A critical task that ended before shutdown, and so ended the program.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("task {task} ended the program: {reason}")]
pub struct TaskFailure {
    /// Name of the task.
    pub task: &'static str,
    /// The task's error, or that it panicked.
    pub reason: String,
}

/// What asked the program to stop, as told by [`Tasks::until_stopped`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// SIGTERM: the kubelet, or a service manager.
    Terminate,
    /// SIGINT: a person at a terminal.
    Interrupt,
    /// The token was cancelled: a critical task ended, or a caller of [`Tasks::cancel`].
    Cancelled,
}

/// How a shutdown went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShutdownReport {
    /// Tasks that were still running at the deadline, by name and number, and were cut.
    pub cut: BTreeMap<&'static str, usize>,
    /// How many tasks panicked since the start.
    pub panics: u64,
    /// The first task that ended the program, if one did.
    pub failure: Option<TaskFailure>,
    /// How long the shutdown took.
    pub took: Duration,
}

impl Default for Tasks {
    fn default() -> Self {
        Self::new()
    }
}

impl Tasks {
    /// The root set of a program.
    pub fn new() -> Self {
        let stop = CancellationToken::new();
        let shared = Shared {
            program: stop.clone(),
            panics: Counter::default(),
            listens: AtomicBool::new(false),
            failure: Mutex::new(None),
        };
        Self {
            scope: Scope::new(None, stop, CancellationToken::new(), Arc::new(shared)),
            runtime: None,
        }
    }

    /// A set that can be cancelled and drained alone, ends with this one, and is waited for by this one.
    pub fn child(&self) -> Self {
        let scope = &self.scope;
        let child = Scope::new(
            Some(scope.clone()),
            scope.stop.child_token(),
            scope.cut.child_token(),
            scope.shared.clone(),
        );
        Self {
            scope: child,
            runtime: self.runtime.clone(),
        }
    }

    /// The same set of tasks, spawning on another runtime: traffic apart from admin and control streams.
    pub fn on(&self, runtime: Handle) -> Self {
        Self {
            scope: self.scope.clone(),
            runtime: Some(runtime),
        }
    }

    /// Runs `future` to its end. It must end soon after [`Self::cancelled`]; a panic in it is counted and logged
    /// and ends nothing else. The handle may be dropped.
    pub fn spawn<F>(&self, name: &'static str, future: F) -> AbortHandle
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let shared = self.scope.shared.clone();
        let ended = move |outcome: std::thread::Result<()>| {
            if let Err(panic) = outcome {
                shared.count_panic(name, &panic_message(panic.as_ref()));
            }
        };
        self.track(name, AssertUnwindSafe(future).catch_unwind().map(ended))
    }

    /// Runs `future`, whose end before shutdown, for whatever reason, cancels the whole program and is reported
    /// as [`ShutdownReport::failure`]. After cancellation an `Ok` is an orderly end and an `Err` is logged.
    pub fn spawn_critical<F>(&self, name: &'static str, future: F) -> AbortHandle
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let (shared, stop) = (self.scope.shared.clone(), self.scope.stop.clone());
        let ended = move |outcome: std::thread::Result<anyhow::Result<()>>| {
            let reason = match outcome {
                Ok(Ok(())) => "returned before shutdown".to_owned(),
                Ok(Err(error)) => format!("{error:#}"),
                Err(panic) => {
                    let message = panic_message(panic.as_ref());
                    shared.count_panic(name, &message);
                    shared.fail(TaskFailure {
                        task: name,
                        reason: format!("panicked: {message}"),
                    });
                    return;
                }
            };
            if !stop.is_cancelled() {
                shared.fail(TaskFailure { task: name, reason });
            } else if reason != "returned before shutdown" {
                tracing::warn!(task = name, error = reason, "task failed while stopping");
            }
        };
        self.track(name, AssertUnwindSafe(future).catch_unwind().map(ended))
    }

    /// Runs critical work, see [`Self::spawn_critical`], that may be dropped at any point: it is, once the set is cancelled.
    pub fn spawn_service<F>(&self, name: &'static str, work: F) -> AbortHandle
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let work = work.with_cancellation_token_owned(self.token());
        self.spawn_critical(name, work.map(|ended| ended.unwrap_or(Ok(()))))
    }

    /// Resolves once tasks of this set shall end.
    pub fn cancelled(&self) -> WaitForCancellationFuture<'_> {
        self.scope.stop.cancelled()
    }

    /// Whether the tasks are asked to end.
    pub fn is_cancelled(&self) -> bool {
        self.scope.stop.is_cancelled()
    }

    /// The token behind [`Self::cancelled`], to pass on or to derive from.
    pub fn token(&self) -> CancellationToken {
        self.scope.stop.clone()
    }

    /// Whether the end of a critical task has cancelled the program: then all sets end at once, not one after the other.
    pub fn has_failed(&self) -> bool {
        self.scope.shared.failure.lock().is_some()
    }

    /// Asks the tasks of this set (and of its children) to end, and does not wait.
    pub fn cancel(&self) {
        self.scope.stop.cancel();
    }

    /// Panics caught so far in all tasks of the program.
    pub fn panics(&self) -> u64 {
        self.scope.shared.panics.get()
    }

    /// Counts a panic caught outside of a task: by a request's catch-panic layer, for example.
    pub fn count_panic(&self, place: &'static str, message: &str) {
        self.scope.shared.count_panic(place, message);
    }

    /// Resolves at SIGTERM, SIGINT or cancellation, whichever is first. Called once, by `main`.
    pub async fn until_stopped(&self) -> StopCause {
        self.scope.shared.listens.store(true, Ordering::Relaxed);
        tokio::select! {
            cause = wait_for_signal() => cause,
            () = self.cancelled() => StopCause::Cancelled,
        }
    }

    /// Cancels, waits until all tasks have ended or `deadline` has passed, cuts the rest, and reports. A further
    /// signal meanwhile counts as the deadline: who presses Ctrl-C twice means it.
    /// A second call reports on what is left. Tasks spawned meanwhile are cancelled from their start.
    pub async fn shutdown(&self, deadline: Duration) -> ShutdownReport {
        let started = Instant::now();
        let scope = &self.scope;
        scope.stop.cancel();
        scope.tracker.close();
        // Only where signals are listened to anyway: in a test Ctrl-C must keep its usual meaning.
        let listened = scope.shared.listens.load(Ordering::Relaxed);
        let patience = async {
            tokio::select! {
                () = tokio::time::sleep(deadline) => {}
                signal = wait_for_signal(), if listened => {
                    tracing::warn!(?signal, "told to stop a second time, not waiting");
                }
            }
        };
        let mut cut = BTreeMap::new();
        let ended = tokio::select! {
            biased;
            () = scope.tracker.wait() => true,
            () = patience => false,
        };
        if !ended {
            cut.clone_from(&scope.running.lock());
            tracing::warn!(tasks = ?cut, after = ?started.elapsed(), "cutting tasks that did not end in time");
            scope.cut.cancel();
            // An error: a task that blocks its thread. Nothing more can be done about it here.
            let _ = tokio::time::timeout(CUT_GRACE, scope.tracker.wait()).await;
        }
        ShutdownReport {
            cut,
            panics: self.panics(),
            failure: scope.shared.failure.lock().clone(),
            took: started.elapsed(),
        }
    }

    /// Registers the task metrics. Called once, by `metrics::Registry::standard`.
    pub fn register(&self, registry: &mut Registry) {
        let panics = self.scope.shared.panics.clone();
        registry.register("panics", "Panics caught in tasks and requests", panics);
    }

    /// Combinators all the way: an async block has room for what it captured and once more for what it awaits.
    fn track(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let guard = self.scope.enter(name);
        let cut = when_woken(self.scope.cut.clone().cancelled_owned());
        // Whichever ends first ends both. Dropped before the guard, also when the task is aborted: the scope is empty only when
        // they are gone.
        let either = try_join(cut.map(Err::<(), ()>), future.map(Err::<(), ()>));
        let tracked = either.map(move |_| drop(guard));
        #[allow(clippy::disallowed_methods)] // the one place
        match &self.runtime {
            Some(runtime) => runtime.spawn(tracked).abort_handle(),
            None => tokio::spawn(tracked).abort_handle(),
        }
    }
}

impl Scope {
    fn new(
        parent: Option<Arc<Self>>,
        stop: CancellationToken,
        cut: CancellationToken,
        shared: Arc<Shared>,
    ) -> Arc<Self> {
        Arc::new(Self {
            parent,
            tracker: TaskTracker::new(),
            stop,
            cut,
            running: Mutex::default(),
            shared,
        })
    }

    /// Counts one task here and in every ancestor, until the guard is dropped.
    fn enter(self: &Arc<Self>, name: &'static str) -> Running {
        let mut entered = Vec::with_capacity(2);
        let mut next = Some(self);
        while let Some(scope) = next {
            *scope.running.lock().entry(name).or_default() += 1;
            entered.push((scope.clone(), scope.tracker.token()));
            next = scope.parent.as_ref();
        }
        Running { name, entered }
    }

    fn leave(&self, name: &'static str) {
        let mut running = self.running.lock();
        if let Some(count) = running.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                running.remove(name);
            }
        }
    }
}

struct Running {
    name: &'static str,
    entered: Vec<(Arc<Scope>, tokio_util::task::task_tracker::TaskTrackerToken)>,
}

impl Drop for Running {
    fn drop(&mut self) {
        for (scope, _token) in self.entered.drain(..) {
            scope.leave(self.name);
        }
    }
}

impl Shared {
    fn count_panic(&self, place: &'static str, message: &str) {
        self.panics.inc();
        tracing::error!(task = place, error = message, "panicked");
    }

    fn fail(&self, failure: TaskFailure) {
        tracing::error!(
            task = failure.task,
            error = failure.reason,
            "critical task ended, stopping the program"
        );
        self.failure.lock().get_or_insert(failure);
        self.program.cancel();
    }
}

impl ShutdownReport {
    /// All tasks ended by themselves and none of the critical ones did so early.
    pub fn is_clean(&self) -> bool {
        self.cut.is_empty() && self.failure.is_none()
    }

    /// The outcome of `main`: a critical task's early end is the program's error. Cut tasks are not: they were logged.
    pub fn into_result(self) -> Result<(), TaskFailure> {
        self.failure.map_or(Ok(()), Err)
    }
}

/// Resolves at the first SIGTERM or SIGINT after the call; from then on neither kills the process by itself.
#[allow(clippy::missing_panics_doc)]
pub async fn wait_for_signal() -> StopCause {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).expect("a handler for SIGTERM can be installed");
    let mut interrupt = signal(SignalKind::interrupt()).expect("a handler for SIGINT can be installed");
    tokio::select! {
        _ = terminate.recv() => StopCause::Terminate,
        _ = interrupt.recv() => StopCause::Interrupt,
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a value that is no text").to_owned()
}

#[cfg(test)]
mod tests;
