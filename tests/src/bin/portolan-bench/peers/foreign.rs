//! The proxies of others that stand beside the router: HAProxy and Envoy, with the least that forwards HTTP/2 over TLS on both
//! sides, verifies the server and lets watches be.
//!
//! Their bounds are raised until none of them is met here. Each is used if its program is in `PATH`.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use portolan_tests::programs::argument;
use serde_json::json;

use crate::child::Child;
use crate::served::MAX_STREAMS;

/// For a proxy to listen after its start.
const PATIENCE: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_millis(1);

/// Whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Haproxy,
    Envoy,
}

/// What it is to forward.
#[derive(Clone)]
pub(crate) struct Way {
    pub(crate) dir: PathBuf,
    /// Certificate and key to serve with, as one file; and what the backend's chains to.
    pub(crate) identity: String,
    pub(crate) ca: String,
    pub(crate) backend: SocketAddr,
    /// What runs it.
    pub(crate) by: Vec<String>,
}

/// A running proxy, at an address that it keeps over restarts.
pub(crate) struct Foreign {
    kind: Kind,
    way: Way,
    pub(crate) address: SocketAddr,
    pub(crate) child: Child,
}

impl Kind {
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Haproxy => "haproxy",
            Self::Envoy => "envoy",
        }
    }

    /// Its version, if its program can be run.
    pub(crate) fn version(self) -> Option<String> {
        let flag = match self {
            Self::Haproxy => "-v",
            Self::Envoy => "--version",
        };
        let output = Command::new(self.program()).arg(flag).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        parse_version(&text)
    }

    /// Writes its configuration; returns what its program is told.
    fn configure(self, way: &Way, address: SocketAddr) -> anyhow::Result<Vec<String>> {
        let file = way.dir.join(format!("{}.conf", self.program()));
        let (text, before): (_, &[&str]) = match self {
            Self::Haproxy => (haproxy(way, address), &["-db", "-f"]),
            Self::Envoy => (
                envoy(way, address).to_string(),
                &[
                    "--concurrency",
                    "1",
                    "--disable-hot-restart",
                    "--log-level",
                    "error",
                    "-c",
                ],
            ),
        };
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        let before = before.iter().map(ToString::to_string);
        Ok(before.chain([argument(&file)]).collect())
    }
}

impl Foreign {
    pub(crate) async fn start(kind: Kind, way: Way) -> anyhow::Result<Self> {
        // It cannot say which port it was given: one that is free now.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let child = spawn(kind, &way, address)?;
        let mut foreign = Self {
            kind,
            way,
            address,
            child,
        };
        foreign.listens().await?;
        Ok(foreign)
    }

    pub(crate) async fn restart(&mut self) -> anyhow::Result<()> {
        self.child.end();
        self.child = spawn(self.kind, &self.way, self.address)?;
        self.listens().await
    }

    async fn listens(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        while tokio::net::TcpStream::connect(self.address).await.is_err() {
            self.child.check()?;
            ensure!(begun.elapsed() < PATIENCE, "{} does not listen", self.kind.program());
            tokio::time::sleep(AGAIN).await;
        }
        Ok(())
    }
}

fn spawn(kind: Kind, way: &Way, address: SocketAddr) -> anyhow::Result<Child> {
    let arguments = kind.configure(way, address)?;
    let (by, before) = way.by.split_first().context("what runs it")?;
    let arguments = [before, &[kind.program().to_owned()], &arguments].concat();
    Child::foreign(kind.program(), Path::new(by), &arguments, &way.dir)
}

fn haproxy(way: &Way, address: SocketAddr) -> String {
    let Way {
        identity, ca, backend, ..
    } = way;
    format!(
        "global
    nbthread 1
    maxconn 8000
    tune.h2.max-concurrent-streams {MAX_STREAMS}
defaults
    mode http
    timeout connect 30s
    timeout client 1h
    timeout server 1h
    timeout http-keep-alive 1h
frontend clients
    maxconn 8000
    bind {address} ssl crt {identity} alpn h2
    default_backend member
backend member
    http-reuse always
    server member {backend} ssl verify required ca-file {ca} alpn h2
"
    )
}

fn envoy(way: &Way, address: SocketAddr) -> serde_json::Value {
    const API: &str = "type.googleapis.com/envoy.extensions";
    let Way {
        identity, ca, backend, ..
    } = way;
    let at = |address: &SocketAddr| json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}});
    let http2 = json!({"max_concurrent_streams": MAX_STREAMS});
    let routes = json!({"virtual_hosts": [{
        "name": "all", "domains": ["*"],
        "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "member", "timeout": "0s"}}],
    }]});
    let manager = json!({
        "@type": format!("{API}.filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "bench", "codec_type": "HTTP2", "http2_protocol_options": http2, "stream_idle_timeout": "0s",
        "route_config": routes,
        "http_filters": [{"name": "router", "typed_config": {"@type": format!("{API}.filters.http.router.v3.Router")}}],
    });
    let serving = json!({
        "@type": format!("{API}.transport_sockets.tls.v3.DownstreamTlsContext"),
        "common_tls_context": {
            "alpn_protocols": ["h2"],
            "tls_certificates": [{"certificate_chain": {"filename": identity}, "private_key": {"filename": identity}}],
        },
    });
    let dialing = json!({
        "@type": format!("{API}.transport_sockets.tls.v3.UpstreamTlsContext"),
        "common_tls_context": {
            "alpn_protocols": ["h2"],
            "validation_context": {
                "trusted_ca": {"filename": ca},
                "match_typed_subject_alt_names": [{"san_type": "IP_ADDRESS", "matcher": {"exact": backend.ip().to_string()}}],
            },
        },
    });
    let roomy = json!({"max_connections": 1_000_000, "max_requests": 1_000_000, "max_pending_requests": 1_000_000});
    let upstream = json!({
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": http2},
    });
    let member = json!({
        "name": "member", "type": "STATIC", "connect_timeout": "30s", "circuit_breakers": {"thresholds": [roomy]},
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": upstream},
        "load_assignment": {"cluster_name": "member", "endpoints": [
            {"lb_endpoints": [{"endpoint": {"address": at(backend)}}]},
        ]},
        "transport_socket": {"name": "tls", "typed_config": dialing},
    });
    json!({"static_resources": {
        "listeners": [{
            "name": "clients", "address": at(&address),
            "filter_chains": [{
                "filters": [{"name": "http", "typed_config": manager}],
                "transport_socket": {"name": "tls", "typed_config": serving},
            }],
        }],
        "clusters": [member],
    }})
}

/// The first word that begins with a number, as far as it is one: `2.6.12-1` and `…/1.40.0/…` alike.
fn parse_version(text: &str) -> Option<String> {
    let words = text.split([' ', '/', '-', '\n']);
    let numbered = |word: &&str| word.contains('.') && word.starts_with(|first: char| first.is_ascii_digit());
    words.into_iter().find(numbered).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let read = |text| parse_version(text).unwrap();
        assert_eq!(
            read("HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/"),
            "2.6.12"
        );
        assert_eq!(
            read("\nenvoy  version: 94f1c0/1.40.0/Clean/RELEASE/BoringSSL\n"),
            "1.40.0"
        );
        assert_eq!(parse_version("no idea"), None);
    }
}
