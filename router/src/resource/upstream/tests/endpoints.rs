//! Members with several endpoints: which of them gets what, while they go and come back.

use super::super::scripted::Certified;
use super::*;
use crate::resource::upstream::failover::State;

/// So fast that tests need not wait.
pub(super) const QUICK: Pace = Pace {
    ejected_for: Duration::from_millis(30),
    ejected_at_most: Duration::from_millis(120),
    returns_within: Duration::from_millis(300),
    next_after: Duration::from_millis(300),
};

pub(super) fn settings() -> Settings {
    Settings {
        connect_timeout: Duration::from_secs(20),
        unary: UNARY,
        watch: WATCH,
        pace: QUICK,
        ages: AGES,
    }
}

/// Its endpoints do not come back of their own accord while a test looks.
fn slow() -> Connector {
    Connector::new(Duration::from_secs(20), Tasks::new())
}

fn quick() -> Connector {
    Connector::with(&settings(), Tasks::new())
}

pub(super) async fn bound() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

pub(super) async fn ask(east: &Upstream) -> http::StatusCode {
    east.send(false, false, get("/version")).await.unwrap().status()
}

pub(super) fn word(all: &Upstreams, at: usize) -> &'static str {
    all.endpoints()[at].health.state.as_str()
}

pub(super) fn ejections(all: &Upstreams, at: usize) -> Vec<(&'static str, u64)> {
    all.endpoints()[at].health.ejections.clone().into_iter().collect()
}

#[tokio::test]
async fn endpoints_differ_in_certificates_and_a_wrong_one_ejects_its_own_alone() {
    let (a, b) = (Backend::start(1, plain()).await, Backend::start(1, plain()).await);
    let both = format!("{}{}", a.ca_pem, b.ca_pem);
    let all = first(&slow(), [target("east", &[a.address, b.address], &both)]);
    let east = all.get("east").unwrap();
    assert_eq!(ask(east).await, 200);
    assert_eq!((a.seen.requests(), b.seen.requests()), (1, 0), "in order of preference");

    for (bundle, name) in [(&b.ca_pem, None), (&both, Some("other.test".to_owned()))] {
        let mut wrong = target("east", &[a.address, b.address], bundle);
        wrong.endpoints[0].tls_server_name = name.or(wrong.endpoints[0].tls_server_name.take());
        let all = first(&slow(), [wrong]);
        let east = all.get("east").unwrap();
        let connected = a.seen.connections();
        let held = [
            east.send(true, false, get("/watch")).await.unwrap(),
            east.send(true, false, get("/watch")).await.unwrap(),
        ];
        assert_eq!([word(&all, 0), word(&all, 1)], ["ejected", "usable"]);
        assert_eq!(ejections(&all, 0), [("untrusted", 1)]);
        assert_eq!(ejections(&all, 1), []);
        assert_eq!(a.seen.connections(), connected + 1, "it is not asked again meanwhile");
        drop(held);
    }
    assert_eq!(a.seen.requests(), 1);
}

#[tokio::test]
async fn the_last_one_is_tried_for_ever() {
    let (east, west) = (closed_port().await, closed_port().await);
    let all = first(&slow(), [target("east", &[east, west], &Certified::new().ca_pem())]);
    for _ in 0..5 {
        let error = all.get("east").unwrap().send(false, false, get("/version")).await;
        assert!(matches!(error, Err(UpstreamError::Connect { .. })), "{error:?}");
    }
    assert_eq!([word(&all, 0), word(&all, 1)], ["ejected", "usable"]);
}

