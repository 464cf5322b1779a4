//! `portolanctl unregister`: takes a member cluster out again.
//!
//! Order: no shard may have anything there (`pairs`), so that no write is cut off; the hub forgets it; the agent takes its labels
//! back; what `register` wrote in the member goes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kube::api::{Api, DeleteParams};
use portolan_crds::MemberCluster;

use crate::cli::UnregisterArgs;
use crate::connect::{Cluster, connect, connect_to};
use crate::steps::Steps;

mod member;
mod pairs;

const POLL: Duration = Duration::from_millis(300);
/// Namespaces of a shard that are named.
const NAMED: usize = 10;

pub(crate) async fn run(args: &UnregisterArgs) -> anyhow::Result<()> {
    let mut steps = Steps::begin();
    let name = args.name.as_str();
    let hub = connect("the hub", args.hub.hub_kubeconfig.as_deref()).await?;
    if args.force {
        return forget_alone(&hub, name).await;
    }
    let what = format!("member cluster {name}");
    let member = connect_to(&what, args.kubeconfig.as_deref(), args.context.as_deref()).await?;
    is_the_member(&hub, name, &member).await?;
    if args.release {
        pairs::take_out(&hub.client, name).await?;
        pairs::released(&hub.client, name, args.timeout).await?;
        steps.done("no shard has a namespace of it any more");
    } else {
        let claimed = pairs::claimed(&hub.client, name).await?;
        if !claimed.is_empty() {
            bail!(
                "nothing was done: shards have namespaces of {name}, or name it:\n  {}\ntake it out of their spec.clusters, or say --release",
                words(&claimed).join("\n  ")
            );
        }
    }
    take_back(&hub, name, Some(&member), args.timeout).await?;
    steps.done(&format!("member cluster {name} is a member no more"));
    Ok(())
}

/// Forgets the member on the hub, and takes back what was written in it.
pub(crate) async fn take_back(
    hub: &Cluster,
    name: &str,
    cluster: Option<&Cluster>,
    patience: Duration,
) -> anyhow::Result<()> {
    let mut steps = Steps::begin();
    forget(hub, name).await?;
    steps.done(&format!("the hub has forgotten MemberCluster {name}"));
    let Some(cluster) = cluster else { return Ok(()) };
    let is_hub = cluster.uid().await? == hub.uid().await?;
    let by = Instant::now() + patience;
    if member::uninstall(&cluster.client, by).await? {
        steps.done("the agent has taken its labels back, and is gone");
    } else {
        println!(
            "no Deployment of the agent is there: labels and annotations stay until `portolan-agent uninstall` is run where the agent ran"
        );
    }
    let kept = member::delete(&cluster.client, is_hub).await?;
    steps.done("RBAC and admission policies are gone");
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

/// Of a member that cannot be reached.
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

/// A kubeconfig of another cluster must not lose what that one has.
async fn is_the_member(hub: &Cluster, name: &str, member: &Cluster) -> anyhow::Result<()> {
    let known = Api::<MemberCluster>::all(hub.client.clone()).get_opt(name).await;
    let known = known.with_context(|| format!("cannot read MemberCluster {name}"))?;
    let pinned = known.and_then(|known| known.status?.cluster_uid);
    let uid = member.uid().await?;
    match pinned {
        Some(pinned) if pinned != uid => bail!(
            "nothing was done: member cluster {name} has clusterUID {pinned}, and the kubeconfig is of a cluster with {uid}"
        ),
        _ => Ok(()),
    }
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
