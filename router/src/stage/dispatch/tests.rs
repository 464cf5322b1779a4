//! Requests to a scripted member.

mod rotation;
mod turns;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::BodyExt as _;
use parking_lot::Mutex as Lock;
use serde_json::{Value, json};

use super::*;
use crate::decision::plan::Rewrite;
use crate::resource::access::MemberApi as _;
use crate::resource::breaker::{self, State};
use crate::resource::queues::{Class, Flow, Turn};
use crate::resource::routing::RoutingStore;
use crate::resource::upstream::BodyError;
use crate::resource::upstream::scripted::{Backend, Script, head, read_all, script, snapshot, target};
use crate::resource::writes::Writes;
use crate::resource::writes::tests::releasing;
use crate::value::classify::{Impersonation, classify};
use crate::value::snapshot::{LeaseName, Snapshot};
use crate::value::traffic::{Effect, Traffic};

/// One that ends.
const WRITE: Traffic = Traffic {
    effect: Effect::Write,
    ..Traffic::QUESTION
};
const REVIEWS: &str = "/apis/x/v1/reviews";
pub(crate) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";

/// What the member was asked: method, path with query, body.
type Asked = Arc<Lock<Vec<(Method, String, String)>>>;

pub(crate) struct World {
    backend: Arc<Backend>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    /// What a request is planned with.
    pub(crate) routing: Arc<Routing>,
    /// What is in force when it is sent.
    now: Arc<RoutingStore>,
    asked: Asked,
}

/// A member that answers `answer` to everything.
pub(crate) async fn world(answer: impl Fn(&Method, &str) -> Value + Send + Sync + 'static) -> World {
    let asked = Asked::default();
    let backend = Arc::new(Backend::start(100, answering(asked.clone(), answer)).await);
    let now = RoutingStore::of(snapshot([backend.target("east")]));
    let dispatcher = Arc::new(Dispatcher::new(Tasks::new(), DispatchMetrics::default()));
    World {
        backend,
        dispatcher,
        routing: now.load(),
        now,
        asked,
    }
}

fn answering(asked: Asked, answer: impl Fn(&Method, &str) -> Value + Send + Sync + 'static) -> Script {
    let answer = Arc::new(answer);
    script(move |request, mut respond| {
        let (asked, answer) = (asked.clone(), answer.clone());
        async move {
            let (parts, body) = request.into_parts();
            let path = parts.uri.path_and_query().unwrap().to_string();
            let value = answer(&parts.method, &path);
            let body = String::from_utf8(read_all(body).await).unwrap();
            asked.lock().push((parts.method, path, body));
            let code = value["code"].as_u64().unwrap_or(200);
            let mut out = respond
                .send_response(head(u16::try_from(code).unwrap()), false)
                .unwrap();
            out.send_data(value.to_string().into(), true).unwrap();
        }
    })
}

impl World {
    pub(crate) fn forward(&self) -> Forward {
        Forward {
            target: self.routing.snapshot.targets["east"].clone(),
            traffic: WRITE,
            rewrite: Rewrite::default(),
            act_as: Impersonation::user("system:serviceaccount:ns:operator"),
            needs: Vec::new(),
            warning: None,
            grant: None,
            replicas: None,
        }
    }

    #[allow(clippy::unused_self, reason = "of this world")]
    fn person(&self) -> Caller {
        Caller::Person {
            user: "ada".to_owned(),
            groups: Vec::new(),
        }
    }

    fn leg(&self, forward: Forward, head: &Parts) -> Leg {
        Leg {
            forward: Box::new(forward),
            asked: Box::new(classify(&head.method, &head.uri, &head.headers).unwrap()),
            routing: self.routing.clone(),
            caller: self.person(),
            deadline: Some(Instant::now() + Duration::from_secs(20)),
            received: Context::new(),
            replanner: Some(Replanner::new(self.now.clone())),
            running: false,
        }
    }

    pub(crate) async fn dispatch(
        &self,
        forward: Forward,
        method: Method,
        path: &str,
        body: Value,
    ) -> Result<(u16, Value), Fault> {
        let body = if body.is_null() {
            Bytes::new()
        } else {
            body.to_string().into()
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "router")
            .header("content-type", "application/json")
            .body(())
            .unwrap();
        let (head, ()) = request.into_parts();
        let leg = self.leg(forward, &head);
        let dispatched = self.dispatcher.dispatch(leg, head, Body::from(body)).await?;
        let status = dispatched.response.status().as_u16();
        let body = dispatched.response.into_body().collect().await.unwrap().to_bytes();
        Ok((status, serde_json::from_slice(&body).unwrap()))
    }

