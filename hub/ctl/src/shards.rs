//! `portolanctl shards`: whose namespaces are, what an edit would move, and edits that show that first.
//!
//! What would come of an edit the hub finds out by its own compiler, on its admin port; here it is asked, shown and written.
//! `edit` and `difference` are pure.

mod diff;
mod difference;
mod edit;
mod force;
mod moving;
mod plan;
mod promote;
mod rollback;
mod separate;
mod status;
mod who;
mod write;

use std::process::ExitCode;

use serde_json::Value;

use crate::admin;
use crate::cli::{HubAdminArgs, ShardsCommand};
use crate::dev::fleet::Fleet;

pub(crate) use write::{Edit, find, write};

/// The program of a fleet that is asked.
const HUB: &str = "hub";
/// Names of a long list that people are shown.
const NAMES_SHOWN: usize = 10;

pub(crate) async fn run(command: &ShardsCommand) -> anyhow::Result<ExitCode> {
    match command {
        ShardsCommand::Plan(args) => plan::run(args).await,
        ShardsCommand::Diff(args) => diff::run(args).await,
        ShardsCommand::Who(args) => who::run(args).await.map(|()| ExitCode::SUCCESS),
        ShardsCommand::Status(args) => status::run(args).await.map(|()| ExitCode::SUCCESS),
        ShardsCommand::Move(args) => moving::run(args).await.map(|()| ExitCode::SUCCESS),
        ShardsCommand::Promote(args) => promote::run(args).await.map(|()| ExitCode::SUCCESS),
        ShardsCommand::Force(args) => force::run(args).await.map(|()| ExitCode::SUCCESS),
        ShardsCommand::Rollback(args) => rollback::run(args).await.map(|()| ExitCode::SUCCESS),
        ShardsCommand::Separate(args) => separate::run(args).await.map(|()| ExitCode::SUCCESS),
    }
}

/// A page of the hub.
async fn ask(hub: &HubAdminArgs, path_and_query: &str) -> anyhow::Result<Value> {
    admin::ask("the hub", &address(hub)?, path_and_query).await
}

/// What the hub makes of JSON that is sent to one of its pages.
async fn send(hub: &HubAdminArgs, path: &str, question: &Value) -> anyhow::Result<Value> {
    admin::send("the hub", &address(hub)?, path, question).await
}

fn address(hub: &HubAdminArgs) -> anyhow::Result<String> {
    let fleet = hub.dir.as_deref().map(Fleet::read).transpose()?;
    let of_fleet = fleet.as_ref().and_then(|fleet| fleet.process(HUB));
    Ok(of_fleet.map_or_else(|| hub.hub_admin.clone(), |process| process.admin.clone()))
}

/// The texts of a list.
fn texts(values: &Value) -> Vec<&str> {
    values
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// The items of a list.
fn items(values: &Value) -> &[Value] {
    values.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The first few, and how many more of `all`.
fn first_of(names: &[&str], all: usize) -> String {
    let shown = names.iter().take(NAMES_SHOWN).copied().collect::<Vec<_>>().join(", ");
    match all.saturating_sub(names.len().min(NAMES_SHOWN)) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
