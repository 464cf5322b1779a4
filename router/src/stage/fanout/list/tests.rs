//! Lists over scripted members: what a real API server cannot be made to answer.

mod absence;
mod faults;
mod pages;

use std::io::Read as _;
use std::time::Duration;

use http::{HeaderMap, Method, Request};
use http_body_util::BodyExt as _;
use opentelemetry::Context;
use parking_lot::Mutex;
use portolan_merge::cursor::{Cursor, Slot, Universe};
use portolan_merge::resume::{Resume, ResumeBounds};
use portolan_merge::watch::Budget;
use portolan_runtime::Tasks;
use serde_json::{Value, json};
use tokio::{sync::Semaphore, time::Instant};

use super::*;
use crate::decision::plan::fanout::Share;
use crate::decision::plan::{FanLeg, Forward, Rewrite};
use crate::resource::routing::{Routing, RoutingStore};
use crate::resource::upstream::BodyError;
use crate::resource::upstream::scripted::{Backend, script, snapshot, until_reset};
use crate::stage::dispatch::{DispatchMetrics, Dispatcher};
use crate::stage::fanout::{
    AHEAD_BYTES, FRAME_BYTES, SHADOW_BYTES, listing::Turns, metrics::FanOutMetrics, open::OpenWatches,
};
use crate::stage::replan::Replanner;
use crate::value::classify::{Impersonation, classify};
use crate::value::snapshot::Unavailable;
use crate::value::traffic::Traffic;

const PODS: &str = "/api/v1/pods";

/// One answer of a member.
#[derive(Clone)]
struct Say {
    code: u16,
    headers: Vec<(&'static str, &'static str)>,
    body: Vec<u8>,
    /// Bytes after which the stream is reset.
    cut: Option<usize>,
    /// How long it takes to come.
    late: Duration,
}

fn say(code: u16, body: impl ToString) -> Say {
    Say {
        code,
        headers: vec![("content-type", "application/json")],
        body: body.to_string().into_bytes(),
        cut: None,
        late: Duration::ZERO,
    }
}

fn refusal(code: u16, message: &str) -> Say {
    say(
        code,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "code": code}),
    )
}

fn list(version: u64, names: &[&str], next: &str) -> Say {
    let items: Vec<Value> = names
        .iter()
        .map(|name| json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "5"}}))
        .collect();
    let mut meta = json!({"resourceVersion": version.to_string()});
    if !next.is_empty() {
        meta["continue"] = next.into();
    }
    let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": items});
    say(200, list)
}

/// Path with query, and Accept.
type Asked = Arc<Mutex<Vec<(String, String)>>>;

struct Member {
    backend: Backend,
    asked: Asked,
}

