//! `portolanctl ledger adopt`: a ledger where there is none that a hub could start from.
//!
//! What one shard claims is its; what several claim, and what nobody can tell, stays out. As routers may serve that to
//! somebody, the hub grants it to nobody before all routers have been heard.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, DeleteParams, PostParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::labels::SYSTEM_NAMESPACE;
use portolan_crds::ledger::{Chunk, Content, Phase, Record, Root, Slot, config_map};
use portolan_crds::{Contention, ShardName};

use super::claims::{Adoption, Evidence, Inventory, claims};
use super::found::Found;
use crate::cli::LedgerAdoptArgs;
use crate::connect::{connect, list};
use crate::hub;
use crate::table::Table;

pub(crate) async fn run(args: &LedgerAdoptArgs) -> anyhow::Result<()> {
    let hub = hub::of(&args.hub).await?;
    let found = Found::read(&hub).await?;
    if found.is_whole() {
        bail!("the ledger is whole: there is nothing to adopt; see portolanctl ledger show");
    }
    let evidence = evidence(&hub, &found, args).await?;
    let claims = claims(&evidence, found.view_revision());
    print(&found, &claims);
    if !args.yes {
        println!("Nothing was written: add --yes to write this ledger.");
        return Ok(());
    }
    write(&hub, &found, (&claims, evidence.contention)).await?;
    println!("The ledger is written: start the hub.");
    Ok(())
}

async fn evidence(hub: &Client, found: &Found, args: &LedgerAdoptArgs) -> anyhow::Result<Evidence> {
    let mut evidence = Evidence {
        shards: list(hub).await?,
        members: list(hub).await?,
        bucketing: args.buckets,
        ..Evidence::default()
    };
    for (name, kubeconfig) in &args.members {
        let what = format!("member cluster {name}");
        let member = connect(&what, Some(kubeconfig)).await?;
        let namespaces = list::<Namespace>(&member.client).await;
        let namespaces = namespaces.with_context(|| format!("cannot list the namespaces of {what}"))?;
        let inventory: Inventory = namespaces
            .into_iter()
            .map(|namespace| (namespace.name_any(), namespace.labels().clone()))
            .collect();
        evidence.inventories.insert(name.clone(), inventory);
    }
    // Without its root it is not known which chunks count: a later one says more of a pair than one that was halved since.
    let mut records: Vec<_> = found.records.values().collect();
    records.sort_by_key(|record| match &record.content {
        Content::Chunk(chunk) => (record.term, record.view_revision, Some(chunk.slot)),
        _ => (record.term, record.view_revision, None),
    });
    for record in records {
        match &record.content {
            Content::Chunk(chunk) => {
                for (namespace, of_namespace) in &chunk.pairs {
                    evidence.pairs.extend(of_namespace.iter().map(|(operator, pair)| {
                        let name = (chunk.cluster.clone(), namespace.clone(), operator.clone());
                        (name, pair.clone())
                    }));
                }
            }
            Content::Spec(spec) => drop(evidence.specs.insert(spec.shard.clone(), spec.clone())),
            Content::Root(root) => evidence.contention = root.contention,
        }
    }
    // Without its root, whose pairs are in it tells.
    if evidence.pairs.keys().any(|(.., operator)| !operator.is_everybody()) {
        evidence.contention = Contention::Operator;
    }
    Ok(evidence)
}

fn print(found: &Found, claims: &Adoption) {
    for (name, reason) in &found.damaged {
        println!("ConfigMap {name}: {reason}");
    }
    let mut table = Table::new(&["CLUSTER", "SHARD", "NAMESPACES"]);
    let mut counts = BTreeMap::<(&str, &ShardName), usize>::new();
    for ((cluster, ..), pair) in &claims.certain {
        if let Some(owner) = &pair.owner {
            *counts.entry((cluster, owner)).or_default() += 1;
        }
    }
    for ((cluster, shard), count) in counts {
        table.row(vec![cluster.to_owned(), shard.to_string(), count.to_string()]);
    }
    println!("Granted:");
    print!("{table}");
    for ((cluster, namespace, _), shards) in &claims.ambiguous {
        let shards: Vec<_> = shards.iter().map(ToString::to_string).collect();
        println!(
            "Ambiguous, not granted: {cluster}/{namespace} (of {}, or of another that does not tell all)",
            shards.join(" or ")
        );
    }
    for unknown in &claims.unknown {
        println!("Not known: {unknown}");
    }
}

/// The root last: until it lists them, records count for nothing.
async fn write(hub: &Client, found: &Found, (claims, contention): (&Adoption, Contention)) -> anyhow::Result<()> {
    let maps = Api::<ConfigMap>::namespaced(hub.clone(), SYSTEM_NAMESPACE);
    let mut root = Root {
        incarnation: random_name(),
        key: random_name(),
        phase: Phase::Begun,
        contention,
        ..Root::default()
    };
    let revisions = claims.certain.values().map(|pair| pair.view_revision);
    let view_revision = revisions.max().unwrap_or_default().max(found.view_revision());
    let record = |content| Record {
        term: found.term() + 1,
        view_revision,
        content,
    };
    let mut versions = found.versions.clone();
    put(&maps, &mut versions, &record(Content::Root(root.clone()))).await?;
    for content in contents(claims, &root.key.clone()) {
        match &content {
            Content::Chunk(chunk) => {
                let slots = root.chunks.entry(chunk.cluster.clone()).or_default();
                slots.insert(chunk.slot);
            }
            Content::Spec(spec) => drop(root.specs.insert(spec.shard.clone())),
            Content::Root(_) => {}
        }
        put(&maps, &mut versions, &record(content)).await?;
    }
    root.phase = Phase::Adopted;
    let listed = root.objects();
    let root = record(Content::Root(root));
    put(&maps, &mut versions, &root).await?;
    let unlisted: BTreeSet<_> = versions.into_keys().filter(|name| !listed.contains(name)).collect();
    for name in unlisted.iter().filter(|name| **name != root.object_name()) {
        // What stays does not count, and goes at the hub's next start if it can be read.
        let deleted = maps.delete(name, &DeleteParams::default()).await;
        deleted.with_context(|| format!("cannot delete ConfigMap {name}"))?;
    }
    Ok(())
}

/// 128 random bits in hex.
fn random_name() -> String {
    format!("{:032x}", rand::random::<u128>())
}

fn contents(claims: &Adoption, key: &str) -> Vec<Content> {
    let mut chunks = BTreeMap::<&str, Chunk>::new();
    for ((cluster, namespace, operator), pair) in &claims.certain {
        let chunk = chunks
            .entry(cluster)
            .or_insert_with(|| Chunk::new(cluster, Slot::WHOLE));
        chunk.add(namespace, operator.clone(), pair.clone());
    }
    let chunks = chunks
        .into_values()
        .flat_map(|chunk| chunk.bounded(key))
        .map(Content::Chunk);
    chunks
        .chain(claims.specs.values().cloned().map(Content::Spec))
        .collect()
}

/// Creates or replaces, by the version that was read.
async fn put(maps: &Api<ConfigMap>, versions: &mut BTreeMap<String, String>, record: &Record) -> anyhow::Result<()> {
    let name = record.object_name();
    let map = config_map(&name, record.encode(), versions.get(&name).cloned());
    let written = if versions.contains_key(&name) {
        maps.replace(&name, &PostParams::default(), &map).await
    } else {
        maps.create(&PostParams::default(), &map).await
    };
    let written = written.with_context(|| format!("cannot write ConfigMap {name}"))?;
    versions.insert(name, written.metadata.resource_version.unwrap_or_default());
    Ok(())
}
