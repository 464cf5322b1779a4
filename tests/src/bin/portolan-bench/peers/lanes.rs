//! Everything that is compared, running: each proxy and each router alone on the measured core, all before the same backend.
//!
//! A lane is one column of the table. Those whose program is missing are left out, and the table says why.

use std::net::SocketAddr;

use anyhow::Context as _;
use portolan_runtime::telemetry::DEFAULT_LOG_LEVEL;

use super::foreign::{Foreign, Kind, Way};
use crate::child::Child;
use crate::cores::Cores;
use crate::load::Route;
use crate::place::Subject;
use crate::report::{COLUMNS, PeerColumn};
use crate::scripted::{CLUSTER, Content, Scripted, TOKEN_BYTES, What};

/// Nothing listens there: a router that starts with it has its last good state alone.
const NO_HUB: &str = "127.0.0.1:9";

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Haproxy,
    Hyper,
    Envoy,
    /// The router with its defaults.
    Router,
    /// The router without access lines.
    Quiet,
}

impl Lane {
    pub(crate) const ALL: [Self; COLUMNS] = [Self::Haproxy, Self::Hyper, Self::Envoy, Self::Router, Self::Quiet];

    pub(crate) fn is_router(self) -> bool {
        matches!(self, Self::Router | Self::Quiet)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Haproxy => "haproxy",
            Self::Hyper => "plain hyper",
            Self::Envoy => "envoy",
            Self::Router => "router",
            Self::Quiet => "router without access lines",
        }
    }
}

/// How a router is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    Merged,
    Explicit,
}

/// All lanes.
pub(crate) struct Lanes {
    scripted: Scripted,
    haproxy: Option<Foreign>,
    envoy: Option<Foreign>,
    router: Child,
    quiet: Child,
    flags: Vec<String>,
}

/// Flags of a router that writes no access lines.
pub(crate) fn quiet(flags: &[String]) -> Vec<String> {
    let level = format!("--log-level={DEFAULT_LOG_LEVEL},access=warn");
    flags.iter().cloned().chain([level]).collect()
}

impl Lanes {
    /// With so many pods in each member; the proxies of others stand before the first.
    pub(crate) async fn start(cores: &Cores, flags: &[String], members: usize, pods: usize) -> anyhow::Result<Self> {
        let content = Content {
            members,
            ..Content::default()
        };
        let what = What {
            router_flags: flags.to_vec(),
            router_by: cores.measured(),
            forwarder_by: cores.measured(),
            backends: members,
            pods,
            token_bytes: TOKEN_BYTES,
            content,
        };
        let mut scripted = Scripted::of(what).await?;
        // The two of the table have folders of their own.
        scripted.router.end();
        let hub = scripted.hub.address.to_string();
        let way = Way {
            dir: scripted.dir.path().to_owned(),
            identity: scripted.server_identity.clone(),
            ca: scripted.server_ca.clone(),
            backend: scripted.backend.address("bind").await?.parse()?,
            by: cores.measured(),
        };
        Ok(Self {
            haproxy: foreign(Kind::Haproxy, &way).await?,
            envoy: foreign(Kind::Envoy, &way).await?,
            router: scripted.another_router("defaults", &hub, flags)?,
            quiet: scripted.another_router("quiet", &hub, &quiet(flags))?,
            scripted,
            flags: flags.to_vec(),
        })
    }

