//! `portolanctl get clusters|shards|callers`: what the hub decided, from the status of its objects. Kinds are a router's to
//! tell, see `kinds`.

use std::path::PathBuf;

use anyhow::Context as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::{BreakerState, CallersStatus, ConditionReason, MemberCluster, STATUS_REPLICAS_MAX, ShardingConfig};
use serde::Serialize;

use crate::cli::{GetArgs, GetWhat};
use crate::connect::connect;
use crate::dev::fleet::Fleet;
use crate::kinds;
use crate::table::Table;

/// Longest list of names in one cell; the rest is counted.
const NAMES_SHOWN: usize = 6;

pub(crate) async fn run(args: &GetArgs) -> anyhow::Result<()> {
    if args.what == GetWhat::Kinds {
        return kinds::run(&args.router, args.output).await;
    }
    let hub = connect("the hub", hub_kubeconfig(args)?.as_deref()).await?;
    let json = args.output.is_json();
    match args.what {
        GetWhat::Clusters => clusters(&hub.client, json).await,
        GetWhat::Shards => shards(&hub.client, json).await,
        GetWhat::Callers => callers(&hub.client, json).await,
        GetWhat::Kinds => Ok(()),
    }
}

/// The one that was given, else that of the fleet in `--dir`, else (`None`) kubectl's.
fn hub_kubeconfig(args: &GetArgs) -> anyhow::Result<Option<PathBuf>> {
    match (&args.hub.hub_kubeconfig, &args.router.dir) {
        (Some(file), _) => Ok(Some(file.clone())),
        (None, Some(dir)) => Ok(Some(Fleet::read(dir)?.hub_kubeconfig)),
        (None, None) => Ok(None),
    }
}

async fn clusters(hub: &Client, json: bool) -> anyhow::Result<()> {
    let api: Api<MemberCluster> = Api::all(hub.clone());
    let clusters = api
        .list(&ListParams::default())
        .await
        .context("cannot list MemberClusters")?
        .items;
    if json {
        return print_json(&clusters);
    }
    let mut table = Table::new(&[
        "NAME",
        "ACCEPTED",
        "JOINED",
        "AVAILABLE",
        "CREDENTIALS",
        "LABELS",
        "VERSION",
        "LATENCY",
        "NAMESPACES",
        "BREAKERS",
    ]);
    for cluster in &clusters {
        table.row(cluster_row(cluster));
    }
    table.print();
    for cluster in &clusters {
        let conditions = cluster
            .status
            .as_ref()
            .map(|status| status.conditions.as_slice())
            .unwrap_or_default();
        explain_false("MemberCluster", &cluster.name_any(), conditions);
    }
    Ok(())
}

fn cluster_row(cluster: &MemberCluster) -> Vec<String> {
    let status = cluster.status.clone().unwrap_or_default();
    let condition = |type_: &str| condition(&status.conditions, type_);
    let not_closed = status
        .breakers
        .iter()
        .filter(|breaker| breaker.state != BreakerState::Closed);
    let breakers: Vec<String> = not_closed
        .map(|breaker| format!("{:?} {:?}", breaker.traffic_class, breaker.state))
        .collect();
    vec![
        cluster.name_any(),
        condition("Accepted"),
        condition("Joined"),
        condition("Available"),
        condition("CredentialsReady"),
        condition("LabelsSynced"),
        status.kubernetes_version.clone().unwrap_or_default(),
        status
            .api_latency_milliseconds
            .map(|ms| format!("{ms}ms"))
            .unwrap_or_default(),
        status.namespaces.map(|count| count.to_string()).unwrap_or_default(),
        if breakers.is_empty() {
            "closed".into()
        } else {
            breakers.join(", ")
        },
    ]
}

