//! Merged watches over scripted members, without a socket to the client.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::SendStream;
use h2::server::SendResponse;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use opentelemetry::Context;
use portolan_merge::cursor::{Slot, Universe};
use portolan_merge::resume::ResumeBounds;
use portolan_merge::watch::Start;
use portolan_runtime::Tasks;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};

use self::client::Watch;
use super::connect::{Answered, Shared, Wish, connect};
use super::fence::Write;
use super::listing::Turns;
use super::partial::tests::young;
use super::*;
use crate::decision::plan::{FanLeg, Forward, Need, Rewrite, fanout::Share};
use crate::resource::access::{Access, HubReviews, MemberAnswer, MemberApi};
use crate::resource::queues::Turn;
use crate::resource::routing::RoutingStore;
use crate::resource::upstream::scripted::{Backend, Order, Script, head, script, snapshot};
use crate::stage::dispatch::DispatchMetrics;
use crate::stage::fanout::metrics::FanOutMetrics;
use crate::value::check::Check;
use crate::value::classify::{Impersonation, classify};
use crate::value::snapshot::{Binding, Caller, CallerKey, CallerView, Unavailable};
use crate::value::traffic::Traffic;

mod client;
mod edges;
mod faults;
mod middles;
mod starts;
mod views;

const PATIENCE: Duration = Duration::from_secs(20);
const PODS: &str = "/api/v1/pods";
/// It reads a DELETED of metadata alone.
const KUBECTL: &str = "kubectl/v1 kubernetes/none";

/// A member whose every answer the test gives.
struct Member {
    name: &'static str,
    /// What the requests of the watch at hand say; those of earlier ones may still come.
    round: String,
    backend: Option<Backend>,
    asked: mpsc::UnboundedReceiver<Asked>,
}

struct Asked {
    path: String,
    respond: SendResponse<Bytes>,
}

impl Member {
    async fn start(name: &'static str) -> Self {
        let (sender, asked) = mpsc::unbounded_channel();
        let backend = Some(Backend::start(100, handing_over(sender)).await);
        Self {
            name,
            round: String::new(),
            backend,
            asked,
        }
    }

    async fn asked(&mut self) -> Asked {
        loop {
            let asked = tokio::time::timeout(PATIENCE, self.asked.recv()).await;
            let asked = asked.unwrap().unwrap();
            if asked.path.contains(&self.round) {
                return asked;
            }
        }
    }

    /// The next request, answered with an open watch.
    async fn opens(&mut self) -> (String, SendStream<Bytes>) {
        let mut asked = self.asked().await;
        let stream = asked.respond.send_response(head(200), false).unwrap();
        (asked.path, stream)
    }

    /// The next request, answered with a Status.
    async fn refuses(&mut self, code: u16) -> String {
        let mut asked = self.asked().await;
        let mut stream = asked.respond.send_response(head(code), false).unwrap();
        let status = json!({"kind": "Status", "apiVersion": "v1", "code": code, "message": self.name});
        stream.send_data(status.to_string().into(), true).unwrap();
        asked.path
    }
}

fn handing_over(sender: mpsc::UnboundedSender<Asked>) -> Script {
    script(move |request, respond| {
        let sender = sender.clone();
        async move {
            let (head, _) = request.into_parts();
            let _ = sender.send(Asked {
                path: head.uri.path_and_query().unwrap().to_string(),
                respond,
            });
        }
    })
}

struct World {
    members: Vec<Member>,
    fanouts: Arc<FanOuts>,
    universe: Arc<Universe>,
    plan: FanOut,
    caller: Caller,
    /// How the client names itself.
    agent: &'static str,
    rounds: usize,
}

