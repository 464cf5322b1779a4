//! The life of one Pod on the node: takes its place, runs its containers as `plan` says, tells what becomes of them, and
//! clears up.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use portolan_runtime::{Backoff, Tasks};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use crate::container::{News, Run, Stop, grace_of};
use crate::field::Place;
use crate::launch::Ground;
use crate::log;
use crate::machine::Machine;
use crate::plan::{Aim, plan};
use crate::record::{Record, Role, State, containers, records};
use crate::reporter::{self, Told};
use crate::sandbox::Sandbox;
use crate::status::{Facts, status};
use crate::volumes::Writer;

/// What sidecars get at least, also where the others have used up all of the Pod's grace.
const LEAST_GRACE: Duration = Duration::from_secs(2);
/// News of containers that are not read yet. The worker reads at once; a container waits for it.
const NEWS: usize = 16;

/// The Pod as it was seen last.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) pod: Arc<Pod>,
    /// There is no such object any more.
    pub(crate) gone: bool,
}

impl Seen {
    fn aim(&self) -> Aim {
        if self.gone || self.pod.metadata.deletion_timestamp.is_some() {
            Aim::End
        } else {
            Aim::Run
        }
    }
}

/// News of the container at a place, of the run that began with this number.
type Event = (usize, News);

/// One Pod.
pub(crate) struct Worker {
    machine: Arc<Machine>,
    seen: watch::Receiver<Seen>,
    tasks: Tasks,
    start: Timestamp,
    specs: Vec<Container>,
    records: Vec<Record>,
    /// Of the run under way: how it is told to end.
    stops: Vec<watch::Sender<Option<Stop>>>,
    ground: Option<Arc<Ground>>,
    over: bool,
    /// When all of it must have ended, once that has been asked for.
    deadline: Option<Instant>,
    told: watch::Sender<Told>,
}

impl Worker {
    pub(crate) fn new(machine: Arc<Machine>, seen: watch::Receiver<Seen>, tasks: Tasks) -> Self {
        let pod = seen.borrow().pod.clone();
        let records = records(&pod);
        Self {
            machine,
            tasks: tasks.child(),
            start: Timestamp::now(),
            specs: containers(&pod).map(|(_, container)| container.clone()).collect(),
            stops: records.iter().map(|_| watch::Sender::new(None)).collect(),
            records,
            ground: None,
            over: false,
            deadline: None,
            told: watch::Sender::default(),
            seen,
        }
    }

    /// Runs until the object is gone and nothing of it runs.
    pub(crate) async fn run(mut self) {
        let pod = self.pod();
        let folder = self.machine.pod_folder(&pod);
        let report = {
            let (client, pod, told) = (self.machine.client.clone(), pod.clone(), self.told.subscribe());
            async move { reporter::run(client, &pod, told).await }
        };
        self.spawn("pod-status", report);
        let has_ended = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if matches!(has_ended, Some("Succeeded" | "Failed")) {
            self.until_gone().await;
        } else {
            self.take_place().await;
            self.work().await;
        }
        self.tasks.cancel();
        drop(self);
        if let Err(error) = std::fs::remove_dir_all(&folder)
            && folder.exists()
        {
            tracing::warn!(folder = %folder.display(), %error, "cannot remove the folder of a Pod");
        }
    }

    fn pod(&self) -> Arc<Pod> {
        self.seen.borrow().pod.clone()
    }

    /// A Pod that had ended before this node saw it.
    async fn until_gone(&mut self) {
        loop {
            let seen = self.seen.borrow_and_update().clone();
            if seen.gone {
                return;
            }
            let finished = seen.aim() == Aim::End;
            self.told
                .send_if_modified(|told| std::mem::replace(&mut told.finished, finished) != finished);
            if self.seen.changed().await.is_err() {
                return;
            }
        }
    }

