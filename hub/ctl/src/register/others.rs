//! Whether a cluster is another hub's member: there is one agent in a cluster, of one hub.

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::Api;
use portolan_crds::labels::{SECRET_AGENT_BOOTSTRAP, SYSTEM_NAMESPACE};

/// Refuses a cluster whose agent was invited by a hub of another address and another CA. Either changes by itself.
pub(super) async fn check(member: &Client, hub_address: &str, hub_ca: &str) -> anyhow::Result<()> {
    let secrets = Api::<Secret>::namespaced(member.clone(), SYSTEM_NAMESPACE);
    let invitation = match secrets.get_opt(SECRET_AGENT_BOOTSTRAP).await {
        // Rights are looked at next.
        Err(kube::Error::Api(status)) if status.code == 403 => return Ok(()),
        read => read.with_context(|| format!("cannot read Secret {SYSTEM_NAMESPACE}/{SECRET_AGENT_BOOTSTRAP}"))?,
    };
    let data = invitation.and_then(|secret| secret.data).unwrap_or_default();
    let text = |key: &str| {
        data.get(key)
            .map(|value| String::from_utf8_lossy(&value.0).into_owned())
    };
    match (text("hub"), text("ca.crt")) {
        (Some(address), Some(ca)) if address != hub_address && ca != hub_ca => bail!(
            "nothing was written: this cluster's agent is of the hub at {address}: take it out there first (portolanctl unregister)"
        ),
        _ => Ok(()),
    }
}
