//! What `register` wrote in a member, taken back.

use std::time::Instant;

use anyhow::{Context as _, bail};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams, PropagationPolicy};
use kube::{Client, ResourceExt as _};
use portolan_crds::labels::{
    CONFIG_MAP_CA, ROLE_IMPERSONATE, ROLE_IMPERSONATE_USERS, ROUTERS_NAMESPACE, SECRET_AGENT_BOOTSTRAP,
    SYSTEM_NAMESPACE,
};
use serde_json::json;

use super::POLL;
use crate::admission;
use crate::apply;
use crate::injection;
use crate::join::member_rbac;
use crate::label_kinds;
use crate::pods;

/// As whom the agent takes back what it wrote.
const UNINSTALL: &str = include_str!("../../../../deploy/member/uninstall.yaml");
const UNINSTALL_ACCOUNT: &str = "portolan-uninstall";
const AGENT: &str = "portolan-agent";
/// ServiceAccount of routers.
const ROUTER: &str = "portolan-router";
const JOB: &str = "portolan-agent-uninstall";

/// Ends the agent and has it take back what it wrote, labels of this prefix among it. False: no Deployment of it is there.
/// `has_rbac`: the account as which it does that is there, and stays.
pub(super) async fn uninstall(member: &Client, prefix: &str, by: Instant, has_rbac: bool) -> anyhow::Result<bool> {
    let deployments: Api<Deployment> = Api::namespaced(member.clone(), SYSTEM_NAMESPACE);
    let jobs: Api<Job> = Api::namespaced(member.clone(), SYSTEM_NAMESPACE);
    let deployment = deployments
        .get_opt(AGENT)
        .await
        .context("cannot read the agent's Deployment")?;
    let Some(deployment) = deployment else {
        return Ok(false);
    };
    let foreground = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Foreground),
        ..DeleteParams::default()
    };
    let job = job(&deployment, prefix)?;
    if jobs.get_opt(JOB).await?.is_some() {
        jobs.delete(JOB, &foreground)
            .await
            .context("cannot delete the Job of an earlier try")?;
        gone(&jobs, by).await?;
    }
    // Two would write against each other: the agent ends first, and its Deployment stays to tell the image if this breaks off.
    let scaled = json!({"spec": {"replicas": 0}});
    let patch = kube::api::Patch::Merge(scaled);
    deployments
        .patch(AGENT, &kube::api::PatchParams::default(), &patch)
        .await
        .context("cannot end the agent")?;
    while pods::are_there(member, SYSTEM_NAMESPACE, pods::OF_AGENT)
        .await
        .context("cannot list Pods")?
    {
        late(by, "the agent has not ended yet")?;
        tokio::time::sleep(POLL).await;
    }
    if !has_rbac {
        apply::apply(member, &uninstall_rbac()?).await?;
    }
    jobs.create(&PostParams::default(), &job)
        .await
        .context("cannot run the agent's uninstall")?;
    ended(member, &jobs, by).await?;
    jobs.delete(JOB, &foreground).await.context("cannot delete the Job")?;
    deployments
        .delete(AGENT, &foreground)
        .await
        .context("cannot delete the agent's Deployment")?;
    Ok(true)
}

pub(super) fn uninstall_rbac() -> anyhow::Result<Vec<DynamicObject>> {
    apply::parse("deploy/member/uninstall.yaml", UNINSTALL)
}

/// `portolan-agent uninstall` with what the agent's Deployment says of its Pod.
fn job(deployment: &Deployment, prefix: &str) -> anyhow::Result<Job> {
    let mut pod = deployment
        .spec
        .clone()
        .and_then(|spec| spec.template.spec)
        .context("a Deployment has a Pod")?;
    pod.restart_policy = Some("Never".to_owned());
    pod.service_account_name = Some(UNINSTALL_ACCOUNT.to_owned());
    pod.service_account = None;
    for container in &mut pod.containers {
        container.args = Some(vec!["uninstall".to_owned(), format!("--label-prefix={prefix}")]);
        (
            container.liveness_probe,
            container.readiness_probe,
            container.startup_probe,
        ) = (None, None, None);
    }
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": JOB, "namespace": SYSTEM_NAMESPACE},
        "spec": {"backoffLimit": 3, "template": {"spec": pod}},
    });
    serde_json::from_value(job).context("a Job is one")
}

