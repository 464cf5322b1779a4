//! Endpoints and connections that are neither well nor gone, and those that only look so.

use h2::server::SendResponse;
use portolan_runtime::tls::ALPN_GRPC;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use super::super::scripted::{Certified, acceptor};
use super::endpoints::{ask, bound, ejections, settings, word};
use super::*;

/// Ejected ones do not come back while a test looks.
fn long() -> Settings {
    let mut settings = settings();
    settings.pace.ejected_for = Duration::from_mins(1);
    settings.pace.ejected_at_most = Duration::from_mins(1);
    settings
}

fn of_two(settings: &Settings, (a, b): (SocketAddr, SocketAddr), ca_pem: &str) -> Upstreams {
    first(
        &Connector::with(settings, Tasks::new()),
        [target("east", &[a, b], ca_pem)],
    )
}

/// Answers nothing of this path.
fn hangs_at(path: &'static str) -> Script {
    script(move |request, mut respond: SendResponse<Bytes>| async move {
        if request.uri().path() == path || path == "*" {
            std::future::pending::<()>().await;
        }
        let _ = respond.send_response(head(200), true);
    })
}

/// Asks for this path several times at once, and drops it all when `until` is over.
async fn while_asking(east: &Upstream, path: &str, until: impl Future<Output = ()>) {
    let asking = join_all((0..5).map(|_| east.send(false, false, get(path))));
    tokio::select! {
        answers = asking => panic!("they are not answered: {answers:?}"),
        () = until => {}
    }
}

#[tokio::test]
async fn one_that_answers_no_request_is_ejected_and_not_back_before_it_does() {
    let (a, b) = (
        Backend::start(100, hangs_at("*")).await,
        Backend::start(100, plain()).await,
    );
    let mut settings = settings();
    settings.unary.late_after = Duration::from_millis(50);
    settings.connect_timeout = Duration::from_millis(200);
    let all = of_two(&settings, (a.address, b.address), &format!("{}{}", a.ca_pem, b.ca_pem));
    let east = all.get("east").unwrap();
    let ejected = eventually("it is ejected", || word(&all, 0) == "ejected");
    while_asking(east, "/version", ejected).await;
    assert_eq!(ejections(&all, 0), [("late", 1)]);
    assert_eq!(ask(east).await, 200, "the other serves");
    let asked = a.seen.requests();
    let probes = || {
        assert_eq!(word(&all, 0), "ejected", "a connection is no answer");
        a.seen.requests() >= asked + 3
    };
    eventually("it is probed", probes).await;
}

