//! One more API server of a cluster, beside the cluster's own: what a member with several does to those who talk to it.

use std::net::SocketAddrV4;

use anyhow::{Result, anyhow};
use nix::sys::signal::Signal;
use parking_lot::Mutex;

use crate::eventually::{patience, within};
use crate::port::Port;
use crate::process::Process;

/// A running API server that shares its cluster's data, keys and flags. Dropping it ends it.
#[derive(Debug)]
pub struct ApiServer {
    /// Held for single signals, never across an await.
    pub(crate) process: Mutex<Process>,
    pub(crate) port: Port,
}

impl ApiServer {
    /// Where it listens.
    pub fn address(&self) -> SocketAddrV4 {
        self.port.address()
    }

    /// SIGSTOP: connections stay open and silent. It has stopped when this returns.
    pub async fn freeze(&self) -> Result<()> {
        self.process.lock().signal(Signal::SIGSTOP)?;
        let stopped = || async { self.process.lock().is_stopped() };
        within(patience(), stopped)
            .await
            .map_err(|_| anyhow!("an API server does not stop"))
    }

    /// SIGCONT: the end of [`ApiServer::freeze`].
    pub fn thaw(&self) -> Result<()> {
        self.process.lock().signal(Signal::SIGCONT)
    }
}
