//! The router's own look at a member: `/readyz` over a connection of its own, which tells of the way and of the member.
//!
//! New each time: what was open before may be dead on one side. Not here: when to look (`dispatch::probe`), what comes of it
//! (`doubt`, `breaker`). Callers: `dispatch`, which tells of silence and of answers, and its `probe`, which looks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http::header::{AUTHORIZATION, CONNECTION, HOST, HeaderValue, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::Upstream;
use super::dialer::Dialer;
use super::doubt::{Doubt, Settled};
use super::endpoint::{ConnectError, Dialed};
use crate::resource::breaker::{Readyz, State, Transition};
use crate::value::traffic::TrafficClass;

/// For the answer, once connected: API servers wait for their etcd in it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// For endpoints that have not answered when one has, with a no.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether a member is to be looked at.
#[derive(Debug)]
pub(super) struct Looks {
    /// A mutex: touched where something is amiss.
    doubt: Mutex<Doubt>,
    /// So that answers need not take it.
    doubted: AtomicBool,
    /// Counts reasons to look at members.
    wake: watch::Sender<u64>,
}

impl Looks {
    pub(super) fn new(wake: watch::Sender<u64>) -> Self {
        Self {
            doubt: Mutex::default(),
            doubted: AtomicBool::new(false),
            wake,
        }
    }
}

impl Upstream {
    /// Nothing comes from it, or there was no way to it: it is looked at soon.
    pub(crate) fn suspect(&self) {
        if let Ok(transport) = &self.transport {
            transport.check();
        }
        if self.looks.doubt.lock().raise(Instant::now()) {
            self.looks.doubted.store(true, Ordering::Relaxed);
            self.look_soon();
        }
    }

    /// Something came from it, whatever it was.
    pub(crate) fn heard(&self) {
        if self.looks.doubted.swap(false, Ordering::Relaxed) {
            self.looks.doubt.lock().answered(Instant::now());
        }
    }

    /// Whether a look would tell something: whether it is there, or whether it is back.
    pub(crate) fn wants_look(&self) -> bool {
        self.is_doubted()
            || TrafficClass::ALL
                .iter()
                .any(|class| self.breaker(*class).wants_readyz())
    }

    /// It is not known whether it is there at all.
    pub(crate) fn is_doubted(&self) -> bool {
        self.looks.doubted.load(Ordering::Relaxed)
    }

    /// Looks, and draws the conclusions.
    pub(crate) async fn look(&self, bearer: Option<HeaderValue>) -> Readyz {
        let began = Instant::now();
        let looked = match &self.transport {
            Ok(transport) => look(&transport.dialer, bearer).await,
            Err(error) => Err(error.clone()),
        };
        let (found, took) = match &looked {
            Ok(look) => *look,
            Err(error) if error.is_silence() => (Readyz::Unreachable, Duration::ZERO),
            // There is somebody, who is not trusted or not understood.
            Err(_) => (Readyz::NotReady, Duration::ZERO),
        };
        let waited = matches!(looked, Err(ConnectError::Timeout { .. }));
        let settled = self.looks.doubt.lock().looked(began, found, waited, Instant::now());
        match settled {
            Settled::Not => {}
            Settled::Answers => self.looks.doubted.store(false, Ordering::Relaxed),
            Settled::Unreachable => {
                self.looks.doubted.store(false, Ordering::Relaxed);
                self.lost(&looked.err().unwrap_or(ConnectError::Closed));
            }
        }
        for class in TrafficClass::ALL {
            self.changed(class, self.breaker(class).readyz(found, took));
        }
        found
    }

    /// Nobody gets through, over connections of before neither.
    fn lost(&self, why: &ConnectError) {
        self.failed(&self.unreachable(why.clone()));
        for class in TrafficClass::ALL {
            self.changed(class, self.breaker(class).unreachable());
        }
        if let Ok(transport) = &self.transport {
            transport.unary.retire(why);
            transport.watch.retire(why);
        }
    }

