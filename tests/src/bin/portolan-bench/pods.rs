//! Pods of 3 KB, as one list and as events: what the backend serves when the benchmark compares merged with direct.
//!
//! Every event carries the time it was made, so that the client can tell how long it took through the router.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::Stream;
use hyper::body::Frame;
use serde_json::json;
use std::convert::Infallible;
use tokio::time::{Instant, Sleep};
use tokio_stream::wrappers::WatchStream;

/// Of the list. Events come after it.
const LIST_VERSION: u64 = 4_711;
/// Room for the versions of one burst.
const VERSIONS_PER_BURST: u64 = 10_000_000;
/// Between looks at what is due: a timer of tokio is no finer.
const TICK: Duration = Duration::from_millis(1);
/// Events that one look makes at most, so that the stream stays fair.
const MOST_AT_ONCE: u64 = 64;

/// Annotation that says when an event was made: nanoseconds since 1970.
pub(crate) const MADE_AT: &[u8] = b"\"bench/made-at\":\"";

/// A burst of events, told to every watch at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Burst {
    /// Counts bursts; 0 is none.
    pub(crate) number: u64,
    pub(crate) events: u64,
    /// A second; 0 is as fast as they are taken.
    pub(crate) rate: u64,
}

/// What is the same in every pod but for its name and version.
#[derive(Debug)]
pub(crate) struct Pods {
    member: String,
    after_version: String,
    list: Bytes,
}

impl Pods {
    pub(crate) fn new(member: &str, count: usize) -> Self {
        let mut pods = Self {
            member: member.to_owned(),
            after_version: after_version(),
            list: Bytes::new(),
        };
        let mut list = BytesMut::new();
        list.extend_from_slice(
            format!(
                r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"{LIST_VERSION}"}},"items":["#
            )
            .as_bytes(),
        );
        for number in 0..count {
            if number > 0 {
                list.put_u8(b',');
            }
            pods.write(&mut list, number as u64, 1 + number as u64 % LIST_VERSION, 0);
        }
        list.extend_from_slice(b"]}\n");
        pods.list = list.freeze();
        pods
    }

    pub(crate) fn list(&self) -> Bytes {
        self.list.clone()
    }

    /// One of them by itself, filled up to so many bytes.
    pub(crate) fn one(&self, bytes: usize) -> Bytes {
        let mut pod = BytesMut::from(&br#"{"kind":"Pod","apiVersion":"v1","#[..]);
        let mut rest = BytesMut::new();
        self.write(&mut rest, 0, 1, 0);
        // The rest's own opening brace goes; an annotation of nothing fills it up.
        let missing = (bytes + 1).saturating_sub(pod.len() + rest.len());
        let (before, after) = split_behind(&rest, MADE_AT);
        pod.extend_from_slice(&before[1..]);
        pod.extend_from_slice(&b"0".repeat(missing));
        pod.extend_from_slice(after);
        pod.freeze()
    }

    fn write(&self, to: &mut BytesMut, number: u64, version: u64, made_at: u128) {
        let head = format!(
            r#"{{"metadata":{{"name":"pod-{member}-{number}","namespace":"{member}","uid":"5f0c33a1-0c53-4b1c-9d5e-{number:012}","resourceVersion":"{version}","annotations":{{"bench/made-at":"{made_at}"}},"#,
            member = self.member
        );
        to.extend_from_slice(head.as_bytes());
        to.extend_from_slice(self.after_version.as_bytes());
    }

    fn event(&self, burst: Burst, index: u64) -> Bytes {
        let version = LIST_VERSION + burst.number * VERSIONS_PER_BURST + index;
        let mut event = BytesMut::with_capacity(self.after_version.len() + 512);
        event.extend_from_slice(br#"{"type":"MODIFIED","object":{"kind":"Pod","apiVersion":"v1","#);
        let begun = event.len();
        self.write(&mut event, index % 1_000, version, now());
        // The pod's own opening brace: kind and apiVersion stand before its metadata here.
        let pod = event.split_off(begun);
        event.extend_from_slice(&pod[1..]);
        event.extend_from_slice(b"}\n");
        event.freeze()
    }
}

/// In two, behind the first that is `found`.
fn split_behind<'a>(text: &'a [u8], found: &[u8]) -> (&'a [u8], &'a [u8]) {
    let at = memchr::memmem::find(text, found).map_or(text.len(), |at| at + found.len());
    text.split_at(at)
}

/// Nanoseconds since 1970.
pub(crate) fn now() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos()
}

