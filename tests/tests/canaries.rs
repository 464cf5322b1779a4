//! No token and no key is seen where it does not belong.
//!
//! A fleet at log level `debug` that exports every trace is asked for all sorts of things, allowed and refused, with real
//! credentials and planted ones. Then every secret there is in it is looked for in everything that people and machines
//! may read of it: logs, traces, answers, admin pages, command lines, statuses, ConfigMaps and Events.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "canaries/places.rs"]
mod places;
#[path = "canaries/requests.rs"]
mod requests;
#[path = "canaries/secrets.rs"]
mod secrets;

use portolan_testbed::{Jaeger, eventually};
use portolan_tests::daemon::Daemon;
use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, World};

/// Debug lines of the libraries too: those that print headers do so there.
const ENV: [(&str, &str); 1] = [("PORTOLAN_LOG_LEVEL", "debug")];
/// In a path: is to be seen in logs and traces, which proves that they were looked at.
const SEEN: &str = "seen-by-everybody";

struct Ground {
    jaeger: Jaeger,
    world: World,
}

#[tokio::test]
async fn are_seen_nowhere() {
    portolan_runtime::tls::install_crypto_provider();
    let jaeger = Jaeger::start().await.unwrap();
    let manifests = federated("alpha", "east", &[("east", &["team-a"]), ("west", &["team-b"])]);
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &["east/team-a", "west/team-b"],
        manifests: &manifests,
        env: &ENV,
        otlp: Some(&jaeger.otlp_grpc_url),
        ..Plan::default()
    };
    let world = World::start(plan).await.unwrap();
    let ground = Ground { jaeger, world };

    let mut secrets = secrets::kept(&ground).await;
    let answers = requests::all_sorts(&ground, &mut secrets).await;
    let mut places = places::pages(&ground).await;
    let _running = restart_everything(&ground).await;
    secrets.extend(secrets::kept(&ground).await);
    eventually("the last traces are in Jaeger", || async {
        let traces = ground.jaeger.traces("portolan-router").await?;
        anyhow::ensure!(traces.to_string().contains(SEEN), "not there yet");
        Ok(())
    })
    .await;

    places.extend(places::all(&ground).await);
    places.extend(answers);
    for place in ["router.log", "traces of portolan-router"] {
        let text = &places.iter().find(|(name, _)| name == place).unwrap().1;
        assert!(text.contains(SEEN), "{place} does not hold what it ought to");
    }
    assert!(secrets.len() > 25, "{} secrets only", secrets.len());
    let found = secrets.iter().flat_map(|(secret, needle)| {
        let places = places.iter().filter(move |(_, text)| text.contains(needle.as_str()));
        places.map(move |(place, text)| {
            let at = text.find(needle.as_str()).unwrap_or_default();
            let around: String = text[..at]
                .chars()
                .rev()
                .take(160)
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .collect();
            format!("{secret} is seen in {place}, after: {around}")
        })
    });
    let found: Vec<String> = found.collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// What they load when they start, they print when they start.
async fn restart_everything(ground: &Ground) -> Vec<Daemon> {
    let door = ground.world.merged_door("alpha").await.unwrap();
    let mut running = Vec::new();
    for program in ["hub", "agent-east", "agent-west", "router"] {
        let daemon = ground.world.fleet.take_over(program).await.unwrap();
        daemon.ready().await;
        if program == "router" {
            eventually("requests are served", || async {
                let path = "/api/v1/namespaces/team-b/configmaps/kube-root-ca.crt";
                door.get(path, &[]).await.is_ok_and(|answer| answer.status == 200)
            })
            .await;
        }
        running.push(daemon);
    }
    running
}
