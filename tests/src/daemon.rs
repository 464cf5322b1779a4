//! One program of ours that a test runs itself: stopped and started again on the same addresses, its exit code seen.
//!
//! It ends with this process whatever happens to it: a small shell holds the other end of a pipe, as in the testbed. Not
//! for whole fleets, which `portolanctl dev up` starts; [`Fleet::take_over`](crate::Fleet::take_over) makes one of a
//! fleet's programs a `Daemon`.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use portolan_testbed::eventually;
use serde_json::Value;

use crate::programs::{admin_get, argument, program};

/// Prints the program's pid, ends with its code, and kills it when our end of the pipe closes.
const SUPERVISOR: &str = r#"
exec 3<&0 </dev/null
"$@" 3<&- >&2 &
child=$!
echo $child
exec >&2
{ read -r line <&3; kill -9 $child; } 2>/dev/null &
reader=$!
wait $child
code=$?
kill $reader
exit $code
"#;

/// Waits until a program can listen there: while ours was away, some connection may have been given the port to begin from.
async fn until_free(address: &str) {
    if address.is_empty() {
        return;
    }
    let bind = || async { TcpListener::bind(address).map(drop).map_err(|error| error.to_string()) };
    eventually(&format!("{address} is free"), bind).await;
}

/// What to run, and where its log and addresses go.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Names its files.
    pub name: String,
    /// Program of this workspace.
    pub program: String,
    /// All but `--admin-bind` and `--addresses-file`, which are added.
    pub arguments: Vec<String>,
    /// Beside this process's own.
    pub env: Vec<(String, String)>,
    /// Folder of its files.
    pub dir: PathBuf,
}

/// A program that was started; maybe it runs.
#[derive(Debug)]
pub struct Daemon {
    launch: Launch,
    /// Before the program.
    wrapper: Vec<String>,
    running: Option<Running>,
    bind: String,
    /// Of a hub: where it is asked about writes.
    webhook: String,
    admin: String,
}

#[derive(Debug)]
struct Running {
    supervisor: Child,
    _leash: ChildStdin,
    pid: Pid,
}

impl Daemon {
    /// Starts it and returns when it has told its addresses, which it keeps from then on.
    pub async fn start(launch: Launch) -> anyhow::Result<Self> {
        let mut daemon = Self {
            launch,
            wrapper: Vec::new(),
            running: None,
            bind: String::new(),
            webhook: String::new(),
            admin: "127.0.0.1:0".to_owned(),
        };
        daemon.start_again().await?;
        Ok(daemon)
    }

    /// Another one with the same flags, on ports of its own, with these variables besides.
    pub async fn another(&self, name: &str, env: &[(&str, &str)]) -> anyhow::Result<Self> {
        let mut launch = self.launch.clone();
        name.clone_into(&mut launch.name);
        let owned = env.iter().map(|&(key, value)| (key.to_owned(), value.to_owned()));
        launch.env.extend(owned);
        Self::start(launch).await
    }

    /// A program that has run elsewhere and is to run here from now on, with those addresses.
    pub(crate) async fn adopt(launch: Launch, addresses: &Value) -> anyhow::Result<Self> {
        let text = |key: &str| addresses[key].as_str().unwrap_or_default().to_owned();
        let mut daemon = Self {
            launch,
            wrapper: Vec::new(),
            running: None,
            bind: text("bind"),
            webhook: text("webhook"),
            admin: text("admin"),
        };
        daemon.start_again().await?;
        Ok(daemon)
    }

