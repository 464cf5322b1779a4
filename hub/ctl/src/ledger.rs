//! `portolanctl ledger show|adopt`: who has which namespace of which member, as the hub keeps it in ConfigMaps.
//!
//! `found` reads records; `adopt` makes new ones where they are lost, of what `claims` finds out (pure).

use std::fmt::Write as _;

use crate::cli::{LedgerCommand, LedgerShowArgs};
use crate::hub;
use crate::table::Table;

mod adopt;
mod claims;
mod found;

pub(crate) use found::Found;

pub(crate) async fn run(command: &LedgerCommand) -> anyhow::Result<()> {
    match command {
        LedgerCommand::Show(args) => show(args).await,
        LedgerCommand::Adopt(args) => adopt::run(args).await,
    }
}

async fn show(args: &LedgerShowArgs) -> anyhow::Result<()> {
    let hub = hub::of(&args.hub).await?;
    let found = Found::read(&hub).await?;
    args.output.print(&found.records, |_| report(&found))
}

fn report(found: &Found) -> String {
    let head = match found.root() {
        Some((record, root)) => format!(
            "incarnation {}, term {}, view revision {}{}",
            root.incarnation,
            record.term,
            found.view_revision(),
            if root.phase.may_lack_pairs() {
                ", adopted: routers are being heard"
            } else {
                ""
            }
        ),
        None => "there is no ledger".to_owned(),
    };
    let mut table = Table::new(&["CLUSTER", "NAMESPACE", "OPERATOR", "SHARD", "SINCE", "STATE"]);
    for chunk in found.chunks() {
        let pairs = chunk.pairs.iter().flat_map(|(namespace, pairs)| {
            let pairs = pairs.iter();
            pairs.map(move |(operator, pair)| (namespace, operator, pair))
        });
        for (namespace, operator, pair) in pairs {
            let state = match (&pair.owner, pair.releasing) {
                (None, _) => "free",
                (Some(_), false) => "granted",
                (Some(_), true) => "releasing",
            };
            let owner = pair.owner.as_ref().map(ToString::to_string).unwrap_or_default();
            let cells = [
                &chunk.cluster,
                namespace,
                operator.name().unwrap_or("-"),
                &owner,
                &pair.view_revision.to_string(),
                state,
            ];
            table.row(cells.map(str::to_owned).into());
        }
    }
    let mut notes = String::new();
    for (name, reason) in &found.damaged {
        let _ = writeln!(notes, "ConfigMap {name}: {reason}");
    }
    format!("{head}\n{table}{notes}")
}
