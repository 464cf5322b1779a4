//! `portolanctl shards diff`: what routers really hold and serve, beside what the hub would have them.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::difference::{Difference, differences};
use super::{ask, first_of, items, texts};
use crate::admin;
use crate::cli::DiffArgs;
use crate::dev::fleet::Fleet;
use crate::router::text;
use crate::table::Table;

/// They differ.
const DIFFERS: u8 = 1;

pub(super) async fn run(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let acknowledged = ask(&args.hub, "/shards/routers").await?;
    let mut routers = args.routers.clone();
    if let (Some(dir), true) = (&args.hub.dir, routers.is_empty()) {
        routers.push(Fleet::read(dir)?.router_admin);
    }
    let mut served = Vec::new();
    for address in routers {
        let router = admin::ask("the router", &address, "/configz").await?;
        let hub = ask(&args.hub, "/configz").await?;
        served.push((address, differences(&router, &hub)));
    }
    let differs = differs(&acknowledged) || served.iter().any(|(_, found)| !found.is_empty());
    let told: Vec<_> = served
        .iter()
        .map(|(address, found)| json!({"router": address, "differences": found}))
        .collect();
    let answer = json!({"acknowledged": acknowledged["routers"], "served": told});
    args.output.print(&answer, |_| report(&acknowledged, &served))?;
    Ok(if differs {
        ExitCode::from(DIFFERS)
    } else {
        ExitCode::SUCCESS
    })
}

/// What of a router is worth telling, and its words.
const LISTS: [(&str, &str); 2] = [
    ("behind", "does not hold the present"),
    ("beyond", "holds, and should not,"),
];

fn differs(acknowledged: &Value) -> bool {
    let keys = ["behind", "beyond", "refused"];
    let routers = items(&acknowledged["routers"]).iter();
    routers
        .into_iter()
        .any(|router| keys.iter().any(|key| !items(&router[key]).is_empty()))
}

fn report(acknowledged: &Value, served: &[(String, Vec<Difference>)]) -> String {
    let mut table = Table::new(&["ROUTER", "CONNECTED", "BEHIND", "BEYOND", "REFUSED"]);
    let mut notes = String::new();
    for router in items(&acknowledged["routers"]) {
        let name = text(&router["router"]);
        let connected = match router["awaySeconds"].as_u64() {
            None => "True".to_owned(),
            Some(seconds) => format!("False, for {seconds} s"),
        };
        let mut row = vec![name.clone(), connected];
        row.extend(["behind", "beyond", "refused"].map(|key| items(&router[key]).len().to_string()));
        table.row(row);
        for (key, words) in LISTS {
            let entries = texts(&router[key]);
            if !entries.is_empty() {
                let _ = writeln!(notes, "{name}: {words} {}", first_of(&entries, entries.len()));
            }
        }
        for refused in items(&router["refused"]) {
            let _ = writeln!(
                notes,
                "{name}: refused {}: {}",
                text(&refused["entry"]),
                text(&refused["reason"])
            );
        }
    }
    for (address, found) in served {
        if found.is_empty() {
            let _ = writeln!(notes, "router at {address}: serves what the hub says");
        }
        for Difference {
            shard,
            pair,
            router,
            hub,
        } in found
        {
            let _ = writeln!(notes, "router at {address}: {shard}, {pair}: {router}; the hub: {hub}");
        }
    }
    format!("{table}{notes}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_told_of_each_router() {
        let routers = json!({"routers": [
            {"router": "gateway", "connected": true, "behind": [], "beyond": [], "refused": []},
            {
                "router": "other", "connected": false, "awaySeconds": 9, "behind": ["Shard/ops/a"], "beyond": [],
                "refused": [{"entry": "Shard/ops/a", "reason": "no"}],
            },
        ]});
        let found = Difference {
            shard: "ops/a".to_owned(),
            pair: "east/ns-a".to_owned(),
            router: "does not serve it".to_owned(),
            hub: "Granted since 1".to_owned(),
        };
        let served = [("h:1".to_owned(), vec![]), ("h:2".to_owned(), vec![found])];
        let lines = [
            "ROUTER    CONNECTED        BEHIND   BEYOND   REFUSED",
            "gateway   True             0        0        0",
            "other     False, for 9 s   1        0        1",
            "other: does not hold the present Shard/ops/a",
            "other: refused Shard/ops/a: no",
            "router at h:1: serves what the hub says",
            "router at h:2: ops/a, east/ns-a: does not serve it; the hub: Granted since 1",
        ];
        assert_eq!(report(&routers, &served).lines().collect::<Vec<_>>(), lines);
        assert!(differs(&routers));
        assert!(!differs(&json!({"routers": [routers["routers"][0]]})));
    }
}
