//! `portolanctl dev supervise`: runs beside a fleet, starts what ends again, with the same flags at the same ports, and
//! keeps its tokens fresh. Started by `up`, and anew by `restart`.
//!
//! There is one at a time, and it alone writes the record: it holds the fleet's lock, which the kernel lets go when it
//! ends in whatever way. The next one goes on from the record. Programs outlive it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::cli::DevDirArgs;
use crate::dev::fleet::{Fleet, SUPERVISOR};
use crate::dev::process::{self, Ends, Launch, Process};
use crate::dev::programs::text;
use crate::dev::renew;
use crate::dev::request::Request;

const POLL: Duration = Duration::from_millis(200);
/// A program that ran this long has started well.
const STABLE_SECONDS: i64 = 30;
/// Longest pause before the next start of a program that ends again and again.
const LONGEST_PAUSE: i64 = 30;
/// A supervisor records itself at once, unless it is one of two: then it ends, and the other one does.
const RECORDED_WITHIN: Duration = Duration::from_secs(20);
const OTHER_RECORDED_WITHIN: Duration = Duration::from_secs(2);

/// Until a signal comes or the fleet's record is gone.
pub(crate) async fn run(args: &DevDirArgs) -> anyhow::Result<()> {
    let dir = args.dir.canonicalize().context("cannot find the fleet's folder")?;
    let Some(_lock) = Fleet::lock(&dir)? else {
        bail!("another supervisor is at work in {}", dir.display());
    };
    let mut fleet = Fleet::read(&dir)?;
    record_myself(&mut fleet)?;
    tokio::select! {
        () = look_after(&mut fleet) => {}
        () = renew::run(&dir) => {}
        _ = portolan_runtime::tasks::wait_for_signal() => {}
    }
    Ok(())
}