    /// The breaker of this class may have changed: within a span, an event of it.
    pub(crate) fn changed(&self, class: TrafficClass, transition: Option<Transition>) {
        let Some(Transition { from, to, why }) = transition else {
            return;
        };
        let (cluster, class, word) = (&*self.cluster, class.as_str(), why.word());
        let (from, to) = (from.as_str(), to.as_str());
        if to == State::Open.as_str() {
            let last = self.last_failure();
            tracing::warn!(cluster, class, from, to, word, reason = %why, last = last.as_deref(), "breaker opened");
            self.look_soon();
        } else {
            tracing::info!(cluster, class, from, to, word, reason = %why, "breaker changed");
        }
    }

    /// After a transition, too: an open breaker may be one that is ended by what the member says.
    pub(crate) fn look_soon(&self) {
        self.looks.wake.send_modify(|count| *count += 1);
    }
}

/// What was found, and how long the answer took once there was a connection.
type Look = (Readyz, Duration);

/// What was found; an error says why there is no connection. All endpoints are asked at once: the first that connects may say
/// nothing, or no, while another serves. The best of what they say within a while of the first answer.
pub(super) async fn look(dialer: &Dialer, bearer: Option<HeaderValue>) -> Result<Look, ConnectError> {
    let looks = (0..dialer.endpoints()).map(|at| look_at(dialer, at, bearer.clone()));
    let mut looks: FuturesUnordered<_> = looks.collect();
    let mut best = Err(ConnectError::Unusable("there is none".to_owned()));
    let mut until = None;
    while let Some(found) = in_time(until, looks.next()).await {
        match (&best, &found) {
            (_, Ok((Readyz::Ready | Readyz::Forbidden, _))) => return found,
            (_, Ok(_)) => {
                best = found;
                until = until.or_else(|| Some(tokio::time::Instant::now() + OTHERS_TIMEOUT));
            }
            // That there is somebody, who is not trusted, says more than that there is nobody.
            (Err(before), Err(now)) if before.is_silence() || !now.is_silence() || is_none(before) => best = found,
            (_, Err(_)) => {}
        }
    }
    best
}

async fn look_at(dialer: &Dialer, at: usize, bearer: Option<HeaderValue>) -> Result<Look, ConnectError> {
    let dialed = dialer.look_at(at).await?;
    let began = Instant::now();
    let asked = tokio::time::timeout(ANSWER_TIMEOUT, ask(dialed, bearer)).await;
    let took = began.elapsed();
    let Some(status) = asked.ok().flatten() else {
        return Ok((Readyz::NotReady, took));
    };
    dialer.said_something(at);
    Ok((found(status), took))
}

fn is_none(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Unusable(_))
}

/// `None` as well if it takes longer.
async fn in_time<T>(until: Option<tokio::time::Instant>, next: impl Future<Output = Option<T>>) -> Option<T> {
    match until {
        Some(until) => tokio::time::timeout_at(until, next).await.ok().flatten(),
        None => next.await,
    }
}

