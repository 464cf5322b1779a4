//! One run of one container, from the first variable to the last line of its log. Whether there is another is not decided
//! here but by `plan`.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use nix::sys::signal::Signal;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::launch::{Ground, Inside, Launch, Launched};
use crate::log;
use crate::machine::Machine;
use crate::process::{Process, signal};
use crate::record::{Ended, Running};

/// How long a program that has ended may still be heard: somebody it started may hold its pipes for ever.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Exit code of a program that did not begin, as container runtimes have it.
const NOT_STARTED: i32 = 128;

/// That a container shall end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// When it is killed.
    pub(crate) deadline: Instant,
}

/// What the run has to tell.
#[derive(Debug)]
pub(crate) enum News {
    /// It does not run, and not by its own fault: its status waits for this reason.
    Blocked {
        reason: &'static str,
        message: String,
    },
    /// The program runs.
    Running(Running),
    Started,
    Ready(bool),
    /// The last of all.
    Ended(Ended),
}

/// One run to be.
pub(crate) struct Run {
    pub(crate) machine: Arc<Machine>,
    pub(crate) pod: Arc<Pod>,
    pub(crate) container: Container,
    pub(crate) ground: Arc<Ground>,
    /// Which run of this container it is, from 0.
    pub(crate) number: u32,
    /// What its status calls it.
    pub(crate) id: String,
}

impl Run {
    /// Runs to the end. Dropping this kills the program.
    pub(crate) async fn run<T, F>(self, mut stop: watch::Receiver<Option<Stop>>, tell: T)
    where
        T: Fn(News) -> F,
        F: Future<Output = ()>,
    {
        let begun = Timestamp::now();
        let launch = Launch {
            machine: &self.machine,
            pod: &self.pod,
            container: &self.container,
            ground: &self.ground,
        };
        let launched = tokio::select! {
            launched = launch.start() => launched,
            () = asked(&mut stop) => return tell(News::Ended(self.ended(begun, NOT_STARTED, None))).await,
        };
        match launched {
            Ok(launched) => {
                let ended = self.live(launched, stop, &tell).await;
                tell(News::Ended(ended)).await;
            }
            Err(cannot) if cannot.counts => {
                let ended = self.ended(begun, NOT_STARTED, Some(cannot.message));
                let ended = Ended {
                    reason: cannot.reason,
                    ..ended
                };
                tell(News::Ended(ended)).await;
            }
            Err(cannot) => {
                let (reason, message) = (cannot.reason, cannot.message);
                tell(News::Blocked { reason, message }).await;
            }
        }
    }

    async fn live<T, F>(&self, launched: Launched, stop: watch::Receiver<Option<Stop>>, tell: &T) -> Ended
    where
        T: Fn(News) -> F,
        F: Future<Output = ()>,
    {
        let since = Timestamp::now();
        let Launched {
            mut process,
            mut stdout,
            stderr,
            inside,
        } = launched;
        let path = self.machine.log(&self.pod, &self.container.name, self.number);
        let heard = async {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            let both = (
                log::copy_lines(&mut stdout, "stdout", &path),
                log::copy(stderr, "stderr", &path),
            );
            futures::future::try_join(both.0, both.1).await
        };
        let mut heard = std::pin::pin!(heard.fuse());
        let code = {
            let mut end = std::pin::pin!(self.until_end(&mut process, inside, stop, tell));
            loop {
                tokio::select! {
                    code = &mut end => break code,
                    _ = &mut heard => {}
                }
            }
        };
        process.kill();
        let _ = timeout(LAST_WORDS, heard).await;
        self.ended(since, code, None)
    }

    /// What happens to a program until it has ended; its exit code.
    async fn until_end<T, F>(
        &self,
        process: &mut Process,
        inside: Inside,
        mut stop: watch::Receiver<Option<Stop>>,
        tell: &T,
    ) -> i32
    where
        T: Fn(News) -> F,
        F: Future<Output = ()>,
    {
        let running = Running {
            id: self.id.clone(),
            since: Timestamp::now(),
            started: false,
            ready: false,
        };
        tell(News::Running(running)).await;
        tell(News::Started).await;
        tell(News::Ready(true)).await;
        tokio::select! {
            code = process.wait() => return code,
            () = asked(&mut stop) => {}
        }
        signal(inside.pid, Signal::SIGTERM);
        tokio::select! {
            code = process.wait() => code,
            () = deadline(&mut stop) => {
                signal(inside.pid, Signal::SIGKILL);
                process.wait().await
            }
        }
    }

    fn ended(&self, started: Timestamp, code: i32, message: Option<String>) -> Ended {
        Ended {
            id: self.id.clone(),
            code,
            reason: if code == 0 { "Completed" } else { "Error" },
            message,
            started,
            finished: Timestamp::now(),
        }
    }
}

/// Waits until it is to end; whoever may ask being gone is as good.
async fn asked(stop: &mut watch::Receiver<Option<Stop>>) {
    let _ = stop.wait_for(Option::is_some).await;
}

/// Waits for the deadline, which may come nearer meanwhile.
async fn deadline(stop: &mut watch::Receiver<Option<Stop>>) {
    loop {
        let deadline = stop.borrow_and_update().as_ref().map(|stop| stop.deadline);
        let reached = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = reached => return,
            changed = stop.changed() => if changed.is_err() { return },
        }
    }
}