    /// Starts it on the addresses it had before.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        self.start_with(&[]).await
    }

    /// With this variable, or without it, when it is started the next time.
    pub fn set_env(&mut self, name: &str, value: Option<&str>) {
        self.launch.env.retain(|(known, _)| known != name);
        let set = value.map(|value| (name.to_owned(), value.to_owned()));
        self.launch.env.extend(set);
    }

    /// Started by this command, which must become the program that is the rest of its arguments; empty for none.
    pub fn set_wrapper(&mut self, command: &[&str]) {
        self.wrapper = command.iter().map(|&word| word.to_owned()).collect();
    }

    /// The same, with these values of flags for this run, whatever they were.
    pub async fn start_with(&mut self, flags: &[(&str, &str)]) -> anyhow::Result<()> {
        ensure!(self.running.is_none(), "{} runs already", self.launch.name);
        let file = self.file("addresses.json");
        let _ = std::fs::remove_file(&file);
        let mut arguments = with_value(&self.launch.arguments, "--admin-bind", &self.admin);
        if !self.bind.is_empty() {
            arguments = with_value(&arguments, "--bind", &self.bind);
        }
        if !self.webhook.is_empty() {
            arguments = with_value(&arguments, "--webhook-bind", &self.webhook);
        }
        arguments = with_value(&arguments, "--addresses-file", &argument(&file));
        for (flag, value) in flags {
            arguments = with_value(&arguments, flag, value);
        }
        for address in [&self.bind, &self.webhook, &self.admin] {
            until_free(address).await;
        }
        self.running = Some(self.spawn(&arguments)?);
        let what = format!("{} tells its addresses", self.launch.name);
        let told = eventually(&what, || std::future::ready(self.told(&file))).await;
        let addresses = told?;
        let text = |key: &str| addresses[key].as_str().unwrap_or_default().to_owned();
        (self.bind, self.webhook, self.admin) = (text("bind"), text("webhook"), text("admin"));
        Ok(())
    }

    /// The addresses, an error that ends the wait if the program has ended, `None` while there is nothing.
    fn told(&mut self, file: &Path) -> Option<anyhow::Result<Value>> {
        if let Ok(bytes) = std::fs::read(file) {
            return Some(serde_json::from_slice(&bytes).context("unreadable addresses"));
        }
        let running = self.running.as_mut()?;
        let ended = running.supervisor.try_wait().ok().flatten()?;
        let log = std::fs::read_to_string(self.log_file()).unwrap_or_default();
        Some(Err(anyhow::anyhow!("{} ended ({ended}):\n{log}", self.launch.name)))
    }

    fn spawn(&self, arguments: &[String]) -> anyhow::Result<Running> {
        let log = self.log_file();
        let output = File::options().create(true).append(true).open(&log);
        let mut supervisor = Command::new("sh")
            .args(["-c", SUPERVISOR, "sh"])
            .args(&self.wrapper)
            .arg(program(&self.launch.program)?)
            .args(arguments)
            .envs(self.launch.env.iter().cloned())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(output.with_context(|| format!("cannot open {}", log.display()))?)
            .spawn()
            .context("cannot start a shell")?;
        let leash = supervisor.stdin.take().context("a piped stdin")?;
        let mut line = String::new();
        BufReader::new(supervisor.stdout.take().context("a piped stdout")?).read_line(&mut line)?;
        let pid = line.trim().parse().context("the shell tells no pid")?;
        Ok(Running {
            supervisor,
            _leash: leash,
            pid: Pid::from_raw(pid),
        })
    }

    /// Address of its service; empty for an agent.
    pub fn bind(&self) -> &str {
        &self.bind
    }

    /// Of a hub: the URL at which the API server asks it about writes.
    pub fn webhook_url(&self) -> String {
        format!("https://{}/shardingconfigs", self.webhook)
    }

    /// Address of its admin server.
    pub fn admin(&self) -> &str {
        &self.admin
    }

    /// Everything it has logged, over all runs.
    pub fn log(&self) -> anyhow::Result<String> {
        std::fs::read_to_string(self.log_file()).context("no log")
    }

    /// Its log file.
    pub fn log_file(&self) -> PathBuf {
        self.file("log")
    }

    fn file(&self, end: &str) -> PathBuf {
        self.launch.dir.join(format!("{}.{end}", self.launch.name))
    }

    /// Waits until `/readyz` says yes.
    pub async fn ready(&self) {
        let what = format!("{} is ready", self.launch.name);
        eventually(&what, || admin_get(&self.admin, "/readyz")).await;
    }

    /// Its process, while it runs.
    pub fn pid(&self) -> Option<i32> {
        self.running.as_ref().map(|running| running.pid.as_raw())
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let running = self.running.as_ref().context("it does not run")?;
        kill(running.pid, signal).with_context(|| format!("cannot signal {}", self.launch.name))
    }

    /// Waits for its end and returns its exit code, 128 and the signal's number if one ended it.
    pub async fn ended(&mut self) -> anyhow::Result<i32> {
        let Some(running) = &mut self.running else {
            bail!("{} does not run", self.launch.name)
        };
        let what = format!("{} ends", self.launch.name);
        let supervisor = &mut running.supervisor;
        let status = eventually(&what, || std::future::ready(supervisor.try_wait().ok().flatten())).await;
        self.running = None;
        let signalled = || status.signal().map(|signal| 128 + signal);
        status.code().or_else(signalled).context("no exit code")
    }

    /// SIGTERM, and waits for its end.
    pub async fn stop(&mut self) -> anyhow::Result<i32> {
        self.signal(Signal::SIGTERM)?;
        self.ended().await
    }

    /// SIGKILL, and waits for its end.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.ended().await.map(drop)
    }

    /// Whether it was started and not seen to end.
    pub fn is_started(&self) -> bool {
        self.running.is_some()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(running) = &mut self.running {
            // It may have ended by itself; the shell ends in both cases.
            let _ = kill(running.pid, Signal::SIGKILL);
            let _ = running.supervisor.wait();
        }
    }
}

/// The arguments with one value for `flag`, replaced or added.
pub(crate) fn with_value(arguments: &[String], flag: &str, value: &str) -> Vec<String> {
    let mut arguments = arguments.to_vec();
    if let Some(at) = arguments.iter().position(|argument| argument == flag) {
        arguments.drain(at..(at + 2).min(arguments.len()));
    }
    arguments.extend([flag.to_owned(), value.to_owned()]);
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_has_one_value() {
        let arguments = ["--bind", "a:0", "--x"].map(str::to_owned);
        assert_eq!(with_value(&arguments, "--bind", "a:1"), ["--x", "--bind", "a:1"]);
        assert_eq!(with_value(&[], "--bind", "a:1"), ["--bind", "a:1"]);
    }
}
