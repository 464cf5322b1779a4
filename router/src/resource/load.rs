//! How loaded this router itself is, and what it sheds for it: lists first, then starts of watches, then single requests; never
//! Leases, and never what watches that run ask.
//!
//! Two signals: memory in use against the limit of its container or the flag's (`memory`), and how late timers of the runtime
//! that serves requests wake up. What follows from them is pure (`core`). Callers: `admit` asks before anything is spent on a
//! request, `app` starts what measures. Not here: bounds on callers and members, which are no matter of load (`admit`,
//! `queues`).

mod core;
mod memory;
mod metrics;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use portolan_runtime::Tasks;
use tokio::time::Instant;

use self::core::{Core, Reason};
pub(crate) use self::core::{Level, Settings, Shedding};
use self::memory::Memory;
pub(crate) use self::metrics::{Lateness, LoadMetrics};

/// Between two timers whose lateness is measured: often enough to see a stall of a second within a few.
const DELAY_EVERY: Duration = Duration::from_millis(100);
/// Between two looks at the memory in use: two or three small files of the kernel's.
const MEMORY_EVERY: Duration = Duration::from_millis(250);

/// How loaded this router is. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    // A mutex: two tasks write some times a second, and who is shed reads why.
    core: Mutex<Core>,
    /// What the core says, for the requests. An atomic: each reads it, and one that is a moment old harms nobody.
    level: AtomicU8,
    metrics: LoadMetrics,
}

/// How much memory this process may have: the least of the limits of its cgroups and `own`; `None`: nobody limits it.
pub(crate) fn memory_limit(own: Option<u64>) -> Option<u64> {
    Memory::of_this_process(own).nearest()
}

impl Load {
    pub(crate) fn new(settings: Settings, metrics: LoadMetrics) -> Self {
        Self {
            shared: Arc::new(Shared {
                core: Mutex::new(Core::new(settings)),
                level: AtomicU8::new(0),
                metrics,
            }),
        }
    }

    /// Why requests that are shed from this level on are not served now. `modest`: whether who asks takes less than others do,
    /// and so is not what keeps the processor busy; of memory that is not known.
    pub(crate) fn sheds(&self, from: Level, modest: impl FnOnce() -> bool) -> Option<Shedding> {
        // Nearly always calm: one load.
        if self.shared.level.load(Ordering::Relaxed) < from as u8 {
            return None;
        }
        let shedding = self.shared.core.lock().shedding(from)?;
        if shedding.reason == Reason::Delay && modest() {
            return None;
        }
        self.shared.metrics.shed(from, shedding.reason);
        Some(shedding)
    }

    /// Measures how late timers of the runtime of `tasks` wake up, until those end.
    pub(crate) fn follow_delay(&self, tasks: &Tasks) {
        let load = self.clone();
        tasks.spawn_service("load-delay", async move {
            loop {
                let due = Instant::now() + DELAY_EVERY;
                tokio::time::sleep_until(due).await;
                load.change(|core| core.late(due.elapsed(), Instant::now().into_std()));
            }
        });
    }

    /// Looks at the memory in use, until `tasks` end. `limit`: of this process, besides its container's. `accounted`: bytes
    /// that the router knows it holds, or has promised to hold.
    pub(crate) fn follow_memory(
        &self,
        limit: Option<u64>,
        accounted: impl Fn() -> usize + Send + 'static,
        tasks: &Tasks,
    ) {
        let (load, memory) = (self.clone(), Memory::of_this_process(limit));
        if let Some(bytes) = memory.nearest() {
            tracing::info!(bytes, "requests are shed by memory in use of this limit");
        } else {
            tracing::info!("no memory limit: requests are not shed by memory in use; see --memory-limit");
        }
        tasks.spawn_service("load-memory", async move {
            loop {
                let in_use = memory.in_use(accounted() as u64);
                load.change(|core| core.memory(in_use, Instant::now().into_std()));
                tokio::time::sleep(MEMORY_EVERY).await;
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut Core) -> bool) {
        let mut core = self.shared.core.lock();
        let changed = change(&mut core);
        self.shared.metrics.measured(&core);
        if !changed {
            return;
        }
        let (level, shedding) = (core.level(), core.shedding(Level::Lists));
        self.shared.level.store(level as u8, Ordering::Relaxed);
        drop(core);
        if let Some(why) = shedding {
            tracing::warn!(level = level.as_str(), %why, "this router sheds requests");
        } else {
            tracing::info!("this router sheds nothing any more");
        }
    }

    /// As late as that, and for long, in tests.
    #[cfg(test)]
    pub(crate) fn set_late(&self, by: Duration) {
        for _ in 0..50 {
            self.change(|core| core.late(by, Instant::now().into_std()));
        }
    }

    /// As loaded as that, in tests.
    #[cfg(test)]
    pub(crate) fn set_memory(&self, in_use: f64) {
        self.change(|core| core.memory(Some(in_use), Instant::now().into_std()));
    }
}

impl Default for Load {
    /// Of a router that measures nothing, and sheds nothing.
    fn default() -> Self {
        Self::new(Settings::default(), LoadMetrics::default())
    }
}
