//! Is the member's API server well, and where are its resourceVersions? One `/readyz` round trip and one small consistent
//! read each period, and its version now and then.
//!
//! Probes go on whether or not a hub listens. Callers: `app` runs it, `report` sends each answer as a heartbeat.

use std::time::{Duration, Instant};

use kube::Client;
use portolan_runtime::Chain;
use portolan_wire::v1::Heartbeat;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::member::{self, CallError};
use crate::metrics::Metrics;

/// Period of probes and so of heartbeats.
pub(crate) const HEARTBEAT_PERIOD: Duration = Duration::from_secs(5);
/// After one that failed: a member that comes back from a backup is to be read before much is written to it.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Shorter than the period, so that a hanging API server never delays a heartbeat.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// A clock that was read for longer may be off by as much.
const CLOCK_WITHIN: Duration = Duration::from_secs(1);
/// The version is asked for again after this many probes: it changes with an upgrade of the control plane.
const VERSION_EVERY: u32 = 12;

/// For how long it is told that the member went back: a hub that starts anew is there by then.
const FALL_TOLD: Duration = Duration::from_mins(1);

/// Where the member's resourceVersions are, and whether they went back of late.
#[derive(Debug, Default)]
struct Course {
    version: u64,
    fell: Option<(u64, Instant)>,
}

impl Course {
    /// Takes in what was read, 0 for nothing; returns what the member fell from, if that is to be told.
    fn read(&mut self, version: u64, now: Instant) -> u64 {
        if (1..self.version).contains(&version) {
            self.fell = Some((self.version, now));
        }
        if version > 0 {
            self.version = version;
        }
        let told = self.fell.filter(|(_, at)| now.duration_since(*at) < FALL_TOLD);
        told.map_or(0, |(from, _)| from)
    }
}

/// What a probe found.
#[derive(Debug, Clone, Default)]
pub(crate) struct Beat {
    heartbeat: Heartbeat,
    /// When it began. `None`: none has.
    began: Option<Instant>,
    /// `None`: not read.
    clock: Option<Clock>,
}

/// What the API server's clock said.
#[derive(Debug, Clone, Copy)]
struct Clock {
    unix_milliseconds: i64,
    at: Instant,
}

impl Clock {
    /// What it says now.
    fn at(self, now: Instant) -> i64 {
        let since = now.saturating_duration_since(self.at).as_millis();
        self.unix_milliseconds
            .saturating_add(i64::try_from(since).unwrap_or(i64::MAX))
    }
}

impl Beat {
    /// What the hub is told on a stream that began at `since`. Without the resourceVersion if that was read before: another
    /// agent of the member may have told a later one meanwhile, and a member whose versions go back is one that was restored.
    pub(crate) fn told(&self, since: Instant) -> Heartbeat {
        let is_of_now = self.began.is_some_and(|began| began >= since);
        Heartbeat {
            resource_version: self.heartbeat.resource_version * u64::from(is_of_now),
            api_clock_unix_milliseconds: self.clock.map(|clock| clock.at(Instant::now())),
            ..self.heartbeat.clone()
        }
    }
}

/// Probes for ever. `heartbeats` wakes its readers at each probe, also when nothing changed.
pub(crate) async fn run(client: Client, heartbeats: watch::Sender<Option<Beat>>, metrics: Metrics) {
    let mut version = String::new();
    let mut course = Course::default();
    let mut ticks = tokio::time::interval(HEARTBEAT_PERIOD);
    // A probe that took long must not be followed by a burst.
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for round in 0_u32.. {
        ticks.tick().await;
        let began = Some(Instant::now());
        let version_read = timeout(PROBE_TIMEOUT, member::resource_version(&client));
        let clock = timeout(PROBE_TIMEOUT, read_clock(&client));
        let ((answer, took), version_read, clock) = tokio::join!(probe(&client), version_read, clock);
        if answer.is_ok() && (version.is_empty() || round % VERSION_EVERY == 0) {
            // Without an answer the last known one is told.
            if let Ok(Ok(found)) = timeout(PROBE_TIMEOUT, member::version(&client)).await {
                version = found;
            }
        }
        metrics.probed(answer.is_ok(), took);
        if let Err(reason) = &answer
            && heartbeats.borrow().as_ref().is_none_or(|last| last.heartbeat.api_ready)
        {
            tracing::warn!(reason, "the member's API server is not ready");
        }
        if answer.is_err() {
            ticks.reset_after(AGAIN_AFTER);
        }
        let resource_version = version_read.ok().and_then(Result::ok).unwrap_or_default();
        let heartbeat = Heartbeat {
            resource_version,
            fell_from: course.read(resource_version, Instant::now()),
            ..heartbeat(answer, took, &version)
        };
        let clock = clock.ok().flatten();
        heartbeats.send_replace(Some(Beat {
            heartbeat,
            began,
            clock,
        }));
    }
}

