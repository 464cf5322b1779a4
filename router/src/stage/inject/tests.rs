//! Streams with faults, without a socket and by a clock that stands still when nobody waits.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body::Frame;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::*;
use crate::resource::upstream::BodyError;
use crate::value::classify::classify;
use crate::value::media::Media;
use crate::value::snapshot::{Snapshot, told};

/// A member that always has more, or has said all; counts what was read of it.
struct Member {
    chunks: VecDeque<Bytes>,
    read: Arc<AtomicUsize>,
    stays: bool,
}

impl http_body::Body for Member {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.chunks.pop_front() {
            Some(chunk) => {
                self.read.fetch_add(chunk.len(), Ordering::SeqCst);
                Poll::Ready(Some(Ok(Frame::data(chunk))))
            }
            None if self.stays => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}

struct World {
    injector: Injector,
    view: Arc<CallerView>,
    asked: ApiRequest,
}

fn caller(policies: &[&str]) -> told::CallerView {
    told::CallerView {
        home_cluster: "east".to_owned(),
        pod_uid: "a".to_owned(),
        namespace: "ops".to_owned(),
        pod: "operator-a".to_owned(),
        service_account: "operator".to_owned(),
        policies: policies.iter().map(|&name| name.to_owned()).collect(),
        ..told::CallerView::default()
    }
}

impl World {
    fn new(faults: &Value) -> Self {
        let mut bodies = caller(&[told::FAULT_INJECTION]).bodies();
        bodies.push(told::fault_injection(&json!({ "watchFault": faults })));
        let applied = told::upsert(&Snapshot::default(), "1", bodies);
        assert!(applied.rejected.is_empty(), "{:?}", applied.rejected);
        let view = applied.snapshot.callers.values().next().unwrap().clone();
        let uri = "/api/v1/pods?watch=1".parse().unwrap();
        Self {
            injector: Injector {
                routing: RoutingStore::of(applied.snapshot),
                injected: Arc::default(),
                tasks: Tasks::new(),
            },
            view,
            asked: classify(&Method::GET, &uri, &HeaderMap::new()).unwrap(),
        }
    }

    fn watch(&self) -> Arc<WatchInjection> {
        let clusters = ["east", "west"];
        let policies = self.view.policies.as_ref().unwrap();
        let faults = policies.watch_faults(&policy::asked(&self.asked, &clusters, false));
        let faults = faults.into_iter().cloned().collect();
        WatchInjection::new(self.injector.clone(), &self.view, &self.asked, faults).unwrap()
    }

    /// What the client sees of a member that says these.
    fn client(&self, chunks: &[&str], stays: bool) -> (Body, Arc<AtomicUsize>) {
        let read = Arc::default();
        let member = Member {
            chunks: chunks.iter().map(|chunk| Bytes::from((*chunk).to_owned())).collect(),
            read: Arc::clone(&read),
            stays,
        };
        let stream = self.watch().client().unwrap();
        let body = stream.inject(EventBoundary::of_media(Media::Json), Body::Merged(Merged::new(member)));
        (body, read)
    }

    /// The hub takes back what it ordered.
    fn stop(&self) {
        let snapshot = self.injector.routing.load().snapshot.clone();
        let applied = told::upsert(&snapshot, "2", caller(&[]).bodies());
        self.injector.routing.swap(applied.snapshot);
    }
}

async fn next(body: &mut Body) -> Option<Result<String, BodyError>> {
    let frame = body.frame().await?;
    Some(frame.map(|frame| String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()))
}

async fn all(body: &mut Body) -> String {
    let mut said = String::new();
    while let Some(Ok(more)) = next(body).await {
        said += &more;
    }
    said
}

#[tokio::test(start_paused = true)]
async fn a_delay_puts_off_each_event_and_not_their_number() {
    let world = World::new(&json!([{"name": "late", "action": "Delay", "duration": "3s"}]));
    let chunks = ["{\"a\":1}\n{\"a\":2}\n", "{\"a\":3}\n{\"a\"", ":4}\n"];
    let (mut body, _) = world.client(&chunks, false);
    let before = Instant::now();
    assert_eq!(all(&mut body).await, chunks.concat());
    assert_eq!(before.elapsed().as_secs(), 3, "all came at once, so all go at once");
}

#[tokio::test(start_paused = true)]
async fn what_is_put_off_is_bounded() {
    let world = World::new(&json!([{"name": "late", "action": "Delay", "duration": "3s"}]));
    let event = format!("{{\"a\":\"{}\"}}\n", "x".repeat(100 << 10));
    let chunks = vec![&*event; 50];
    let (mut body, read) = world.client(&chunks, false);
    let reads = async {
        let first = next(&mut body).await.unwrap().unwrap();
        (first, body)
    };
    let look = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        read.load(Ordering::SeqCst)
    };
    let ((first, mut body), held) = tokio::join!(reads, look);
    assert!(held <= 400 << 10, "{held} bytes are held");
    assert_eq!(first.len() + all(&mut body).await.len(), 50 * event.len());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_read_in_a_stall_and_nothing_is_lost_by_it() {
    let fault = json!([{"name": "still", "action": "Stall", "duration": "30s", "after": {"events": 1}}]);
    let world = World::new(&fault);
    let chunks = ["{\"a\":1}\n", "{\"a\":2}\n", "{\"a\":3}\n"];
    let (mut body, read) = world.client(&chunks, false);
    assert_eq!(next(&mut body).await.unwrap().unwrap(), chunks[0]);
    let before = Instant::now();
    let look = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        read.load(Ordering::SeqCst)
    };
    let (second, read) = tokio::join!(next(&mut body), look);
    assert_eq!(read, chunks[0].len(), "its sender waits");
    assert_eq!(second.unwrap().unwrap(), chunks[1]);
    assert_eq!(before.elapsed().as_secs(), 30);
    assert_eq!(all(&mut body).await, chunks[2]);
}