#[tokio::test]
async fn one_that_answers_others_is_not_late() {
    let (a, b) = (
        Backend::start(100, hangs_at("/hangs")).await,
        Backend::start(100, plain()).await,
    );
    let mut settings = long();
    settings.unary.late_after = Duration::from_millis(50);
    let all = of_two(&settings, (a.address, b.address), &format!("{}{}", a.ca_pem, b.ca_pem));
    let east = all.get("east").unwrap();
    let others = async {
        for _ in 0..20 {
            assert_eq!(ask(east).await, 200);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    while_asking(east, "/hangs", others).await;
    assert_eq!(
        (word(&all, 0), b.seen.requests()),
        ("usable", 0),
        "who hangs hangs by itself"
    );
}

#[tokio::test]
async fn a_slow_resolver_ejects_nobody() {
    let backend = Backend::start(100, plain()).await;
    let mut connector = Connector::with(&long(), Tasks::new());
    connector.resolver = Resolver::silent();
    let mut east = target("east", &[backend.address, backend.address], &backend.ca_pem);
    east.endpoints[0].url = "https://east.test:6443".parse().unwrap();
    let all = first(&connector, [east]);
    assert_eq!(ask(all.get("east").unwrap()).await, 200);
    assert_eq!((word(&all, 0), ejections(&all, 0)), ("usable", vec![]));
}

#[tokio::test]
async fn one_broken_address_of_several_ejects_no_endpoint() {
    let certified = Certified::new();
    let (x, y, other) = (bound().await, bound().await, bound().await);
    let addresses = [&x, &y, &other].map(|(_, address)| *address);
    let [x, y, other] = [x, y, other].map(|(listener, _)| Backend::start_on(listener, certified.clone(), 100, plain()));
    let mut settings = long();
    settings.watch.ping_every = Duration::from_millis(10);
    settings.ages.asked_again = Duration::from_millis(20);
    let mut connector = Connector::with(&settings, Tasks::new());
    let means = Arc::new(Mutex::new(vec![addresses[0]]));
    let answers = means.clone();
    connector.resolver = Resolver::scripted(move |_, _| answers.lock().clone());
    let mut east = target("east", &[addresses[0], addresses[2]], &certified.ca_pem());
    east.endpoints[0].url = "https://east.test:6443".parse().unwrap();
    let all = first(&connector, [east]);
    let east = all.get("east").unwrap();
    ask(east).await;
    let mut watch = east.send(true, false, get("/watch")).await.unwrap();
    first_frame(watch.body_mut()).await;
    *means.lock() = addresses[..2].to_vec();
    eventually("its name means both", || all.endpoints()[0].addresses.len() == 2).await;
    x.order(Order::Cut);
    eventually("both are noticed", || {
        let (_, unary, watch) = all.pools().remove(0);
        unary.connections + watch.connections == 0
    })
    .await;
    assert_eq!(word(&all, 0), "usable");
    assert_eq!(ask(east).await, 200);
    assert_eq!((y.seen.requests(), other.seen.requests()), (1, 0));
}

/// A rolling restart breaks one address after the other, each of which serves again by then.
#[tokio::test]
async fn an_address_that_has_answered_since_is_sound_when_the_next_breaks() {
    let certified = Certified::new();
    let (x, y, other) = (bound().await, bound().await, bound().await);
    let addresses = [&x, &y, &other].map(|(_, address)| *address);
    let [x, y, _other] = [x, y, other].map(|(listener, _)| Backend::start_on(listener, certified.clone(), 1, plain()));
    let mut settings = long();
    settings.ages.fresh = Duration::ZERO;
    let mut connector = Connector::with(&settings, Tasks::new());
    let means = Arc::new(Mutex::new(addresses[..2].to_vec()));
    let answers = means.clone();
    connector.resolver = Resolver::scripted(move |_, _| answers.lock().clone());
    let mut east = target("east", &[addresses[0], addresses[2]], &certified.ca_pem());
    east.endpoints[0].url = "https://east.test:6443".parse().unwrap();
    let all = first(&connector, [east]);
    let east = all.get("east").unwrap();
    ask(east).await;
    x.order(Order::Cut);
    eventually("it has broken", || all.pools()[0].1.connections == 0).await;
    let mut watches = Vec::new();
    for _ in 0..2 {
        let mut watch = east.send(true, false, get("/watch")).await.unwrap();
        first_frame(watch.body_mut()).await;
        watches.push(watch);
    }
    assert_eq!(y.seen.requests(), 2, "the next address");
    *means.lock() = vec![addresses[0]];
    ask(east).await;
    assert_eq!(x.seen.requests(), 2, "the first again");
    *means.lock() = addresses[..2].to_vec();
    y.order(Order::Cut);
    eventually("both of that have broken, too", || all.pools()[0].2.connections == 0).await;
    assert_eq!((word(&all, 0), ejections(&all, 0)), ("usable", vec![]));
}

#[tokio::test]
async fn ejected_ones_need_not_wait_for_the_last_to_time_out() {
    let certified = Certified::new();
    let (back, address) = bound().await;
    drop(back);
    let last = Backend::start_on(bound().await.0, certified.clone(), 100, plain());
    let last_address = last.address;
    let all = of_two(&long(), (address, last_address), &certified.ca_pem());
    let east = all.get("east").unwrap();
    ask(east).await;
    let mut watch = east.send(true, false, get("/watch")).await.unwrap();
    first_frame(watch.body_mut()).await;
    assert_eq!(word(&all, 0), "ejected", "refused twice");
    drop((last, watch));
    eventually("it has broken", || {
        let (_, unary, watch) = all.pools().remove(0);
        unary.connections + watch.connections == 0
    })
    .await;
    let silent = TcpListener::bind(last_address).await.unwrap();
    let listener = TcpListener::bind(address).await.unwrap();
    let _back = Backend::start_on(listener, certified, 100, plain());
    let served = tokio::time::timeout(Duration::from_secs(10), ask(east)).await;
    assert_eq!(served.expect("long before the time-out"), 200);
    drop(silent);
}

#[tokio::test]
async fn there_are_so_many_connections_and_the_rest_waits() {
    let backend = Backend::start(1, plain()).await;
    let mut settings = settings();
    settings.watch.most = 2;
    let all = first(&Connector::with(&settings, Tasks::new()), [backend.target("east")]);
    let east = all.get("east").unwrap();
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(east.send(true, false, get("/watch")).await.unwrap());
    }
    let mut waits = Box::pin(east.send(true, false, get("/watch")));
    assert!(futures::poll!(&mut waits).is_pending());
    let (_, _, pool) = all.pools().remove(0);
    assert_eq!((pool.connections, pool.waiting, pool.found_full), (2, 1, 1));
    held.pop();
    waits.await.expect("what becomes free is its own");
    assert_eq!(backend.seen.connections(), 2);
}

/// What an HTTP/2 server that is made by hand does: from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// Answers pings.
    Answers,
    Nothing,
    /// Sends something else all the time.
    Chatters,
}

