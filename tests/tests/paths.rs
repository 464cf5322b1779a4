//! Requests that no honest client sends: paths that two readers read differently, heads that hide a second request, heads
//! that never end. Each is refused, by a Status wherever the router itself sees it, and no member hears of any of it.
//!
//! Whether a member has heard is read from its audit log, where even what it refuses to authenticate is written down.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "paths/heads.rs"]
mod heads;
#[path = "paths/raw.rs"]
mod raw;
#[path = "paths/sizes.rs"]
mod sizes;
#[path = "paths/tricks.rs"]
mod tricks;

use std::sync::Once;

use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, Shared, World};

static WORLD: Shared = Shared::const_new();
static WRITTEN: Once = Once::new();

/// Every request, once, when it is answered.
const AUDIT: &str =
    "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n";
const AUDIT_FILE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/audit-policy.yaml");

async fn world() -> &'static World {
    // Once: API servers read it while other tests come here.
    WRITTEN.call_once(|| std::fs::write(AUDIT_FILE, AUDIT).unwrap());
    let manifests = federated("alpha", "east", &[("east", &["paths"])]);
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &["east/paths"],
        manifests: &manifests,
        apiserver_args: vec![
            format!("--audit-policy-file={AUDIT_FILE}"),
            "--audit-log-path=-".to_owned(),
        ],
        env: &[("PORTOLAN_HEAD_TIMEOUT", "2s"), ("PORTOLAN_HANDSHAKE_TIMEOUT", "2s")],
        ..Plan::default()
    };
    World::shared(&WORLD, plan).await
}

/// Whether a member has been asked for anything with this word in it.
fn heard(world: &World, member: &str, word: &str) -> bool {
    let mut folders = vec![world.cluster(member).dir().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "log") {
                let text = std::fs::read(&path).unwrap_or_default();
                let lines = String::from_utf8_lossy(&text);
                if lines
                    .lines()
                    .any(|line| line.contains("\"kind\":\"Event\"") && line.contains(word))
                {
                    return true;
                }
            }
        }
    }
    false
}
