//! `portolanctl shards separate`: a ledger of before gets owners of each operator. The hub switches, when nothing stands against it;
//! here is shown what comes of it, and what it waits for.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error as KubeError};
use portolan_crds::labels::{CONFIG_MAP_SEPARATION, SYSTEM_NAMESPACE};
use portolan_crds::separation::Separation;
use serde_json::{Value, json};

use super::moving::client;
use super::{ask, items, texts};
use crate::cli::{Output, SeparateArgs};
use crate::router::text;
use crate::table::Table;

const POLL: Duration = Duration::from_millis(200);
/// The hub looks every second, and writes its ledger.
const ANSWERED_WITHIN: Duration = Duration::from_mins(1);

pub(super) async fn run(args: &SeparateArgs) -> anyhow::Result<()> {
    let edit = &args.edit;
    let found = ask(&edit.hub, "/shards/separate").await?;
    let is_json = edit.output.output == Output::Json;
    let say = |written: bool| {
        if is_json {
            let mut told = found.clone();
            told["written"] = json!(written);
            println!("{told}");
        }
    };
    if !is_json {
        print!("{}", report(&found));
    }
    if found["separate"] == true {
        say(false);
        return Ok(());
    }
    if !edit.yes {
        say(false);
        eprintln!(
            "nothing was changed: add --yes; there is no way back, and a hub of before does not read the ledger then"
        );
        return Ok(());
    }
    let hub = client(edit).await?;
    want(&hub).await?;
    let refused = answered(&hub).await?;
    if !refused.is_empty() {
        bail!("nothing was changed, as the hub waits:\n  {}", refused.join("\n  "));
    }
    say(true);
    if !is_json {
        println!("namespaces have an owner of each operator from now on");
    }
    Ok(())
}

fn report(found: &Value) -> String {
    if found["separate"] == true {
        return "namespaces have an owner of each operator already\n".to_owned();
    }
    let mut told = String::new();
    let seconds = items(&found["seconds"]);
    if seconds.is_empty() {
        told.push_str("no namespace would have a second owner\n");
    } else {
        let mut table = Table::new(&["CLUSTER", "NAMESPACE", "OWNER", "SECOND", "OPERATOR"]);
        for one in seconds {
            let cells = ["cluster", "namespace", "owner", "second", "operator"].map(|key| text(&one[key]));
            table.row(cells.into());
        }
        let _ = write!(told, "{table}");
    }
    if found["endless"] == true {
        told.push_str("it was not found out where this ends: more may move\n");
    }
    for line in texts(&found["waiting"]) {
        let _ = writeln!(told, "waits: {line}");
    }
    told
}

/// Tells the hub.
async fn want(hub: &Client) -> anyhow::Result<()> {
    let maps = maps(hub);
    let failed = || format!("cannot write ConfigMap {SYSTEM_NAMESPACE}/{CONFIG_MAP_SEPARATION}");
    let wanted = Separation {
        wanted: true,
        ..Separation::default()
    };
    loop {
        let present = get(hub).await?;
        let is_there = present.is_some();
        let named = || ObjectMeta {
            name: Some(CONFIG_MAP_SEPARATION.to_owned()),
            ..ObjectMeta::default()
        };
        let map = ConfigMap {
            metadata: present.map_or_else(named, |present| present.metadata),
            data: Some(wanted.to_data()),
            ..ConfigMap::default()
        };
        let params = PostParams::default();
        let written = if is_there {
            maps.replace(CONFIG_MAP_SEPARATION, &params, &map).await
        } else {
            maps.create(&params, &map).await
        };
        match written {
            // The hub wrote meanwhile.
            Err(KubeError::Api(status)) if status.code == 409 => {}
            outcome => return outcome.map(drop).with_context(failed),
        }
    }
}

/// What the hub says when it has switched, or does not: what it waits for.
async fn answered(hub: &Client) -> anyhow::Result<Vec<String>> {
    let deadline = Instant::now() + ANSWERED_WITHIN;
    loop {
        let data = get(hub).await?.and_then(|map| map.data).unwrap_or_default();
        let state = Separation::from_data(&data);
        if !state.wanted {
            return Ok(state.refused);
        }
        if Instant::now() > deadline {
            bail!("the hub does not answer: does it run, and is it of this release? It switches when it does");
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn get(hub: &Client) -> anyhow::Result<Option<ConfigMap>> {
    let map = maps(hub).get_opt(CONFIG_MAP_SEPARATION).await;
    map.with_context(|| format!("cannot read ConfigMap {SYSTEM_NAMESPACE}/{CONFIG_MAP_SEPARATION}"))
}

fn maps(hub: &Client) -> Api<ConfigMap> {
    Api::namespaced(hub.clone(), SYSTEM_NAMESPACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_would_be_second_and_what_is_waited_for_is_told() {
        let second = json!({"cluster": "east", "namespace": "ns-a", "owner": "ops/a", "second": "ops/c", "operator": "prometheus"});
        let found = json!({"separate": false, "seconds": [second], "waiting": ["router old is old"], "endless": false});
        let told = report(&found);
        let lines: Vec<_> = told.lines().collect();
        let cells: Vec<_> = lines[1].split_whitespace().collect();
        assert_eq!(cells, ["east", "ns-a", "ops/a", "ops/c", "prometheus"], "{told}");
        assert_eq!(lines[2], "waits: router old is old");
        let none = report(&json!({"separate": false, "seconds": [], "waiting": []}));
        assert_eq!(none, "no namespace would have a second owner\n");
        assert!(report(&json!({"separate": true})).contains("already"));
    }
}