const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, flags, 0, 0, 0, 0], payload].concat()
}

/// One connection; nobody listens then.
async fn by_hand(listener: TcpListener, acceptor: tokio_rustls::TlsAcceptor, mut does: watch::Receiver<Does>) {
    let (stream, _) = listener.accept().await.unwrap();
    drop(listener);
    let stream = acceptor.accept(stream).await.unwrap();
    let (mut read, mut write) = tokio::io::split(stream);
    let (pings, mut owed) = mpsc::channel::<Vec<u8>>(64);
    let reads = async {
        let mut preface = [0; 24];
        read.read_exact(&mut preface).await?;
        loop {
            let mut head = [0; 9];
            read.read_exact(&mut head).await?;
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            read.read_exact(&mut payload).await?;
            if head[3] == PING && head[4] == 0 {
                let _ = pings.send(frame(PING, 1, &payload)).await;
            }
        }
        #[allow(unreachable_code, reason = "names the error")]
        Ok::<(), std::io::Error>(())
    };
    let writes = async {
        write.write_all(&frame(SETTINGS, 0, &[])).await?;
        write.write_all(&frame(SETTINGS, 1, &[])).await?;
        let mut ticks = tokio::time::interval(Duration::from_millis(10));
        loop {
            let now = *does.borrow_and_update();
            tokio::select! {
                pong = owed.recv(), if now == Does::Answers => {
                    write.write_all(&pong.unwrap_or_default()).await?;
                }
                _ = ticks.tick(), if now == Does::Chatters => {
                    write.write_all(&frame(WINDOW_UPDATE, 0, &[0, 0, 0, 1])).await?;
                }
                _ = does.changed() => {}
            }
        }
        #[allow(unreachable_code, reason = "names the error")]
        Ok::<(), std::io::Error>(())
    };
    tokio::select! {
        _ = reads => {}
        _ = writes => {}
    }
}

/// Where it is, its CA and its orders.
async fn made_by_hand() -> (SocketAddr, String, watch::Sender<Does>) {
    let (listener, address) = bound().await;
    let (acceptor, ca_pem) = acceptor(ALPN_GRPC);
    let orders = watch::Sender::new(Does::Answers);
    spawn(by_hand(listener, acceptor, orders.subscribe()));
    (address, ca_pem, orders)
}

fn pinging(timeout: Duration) -> Settings {
    let mut settings = long();
    settings.watch.ping_every = Duration::from_millis(10);
    settings.watch.ping_timeout = timeout;
    settings
}

fn doubted(east: &Upstream) -> usize {
    east.transport.as_ref().unwrap().watch.doubted()
}

