//! `kubectl get configmaps -A -w`, what it printed as events. It ends when its stream ends, and is started again by hand.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::Context as _;
use portolan_tests::kubectl::Kubectl;
use portolan_tests::watcher::Objects;
use serde_json::Value;
use tokio::process::Child;

const ARGUMENTS: [&str; 6] = [
    "get",
    "configmaps",
    "-A",
    "--watch",
    "--output-watch-events",
    "--output=json",
];

/// A running `kubectl`, killed when dropped.
pub(crate) struct Printed {
    kubectl: Kubectl,
    file: PathBuf,
    child: Child,
    before: Before,
}

/// What is left of the runs before this one.
#[derive(Default)]
struct Before {
    /// How many of them printed a list.
    lists: u64,
    deleted: BTreeSet<String>,
    /// What the last of them held: what the next one does not list was told to be gone by that.
    held: BTreeSet<String>,
}

/// What it printed, taken together.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) held: Objects,
    pub(crate) deleted: BTreeSet<String>,
    listed: bool,
    error: Option<Value>,
}

impl Printed {
    /// Starts it; what it prints goes to `file`.
    pub(crate) fn start(kubectl: Kubectl, file: PathBuf) -> anyhow::Result<Self> {
        let child = spawn(&kubectl, &file)?;
        Ok(Self {
            kubectl,
            file,
            child,
            before: Before::default(),
        })
    }

    /// Everything printed so far, an error if it has ended; an object that is half printed comes the next time.
    pub(crate) fn read(&mut self) -> anyhow::Result<Seen> {
        if let Some(status) = self.child.try_wait()? {
            anyhow::bail!("kubectl has ended ({status}): {}", self.complaint());
        }
        self.printed()
    }

    /// What it ever told to be gone, or no longer listed when it was started again.
    pub(crate) fn deleted(&self) -> anyhow::Result<BTreeSet<String>> {
        let mut seen = self.printed()?;
        if seen.listed {
            let missing = self.before.held.iter().filter(|key| !seen.held.contains_key(*key));
            seen.deleted.extend(missing.cloned());
        }
        Ok(seen.deleted)
    }

    /// How often it listed, over all runs.
    pub(crate) fn lists(&self) -> anyhow::Result<u64> {
        Ok(self.before.lists + u64::from(self.printed()?.listed))
    }

    fn printed(&self) -> anyhow::Result<Seen> {
        let text = std::fs::read(&self.file).context("nothing printed")?;
        let mut seen = Seen {
            deleted: self.before.deleted.clone(),
            ..Seen::default()
        };
        for event in serde_json::Deserializer::from_slice(&text).into_iter::<Value>() {
            let Ok(event) = event else { break };
            seen.take(&event);
        }
        Ok(seen)
    }

    /// What it said on stderr, and what its stream ended with.
    pub(crate) fn complaint(&self) -> String {
        let said = std::fs::read_to_string(self.file.with_extension("stderr")).unwrap_or_default();
        let last = self.printed().ok().and_then(|seen| seen.error).unwrap_or_default();
        format!("{said} {last}")
    }

    /// Starts it again if it has ended; told to `wait`, it has to end first.
    pub(crate) async fn revive(&mut self, wait: bool) -> anyhow::Result<()> {
        if wait {
            self.child.wait().await?;
        } else if self.child.try_wait()?.is_none() {
            return Ok(());
        }
        let seen = self.printed()?;
        if seen.listed {
            self.before = Before {
                lists: self.before.lists + 1,
                deleted: self.deleted()?,
                held: seen.held.into_keys().collect(),
            };
        }
        self.child = spawn(&self.kubectl, &self.file)?;
        Ok(())
    }
}

impl Seen {
    fn take(&mut self, event: &Value) {
        let object = &event["object"];
        // The last word of a stream, about no object.
        if event["type"] == "ERROR" {
            self.error = Some(object.clone());
            return;
        }
        self.listed = true;
        // What it listed comes as one event.
        let many = object["items"].as_array();
        for object in many.map_or(std::slice::from_ref(object), Vec::as_slice) {
            let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
            let key = format!("{}/{}", text("namespace"), text("name"));
            if event["type"] == "DELETED" {
                self.held.remove(&key);
                self.deleted.insert(key);
            } else {
                self.held.insert(key, text("resourceVersion").to_owned());
            }
        }
    }
}

fn spawn(kubectl: &Kubectl, file: &PathBuf) -> anyhow::Result<Child> {
    let complaints = File::create(file.with_extension("stderr")).context("no file")?;
    kubectl
        .command(&ARGUMENTS)
        .stdin(Stdio::null())
        .stdout(File::create(file).context("no file")?)
        .stderr(complaints)
        .spawn()
        .context("cannot run kubectl")
}
