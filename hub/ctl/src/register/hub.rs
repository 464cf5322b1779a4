//! What the hub cluster says of an installed hub: where it is reached, and which images go with it.

use anyhow::Context as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::Client;
use kube::api::Api;
use portolan_crds::labels::SYSTEM_NAMESPACE;

/// Deployment and Service of the hub, as its chart names them, and what its image is called.
const HUB: &str = "portolan-hub";
const AGENT: &str = "portolan-agent";
/// Port of the Service that agents and routers dial.
const PORT: &str = "7443";

/// Where the hub's Service is reached from outside.
pub(super) async fn address(hub: &Client) -> anyhow::Result<String> {
    let service = Api::<Service>::namespaced(hub.clone(), SYSTEM_NAMESPACE)
        .get_opt(HUB)
        .await;
    let service =
        service.with_context(|| format!("cannot read Service {SYSTEM_NAMESPACE}/{HUB} of the hub cluster"))?;
    let host = service.as_ref().and_then(host);
    host.map(|host| format!("{host}:{PORT}")).with_context(|| {
        format!(
            "no address of the hub is known: Service {SYSTEM_NAMESPACE}/{HUB} of the hub cluster has no load balancer's; say by \
             --hub-address HOST:PORT where agents reach it"
        )
    })
}

fn host(service: &Service) -> Option<String> {
    let balancer = service.status.as_ref()?.load_balancer.as_ref()?;
    let ingress = balancer.ingress.as_ref()?.first()?;
    ingress.hostname.clone().or_else(|| ingress.ip.clone())
}

/// The agent's image of the same prefix and tag as the hub's.
pub(super) async fn agent_image(hub: &Client) -> anyhow::Result<String> {
    let deployment = Api::<Deployment>::namespaced(hub.clone(), SYSTEM_NAMESPACE)
        .get_opt(HUB)
        .await;
    let deployment =
        deployment.with_context(|| format!("cannot read Deployment {SYSTEM_NAMESPACE}/{HUB} of the hub cluster"))?;
    let containers = deployment.and_then(|hub| Some(hub.spec?.template.spec?.containers));
    let mut images = containers.into_iter().flatten().filter_map(|container| container.image);
    images.find_map(|image| beside(&image)).with_context(|| {
        format!(
            "no image of the agent is known: Deployment {SYSTEM_NAMESPACE}/{HUB} of the hub cluster does not run one of a name like \
             …/{HUB}:TAG; say it by --agent-image, or --without-agent if somebody else installs it"
        )
    })
}

/// The agent's image beside the hub's: same prefix, same tag. A digest names one image alone.
fn beside(image: &str) -> Option<String> {
    let (path, name) = image.rsplit_once('/').map_or(("", image), |(path, name)| (path, name));
    let tag = name.strip_prefix(HUB)?;
    let is_tag = tag.is_empty() || (tag.starts_with(':') && !tag.contains('@'));
    let slash = if path.is_empty() { "" } else { "/" };
    is_tag.then(|| format!("{path}{slash}{AGENT}{tag}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_image_is_the_hubs_neighbour() {
        let known = [
            (
                "registry.example.com:5000/portolan/portolan-hub:1.0",
                "registry.example.com:5000/portolan/portolan-agent:1.0",
            ),
            ("portolan-hub", "portolan-agent"),
        ];
        for (hub, agent) in known {
            assert_eq!(beside(hub).as_deref(), Some(agent));
        }
        for unknown in [
            "registry.example.com/hub:1.0",
            "example.com/portolan-hub@sha256:aa",
            "example.com/portolan-hub:1@sha256:aa",
        ] {
            assert_eq!(beside(unknown), None, "{unknown}");
        }
    }
}
