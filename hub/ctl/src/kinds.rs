//! `portolanctl get kinds`: what the members of a shard do not all serve, or not in the same versions, as a router found it
//! in their discovery. Called by `get`.

use std::fmt::Write as _;

use serde_json::Value;

use crate::cli::{OutputArgs, RouterArgs};
use crate::router::{ask, kind_of, text, words};
use crate::table::Table;

pub(crate) async fn run(router: &RouterArgs, output: OutputArgs) -> anyhow::Result<()> {
    let answer = ask(router, "/kinds").await?;
    output.print(&answer, report)
}

fn report(answer: &Value) -> String {
    let mut table = Table::new(&["SHARD", "KIND", "SERVED BY", "MISSING IN", "MERGED VIEW"]);
    let (mut rows, mut notes) = (0, String::new());
    let shards = answer["shards"].as_array().map(Vec::as_slice).unwrap_or_default();
    for shard in shards {
        let name = text(&shard["shard"]);
        for kind in shard["partial"].as_array().into_iter().flatten() {
            table.row(row(&name, kind));
            rows += 1;
        }
        let unread = words(&shard["neverRead"]);
        if !unread.is_empty() {
            let _ = writeln!(notes, "shard {name}: {unread} not read yet, so not counted");
        }
    }
    if rows == 0 {
        return format!(
            "all kinds are served alike by the members of each of {} shards\n{notes}",
            shards.len()
        );
    }
    format!("{table}{notes}")
}

fn row(shard: &str, kind: &Value) -> Vec<String> {
    let served = kind["served"].as_object().into_iter().flatten();
    let served: Vec<_> = served
        .map(|(cluster, versions)| format!("{cluster} ({})", words(versions)))
        .collect();
    let offered = words(&kind["offered"]);
    vec![
        shard.to_owned(),
        kind_of(kind),
        served.join(", "),
        words(&kind["missing"]),
        if offered.is_empty() {
            "refused: no version in common".to_owned()
        } else {
            offered
        },
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_kind_of_some_members_only_is_told() {
        let answer = json!({"shards": [{
            "shard": "operators/alpha", "members": ["east", "west", "far"], "neverRead": ["far"],
            "partial": [
                {"group": "example.com", "resource": "greetings", "served": {"east": ["v1", "v1beta1"]}, "missing": ["west"],
                 "offered": ["v1", "v1beta1"]},
                {"group": "example.com", "resource": "farewells", "served": {"east": ["v1"], "west": ["v2"]}, "missing": [],
                 "offered": []},
            ],
        }]});
        let lines = [
            "SHARD             KIND                    SERVED BY              MISSING IN   MERGED VIEW",
            "operators/alpha   greetings.example.com   east (v1, v1beta1)     west         v1, v1beta1",
            "operators/alpha   farewells.example.com   east (v1), west (v2)   -            refused: no version in common",
            "shard operators/alpha: far not read yet, so not counted",
        ];
        assert_eq!(report(&answer), lines.join("\n") + "\n");
        let none = json!({"shards": [{"shard": "a/b", "members": [], "neverRead": [], "partial": []}]});
        assert_eq!(
            report(&none),
            "all kinds are served alike by the members of each of 1 shards\n"
        );
    }
}
