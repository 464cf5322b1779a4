//! Members that break off, go away, refuse or say nothing, and what their clients see of it.

use super::*;

#[tokio::test]
async fn an_answer_that_breaks_off_resets_the_client() {
    let (backend, router) = east(script(|_, mut respond| async move {
        let mut body = respond.send_response(head(200), false).unwrap();
        body.send_data(Bytes::from_static(b"{\"items\":[{}"), false).unwrap();
        until_reset(&mut body).await;
    }))
    .await;
    let mut over_h2 = router.get(PODS).await;
    let mut client = router.http1().await;
    let mut request = ask("GET", PODS, "");
    *request.uri_mut() = PODS.parse().unwrap();
    let mut over_h1 = client.send_request(request).await.unwrap();
    for response in [&mut over_h2, &mut over_h1] {
        response.body_mut().frame().await.unwrap().unwrap();
    }
    backend.order(Order::Cut);
    for response in [over_h2, over_h1] {
        let rest = tokio::time::timeout(PATIENCE, response.into_body().collect())
            .await
            .unwrap();
        assert!(rest.is_err(), "half a list must not look whole");
    }
}

#[tokio::test]
async fn a_watch_whose_member_goes_ends_between_events_or_is_reset() {
    for (sent, whole) in [(&b"{\"type\":\"BOOKMARK\"}\n"[..], true), (b"{\"type\":", false)] {
        let (backend, router) = east(script(move |_, mut respond| async move {
            let mut body = respond.send_response(head(200), false).unwrap();
            body.send_data(Bytes::from_static(sent), false).unwrap();
            until_reset(&mut body).await;
        }))
        .await;
        let mut watch = router.get(&format!("{PODS}?watch")).await;
        watch.body_mut().frame().await.unwrap().unwrap();
        backend.order(Order::Cut);
        let rest = tokio::time::timeout(PATIENCE, watch.into_body().collect()).await;
        assert_eq!(rest.expect("in time").is_ok(), whole, "{sent:?}");
    }
}

#[tokio::test]
async fn reads_are_tried_again_and_writes_are_not() {
    let (backend, router) = east(script(|_, mut respond| async move {
        respond.send_reset(h2::Reason::INTERNAL_ERROR);
    }))
    .await;
    let read = router.get(&format!("{PODS}/a")).await;
    assert_status(&json(read).await, 503, "ServiceUnavailable");
    assert_eq!(backend.seen.requests(), 3);
    let write = router
        .http2()
        .await
        .send_request(ask("POST", PODS, "{}"))
        .await
        .unwrap();
    assert!(
        write.headers().get("retry-after").is_none(),
        "it may have run: {:?}",
        write.headers()
    );
    assert_status(&json(write).await, 503, "ServiceUnavailable");
    assert_eq!(backend.seen.requests(), 4, "sent once");
}

#[tokio::test]
async fn a_refused_read_succeeds_on_the_next_try() {
    let tries = std::sync::Arc::new(AtomicUsize::new(0));
    let (_backend, router) = east(script(move |_, mut respond| {
        let first = tries.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if first {
                respond.send_reset(h2::Reason::REFUSED_STREAM);
            } else {
                respond.send_response(head(200), true).unwrap();
            }
        }
    }))
    .await;
    assert_eq!(router.get(PODS).await.status(), 200);
}

#[tokio::test]
async fn a_dead_member_opens_its_breaker_and_only_its_own() {
    let dead = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let backend = Backend::start(100, plain()).await;
    let mut west = crate::resource::upstream::scripted::target("west", &[dead], &backend.ca_pem);
    west.breaker.consecutive_failures = 3;
    let router = Router::start([backend.target("east"), west], Bounds::default()).await;
    let write = || ask("POST", "/clusters/west/api/v1/namespaces/ns/pods", "{}");
    let mut client = router.http2().await;
    for _ in 0..3 {
        let response = client.send_request(write()).await.unwrap();
        assert!(
            !response.headers().contains_key("retry-after"),
            "it would hold up the caller's worker"
        );
        assert_status(&json(response).await, 503, "ServiceUnavailable");
    }
    let open: Vec<_> = router
        .routing
        .load()
        .upstreams
        .breakers()
        .into_iter()
        .filter(|one| one.report.state == State::Open)
        .collect();
    assert_eq!(
        (open.len(), &*open[0].cluster, open[0].class),
        (1, "west", TrafficClass::Unary)
    );
    let refused = json(client.send_request(write()).await.unwrap()).await;
    assert!(
        refused["message"].as_str().unwrap().contains("breaker is open"),
        "{refused}"
    );
    let list = router.get("/clusters/west/api/v1/namespaces/ns/pods").await;
    assert!(list.headers().contains_key("retry-after"));
    assert_status(&json(list).await, 429, "TooManyRequests");
    assert_eq!(router.get(PODS).await.status(), 200, "east goes on");
}

