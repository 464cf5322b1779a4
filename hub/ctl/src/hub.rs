//! Which hub a command asks: one that is named, or that of a fleet on this machine.

use std::path::{Path, PathBuf};

use kube::Client;

use crate::cli::{FleetHubArgs, HubArgs};
use crate::connect::connect;
use crate::dev::fleet::Fleet;

/// Connects to it. `dir`: of the fleet.
pub(crate) async fn client(hub: &HubArgs, dir: Option<&Path>) -> anyhow::Result<Client> {
    Ok(connect("the hub", kubeconfig(hub, dir)?.as_deref()).await?.client)
}

/// The same, as most commands are told it.
pub(crate) async fn of(args: &FleetHubArgs) -> anyhow::Result<Client> {
    client(&args.hub, args.dir.as_deref()).await
}

/// The one that was given, else that of the fleet in `dir`, else (`None`) kubectl's.
fn kubeconfig(hub: &HubArgs, dir: Option<&Path>) -> anyhow::Result<Option<PathBuf>> {
    match (&hub.hub_kubeconfig, dir) {
        (Some(file), _) => Ok(Some(file.clone())),
        (None, Some(dir)) => Ok(Some(Fleet::read(dir)?.hub_kubeconfig)),
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hub_is_that_of_the_fleet_unless_another_is_named() {
        let asked = |dir: Option<&Path>, hub_kubeconfig: Option<&str>| {
            let hub_kubeconfig = hub_kubeconfig.map(PathBuf::from);
            kubeconfig(&HubArgs { hub_kubeconfig }, dir)
        };
        let dir = tempfile::tempdir().unwrap();
        let error = asked(Some(dir.path()), None).unwrap_err().to_string();
        assert!(error.starts_with("no fleet in "), "{error}");
        let fleet = Fleet {
            dir: dir.path().to_path_buf(),
            hub_kubeconfig: "/kube/hub".into(),
            ..Fleet::default()
        };
        fleet.write().unwrap();
        assert_eq!(asked(Some(dir.path()), None).unwrap(), Some("/kube/hub".into()));
        let other = asked(Some(dir.path()), Some("/kube/other"));
        assert_eq!(other.unwrap(), Some("/kube/other".into()));
        assert_eq!(asked(None, None).unwrap(), None);
    }
}
