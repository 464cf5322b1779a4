//! What a swap does to what is open.

use super::*;

/// A watch whose events come in frames that end within the next one.
fn busy() -> Script {
    script(|_, mut respond| async move {
        let mut body = respond.send_response(head(200), false).unwrap();
        while body.send_data("1}\n{\"event\":".into(), false).is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
}

#[tokio::test]
async fn a_swap_ends_the_watches_of_those_who_may_no_longer() {
    for member in [plain(), busy()] {
        let (backend, router) = east(member).await;
        let mut watch = router.get(&format!("{PODS}?watch=true")).await;
        watch.body_mut().frame().await.unwrap().unwrap();
        let mut same = backend.target("east");
        same.version = "2".to_owned();
        router.swap([same], &[USER]);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!http_body::Body::is_end_stream(watch.body()));
        let mut closed = backend.target("east");
        closed.version = "3".to_owned();
        router.swap([closed], &[]);
        let rest = tokio::time::timeout(PATIENCE, watch.into_body().collect()).await;
        let rest = rest.expect("in time").expect("a clean end").to_bytes();
        assert!(rest.is_empty() || rest.ends_with(b"\n"), "between two events: {rest:?}");
    }
}

#[tokio::test]
async fn a_swap_expires_the_watches_that_would_show_something_else() {
    for member in [plain(), busy()] {
        let (backend, router) = east(member).await;
        let mut watch = router.get(&format!("{PODS}?watch=true")).await;
        watch.body_mut().frame().await.unwrap().unwrap();
        let mut other = backend.target("east");
        (other.version, other.cluster_uid) = ("2".to_owned(), "another".to_owned());
        router.swap([other], &[USER]);
        let rest = tokio::time::timeout(PATIENCE, watch.into_body().collect()).await;
        let rest = rest.expect("in time").expect("a clean end").to_bytes();
        let last = rest.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap();
        let last: serde_json::Value = serde_json::from_slice(last).unwrap();
        assert_eq!(last["type"], "ERROR");
        assert_status(&last["object"], 410, "Expired");
    }
}

#[tokio::test]
async fn a_swap_resets_what_must_not_look_whole() {
    let (backend, router) = east(busy()).await;
    let mut log = router.get(&format!("{PODS}/p/log?follow=true")).await;
    log.body_mut().frame().await.unwrap().unwrap();
    let mut closed = backend.target("east");
    closed.version = "2".to_owned();
    router.swap([closed], &[]);
    let rest = tokio::time::timeout(PATIENCE, log.into_body().collect()).await;
    assert!(rest.expect("in time").is_err());
}

struct Away;

impl MemberApi for Away {
    fn post(&self, cluster: &str, _: &'static str, _: Turn, _: Vec<u8>) -> BoxFuture<'static, MemberAnswer> {
        let fault = Fault::Unavailable {
            message: "away".to_owned(),
            cluster: Some(cluster.to_owned()),
            sent: false,
        };
        async { Err(fault) }.boxed()
    }
}

#[tokio::test]
async fn informers_are_not_made_to_list_anew_because_nobody_can_be_asked() {
    let backend = Backend::start(100, plain()).await;
    let router = Router::with_members([backend.target("east")], Bounds::default(), Some(Arc::new(Away))).await;
    for (path, code, reason) in [
        (PODS.to_owned(), 429, "TooManyRequests"),
        (format!("{PODS}?watch"), 429, "TooManyRequests"),
        (format!("{PODS}/a"), 503, "ServiceUnavailable"),
    ] {
        let mut request = ask("GET", &path, "");
        request
            .headers_mut()
            .insert("impersonate-user", "robot".parse().unwrap());
        let response = router.http2().await.send_request(request).await.unwrap();
        // Informers wait; a worker that would be held up by repeating is told to come back in its own time.
        assert_eq!(response.headers().contains_key("retry-after"), code == 429);
        assert_status(&json(response).await, code, reason);
    }
}
