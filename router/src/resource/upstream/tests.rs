//! Against scripted API servers on real sockets.

mod addresses;
mod endpoints;
mod outliers;
mod rotation;

use std::net::SocketAddr;

use bytes::Bytes;
use futures::future::join_all;
use http_body_util::BodyExt as _;
use tokio::net::TcpListener;

use super::scripted::{Backend, Order, Script, head, plain, read_all, script, snapshot, spawn, target, until_reset};
use super::*;

mod abandoned;
mod suspicious;

const PATIENCE: Duration = Duration::from_secs(20);

fn connector() -> Connector {
    Connector::new(Duration::from_secs(20), Tasks::new())
}

fn first(connector: &Connector, targets: impl IntoIterator<Item = Target>) -> Upstreams {
    connector.follow(&Upstreams::default(), &snapshot(targets).targets)
}

fn upstreams(targets: impl IntoIterator<Item = Target>) -> Upstreams {
    first(&connector(), targets)
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::Empty).unwrap()
}

async fn first_frame(body: &mut Body) -> Bytes {
    let frame = tokio::time::timeout(PATIENCE, body.frame()).await.expect("in time");
    frame
        .expect("not the end")
        .expect("no error")
        .into_data()
        .expect("data")
}

async fn all_of(body: Body) -> Result<Bytes, BodyError> {
    tokio::time::timeout(PATIENCE, body.collect())
        .await
        .expect("in time")
        .map(http_body_util::Collected::to_bytes)
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let holds = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, holds)
        .await
        .unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test]
async fn a_request_goes_to_the_member_as_the_endpoint_is_called() {
    let backend = Backend::start(100, {
        script(|request, mut respond| async move {
            let uri = request.uri().to_string();
            let mut body = respond.send_response(head(201), false).unwrap();
            body.send_data(uri.into(), true).unwrap();
        })
    })
    .await;
    let all = upstreams([backend.target("east")]);
    let response = all
        .get("east")
        .unwrap()
        .send(false, false, get("/api/v1/pods?limit=1"))
        .await
        .unwrap();
    assert_eq!(response.status(), 201);
    let seen = all_of(response.into_body()).await.unwrap();
    assert_eq!(seen, format!("https://{}/api/v1/pods?limit=1", backend.address));
    assert!(all.get("west").is_none());
}

#[tokio::test]
async fn a_certificate_of_another_ca_or_name_is_refused() {
    let backend = Backend::start(100, plain()).await;
    let other = Backend::start(100, plain()).await;
    let wrong_ca = target("wrong-ca", &[backend.address], &other.ca_pem);
    let mut wrong_name = backend.target("wrong-name");
    wrong_name.endpoints[0].tls_server_name = Some("other.test".to_owned());
    let mut no_ca = backend.target("no-ca");
    no_ca.ca_pem = String::new();
    let all = upstreams([wrong_ca, wrong_name, no_ca]);
    for (cluster, why) in [
        ("wrong-ca", "spec.caBundle"),
        ("wrong-name", "other.test"),
        ("no-ca", "no certificate"),
    ] {
        let error = all
            .get(cluster)
            .unwrap()
            .send(false, false, get("/version"))
            .await
            .unwrap_err();
        assert!(matches!(error, UpstreamError::Connect { .. }), "{error:?}");
        assert!(format!("{error}").contains(why), "{error}");
    }
    assert_eq!(backend.seen.requests(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_watches_grow_the_pool_and_a_get_beside_them_answers_at_once() {
    let backend = Backend::start(100, plain()).await;
    let all = upstreams([backend.target("east")]);
    let east = all.get("east").unwrap();
    let watches = join_all((0..1000).map(|_| async {
        let mut response = east.send(true, false, get("/api/v1/pods/watch")).await.unwrap();
        let event = first_frame(response.body_mut()).await;
        (response, event)
    }));
    let watches = tokio::time::timeout(PATIENCE, watches)
        .await
        .expect("all watches see an event");
    assert!(watches.iter().all(|(_, event)| event.ends_with(b"\n")));
    let started = std::time::Instant::now();
    let response = east.send(false, false, get("/api/v1/pods/a")).await.unwrap();
    assert_eq!(all_of(response.into_body()).await.unwrap(), "{}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    let (_, unary, watch) = all.pools().remove(0);
    assert_eq!((unary.connections, unary.streams), (1, 0));
    assert_eq!((watch.streams, watch.waiting), (1000, 0));
    assert!((10..=13).contains(&watch.connections), "{watch:?}");
    drop(watches);
    eventually("slots are given back", || all.pools()[0].2.streams == 0).await;
}

#[tokio::test]
async fn the_cap_is_what_the_member_says() {
    let backend = Backend::start(3, plain()).await;
    let all = upstreams([backend.target("east")]);
    let east = all.get("east").unwrap();
    let mut watches = Vec::new();
    for _ in 0..10 {
        watches.push(east.send(true, false, get("/watch")).await.unwrap());
    }
    assert_eq!(backend.seen.connections(), 4);
    watches.truncate(4);
    eventually("six are given back", || all.pools()[0].2.streams == 4).await;
    for _ in 0..6 {
        watches.push(east.send(true, false, get("/watch")).await.unwrap());
    }
    assert_eq!(backend.seen.connections(), 4, "freed slots are used again");
}

#[tokio::test]
async fn a_crowd_does_not_dial_one_connection_each() {
    let backend = Backend::start(250, plain()).await;
    let all = upstreams([backend.target("east")]);
    let east = all.get("east").unwrap();
    let answers = join_all((0..120).map(|_| east.send(false, false, get("/version")))).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(backend.seen.connections(), 1);
}

#[tokio::test]
async fn a_crowd_before_a_dead_member_shares_its_failures() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let backend = Backend::start(100, plain()).await;
    let dials = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    spawn({
        let dials = dials.clone();
        async move {
            while let Ok((stream, _)) = listener.accept().await {
                dials.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await;
                drop(stream);
            }
        }
    });
    let all = upstreams([target("east", &[address], &backend.ca_pem)]);
    let east = all.get("east").unwrap();
    let answers = join_all((0..120).map(|_| east.send(false, false, get("/version")))).await;
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Err(UpstreamError::Connect { .. })))
    );
    assert!(dials.load(std::sync::atomic::Ordering::SeqCst) <= 2, "{dials:?}");
}

