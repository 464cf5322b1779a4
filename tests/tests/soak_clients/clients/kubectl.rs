//! `kubectl get -A -w`, what it printed as events. It ends with its stream and never resumes: people start it again, and what
//! is not listed then was gone by that.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::Context as _;
use portolan_tests::kubectl::Kubectl;
use portolan_tests::watch::{key, version};
use serde_json::Value;
use tokio::process::Child;

use super::{Report, Seen};

/// A running `kubectl`, killed when dropped.
pub(super) struct Printed {
    kubectl: Kubectl,
    resource: &'static str,
    file: PathBuf,
    child: Child,
    /// Bytes of the file that were read.
    read: u64,
    /// Whether this run has printed its list, which comes in one piece; until then it is coming.
    listed: bool,
    seen: Seen,
}

impl Printed {
    /// What it prints goes to `file`.
    pub(super) fn start(kubectl: Kubectl, resource: &'static str, file: PathBuf) -> anyhow::Result<Self> {
        Ok(Self {
            child: spawn(&kubectl, resource, &file)?,
            kubectl,
            resource,
            file,
            read: 0,
            listed: false,
            seen: Seen::default(),
        })
    }

    /// Starts it again if it has ended.
    pub(super) fn revive(&mut self) -> anyhow::Result<()> {
        if self.child.try_wait()?.is_some() {
            self.read()?;
            (self.read, self.listed) = (0, false);
            self.child = spawn(&self.kubectl, self.resource, &self.file)?;
        }
        Ok(())
    }

    pub(super) fn report(&mut self) -> anyhow::Result<Report> {
        self.read()?;
        Ok(self
            .seen
            .report(format!("kubectl {}", self.resource), self.resource, ""))
    }

    /// Takes in what was printed since; what is half printed comes the next time.
    fn read(&mut self) -> anyhow::Result<()> {
        let mut file = File::open(&self.file).context("nothing printed")?;
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let mut events = serde_json::Deserializer::from_slice(&text).into_iter::<Value>();
        let (mut whole, mut any) = (0, false);
        while let Some(Ok(event)) = events.next() {
            any |= event["type"] != "ERROR";
            self.take(&event);
            whole = events.byte_offset();
        }
        self.read += u64::try_from(whole)?;
        if any && !self.listed {
            self.listed = true;
            self.seen.listed();
        }
        Ok(())
    }

    fn take(&mut self, event: &Value) {
        let (kind, object) = (&event["type"], &event["object"]);
        if kind == "ERROR" {
            if object["code"] == 410 {
                self.seen.expire(object["message"].as_str().unwrap_or_default());
            }
            return;
        }
        // Of a list of several pages, each is an event.
        let page = object["items"].as_array();
        for object in page.map_or(std::slice::from_ref(object), Vec::as_slice) {
            match (kind == "DELETED", self.listed) {
                (true, true) => self.seen.delete(key(object)),
                (true, false) => drop(self.seen.coming.remove(&key(object))),
                (false, true) => self.seen.apply(key(object), version(object)),
                (false, false) => drop(self.seen.coming.insert(key(object), version(object))),
            }
        }
    }
}

fn spawn(kubectl: &Kubectl, resource: &str, file: &PathBuf) -> anyhow::Result<Child> {
    kubectl
        .command(&[
            "get",
            resource,
            "-A",
            "--watch",
            "--output-watch-events",
            "--output=json",
        ])
        .stdin(Stdio::null())
        .stdout(File::create(file).context("no file")?)
        .stderr(File::create(file.with_extension("stderr")).context("no file")?)
        .spawn()
        .context("cannot run kubectl")
}