#[tokio::test(start_paused = true)]
async fn the_kill_switch_and_a_drain_end_stalls_and_delays_at_once() {
    for (drain, action) in [(false, "Stall"), (true, "Stall"), (false, "Delay"), (true, "Delay")] {
        let mut fault = json!({"name": "slow", "action": action});
        if action == "Delay" {
            fault["duration"] = "5m".into();
        }
        let world = World::new(&json!([fault]));
        let (mut body, _) = world.client(&["{\"a\":1}\n"], true);
        let before = Instant::now();
        let ends = async {
            tokio::time::sleep(Duration::from_secs(7)).await;
            if drain {
                world.injector.tasks.cancel();
            } else {
                world.stop();
            }
        };
        let (seen, ()) = tokio::join!(next(&mut body), ends);
        assert_eq!(seen.unwrap().unwrap(), "{\"a\":1}\n");
        assert_eq!(before.elapsed().as_secs(), 7, "{action}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fault_that_is_not_in_force_when_it_is_due_waits() {
    // Half a year from now.
    let month = (Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).month() + 5) % 12 + 1;
    let times = json!({ "months": [month] });
    let world = World::new(&json!([{"name": "cut", "action": "Drop", "effectiveTime": times}]));
    let (mut body, _) = world.client(&["{\"a\":1}\n", "{\"a\":2}\n"], false);
    assert_eq!(all(&mut body).await, "{\"a\":1}\n{\"a\":2}\n");
    let world = World::new(&json!([{"name": "cut", "action": "Drop", "after": {"events": 1}}]));
    let (mut body, _) = world.client(&["{\"a\":1}\n", "{\"a\":2}\n"], false);
    world.stop();
    assert_eq!(
        all(&mut body).await,
        "{\"a\":1}\n{\"a\":2}\n",
        "it was taken back before"
    );
    assert_eq!(world.injector.injected.count(Kind::Drop), 0);
}

#[tokio::test(start_paused = true)]
async fn a_fault_comes_at_its_time_also_where_nothing_else_does() {
    let world = World::new(&json!([{"name": "cut", "action": "Drop", "after": {"time": "5s"}}]));
    let (mut body, _) = world.client(&["{\"a\":1}\n"], true);
    assert_eq!(next(&mut body).await.unwrap().unwrap(), "{\"a\":1}\n");
    let before = Instant::now();
    assert!(matches!(next(&mut body).await, Some(Err(BodyError::Injected(_)))));
    assert_eq!(before.elapsed().as_secs(), 5);
    assert!(next(&mut body).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_comes_again_once_and_when_there_is_one() {
    let fault = json!([{"name": "again", "action": "RepeatBookmark", "after": {"events": 2}}]);
    let world = World::new(&fault);
    let bookmark = "{\"type\":\"BOOKMARK\",\"object\":{\"v\":1}}\n";
    let later = "{\"type\":\"BOOKMARK\",\"object\":{\"v\":2}}\n";
    let (mut body, _) = world.client(&["{\"a\":1}\n", bookmark, "{\"a\":2}\n{\"a\":3}\n", later], false);
    let expected = ["{\"a\":1}\n", bookmark, "{\"a\":2}\n", bookmark, "{\"a\":3}\n", later].concat();
    assert_eq!(all(&mut body).await, expected);
    let (mut body, _) = world.client(&["{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n", bookmark], false);
    let expected = ["{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n", bookmark, bookmark].concat();
    assert_eq!(all(&mut body).await, expected);
}

#[tokio::test(start_paused = true)]
async fn silence_that_was_ordered_is_told_apart() {
    let world = World::new(&json!([{"name": "still", "action": "Stall", "duration": "9s"}]));
    let stream = world.watch().client().unwrap();
    let member = Member {
        chunks: [Bytes::from_static(b"{}\n")].into(),
        read: Arc::default(),
        stays: true,
    };
    let mut body = stream.inject(EventBoundary::of_media(Media::Json), Body::Merged(Merged::new(member)));
    assert!(!stream.is_silent());
    let look = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stream.is_silent()
    };
    let (_, silent) = tokio::join!(next(&mut body), look);
    assert!(silent);
    assert!(!stream.is_silent(), "it goes on");
}

#[test]
fn legs_have_the_faults_of_their_clusters() {
    let of = |cluster: &str| json!({"resources": [{"clusters": [cluster]}]});
    let world = World::new(&json!([
        {"name": "east", "action": "Drop", "part": "Leg", "match": of("east")},
        {"name": "all", "action": "Stall", "part": "Leg"},
        {"name": "whole", "action": "Expire", "match": of("west")},
    ]));
    let watch = world.watch();
    let names = |stream: Option<Arc<StreamInjection>>| stream.map(|stream| stream.names()).unwrap_or_default();
    assert_eq!(names(watch.leg(&"east".into())), ["ops/fj/east", "ops/fj/all"]);
    assert_eq!(names(watch.leg(&"west".into())), ["ops/fj/all"]);
    assert_eq!(names(watch.client()), ["ops/fj/whole"]);
}