async fn closed_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test]
async fn endpoints_are_tried_in_order() {
    let backend = Backend::start(1, plain()).await;
    let all = upstreams([target("east", &[closed_port().await, backend.address], &backend.ca_pem)]);
    let east = all.get("east").unwrap();
    let _held = east.send(true, false, get("/watch")).await.unwrap();
    let _second = east.send(true, false, get("/watch")).await.unwrap();
    assert_eq!(backend.seen.connections(), 2);
}

#[tokio::test]
async fn goaway_moves_new_requests_and_leaves_running_ones() {
    let backend = Backend::start(100, plain()).await;
    let all = upstreams([backend.target("east")]);
    let east = all.get("east").unwrap();
    let mut old = east.send(true, false, get("/watch")).await.unwrap();
    first_frame(old.body_mut()).await;
    backend.order(Order::GoAway);
    for _ in 0..20 {
        let mut new = east.send(true, false, get("/watch")).await;
        // A request that crosses the GOAWAY is refused, never lost.
        if let Ok(new) = &mut new {
            first_frame(new.body_mut()).await;
        } else {
            assert!(matches!(new, Err(UpstreamError::Refused { .. })), "{new:?}");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(backend.seen.connections() >= 2);
    let silent = tokio::time::timeout(Duration::from_millis(20), old.body_mut().frame()).await;
    assert!(silent.is_err(), "the old watch goes on: {silent:?}");
}

#[tokio::test]
async fn refused_streams_are_told_from_lost_ones() {
    let backend = Backend::start(100, {
        script(|request, mut respond| async move {
            let refused = request.uri().path() == "/refused";
            respond.send_reset(if refused {
                h2::Reason::REFUSED_STREAM
            } else {
                h2::Reason::INTERNAL_ERROR
            });
        })
    })
    .await;
    let all = upstreams([backend.target("east")]);
    let east = all.get("east").unwrap();
    let refused = east.send(false, false, get("/refused")).await.unwrap_err();
    assert!(matches!(refused, UpstreamError::Refused { .. }), "{refused:?}");
    let lost = east.send(false, false, get("/lost")).await.unwrap_err();
    assert!(matches!(lost, UpstreamError::Lost { .. }), "{lost:?}");
}

#[tokio::test]
async fn a_lost_connection_is_one_failure_however_many_were_on_it() {
    let backend = Backend::start(100, {
        script(|_, mut respond| async move {
            let _ = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
        })
    })
    .await;
    let all = upstreams([backend.target("east")]);
    let east = all.get("east").unwrap();
    let asking = join_all((0..50).map(|_| east.send(false, false, get("/version"))));
    let cutting = async {
        eventually("all are under way", || backend.seen.requests() == 50).await;
        backend.order(Order::Cut);
    };
    let (answers, ()) = tokio::join!(asking, cutting);
    let first = |answer: &&Result<_, _>| {
        matches!(
            answer,
            Err(UpstreamError::Lost {
                broke: Broke::Connection,
                ..
            })
        )
    };
    assert_eq!(answers.iter().filter(first).count(), 1);
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Err(UpstreamError::Lost { .. })))
    );
}

