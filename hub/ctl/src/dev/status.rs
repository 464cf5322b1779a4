//! `portolanctl dev status`: which programs run, whether each is ready, and what the hub is still waiting for.

use anyhow::bail;
use jiff::Timestamp;
use serde::Serialize;

use crate::admin;
use crate::cli::DevStatusArgs;
use crate::connect::connect;
use crate::dev::fleet::{Fleet, SUPERVISOR};
use crate::dev::process::{self, Process};
use crate::dev::ready;
use crate::table::Table;

const UNSUPERVISED: &str =
    "nothing is started again when it ends, and tokens run out; `dev restart supervisor` starts it";
const READY: &str = "ready";
const STOPPED: &str = "stopped";
const ENDED: &str = "ended";
/// Of what a program logged last.
const LAST_LINES: usize = 3;

/// What `-o json` prints; the table has the same.
#[derive(Serialize)]
struct Status {
    programs: Vec<Program>,
    router: String,
    /// What is not yet as it should be, in words. `None`: the hub did not tell.
    missing: Option<Vec<String>>,
}

#[derive(Serialize)]
struct Program {
    name: String,
    pid: i32,
    state: &'static str,
    /// How often it has ended unasked and was started again.
    restarts: u32,
    admin: String,
    log: String,
    /// Why it is not ready, and what becomes of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    wrong: Option<String>,
}

/// Fails when anything is not as it should be, so that scripts can ask.
pub(crate) async fn run(args: &DevStatusArgs) -> anyhow::Result<()> {
    let fleet = Fleet::read(&args.fleet.dir)?;
    let supervised = fleet.supervisor().is_some();
    let mut programs = Vec::new();
    for process in &fleet.processes {
        programs.push(look_at(process, supervised).await);
    }
    if fleet.process(SUPERVISOR).is_none() {
        programs.push(no_supervisor());
    }
    let missing = missing(&fleet).await;
    let status = Status {
        programs,
        router: fleet.router_url,
        missing: missing.as_ref().ok().cloned(),
    };
    args.output.print(&status, report)?;
    let missing = missing?.len();
    let unwell = status.programs.iter().filter(|program| program.state != READY).count();
    if unwell > 0 || missing > 0 {
        bail!(
            "{}; {missing} conditions are not as they should be",
            run_of(&status.programs)
        );
    }
    Ok(())
}

async fn look_at(process: &Process, supervised: bool) -> Program {
    let readyz = if process.admin.is_empty() {
        Ok(())
    } else {
        match admin::get(&process.admin, "/readyz?verbose").await {
            Ok((200, _)) => Ok(()),
            Ok((_, body)) => Err(unready(&String::from_utf8_lossy(&body))),
            Err(error) => Err(format!("{error:#}")),
        }
    };
    let (state, wrong) = if process.is_running() {
        match readyz {
            Ok(()) => (READY, None),
            Err(why) => ("not ready", Some(why)),
        }
    } else if process.stopped {
        (STOPPED, Some("was asked to stop; `dev restart` starts it".to_owned()))
    } else {
        (ENDED, Some(what_becomes_of(process, supervised)))
    };
    Program {
        name: process.name.clone(),
        pid: process.pid,
        state,
        restarts: process.ends.all,
        admin: process.admin.clone(),
        log: process.log.display().to_string(),
        wrong,
    }
}

/// A fleet whose `up` did not come so far, or of a release without one.
fn no_supervisor() -> Program {
    Program {
        name: SUPERVISOR.to_owned(),
        pid: 0,
        state: ENDED,
        restarts: 0,
        admin: String::new(),
        log: String::new(),
        wrong: Some(UNSUPERVISED.to_owned()),
    }
}

/// The lines of `/readyz?verbose` that do not say yes.
fn unready(readyz: &str) -> String {
    let unmet: Vec<&str> = readyz.lines().filter_map(|line| line.strip_prefix("[-]")).collect();
    unmet.join("; ")
}

fn what_becomes_of(process: &Process, supervised: bool) -> String {
    if process.name == SUPERVISOR {
        return UNSUPERVISED.to_owned();
    }
    let log = process::tail(&process.log);
    let lines: Vec<&str> = log.lines().collect();
    let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n  ");
    let next = process.ends.next_start.unwrap_or_default();
    let wait = next.saturating_sub(Timestamp::now().as_second()).max(0);
    let becomes = match (supervised, process.ends.in_a_row) {
        (false, _) => "nobody starts it again".to_owned(),
        (true, 0 | 1) => "is started again".to_owned(),
        (true, times) => format!("ended {times} times in a row and is started again in {wait} s"),
    };
    format!("{becomes}; the end of {}:\n  {last}", process.log.display())
}

