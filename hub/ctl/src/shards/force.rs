//! `portolanctl shards force`: a release that nobody waits for any more, by an annotation of the ShardingConfig that the hub goes
//! by. It names pairs with their epochs, so that it forces no later release; and who did it, and why.

use std::collections::BTreeSet;

use anyhow::{Context as _, bail};
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use portolan_crds::labels::FORCE_RELEASE;
use portolan_crds::{FORCED_MAX, ForcedRelease, ReleaseStatus};
use serde_json::json;

use super::moving::client;
use super::write::{MANAGER, api, find};
use crate::cli::{ForceArgs, Output};
use crate::whoami::whoami;

/// Of a name, in bytes.
const MAX_BY: usize = 200;

pub(super) async fn run(args: &ForceArgs) -> anyhow::Result<()> {
    let hub = client(&args.edit).await?;
    let name = &args.shard;
    let object = find(&hub, name).await?;
    let releases = object.data["status"]["releases"].clone();
    let releases: Vec<ReleaseStatus> = if releases.is_null() {
        Vec::new()
    } else {
        serde_json::from_value(releases).context("cannot read status.releases")?
    };
    let by = whoami(&hub, MAX_BY).await;
    let forced = force(&releases, &args.pairs, &format!("{} (by {by})", args.reason.trim()))
        .with_context(|| format!("nothing of ShardingConfig {name} is forced"))?;
    let left = left(object.data["status"]["releasingCount"].as_u64(), &releases, &forced);
    let is_json = args.edit.output.output == Output::Json;
    let say = |written: bool| {
        if is_json {
            let annotation = forced.to_string();
            println!(
                "{}",
                json!({ "shard": name, "annotation": annotation, "left": left, "written": written })
            );
        }
    };
    if !is_json {
        print!("{}", told(&forced, &releases));
    }
    if args.pairs.is_empty() && left > 0 {
        eprintln!("{left} more are being released that are not forced by this: say it again once these are gone");
    }
    if !args.edit.yes {
        say(false);
        eprintln!("nothing was written: add --yes");
        return Ok(());
    }
    let patch = json!({"metadata": {
        "resourceVersion": object.resource_version(),
        "annotations": { FORCE_RELEASE: forced.to_string() },
    }});
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let objects = api(&hub, name);
    let written = objects.patch(name.name(), &params, &Patch::Merge(patch)).await;
    written.with_context(|| format!("cannot write ShardingConfig {name}"))?;
    say(true);
    Ok(())
}

/// How many are being released and not forced, also of those of which the status does not tell.
fn left(count: Option<u64>, releases: &[ReleaseStatus], forced: &ForcedRelease) -> usize {
    let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or_default();
    count.max(releases.len()).saturating_sub(forced.pairs.len())
}

/// Those that are named, or all of which the status tells that they are being released.
fn force(releases: &[ReleaseStatus], named: &[String], reason: &str) -> anyhow::Result<ForcedRelease> {
    let pair = |one: &ReleaseStatus| format!("{}/{}", one.cluster, one.namespace);
    for name in named {
        if !releases.iter().any(|one| pair(one) == *name) {
            bail!("{name} is not being released, as far as its status tells");
        }
    }
    let chosen = releases
        .iter()
        .filter(|one| named.is_empty() || named.contains(&pair(one)));
    let pairs = chosen.map(|one| {
        let epoch = u64::try_from(one.epoch).unwrap_or_default();
        (one.cluster.clone(), one.namespace.clone(), epoch)
    });
    let pairs: BTreeSet<_> = pairs.take(FORCED_MAX).collect();
    if pairs.is_empty() {
        bail!("it lets go of nothing");
    }
    let forced = ForcedRelease {
        pairs,
        reason: reason.to_owned(),
    };
    // As the hub will read it.
    forced.to_string().parse().map_err(anyhow::Error::msg)
}

fn told(forced: &ForcedRelease, releases: &[ReleaseStatus]) -> String {
    let chosen = releases.iter().filter(|one| {
        let epoch = u64::try_from(one.epoch).unwrap_or_default();
        let pair = (one.cluster.clone(), one.namespace.clone(), epoch);
        forced.pairs.contains(&pair)
    });
    let lines = chosen.map(|one| {
        let to = one.to.as_deref().unwrap_or("nobody");
        format!(
            "{}/{} to {to}: no longer waits for {}\n",
            one.cluster, one.namespace, one.waits_for
        )
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(namespace: &str, epoch: i64) -> ReleaseStatus {
        ReleaseStatus {
            cluster: "east".to_owned(),
            namespace: namespace.to_owned(),
            epoch,
            to: Some("ops/b".to_owned()),
            waits_for: "routers gateway to let go of it".to_owned(),
            since: None,
        }
    }

    #[test]
    fn what_is_named_is_forced_in_its_epoch_and_nothing_else() {
        let releases = [release("ns-a", 3), release("ns-b", 1)];
        let all = force(&releases, &[], "it burnt").unwrap();
        assert_eq!(all.to_string(), "east/ns-a@3,east/ns-b@1: it burnt");
        let one = force(&releases, &["east/ns-b".to_owned()], "it burnt").unwrap();
        assert_eq!(one.to_string(), "east/ns-b@1: it burnt");
        assert_eq!(
            told(&one, &releases),
            "east/ns-b to ops/b: no longer waits for routers gateway to let go of it\n"
        );
        assert!(force(&releases, &["east/ns-c".to_owned()], "it burnt").is_err());
        assert_eq!((left(Some(60), &releases, &all), left(None, &releases, &one)), (58, 1));
        assert!(force(&[], &[], "it burnt").is_err());
        assert!(force(&releases, &[], "").is_err());
    }
}
