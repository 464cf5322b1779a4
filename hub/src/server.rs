//! The hub's one gRPC port: TLS with an optional client certificate, and the three services.
//!
//! Enrolment has no certificate yet; the streams need one: each service checks that by `peer`. Caller: `app`.

use std::time::Duration;

use portolan_runtime::Tasks;
use portolan_runtime::tls::TlsIncoming;
use portolan_wire::v1::agent_control_server::AgentControlServer;
use portolan_wire::v1::enrollment_server::EnrollmentServer;
use portolan_wire::v1::router_control_server::RouterControlServer;
use tonic::transport::Server;

use crate::enroll::Enroller;
use crate::stream::{AgentService, RouterService};

/// Dead peers are found within a minute, also those behind a frozen process or a black hole.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Streams per connection: programs use one or two.
const MAX_STREAMS: u32 = 16;
/// An agent's whole inventory with labels; ten thousand namespaces are some megabytes.
const MAX_AGENT_MESSAGE_BYTES: usize = 64 * 1024 * 1024;
/// A router's Hello with what it holds, as far as there is room (`HELLO_KNOWN_MAX_BYTES`).
const MAX_ROUTER_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// A CSR and a JWKS document, from anybody at all.
const MAX_ENROLL_MESSAGE_BYTES: usize = 512 * 1024;

/// The three services, on one port.
pub(crate) struct Services {
    pub(crate) enrollment: Enroller,
    pub(crate) routers: RouterService,
    pub(crate) agents: AgentService,
}

/// Serves until `tasks` are cancelled.
pub(crate) async fn serve(incoming: TlsIncoming, services: Services, tasks: Tasks) -> anyhow::Result<()> {
    Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_concurrent_streams(MAX_STREAMS)
        .add_service(EnrollmentServer::new(services.enrollment).max_decoding_message_size(MAX_ENROLL_MESSAGE_BYTES))
        .add_service(RouterControlServer::new(services.routers).max_decoding_message_size(MAX_ROUTER_MESSAGE_BYTES))
        .add_service(AgentControlServer::new(services.agents).max_decoding_message_size(MAX_AGENT_MESSAGE_BYTES))
        .serve_with_incoming_shutdown(incoming, tasks.token().cancelled_owned())
        .await?;
    Ok(())
}
