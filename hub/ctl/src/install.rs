//! `portolanctl install`: CustomResourceDefinitions and the hub's RBAC. Safe to repeat.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::definitions::definitions;

use crate::apply::{self, MANAGER};
use crate::cli::HubArgs;
use crate::connect::connect;

const HUB_RBAC: &str = include_str!("../../../deploy/hub/rbac.yaml");
const CRD_PATIENCE: Duration = Duration::from_secs(30);
const CRD_POLL: Duration = Duration::from_millis(100);

pub(crate) async fn run(args: &HubArgs) -> anyhow::Result<()> {
    let hub = connect("the hub", args.hub_kubeconfig.as_deref()).await?;
    install(&hub.client).await?;
    println!(
        "installed into {}: CustomResourceDefinitions and the hub's RBAC",
        hub.url
    );
    Ok(())
}

/// Applies CRDs and RBAC and waits until the API server serves the kinds.
pub(crate) async fn install(client: &Client) -> anyhow::Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in definitions() {
        let name = crd.name_any();
        crds.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&crd))
            .await
            .with_context(|| format!("cannot apply CustomResourceDefinition {name}"))?;
        wait_established(&crds, &name).await?;
    }
    apply::apply(client, &rbac()?).await
}

/// Namespace, ServiceAccount and roles of the hub's program.
pub(crate) fn rbac() -> anyhow::Result<Vec<DynamicObject>> {
    apply::parse("deploy/hub/rbac.yaml", HUB_RBAC)
}

async fn wait_established(crds: &Api<CustomResourceDefinition>, name: &str) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let crd = crds
            .get(name)
            .await
            .with_context(|| format!("cannot read CustomResourceDefinition {name}"))?;
        let conditions = crd.status.and_then(|status| status.conditions).unwrap_or_default();
        if conditions
            .iter()
            .any(|condition| condition.type_ == "Established" && condition.status == "True")
        {
            return Ok(());
        }
        if started.elapsed() > CRD_PATIENCE {
            bail!("CustomResourceDefinition {name} is not established: {conditions:?}");
        }
        tokio::time::sleep(CRD_POLL).await;
    }
}
