//! `portolanctl faults`: whether ordered faults happen in this hub, and the switch that stops all of them.

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use portolan_crds::FaultInjection;
use portolan_crds::labels::{
    CONFIG_MAP_FAULTS, FAULTS_BY, FAULTS_REASON, FAULTS_SINCE, FAULTS_STOPPED, SYSTEM_NAMESPACE,
};
use serde::Serialize;
use serde_json::json;

use crate::apply::MANAGER;
use crate::cli::{FaultsArgs, FaultsCommand};
use crate::connect::list;
use crate::hub;
use crate::whoami::whoami;

/// Of a name, in bytes.
const MAX_BY: usize = 256;

pub(crate) async fn run(args: &FaultsArgs) -> anyhow::Result<()> {
    match &args.command {
        None => {
            let hub = hub::of(&args.hub).await?;
            let faults = list::<FaultInjection>(&hub).await?.len();
            let told = read(&hub).await?.map_or_else(Told::default, |map| told(&map));
            args.output.print(&Told { faults, ..told }, report)
        }
        Some(FaultsCommand::Stop(args)) => {
            let hub = hub::of(&args.hub).await?;
            write(&hub, true, &args.reason).await?;
            println!("all ordered faults of this hub are stopped, until `portolanctl faults resume`");
            Ok(())
        }
        Some(FaultsCommand::Resume(args)) => {
            let hub = hub::of(&args.hub).await?;
            let before = read(&hub).await?.map(|map| told(&map));
            if !before.is_some_and(|told| told.stopped) {
                println!("no faults are stopped");
                return Ok(());
            }
            write(&hub, false, "").await?;
            println!("FaultInjections are in force again");
            Ok(())
        }
    }
}

/// What the switch says.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Told {
    stopped: bool,
    by: String,
    reason: String,
    since: String,
    /// FaultInjections that there are.
    faults: usize,
}

async fn read(hub: &Client) -> anyhow::Result<Option<ConfigMap>> {
    let maps = Api::<ConfigMap>::namespaced(hub.clone(), SYSTEM_NAMESPACE);
    let found = maps.get_opt(CONFIG_MAP_FAULTS).await;
    found.with_context(|| format!("cannot read ConfigMap {SYSTEM_NAMESPACE}/{CONFIG_MAP_FAULTS}"))
}

/// As the hub reads it: anything but `false` and nothing stops.
fn told(map: &ConfigMap) -> Told {
    let text = |key: &str| {
        let data = map.data.iter();
        let mut found = data.filter_map(|data| data.get(key));
        found.next().map(|text| text.trim().to_owned()).unwrap_or_default()
    };
    let stopped = text(FAULTS_STOPPED);
    Told {
        stopped: !stopped.is_empty() && !stopped.eq_ignore_ascii_case("false"),
        by: text(FAULTS_BY),
        reason: text(FAULTS_REASON),
        since: text(FAULTS_SINCE),
        faults: 0,
    }
}

async fn write(hub: &Client, stopped: bool, reason: &str) -> anyhow::Result<()> {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP_FAULTS},
        "data": {
            FAULTS_STOPPED: stopped.to_string(),
            FAULTS_BY: whoami(hub, MAX_BY).await,
            FAULTS_REASON: reason,
            FAULTS_SINCE: format!("{:.0}", Timestamp::now()),
        },
    });
    let maps = Api::<ConfigMap>::namespaced(hub.clone(), SYSTEM_NAMESPACE);
    let params = PatchParams::apply(MANAGER).force();
    let written = maps.patch(CONFIG_MAP_FAULTS, &params, &Patch::Apply(map)).await;
    written.with_context(|| format!("cannot write ConfigMap {SYSTEM_NAMESPACE}/{CONFIG_MAP_FAULTS}"))?;
    Ok(())
}

fn report(told: &Told) -> String {
    let of = match told.faults {
        0 => "there is no FaultInjection".to_owned(),
        1 => "there is 1 FaultInjection, see portolanctl get policies".to_owned(),
        many => format!("there are {many} FaultInjections, see portolanctl get policies"),
    };
    if !told.stopped {
        return format!("ordered faults are not stopped; {of}\n");
    }
    let word = |text: &str, otherwise: &str| {
        if text.is_empty() {
            otherwise.to_owned()
        } else {
            text.to_owned()
        }
    };
    format!(
        "all ordered faults are stopped since {} by {}: {}\n{of}\n",
        word(&told.since, "an unknown time"),
        word(&told.by, "somebody"),
        word(&told.reason, "no reason given")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(data: &[(&str, &str)]) -> ConfigMap {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        ConfigMap {
            data: Some(data.collect()),
            ..ConfigMap::default()
        }
    }

    #[test]
    fn anything_but_false_stops() {
        assert!(!told(&ConfigMap::default()).stopped);
        for (text, stopped) in [
            ("true", true),
            (" yes", true),
            ("false", false),
            ("False ", false),
            ("", false),
        ] {
            assert_eq!(told(&map(&[("stopped", text)])).stopped, stopped, "{text:?}");
        }
    }

    #[test]
    fn who_stopped_them_and_why_is_told_as_far_as_it_is_known() {
        let mut stopped = told(&map(&[
            ("stopped", "true"),
            ("by", "ada"),
            ("reason", "an outage"),
            ("since", "2026-03-01T10:00:00Z"),
        ]));
        stopped.faults = 2;
        let lines = "all ordered faults are stopped since 2026-03-01T10:00:00Z by ada: an outage\n\
                     there are 2 FaultInjections, see portolanctl get policies\n";
        assert_eq!(report(&stopped), lines);
        let by_kubectl = report(&told(&map(&[("stopped", "true")])));
        assert!(
            by_kubectl.contains("an unknown time by somebody: no reason given"),
            "{by_kubectl}"
        );
        assert!(report(&Told::default()).starts_with("ordered faults are not stopped; there is no"));
    }
}
