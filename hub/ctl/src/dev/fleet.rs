//! The record of a running fleet, `fleet.json` in its folder: what was started, what was created, what is renewed.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use kube::api::DynamicObject;
use portolan_runtime::files;
use serde::{Deserialize, Serialize};

use crate::dev::process::Process;
use crate::dev::token::TokenSource;

const FILE: &str = "fleet.json";

/// Held by who writes the record: `up`, then the supervisor. The kernel lets it go when they end, in whatever way.
const LOCK: &str = "supervisor.lock";
/// The person of `explicit.kubeconfig`.
pub(crate) const DEV_USER: &str = "portolan:dev";
/// Why `up` failed, if it did.
pub(crate) const FAILURE: &str = "up.log";
/// The program that looks after the others.
pub(crate) const SUPERVISOR: &str = "supervisor";

/// Everything that the other commands need. Written after every step of `up`, so that a failed `up` can be undone, and by
/// the supervisor when it has started a program again.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Fleet {
    #[serde(skip)]
    pub(crate) dir: PathBuf,
    pub(crate) hub_kubeconfig: PathBuf,
    pub(crate) members: Vec<FleetMember>,
    pub(crate) otlp: Option<String>,
    pub(crate) hub_address: String,
    pub(crate) router_url: String,
    pub(crate) router_admin: String,
    pub(crate) processes: Vec<Process>,
    pub(crate) tokens: Vec<TokenSource>,
    pub(crate) created: Vec<Created>,
    /// ShardingConfigs that have merged kubeconfigs.
    pub(crate) shards: Vec<Shard>,
}

/// A member cluster and the kubeconfig it was given with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FleetMember {
    pub(crate) name: String,
    pub(crate) kubeconfig: PathBuf,
}

/// A shard with a placeholder caller in each of its caller clusters.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Shard {
    pub(crate) namespace: String,
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) callers: Vec<Caller>,
}

/// A placeholder caller.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Caller {
    /// Its home cluster.
    pub(crate) home: String,
    pub(crate) kubeconfig: PathBuf,
}

/// One object that was not there before.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Created {
    /// Name of the member cluster; `None` is the hub.
    pub(crate) cluster: Option<String>,
    pub(crate) object: DynamicObject,
}

impl Fleet {
    /// Reads the record of a folder.
    pub(crate) fn read(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(FILE);
        let bytes = match files::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => bail!(
                "no fleet in {}: start one with `portolanctl dev up --dir {0}`",
                dir.display()
            ),
            Err(error) => return Err(error.into()),
        };
        let mut fleet: Self =
            serde_json::from_slice(&bytes).with_context(|| format!("{} is not a fleet record", path.display()))?;
        fleet.dir = dir.to_path_buf();
        Ok(fleet)
    }

    /// Whether a folder holds a record.
    pub(crate) fn exists(dir: &Path) -> bool {
        dir.join(FILE).exists()
    }

    /// Writes the first record; whoever else begins in this folder at the same time is refused.
    pub(crate) fn create(&self) -> anyhow::Result<()> {
        let path = self.dir.join(FILE);
        let mut file = match File::options().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!("{}", taken(&self.dir)),
            Err(error) => return Err(error).with_context(|| format!("cannot record the fleet in {}", path.display())),
        };
        let record = serde_json::to_vec_pretty(self)?;
        file.write_all(&record).context("cannot record the fleet")
    }

    pub(crate) fn write(&self) -> anyhow::Result<()> {
        files::write_private(self.dir.join(FILE), serde_json::to_vec_pretty(self)?).context("cannot record the fleet")
    }

    pub(crate) fn remove(&self) -> anyhow::Result<()> {
        std::fs::remove_file(self.dir.join(FILE)).context("cannot remove the fleet's record")
    }

    /// The recorded member of this name.
    pub(crate) fn member(&self, name: &str) -> anyhow::Result<&FleetMember> {
        let member = self.members.iter().find(|member| member.name == name);
        member.with_context(|| format!("the fleet has no member {name}"))
    }

    /// The recorded program of this name.
    pub(crate) fn process(&self, name: &str) -> Option<&Process> {
        self.processes.iter().find(|process| process.name == name)
    }

    /// The supervisor, if it runs.
    pub(crate) fn supervisor(&self) -> Option<&Process> {
        self.process(SUPERVISOR).filter(|process| process.is_running())
    }

    /// The right to write the record, until it is dropped. `None`: another process has it.
    pub(crate) fn lock(dir: &Path) -> anyhow::Result<Option<File>> {
        let path = dir.join(LOCK);
        let file = File::options().create(true).append(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// Why no fleet may begin in `dir`.
pub(crate) fn taken(dir: &Path) -> String {
    format!(
        "{} holds a fleet already: `portolanctl dev status` shows it, `portolanctl dev down` ends it",
        dir.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_begun_in_once() {
        let dir = tempfile::tempdir().unwrap();
        let fleet = |address: &str| Fleet {
            dir: dir.path().to_path_buf(),
            hub_address: address.to_owned(),
            ..Fleet::default()
        };
        fleet("first").create().unwrap();
        let error = fleet("second").create().unwrap_err().to_string();
        assert!(error.contains("holds a fleet already"), "{error}");
        assert_eq!(Fleet::read(dir.path()).unwrap().hub_address, "first");
    }
}
