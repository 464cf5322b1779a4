//! Waiting until the hub says that members are joined and shards are served. Called by `up` and `status`.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Client;
use kube::api::Api;
use portolan_crds::{ConditionReason, MemberCluster, ShardingConfig};

use crate::dev::fleet::Fleet;

const POLL: Duration = Duration::from_millis(150);
const MEMBER_CONDITIONS: [&str; 5] = ["Accepted", "Joined", "Available", "CredentialsReady", "LabelsSynced"];
/// Verdicts on a spec that time does not change.
const REFUSALS: [ConditionReason; 3] = [
    ConditionReason::Invalid,
    ConditionReason::NotImplemented,
    ConditionReason::Overlap,
];
const SHARD_CONDITIONS: [&str; 2] = ["Accepted", "Distributed"];

/// What is not yet as it should be.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    pub(crate) lines: Vec<String>,
    /// Some of it will not become so by itself.
    final_: bool,
}

/// What is not yet as it should be; no lines when all is.
pub(crate) async fn missing(hub: &Client, fleet: &Fleet) -> anyhow::Result<Missing> {
    let mut missing = Vec::new();
    let mut final_ = false;
    let clusters: Api<MemberCluster> = Api::all(hub.clone());
    for member in &fleet.members {
        let cluster = clusters
            .get_opt(&member.name)
            .await
            .context("cannot read MemberClusters")?;
        let conditions = cluster
            .and_then(|cluster| cluster.status)
            .map(|status| status.conditions)
            .unwrap_or_default();
        missing.extend(not_true(
            &format!("MemberCluster {}", member.name),
            &conditions,
            &MEMBER_CONDITIONS,
            None,
        ));
    }
    for shard in &fleet.shards {
        let name = format!("ShardingConfig {}/{}", shard.namespace, shard.name);
        let api: Api<ShardingConfig> = Api::namespaced(hub.clone(), &shard.namespace);
        let Some(config) = api.get_opt(&shard.name).await.context("cannot read ShardingConfigs")? else {
            missing.push(format!("{name} does not exist"));
            continue;
        };
        let status = config.status.unwrap_or_default();
        final_ |= is_refused(&status.conditions, config.metadata.generation);
        missing.extend(not_true(
            &name,
            &status.conditions,
            &SHARD_CONDITIONS,
            config.metadata.generation,
        ));
        if status.callers.is_none_or(|callers| callers.total == 0) {
            missing.push(format!("{name} has no caller yet"));
        }
    }
    Ok(Missing { lines: missing, final_ })
}

/// Whether the hub has judged the present spec, and only another spec will do.
fn is_refused(conditions: &[Condition], generation: Option<i64>) -> bool {
    let accepted = conditions.iter().find(|condition| condition.type_ == "Accepted");
    accepted.is_some_and(|condition| {
        condition.status == "False"
            && condition.observed_generation >= generation
            && REFUSALS.iter().any(|reason| reason.to_string() == condition.reason)
    })
}

/// Waits until nothing is missing; says what is when the time is over, or at once when waiting cannot help.
pub(crate) async fn wait(hub: &Client, fleet: &Fleet, deadline: Instant) -> anyhow::Result<()> {
    loop {
        for process in &fleet.processes {
            process.check()?;
        }
        let missing = missing(hub, fleet).await?;
        if missing.lines.is_empty() {
            return Ok(());
        }
        if missing.final_ || Instant::now() > deadline {
            let why = if missing.final_ {
                "will not be ready"
            } else {
                "not ready in time"
            };
            bail!("{why}:\n  {}", missing.lines.join("\n  "));
        }
        tokio::time::sleep(POLL).await;
    }
}

fn not_true(name: &str, conditions: &[Condition], wanted: &[&str], generation: Option<i64>) -> Vec<String> {
    let unmet = wanted.iter().filter_map(
        |type_| match conditions.iter().find(|condition| condition.type_ == *type_) {
            None => Some(format!("{name}: {type_} is not reported yet")),
            Some(condition) if condition.status != "True" => Some(format!(
                "{name}: {type_}={} {}: {}",
                condition.status, condition.reason, condition.message
            )),
            Some(condition) if generation.is_some() && condition.observed_generation < generation => {
                Some(format!("{name}: {type_} is about an older generation"))
            }
            Some(_) => None,
        },
    );
    unmet.collect()
}
