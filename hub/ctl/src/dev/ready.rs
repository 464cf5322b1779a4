//! Waiting until the hub says that members are joined and shards are served. Called by `up` and `status`.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Client;
use kube::api::Api;
use portolan_crds::{ConditionReason, MemberCluster, ShardingConfig};

use crate::dev::fleet::Fleet;

const POLL: Duration = Duration::from_millis(150);
/// How often it is told how far the agents are.
const TELL_EVERY: Duration = Duration::from_secs(5);
const MEMBER_CONDITIONS: [&str; 5] = ["Accepted", "Joined", "Available", "CredentialsReady", "LabelsSynced"];
/// Verdicts on a spec that time does not change.
const REFUSALS: [ConditionReason; 4] = [
    ConditionReason::Invalid,
    ConditionReason::TooMuch,
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
    labels: Labels,
}

/// Objects of all members that have their labels, and that ought to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Labels {
    done: i64,
    all: i64,
}

/// What is not yet as it should be; no lines when all is.
pub(crate) async fn missing(hub: &Client, fleet: &Fleet) -> anyhow::Result<Missing> {
    let mut missing = Vec::new();
    let mut final_ = false;
    let mut labels = Labels::default();
    let clusters: Api<MemberCluster> = Api::all(hub.clone());
    for member in &fleet.members {
        let cluster = clusters
            .get_opt(&member.name)
            .await
            .context("cannot read MemberClusters")?;
        let status = cluster.and_then(|cluster| cluster.status).unwrap_or_default();
        labels.done += status.labelled_objects.unwrap_or_default();
        labels.all += status.total_objects.unwrap_or_default();
        missing.extend(not_true(
            &format!("MemberCluster {}", member.name),
            &status.conditions,
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
        let (callers, wanted) = (status.callers.map_or(0, |callers| callers.total), shard.callers.len());
        if usize::try_from(callers).unwrap_or_default() < wanted {
            missing.push(format!("{name} has {callers} of {wanted} callers yet"));
        }
    }
    Ok(Missing {
        lines: missing,
        final_,
        labels,
    })
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

/// Waits until nothing is missing; says what is when the time is over, or at once when waiting cannot help. There may be a
/// great deal to label: the time begins anew whenever the agents have got on with it. Returns when it is over.
pub(crate) async fn wait(
    hub: &Client,
    fleet: &Fleet,
    deadline: Instant,
    patience: Duration,
) -> anyhow::Result<Instant> {
    let mut progress = Progress {
        deadline,
        seen: Labels::default(),
        told: Instant::now(),
    };
    loop {
        // Anew each time: the supervisor records what ended and was started again.
        for process in &Fleet::read(&fleet.dir)?.processes {
            process.check()?;
            if process.ends.all > 0 {
                process.has_ended()?;
            }
        }
        let missing = missing(hub, fleet).await?;
        if missing.lines.is_empty() {
            return Ok(progress.deadline);
        }
        let now = Instant::now();
        if let Some(line) = progress.take(missing.labels, now, patience) {
            println!("{line}");
        }
        if missing.final_ || now > progress.deadline {
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

/// How far labelling was, and until when it is waited for more.
struct Progress {
    deadline: Instant,
    seen: Labels,
    told: Instant,
}

impl Progress {
    /// A line to print, now and then.
    fn take(&mut self, labels: Labels, now: Instant, patience: Duration) -> Option<String> {
        if labels.done >= labels.all {
            return None;
        }
        if labels.done > self.seen.done {
            self.seen = labels;
            self.deadline = self.deadline.max(now + patience);
        }
        if now < self.told + TELL_EVERY {
            return None;
        }
        self.told = now;
        Some(format!("- {} of {} objects have their labels", labels.done, labels.all))
    }
}

fn not_true(name: &str, conditions: &[Condition], wanted: &[&str], generation: Option<i64>) -> Vec<String> {
    let unmet = wanted.iter().filter_map(
        |type_| match conditions.iter().find(|condition| condition.type_ == *type_) {
            None => Some(format!("{name}: {type_} is not reported yet")),
            // All that can be had of a member whose API server labels nothing.
            Some(condition) if condition.reason == ConditionReason::NotAtAdmission.to_string() => None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_without_mutating_policies_is_ready() {
        let condition = |reason: &str| Condition {
            type_: "LabelsSynced".to_owned(),
            status: "False".to_owned(),
            reason: reason.to_owned(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH),
        };
        let unmet = |reason| not_true("MemberCluster east", &[condition(reason)], &["LabelsSynced"], None).len();
        assert_eq!((unmet("NotAtAdmission"), unmet("Labelling")), (0, 1));
    }

    #[test]
    fn labelling_that_gets_on_is_waited_for_and_one_that_stands_is_not() {
        let (begun, patience) = (Instant::now(), Duration::from_secs(10));
        let mut progress = Progress {
            deadline: begun + patience,
            seen: Labels::default(),
            told: begun,
        };
        let after = |seconds| begun + Duration::from_secs(seconds);
        let labels = |done| Labels { done, all: 100 };
        assert_eq!(progress.take(labels(10), after(1), patience), None);
        let line = progress.take(labels(40), after(8), patience).unwrap();
        assert_eq!(line, "- 40 of 100 objects have their labels");
        assert_eq!(progress.deadline, after(18));
        progress.take(labels(40), after(17), patience);
        assert_eq!(progress.deadline, after(18), "nothing was labelled meanwhile");
        assert_eq!(progress.take(labels(100), after(40), patience), None);
        assert_eq!(progress.deadline, after(18), "there is nothing left to label");
    }
}