/// Starts one and waits until it has recorded itself. Whoever has the lock gives it up before.
pub(crate) async fn start(dir: &Path) -> anyhow::Result<()> {
    let launch = Launch {
        program: std::env::current_exe().context("cannot tell where portolanctl is")?,
        arguments: ["dev", "supervise", "--dir", &text(dir)].map(str::to_owned).to_vec(),
        ..Launch::default()
    };
    let started = process::spawn(SUPERVISOR, launch, &dir.join(format!("{SUPERVISOR}.log")))?;
    let begun = Instant::now();
    while Fleet::read(dir)?.supervisor().is_none() {
        if begun.elapsed() > OTHER_RECORDED_WITHIN {
            started.check()?;
        }
        if begun.elapsed() > RECORDED_WITHIN {
            bail!("the supervisor does not come up; see {}", started.log.display());
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

fn record_myself(fleet: &mut Fleet) -> anyhow::Result<()> {
    let pid = i32::try_from(std::process::id()).context("a pid fits an i32")?;
    let log = fleet.path(&format!("{SUPERVISOR}.log"));
    let myself = Process::of(SUPERVISOR, pid, Launch::default(), &log).context("this process runs")?;
    fleet.processes.retain(|process| process.name != SUPERVISOR);
    fleet.processes.push(myself);
    fleet.write()
}

/// Rounds until the record is gone: then the fleet was ended by somebody else.
async fn look_after(fleet: &mut Fleet) {
    let mut unwritten = false;
    while Fleet::exists(&fleet.dir) {
        for at in 0..fleet.processes.len() {
            if fleet.processes[at].name == SUPERVISOR {
                continue;
            }
            let request = Request::take(&fleet.dir, &fleet.processes[at].name);
            if let Some(request) = request {
                fleet.processes[at].obey(request).await;
            }
            // Without a pause between a start and the record of it.
            if fleet.processes[at].keep_up(Timestamp::now().as_second()) || request.is_some() || unwritten {
                unwritten = fleet.write().inspect_err(|error| eprintln!("{error:#}")).is_err();
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

impl Process {
    async fn obey(&mut self, request: Request) {
        println!("{}: {request:?} was asked for", self.name);
        self.stop().await;
        self.stopped = request == Request::stop;
        self.ends.in_a_row = 0;
        self.ends.next_start = (!self.stopped).then_some(0);
    }

    /// Starts it if it has ended and the time has come. True if there is something to record.
    fn keep_up(&mut self, now: i64) -> bool {
        // Lets the kernel forget it, if this process has started it and it has ended.
        let _ = waitpid(Pid::from_raw(self.pid), Some(WaitPidFlag::WNOHANG));
        if self.is_running() {
            let stable = self.ends.in_a_row > 0 && now - self.ends.last_start > STABLE_SECONDS;
            if stable {
                self.ends.in_a_row = 0;
            }
            return stable;
        }
        if self.stopped || self.launch == Launch::default() {
            return false;
        }
        match self.ends.next_start {
            None => {
                self.ends.count(now);
                let in_a_row = self.ends.in_a_row;
                println!(
                    "{} has ended, {in_a_row} times in a row, and is started again",
                    self.name
                );
            }
            Some(next) if now < next => return false,
            Some(_) => {}
        }
        if self.ends.next_start.is_none_or(|next| next <= now) {
            self.start_again(now);
        }
        true
    }

    fn start_again(&mut self, now: i64) {
        self.ends.last_start = now;
        let running = self.launch.running();
        let adopted = running.and_then(|pid| Self::of(&self.name, pid, self.launch.clone(), &self.log));
        let started = match adopted {
            Some(process) => Ok(process),
            None => process::spawn(&self.name, self.launch.clone(), &self.log),
        };
        match started {
            Ok(process) => {
                let before = std::mem::replace(self, process);
                self.admin = before.admin;
                self.ends = Ends {
                    next_start: None,
                    ..before.ends
                };
            }
            Err(error) => {
                eprintln!("{error:#}");
                self.ends.count(now);
            }
        }
    }
}

impl Ends {
    fn count(&mut self, now: i64) {
        self.all = self.all.saturating_add(1);
        let quick = now - self.last_start <= STABLE_SECONDS;
        self.in_a_row = if quick { self.in_a_row.saturating_add(1) } else { 1 };
        self.next_start = Some(now + pause(self.in_a_row));
    }
}

/// Seconds before the next start: none after a first end, twice as long after each further one.
fn pause(in_a_row: u32) -> i64 {
    match in_a_row {
        0 | 1 => 0,
        more => 1_i64
            .checked_shl(more - 2)
            .unwrap_or(LONGEST_PAUSE)
            .clamp(1, LONGEST_PAUSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fleet of one program, a shell script, whose record is in `dir`.
    fn fleet(dir: &Path, script: &str) -> Fleet {
        // The second word makes the command line like no other on this machine.
        let unique = dir.to_string_lossy().into_owned();
        let launch = Launch {
            program: "/bin/sh".into(),
            arguments: ["-c", script, &unique].map(str::to_owned).to_vec(),
            env: [("WORD".to_owned(), "from up".to_owned())].into(),
        };
        let program = process::spawn("router", launch, &dir.join("router.log")).unwrap();
        let fleet = Fleet {
            dir: dir.to_path_buf(),
            processes: vec![program],
            ..Fleet::default()
        };
        fleet.write().unwrap();
        fleet
    }

    /// Looks after the fleet until its record is as wanted.
    async fn until(fleet: &mut Fleet, wanted: impl Fn(&Process) -> bool) -> Process {
        let dir = fleet.dir.clone();
        let seen = async {
            loop {
                let recorded = Fleet::read(&dir).unwrap().processes.remove(0);
                if wanted(&recorded) {
                    return recorded;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            () = look_after(fleet) => panic!("it ended"),
            seen = seen => seen,
            () = tokio::time::sleep(Duration::from_mins(1)) => panic!("not so: {:?}", fleet.processes),
        }
    }

    const SLEEP: &str = "echo \"$WORD\"; while :; do sleep 0.1; done";

    #[tokio::test]
    async fn what_was_killed_comes_back_as_it_was_and_what_was_stopped_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let mut fleet = fleet(dir.path(), SLEEP);
        let first = fleet.processes[0].clone();
        let log = || std::fs::read_to_string(&first.log).unwrap();
        until(&mut fleet, |_| log() == "from up\n").await;
        kill_hard(&first);
        let second = until(&mut fleet, Process::is_running).await;
        assert!(!second.is_same(&first));
        assert_eq!(
            (&second.launch, second.ends.all, second.ends.in_a_row),
            (&first.launch, 1, 1)
        );
        until(&mut fleet, |_| log() == "from up\nfrom up\n").await;

        Request::stop.ask(dir.path(), "router").unwrap();
        let stopped = until(&mut fleet, |now| now.stopped).await;
        assert!(!stopped.is_running());
        let after = tokio::time::timeout(3 * POLL, look_after(&mut fleet)).await;
        assert!(after.is_err() && !fleet.processes[0].is_running(), "it stays stopped");

        Request::restart.ask(dir.path(), "router").unwrap();
        let third = until(&mut fleet, Process::is_running).await;
        assert_eq!((third.ends.all, third.stopped), (1, false), "asked for, it is no end");
        kill_hard(&third);
    }

    #[tokio::test]
    async fn one_that_ends_at_each_start_is_started_less_and_less() {
        let dir = tempfile::tempdir().unwrap();
        let mut fleet = fleet(dir.path(), "sleep 0.3; echo no; exit 1");
        let thrice = until(&mut fleet, |now| {
            now.ends.in_a_row == 3 && now.ends.next_start.is_some()
        })
        .await;
        let wait = thrice.ends.next_start.unwrap() - thrice.ends.last_start;
        assert!(wait >= 2, "{wait}");
        // Who asks for it need not wait.
        Request::restart.ask(dir.path(), "router").unwrap();
        until(&mut fleet, |now| now.ends.in_a_row == 1).await;
        assert_eq!([0, 1, 2, 3, 4, 7, 40, u32::MAX].map(pause), [0, 0, 1, 2, 4, 30, 30, 30]);
    }

    #[tokio::test]
    async fn what_a_killed_supervisor_had_started_is_found_and_not_started_twice() {
        let dir = tempfile::tempdir().unwrap();
        let mut fleet = fleet(dir.path(), SLEEP);
        let unrecorded = fleet.processes[0].clone();
        // What is recorded ended long ago, and another program has its pid.
        fleet.processes[0].pid = 1;
        fleet.write().unwrap();
        let found = until(&mut fleet, Process::is_running).await;
        assert!(found.is_same(&unrecorded));
        kill_hard(&found);
    }

    #[tokio::test]
    async fn there_is_one_supervisor_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut fleet = fleet(dir.path(), SLEEP);
        let args = DevDirArgs {
            dir: dir.path().to_path_buf(),
        };
        let lock = Fleet::lock(dir.path()).unwrap();
        let error = run(&args).await.unwrap_err().to_string();
        assert!(error.contains("another supervisor is at work"), "{error}");
        drop(lock);
        // The one before was killed: it is recorded, and does not run.
        record_myself(&mut fleet).unwrap();
        let last = fleet.processes.len() - 1;
        fleet.processes[last].pid = 1;
        fleet.write().unwrap();
        let recorded = async {
            while Fleet::read(dir.path()).unwrap().supervisor().is_none() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            std::fs::remove_file(dir.path().join("fleet.json")).unwrap();
        };
        let (ended, ()) = tokio::join!(run(&args), recorded);
        ended.unwrap();
        kill_hard(&fleet.processes[0]);
    }

    fn kill_hard(process: &Process) {
        use nix::sys::signal::{Signal, killpg};
        killpg(Pid::from_raw(process.pid), Signal::SIGKILL).unwrap();
        while process.is_running() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
