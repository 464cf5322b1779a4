//! Objects of real members, and who changes them. Called by `real_federated` and `federated`.

use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use portolan_testbed::Testbed;
use serde_json::json;
use tokio::time::MissedTickBehavior;

use crate::pods;

const NAMESPACE: &str = "bench";
/// Writes under way at a time, to each member.
const AT_ONCE: usize = 8;

/// Changes objects of all members, and says in each when.
pub(crate) struct Writers {
    members: Vec<Api<ConfigMap>>,
    objects: usize,
}

impl Writers {
    /// So many changes of each member; `rate` a second each, 0 as fast as they are taken.
    pub(crate) async fn write(&self, events: u64, rate: u64) -> anyhow::Result<()> {
        let all = self.members.iter().map(|maps| self.write_one(maps, events, rate));
        futures::future::try_join_all(all).await.map(drop)
    }

    async fn write_one(&self, maps: &Api<ConfigMap>, events: u64, rate: u64) -> anyhow::Result<()> {
        let mut due = (rate > 0).then(|| tokio::time::interval(Duration::from_nanos(1_000_000_000 / rate)));
        if let Some(due) = &mut due {
            due.set_missed_tick_behavior(MissedTickBehavior::Burst);
        }
        let mut writing = FuturesUnordered::new();
        for event in 0..events {
            if let Some(due) = &mut due {
                due.tick().await;
            }
            if writing.len() >= AT_ONCE {
                writing.next().await.transpose()?;
            }
            writing.push(self.touch(maps, event));
        }
        while writing.next().await.transpose()?.is_some() {}
        Ok(())
    }

    async fn touch(&self, maps: &Api<ConfigMap>, event: u64) -> anyhow::Result<()> {
        let name = name(usize::try_from(event)? % self.objects.max(1));
        let change = json!({"metadata": {"annotations": {"bench/made-at": pods::now().to_string()}}});
        let change = Patch::Merge(&change);
        maps.patch(&name, &PatchParams::default(), &change).await?;
        Ok(())
    }
}

/// Fills each member with so many objects.
pub(crate) async fn fill(testbed: &Testbed, members: &[&str], objects: usize) -> anyhow::Result<Writers> {
    let mut all = Vec::new();
    for member in members {
        all.push(Api::namespaced(
            testbed.cluster(member).client().await?,
            &namespace(member),
        ));
    }
    let filling = all.iter().map(async |maps: &Api<ConfigMap>| {
        let params = &PostParams::default();
        let mut creating = FuturesUnordered::new();
        for number in 0..objects {
            if creating.len() >= AT_ONCE {
                creating.next().await.transpose()?;
            }
            creating.push(async move { maps.create(params, &config_map(number)).await });
        }
        while creating.next().await.transpose()?.is_some() {}
        anyhow::Ok(())
    });
    futures::future::try_join_all(filling).await?;
    Ok(Writers { members: all, objects })
}

/// About 3 KB on the wire.
fn config_map(number: usize) -> ConfigMap {
    let data = (0..12).map(|n| (format!("setting-{n:02}"), "0123456789abcdef".repeat(12)));
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name(number)),
            ..ObjectMeta::default()
        },
        data: Some(data.collect()),
        ..ConfigMap::default()
    }
}

/// Each member has one of its own: a namespace has one owner.
pub(crate) fn namespace(member: &str) -> String {
    format!("{NAMESPACE}-{member}")
}

fn name(number: usize) -> String {
    format!("settings-{number}")
}
