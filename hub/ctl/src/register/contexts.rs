//! `register --all-contexts`: the clusters of every context of a kubeconfig.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use kube::config::Kubeconfig;
use portolan_crds::MemberCluster;
use portolan_crds::names::check_dns_label;

use super::one;
use crate::cli::RegisterArgs;
use crate::connect::{Cluster, connect_to};

/// What is to become of a context.
enum Verdict {
    /// The cluster is registered under the context's name.
    Register,
    /// The cluster is left out, for this reason.
    Skip(String),
}

pub(super) async fn run(args: &RegisterArgs, hub: &Cluster) -> anyhow::Result<()> {
    let verdicts = verdicts(args, hub).await?;
    for (context, verdict) in &verdicts {
        match verdict {
            Verdict::Register => println!("{context}: to be registered"),
            Verdict::Skip(reason) => println!("{context}: left out, {reason}"),
        }
    }
    let wanted: Vec<_> = verdicts
        .iter()
        .filter(|(_, verdict)| matches!(verdict, Verdict::Register))
        .map(|(context, _)| context.as_str())
        .collect();
    if wanted.is_empty() {
        println!("nothing is to be registered");
        return Ok(());
    }
    if !args.yes && args.dry_run.is_none() {
        println!("nothing was written: say --yes to register {}", wanted.join(", "));
        return Ok(());
    }
    let mut failed = Vec::new();
    for context in wanted {
        println!("{context}:");
        if let Err(error) = one(args, hub, context, Some(context)).await {
            println!("{context}: {}", crate::sentence::of(&error));
            failed.push(context);
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!("not registered: {}", failed.join(", "))
}

async fn verdicts(args: &RegisterArgs, hub: &Cluster) -> anyhow::Result<BTreeMap<String, Verdict>> {
    let file = &args.kubeconfig;
    let kubeconfig =
        Kubeconfig::read_from(file).with_context(|| format!("cannot read kubeconfig {}", file.display()))?;
    let members = Api::<MemberCluster>::all(hub.client.clone())
        .list(&ListParams::default())
        .await;
    let members = members.context("cannot list MemberClusters; has `portolanctl install` been run?")?;
    let mut known: BTreeMap<String, String> =
        [(hub.uid().await.context("the hub cluster")?, "it is the hub".to_owned())].into();
    for member in &members {
        let uid = member.status.as_ref().and_then(|status| status.cluster_uid.clone());
        if let Some(uid) = uid {
            known
                .entry(uid)
                .or_insert_with(|| format!("it is member {} already", member.name_any()));
        }
    }
    let mut verdicts = BTreeMap::new();
    for context in kubeconfig.contexts {
        let name = context.name;
        let verdict = match uid(args, &name).await {
            Err(error) => Verdict::Skip(crate::sentence::of(&error)),
            Ok(uid) => match known.get(&uid) {
                // One that joined under this name goes on, if something is left to do.
                Some(why) if *why != format!("it is member {name} already") => Verdict::Skip(why.clone()),
                _ => {
                    known.insert(uid, format!("context {name} is of the same cluster"));
                    Verdict::Register
                }
            },
        };
        verdicts.insert(name, verdict);
    }
    Ok(verdicts)
}

async fn uid(args: &RegisterArgs, context: &str) -> anyhow::Result<String> {
    check_dns_label(context).context("its name cannot be that of a member; register it by itself, with --context")?;
    connect_to(&format!("context {context}"), Some(&args.kubeconfig), Some(context))
        .await?
        .uid()
        .await
}
