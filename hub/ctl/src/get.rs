//! `portolanctl get clusters|shards|callers|routers|policies`: what the hub decided, from the status of its objects. Kinds are a
//! router's to tell, see `kinds`.

mod policies;

use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Client, ResourceExt as _};
use portolan_crds::labels::SYSTEM_NAMESPACES;
use portolan_crds::{
    BreakerState, CallerReplica, CallersStatus, ClusterShardStatus, ConditionReason, MemberCluster, Router, RouterPod,
    STATUS_REPLICAS_MAX, ShardingConfig,
};
use serde::Serialize;

use crate::cli::{GetArgs, GetWhat, Output};
use crate::connect::list;
use crate::table::Table;
use crate::{hub, kinds};

/// Longest list of names in one cell; the rest is counted.
const NAMES_SHOWN: usize = 6;
/// Scopes in one cell; the rest is counted.
const SCOPES_SHOWN: usize = 3;

pub(crate) async fn run(args: &GetArgs) -> anyhow::Result<()> {
    let hub = async || -> anyhow::Result<Client> { hub::client(&args.hub, args.router.dir.as_deref()).await };
    match args.what {
        GetWhat::Clusters => args
            .output
            .print(&list::<MemberCluster>(&hub().await?).await?, clusters),
        GetWhat::Shards => {
            let configs = list::<ShardingConfig>(&hub().await?).await?;
            let wide = args.output.output == Output::Wide;
            args.output.print(&configs, |all| shards(all, wide))
        }
        GetWhat::Callers => {
            let configs = list(&hub().await?).await?;
            args.output.print(&callers_of(&configs), |all| callers(all, &configs))
        }
        GetWhat::Routers => args.output.print(&list::<Router>(&hub().await?).await?, routers),
        GetWhat::Policies => policies::run(&hub().await?, args.output).await,
        GetWhat::Kinds => kinds::run(&args.router, args.output).await,
    }
}

fn clusters(clusters: &Vec<MemberCluster>) -> String {
    let mut table = Table::new(&[
        "NAME",
        "ACCEPTED",
        "JOINED",
        "AVAILABLE",
        "CREDENTIALS",
        "LABELS",
        "ALL TOLD",
        "VERSION",
        "LATENCY",
        "NAMESPACES",
        "BREAKERS",
    ]);
    let mut notes = String::new();
    for cluster in clusters {
        table.row(cluster_row(cluster));
        let conditions = cluster.status.as_ref().map_or(&[][..], |status| &status.conditions);
        explain_false(&mut notes, &format!("MemberCluster {}", cluster.name_any()), conditions);
    }
    format!("{table}{notes}")
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
        condition("NothingLeftOut"),
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

fn shards(configs: &Vec<ShardingConfig>, wide: bool) -> String {
    let mut head = vec![
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
    ];
    if wide {
        head.extend(["LABELS", "LEAVES OUT"]);
    }
    let mut table = Table::new(&head);
    let mut notes = String::new();
    for config in configs {
        for row in shard_rows(config, wide) {
            table.row(row);
        }
        let conditions = config.status.as_ref().map_or(&[][..], |status| &status.conditions);
        explain_false(&mut notes, &format!("ShardingConfig {}", name_of(config)), conditions);
    }
    if wide {
        notes.push_str(COLUMNS);
    }
    format!("{table}{notes}")
}

/// One row for each cluster of the shard; what is about the shard stands in the first.
fn shard_rows(config: &ShardingConfig, wide: bool) -> Vec<Vec<String>> {
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
        return vec![[left, vec![String::new(); if wide { 4 } else { 2 }]].concat()];
    }
    let rows = status.clusters.iter().enumerate().map(|(at, cluster)| {
        let mut row = if at == 0 {
            left.clone()
        } else {
            vec![" ".to_owned(); left.len()]
        };
        let owned = usize::try_from(cluster.namespace_count).unwrap_or_default();
        row.extend([cluster.name.clone(), short_list(&cluster.namespaces, owned)]);
        if wide {
            let labels = if cluster.labels_synced {
                "complete"
            } else {
                "incomplete"
            };
            row.extend([labels.to_owned(), left_out(cluster)]);
        }
        row
    });
    rows.collect()
}

