//! `portolanctl shards status`: how each shard stands, once or for as long as one looks.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::bail;
use jiff::Timestamp;
use serde_json::Value;

use super::{ask, first_of, items, texts};
use crate::cli::{Output, ShardsStatusArgs};
use crate::router::text;
use crate::table::{Table, age};

/// Between two looks with `-w`: the hub's page is no stream.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) async fn run(args: &ShardsStatusArgs) -> anyhow::Result<()> {
    let mut last = None;
    loop {
        let answer = look(args).await?;
        if last.as_ref() != Some(&answer) {
            if args.watch && args.output.output != Output::Json {
                println!("{:.0}", Timestamp::now());
            }
            args.output.print(&answer, |answer| report(answer, Timestamp::now()))?;
            last = Some(answer);
        }
        if !args.watch {
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn look(args: &ShardsStatusArgs) -> anyhow::Result<Value> {
    let mut answer = ask(&args.hub, "/shards").await?;
    if let (Some(shard), Some(all)) = (&args.shard, answer["shards"].as_array_mut()) {
        let name = shard.to_string();
        all.retain(|one| one["shard"] == *name);
        if all.is_empty() {
            bail!("there is no ShardingConfig {name}: see portolanctl get shards");
        }
    }
    Ok(answer)
}

fn report(answer: &Value, now: Timestamp) -> String {
    let mut table = Table::new(&[
        "SHARD",
        "PAIRS",
        "OBJECTS",
        "WAITS FOR",
        "LETS GO OF",
        "ROUTERS BEHIND",
        "CALLERS",
        "LEASE",
    ]);
    let mut notes = String::new();
    for shard in items(&answer["shards"]) {
        table.row(row(shard));
        notes += &of_shard(shard, now);
    }
    format!("{table}{notes}")
}

fn row(shard: &Value) -> Vec<String> {
    let pairs = shard["pairs"].as_object().into_iter().flatten();
    let pairs: Vec<_> = pairs.map(|(cluster, count)| format!("{cluster} {count}")).collect();
    let callers = &shard["callers"];
    let lease = &shard["lease"];
    let lease = lease["name"].as_str().map(|name| match lease["cluster"].as_str() {
        Some(cluster) => format!("{name} in {cluster}"),
        None => format!("{name} in each home cluster"),
    });
    let count = |key: &str| {
        shard[key]
            .as_u64()
            .filter(|count| *count > 0)
            .map(|count| count.to_string())
    };
    vec![
        text(&shard["shard"]),
        pairs.join(", "),
        // Of a child of a root that is shared out by them, once they are counted.
        shard["objects"]
            .as_u64()
            .map(|count| count.to_string())
            .unwrap_or_default(),
        count("waitingCount").unwrap_or_default(),
        count("releasingCount").unwrap_or_default(),
        texts(&shard["lagging"]).join(", "),
        format!("{} of {}", callers["current"], callers["total"]),
        lease.unwrap_or_default(),
    ]
}

/// Under the table: who waits for whom, and what is not well.
fn of_shard(shard: &Value, now: Timestamp) -> String {
    let name = text(&shard["shard"]);
    let mut told = String::new();
    if shard["deleting"] == true {
        let _ = writeln!(
            told,
            "{name}: is being deleted, and goes once routers have let go of what it has"
        );
    }
    if let Some(refusal) = shard["refusal"].as_str() {
        let rest = match shard["inForce"].as_i64() {
            Some(generation) => format!("generation {generation} stays in force"),
            None => "nothing is in force".to_owned(),
        };
        let _ = writeln!(told, "{name}: refused, {refusal}; {rest}");
    }
    let waiting = pairs(shard, "waiting", "of");
    if !waiting.is_empty() {
        let since = shard["waitingSince"].as_str().and_then(|since| since.parse().ok());
        let since = since.map(|since| format!(" for {}", age(now, since)));
        let waiting = list(&waiting, &shard["waitingCount"]);
        let _ = writeln!(told, "{name}: waits{} for {waiting}", since.unwrap_or_default());
    }
    told += &released(&name, shard, now);
    let moving = &shard["lease"]["moving"];
    if !moving.is_null() {
        let [from, to, waits] = ["from", "to", "waitsFor"].map(|key| text(&moving[key]));
        let _ = writeln!(
            told,
            "{name}: its leader lock is on its way from {from} to {to}, and waits for {waits}"
        );
    }
    for (key, type_) in [("oneLeader", "OneLeader"), ("replicated", "Replicated")] {
        let condition = &shard[key];
        if condition["status"].as_str().is_some_and(|status| status != "True") {
            let _ = writeln!(
                told,
                "{name}: {type_}={}: {}",
                text(&condition["status"]),
                text(&condition["message"])
            );
        }
    }
    told
}

/// What a shard lets go of, and what that waits for.
fn released(name: &str, shard: &Value, now: Timestamp) -> String {
    let releasing = pairs(shard, "releasing", "to");
    if releasing.is_empty() {
        return String::new();
    }
    let all = list(&releasing, &shard["releasingCount"]);
    let mut told = format!("{name}: lets go of {all}\n");
    for (reason, of) in waits(items(&shard["releasing"]), now) {
        let _ = writeln!(told, "{name}: waits for {reason}: {of}");
    }
    let held_up_by = texts(&shard["heldUpBy"]);
    if !held_up_by.is_empty() {
        let _ = writeln!(told, "{name}: not acknowledged yet by router {}", held_up_by.join(", "));
    }
    told
}

/// Each pair under `key`, with the shard that is its `other` party.
fn pairs(shard: &Value, key: &str, other: &str) -> Vec<String> {
    let pair = |one: &Value| match one[other].as_str() {
        Some(shard) => format!("{} ({other} {shard})", text(&one["pair"])),
        None => text(&one["pair"]),
    };
    items(&shard[key]).iter().map(pair).collect()
}

/// The first few, and how many there are beside.
fn list(names: &[String], count: &Value) -> String {
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let all = count.as_u64().and_then(|count| usize::try_from(count).ok());
    first_of(&names, all.unwrap_or(names.len()))
}

/// What releases wait for, with the pairs that wait for it and how long the first of them has.
fn waits(releasing: &[Value], now: Timestamp) -> BTreeMap<String, String> {
    let mut by_reason = BTreeMap::<String, Vec<&Value>>::new();
    for one in releasing {
        if let Some(reason) = one["waitsFor"].as_str() {
            by_reason.entry(reason.to_owned()).or_default().push(one);
        }
    }
    let of = |all: Vec<&Value>| {
        let since = all.iter().filter_map(|one| one["since"].as_str()?.parse().ok()).min();
        let since = since.map(|since| format!(" for {}", age(now, since)));
        let pairs: Vec<_> = all.iter().filter_map(|one| one["pair"].as_str()).collect();
        format!("{}{}", first_of(&pairs, pairs.len()), since.unwrap_or_default())
    };
    by_reason.into_iter().map(|(reason, all)| (reason, of(all))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_sides_of_a_handover_and_what_is_refused_are_told() {
        let answer = json!({"shards": [
            {
                "shard": "ops/a", "pairs": {"east": 2, "west": 1}, "objects": 0, "waitingCount": 0, "waiting": [], "releasingCount": 1,
                "releasing": [{"pair": "east/ns-b", "to": "ops/b", "waitsFor": "routers gateway to let go of it", "since": "2026-03-01T10:00:20Z"}], "heldUpBy": ["gateway"], "lagging": ["gateway"],
                "callers": {"total": 2, "current": 1}, "lease": {"name": "lock", "cluster": "east", "moving": {"from": "lock in west", "to": "lock in east", "waitsFor": "routers gateway"}},
                "oneLeader": {"status": "True", "message": ""}, "inForce": 3, "refusal": null,
            },
            {
                "shard": "ops/b", "pairs": {}, "waitingCount": 1, "waiting": [{"pair": "east/ns-b", "of": "ops/a"}],
                "waitingSince": "2026-03-01T10:00:00Z", "releasingCount": 0, "releasing": [], "lagging": [],
                "callers": {"total": 0, "current": 0}, "lease": null, "inForce": 1, "refusal": "Overlap: spec.clusters: x",
                "oneLeader": {"status": "False", "message": "two"}, "replicated": {"status": "False", "message": "west"},
            },
        ]});
        let lines = [
            "SHARD   PAIRS            OBJECTS   WAITS FOR   LETS GO OF   ROUTERS BEHIND   CALLERS   LEASE",
            "ops/a   east 2, west 1   0         -           1            gateway          1 of 2    lock in east",
            "ops/b   -                -         1           -            -                0 of 0    -",
            "ops/a: lets go of east/ns-b (to ops/b)",
            "ops/a: waits for routers gateway to let go of it: east/ns-b for 10s",
            "ops/a: not acknowledged yet by router gateway",
            "ops/a: its leader lock is on its way from lock in west to lock in east, and waits for routers gateway",
            "ops/b: refused, Overlap: spec.clusters: x; generation 1 stays in force",
            "ops/b: waits for 30s for east/ns-b (of ops/a)",
            "ops/b: OneLeader=False: two",
            "ops/b: Replicated=False: west",
        ];
        let now = "2026-03-01T10:00:30Z".parse().unwrap();
        assert_eq!(report(&answer, now).lines().collect::<Vec<_>>(), lines);
    }
}
