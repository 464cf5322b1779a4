//! More routers of a world: each enrols by a bootstrap token and follows the world's hub.

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::Value;

use crate::ctl;
use crate::daemon::{Daemon, Launch};
use crate::programs::argument;
use crate::world::{HUB, World};

/// Where the world's hub listens.
pub fn hub_of(world: &World) -> anyhow::Result<String> {
    let file = std::fs::read(world.fleet.dir().join("hub.addresses.json")).context("no addresses of the hub")?;
    let addresses: Value = serde_json::from_slice(&file)?;
    Ok(addresses["bind"].as_str().context("no address")?.to_owned())
}

/// The state folder of the router of this name.
pub fn state_dir(world: &World, name: &str) -> PathBuf {
    world.fleet.dir().join(format!("{name}-state"))
}

/// One more router, with a new bootstrap token; it finds the hub at `hub`. Returns when it has told its addresses.
pub async fn start(world: &World, name: &str, hub: &str, env: &[(&str, &str)]) -> anyhow::Result<Daemon> {
    let dir = world.fleet.dir();
    let kubeconfig = argument(world.cluster(HUB).direct_kubeconfig_path());
    let token = [
        "router-token",
        name,
        "--san",
        "127.0.0.1",
        "--hub-kubeconfig",
        &kubeconfig,
    ];
    let token_file = dir.join(format!("{name}.token"));
    std::fs::write(&token_file, ctl::ok(&token).await?)?;
    let (token_file, ca) = (argument(&token_file), argument(&dir.join("hub-ca.crt")));
    let state = argument(&state_dir(world, name));
    let arguments = [
        ["--bind", "127.0.0.1:0"],
        ["--hub", hub],
        ["--hub-ca", &ca],
        ["--bootstrap-token-file", &token_file],
        ["--state-dir", &state],
    ];
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    Daemon::start(Launch {
        name: name.to_owned(),
        program: "portolan-router".to_owned(),
        arguments: arguments.concat().into_iter().map(str::to_owned).collect(),
        env: env.iter().map(owned).collect(),
        dir: dir.to_path_buf(),
    })
    .await
}