/// What the columns of the wide table mean, under it and apart from what was found.
const COLUMNS: &str = "
Columns:
  LABELS      complete: the member itself chooses by labels what callers see; incomplete: the router does so by namespace, for some
              kinds (portolanctl explain)
  LEAVES OUT  namespaces that a request over all namespaces does not show, although spec.clusters chooses them: system namespaces, unless
              spec.clusters[].namespaces names them, and those that the shard has in another cluster (shadowed)
";

/// What a request over all namespaces does not show of the cluster, though it is there. Of a shard that owns more than a status
/// names, a system namespace may be among the rest: it is not told.
fn left_out(cluster: &ClusterShardStatus) -> String {
    let named = i64::try_from(cluster.namespaces.len()).is_ok_and(|named| named == cluster.namespace_count);
    let is_out = |system: &&str| named && !cluster.namespaces.iter().any(|name| name == system);
    let system: Vec<_> = SYSTEM_NAMESPACES.into_iter().filter(is_out).collect();
    let mut parts = Vec::new();
    if !system.is_empty() {
        parts.push(format!("system: {}", system.join(", ")));
    }
    if !cluster.shadowed.is_empty() {
        parts.push(format!(
            "shadowed: {}",
            short_list(&cluster.shadowed, cluster.shadowed.len())
        ));
    }
    parts.join("; ")
}

/// A caller, and whose it is.
#[derive(Serialize)]
struct Caller<'a> {
    #[serde(flatten)]
    replica: &'a CallerReplica,
    shard: String,
}

fn callers_of(configs: &[ShardingConfig]) -> Vec<Caller<'_>> {
    let of_config = |config| {
        let shard = name_of(config);
        let callers = config.status.iter().flat_map(|status| &status.callers);
        let replicas = callers.flat_map(|callers| &callers.replicas);
        replicas.map(move |replica| Caller {
            replica,
            shard: shard.clone(),
        })
    };
    configs.iter().flat_map(of_config).collect()
}

