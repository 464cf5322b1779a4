//! What points Pods of a member at a gateway: the policies of `deploy/member/injection.yaml`, and the ConfigMap that says where the
//! gateway is and by which CA it is known. Written by join with the rights of who runs it; `ca rotate` changes the CA.

use std::collections::BTreeSet;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::labels::{ANNOTATION_GATEWAY_CA, CONFIG_MAP_INJECTION, SYSTEM_NAMESPACE};
use portolan_crds::policy::INJECTION_VERSIONS;
use serde_json::{Value, json};

use crate::admission;
use crate::apply::{self, MANAGER};
use crate::cli::GatewayAddress;

const MANIFEST: &str = include_str!("../../../deploy/member/injection.yaml");
/// Pods that are read at a time: of each only metadata.
const PAGE: u32 = 500;

/// A gateway, and what it is known by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gateway {
    pub(crate) address: GatewayAddress,
    /// PEM.
    pub(crate) ca: String,
}

impl Gateway {
    fn of(map: &ConfigMap) -> Option<Self> {
        let data = map.data.as_ref()?;
        let address = GatewayAddress::new(data.get("host")?, data.get("port")?.parse().ok()?);
        let ca = data.get("ca.crt")?.clone();
        Some(Self { address, ca })
    }

    fn config_map(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": CONFIG_MAP_INJECTION, "namespace": SYSTEM_NAMESPACE},
            "data": {"host": self.address.host(), "port": self.address.port(), "ca.crt": self.ca},
        })
    }
}

/// The policies and their bindings, in the order in which they are written.
pub(crate) fn policies() -> anyhow::Result<Vec<DynamicObject>> {
    let list: Value = serde_yaml_ng::from_str(MANIFEST).context("deploy/member/injection.yaml is not YAML")?;
    let items = list["items"].as_array().into_iter().flatten();
    let parsed = items.map(|item| serde_json::from_value(item.clone()));
    parsed.collect::<Result<_, _>>().context("deploy/member/injection.yaml")
}

/// Writes all that the member serves; names a gateway if one is given, and leaves the one that is there otherwise.
pub(crate) async fn install(member: &Client, address: Option<&GatewayAddress>, ca: &str) -> anyhow::Result<()> {
    for policy in policies()? {
        if let Some(served) = admission::as_served(member, &INJECTION_VERSIONS, &policy).await? {
            admission::put(member, served).await?;
        } else {
            println!(
                "this API server has no {}: Pods that ask for a gateway by label are refused unless portolanctl inject has changed \
                 their manifests",
                apply::describe(&policy)
            );
        }
    }
    match address {
        Some(address) => {
            let gateway = Gateway {
                address: address.clone(),
                ca: ca.to_owned(),
            };
            let before = known(member).await?;
            let patch = Patch::Apply(gateway.config_map());
            let (maps, params) = (maps(member), PatchParams::apply(MANAGER).force());
            let written = maps.patch(CONFIG_MAP_INJECTION, &params, &patch).await;
            written.with_context(|| format!("cannot write {}", name()))?;
            trust_in_pods(member, &before, ca).await.map(drop)
        }
        None => trust(member, ca).await.map(drop),
    }
}

/// The gateway that the member names.
pub(crate) async fn gateway(member: &Client) -> anyhow::Result<Gateway> {
    let Some(gateway) = gateway_opt(member).await? else {
        bail!(
            "the member names no gateway: it has no {} (portolanctl join --gateway)",
            name()
        );
    };
    Ok(gateway)
}

/// The gateway that the member names, if it does.
pub(crate) async fn gateway_opt(member: &Client) -> anyhow::Result<Option<Gateway>> {
    let map = maps(member).get_opt(CONFIG_MAP_INJECTION).await;
    let Some(map) = map.with_context(|| format!("cannot read {}", name()))? else {
        return Ok(None);
    };
    let gateway = Gateway::of(&map).with_context(|| format!("{} does not say host, port and ca.crt", name()))?;
    Ok(Some(gateway))
}

/// Has Pods of a member know the gateway by these CA certificates: those to come, and those that run. Returns how many run; `None` if
/// the member names no gateway.
pub(crate) async fn trust(member: &Client, ca: &str) -> anyhow::Result<Option<usize>> {
    let before = known(member).await?;
    let patch = Patch::Merge(json!({"data": {"ca.crt": ca}}));
    match maps(member)
        .patch(CONFIG_MAP_INJECTION, &PatchParams::default(), &patch)
        .await
    {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
        patched => patched.with_context(|| format!("cannot write {}", name()))?,
    };
    trust_in_pods(member, &before, ca).await.map(Some)
}