    pub(crate) fn asked(&self) -> Vec<(Method, String, String)> {
        self.asked.lock().clone()
    }
}

pub(crate) fn lease_name() -> LeaseName {
    LeaseName {
        client: "leader".to_owned(),
        member: "leader---shard".to_owned(),
    }
}

pub(crate) fn lease(name: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name, "namespace": "ns"}})
}

#[tokio::test]
async fn the_lease_has_its_other_name_in_the_member_only() {
    let world = world(|_, _| lease("leader---shard")).await;
    let forward = Forward {
        rewrite: Rewrite {
            lease: Some(lease_name()),
            ..Rewrite::default()
        },
        ..world.forward()
    };
    let path = format!("{LEASES}/leader");
    let (status, seen) = world
        .dispatch(forward, Method::PUT, &path, lease("leader"))
        .await
        .unwrap();
    assert_eq!((status, seen), (200, lease("leader")));
    let (_, path, body) = world.asked().remove(0);
    assert_eq!(path, format!("{LEASES}/leader---shard"));
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), lease("leader---shard"));
}

fn pod(app: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "ns", "labels": {"app": app}}})
}

#[tokio::test]
async fn a_lease_is_let_through_a_breaker_that_others_wait_for() {
    let world = world(|_, _| lease("leader---shard")).await;
    let breaker = world
        .routing
        .upstreams
        .get("east")
        .unwrap()
        .breaker(TrafficClass::Unary)
        .clone();
    breaker.configure(breaker::Settings {
        consecutive_failures: 1,
        open_for: Duration::ZERO,
        ..breaker::Settings::default()
    });
    breaker
        .admit(None, breaker::Probe::Telling)
        .unwrap()
        .record(breaker::Outcome::Failure);
    let probes = [breaker::Probe::Write, breaker::Probe::OtherLease].map(|probe| breaker.admit(None, probe).unwrap());
    assert_eq!(breaker.report().state, State::HalfOpen);
    let path = format!("{LEASES}/leader");
    let object = "/api/v1/namespaces/ns/configmaps/c";
    for (path, body) in [(object, json!({})), (&*path, lease("other"))] {
        let held = world.dispatch(world.forward(), Method::PUT, path, body).await;
        assert!(matches!(held, Err(Fault::Unavailable { sent: false, .. })), "{held:?}");
    }
    let renewal = Forward {
        rewrite: Rewrite {
            lease: Some(lease_name()),
            ..Rewrite::default()
        },
        ..world.forward()
    };
    world
        .dispatch(renewal, Method::PUT, &path, lease("leader"))
        .await
        .unwrap();
    assert_eq!(breaker.report().state, State::Closed, "its success is the member's");
    drop(probes);
}

#[tokio::test]
async fn a_read_is_a_probe_beside_what_may_hang_by_who_asks() {
    let world = world(|_, _| pod("foo")).await;
    let routing = world.now.load();
    let breaker = routing.upstreams.get("east").unwrap().breaker(TrafficClass::Unary);
    breaker.configure(breaker::Settings {
        consecutive_failures: 1,
        open_for: Duration::ZERO,
        ..breaker::Settings::default()
    });
    let failed = breaker.admit(None, breaker::Probe::Telling).unwrap();
    failed.record(breaker::Outcome::Failure);
    let _hanging = breaker.admit(None, breaker::Probe::Doubtful).unwrap();
    let read = || Forward {
        traffic: Traffic::QUESTION,
        ..world.forward()
    };
    let backend = "/api/v1/namespaces/ns/services/s/proxy/hang";
    let held = world.dispatch(read(), Method::GET, backend, Value::Null).await;
    assert!(matches!(held, Err(Fault::Unavailable { sent: false, .. })), "{held:?}");
    let path = "/api/v1/namespaces/ns/pods/a";
    world.dispatch(read(), Method::GET, path, Value::Null).await.unwrap();
    assert_eq!(breaker.report().state, State::Closed);
}