fn callers(callers: &[Caller<'_>], configs: &[ShardingConfig]) -> String {
    let mut table = Table::new(&["CALLER", "SHARD", "UID", "VERSION", "REJECTED"]);
    for Caller { replica, shard } in callers {
        let caller = format!("{}/{}/{}", replica.cluster, replica.namespace, replica.pod);
        let (version, nack) = (replica.version.clone(), replica.nack.clone());
        let (version, nack) = (version.unwrap_or_default(), nack.unwrap_or_default());
        table.row(vec![caller, shard.clone(), replica.uid.clone(), version, nack]);
    }
    let mut notes = String::new();
    for config in configs {
        let callers = config.status.as_ref().and_then(|status| status.callers.as_ref());
        let named = |callers: &CallersStatus| i64::try_from(callers.replicas.len()).unwrap_or(i64::MAX);
        let unnamed = callers.map_or(0, |callers| callers.total - named(callers));
        if unnamed > 0 {
            let shard = name_of(config);
            let _ = writeln!(
                notes,
                "{unnamed} more callers of {shard}: a status names {STATUS_REPLICAS_MAX}, those that are not current first"
            );
        }
    }
    format!("{table}{notes}")
}

fn name_of(config: &ShardingConfig) -> String {
    format!("{}/{}", config.namespace().unwrap_or_default(), config.name_any())
}

fn routers(routers: &Vec<Router>) -> String {
    let mut table = Table::new(&["NAME", "CONNECTED", "SEES", "LAST SEEN", "VERSION", "RUNS IN"]);
    for router in routers {
        table.row(router_row(router, Timestamp::now()));
    }
    format!("{table}")
}

/// Minutes in which the hub notes of each router that stays that it is there: five, and for as long as other figures wait.
const NOTED_WITHIN: i64 = 7;

fn router_row(router: &Router, now: Timestamp) -> Vec<String> {
    let status = router.status.clone().unwrap_or_default();
    let connected = condition(&status.conditions, "Connected");
    let seen = status.last_seen.as_ref().map(|seen| {
        let minutes = now.duration_since(seen.0).as_mins();
        // Of one that is connected the hub notes it every few minutes.
        if minutes < 2 || (connected == "True" && minutes < NOTED_WITHIN) {
            "just now".to_owned()
        } else {
            format!("{minutes} min ago")
        }
    });
    vec![
        router.name_any(),
        connected,
        scopes(&router.spec.subscription),
        seen.unwrap_or_default(),
        status.version.unwrap_or_default(),
        router.spec.pod.as_ref().map(pod).unwrap_or_default(),
    ]
}

fn scopes(all: &[String]) -> String {
    let mut text = all.iter().take(SCOPES_SHOWN).cloned().collect::<Vec<_>>().join(",");
    if all.len() > SCOPES_SHOWN {
        let _ = write!(text, " and {} more", all.len() - SCOPES_SHOWN);
    }
    text
}

fn pod(pod: &RouterPod) -> String {
    match &pod.cluster {
        Some(cluster) => format!("Pod {} of member {cluster}", pod.name),
        None => format!("Pod {} of the hub", pod.name),
    }
}

fn condition(conditions: &[Condition], type_: &str) -> String {
    conditions
        .iter()
        .find(|condition| condition.type_ == type_)
        .map_or_else(String::new, |condition| condition.status.clone())
}

/// Under the table: why a condition does not hold, in the hub's words.
fn explain_false(notes: &mut String, object: &str, conditions: &[Condition]) {
    for condition in worth_telling(conditions) {
        let Condition {
            type_,
            status,
            reason,
            message,
            ..
        } = condition;
        let _ = writeln!(notes, "{object}: {type_}={status} {reason}: {message}");
    }
}

/// Conditions that do not hold. Where a spec is refused and no earlier one is in force, the others know nothing, and only refer
/// to the refusal.
fn worth_telling(conditions: &[Condition]) -> impl Iterator<Item = &Condition> {
    let refused = conditions
        .iter()
        .any(|condition| condition.type_ == "Accepted" && condition.status == "False");
    conditions.iter().filter(move |condition| {
        let refers = condition.status == "Unknown" && condition.reason == ConditionReason::Invalid.to_string();
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

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use portolan_crds::RouterSpec;

    use super::*;

    #[test]
    fn what_all_namespaces_leave_out_is_named_with_its_reason() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut config = ShardingConfig::new("blue", portolan_crds::ShardingConfigSpec::default());
        let east = ClusterShardStatus {
            name: "east".to_owned(),
            namespace_count: 2,
            namespaces: names(&["kube-system", "ns-a"]),
            shadowed: names(&["ns-b"]),
            ..serde_json::from_value(serde_json::json!({"name": ""})).unwrap()
        };
        config.status.get_or_insert_default().clusters = vec![east];
        let wide = shards(&vec![config.clone()], true);
        for words in [
            "LABELS       LEAVES OUT",
            "incomplete   system: kube-public, kube-node-lease, portolan-system, portolan-routers; shadowed: ns-b\n",
            "\nColumns:\n  LABELS ",
        ] {
            assert!(wide.contains(words), "{wide}");
        }
        assert!(!shards(&vec![config], false).contains("LEAVES OUT"));
    }

    #[test]
    fn what_is_not_known_of_a_router_is_left_empty() {
        let subscription = ["a", "b", "c", "d"].map(|name| format!("shard:ops/{name}"));
        let spec = RouterSpec {
            subscription: subscription.to_vec(),
            ..RouterSpec::default()
        };
        let told = routers(&vec![Router::new("gateway", spec)]);
        let lines = [
            "NAME      CONNECTED   SEES                                              LAST SEEN   VERSION   RUNS IN",
            "gateway   -           shard:ops/a,shard:ops/b,shard:ops/c and 1 more   -           -         -",
        ];
        assert_eq!(
            told.split_whitespace().collect::<Vec<_>>(),
            lines.join("\n").split_whitespace().collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_router_that_is_connected_is_there_now_unless_the_hub_notes_nothing() {
        let now = Timestamp::from_second(100_000).unwrap();
        let seen = |minutes: i64, connected: &str| {
            let mut router = Router::new("gateway", RouterSpec::default());
            let status = router.status.get_or_insert_default();
            status.last_seen = Timestamp::from_second(100_000 - minutes * 60).ok().map(Time);
            status.conditions = vec![Condition {
                last_transition_time: Time(Timestamp::UNIX_EPOCH),
                message: String::new(),
                observed_generation: None,
                reason: "Ok".to_owned(),
                status: connected.to_owned(),
                type_: "Connected".to_owned(),
            }];
            router_row(&router, now)[3].clone()
        };
        let known =
            [(1, "False"), (5, "True"), (5, "False"), (120, "True")].map(|(minutes, status)| seen(minutes, status));
        assert_eq!(known, ["just now", "just now", "5 min ago", "120 min ago"]);
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
