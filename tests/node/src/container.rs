//! One run of one container, from the first variable to the last line of its log. Whether there is another is not decided
//! here but by `plan`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::FusedFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Lifecycle, LifecycleHandler, Pod, Probe};
use nix::sys::signal::Signal;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::action::Action;
use crate::launch::{Ground, Launch, Launched};
use crate::log;
use crate::machine::{Inside, Machine};
use crate::probe::Check;
use crate::process::{Process, signal};
use crate::record::{Ended, Running};

/// How long a program that has ended may still be heard: somebody it started may hold its pipes for ever.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// What a program gets at least, after a preStop hook that took as long as it liked.
const LEAST_AFTER_HOOK: Duration = Duration::from_secs(2);
/// Seconds between TERM and KILL where the Pod does not say.
const DEFAULT_GRACE_SECONDS: u64 = 30;
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
    /// Its place among the containers of the Pod, by which the worker knows it.
    pub(crate) place: usize,
    pub(crate) teller: mpsc::Sender<(usize, News)>,
}

impl Run {
    /// Runs to the end. Dropping this kills the program.
    pub(crate) async fn run(self, mut stop: watch::Receiver<Option<Stop>>) {
        let begun = Timestamp::now();
        let launch = Launch {
            machine: &self.machine,
            pod: &self.pod,
            container: &self.container,
            ground: &self.ground,
        };
        let launched = tokio::select! {
            launched = launch.start() => launched,
            _ = asked(&mut stop) => return self.tell(News::Ended(self.ended(begun, NOT_STARTED, None))).await,
        };
        match launched {
            Ok(launched) => {
                let ended = self.live(launched, stop).await;
                self.tell(News::Ended(ended)).await;
            }
            Err(cannot) if cannot.counts => {
                let ended = self.ended(begun, NOT_STARTED, Some(cannot.message));
                let ended = Ended {
                    reason: cannot.reason,
                    ..ended
                };
                self.tell(News::Ended(ended)).await;
            }
            Err(cannot) => {
                let (reason, message) = (cannot.reason, cannot.message);
                self.tell(News::Blocked { reason, message }).await;
            }
        }
    }

    async fn tell(&self, news: News) {
        // An error: the worker is gone, and with it all who wanted to know.
        let _ = self.teller.send((self.place, news)).await;
    }

    async fn live(&self, launched: Launched, stop: watch::Receiver<Option<Stop>>) -> Ended {
        let since = Timestamp::now();
        let path = self.machine.log(&self.pod, &self.container.name, self.number);
        let Launched {
            mut process,
            mut stdout,
            stderr,
            inside,
        } = launched;
        let heard = async {
            let both = (
                log::copy_lines(&mut stdout, "stdout", &path),
                log::copy(stderr, "stderr", &path),
            );
            futures::future::try_join(both.0, both.1).await
        };
        let mut heard = std::pin::pin!(heard.fuse());
        let key = (
            self.pod.metadata.uid.clone().unwrap_or_default(),
            self.container.name.clone(),
        );
        self.machine.running.lock().insert(key.clone(), inside.clone());
        let (code, message) = {
            let life = Life {
                run: self,
                inside: &inside,
                since,
            };
            let mut end = std::pin::pin!(life.until_end(&mut process, stop));
            loop {
                tokio::select! {
                    end = &mut end => break end,
                    _ = &mut heard => {}
                }
            }
        };
        self.machine.running.lock().remove(&key);
        process.kill();
        if !heard.is_terminated() {
            let _ = timeout(LAST_WORDS, heard).await;
        }
        if let Err(error) = log::end(&path) {
            tracing::warn!(log = %path.display(), %error, "cannot mark the end of a log");
        }
        self.ended(since, code, message)
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

/// A program while it runs.
struct Life<'a> {
    run: &'a Run,
    inside: &'a Inside,
    since: Timestamp,
}

/// Why a container is to end, and until when.
struct End {
    deadline: Instant,
    message: Option<String>,
}

impl Life<'_> {
    /// What happens to a program until it has ended: its exit code, and why it was ended.
    async fn until_end(&self, process: &mut Process, mut stop: watch::Receiver<Option<Stop>>) -> (i32, Option<String>) {
        // Readiness goes on while the container ends, as with the kubelet; it begins once it has started.
        let (begun, begins) = watch::channel(false);
        let mut readiness = std::pin::pin!(self.readiness(begins));
        let end = tokio::select! {
            code = process.wait() => return (code, None),
            end = asked(&mut stop) => end,
            end = self.health(begun) => end,
            never = &mut readiness => match never {},
        };
        let code = tokio::select! {
            code = self.end(process, &mut stop, end.deadline) => code,
            never = &mut readiness => match never {},
        };
        (code, end.message)
    }

