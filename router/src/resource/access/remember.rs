//! What the hub last said of people, on disk: a router that restarts while the hub is away lets those in who were at work,
//! for as long as a running one would. Mode 0600, written by rename; a file that cannot be read is as good as none.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use portolan_runtime::{Chain, Tasks, files};
use serde::{Deserialize, Serialize};

use super::hub::{Decision, ProxyQuestion};
use super::{Access, HUB_AWAY};
use crate::resource::following::follow;

const FILE_NAME: &str = "people.json";

#[derive(Debug, Serialize, Deserialize)]
struct Remembered {
    user: String,
    groups: Vec<String>,
    cluster: String,
    allowed: bool,
    reason: String,
    decided_unix_seconds: u64,
}

impl Access {
    /// Takes over what an earlier process was told. Blocking.
    pub(crate) fn recall(&self, folder: &Path) {
        let remembered: Vec<Remembered> = match files::read(folder.join(FILE_NAME)) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!(%error, "the remembered decisions of the hub cannot be read");
                Vec::new()
            }),
            Err(error) if error.is_not_found() => return,
            Err(error) => return tracing::warn!(error = %Chain(&error), "no remembered decisions of the hub"),
        };
        let now = unix_seconds(SystemTime::now());
        for one in remembered {
            let age = Duration::from_secs(now.saturating_sub(one.decided_unix_seconds));
            // A clock that went back makes none of them fresher.
            if age < HUB_AWAY && one.decided_unix_seconds <= now {
                let (question, decision) = one.into_parts();
                self.people.put(question, decision, age);
            }
        }
    }

    /// Keeps the file up to date until cancelled, and writes it a last time then.
    pub(crate) async fn remember(self, folder: PathBuf, tasks: Tasks) {
        let (people, path) = (self.people.clone(), folder.join(FILE_NAME));
        follow(|| people.puts(), move || self.write(&path), tasks).await;
    }

    /// False: it was not written.
    fn write(&self, path: &Path) -> bool {
        let now = SystemTime::now();
        let all = self.people.all().filter(|(_, _, age)| *age < HUB_AWAY);
        let all: Vec<_> = all.map(|one| Remembered::new(one, now)).collect();
        let written = serde_json::to_vec(&all).map(|bytes| files::write_private(path, bytes));
        match written {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => tracing::warn!(error = %Chain(&error), "the hub's decisions were not written"),
            Err(error) => tracing::warn!(%error, "the hub's decisions were not written"),
        }
        false
    }
}

impl Remembered {
    fn new((question, decision, age): (ProxyQuestion, Decision, Duration), now: SystemTime) -> Self {
        let ProxyQuestion { user, groups, cluster } = question;
        let Decision { allowed, reason } = decision;
        Self {
            user,
            groups,
            cluster,
            allowed,
            reason,
            decided_unix_seconds: unix_seconds(now).saturating_sub(age.as_secs()),
        }
    }

    fn into_parts(self) -> (ProxyQuestion, Decision) {
        let Self {
            user,
            groups,
            cluster,
            allowed,
            reason,
            ..
        } = self;
        (ProxyQuestion { user, groups, cluster }, Decision { allowed, reason })
    }
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