/// The rest of a pod after its first metadata: about 3 KB with what comes before.
fn after_version() -> String {
    let environment: Vec<_> = (0..24)
        .map(|n| json!({"name": format!("SETTING_{n:02}"), "value": "0123456789abcdef0123456789abcdef"}))
        .collect();
    let labels = json!({"app.kubernetes.io/name": "bench", "ctrlmesh.kusionstack.io/namespace": "bench"});
    let spec = json!({
        "containers": [{"name": "main", "image": "registry.example.com/bench:1.0", "env": environment,
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}, "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File", "imagePullPolicy": "IfNotPresent"}],
        "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst", "nodeName": "node-1",
        "serviceAccountName": "default", "schedulerName": "default-scheduler", "priority": 0,
    });
    let conditions: Vec<_> = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"]
        .iter()
        .map(|kind| json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:00Z"}))
        .collect();
    let status = json!({"phase": "Running", "conditions": conditions, "podIP": "10.0.0.7", "qosClass": "Burstable"});
    format!(r#""labels":{labels},"creationTimestamp":"2026-01-01T00:00:00Z"}},"spec":{spec},"status":{status}}}"#)
}

/// The events of one watch: silent but for bursts.
pub(crate) struct PodEvents {
    pub(crate) pods: std::sync::Arc<Pods>,
    pub(crate) bursts: WatchStream<Burst>,
    /// Part of the time between two of its events by which this watch is later than others, in thousandths.
    phase: u32,
    running: Option<Running>,
}

struct Running {
    burst: Burst,
    begun: Instant,
    sent: u64,
    tick: Pin<Box<Sleep>>,
    made: u64,
}

impl PodEvents {
    /// `number` of the watch: paced events of many watches are spread over time, and those of a few as far as they can be.
    pub(crate) fn new(pods: std::sync::Arc<Pods>, bursts: WatchStream<Burst>, number: usize) -> Self {
        Self {
            pods,
            bursts,
            // The golden section of a thousand, which has no divisor in common with it.
            phase: u32::try_from(number * 619 % 1_000).unwrap_or_default(),
            running: None,
        }
    }
}

impl Running {
    fn new(burst: Burst, phase: u32) -> Self {
        let between = Duration::from_secs(1).checked_div(u32::try_from(burst.rate).unwrap_or(u32::MAX));
        Self {
            burst,
            begun: Instant::now() + between.unwrap_or_default() * phase / 1_000,
            sent: 0,
            tick: Box::pin(tokio::time::sleep(Duration::ZERO)),
            made: 0,
        }
    }

    /// When to look again: when the next event is due, and no sooner than timers tick.
    fn next_look(&self) -> Instant {
        let soonest = Instant::now() + TICK;
        if self.burst.rate == 0 {
            return soonest;
        }
        let due = Duration::from_micros((self.sent + 1).saturating_mul(1_000_000).div_ceil(self.burst.rate));
        soonest.max(self.begun + due)
    }

    /// How many should have been sent by now.
    fn due(&self) -> u64 {
        if self.burst.rate == 0 {
            return self.burst.events;
        }
        let elapsed = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        (elapsed.saturating_mul(self.burst.rate) / 1_000_000).min(self.burst.events)
    }
}

impl Stream for PodEvents {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let this = &mut *self;
            let Some(running) = &mut this.running else {
                match Pin::new(&mut this.bursts).poll_next(cx) {
                    Poll::Ready(Some(burst)) if burst.number > 0 => {
                        this.running = Some(Running::new(burst, this.phase));
                    }
                    Poll::Ready(Some(_)) => {}
                    Poll::Ready(None) => return Poll::Ready(None),
                    Poll::Pending => return Poll::Pending,
                }
                continue;
            };
            if running.sent >= running.burst.events {
                this.running = None;
                continue;
            }
            if running.sent < running.due() && running.made < MOST_AT_ONCE {
                let event = this.pods.event(running.burst, running.sent);
                running.sent += 1;
                running.made += 1;
                return Poll::Ready(Some(Ok(Frame::data(event))));
            }
            if running.made >= MOST_AT_ONCE {
                running.made = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            running.made = 0;
            if running.tick.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let next = running.next_look();
            running.tick.as_mut().reset(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn lists_and_events_are_what_an_api_server_would_write() {
        let pods = Pods::new("m0", 3);
        let list: Value = serde_json::from_slice(&pods.list()).unwrap();
        assert_eq!(list["items"].as_array().unwrap().len(), 3);
        let size = list["items"][0].to_string().len();
        assert!((2_500..3_500).contains(&size), "{size}");
        let burst = Burst {
            number: 1,
            events: 1,
            rate: 0,
        };
        let one = pods.one(4_096);
        assert_eq!(one.len(), 4_096);
        let one: Value = serde_json::from_slice(&one).unwrap();
        assert_eq!(one["metadata"]["name"], "pod-m0-0");
        let event: Value = serde_json::from_slice(&pods.event(burst, 7)).unwrap();
        assert_eq!(event["object"]["metadata"]["name"], "pod-m0-7");
        assert_eq!(event["object"]["kind"], "Pod");
    }
}
