//! `portolanctl watch-state`: the merged watches that are open on a router, leg by leg, as its admin page `/watches` tells.

use std::fmt::Write as _;
use std::time::Duration;

use portolan_crds::duration::format_duration;
use serde_json::Value;

use crate::cli::WatchStateArgs;
use crate::router::{ask, kind_of, text};
use crate::table::Table;

/// Columns that are about the watch and not about one leg of it.
const OF_WATCH: usize = 6;

pub(crate) async fn run(args: &WatchStateArgs) -> anyhow::Result<()> {
    let answer = ask(&args.router, "/watches").await?;
    args.output.print(&answer, report)
}

fn report(answer: &Value) -> String {
    let mut table = Table::new(&[
        "ID", "CALLER", "SHARD", "RESOURCE", "AGE", "EVENTS", "CLUSTER", "STATE", "SLOT", "LAG", "RESTARTS",
    ]);
    let watches = answer["watches"].as_array().map(Vec::as_slice).unwrap_or_default();
    if watches.is_empty() {
        return "no merged watch is open\n".to_owned();
    }
    let mut notes = String::new();
    for watch in watches {
        let mut left = of_watch(watch);
        for leg in watch["legs"].as_array().into_iter().flatten() {
            left.extend(of_leg(leg));
            table.row(std::mem::replace(&mut left, vec![" ".to_owned(); OF_WATCH]));
            if let Some(why) = leg["why"].as_str() {
                let _ = writeln!(notes, "watch {}, {}: {why}", watch["id"], text(&leg["cluster"]));
            }
        }
    }
    format!("{table}{notes}")
}

fn of_watch(watch: &Value) -> Vec<String> {
    let mut resource = kind_of(watch);
    for (flag, part) in [("-n", &watch["namespace"]), ("name", &watch["name"])] {
        if let Some(part) = part.as_str() {
            resource = format!("{resource} {flag} {part}");
        }
    }
    vec![
        watch["id"].to_string(),
        text(&watch["caller"]),
        text(&watch["shard"]),
        resource,
        seconds(&watch["ageSeconds"]),
        watch["events"].to_string(),
    ]
}

fn of_leg(leg: &Value) -> [String; 5] {
    [
        text(&leg["cluster"]),
        text(&leg["state"]),
        text(&leg["slot"]),
        seconds(&leg["lagSeconds"]),
        leg["restarts"].to_string(),
    ]
}

/// Whole seconds, as people write them.
fn seconds(value: &Value) -> String {
    let exact = value
        .as_f64()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    exact.map_or_else(String::new, |exact| {
        format_duration(Duration::from_secs(exact.as_secs()))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_leg_has_a_line_and_those_in_trouble_a_reason() {
        let answer = json!({"watches": [{
            "id": 7, "caller": "east/ops/op-0", "shard": "ops/a", "group": "apps", "version": "v1", "resource": "deployments",
            "namespace": null, "name": null, "fenced": true, "ageSeconds": 252, "bytes": 9, "events": 31, "bookmarks": 2,
            "legs": [
                {"cluster": "east", "state": "live", "slot": "8121", "lagSeconds": 3.25, "restarts": 0, "why": null},
                {"cluster": "west", "state": "held", "slot": null, "lagSeconds": 62.0, "restarts": 5, "why": "connection refused"},
            ],
        }]});
        let lines = [
            "ID   CALLER          SHARD   RESOURCE           AGE     EVENTS   CLUSTER   STATE   SLOT   LAG    RESTARTS",
            "7    east/ops/op-0   ops/a   deployments.apps   4m12s   31       east      live    8121   3s     0",
            "                                                                 west      held    -      1m2s   5",
            "watch 7, west: connection refused",
        ];
        assert_eq!(report(&answer), lines.join("\n") + "\n");
        assert_eq!(report(&json!({"watches": []})), "no merged watch is open\n");
    }
}
