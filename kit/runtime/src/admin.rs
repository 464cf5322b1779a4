//! The admin server of every program: health, metrics, configuration dump, log filter.
//!
//! Plain HTTP/1.1, bounded in every direction. What a kubelet or Prometheus needs is served to all; the rest, and a
//! program's own routes, to this machine only (`kubectl port-forward` counts as that) unless `--admin-remote`.
//! Not here: what the pages say. Callers: `app.rs` of every program.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use clap::Args;
use clap::builder::BoolishValueParser;
use thiserror::Error;
use tokio::net::TcpListener;

use crate::accept::{Limit, accept_each};
use crate::http1;
use crate::metrics::Registry;
use crate::readiness::Readiness;
use crate::tasks::Tasks;
use crate::telemetry::Telemetry;

mod pages;

pub use pages::Configz;

/// Connections beyond this wait in the kernel's queue: an admin port never starves the program.
const MAX_CONNECTIONS: usize = 256;

/// Flags of every program with an admin server, flattened into its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Admin server")]
pub struct AdminArgs {
    /// Address of the admin server (health, metrics, configuration dump, log level)
    #[arg(long, env = "PORTOLAN_ADMIN_BIND", value_name = "IP:PORT")]
    pub admin_bind: Option<SocketAddr>,

    /// Serve everything on the admin server to other machines too, not only /livez, /readyz and /metrics
    #[arg(long, env = "PORTOLAN_ADMIN_REMOTE", value_parser = BoolishValueParser::new())]
    pub admin_remote: bool,
}

/// The admin address cannot be had.
#[derive(Debug, Error)]
#[error("cannot bind the admin server to {addr}")]
pub struct AdminBindError {
    /// The address that was asked for.
    pub addr: SocketAddr,
    /// Why the system refuses it.
    #[source]
    pub source: io::Error,
}

/// A bound admin server that does not answer yet.
#[derive(Debug)]
pub struct AdminServer {
    /// The address with its real port.
    pub addr: SocketAddr,
    listener: TcpListener,
}

/// What the admin server shows.
#[derive(Clone)]
pub struct AdminPages {
    /// What `/readyz` tells.
    pub readiness: Readiness,
    /// What `/metrics` prints.
    pub registry: Registry,
    /// Whose log filter `/loglevel` reads and sets.
    pub telemetry: Telemetry,
    /// Configuration and state without secrets, made at each request.
    pub configz: Configz,
    /// The program's own routes. Served to this machine only unless `remote`.
    pub extra: Router,
    /// Serve `extra` to other machines too: [`AdminArgs::admin_remote`].
    pub remote: bool,
}

impl AdminPages {
    /// Pages with an empty `/configz` and no routes of the program.
    pub fn new(readiness: Readiness, registry: Registry, telemetry: Telemetry) -> Self {
        let configz: Configz = Arc::new(|| serde_json::json!({}));
        Self {
            readiness,
            registry,
            telemetry,
            configz,
            extra: Router::new(),
            remote: false,
        }
    }

    /// What `/configz` shows: made anew for each request.
    pub fn configz(mut self, dump: impl Fn() -> serde_json::Value + Send + Sync + 'static) -> Self {
        self.configz = Arc::new(dump);
        self
    }

    /// Adds the program's own routes.
    pub fn extra(mut self, routes: Router) -> Self {
        self.extra = routes;
        self
    }

    /// Serves the program's own routes to other machines too.
    pub fn remote(mut self, remote: bool) -> Self {
        self.remote = remote;
        self
    }
}

impl AdminServer {
    /// Takes the address and answers nothing yet. Port 0 picks one: see [`Self::addr`].
    pub async fn bind(addr: SocketAddr) -> Result<Self, AdminBindError> {
        let failed = |source| AdminBindError { addr, source };
        let listener = TcpListener::bind(addr).await.map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        Ok(Self { addr, listener })
    }

    /// Serves until `tasks` are cancelled and a little beyond: `/readyz` must be seen to fail, so give it a set
    /// of tasks that is shut down last. Registers the metrics every program has.
    pub fn serve(self, tasks: &Tasks, pages: AdminPages) {
        pages.registry.standard(tasks, &pages.telemetry);
        let (local, public) = pages::routers(pages);
        tracing::info!(address = %self.addr, "admin server listening");
        let connections = tasks.clone();
        let serve = move |stream, peer: SocketAddr, permit| {
            let router = if is_local(peer.ip()) { &local } else { &public }.clone();
            let connection = http1::serve(stream, router, connections.token());
            async move {
                connection.await;
                drop(permit);
            }
        };
        let limit = Limit {
            task: "admin-connection",
            at_once: MAX_CONNECTIONS,
        };
        tasks.spawn_critical("admin-accept", accept_each(self.listener, tasks.clone(), limit, serve));
    }
}

fn is_local(peer: IpAddr) -> bool {
    peer.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests;
