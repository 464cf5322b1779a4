//! `portolanctl unregister`: takes a member cluster out again.
//!
//! Order: no shard may have anything there (`pairs`), so that no write is cut off; the hub forgets it; the agent takes its labels
//! back; what `register` wrote in the member goes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::{LabelKeys, MemberCluster};

use crate::admission;
use crate::cli::UnregisterArgs;
use crate::connect::{Cluster, connect, connect_to};
use crate::rights;
use crate::steps::Steps;

mod member;
mod pairs;

const POLL: Duration = Duration::from_millis(300);
/// Namespaces of a shard that are named.
const NAMED: usize = 10;

pub(crate) async fn run(args: &UnregisterArgs) -> anyhow::Result<()> {
    let mut steps = Steps::begin();
    if args.alone.member_alone {
        let member = connect_to("the member", args.kubeconfig.as_deref(), args.context.as_deref()).await?;
        let keys = admission::keys_in_force(&member.client).await?;
        return leave(&member.client, &keys, args.timeout, args.alone.leave_rbac).await;
    }
    let name = args.name.as_str();
    let hub = connect("the hub", args.hub.hub_kubeconfig.as_deref()).await?;
    if args.force {
        return forget_alone(&hub, name).await;
    }
    let what = format!("member cluster {name}");
    let member = connect_to(&what, args.kubeconfig.as_deref(), args.context.as_deref()).await?;
    is_the_member(&hub, name, &member).await?;
    let missing = rights::missing_to_take_out(name, &member.client, &member::uninstall_rbac()?).await?;
    if !missing.is_empty() {
        bail!("nothing was done, as rights are missing:\n  {}", missing.join("\n  "));
    }
    if args.release {
        pairs::take_out(&hub.client, name).await?;
    } else {
        let claimed = pairs::claimed(&hub.client, name).await?;
        if !claimed.is_empty() {
            bail!(
                "nothing was done: shards have namespaces of {name}, or name it:\n  {}\ntake it out of their spec.clusters, or say --release",
                words(&claimed).join("\n  ")
            );
        }
    }
    pairs::released(&hub.client, name, args.timeout).await?;
    steps.done("no shard has a namespace of it any more");
    take_back(&hub, name, &member, args.timeout).await?;
    steps.done(&format!("member cluster {name} is a member no more"));
    Ok(())
}

/// Forgets the member on the hub, and takes back what was written in it.
pub(crate) async fn take_back(hub: &Cluster, name: &str, cluster: &Cluster, patience: Duration) -> anyhow::Result<()> {
    let mut steps = Steps::begin();
    // Before the hub forgets it: whether the member answers.
    let keys = admission::keys_in_force(&cluster.client).await?;
    forget(hub, name).await?;
    steps.done(&format!("the hub has forgotten MemberCluster {name}"));
    leave(&cluster.client, &keys, patience, false).await
}

/// Takes back what was written in a member. `leaves_rbac`: but for what its chart installed, which Helm takes out.
async fn leave(member: &Client, keys: &LabelKeys, patience: Duration, leaves_rbac: bool) -> anyhow::Result<()> {
    let mut steps = Steps::begin();
    let by = Instant::now() + patience;
    if member::uninstall(member, keys.prefix(), by, leaves_rbac).await? {
        steps.done("the agent has taken its labels back, and is gone");
    } else {
        println!(
            "no Deployment of the agent is there: labels and annotations stay until `portolan-agent uninstall` is run where the agent ran"
        );
    }
    let kept = member::delete(member, leaves_rbac).await?;
    steps.done(if leaves_rbac {
        "admission policies, and the rights of --allow and --label-kind, are gone"
    } else {
        "RBAC and admission policies are gone"
    });
    for line in kept {
        println!("kept: {line}");
    }
    Ok(())
}

async fn forget(hub: &Cluster, name: &str) -> anyhow::Result<()> {
    let clusters: Api<MemberCluster> = Api::all(hub.client.clone());
    match clusters.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot delete MemberCluster {name}")),
    }
}

/// Deletes the MemberCluster of a cluster that cannot be reached, and says what is left there.
async fn forget_alone(hub: &Cluster, name: &str) -> anyhow::Result<()> {
    let held = pairs::held(&hub.client, name).await?;
    forget(hub, name).await?;
    println!("the hub has forgotten MemberCluster {name}");
    if !held.is_empty() {
        println!(
            "shards that had namespaces there, which writes may still reach in the member until its tokens expire:"
        );
        for line in words(&held) {
            println!("  {line}");
        }
    }
    println!(
        "left in the member: Deployment portolan-system/portolan-agent, labels and annotations of ctrlmesh.kusionstack.io, admission \
         policies, RBAC and namespaces portolan-…; `portolanctl unregister {name} --kubeconfig FILE` takes them out once it is reached"
    );
    Ok(())
}

/// Whether shards have a namespace of the member.
pub(crate) async fn is_held(hub: &kube::Client, name: &str) -> anyhow::Result<bool> {
    Ok(!pairs::held(hub, name).await?.is_empty())
}

/// A kubeconfig of another cluster, or another name of this one, must not lose what a member has.
async fn is_the_member(hub: &Cluster, name: &str, member: &Cluster) -> anyhow::Result<()> {
    let uid = member.uid().await?;
    let known = Api::<MemberCluster>::all(hub.client.clone())
        .list(&ListParams::default())
        .await;
    for known in known.context("cannot list MemberClusters")? {
        let (other, pinned) = (known.name_any(), known.status.and_then(|status| status.cluster_uid));
        match pinned {
            Some(pinned) if other == name && pinned != uid => bail!(
                "nothing was done: member cluster {name} has clusterUID {pinned}, and the kubeconfig is of a cluster with {uid}"
            ),
            Some(pinned) if other != name && pinned == uid => {
                bail!("nothing was done: the kubeconfig is of member cluster {other}, not of {name}")
            }
            _ => {}
        }
    }
    Ok(())
}

/// Shards with what they have, for people.
fn words(held: &pairs::Held) -> Vec<String> {
    let line = |(shard, namespaces): (&portolan_crds::ShardName, &Vec<String>)| {
        if namespaces.is_empty() {
            return format!("{shard} names it");
        }
        let more = namespaces.len().saturating_sub(NAMED);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        let named: Vec<_> = namespaces.iter().take(NAMED).map(String::as_str).collect();
        format!("{shard}: {}{more}", named.join(", "))
    };
    held.iter().map(line).collect()
}