async fn shards(hub: &Client, json: bool) -> anyhow::Result<()> {
    let configs = list_shards(hub).await?;
    if json {
        return print_json(&configs);
    }
    let mut table = Table::new(&[
        "NAMESPACE",
        "NAME",
        "ACCEPTED",
        "DISTRIBUTED",
        "COMPLETE",
        "REACHABLE",
        "RESOLVED",
        "CALLERS",
        "CLUSTER",
        "OWNS",
    ]);
    for row in configs.iter().flat_map(shard_rows) {
        table.row(row);
    }
    table.print();
    for config in &configs {
        let name = format!("{}/{}", config.namespace().unwrap_or_default(), config.name_any());
        explain_false(
            "ShardingConfig",
            &name,
            &config.status.as_ref().map(|s| s.conditions.clone()).unwrap_or_default(),
        );
    }
    Ok(())
}

/// One row for each cluster of the shard; what is about the shard stands in the first.
fn shard_rows(config: &ShardingConfig) -> Vec<Vec<String>> {
    let status = config.status.clone().unwrap_or_default();
    let condition = |type_: &str| condition(&status.conditions, type_);
    let callers = status
        .callers
        .as_ref()
        .map(|callers| format!("{}/{}", callers.current, callers.total))
        .unwrap_or_default();
    let left = vec![
        config.namespace().unwrap_or_default(),
        config.name_any(),
        condition("Accepted"),
        condition("Distributed"),
        condition("Complete"),
        condition("MembersReachable"),
        condition("NamespacesResolved"),
        callers,
    ];
    if status.clusters.is_empty() {
        return vec![[left, vec![String::new(); 2]].concat()];
    }
    let rows = status.clusters.iter().enumerate().map(|(at, cluster)| {
        let mut row = if at == 0 {
            left.clone()
        } else {
            vec![" ".to_owned(); left.len()]
        };
        let owned = usize::try_from(cluster.namespace_count).unwrap_or_default();
        row.extend([cluster.name.clone(), short_list(&cluster.namespaces, owned)]);
        row
    });
    rows.collect()
}

async fn callers(hub: &Client, json: bool) -> anyhow::Result<()> {
    let configs = list_shards(hub).await?;
    let mut table = Table::new(&["CALLER", "SHARD", "UID", "VERSION", "REJECTED"]);
    let mut all = Vec::new();
    for config in &configs {
        let shard = format!("{}/{}", config.namespace().unwrap_or_default(), config.name_any());
        for replica in config
            .status
            .iter()
            .flat_map(|status| &status.callers)
            .flat_map(|callers| &callers.replicas)
        {
            let mut value = serde_json::to_value(replica)?;
            value["shard"] = shard.clone().into();
            let text = |key: &str| value[key].as_str().map_or_else(String::new, ToOwned::to_owned);
            let caller = format!("{}/{}/{}", text("cluster"), text("namespace"), text("pod"));
            table.row(vec![caller, shard.clone(), text("uid"), text("version"), text("nack")]);
            all.push(value);
        }
    }
    if json {
        return print_json(&all);
    }
    table.print();
    for config in &configs {
        let callers = config.status.as_ref().and_then(|status| status.callers.as_ref());
        let named = |callers: &CallersStatus| i64::try_from(callers.replicas.len()).unwrap_or(i64::MAX);
        let unnamed = callers.map_or(0, |callers| callers.total - named(callers));
        if unnamed > 0 {
            println!(
                "{unnamed} more callers of {}/{}: a status names {STATUS_REPLICAS_MAX}, those that are not current first",
                config.namespace().unwrap_or_default(),
                config.name_any()
            );
        }
    }
    Ok(())
}

async fn list_shards(hub: &Client) -> anyhow::Result<Vec<ShardingConfig>> {
    let api: Api<ShardingConfig> = Api::all(hub.clone());
    Ok(api
        .list(&ListParams::default())
        .await
        .context("cannot list ShardingConfigs")?
        .items)
}