impl World {
    async fn new(names: &[&'static str]) -> Self {
        let mut members = Vec::new();
        for name in names {
            members.push(Member::start(name).await);
        }
        let target = |member: &Member| member.backend.as_ref().unwrap().target(member.name);
        let targets: Vec<_> = members.iter().map(target).collect();
        let universe = Arc::new(Universe::new(
            "ns/shard",
            targets.iter().map(|target| target.cluster_uid.clone()),
        ));
        let routing = RoutingStore::of(snapshot(targets.clone()));
        let legs = targets.into_iter().map(|target| FanLeg {
            slot: universe.slot(&target.cluster_uid).unwrap(),
            forward: forward(target),
            filter: None,
            share: Share::default(),
            by_labels: None,
            unlabelled: None,
            held: None,
        });
        let plan = FanOut {
            legs: legs.collect(),
            universe: universe.clone(),
            watch: true,
            unavailable: Unavailable::Hold,
            unique: false,
            fence: true,
            only_member: false,
            left: None,
            unowned: None,
            withdrawn: Vec::new(),
        };
        let dispatcher = Arc::new(Dispatcher::new(Tasks::new(), DispatchMetrics::default()));
        routing.alone.told(Duration::MAX);
        let fanouts = Arc::new(FanOuts {
            preflight: nobody(dispatcher.clone()),
            dispatcher,
            replanner: Replanner::new(routing.clone()),
            routing,
            open: OpenWatches::new(FanOutMetrics::default()),
            resume: Mutex::new(Resume::new(ResumeBounds::default())),
            shadows: Budget::new(SHADOW_BYTES),
            names: Budget::new(1_000),
            frames: Budget::new(FRAME_BYTES),
            turns: Turns::default(),
            young: YoungKinds::default(),
            ahead: Arc::new(Semaphore::new(AHEAD_BYTES)),
        });
        Self {
            members,
            fanouts,
            universe,
            plan,
            caller: caller(),
            agent: KUBECTL,
            rounds: 0,
        }
    }

    /// Of members behind these nothing was seen yet.
    fn cursor(&self, slots: &[u64]) -> String {
        let mut cursor = Cursor::new(&self.universe);
        for leg in &self.plan.legs {
            cursor.set(leg.slot, Slot::Sync);
        }
        for (leg, version) in self.plan.legs.iter().zip(slots) {
            cursor.set(leg.slot, Slot::At(*version));
        }
        cursor.encode().unwrap()
    }

    fn ask(&self, query: &str) -> Fan {
        let request = Request::builder()
            .uri(format!("{PODS}?watch=1&{query}"))
            .header("authorization", "Bearer client")
            .header("user-agent", self.agent)
            .body(())
            .unwrap();
        let (head, ()) = request.into_parts();
        let asked = classify(&Method::GET, &head.uri, &head.headers).unwrap();
        let injection = self.injection(&asked);
        let asking = Asking::new(asked, &head, self.caller.clone(), Context::new());
        Fan {
            plan: self.plan.clone(),
            asking: Asking { injection, ..asking },
            routing: self.fanouts.routing.load(),
        }
    }

    /// The request under way.
    fn start(&mut self, query: &str) -> tokio::task::JoinHandle<Result<Watch, Fault>> {
        self.rounds += 1;
        let round = format!("&round={}", self.rounds);
        let fan = self.ask(&format!("{query}{round}"));
        for member in &mut self.members {
            member.round.clone_from(&round);
        }
        let fanouts = self.fanouts.clone();
        #[allow(clippy::disallowed_methods)]
        tokio::spawn(async move {
            let response = fanouts.run(fan).await?;
            let (head, body) = response.into_parts();
            Ok(Watch {
                status: head.status,
                headers: head.headers,
                body,
                rest: Vec::new(),
            })
        })
    }

    /// An open watch with both members' streams.
    async fn open(&mut self, query: &str) -> (Watch, Vec<(String, SendStream<Bytes>)>) {
        let started = self.start(query);
        let mut streams = Vec::new();
        for member in &mut self.members {
            streams.push(member.opens().await);
        }
        (started.await.unwrap().unwrap(), streams)
    }

    fn leg(&self, index: usize) -> (String, Option<String>) {
        let described = self.fanouts.open.describe();
        let leg = &described["watches"][0]["legs"][index];
        let text = |key: &str| leg[key].as_str().map(str::to_owned);
        (text("state").unwrap_or_default(), text("slot"))
    }
}

fn caller() -> Caller {
    Caller::Person {
        user: "ada".to_owned(),
        groups: Vec::new(),
    }
}

/// Members whose RBAC lets nobody act as somebody else; west cannot be asked.
struct Strict;

impl MemberApi for Strict {
    fn post(
        &self,
        cluster: &str,
        _: &'static str,
        _: Turn,
        _: Vec<u8>,
    ) -> futures::future::BoxFuture<'static, MemberAnswer> {
        let answer = match cluster {
            "west" => Err(Fault::Unavailable {
                message: "west is away".to_owned(),
                cluster: Some(cluster.to_owned()),
                sent: false,
            }),
            _ => Ok((
                StatusCode::CREATED,
                json!({"spec": {}, "status": {"allowed": false}}).to_string().into(),
            )),
        };
        Box::pin(std::future::ready(answer))
    }
}

/// For plans without checks.
pub(super) fn nobody(dispatcher: Arc<Dispatcher>) -> Arc<Preflight> {
    Arc::new(Preflight {
        dispatcher,
        access: Access::new(HubReviews::default(), Arc::new(Strict)),
        routing: RoutingStore::new(Duration::from_secs(20), Tasks::new()),
    })
}

/// A replica whose Pod was created then.
pub(super) fn born(created_unix_seconds: Option<i64>) -> Caller {
    pod("young", created_unix_seconds)
}

/// One replica of an operator.
fn replica(pod_uid: &str) -> Caller {
    pod(pod_uid, None)
}