async fn ask(dialed: Dialed, bearer: Option<HeaderValue>) -> Option<StatusCode> {
    let mut request = Request::get("/readyz").body(Empty::<Bytes>::new()).ok()?;
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::try_from(dialed.authority.as_str()).ok()?);
    headers.insert(USER_AGENT, HeaderValue::from_static("portolan-router"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    headers.extend(bearer.map(|bearer| (AUTHORIZATION, bearer)));
    let (mut sender, connection) = http1::handshake(TokioIo::new(dialed.stream)).await.ok()?;
    let mut answer = std::pin::pin!(sender.send_request(request));
    let answer = tokio::select! {
        biased;
        answer = answer.as_mut() => answer,
        // With the answer in hand, if there is one: it was the connection's last.
        _ = connection => answer.await,
    };
    Some(answer.ok()?.status())
}

fn found(status: StatusCode) -> Readyz {
    match status {
        StatusCode::OK => Readyz::Ready,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => Readyz::Forbidden,
        _ => Readyz::NotReady,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use portolan_runtime::Tasks;
    use portolan_runtime::tls::ALPN_HTTP1;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::resource::upstream::scripted::{acceptor, snapshot, spawn, target};
    use crate::resource::upstream::{Connector, Upstreams};

    /// Answers `/readyz` with this code, once per connection, and hangs up as API servers do that are asked to.
    async fn serve(address: SocketAddr, acceptor: TlsAcceptor, code: u16) {
        serve_on(TcpListener::bind(address).await.unwrap(), acceptor, code).await;
    }

    async fn serve_on(listener: TcpListener, acceptor: TlsAcceptor, code: u16) {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = acceptor.accept(stream).await.unwrap();
        let mut asked = vec![0; 1024];
        let length = stream.read(&mut asked).await.unwrap();
        let asked = String::from_utf8_lossy(&asked[..length]);
        assert!(
            asked.starts_with("GET /readyz HTTP/1.1\r\n") && asked.contains("Bearer x"),
            "{asked}"
        );
        let answer = format!("HTTP/1.1 {code} X\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok");
        stream.write_all(answer.as_bytes()).await.unwrap();
        let _ = stream.shutdown().await;
    }

    #[tokio::test]
    async fn a_member_that_is_gone_opens_and_one_that_is_back_is_tried() {
        let (acceptor, ca) = acceptor(ALPN_HTTP1);
        let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let connector = Connector::new(Duration::from_secs(20), Tasks::new());
        let targets = snapshot([target("east", &[address], &ca)]).targets;
        let all = connector.follow(&Upstreams::default(), &targets);
        let east = all.get("east").unwrap();
        let states = || TrafficClass::ALL.map(|class| east.breaker(class).report().state);
        let bearer = || Some(HeaderValue::from_static("Bearer x"));
        assert_eq!(east.look(bearer()).await, Readyz::Unreachable);
        assert_eq!(states(), [State::Closed; 5], "nobody had reason to look");
        let mut looks = connector.looks();
        east.suspect();
        assert!(looks.has_changed().unwrap() && all.to_look_at().count() == 1);
        looks.mark_unchanged();
        east.look(bearer()).await;
        east.look(bearer()).await;
        assert_eq!(states(), [State::Open; 5]);
        assert!(looks.has_changed().unwrap() && all.to_look_at().count() == 1);
        assert!(east.last_failure().unwrap().contains("cannot be reached"));
        for (code, state) in [(500, State::Open), (200, State::HalfOpen)] {
            let server = spawn(serve(address, acceptor.clone(), code));
            let mut found = Readyz::Unreachable;
            while found == Readyz::Unreachable {
                found = east.look(bearer()).await;
            }
            server.await.unwrap();
            assert_eq!(states(), [state; 5], "{code}: {found:?}");
        }
        assert_eq!(all.to_look_at().count(), 0);
    }

    #[tokio::test]
    async fn the_first_that_connects_is_not_believed_while_another_serves() {
        let (acceptor, ca) = acceptor(ALPN_HTTP1);
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let serves = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = [&silent, &serves].map(|listener| listener.local_addr().unwrap());
        let connector = Connector::new(Duration::from_secs(20), Tasks::new());
        let targets = snapshot([target("east", &addresses, &ca)]).targets;
        let all = connector.follow(&Upstreams::default(), &targets);
        let east = all.get("east").unwrap();
        let servers = spawn(async move {
            let (stream, _) = silent.accept().await.unwrap();
            let first = acceptor.accept(stream).await.unwrap();
            serve_on(serves, acceptor, 200).await;
            drop(first);
        });
        let found = east.look(Some(HeaderValue::from_static("Bearer x"))).await;
        assert_eq!(found, Readyz::Ready);
        servers.await.unwrap();
    }

    #[test]
    fn only_200_is_ready_and_who_may_not_ask_has_asked_nothing() {
        for (status, expected) in [
            (200, Readyz::Ready),
            (204, Readyz::NotReady),
            (302, Readyz::NotReady),
            (401, Readyz::Forbidden),
            (403, Readyz::Forbidden),
            (404, Readyz::Forbidden),
            (429, Readyz::NotReady),
            (500, Readyz::NotReady),
            (503, Readyz::NotReady),
        ] {
            assert_eq!(found(StatusCode::from_u16(status).unwrap()), expected, "{status}");
        }
    }
}