fn condition(conditions: &[Condition], type_: &str) -> String {
    conditions
        .iter()
        .find(|condition| condition.type_ == type_)
        .map_or_else(String::new, |condition| condition.status.clone())
}

/// Under the table: why a condition does not hold, in the hub's words.
fn explain_false(kind: &str, name: &str, conditions: &[Condition]) {
    for condition in worth_telling(conditions) {
        println!(
            "{kind} {name}: {}={} {}: {}",
            condition.type_, condition.status, condition.reason, condition.message
        );
    }
}

/// Conditions that do not hold. Where a spec is refused and no earlier one is in force, the others know nothing, and only refer
/// to the refusal.
fn worth_telling(conditions: &[Condition]) -> impl Iterator<Item = &Condition> {
    let refused = conditions
        .iter()
        .any(|condition| condition.type_ == "Accepted" && condition.status == "False");
    conditions.iter().filter(move |condition| {
        let refers = condition.status == "Unknown" && condition.reason == ConditionReason::Invalid.as_str();
        condition.status != "True" && !(refused && refers)
    })
}

/// `all`: how many there are, of which a status names the first.
fn short_list(names: &[String], all: usize) -> String {
    let shown: Vec<_> = names.iter().take(NAMES_SHOWN).cloned().collect();
    let rest = all.max(names.len()).checked_sub(shown.len());
    let shown = shown.join(", ");
    match rest {
        Some(rest) if rest > 0 => format!("{shown} and {rest} more"),
        _ => shown,
    }
}

fn print_json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::cli::{HubArgs, Output, OutputArgs, RouterArgs};

    fn asked(dir: Option<&Path>, hub_kubeconfig: Option<&str>) -> anyhow::Result<Option<PathBuf>> {
        super::hub_kubeconfig(&GetArgs {
            what: GetWhat::Shards,
            hub: HubArgs {
                hub_kubeconfig: hub_kubeconfig.map(PathBuf::from),
            },
            router: RouterArgs {
                router_admin: String::new(),
                dir: dir.map(Path::to_path_buf),
            },
            output: OutputArgs { output: Output::Table },
        })
    }

    #[test]
    fn the_hub_is_that_of_the_fleet_unless_another_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = asked(Some(dir.path()), None).unwrap_err().to_string();
        assert!(error.starts_with("no fleet in "), "{error}");
        let fleet = Fleet {
            dir: dir.path().to_path_buf(),
            hub_kubeconfig: "/kube/hub".into(),
            ..Fleet::default()
        };
        fleet.write().unwrap();
        assert_eq!(asked(Some(dir.path()), None).unwrap(), Some("/kube/hub".into()));
        let other = asked(Some(dir.path()), Some("/kube/other"));
        assert_eq!(other.unwrap(), Some("/kube/other".into()));
        assert_eq!(asked(None, None).unwrap(), None);
    }

    #[test]
    fn of_a_refused_spec_only_the_refusal_is_told() {
        let condition = |type_: &str, status: &str, reason: &str| Condition {
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
            message: String::new(),
            observed_generation: None,
            reason: reason.to_owned(),
            status: status.to_owned(),
            type_: type_.to_owned(),
        };
        let told = |conditions: &[Condition]| -> Vec<String> {
            worth_telling(conditions)
                .map(|condition| condition.type_.clone())
                .collect()
        };
        let unknown = condition("Distributed", "Unknown", "Invalid");
        let refused = condition("Accepted", "False", "Overlap");
        assert_eq!(told(&[refused.clone(), unknown.clone()]), ["Accepted"]);
        // An earlier spec is in force: what is said is of that one.
        let of_earlier = condition("MembersReachable", "False", "Unreachable");
        assert_eq!(told(&[refused, of_earlier.clone()]), ["Accepted", "MembersReachable"]);
        let accepted = condition("Accepted", "True", "Accepted");
        assert_eq!(
            told(&[accepted, unknown, of_earlier]),
            ["Distributed", "MembersReachable"]
        );
    }
}
