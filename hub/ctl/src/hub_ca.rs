//! The certificate of the hub's CA, as the hub publishes it: all that anybody but the hub needs of the CA. Called by install,
//! join, kubeconfig and dev.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use portolan_crds::labels::{CONFIG_MAP_CA, SYSTEM_NAMESPACE};

const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(200);
const CERTIFICATE: &str = "ca.crt";

/// PEM; `None` before the hub has started for the first time.
pub(crate) async fn published(hub: &Client) -> anyhow::Result<Option<String>> {
    let maps = Api::<ConfigMap>::namespaced(hub.clone(), SYSTEM_NAMESPACE);
    let map = maps.get_opt(CONFIG_MAP_CA).await;
    let map = map.with_context(|| format!("cannot read ConfigMap {SYSTEM_NAMESPACE}/{CONFIG_MAP_CA}"))?;
    Ok(map.and_then(|map| map.data?.remove(CERTIFICATE)))
}

/// The same, waited for a little: the hub may be starting.
pub(crate) async fn awaited(hub: &Client) -> anyhow::Result<String> {
    let started = Instant::now();
    loop {
        if let Some(pem) = published(hub).await? {
            return Ok(pem);
        }
        if started.elapsed() > PATIENCE {
            bail!("the hub has no ConfigMap {SYSTEM_NAMESPACE}/{CONFIG_MAP_CA}: start portolan-hub, which makes it");
        }
        tokio::time::sleep(POLL).await;
    }
}