    /// Heads of the table.
    pub(crate) fn columns(&self) -> Vec<PeerColumn> {
        let of = |name: &'static str, kind: Kind, running: &Option<Foreign>| PeerColumn {
            name,
            version: running.is_some().then(|| kind.version()).flatten(),
            missing: running.is_none().then(|| format!("no {} in PATH", kind.program())),
        };
        let ours = |name| PeerColumn {
            name,
            ..PeerColumn::default()
        };
        vec![
            of("HAProxy", Kind::Haproxy, &self.haproxy),
            ours("plain hyper"),
            of("Envoy", Kind::Envoy, &self.envoy),
            ours("Portolan"),
            ours("no access lines"),
        ]
    }

    /// Those that can be measured.
    pub(crate) fn present(&self) -> Vec<Lane> {
        let there = |lane: &Lane| match lane {
            Lane::Haproxy => self.haproxy.is_some(),
            Lane::Envoy => self.envoy.is_some(),
            _ => true,
        };
        Lane::ALL.into_iter().filter(there).collect()
    }

    pub(crate) fn server(&self) -> i32 {
        self.scripted.backend.pid()
    }

    pub(crate) async fn direct(&mut self) -> anyhow::Result<Subject> {
        let address = self.scripted.backend.address("bind").await?;
        Ok(Subject::new("direct", self.scripted.to_server(&address)?, None))
    }

    /// The backends by themselves.
    pub(crate) async fn members(&mut self) -> anyhow::Result<Vec<Route>> {
        self.scripted.direct_routes().await
    }

    /// The way through a lane that runs.
    pub(crate) async fn subject(&mut self, lane: Lane, view: View) -> anyhow::Result<Subject> {
        let address = self.address(lane).await?.to_string();
        let route = match view {
            _ if !lane.is_router() => self.scripted.to_server(&address)?,
            View::Merged => self.scripted.to_router(&address, "")?,
            View::Explicit => self.scripted.to_router(&address, &format!("/clusters/{CLUSTER}"))?,
        };
        Ok(Subject::new(lane.name(), route, Some(self.child(lane)?.pid())))
    }

    /// What a client of the lane is told: address, CA file's text, token.
    pub(crate) async fn access(&mut self, lane: Lane) -> anyhow::Result<(SocketAddr, String, String)> {
        let ca = if lane.is_router() {
            self.scripted.hub_ca.pem().to_owned()
        } else {
            std::fs::read_to_string(&self.scripted.server_ca)?
        };
        Ok((self.address(lane).await?, ca, self.scripted.token.clone()))
    }

    /// A new process, as if nobody had asked it anything; a router has its last good state.
    pub(crate) async fn restart(&mut self, lane: Lane) -> anyhow::Result<()> {
        let hub = self.scripted.hub.address.to_string();
        self.begin(lane, &hub).await?;
        match lane {
            Lane::Router | Lane::Quiet => self.child(lane)?.ready().await,
            Lane::Hyper => self.child(lane)?.address("bind").await.map(drop),
            Lane::Haproxy | Lane::Envoy => Ok(()),
        }
    }

    /// A new process that finds no hub; returns before it serves.
    pub(crate) async fn restart_alone(&mut self, lane: Lane) -> anyhow::Result<()> {
        self.begin(lane, NO_HUB).await
    }

    async fn begin(&mut self, lane: Lane, hub: &str) -> anyhow::Result<()> {
        match lane {
            Lane::Haproxy => self.haproxy.as_mut().context("no HAProxy")?.restart().await?,
            Lane::Envoy => self.envoy.as_mut().context("no Envoy")?.restart().await?,
            Lane::Hyper => self.scripted.restart_forwarder().await?,
            Lane::Router => {
                self.router.end();
                self.router = self.scripted.another_router("defaults", hub, &self.flags)?;
            }
            Lane::Quiet => {
                self.quiet.end();
                self.quiet = self.scripted.another_router("quiet", hub, &quiet(&self.flags))?;
            }
        }
        Ok(())
    }

    pub(crate) fn child(&mut self, lane: Lane) -> anyhow::Result<&mut Child> {
        Ok(match lane {
            Lane::Haproxy => &mut self.haproxy.as_mut().context("no HAProxy")?.child,
            Lane::Envoy => &mut self.envoy.as_mut().context("no Envoy")?.child,
            Lane::Hyper => &mut self.scripted.forwarder,
            Lane::Router => &mut self.router,
            Lane::Quiet => &mut self.quiet,
        })
    }

    async fn address(&mut self, lane: Lane) -> anyhow::Result<SocketAddr> {
        match lane {
            Lane::Haproxy => Ok(self.haproxy.as_ref().context("no HAProxy")?.address),
            Lane::Envoy => Ok(self.envoy.as_ref().context("no Envoy")?.address),
            _ => Ok(self.child(lane)?.address("bind").await?.parse()?),
        }
    }

    pub(crate) async fn emit(&mut self) -> anyhow::Result<()> {
        self.scripted.emit().await
    }
}

async fn foreign(kind: Kind, way: &Way) -> anyhow::Result<Option<Foreign>> {
    if kind.version().is_none() {
        return Ok(None);
    }
    let started = Foreign::start(kind, way.clone()).await;
    started
        .with_context(|| format!("cannot start {}", kind.program()))
        .map(Some)
}