#[tokio::test]
async fn a_slow_connection_over_which_something_comes_lives() {
    let (address, ca_pem, orders) = made_by_hand().await;
    let connector = Connector::with(&pinging(Duration::from_millis(100)), Tasks::new());
    let all = first(&connector, [target("east", &[address], &ca_pem)]);
    let held = all.get("east").unwrap().slot(true, false).await.unwrap();
    orders.send_replace(Does::Chatters);
    for _ in 0..15 {
        tokio::time::sleep(Duration::from_millis(40)).await;
        assert_eq!(all.pools()[0].2.connections, 1, "it is slow, and alive");
    }
    orders.send_replace(Does::Nothing);
    eventually("nothing comes any more", || all.pools()[0].2.connections == 0).await;
    drop(held);
}

#[tokio::test]
async fn a_connection_that_only_chatters_is_closed_once_nobody_uses_it() {
    let (address, ca_pem, orders) = made_by_hand().await;
    let mut settings = pinging(Duration::from_millis(100));
    settings.watch.idle_timeout = Duration::from_millis(50);
    let all = first(
        &Connector::with(&settings, Tasks::new()),
        [target("east", &[address], &ca_pem)],
    );
    let held = all.get("east").unwrap().slot(true, false).await.unwrap();
    orders.send_replace(Does::Chatters);
    tokio::time::sleep(Duration::from_millis(40)).await;
    drop(held);
    eventually("it is idle", || all.pools()[0].2.connections == 0).await;
}

#[tokio::test]
async fn a_late_ping_dials_nothing_where_another_connection_has_room() {
    let (address, ca_pem, orders) = made_by_hand().await;
    let other = Backend::start(100, plain()).await;
    let bundle = format!("{ca_pem}{}", other.ca_pem);
    let all = of_two(&pinging(PATIENCE), (address, other.address), &bundle);
    let east = all.get("east").unwrap();
    let held = east.slot(true, false).await.unwrap();
    for late in 0..2 {
        orders.send_replace(Does::Nothing);
        eventually("it is late", || doubted(east) == 1).await;
        eventually("the next is there", || all.pools()[0].2.connections == 2).await;
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(30)).await;
            assert_eq!(other.seen.connections(), 1, "{late}");
        }
        orders.send_replace(Does::Answers);
        eventually("it is well again", || doubted(east) == 0).await;
    }
    drop(held);
}

#[tokio::test]
async fn one_that_recovers_serves_who_waits() {
    let (address, ca_pem, orders) = made_by_hand().await;
    let (silent, nobody) = bound().await;
    let all = of_two(&pinging(PATIENCE), (address, nobody), &ca_pem);
    let east = all.get("east").unwrap();
    let held = east.slot(true, false).await.unwrap();
    // New connections to it are silent, too: refused, it would be ejected.
    let listens = TcpListener::bind(address).await.unwrap();
    orders.send_replace(Does::Nothing);
    eventually("it is late", || doubted(east) == 1).await;
    let mut waits = Box::pin(east.slot(true, false));
    assert!(futures::poll!(&mut waits).is_pending());
    orders.send_replace(Does::Answers);
    let served = tokio::time::timeout(Duration::from_secs(5), waits).await;
    served.expect("before any dial times out").unwrap();
    drop((held, silent, listens));
}

#[tokio::test]
async fn a_connection_of_before_a_new_bundle_is_looked_at_again() {
    let (backend, other) = (Backend::start(100, plain()).await, Backend::start(100, plain()).await);
    let all = upstreams([backend.target("east")]);
    let dialer = &all.get("east").unwrap().transport.as_ref().unwrap().dialer;
    let trust = &dialer.trust.store;
    let keep = |dialed| std::future::ready(Ok(dialed));
    let dialed: endpoint::Dialed = dialer.dial(endpoint::Protocol::Http2, keep).await.unwrap();
    let dialed = dialed.trusted(trust).expect("nothing has changed");
    trust.set_pem(&other.ca_pem).unwrap();
    let told = dialed.trusted(trust).map(drop).expect_err("another CA's");
    assert!(told.to_string().contains("bundle has changed"), "{told}");
    assert_eq!(word(&all, 0), "usable");
}