/// The CA certificates that the member names; empty if it names no gateway.
async fn known(member: &Client) -> anyhow::Result<String> {
    let map = maps(member).get_opt(CONFIG_MAP_INJECTION).await;
    let data = map
        .with_context(|| format!("cannot read {}", name()))?
        .and_then(|map| map.data);
    Ok(data.and_then(|mut data| data.remove("ca.crt")).unwrap_or_default())
}

/// Whether two PEM bundles have a certificate in common.
fn share(one: &str, other: &str) -> bool {
    let certificates = |pem: &str| -> BTreeSet<String> {
        let blocks = pem.split("-----BEGIN CERTIFICATE-----").skip(1);
        blocks.map(|block| block.split_whitespace().collect()).collect()
    };
    !certificates(one).is_disjoint(&certificates(other))
}

/// The kubelet writes what it finds in the annotation into the volume of a Pod that runs. A Pod that knows none of the certificates of
/// `before` and `ca` is another gateway's, and stays as it is.
async fn trust_in_pods(member: &Client, before: &str, ca: &str) -> anyhow::Result<usize> {
    let pods = Api::<Pod>::all(member.clone());
    let patch = Patch::Merge(json!({"metadata": {"annotations": {ANNOTATION_GATEWAY_CA: ca}}}));
    let (mut params, mut count) = (ListParams::default().limit(PAGE), 0);
    loop {
        let page = pods.list_metadata(&params).await.context("cannot list Pods")?;
        for pod in &page.items {
            let Some(known) = pod.annotations().get(ANNOTATION_GATEWAY_CA) else {
                continue;
            };
            if !share(known, ca) && !share(known, before) {
                continue;
            }
            count += 1;
            if known == ca {
                continue;
            }
            let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
            let pods = Api::<Pod>::namespaced(member.clone(), &namespace);
            match pods.patch_metadata(&name, &PatchParams::default(), &patch).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                patched => drop(patched.with_context(|| format!("cannot annotate Pod {namespace}/{name}"))?),
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(count),
        }
    }
}

/// What stands in a member because of it, in each version that it may serve, for the record of `dev up`.
pub(crate) fn references() -> anyhow::Result<Vec<Value>> {
    let mut references = vec![json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP_INJECTION, "namespace": SYSTEM_NAMESPACE},
    })];
    for policy in policies()? {
        let versions = INJECTION_VERSIONS.map(|version| admission::in_version(&policy, version));
        for policy in versions {
            references.push(serde_json::to_value(policy).context("a policy is JSON")?);
        }
    }
    Ok(references)
}

fn maps(member: &Client) -> Api<ConfigMap> {
    Api::namespaced(member.clone(), SYSTEM_NAMESPACE)
}

/// The ConfigMap that names it, for messages.
pub(crate) fn name() -> String {
    format!("ConfigMap {SYSTEM_NAMESPACE}/{CONFIG_MAP_INJECTION}")
}

#[cfg(test)]
mod tests {
    use portolan_crds::labels::{ANNOTATION_KEEP_TOKEN, DEFAULT_AUDIENCE, LABEL_ENABLE_PROXY, VOLUME_ACCOUNT};
    use portolan_crds::policy::INJECTION;

    use super::*;

    #[test]
    fn bundles_share_a_certificate_or_are_of_other_gateways() {
        let pem = |body: &str| format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n");
        let (one, other) = (pem("MIIA"), pem("MIIB"));
        assert!(share(&one, &format!("{other}{one}")));
        assert!(!share(&one, &other));
        assert!(!share("", ""), "of nothing nothing is known");
    }

    #[test]
    fn the_manifest_speaks_of_what_the_programs_speak_of() {
        let words = [
            LABEL_ENABLE_PROXY,
            ANNOTATION_GATEWAY_CA,
            ANNOTATION_KEEP_TOKEN,
            VOLUME_ACCOUNT,
            CONFIG_MAP_INJECTION,
            SYSTEM_NAMESPACE,
        ];
        for word in words {
            assert!(MANIFEST.contains(word), "{word}");
        }
        assert!(MANIFEST.contains(&format!("dyn(\"{DEFAULT_AUDIENCE}\")")));
        let policies = policies().unwrap();
        let named = policies
            .iter()
            .map(|policy| (policy.types.clone().unwrap().kind, policy.name_any()));
        let taken = INJECTION.map(|(kind, name)| (kind.to_owned(), name.to_owned()));
        assert_eq!(named.collect::<BTreeSet<_>>(), taken.into());
    }
}