    /// What containers need before the first can start; tried until it is there, or not wanted any more.
    async fn take_place(&mut self) {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        self.tell();
        while self.seen.borrow().aim() == Aim::Run {
            match self.ground().await {
                Ok((ground, volumes)) => {
                    self.ground = Some(Arc::new(ground));
                    let keeping = keep(volumes, self.seen.clone(), self.machine.pace.refresh);
                    self.spawn("pod-volumes", keeping);
                    return;
                }
                Err(error) => self.blocked(&format!("{error:#}")),
            }
            tokio::select! {
                () = backoff.sleep() => {}
                changed = self.seen.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn ground(&self) -> anyhow::Result<(Ground, Writer)> {
        let (machine, pod) = (&self.machine, self.pod());
        let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or_default();
        let sandbox = Sandbox::create(&machine.tools, &machine.isolation, machine.address, host_network).await?;
        let place = Place {
            node: machine.node.clone(),
            host_ip: machine.address,
            pod_ip: sandbox.address,
        };
        let mut volumes = Writer::new(machine.clone(), &pod, place.clone());
        volumes.refresh(&pod).await?;
        Ok((Ground { place, sandbox }, volumes))
    }

    /// A task that ends with the Pod.
    fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.tasks.token();
        self.tasks.spawn(name, async move {
            let _ = stop.run_until_cancelled(task).await;
        });
    }

    /// Says why no container starts.
    fn blocked(&mut self, why: &str) {
        let pod = self.pod();
        tracing::warn!(pod = pod.metadata.name, why, "cannot make a place for the Pod yet");
        for record in &mut self.records {
            if let State::Waiting { message, .. } = &mut record.state {
                *message = Some(why.to_owned());
            }
        }
        self.tell();
    }

    async fn work(&mut self) {
        let (sender, mut news) = mpsc::channel::<Event>(NEWS);
        loop {
            let seen = self.seen.borrow_and_update().clone();
            let aim = if self.over { Aim::End } else { seen.aim() };
            let plan = plan(&self.records, aim, Instant::now());
            for at in plan.start {
                self.start(at, &sender);
            }
            self.end_by(&seen);
            for at in plan.stop {
                self.stop(at);
            }
            self.over |= plan.over;
            self.tell();
            if self.over && seen.gone {
                return;
            }
            tokio::select! {
                Some((at, news)) = news.recv() => self.hear(at, news),
                changed = self.seen.changed() => if changed.is_err() { return },
                () = at(plan.again_at) => {}
            }
        }
    }

    /// Sets when all must have ended, and moves it nearer for runs that are ending already.
    fn end_by(&mut self, seen: &Seen) {
        if seen.aim() == Aim::Run {
            return;
        }
        let grace = if seen.gone {
            0
        } else {
            seen.pod.metadata.deletion_grace_period_seconds.unwrap_or_default()
        };
        let deadline = Instant::now() + seconds(grace);
        let nearer = self.deadline.is_none_or(|before| deadline < before);
        if !nearer {
            return;
        }
        self.deadline = Some(deadline);
        for stop in &self.stops {
            stop.send_if_modified(|stop| match stop {
                Some(stop) if deadline < stop.deadline => {
                    stop.deadline = deadline;
                    true
                }
                _ => false,
            });
        }
    }

    fn start(&mut self, at: usize, sender: &mpsc::Sender<Event>) {
        let Some(ground) = self.ground.clone() else { return };
        let pod = self.pod();
        let record = &mut self.records[at];
        if let State::Ended(ended) = &record.state {
            record.last = Some(ended.clone());
            record.restarts += 1;
        }
        record.state = State::Starting;
        record.stopping = false;
        let log = self.machine.log(&pod, &record.name, record.restarts);
        if let Err(error) = log::begin(&log) {
            tracing::warn!(log = %log.display(), %error, "cannot keep the log of a container");
        }
        self.stops[at] = watch::Sender::new(None);
        let run = Run {
            machine: self.machine.clone(),
            container: self.specs[at].clone(),
            ground,
            number: record.restarts,
            id: record.id(&pod),
            place: at,
            teller: sender.clone(),
            pod,
        };
        self.spawn("container", run.run(self.stops[at].subscribe()));
    }

    fn stop(&mut self, at: usize) {
        let now = Instant::now();
        let deadline = match self.deadline {
            Some(deadline) if self.records[at].role == Role::Sidecar => deadline.max(now + LEAST_GRACE),
            Some(deadline) => deadline,
            None => now + grace_of(&self.pod()),
        };
        self.records[at].stopping = true;
        self.stops[at].send_replace(Some(Stop { deadline }));
    }

    fn hear(&mut self, at: usize, news: News) {
        let pace = &self.machine.pace;
        let record = &mut self.records[at];
        match news {
            News::Blocked { reason, message } => {
                tracing::info!(
                    container = record.name,
                    reason,
                    message,
                    "a container cannot be started"
                );
                let message = Some(message);
                record.state = State::Waiting { reason, message };
                record.put_off(Instant::now(), pace.first_pause, pace.longest_pause);
            }
            News::Running(running) => record.state = State::Running(running),
            News::Started => {
                record.has_started = true;
                record.running(|running| running.started = true);
            }
            News::Ready(ready) => record.running(|running| running.ready = ready),
            News::Ended(ended) => {
                tracing::info!(container = record.name, code = ended.code, "a container has ended");
                record.ended(ended, Instant::now(), pace.first_pause, pace.longest_pause);
            }
        }
    }

    fn tell(&mut self) {
        let seen = self.seen.borrow().clone();
        let facts = Facts {
            pod: &seen.pod,
            place: self.ground.as_ref().map(|ground| &ground.place),
            start: self.start,
            over: self.over,
            now: Timestamp::now(),
        };
        let before = self.told.borrow().status.clone();
        let before = before.as_ref().or(seen.pod.status.as_ref());
        let told = Told {
            status: Some(status(&self.records, &facts, before)),
            finished: self.over && seen.aim() == Aim::End,
        };
        self.told.send_if_modified(|old| {
            let is_new = *old != told;
            *old = told;
            is_new
        });
    }
}

/// Keeps the volumes as they should be, also after the Pod was changed. What fails counts for nothing but the next try.
async fn keep(mut volumes: Writer, mut seen: watch::Receiver<Seen>, every: Duration) {
    let told = |pod: &Pod| (pod.metadata.labels.clone(), pod.metadata.annotations.clone());
    let mut before = told(&seen.borrow().pod);
    loop {
        let changed = async { seen.wait_for(|seen| told(&seen.pod) != before).await.is_ok() };
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            changed = changed => if !changed { return },
        }
        let pod = seen.borrow_and_update().pod.clone();
        before = told(&pod);
        if let Err(error) = volumes.refresh(&pod).await {
            let error = format!("{error:#}");
            tracing::warn!(pod = pod.metadata.name, error, "cannot refresh the volumes of a Pod");
            tokio::time::sleep(every).await;
        }
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

fn seconds(number: i64) -> Duration {
    Duration::from_secs(u64::try_from(number).unwrap_or_default())
}