async fn probe(client: &Client) -> (Result<(), String>, Duration) {
    let started = Instant::now();
    let answer = timeout(PROBE_TIMEOUT, member::get_text(client, "/readyz")).await;
    let answer = answer.unwrap_or(Err(CallError::Timeout(PROBE_TIMEOUT)));
    (refusal_of(answer), started.elapsed())
}

/// The clock of the API server, by the head of any answer. `None` where that took so long that it says little.
async fn read_clock(client: &Client) -> Option<Clock> {
    let asked = Instant::now();
    let seconds = member::date(client).await?;
    let took = asked.elapsed();
    // It says whole seconds, of some moment between question and answer.
    (took < CLOCK_WITHIN).then(|| Clock {
        unix_milliseconds: seconds.saturating_mul(1_000).saturating_add(500),
        at: asked + took / 2,
    })
}

/// `/readyz` answers 200 and "ok", else 500 and a list of its checks.
fn refusal_of(answer: Result<String, CallError>) -> Result<(), String> {
    match answer {
        Ok(_) => Ok(()),
        Err(error) => Err(match error.status() {
            Some(status) => format!("/readyz answers {status}"),
            None => Chain(&error).to_string(),
        }),
    }
}

fn heartbeat(answer: Result<(), String>, took: Duration, version: &str) -> Heartbeat {
    Heartbeat {
        api_ready: answer.is_ok(),
        latency_milliseconds: u32::try_from(took.as_millis()).unwrap_or(u32::MAX),
        kubernetes_version: version.to_owned(),
        message: answer.err().unwrap_or_default(),
        ..Heartbeat::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_member_fell_from_is_told_for_a_minute() {
        let (mut course, now) = (Course::default(), Instant::now());
        let later = |seconds| now + Duration::from_secs(seconds);
        let told = [
            (100, 0),
            (160, 1),
            (0, 2),
            (90, 3),
            (0, 4),
            (120, 62),
            (130, 63),
            (131, 64),
        ];
        let told = told.map(|(version, seconds)| course.read(version, later(seconds)));
        assert_eq!(told, [0, 0, 0, 160, 160, 160, 0, 0]);
    }

    #[test]
    fn a_clock_goes_on_between_its_reading_and_its_telling() {
        let now = Instant::now();
        let clock = Clock {
            unix_milliseconds: 1_700_000_000_500,
            at: now,
        };
        assert_eq!(clock.at(now + Duration::from_millis(4_200)), 1_700_000_004_700);
        let told = |clock| {
            Beat {
                clock,
                ..Beat::default()
            }
            .told(now)
            .api_clock_unix_milliseconds
        };
        assert!(told(Some(clock)).is_some_and(|told| told >= 1_700_000_000_500));
        assert_eq!(told(None), None, "nobody knows");
    }

    #[test]
    fn a_version_that_was_read_before_the_stream_is_not_told_on_it() {
        let since = Instant::now();
        let beat = |began| Beat {
            heartbeat: Heartbeat {
                api_ready: true,
                resource_version: 7,
                ..Heartbeat::default()
            },
            began,
            clock: None,
        };
        let before = beat(since.checked_sub(Duration::from_secs(1))).told(since);
        assert!(before.api_ready && before.resource_version == 0);
        assert_eq!(beat(Some(since)).told(since).resource_version, 7);
    }
}
