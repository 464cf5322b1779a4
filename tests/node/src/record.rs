//! What the node knows of each container of a Pod: the facts that the next steps and the Pod's status are made of. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::time::Instant;

/// Which part a container has in its Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Runs to its end before the next.
    Init,
    /// An init container with `restartPolicy: Always`: has started before the next, and runs as long as the Pod.
    Sidecar,
    /// One of `containers`.
    Main,
}

/// When a container that has ended is run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    Always,
    OnFailure,
    Never,
}

/// How one run of a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) id: String,
    pub(crate) code: i32,
    pub(crate) reason: &'static str,
    pub(crate) message: Option<String>,
    pub(crate) started: Timestamp,
    pub(crate) finished: Timestamp,
}

/// Where a container is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Not running, and not run before or to be run again.
    Waiting {
        reason: &'static str,
        message: Option<String>,
    },
    /// A run has begun, and is not as far as that it counts as running: variables, program, postStart.
    Starting,
    Running(Running),
    /// Nothing more happens by itself.
    Ended(Ended),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) id: String,
    pub(crate) since: Timestamp,
    /// The startup probe has succeeded, or there is none.
    pub(crate) started: bool,
    /// The readiness probe succeeds, or there is none; never before `started`.
    pub(crate) ready: bool,
}

/// One container of a Pod.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) role: Role,
    pub(crate) restart: Restart,
    pub(crate) state: State,
    /// The run before the present one.
    pub(crate) last: Option<Ended>,
    pub(crate) restarts: u32,
    /// It has been as far as `started` once.
    pub(crate) has_started: bool,
    /// It is asked to end.
    pub(crate) stopping: bool,
    /// Not to be run again before.
    pub(crate) not_before: Option<Instant>,
    /// The wait before the run after the next failure.
    pub(crate) pause: Duration,
}

/// The containers of a Pod in the order they start: init containers, then the others.
pub(crate) fn containers(pod: &Pod) -> impl Iterator<Item = (Role, &Container)> {
    let spec = pod.spec.as_ref();
    let first = spec
        .and_then(|spec| spec.init_containers.as_ref())
        .into_iter()
        .flatten();
    let first = first.map(|container| (role(container), container));
    let then = spec.map(|spec| &spec.containers).into_iter().flatten();
    first.chain(then.map(|container| (Role::Main, container)))
}

fn role(container: &Container) -> Role {
    match container.restart_policy.as_deref() {
        Some("Always") => Role::Sidecar,
        _ => Role::Init,
    }
}

/// A record for each container of a Pod that has not begun. A Pod that was on a node before, which has lost its processes,
/// begins anew, and counts on.
pub(crate) fn records(pod: &Pod) -> Vec<Record> {
    let of_pod = match pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) {
        Some("Never") => Restart::Never,
        Some("OnFailure") => Restart::OnFailure,
        _ => Restart::Always,
    };
    let begun = |name: &str| {
        let status = pod.status.as_ref()?;
        let first = status.init_container_statuses.iter().flatten();
        let mut all = first.chain(status.container_statuses.iter().flatten());
        let found = all.find(|found| found.name == name)?;
        let is_new = found.container_id.as_deref().unwrap_or_default().is_empty();
        let restarts = u32::try_from(found.restart_count).unwrap_or_default();
        Some(restarts + u32::from(!is_new))
    };
    containers(pod)
        .map(|(role, container)| Record {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            role,
            restart: match (role, of_pod) {
                (Role::Main, policy) => policy,
                (Role::Sidecar, _) => Restart::Always,
                // "Always" would have it run for ever.
                (Role::Init, Restart::Never) => Restart::Never,
                (Role::Init, _) => Restart::OnFailure,
            },
            state: State::Waiting {
                reason: if role == Role::Main {
                    "PodInitializing"
                } else {
                    "ContainerCreating"
                },
                message: None,
            },
            last: None,
            restarts: begun(&container.name).unwrap_or_default(),
            has_started: false,
            stopping: false,
            not_before: None,
            pause: Duration::ZERO,
        })
        .collect()
}

impl Record {
    /// Whether a run of it is under way.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.state, State::Starting | State::Running(_))
    }

    /// Whether it has ended as it should.
    pub(crate) fn has_succeeded(&self) -> bool {
        matches!(&self.state, State::Ended(ended) if ended.code == 0)
    }

    /// Whether it has ended, and its policy wants another run.
    pub(crate) fn wants_again(&self) -> bool {
        match (&self.state, self.restart) {
            (State::Ended(_), Restart::Always) => true,
            (State::Ended(ended), Restart::OnFailure) => ended.code != 0,
            _ => false,
        }
    }

    /// Whether it runs and is ready.
    pub(crate) fn is_ready(&self) -> bool {
        match &self.state {
            State::Running(running) => running.started && running.ready,
            // Done is as good as ready for those that are to be done.
            State::Ended(_) => self.role == Role::Init && self.has_succeeded(),
            _ => false,
        }
    }

    /// Changes what is known of the run, if it still runs.
    pub(crate) fn running(&mut self, change: impl FnOnce(&mut Running)) {
        if let State::Running(running) = &mut self.state {
            change(running);
        }
    }

    /// A run has ended. The first failure is made good at once, later ones after ever longer pauses.
    pub(crate) fn ended(&mut self, ended: Ended, now: Instant, first: Duration, longest: Duration) {
        let lasted = ended.finished.duration_since(ended.started);
        if lasted.unsigned_abs() > 2 * longest {
            self.pause = Duration::ZERO;
        }
        self.state = State::Ended(ended);
        self.not_before = Some(now + self.pause);
        self.pause = (2 * self.pause).clamp(first, longest);
    }

    /// It could not be started, and is not to be tried again at once.
    pub(crate) fn put_off(&mut self, now: Instant, first: Duration, longest: Duration) {
        self.pause = (2 * self.pause).clamp(first, longest);
        self.not_before = Some(now + self.pause);
    }

    /// What the status calls the run under way.
    pub(crate) fn id(&self, pod: &Pod) -> String {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        format!("process://{uid}/{}/{}", self.name, self.restarts)
    }
}