/// A body of three parts of which the last never comes: the stream ends as told.
fn cut_body(end: Option<h2::Reason>) -> Script {
    script(move |_, mut respond| async move {
        let mut body = respond.send_response(head(200), false).unwrap();
        body.send_data(Bytes::from_static(b"{\"items\":["), false).unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        match end {
            Some(reason) => body.send_reset(reason),
            None => until_reset(&mut body).await,
        }
    })
}

#[tokio::test]
async fn a_body_that_breaks_off_is_an_error_and_never_an_end() {
    for reason in [h2::Reason::INTERNAL_ERROR, h2::Reason::CANCEL, h2::Reason::NO_ERROR] {
        let backend = Backend::start(100, cut_body(Some(reason))).await;
        let all = upstreams([backend.target("east")]);
        let response = all.get("east").unwrap().send(false, false, get("/list")).await.unwrap();
        let error = all_of(response.into_body()).await.unwrap_err();
        assert!(matches!(error, BodyError::Member { .. }), "{reason:?}: {error:?}");
    }
    let backend = Backend::start(100, cut_body(None)).await;
    let all = upstreams([backend.target("east")]);
    let mut response = all.get("east").unwrap().send(false, false, get("/list")).await.unwrap();
    first_frame(response.body_mut()).await;
    backend.order(Order::Cut);
    assert!(all_of(response.into_body()).await.is_err(), "the connection was cut");
}