#[tokio::test]
async fn documents_fail_nobody() {
    let world = world(|_, _| json!({"code": 504})).await;
    let own = OwnRequests {
        routing: world.now.clone(),
    };
    let routing = world.now.load();
    let breaker = routing.upstreams.get("east").unwrap().breaker(TrafficClass::Unary);
    breaker.configure(breaker::Settings {
        consecutive_failures: 1,
        ..breaker::Settings::default()
    });
    let wanted = DocumentRequest {
        cluster: "east".into(),
        path: "/apis/metrics.k8s.io/v1beta1".to_owned(),
        accept: "application/json",
        etag: None,
    };
    let _ = own.get(&wanted).await;
    assert_eq!(breaker.report().state, State::Closed, "an aggregated API's");
    let _ = own
        .post("east", REVIEWS, Turn::InOrder(Flow::numbered(7, 1)), Vec::new())
        .await;
    assert_eq!(breaker.report().state, State::Open, "the member's own");
}

#[tokio::test]
async fn without_a_credential_nothing_is_sent() {
    let mut world = world(|_, _| pod("foo")).await;
    let mut without = (*world.routing.snapshot).clone();
    without.credentials = Arc::default();
    world.routing = RoutingStore::of(without).load();
    let fault = world
        .dispatch(world.forward(), Method::POST, "/api/v1/namespaces/ns/pods", pod("foo"))
        .await
        .unwrap_err();
    assert!(
        matches!(&fault, Fault::Unavailable { sent: false, message, .. } if message.contains("credential")),
        "{fault:?}"
    );
    assert_eq!(world.backend.seen.requests(), 0);
}

#[tokio::test]
async fn reviews_go_with_the_routers_own_credential() {
    let world = world(|_, _| json!({"kind": "TokenReview", "code": 201})).await;
    let reviews = OwnRequests {
        routing: world.now.clone(),
    };
    let post = |cluster| reviews.post(cluster, REVIEWS, Turn::InOrder(Flow::numbered(7, 1)), b"{}".to_vec());
    let (code, body) = post("east").await.unwrap();
    assert_eq!(
        (
            code.as_u16(),
            serde_json::from_slice::<Value>(&body).unwrap()["kind"].as_str()
        ),
        (201, Some("TokenReview"))
    );
    assert_eq!(world.asked(), [(Method::POST, REVIEWS.to_owned(), "{}".to_owned())]);
    let unknown = post("west").await;
    assert!(matches!(unknown, Err(Fault::Unavailable { .. })), "{unknown:?}");
}

#[tokio::test]
async fn what_the_router_asks_itself_takes_the_members_queues_and_documents_come_last() {
    let world = world(|_, _| json!({"kind": "Status"})).await;
    let own = OwnRequests {
        routing: world.now.clone(),
    };
    let routing = world.now.load();
    let queues = &routing.upstreams.get("east").unwrap().queues;
    let mut taken = queues.fill(Class::Single);
    assert!(!taken.is_empty());
    let mut write = Box::pin(world.dispatch(world.forward(), Method::POST, LEASES, lease("a")));
    assert!(futures::poll!(&mut write).is_pending(), "as everybody's requests do");
    drop(write);
    let wanted = DocumentRequest {
        cluster: "east".into(),
        path: "/apis".to_owned(),
        accept: "application/json",
        etag: None,
    };
    let mut document = Box::pin(own.get(&wanted));
    assert!(futures::poll!(&mut document).is_pending());
    let mut review = own.post("east", REVIEWS, Turn::InOrder(Flow::numbered(7, 1)), Vec::new());
    assert!(futures::poll!(&mut review).is_pending());
    let token = own.post("east", "/tokens", Turn::First, Vec::new());
    token.await.expect("who is not known yet waits behind nobody's work");
    taken.pop();
    tokio::select! {
        biased;
        document = &mut document => panic!("it came first and is last: {document:?}"),
        review = &mut review => assert!(review.is_ok()),
    }
    document.await.unwrap();
    let paths: Vec<_> = world.asked().into_iter().map(|(_, path, _)| path).collect();
    assert_eq!(paths, ["/tokens", REVIEWS, "/apis"]);
}