#[tokio::test]
async fn streams_move_back_and_running_watches_stay() {
    let certified = Certified::new();
    let (listener, first_choice) = bound().await;
    drop(listener);
    let (listener, _) = bound().await;
    let fallback = Backend::start_on(listener, certified.clone(), 100, plain());
    let all = first(
        &quick(),
        [target("east", &[first_choice, fallback.address], &certified.ca_pem())],
    );
    let east = all.get("east").unwrap();
    let mut watch = east.send(true, false, get("/watch")).await.unwrap();
    first_frame(watch.body_mut()).await;
    while word(&all, 0) != "ejected" {
        assert_eq!(ask(east).await, 200);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(ejections(&all, 0), [("refused", 1)]);

    let listener = TcpListener::bind(first_choice).await.unwrap();
    let preferred = Backend::start_on(listener, certified, 100, plain());
    eventually("a probe brings it back", || word(&all, 0) != "ejected").await;
    let moved = async {
        let mut in_a_row = 0;
        while in_a_row < 20 {
            let before = preferred.seen.requests();
            assert_eq!(ask(east).await, 200);
            in_a_row = if preferred.seen.requests() > before {
                in_a_row + 1
            } else {
                0
            };
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, moved)
        .await
        .expect("all new streams move back");
    assert_eq!(word(&all, 0), "usable");
    let silent = tokio::time::timeout(Duration::from_millis(20), watch.body_mut().frame()).await;
    assert!(silent.is_err(), "the watch runs on: {silent:?}");
    let (_, _, pool) = all.pools().remove(0);
    assert_eq!(pool.streams, 1);
}

#[tokio::test]
async fn one_that_accepts_and_is_silent_costs_a_pause_and_no_time_out() {
    let (listener, silent) = bound().await;
    let backend = Backend::start(100, plain()).await;
    let all = first(&slow(), [target("east", &[silent, backend.address], &backend.ca_pem)]);
    let began = std::time::Instant::now();
    assert_eq!(ask(all.get("east").unwrap()).await, 200);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert_eq!(ejections(&all, 0), [("silent", 1)]);
    drop(listener);
}

#[tokio::test]
async fn what_stands_before_an_api_server_and_does_not_reach_it_is_ejected() {
    let gateway = |mark: bool| {
        script(move |_, mut respond| async move {
            let mut head = head(503);
            if !mark {
                head.headers_mut().remove("audit-id");
            }
            let _ = respond.send_response(head, true);
        })
    };
    for (mark, state) in [(false, "ejected"), (true, "usable")] {
        let (a, b) = (
            Backend::start(100, gateway(mark)).await,
            Backend::start(100, plain()).await,
        );
        let both = format!("{}{}", a.ca_pem, b.ca_pem);
        let all = first(&slow(), [target("east", &[a.address, b.address], &both)]);
        let east = all.get("east").unwrap();
        for _ in 0..5 {
            assert_eq!(ask(east).await, 503);
        }
        assert_eq!(word(&all, 0), state);
        assert_eq!(ask(east).await == 200, !mark);
    }
}

#[tokio::test]
async fn broken_connections_eject_and_requests_go_elsewhere_at_once() {
    let (a, b) = (Backend::start(100, plain()).await, Backend::start(100, plain()).await);
    let both = format!("{}{}", a.ca_pem, b.ca_pem);
    let all = first(&slow(), [target("east", &[a.address, b.address], &both)]);
    let east = all.get("east").unwrap();
    ask(east).await;
    let mut watch = east.send(true, false, get("/watch")).await.unwrap();
    first_frame(watch.body_mut()).await;
    a.order(Order::Cut);
    eventually("two connections broke", || word(&all, 0) == "ejected").await;
    assert_eq!(ejections(&all, 0), [("broken", 1)]);
    assert_eq!(ask(east).await, 200);
    assert_eq!(b.seen.requests(), 1);
}

/// Its connections say nothing any more, and no ping is due for long.
#[tokio::test]
async fn a_frozen_endpoint_is_noticed_by_who_waits() {
    let (a, b) = (Backend::start(100, plain()).await, Backend::start(100, plain()).await);
    let both = format!("{}{}", a.ca_pem, b.ca_pem);
    let mut settings = settings();
    settings.unary.ping_timeout = Duration::from_secs(2);
    let connector = Connector::with(&settings, Tasks::new());
    let all = first(&connector, [target("east", &[a.address, b.address], &both)]);
    let east = all.get("east").unwrap();
    ask(east).await;
    a.order(Order::Freeze);
    let waits = east.send(false, false, get("/version"));
    let others = async {
        eventually("it has left", || all.pools()[0].1.streams == 1).await;
        east.suspect();
        // Whoever comes now waits for no ping.
        let served = async {
            while tokio::time::timeout(Duration::from_millis(700), east.send(false, false, get("/version")))
                .await
                .is_err()
            {}
        };
        tokio::time::timeout(Duration::from_millis(1900), served)
            .await
            .expect("over another connection");
    };
    let (lost, ()) = tokio::join!(waits, others);
    assert!(
        matches!(lost, Err(UpstreamError::Lost { .. })),
        "{lost:?}: may be sent again"
    );
}

#[test]
fn states_have_words() {
    let now = std::time::Instant::now();
    let returning = State::Returning { since: now };
    assert_eq!([State::Usable, returning].map(State::as_str), ["usable", "returning"]);
}

#[tokio::test]
async fn a_member_that_takes_no_streams_is_not_dialled_again_and_again() {
    let backend = Backend::start(0, plain()).await;
    let all = upstreams([backend.target("east")]);
    let asked = all.get("east").unwrap().send(false, false, get("/version"));
    let answer = tokio::time::timeout(PATIENCE, asked).await.expect("it is told");
    let error = answer.unwrap_err().to_string();
    assert!(error.contains("takes no streams"), "{error}");
    assert_eq!(backend.seen.connections(), 1);
}