/// How many there are of how many, in words.
fn run_of(programs: &[Program]) -> String {
    let run = programs
        .iter()
        .filter(|program| ![STOPPED, ENDED].contains(&program.state));
    format!("{} of {} programs run", run.count(), programs.len())
}

async fn missing(fleet: &Fleet) -> anyhow::Result<Vec<String>> {
    let hub = connect("the hub", Some(&fleet.hub_kubeconfig)).await?;
    Ok(ready::missing(&hub.client, fleet).await?.lines)
}

fn report(status: &Status) -> String {
    let mut table = Table::new(&["PROGRAM", "PID", "STATE", "RESTARTS", "ADMIN", "LOG"]);
    for program in &status.programs {
        table.row(vec![
            program.name.clone(),
            program.pid.to_string(),
            program.state.into(),
            program.restarts.to_string(),
            program.admin.clone(),
            program.log.clone(),
        ]);
    }
    let mut text = format!("{table}router {}\n{}\n", status.router, run_of(&status.programs));
    let wrong = status.programs.iter().filter_map(|program| {
        let (name, state, wrong) = (&program.name, program.state, program.wrong.as_ref()?);
        Some(format!("{name} {state}: {wrong}"))
    });
    let wrong: Vec<String> = wrong.collect();
    for line in wrong.iter().chain(status.missing.iter().flatten()) {
        text.push_str(line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn program(name: &str, state: &'static str) -> Program {
        Program {
            name: name.into(),
            pid: 7,
            state,
            restarts: 2,
            admin: "127.0.0.1:9".into(),
            log: format!("fleet/{name}.log"),
            wrong: (state != READY).then(|| "snapshot waiting for the hub".into()),
        }
    }

    #[test]
    fn people_and_programs_are_told_the_same() {
        let mut status = Status {
            programs: vec![
                program("hub", READY),
                program("router", "not ready"),
                program("agent", ENDED),
            ],
            router: "https://127.0.0.1:8443".into(),
            missing: Some(vec!["MemberCluster east: Joined is not reported yet".into()]),
        };
        let lines = [
            "PROGRAM   PID   STATE       RESTARTS   ADMIN         LOG",
            "hub       7     ready       2          127.0.0.1:9   fleet/hub.log",
            "router    7     not ready   2          127.0.0.1:9   fleet/router.log",
            "agent     7     ended       2          127.0.0.1:9   fleet/agent.log",
            "router https://127.0.0.1:8443",
            "2 of 3 programs run",
            "router not ready: snapshot waiting for the hub",
            "agent ended: snapshot waiting for the hub",
            "MemberCluster east: Joined is not reported yet",
        ];
        assert_eq!(report(&status), lines.join("\n") + "\n");
        let told = serde_json::to_value(&status).unwrap();
        let hub = json!({"name": "hub", "pid": 7, "state": "ready", "restarts": 2, "admin": "127.0.0.1:9", "log": "fleet/hub.log"});
        assert_eq!(
            (&told["programs"][0], &told["programs"][1]["wrong"]),
            (&hub, &json!("snapshot waiting for the hub"))
        );
        assert_eq!(
            told["missing"],
            json!(["MemberCluster east: Joined is not reported yet"])
        );
        status.missing = None;
        assert!(serde_json::to_value(&status).unwrap()["missing"].is_null());
    }

    #[tokio::test]
    async fn a_program_that_ended_says_how_often_and_what_it_said_last() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("hub.log");
        std::fs::write(&log, "one\ntwo\nthree\nport 1 is taken\n").unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        let mut process = Process::of("hub", pid, process::Launch::default(), &log).unwrap();
        // Another program has the pid by now.
        process.pid = 1;
        process.ends.in_a_row = 4;
        process.ends.next_start = Some(Timestamp::now().as_second() + 8);
        let look = look_at(&process, true).await;
        let wrong = look.wrong.unwrap();
        assert_eq!(look.state, ENDED);
        assert!(
            wrong.contains("ended 4 times in a row and is started again in "),
            "{wrong}"
        );
        assert!(wrong.ends_with("two\n  three\n  port 1 is taken"), "{wrong}");
        let alone = look_at(&process, false).await.wrong.unwrap();
        assert!(alone.contains("nobody starts it again"), "{alone}");
        process.stopped = true;
        assert_eq!(look_at(&process, true).await.state, STOPPED);
    }

    #[test]
    fn only_what_is_unmet_is_told() {
        let page = "[+]identity ok\n[-]snapshot waiting for the hub\nnot ready\n";
        assert_eq!(unready(page), "snapshot waiting for the hub");
    }
}