#[tokio::test]
async fn a_member_that_was_removed_is_unavailable() {
    let world = world(|_, _| pod("foo")).await;
    let elsewhere = Forward {
        target: Arc::new(target("gone", &[], "")),
        ..world.forward()
    };
    let fault = world
        .dispatch(elsewhere, Method::GET, "/api/v1/namespaces/ns/pods/a", Value::Null)
        .await
        .unwrap_err();
    assert!(matches!(fault, Fault::Unavailable { sent: false, .. }), "{fault:?}");
}

#[tokio::test]
async fn a_member_that_refuses_our_credential_does_not_refuse_the_callers() {
    let refusing = json!({"kind": "Status", "code": 401, "reason": "Unauthorized"});
    let world = world(move |_, _| refusing.clone()).await;
    let path = "/api/v1/namespaces/ns/pods";
    let refused = world
        .dispatch(world.forward(), Method::POST, path, json!({}))
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, Fault::Unavailable { sent: false, message, .. } if message.contains("credential")),
        "{refused:?}"
    );
    let backend = "/api/v1/namespaces/ns/services/s/proxy/login";
    let (status, _) = world
        .dispatch(world.forward(), Method::GET, backend, Value::Null)
        .await
        .unwrap();
    assert_eq!(status, 401, "what is behind proxy has credentials of its own");
}

#[tokio::test]
async fn a_write_that_is_planned_otherwise_by_now_is_not_sent() {
    let world = world(|_, _| pod("foo")).await;
    let mut without = (*world.routing.snapshot).clone();
    without.generation += 1;
    without.targets = Arc::default();
    world.now.swap(without);
    let path = "/clusters/east/api/v1/namespaces/ns/pods/a";
    let refused = world.dispatch(world.forward(), Method::PUT, path, pod("foo")).await;
    assert!(matches!(refused, Err(Fault::NotFound(_))), "{refused:?}");
    assert_eq!(world.backend.seen.requests(), 0);
    let read = Forward {
        traffic: Traffic::QUESTION,
        ..world.forward()
    };
    let (status, _) = world.dispatch(read, Method::GET, path, Value::Null).await.unwrap();
    assert_eq!(status, 200, "a read is ruled by its own snapshot");
}

#[tokio::test]
async fn each_leg_is_counted_by_how_it_ended() {
    let world = world(|_, path| {
        if path.ends_with("/gone") {
            json!({"code": 404})
        } else {
            pod("a")
        }
    })
    .await;
    let count = |verb, code| world.dispatcher.metrics.count("east", "unary", verb, code);
    let read = || Forward {
        traffic: Traffic::QUESTION,
        ..world.forward()
    };
    let path = "/api/v1/namespaces/ns/pods";
    for name in ["a", "b", "gone"] {
        let path = format!("{path}/{name}");
        world.dispatch(read(), Method::GET, &path, Value::Null).await.unwrap();
    }
    world
        .dispatch(world.forward(), Method::POST, path, pod("a"))
        .await
        .unwrap();
    assert_eq!(
        (count("get", "2xx"), count("get", "4xx"), count("create", "2xx")),
        (2, 1, 1)
    );
}

/// What may be carried out yet keeps its namespace from its next owner for as long.
#[test]
fn a_write_is_answered_by_what_says_how_it_ended() {
    let status = |code: u16| Ok(http::Response::builder().status(code).body(Body::Empty).unwrap());
    let (cluster, reason) = (Arc::<str>::from("east"), String::new());
    let lost = UpstreamError::Lost {
        cluster: cluster.clone(),
        reason: reason.clone(),
        broke: crate::resource::upstream::Broke::Stream,
    };
    let refused = UpstreamError::Refused { cluster, reason };
    let cases = [
        (status(200), true),
        (status(409), true),
        (Err(refused), true),
        (status(500), false),
        (status(504), false),
        (Err(lost), false),
        (Err(UpstreamError::Body(BodyError::Late)), false),
    ];
    for (outcome, is_known) in cases {
        let writes = Arc::<Writes>::default();
        writes.inherit(&Snapshot::default());
        let mut write = writes.begin((&"east".into(), "a", "ops/blue"), Some(2));
        write.leaves();
        settle(Some(write), &outcome);
        let answered = writes.answered(&releasing(2)).unwrap();
        assert_eq!(!answered.pairs.is_empty(), is_known, "{outcome:?}");
    }
}
