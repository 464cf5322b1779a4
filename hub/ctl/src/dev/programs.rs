//! Starting the programs of a fleet and waiting until each says where it listens and that it is ready.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde::Deserialize;

use crate::admin;
use crate::dev::fleet::Fleet;
use crate::dev::process::{self, Process};

const POLL: Duration = Duration::from_millis(100);

/// What a program writes to its `--addresses-file`.
#[derive(Debug, Deserialize)]
pub(crate) struct Addresses {
    #[serde(default)]
    pub(crate) bind: String,
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
    /// Starts one program, waits until it tells its addresses, records it.
    pub(crate) async fn start(
        &mut self,
        name: &str,
        program: &str,
        mut arguments: Vec<String>,
        deadline: Instant,
    ) -> anyhow::Result<Addresses> {
        let addresses_file = self.path(&format!("{name}.addresses.json"));
        let _ = std::fs::remove_file(&addresses_file);
        arguments.extend([
            "--admin-bind".into(),
            "127.0.0.1:0".into(),
            "--addresses-file".into(),
            text(&addresses_file),
        ]);
        arguments.extend(["--log-format".into(), "json".into()]);
        if let Some(otlp) = &self.otlp {
            arguments.extend([
                "--otlp-endpoint".into(),
                otlp.clone(),
                "--trace-sample-ratio".into(),
                "1".into(),
            ]);
        }
        let log = self.path(&format!("{name}.log"));
        let started = process::spawn(name, &find(program)?, &arguments, &log)?;
        self.processes.push(started.clone());
        self.write()?;
        let addresses = wait_addresses(&started, &addresses_file, deadline).await?;
        if let Some(recorded) = self.processes.last_mut() {
            recorded.admin.clone_from(&addresses.admin);
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

pub(crate) async fn wait_process_ready(process: &Process, deadline: Instant) -> anyhow::Result<()> {
    loop {
        process.check()?;
        let answer = admin::get(&process.admin, "/readyz?verbose").await;
        let why = match answer {
            Ok((200, _)) => return Ok(()),
            Ok((_, body)) => String::from_utf8_lossy(&body).into_owned(),
            Err(error) => format!("{error:#}"),
        };
        if Instant::now() > deadline {
            bail!(
                "{} is not ready:\n{why}\nthe end of {}:\n{}",
                process.name,
                process.log.display(),
                process::tail(&process.log)
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn wait_addresses(process: &Process, file: &Path, deadline: Instant) -> anyhow::Result<Addresses> {
    loop {
        process.check()?;
        if let Ok(bytes) = std::fs::read(file) {
            return serde_json::from_slice(&bytes).with_context(|| format!("{} is unreadable", file.display()));
        }
        if Instant::now() > deadline {
            bail!(
                "{} did not start listening; the end of {}:\n{}",
                process.name,
                process.log.display(),
                process::tail(&process.log)
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

pub(crate) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
