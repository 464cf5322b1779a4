//! GETs by a Go program: client-go's HTTP/2 puts a header that it has sent before into one byte, the token too, where this
//! program's own client sends it whole each time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use portolan_tests::go_client::GoClient;
use serde_json::json;

use super::lanes::{Lane, Lanes};
use crate::backend::POD;
use crate::usage;
use crate::usage::count;

const CONNECTIONS: &str = "4";
const AT_ONCE: &str = "64";

/// One client of one lane, connected and warm.
pub(crate) struct Asking {
    client: GoClient,
    proxy: i32,
    used: f64,
    asked: usize,
    elapsed: Duration,
}

impl Asking {
    pub(crate) async fn start(lanes: &mut Lanes, lane: Lane, dir: &Path) -> anyhow::Result<Self> {
        let kubeconfig = kubeconfig(lanes, lane, dir).await?;
        let arguments = ["gets", "--connections", CONNECTIONS, "--at-once", AT_ONCE, POD];
        let mut client = GoClient::start(&kubeconfig, &arguments)?;
        client.tell("get 100").await?;
        client.wait_type("got").await?;
        Ok(Self {
            client,
            proxy: lanes.child(lane)?.pid(),
            used: 0.0,
            asked: 0,
            elapsed: Duration::ZERO,
        })
    }

    /// So many more.
    pub(crate) async fn get(&mut self, requests: usize) -> anyhow::Result<()> {
        let before = usage::cpu_seconds(self.proxy)?;
        self.client.tell(&format!("get {requests}")).await?;
        let got = self.client.wait_type("got").await?;
        self.used += usage::cpu_seconds(self.proxy)? - before;
        self.asked += requests;
        self.elapsed += Duration::from_secs_f64(got["seconds"].as_f64().context("seconds")?);
        Ok(())
    }

    /// CPU seconds of the proxy for 100,000 of them.
    pub(crate) fn cpu(&self) -> f64 {
        self.used * 100_000.0 / count(self.asked)
    }

    /// Requests a second.
    pub(crate) fn rate(&self) -> f64 {
        count(self.asked) / self.elapsed.as_secs_f64()
    }
}

async fn kubeconfig(lanes: &mut Lanes, lane: Lane, dir: &Path) -> anyhow::Result<PathBuf> {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    let (address, ca, token) = lanes.access(lane).await?;
    let file = dir.join(format!("{lane:?}.kubeconfig"));
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{"name": "bench", "cluster": {
            "server": format!("https://{address}"), "certificate-authority-data": STANDARD.encode(ca),
        }}],
        "users": [{"name": "bench", "user": {"token": token}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
    });
    portolan_runtime::files::write_private(&file, text.to_string())?;
    Ok(file)
}