impl Member {
    async fn start(answer: impl Fn(&str, &str) -> Say + Send + Sync + 'static) -> Self {
        let asked = Asked::default();
        let (seen, answer) = (asked.clone(), Arc::new(answer));
        let backend = Backend::start(
            100,
            script(move |request, mut respond| {
                let path = request.uri().path_and_query().unwrap().to_string();
                let accept = request.headers()["accept"].to_str().unwrap().to_owned();
                assert_eq!(request.headers()["accept-encoding"], "identity");
                let said = answer(&path, &accept);
                seen.lock().push((path, accept));
                async move {
                    tokio::time::sleep(said.late).await;
                    let mut head = http::Response::builder().status(said.code);
                    for (name, value) in &said.headers {
                        head = head.header(*name, *value);
                    }
                    let mut stream = respond.send_response(head.body(()).unwrap(), false).unwrap();
                    match said.cut {
                        None => drop(stream.send_data(said.body.into(), true)),
                        Some(at) => {
                            stream.send_data(said.body[..at].to_vec().into(), false).unwrap();
                            stream.reserve_capacity(1);
                            // The reset must not overtake the data.
                            let _ = tokio::time::timeout(Duration::from_millis(20), until_reset(&mut stream)).await;
                            stream.send_reset(h2::Reason::INTERNAL_ERROR);
                        }
                    }
                }
            }),
        )
        .await;
        Self { backend, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().iter().map(|(path, _)| path.clone()).collect()
    }
}

struct World {
    fanouts: Arc<FanOuts>,
    members: Vec<(&'static str, Member)>,
    routing: Arc<Routing>,
    universe: Arc<Universe>,
    caller: Caller,
    unavailable: Unavailable,
    unique: bool,
}

fn world(members: Vec<(&'static str, Member)>) -> World {
    let targets = members.iter().map(|(name, member)| member.backend.target(name));
    let store = RoutingStore::of(snapshot(targets));
    let dispatcher = Arc::new(Dispatcher::new(Tasks::new(), DispatchMetrics::default()));
    let routing = store.load();
    let fanouts = FanOuts {
        preflight: crate::stage::fanout::tests::nobody(dispatcher.clone()),
        dispatcher,
        replanner: Replanner::new(store.clone()),
        routing: store,
        open: OpenWatches::new(FanOutMetrics::default()),
        resume: Mutex::new(Resume::new(ResumeBounds::default())),
        shadows: Budget::new(SHADOW_BYTES),
        names: Budget::new(SHADOW_BYTES),
        frames: Budget::new(FRAME_BYTES),
        turns: Turns::default(),
        young: crate::stage::fanout::young::YoungKinds::default(),
        ahead: Arc::new(Semaphore::new(AHEAD_BYTES)),
    };
    let uids: Vec<_> = routing
        .snapshot
        .targets
        .values()
        .map(|target| target.cluster_uid.clone())
        .collect();
    World {
        universe: Arc::new(Universe::new("operators/shard", uids)),
        fanouts: Arc::new(fanouts),
        members,
        routing,
        caller: Caller::Person {
            user: "ada".to_owned(),
            groups: Vec::new(),
        },
        unavailable: Unavailable::Hold,
        unique: false,
    }
}

/// A whole answer.
struct Answer {
    code: u16,
    headers: HeaderMap,
    body: Result<Vec<u8>, BodyError>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(self.body.as_ref().unwrap()).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let list = self.json();
        let items = list["items"].as_array().unwrap_or_else(|| panic!("{list}"));
        items
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    }

    fn next(&self) -> Option<String> {
        self.json()["metadata"]["continue"].as_str().map(str::to_owned)
    }

    fn version(&self) -> String {
        self.json()["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

impl World {
    fn leg(&self, cluster: &str) -> FanLeg {
        let target = self.routing.snapshot.targets[cluster].clone();
        FanLeg {
            slot: self.universe.slot(&target.cluster_uid).unwrap(),
            forward: Forward {
                target,
                traffic: Traffic::collection(false),
                rewrite: Rewrite::default(),
                act_as: Impersonation::user("system:serviceaccount:ns:operator"),
                needs: Vec::new(),
                warning: None,
                grant: None,
                replicas: None,
            },
            filter: None,
            share: Share {
                namespaces: None,
                selector: None,
            },
            by_labels: None,
            unlabelled: None,
            held: None,
        }
    }

    async fn ask(&self, path: &str, headers: &[(&str, &str)]) -> Result<Answer, Fault> {
        let mut request = Request::builder()
            .method(Method::GET)
            .uri(path)
            .header("host", "router");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        let asked = classify(&head.method, &head.uri, &head.headers).unwrap();
        let mut asking = Asking::new(asked, &head, self.caller.clone(), Context::new());
        asking.deadline = Some(Instant::now() + Duration::from_secs(20));
        let plan = FanOut {
            legs: self.members.iter().map(|(name, _)| self.leg(name)).collect(),
            universe: self.universe.clone(),
            watch: false,
            unavailable: self.unavailable,
            unique: self.unique,
            fence: false,
            only_member: false,
            left: None,
            unowned: None,
            withdrawn: Vec::new(),
        };
        let fan = Fan {
            plan,
            asking,
            routing: self.routing.clone(),
        };
        let (head, body) = super::list(&self.fanouts, fan).await?.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes().to_vec());
        Ok(Answer {
            code: head.status.as_u16(),
            headers: head.headers,
            body,
        })
    }

    async fn get(&self, query: &str) -> Result<Answer, Fault> {
        self.ask(&format!("{PODS}{query}"), &[("accept", "application/json")])
            .await
    }

    fn asked(&self, index: usize) -> Vec<String> {
        self.members[index].1.asked()
    }

    fn cursor(&self, text: &str) -> Cursor {
        Cursor::decode(text, &self.universe).unwrap()
    }

    fn slot(&self, cursor: &str, cluster: &str) -> Slot {
        self.cursor(cursor).slot(self.leg(cluster).slot)
    }
}

async fn two(
    east: impl Fn(&str, &str) -> Say + Send + Sync + 'static,
    west: impl Fn(&str, &str) -> Say + Send + Sync + 'static,
) -> World {
    world(vec![
        ("east", Member::start(east).await),
        ("west", Member::start(west).await),
    ])
}

#[tokio::test]
async fn lists_are_spliced_at_one_cursor() {
    let world = two(|_, _| list(11, &["a", "b"], ""), |_, _| list(7, &["c"], "")).await;
    let answer = world.get("?labelSelector=x").await.unwrap();
    assert_eq!(
        (answer.code, answer.names()),
        (200, vec!["a".into(), "b".into(), "c".into()])
    );
    assert_eq!(answer.headers["content-type"], "application/json");
    let version = answer.version();
    assert_eq!(
        (world.slot(&version, "east"), world.slot(&version, "west")),
        (Slot::At(11), Slot::At(7))
    );
    assert_eq!(world.asked(0), ["/api/v1/pods?labelSelector=x"]);
    world.get(&format!("?resourceVersion={version}")).await.unwrap();
    assert_eq!(world.asked(0)[1], "/api/v1/pods?resourceVersion=11");
    assert_eq!(world.asked(1)[1], "/api/v1/pods?resourceVersion=7");
}

#[tokio::test]
async fn one_members_own_refusal_decides() {
    for code in [400, 403, 406, 422, 429, 410] {
        let world = two(|_, _| list(1, &[], ""), move |_, _| refusal(code, "because")).await;
        let answer = world.get("").await.unwrap();
        assert_eq!(
            (answer.code, answer.json()["message"].as_str()),
            (code, Some("because"))
        );
        let warning = answer.headers.get("warning").map(|text| text.to_str().unwrap());
        let named = warning.is_some_and(|text| text.contains(&format!("member cluster west answered {code}")));
        assert!(named, "{code}: {warning:?}");
    }
    // Words that no API server takes are refused by the first that can be asked, for all of them.
    for (code, own) in [(400, false), (403, true)] {
        let world = two(move |_, _| refusal(code, "because"), |_, _| list(1, &[], "")).await;
        let answer = world.get("?resourceVersionMatch=Exact").await.unwrap();
        assert_eq!((answer.code, answer.headers.contains_key("warning")), (code, own));
    }
}

#[tokio::test]
async fn what_nobody_serves_is_404_and_what_some_serve_is_theirs() {
    let world = two(|_, _| refusal(404, "no such kind"), |_, _| list(7, &["a"], "")).await;
    for query in ["", "?limit=5"] {
        let answer = world.get(query).await.unwrap();
        assert_eq!((answer.names(), answer.next()), (vec!["a".to_owned()], None));
        assert_eq!(world.slot(&answer.version(), "east"), Slot::Sync);
    }
    let world = two(|_, _| refusal(404, "no such kind"), |_, _| refusal(404, "no such kind")).await;
    assert_eq!(world.get("?limit=5").await.unwrap().code, 404);
}

#[tokio::test]
async fn large_lists_are_packed_for_those_who_take_it() {
    let names: Vec<String> = (0..3_000).map(|at| format!("pod-{at}")).collect();
    let many = move |_: &str, _: &str| list(1, &names.iter().map(String::as_str).collect::<Vec<_>>(), "");
    let world = two(many, |_, _| list(1, &["z"], "")).await;
    let accept = [("accept", "application/json"), ("accept-encoding", "gzip")];
    let answer = world.ask(PODS, &accept).await.unwrap();
    assert_eq!(
        (&answer.headers["content-encoding"], &answer.headers["vary"]),
        (&"gzip".parse().unwrap(), &"Accept-Encoding".parse().unwrap())
    );
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(&answer.body.unwrap()[..])
        .read_to_end(&mut plain)
        .unwrap();
    let read: Value = serde_json::from_slice(&plain).unwrap();
    assert_eq!(read["items"].as_array().unwrap().len(), 3_001);
    let small = two(|_, _| list(1, &["a"], ""), |_, _| list(1, &["z"], "")).await;
    assert!(
        !small
            .ask(PODS, &accept)
            .await
            .unwrap()
            .headers
            .contains_key("content-encoding")
    );
}

#[tokio::test]
async fn of_equal_names_of_a_union_the_first_members_is_shown_and_it_is_said() {
    let mut world = two(|_, _| list(1, &["a", "b"], ""), |_, _| list(1, &["b", "c"], "")).await;
    world.unique = true;
    for query in ["", "?limit=1"] {
        let answer = world.get(query).await.unwrap();
        assert_eq!(
            (answer.names(), answer.next()),
            (vec!["a".into(), "b".into(), "c".into()], None),
            "{query}"
        );
        assert!(
            answer.headers["warning"].to_str().unwrap().contains("pods: 1 hidden"),
            "{:?}",
            answer.headers
        );
    }
    assert_eq!(world.asked(0), ["/api/v1/pods", "/api/v1/pods"], "no limit");
}

#[tokio::test]
async fn collisions_behind_the_beginning_of_a_large_answer_are_counted() {
    const OBJECTS: usize = 20_000;
    let many = |_: &str, _: &str| {
        let names: Vec<String> = (0..OBJECTS).map(|index| format!("object-{index}")).collect();
        list(1, &names.iter().map(String::as_str).collect::<Vec<_>>(), "")
    };
    let mut world = two(many, many).await;
    world.unique = true;
    let answer = world.get("").await.unwrap();
    assert_eq!(answer.names().len(), OBJECTS);
    assert!(!answer.headers.contains_key("warning"), "it was too late to say so");
    assert_eq!(world.fanouts.open.metrics.collisions(), OBJECTS as u64);
}
