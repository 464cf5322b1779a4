//! `portolanctl shards who`: whose a namespace is, and why.

use std::fmt::Write as _;

use anyhow::bail;
use portolan_crds::ShardName;
use portolan_crds::names::check_dns_label;
use serde_json::Value;

use super::{ask, items, texts};
use crate::admin::encode;
use crate::cli::{HubAdminArgs, WhoArgs};
use crate::router::text;
use crate::table::Table;

pub(super) async fn run(args: &WhoArgs) -> anyhow::Result<()> {
    let answer = pairs(&args.hub, (args.cluster.as_deref(), &args.namespace), None).await?;
    if items(&answer["pairs"]).is_empty() {
        bail!(
            "no member cluster that the hub knows has a namespace {}",
            args.namespace
        );
    }
    args.output.print(&answer, report)
}

/// What the hub says of the namespace, in all members that have it or in one: of all operators, or of the one whose shard this is.
pub(super) async fn pairs(
    hub: &HubAdminArgs,
    (cluster, namespace): (Option<&str>, &str),
    shard: Option<&ShardName>,
) -> anyhow::Result<Value> {
    check_dns_label(namespace)?;
    let mut question = format!("/shards/who?namespace={}", encode(namespace));
    if let Some(cluster) = cluster {
        let _ = write!(question, "&cluster={}", encode(cluster));
    }
    if let Some(shard) = shard {
        let _ = write!(question, "&shard={}", encode(&shard.to_string()));
    }
    ask(hub, &question).await
}

fn report(answer: &Value) -> String {
    let mut table = Table::new(&["CLUSTER", "OPERATOR", "OWNER", "STATE", "SINCE", "FIELD"]);
    let mut notes = String::new();
    for pair in items(&answer["pairs"]) {
        let since = pair["viewRevision"].as_u64().map(|revision| revision.to_string());
        let [cluster, operator, owner, state, field] =
            ["cluster", "operator", "owner", "state", "field"].map(|key| text(&pair[key]));
        notes += &if operator.is_empty() {
            why(&cluster, pair)
        } else {
            why(&format!("{cluster}, {operator}"), pair)
        };
        table.row(vec![cluster, operator, owner, state, since.unwrap_or_default(), field]);
    }
    format!("{table}{notes}")
}

fn why(cluster: &str, pair: &Value) -> String {
    let mut told = format!("{cluster}: {}\n", text(&pair["because"]));
    for waiting in items(&pair["waiting"]) {
        let since = waiting["since"].as_str().map(|since| format!(" since {since}"));
        let (shard, owner) = (text(&waiting["shard"]), text(&pair["owner"]));
        let _ = writeln!(
            told,
            "{cluster}: {shard} waits for {owner}{}",
            since.unwrap_or_default()
        );
    }
    let said = [
        (
            "heldUpBy",
            "routers that have not acknowledged yet that it is let go of",
        ),
        ("refusedTo", "asked for by shards whose present spec is refused"),
        (
            "shadowedIn",
            "asked for by shards that have a namespace of that name in another member",
        ),
    ];
    for (key, words) in said {
        let names = texts(&pair[key]);
        if !names.is_empty() {
            let _ = writeln!(told, "{cluster}: {words}: {}", names.join(", "));
        }
    }
    if pair["exists"].is_null() {
        let _ = writeln!(
            told,
            "{cluster}: its agent has not told this hub yet which namespaces it has"
        );
    }
    told
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn owner_reason_and_who_waits_are_told() {
        let answer = json!({"namespace": "ns-b", "pairs": [
            {
                "cluster": "east", "owner": "ops/a", "state": "Releasing", "viewRevision": 7, "field": null, "exists": true,
                "because": "ops/a asks for it no more, and lets go of it",
                "waiting": [{"shard": "ops/b", "since": "2026-03-01T10:00:00Z"}], "heldUpBy": ["gateway"],
                "refusedTo": [], "shadowedIn": [],
            },
            {"cluster": "west", "owner": null, "state": "Free", "field": null, "because": "no shard asks for it", "exists": null},
        ]});
        let lines = [
            "CLUSTER   OPERATOR   OWNER   STATE       SINCE   FIELD",
            "east      -          ops/a   Releasing   7       -",
            "west      -          -       Free        -       -",
            "east: ops/a asks for it no more, and lets go of it",
            "east: ops/b waits for ops/a since 2026-03-01T10:00:00Z",
            "east: routers that have not acknowledged yet that it is let go of: gateway",
            "west: no shard asks for it",
            "west: its agent has not told this hub yet which namespaces it has",
        ];
        assert_eq!(report(&answer).lines().collect::<Vec<_>>(), lines);
    }
}