#[tokio::test]
async fn a_frozen_member_breaks_its_streams_and_comes_back() {
    let backend = Backend::start(100, plain()).await;
    let quick = Tuning {
        ping_every: Duration::from_millis(50),
        ping_timeout: Duration::from_millis(500),
        ..WATCH
    };
    let settings = Settings {
        connect_timeout: Duration::from_secs(20),
        unary: quick,
        watch: quick,
        pace: PACE,
        ages: AGES,
    };
    let all = first(&Connector::with(&settings, Tasks::new()), [backend.target("east")]);
    let east = all.get("east").unwrap();
    let mut watch = east.send(true, false, get("/watch")).await.unwrap();
    first_frame(watch.body_mut()).await;
    backend.order(Order::Freeze);
    let broken = tokio::time::timeout(PATIENCE, watch.body_mut().frame())
        .await
        .expect("noticed by pings");
    assert!(matches!(broken, Some(Err(BodyError::Member { .. }))), "{broken:?}");
    let mut again = east.send(true, false, get("/watch")).await.unwrap();
    first_frame(again.body_mut()).await;
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let backend = Backend::start(1, plain()).await;
    let quick = Tuning {
        ping_every: Duration::from_millis(10),
        idle_timeout: Duration::from_millis(30),
        ..UNARY
    };
    let settings = Settings {
        connect_timeout: Duration::from_secs(20),
        unary: quick,
        watch: quick,
        pace: PACE,
        ages: AGES,
    };
    let all = first(&Connector::with(&settings, Tasks::new()), [backend.target("east")]);
    let east = all.get("east").unwrap();
    let held = east.send(true, false, get("/watch")).await.unwrap();
    let more = join_all((0..4).map(|_| east.send(true, false, get("/watch")))).await;
    assert_eq!(all.pools()[0].2.connections, 5);
    drop(more);
    eventually("all but the one in use are closed", || {
        all.pools()[0].2.connections == 1
    })
    .await;
    drop(held);
    eventually("the last one too", || all.pools()[0].2.connections == 0).await;
    east.send(true, false, get("/watch")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_flow_both_ways_and_one_slow_reader_stops_nobody() {
    const CHUNK: usize = 16 << 10;
    let backend = Backend::start(100, {
        script(|request, mut respond| async move {
            if request.method() == http::Method::PUT {
                let length = read_all(request.into_body()).await.len();
                let mut body = respond.send_response(head(200), false).unwrap();
                body.send_data(length.to_string().into(), true).unwrap();
                return;
            }
            let mut body = respond.send_response(head(200), false).unwrap();
            for _ in 0..(32 << 20) / CHUNK {
                body.reserve_capacity(CHUNK);
                while body.capacity() < CHUNK {
                    if std::future::poll_fn(|cx| body.poll_capacity(cx))
                        .await
                        .is_none_or(|left| left.is_err())
                    {
                        return;
                    }
                }
                body.send_data(Bytes::from(vec![b'x'; CHUNK]), false).unwrap();
            }
            let _ = body.send_data(Bytes::new(), true);
        })
    })
    .await;
    let all = upstreams([backend.target("east")]);
    let east = all.get("east").unwrap();
    let slow = join_all((0..20).map(|_| east.send(false, false, get("/list")))).await;
    let response = east.send(false, false, get("/list")).await.unwrap();
    assert_eq!(all_of(response.into_body()).await.unwrap().len(), 32 << 20);
    let upload = Bytes::from(vec![b'y'; 5 << 20]);
    let put = Request::put("/object").body(Body::from(upload.clone())).unwrap();
    let response = east.send(false, false, put).await.unwrap();
    assert_eq!(all_of(response.into_body()).await.unwrap(), upload.len().to_string());
    assert_eq!(backend.seen.connections(), 1);
    drop(slow);
}

#[tokio::test]
async fn a_swap_keeps_what_it_does_not_change() {
    let backend = Backend::start(100, plain()).await;
    let connector = connector();
    let old = first(&connector, [backend.target("east"), backend.target("west")]);
    let (east, west) = (old.get("east").unwrap().clone(), old.get("west").unwrap().clone());
    let mut watch = east.send(true, false, get("/watch")).await.unwrap();
    let mut same = backend.target("east");
    same.version = "2".to_owned();
    same.cordoned = true;
    same.breaker.consecutive_failures = 1;
    let all = connector.follow(&old, &snapshot([same]).targets);
    assert!(Arc::ptr_eq(&east, all.get("east").unwrap()), "the same transport");
    assert!(all.get("west").is_none());
    let mut last = west.send(true, false, get("/watch")).await.unwrap();
    assert_eq!(old.pools()[1].2.connections, 1, "whoever was routed there goes on");
    drop((old, west));
    first_frame(last.body_mut()).await;
    east.breaker(TrafficClass::Unary)
        .admit(None, crate::resource::breaker::Probe::Telling)
        .unwrap()
        .record(breaker::Outcome::Failure);
    assert_eq!(
        all.breakers()[0].report.state,
        breaker::State::Open,
        "new thresholds count"
    );

    let other = Backend::start(100, plain()).await;
    let all = connector.follow(&all, &snapshot([other.target("east")]).targets);
    let moved = all.get("east").unwrap();
    assert!(!Arc::ptr_eq(&east, moved));
    drop(east);
    first_frame(watch.body_mut()).await;
    moved.send(false, false, get("/version")).await.unwrap();
    assert_eq!(other.seen.requests(), 1);
    assert_eq!(all.breakers()[0].report.state, breaker::State::Closed);
}

#[tokio::test]
async fn streams_that_nobody_reads_leave_room_for_the_next() {
    let backend = Backend::start(100, {
        script(|request, mut respond| async move {
            let size = if request.uri().path().ends_with("large") {
                1 << 20
            } else {
                2
            };
            let mut body = respond.send_response(head(200), false).unwrap();
            body.send_data(vec![b'x'; size].into(), true).unwrap();
            until_reset(&mut body).await;
        })
    })
    .await;
    let unary = Tuning {
        stream_window: 64 << 10,
        connection_window: 128 << 10,
        ..UNARY
    };
    let settings = Settings {
        connect_timeout: Duration::from_secs(20),
        unary,
        watch: WATCH,
        pace: PACE,
        ages: AGES,
    };
    let all = first(&Connector::with(&settings, Tasks::new()), [backend.target("east")]);
    let east = all.get("east").unwrap();
    let unread = join_all((0..5).map(|_| east.send(false, false, get("/large")))).await;
    let next = east.send(false, false, get("/small")).await.unwrap();
    assert_eq!(all_of(next.into_body()).await.unwrap(), "xx");
    assert!(unread.iter().all(Result::is_ok));
    assert_eq!(backend.seen.connections(), 3, "two to a connection");
}
