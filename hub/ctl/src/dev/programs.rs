//! Starting the programs of a fleet and waiting until each says where it listens and that it is ready.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde::Deserialize;

use crate::admin;
use crate::dev::fleet::Fleet;
use crate::dev::process::{self, Launch, Process};

const POLL: Duration = Duration::from_millis(100);

/// What a program writes to its `--addresses-file`.
#[derive(Debug, Deserialize)]
pub(crate) struct Addresses {
    #[serde(default)]
    pub(crate) bind: String,
    /// Of the hub: where it is asked about writes.
    #[serde(default)]
    pub(crate) webhook: String,
    pub(crate) admin: String,
}

/// The program's file: beside this one, else on the PATH.
pub(crate) fn find(name: &str) -> anyhow::Result<PathBuf> {
    let beside = std::env::current_exe()
        .context("cannot tell where portolanctl is")?
        .with_file_name(name);
    if beside.is_file() {
        return Ok(beside);
    }
    let on_path = std::env::var_os("PATH")
        .into_iter()
        .flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let found = on_path.map(|dir| dir.join(name)).find(|file| file.is_file());
    found.with_context(|| {
        format!(
            "{name} is neither beside portolanctl ({}) nor on the PATH",
            beside.display()
        )
    })
}

impl Fleet {
    /// Starts one program with `--flag value` pairs, waits until it tells its addresses, records it with what starts it
    /// again at the same ones.
    pub(crate) async fn start(
        &mut self,
        name: &str,
        program: &str,
        flags: &[(&str, &str)],
        deadline: Instant,
    ) -> anyhow::Result<Addresses> {
        let addresses_file = self.path(&format!("{name}.addresses.json"));
        let _ = std::fs::remove_file(&addresses_file);
        let file = text(&addresses_file);
        let mut flags = flags.to_vec();
        flags.extend([
            ("admin-bind", "127.0.0.1:0"),
            ("addresses-file", &file),
            ("log-format", "json"),
        ]);
        if let Some(otlp) = &self.otlp {
            flags.extend([("otlp-endpoint", otlp.as_str()), ("trace-sample-ratio", "1")]);
        }
        let arguments: Vec<_> = flags
            .iter()
            .flat_map(|(flag, value)| [format!("--{flag}"), (*value).to_owned()])
            .collect();
        let log = self.path(&format!("{name}.log"));
        let launch = Launch {
            program: find(program)?,
            arguments,
            env: flags_in_environment(),
        };
        let started = process::spawn(name, launch, &log)?;
        self.processes.push(started.clone());
        self.write()?;
        let addresses = wait_addresses(&started, &addresses_file, deadline).await?;
        if let Some(recorded) = self.processes.last_mut() {
            recorded.admin.clone_from(&addresses.admin);
            recorded.launch.pin(&addresses);
        }
        self.write()?;
        Ok(addresses)
    }

    /// Waits until every program's `/readyz` is 200.
    pub(crate) async fn wait_ready(&self, deadline: Instant) -> anyhow::Result<()> {
        for process in self.processes.iter().filter(|process| !process.admin.is_empty()) {
            wait_process_ready(process, deadline).await?;
        }
        Ok(())
    }
}

impl Launch {
    /// From now on it listens where it listens now.
    fn pin(&mut self, addresses: &Addresses) {
        for (flag, address) in [
            ("--bind", &addresses.bind),
            ("--webhook-bind", &addresses.webhook),
            ("--admin-bind", &addresses.admin),
        ] {
            let at = self.arguments.iter().position(|word| word == flag);
            if let Some(value) = at.and_then(|at| self.arguments.get_mut(at + 1)) {
                value.clone_from(address);
            }
        }
    }
}

/// Flags that were given as variables: who starts a program again may have another environment.
fn flags_in_environment() -> BTreeMap<String, String> {
    let text = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    let flags = std::env::vars_os().filter_map(text);
    flags
        .filter(|(name, _)| {
            ["PORTOLAN_", "OTEL_", "SSL_CERT_"]
                .iter()
                .any(|start| name.starts_with(start))
        })
        .collect()
}

/// Waits until its `/readyz` is 200.
pub(crate) async fn wait_process_ready(process: &Process, deadline: Instant) -> anyhow::Result<()> {
    let look = async || match admin::get(&process.admin, "/readyz?verbose").await {
        Ok((200, _)) => Ok(()),
        Ok((_, body)) => Err(format!("is not ready:\n{}\n", String::from_utf8_lossy(&body))),
        Err(error) => Err(format!("is not ready:\n{error:#}\n")),
    };
    wait_for(process, deadline, look).await
}

async fn wait_addresses(process: &Process, file: &Path, deadline: Instant) -> anyhow::Result<Addresses> {
    let look = async || std::fs::read(file).map_err(|_| "did not start listening; ".to_owned());
    let written = wait_for(process, deadline, look).await?;
    serde_json::from_slice(&written).with_context(|| format!("{} is unreadable", file.display()))
}

/// Looks until something is found; tells why nothing was, and the end of the log, when the time is over.
async fn wait_for<T>(
    process: &Process,
    deadline: Instant,
    look: impl AsyncFn() -> Result<T, String>,
) -> anyhow::Result<T> {
    loop {
        process.check()?;
        let why = match look().await {
            Ok(found) => return Ok(found),
            Err(why) => why,
        };
        if Instant::now() > deadline {
            let (name, log) = (&process.name, process.log.display());
            bail!("{name} {why}the end of {log}:\n{}", process::tail(&process.log));
        }
        tokio::time::sleep(POLL).await;
    }
}

pub(crate) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_started_again_listens_where_it_did() {
        let words = ["--bind", "127.0.0.1:0", "--hub", "h:1", "--admin-bind", "127.0.0.1:0"];
        let mut launch = Launch {
            arguments: words.map(str::to_owned).to_vec(),
            ..Launch::default()
        };
        launch.pin(&Addresses {
            bind: "127.0.0.1:7".into(),
            webhook: String::new(),
            admin: "127.0.0.1:8".into(),
        });
        let pinned = ["--bind", "127.0.0.1:7", "--hub", "h:1", "--admin-bind", "127.0.0.1:8"];
        assert_eq!(launch.arguments, pinned);
    }
}