async fn ended(member: &Client, jobs: &Api<Job>, by: Instant) -> anyhow::Result<()> {
    loop {
        let status = jobs.get(JOB).await?.status.unwrap_or_default();
        if status.succeeded.unwrap_or_default() > 0 {
            return Ok(());
        }
        let failed = status
            .conditions
            .iter()
            .flatten()
            .any(|one| one.type_ == "Failed" && one.status == "True");
        if failed {
            bail!("Job {SYSTEM_NAMESPACE}/{JOB} failed: see its Pod's log; the same command tries again");
        }
        if Instant::now() >= by {
            let why = pods::trouble(member, &format!("job-name={JOB}")).await;
            bail!(
                "Job {SYSTEM_NAMESPACE}/{JOB} has not ended yet{}; the same command goes on. Where the agent's image cannot be had, delete \
                 Deployment {SYSTEM_NAMESPACE}/{AGENT} first: its labels then stay",
                why.map_or_else(String::new, |why| format!(" ({why})"))
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn gone(jobs: &Api<Job>, by: Instant) -> anyhow::Result<()> {
    while jobs.get_opt(JOB).await?.is_some() {
        late(by, "the Job of an earlier try is not gone yet")?;
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

fn late(by: Instant, what: &str) -> anyhow::Result<()> {
    if Instant::now() >= by {
        bail!("{what}; the same command goes on");
    }
    Ok(())
}

/// Deletes policies, RBAC and namespaces. Returns what is kept, and why. `leaves_rbac`: but for what its chart installed.
pub(super) async fn delete(member: &Client, leaves_rbac: bool) -> anyhow::Result<Vec<String>> {
    let mut objects: Vec<DynamicObject> = Vec::new();
    for reference in admission::references().into_iter().chain(injection::references()?) {
        objects.push(serde_json::from_value(reference).context("a policy is an object")?);
    }
    let kept = if leaves_rbac {
        vec![format!("Namespace {SYSTEM_NAMESPACE}, which Helm has not made")]
    } else {
        installed(member, &mut objects).await?
    };
    granted(member, &mut objects).await?;
    apply::delete(member, &objects).await?;
    Ok(kept)
}

/// Adds what is installed in each member. Returns what is kept of it, and why.
async fn installed(member: &Client, objects: &mut Vec<DynamicObject>) -> anyhow::Result<Vec<String>> {
    let mut kept = Vec::new();
    let routers_run = pods::are_there(member, ROUTERS_NAMESPACE, "")
        .await
        .context("cannot list Pods")?;
    let has_hub = has_hub(member)
        .await
        .with_context(|| format!("cannot look what is in namespace {SYSTEM_NAMESPACE}"))?;
    for object in member_rbac()?.into_iter().chain(uninstall_rbac()?) {
        match (kind(&object), object.name_any().as_str()) {
            ("Namespace", SYSTEM_NAMESPACE) if has_hub => {
                kept.push(format!("Namespace {SYSTEM_NAMESPACE}: a hub is in it"));
            }
            ("Namespace", ROUTERS_NAMESPACE) | ("ServiceAccount", ROUTER) if routers_run => {
                kept.push(format!("{}: routers run by it", apply::describe(&object)));
            }
            _ => objects.push(object),
        }
    }
    Ok(kept)
}

/// Adds what the agent was invited by, and what people have granted to it and to routers.
async fn granted(member: &Client, objects: &mut Vec<DynamicObject>) -> anyhow::Result<()> {
    let bootstrap = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": SECRET_AGENT_BOOTSTRAP, "namespace": SYSTEM_NAMESPACE},
    });
    objects.push(serde_json::from_value(bootstrap).context("it is an object")?);
    let named = [
        ("ClusterRole", ROLE_IMPERSONATE_USERS),
        ("ClusterRoleBinding", ROLE_IMPERSONATE_USERS),
        ("ClusterRole", label_kinds::ROLE),
        ("ClusterRoleBinding", label_kinds::ROLE),
    ];
    for (kind, name) in named {
        objects.push(rbac(kind, name, None)?);
    }
    let of_name = ListParams::default().fields(&format!("metadata.name={ROLE_IMPERSONATE}"));
    for role in Api::<RoleBinding>::all(member.clone())
        .list(&of_name)
        .await
        .context("cannot list RoleBindings")?
    {
        objects.push(rbac("RoleBinding", ROLE_IMPERSONATE, role.namespace().as_deref())?);
    }
    for role in Api::<Role>::all(member.clone())
        .list(&of_name)
        .await
        .context("cannot list Roles")?
    {
        objects.push(rbac("Role", ROLE_IMPERSONATE, role.namespace().as_deref())?);
    }
    Ok(())
}

/// Whether a hub has its CA there: this one's, or that of another fleet.
async fn has_hub(member: &Client) -> Result<bool, kube::Error> {
    let maps = Api::<ConfigMap>::namespaced(member.clone(), SYSTEM_NAMESPACE);
    Ok(maps.get_metadata_opt(CONFIG_MAP_CA).await?.is_some())
}

fn kind(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("", |types| types.kind.as_str())
}

fn rbac(kind: &str, name: &str, namespace: Option<&str>) -> anyhow::Result<DynamicObject> {
    let object = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
    });
    serde_json::from_value(object).context("it is an object")
}