fn pod(pod_uid: &str, created_unix_seconds: Option<i64>) -> Caller {
    Caller::Pod(Arc::new(CallerView {
        key: CallerKey {
            home_cluster: "east".into(),
            pod_uid: pod_uid.into(),
        },
        namespace: "ns".into(),
        pod: format!("operator-{pod_uid}"),
        service_account: "operator".to_owned(),
        user: CallerView::user_of("ns", "operator"),
        created_unix_seconds,
        held_elsewhere: None,
        policy_names: Arc::default(),
        policies: None,
        binding: Binding::None,
    }))
}

fn forward(target: crate::value::snapshot::Target) -> Forward {
    Forward {
        target: Arc::new(target),
        traffic: Traffic::collection(true),
        rewrite: Rewrite::default(),
        act_as: Impersonation::user("system:serviceaccount:ns:operator"),
        needs: Vec::new(),
        warning: None,
        grant: None,
        replicas: None,
    }
}

fn event(kind: &str, name: &str, version: u64) -> Bytes {
    let object = json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": version.to_string()},
    });
    format!("{}\n", json!({"type": kind, "object": object})).into()
}

fn bookmark(version: u64, marker: bool) -> Bytes {
    let mut object = json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"resourceVersion": version.to_string(), "creationTimestamp": null},
    });
    if marker {
        object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    format!("{}\n", json!({"type": "BOOKMARK", "object": object})).into()
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn events_of_all_members_come_as_one_stream_with_a_cursor_after_them() {
    let mut world = World::new(&["east", "west"]).await;
    let query = format!(
        "resourceVersion={}&allowWatchBookmarks=true&timeoutSeconds=300&x=1",
        world.cursor(&[10, 20])
    );
    let (mut watch, mut streams) = world.open(&query).await;
    assert_eq!(
        (watch.status, &watch.headers["content-type"]),
        (StatusCode::OK, &"application/json".parse().unwrap())
    );
    assert!(
        streams[0]
            .0
            .contains("resourceVersion=10&allowWatchBookmarks=true&timeoutSeconds=3"),
        "{}",
        streams[0].0
    );
    assert!(
        streams[1].0.contains("resourceVersion=20&") && streams[1].0.contains("x=1"),
        "{}",
        streams[1].0
    );
    streams[0].1.send_data(event("ADDED", "a", 11), false).unwrap();
    watch.expect("ADDED", "a").await;
    assert_eq!(watch.bookmark().await, world.cursor(&[11, 20]));
    let two = [event("MODIFIED", "b", 21), event("DELETED", "b", 22)].concat();
    streams[1].1.send_data(two.into(), false).unwrap();
    watch.expect("MODIFIED", "b").await;
    watch.expect("DELETED", "b").await;
    assert_eq!(watch.bookmark().await, world.cursor(&[11, 22]));
    eventually("the page follows", || {
        world.leg(1) == ("live".to_owned(), Some("22".to_owned()))
    })
    .await;
}

#[tokio::test]
async fn a_member_that_goes_and_comes_back_costs_the_client_nothing() {
    let mut world = World::new(&["east", "west"]).await;
    let query = format!("resourceVersion={}&allowWatchBookmarks=true", world.cursor(&[10, 20]));
    let (mut watch, mut streams) = world.open(&query).await;
    streams[0].1.send_data(event("ADDED", "a", 11), false).unwrap();
    watch.expect("ADDED", "a").await;
    watch.bookmark().await;
    // Half an event, then the connection is gone.
    streams[0]
        .1
        .send_data(event("ADDED", "c", 12).slice(..20), false)
        .unwrap();
    world.members[0].backend.as_ref().unwrap().order(Order::Cut);
    let reads = async {
        streams[1].1.send_data(event("ADDED", "b", 21), false).unwrap();
        watch.expect("ADDED", "b").await;
        watch.bookmark().await;
    };
    reads.await;
    let poll = watch.next();
    let back = async {
        let (path, mut stream) = world.members[0].opens().await;
        assert!(path.contains("resourceVersion=11&"), "{path}");
        stream.send_data(event("ADDED", "c", 12), false).unwrap();
        stream
    };
    let (next, _stream) = tokio::join!(poll, back);
    assert_eq!(next.unwrap()["object"]["metadata"]["name"], "c");
    assert_eq!(watch.bookmark().await, world.cursor(&[12, 21]));
    assert_eq!(world.leg(0).0, "live");
}

#[tokio::test]
async fn a_position_that_is_not_ours_is_answered_within_the_stream() {
    let mut world = World::new(&["east", "west"]).await;
    for version in [
        "17",
        "99999999999999999999999999",
        &world.cursor(&[1, 2]).replace('1', "2"),
    ] {
        let watch = world
            .start(&format!("resourceVersion={version}"))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(watch.status, StatusCode::OK, "{version}");
        let event = watch.whole().await;
        assert_eq!(
            (&event["type"], &event["object"]["code"]),
            (&json!("ERROR"), &json!(410)),
            "{event}"
        );
        assert_eq!(event["object"]["reason"], "Expired", "{event}");
    }
}