/// A caller that is alone at a member which takes some milliseconds, and took none before; `looked`: how long `/readyz` takes.
async fn behind_its_pace(looked: Duration) -> (Backend, Router) {
    let backend = Backend::start(100, {
        script(|_, mut respond| async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let mut body = respond.send_response(head(200), false).unwrap();
            let _ = body.send_data(Bytes::from_static(b"{}"), true);
        })
    })
    .await;
    let mut target = backend.target("east");
    (target.breaker.window_milliseconds, target.breaker.min_requests) = (200, 4);
    (
        target.breaker.slow_unary_milliseconds,
        target.breaker.slow_list_milliseconds,
    ) = (2, 2);
    let router = Router::start([target], Bounds::default()).await;
    let upstream = router.routing.load().upstreams.get("east").unwrap().clone();
    for class in TrafficClass::ALL {
        upstream.breaker(class).learn(Duration::from_nanos(1));
    }
    let mut client = router.http2().await;
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_millis(300) {
        let response = client.send_request(ask("POST", PODS, "{}")).await.unwrap();
        assert_eq!(response.status(), 200);
    }
    for (class, path) in [
        (TrafficClass::List, PODS.to_owned()),
        (TrafficClass::Unary, format!("{PODS}/x")),
    ] {
        let breaker = upstream.breaker(class);
        assert_eq!(breaker.report().state, State::Closed);
        let mut looks = 0;
        while breaker.report().state == State::Closed && looks < 10 {
            assert!(began.elapsed() < PATIENCE);
            router.get(&path).await;
            if breaker.wants_readyz() {
                breaker.readyz(Readyz::Ready, looked);
                looks += 1;
            }
        }
        assert!(looks > 0, "nobody else says that it is the member");
    }
    assert_eq!(upstream.breaker(TrafficClass::Watch).report().state, State::Closed);
    (backend, router)
}

#[tokio::test]
async fn reads_far_behind_the_members_pace_open_its_breaker_for_reads_and_writes_do_not() {
    let (_backend, router) = behind_its_pace(Duration::from_millis(2)).await;
    for class in [TrafficClass::List, TrafficClass::Unary] {
        let report = router
            .routing
            .load()
            .upstreams
            .get("east")
            .unwrap()
            .breaker(class)
            .report();
        assert!(report.transitions.contains_key("slower-than-itself"), "{report:?}");
    }
    assert_eq!(router.get(PODS).await.status(), 429);
    assert_eq!(router.get(&format!("{PODS}/x")).await.status(), 503);
    let mut client = router.http2().await;
    for _ in 0..20 {
        let response = client.send_request(ask("POST", PODS, "{}")).await.unwrap();
        assert_eq!(response.status(), 200, "it is open for reads");
    }
}

#[tokio::test]
async fn a_member_that_says_at_once_that_it_is_ready_is_not_slow_for_one_shard() {
    let (_backend, router) = behind_its_pace(Duration::from_millis(1)).await;
    assert_eq!(router.get(PODS).await.status(), 200);
    assert_eq!(router.get(&format!("{PODS}/x")).await.status(), 200);
}

#[tokio::test]
async fn a_silent_member_costs_its_request_a_504() {
    let bounds = Bounds {
        request_timeout: Duration::from_secs(1),
        ..Bounds::default()
    };
    let backend = Backend::start(100, {
        script(|request, mut respond| async move {
            if request.uri().path().ends_with("slow") {
                let mut body = respond.send_response(head(200), false).unwrap();
                until_reset(&mut body).await;
            } else {
                std::future::poll_fn(|cx| respond.poll_reset(cx)).await.unwrap();
            }
        })
    })
    .await;
    let router = Router::start([backend.target("east")], bounds).await;
    let write = router
        .http2()
        .await
        .send_request(ask("POST", PODS, "{}"))
        .await
        .unwrap();
    assert!(write.headers().get("retry-after").is_none());
    assert_status(&json(write).await, 504, "Timeout");
    let slow = router.get(&format!("{PODS}/slow")).await;
    assert_eq!(slow.status(), 200);
    let body = tokio::time::timeout(PATIENCE, slow.into_body().collect())
        .await
        .unwrap();
    assert!(body.is_err(), "the deadline is for the whole answer");
}

#[tokio::test]
async fn a_client_that_keeps_back_its_body_says_nothing_of_the_member() {
    let bounds = Bounds {
        request_timeout: Duration::from_millis(100),
        ..Bounds::default()
    };
    let backend = Backend::start(100, mirror()).await;
    let mut target = backend.target("east");
    target.breaker.consecutive_failures = 1;
    let router = Router::start([target], bounds).await;
    let mut stream = router.connect(portolan_runtime::tls::ALPN_HTTP1).await;
    let head = format!("POST {PODS} HTTP/1.1\r\nhost: r\r\ncontent-length: 10\r\n\r\nhalf");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 504");
    assert!(
        router
            .routing
            .load()
            .upstreams
            .breakers()
            .iter()
            .all(|one| one.report.state == State::Closed)
    );
}