    /// Brings the container up and watches it: why it must end.
    async fn health(&self, begun: watch::Sender<bool>) -> End {
        if let Some(hook) = self.hook(|lifecycle| lifecycle.post_start.as_ref())
            && let Err(why) = self.act(hook).await
        {
            return self.failed("postStart", &why, None);
        }
        let running = Running {
            id: self.run.id.clone(),
            since: self.since,
            started: false,
            ready: false,
        };
        self.run.tell(News::Running(running)).await;
        let spec = &self.run.container;
        if let Some(probe) = &spec.startup_probe
            && let Err(end) = self.probe("startup", probe, true).await
        {
            return end;
        }
        self.run.tell(News::Started).await;
        begun.send_replace(true);
        if let Some(probe) = &spec.liveness_probe
            && let Err(end) = self.probe("liveness", probe, false).await
        {
            return end;
        }
        std::future::pending().await
    }

    /// Probes until it fails, or, if `once`, succeeds.
    async fn probe(&self, kind: &str, probe: &Probe, once: bool) -> Result<(), End> {
        let check = Check::new(probe, &self.run.container, &self.run.ground.place);
        let mut check = check.map_err(|why| self.failed(kind, &why, None))?;
        loop {
            let verdict = check.verdict(&self.run.machine, self.inside).await;
            verdict.map_err(|why| self.failed(kind, &why, check.grace))?;
            if once {
                return Ok(());
            }
        }
    }

    /// Tells whether the container is ready, for as long as it runs.
    async fn readiness(&self, mut begins: watch::Receiver<bool>) -> Infallible {
        // Never begun is never ready; an error is that it has ended before.
        if begins.wait_for(|begun| *begun).await.is_err() {
            return std::future::pending().await;
        }
        let Some(probe) = &self.run.container.readiness_probe else {
            self.run.tell(News::Ready(true)).await;
            return std::future::pending().await;
        };
        match Check::new(probe, &self.run.container, &self.run.ground.place) {
            Ok(mut check) => loop {
                let verdict = check.verdict(&self.run.machine, self.inside).await;
                self.run.tell(News::Ready(verdict.is_ok())).await;
            },
            Err(why) => {
                tracing::warn!(container = self.run.container.name, why, "never ready");
                std::future::pending().await
            }
        }
    }

    /// Asks the program to end, and kills it if it does not; its exit code.
    async fn end(&self, process: &mut Process, stop: &mut watch::Receiver<Option<Stop>>, deadline: Instant) -> i32 {
        let mut deadline = deadline;
        if deadline > Instant::now()
            && let Some(hook) = self.hook(|lifecycle| lifecycle.pre_stop.as_ref())
        {
            tokio::select! {
                code = process.wait() => return code,
                outcome = self.act(hook) => if let Err(why) = outcome {
                    tracing::warn!(container = self.run.container.name, why, "preStop failed");
                },
                () = until(deadline, stop) => {}
            }
            // A hook that has used up the grace leaves the program a moment all the same.
            deadline = deadline.max(Instant::now() + LEAST_AFTER_HOOK);
        }
        signal(self.inside.pid, Signal::SIGTERM);
        tokio::select! {
            code = process.wait() => code,
            () = until(deadline, stop) => {
                signal(self.inside.pid, Signal::SIGKILL);
                process.wait().await
            }
        }
    }

    fn hook(&self, which: impl Fn(&Lifecycle) -> Option<&LifecycleHandler>) -> Option<&LifecycleHandler> {
        self.run.container.lifecycle.as_ref().and_then(which)
    }

    async fn act(&self, hook: &LifecycleHandler) -> Result<(), String> {
        let action = Action::of_hook(hook, &self.run.container, self.run.ground.place.pod_ip)?;
        action.run(&self.run.machine, self.inside).await
    }

    fn failed(&self, what: &str, why: &str, grace: Option<Duration>) -> End {
        let message = format!("{what} failed: {why}");
        tracing::info!(container = self.run.container.name, message, "a container is ended");
        End {
            deadline: Instant::now() + grace.unwrap_or_else(|| grace_of(&self.run.pod)),
            message: Some(message),
        }
    }
}

/// Seconds between TERM and KILL, as the Pod has it.
pub(crate) fn grace_of(pod: &Pod) -> Duration {
    let wanted = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    Duration::from_secs(
        wanted
            .and_then(|wanted| wanted.try_into().ok())
            .unwrap_or(DEFAULT_GRACE_SECONDS),
    )
}

/// Waits until it is to end. Nobody left who could ask is as good.
async fn asked(stop: &mut watch::Receiver<Option<Stop>>) -> End {
    let asked = stop.wait_for(Option::is_some).await;
    let deadline = asked.ok().and_then(|stop| stop.as_ref().map(|stop| stop.deadline));
    End {
        deadline: deadline.unwrap_or_else(Instant::now),
        message: None,
    }
}

/// Waits for the deadline, which whoever asks may bring nearer meanwhile.
async fn until(deadline: Instant, stop: &mut watch::Receiver<Option<Stop>>) {
    let mut deadline = deadline;
    loop {
        let asked = stop.borrow_and_update().as_ref().map(|stop| stop.deadline);
        deadline = asked.map_or(deadline, |asked| asked.min(deadline));
        tokio::select! {
            () = sleep_until(deadline) => return,
            changed = stop.changed() => if changed.is_err() { return },
        }
    }
}
