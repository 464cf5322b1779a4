//! Exec, attach and port-forward: a request that becomes a byte tunnel, SPDY/3.1 or WebSocket, both unread.
//!
//! Upgrades are HTTP/1.1's, so each has an upstream connection of its own. A member that answers anything but 101 is
//! passed through as any other answer. In the tunnel either side may end its direction first (half-close); the other
//! goes on. There is no idle time-out: a shell may be silent for hours. A drain cuts tunnels at its deadline. Callers:
//! `dispatch` opens, `edge` runs the [`Tunnel`].

mod side;

use std::sync::Arc;
use std::time::Duration;

use http::header::{HOST, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode, Version};
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use portolan_runtime::Tasks;
use portolan_runtime::telemetry::{self, short};
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::Instrument as _;

use self::side::Side;
use super::acting;
use super::metrics::Told;
use super::outcome::{End, Kind, Silence, fault_of, judge};
use super::received::received;
use super::send::{first_byte, inject, leg_span, suspecting, told};
use super::{LONG_HEAD_TIMEOUT, Run, settle};
use crate::decision::rewrite;
use crate::resource::upstream::{Body, BodyError, Broke, UpstreamError};
use crate::value::fault::Fault;

/// Read at a time, per direction: port-forwards move files.
const BUFFER_BYTES: usize = 16 << 10;
/// For the client's side to follow once the member has switched: it has only to read our answer's head.
const SWITCH_TIMEOUT: Duration = Duration::from_secs(30);

/// Both ends of a tunnel, before its bytes flow.
pub(crate) struct Tunnel {
    client: OnUpgrade,
    member: OnUpgrade,
}

/// Opens a connection to the leg's member and asks it to switch. With a 101 comes the tunnel, to be run once the
/// client has been answered.
pub(super) async fn upgrade(
    run: &Run,
    tasks: &Tasks,
    (mut head, body): (Parts, Body),
) -> Result<(Response<Body>, Option<Tunnel>), Fault> {
    let client = head
        .extensions
        .remove::<OnUpgrade>()
        .filter(|_| head.version == Version::HTTP_11);
    let Some(client) = client else {
        return Err(Fault::BadRequest(
            "exec, attach and port-forward are upgrades of HTTP/1.1: connect with it".to_owned(),
        ));
    };
    rewrite::rewrite_head(&run.leg.forward, &run.leg.asked, &mut head, &run.bearer)?;
    let span = leg_span(run, &head);
    inject(&span, &run.leg.received, &mut head);
    let trace_id = telemetry::kept_trace_id(&span, &run.leg.received);
    let mut seen = run.metrics.begin(&run.leg, trace_id);
    let asked = exchange(run, (tasks, &mut seen), Request::from_parts(head, body));
    let response = asked.instrument(span.clone()).await;
    seen.over(response.as_ref().ok().map(Response::status));
    let response = response?;
    span.record("http.response.status_code", response.status().as_u16());
    let mut response = acting::told(run, received(&run.leg, response)?).await?;
    let tunnel = (response.status() == StatusCode::SWITCHING_PROTOCOLS).then(|| Tunnel {
        client,
        member: hyper::upgrade::on(&mut response),
    });
    let (mut head, body) = response.into_parts();
    rewrite::rewrite_response(&run.leg.forward, &mut head);
    Ok((Response::from_parts(head, body), tunnel))
}

async fn exchange(
    run: &Run,
    (tasks, seen): (&Tasks, &mut Told),
    request: Request<Body>,
) -> Result<Response<Body>, Fault> {
    let pass = run.pass_breaker()?;
    seen.asked();
    let asking = std::pin::pin!(ask(run, tasks, request).instrument(first_byte(&run.upstream)));
    let outcome = tokio::time::timeout(LONG_HEAD_TIMEOUT, suspecting(&run.upstream, asking, || {})).await;
    let failed = |fault: Fault| {
        tracing::Span::current().record("otel.status_code", "ERROR");
        tracing::Span::current().record("otel.status_description", short(&fault.to_string()));
        fault
    };
    if let Ok(outcome) = outcome {
        run.tell(pass, &outcome);
        return outcome.map_err(|error| failed(fault_of(&run.leg.forward, &error)));
    }
    let fault = Fault::Timeout {
        message: format!(
            "member cluster {} did not switch protocols in time",
            run.upstream.cluster
        ),
        cluster: run.upstream.cluster.to_string(),
        sent: true,
    };
    let silence = Silence {
        waited: LONG_HEAD_TIMEOUT,
        to_the_end: true,
        whole: true,
        patient: false,
    };
    let judged = judge(Kind::of(&run.leg), &End::Silence(silence));
    told(&run.upstream, run.leg.forward.traffic.class, (pass, judged), &fault);
    Err(failed(fault))
}

async fn ask(run: &Run, tasks: &Tasks, mut request: Request<Body>) -> Result<Response<Body>, UpstreamError> {
    let cluster = &run.upstream.cluster;
    let dialed = run.upstream.connect_http1().await?;
    let host =
        HeaderValue::try_from(dialed.authority.as_str()).map_err(|error| UpstreamError::Request(error.to_string()))?;
    request.headers_mut().insert(HOST, host);
    *request.version_mut() = Version::HTTP_11;
    // The connection is the request's own: what breaks on it, by what is sent or answered, says nothing of the way.
    let broke = |error: hyper::Error| {
        if error.is_user() {
            return UpstreamError::Body(BodyError::Client(error.to_string()));
        }
        UpstreamError::Lost {
            cluster: cluster.clone(),
            reason: error.to_string(),
            broke: Broke::Stream,
        }
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(dialed.stream)).await.map_err(broke)?;
    let name: Arc<str> = cluster.clone();
    tasks.spawn("upgrade-connection", async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(cluster = %name, %error, "upgrade connection broke");
        }
    });
    let write = run.leg.leave()?;
    // Most have no body. One that has is for a member that does not switch, and travels like any other.
    let response = sender.send_request(request).await.map_err(broke);
    let response = response.map(|response| {
        response.map(|incoming| Body::Http1 {
            incoming,
            cluster: cluster.clone(),
        })
    });
    settle(write, &response);
    response
}

impl Tunnel {
    /// Carries bytes both ways until both have ended; returns how many went to the client. An error ends both at once.
    pub(crate) async fn run(self) -> std::io::Result<u64> {
        let switched = async { tokio::try_join!(self.client, self.member) };
        let (client, member) = tokio::time::timeout(SWITCH_TIMEOUT, switched)
            .await
            .map_err(std::io::Error::other)?
            .map_err(std::io::Error::other)?;
        let (_, to_client) = carry(TokioIo::new(client), TokioIo::new(member)).await?;
        Ok(to_client)
    }
}

/// Bytes that went to the member and to the client. Who has said all hangs up, and does not wait for the other to hear it:
/// what fails after either side's end is no break.
async fn carry<C, M>(client: C, member: M) -> std::io::Result<(u64, u64)>
where
    C: AsyncRead + AsyncWrite + Unpin,
    M: AsyncRead + AsyncWrite + Unpin,
{
    let (mut client, mut member) = (Side::new(client), Side::new(member));
    let carried = tokio::io::copy_bidirectional_with_sizes(&mut client, &mut member, BUFFER_BYTES, BUFFER_BYTES).await;
    match carried {
        Err(error) if client.ended || member.ended => {
            tracing::debug!(%error, "one side of a tunnel hung up after its end");
            Ok((client.read, member.read))
        }
        carried => carried,
    }
}

#[cfg(test)]
mod tests;
