//! `portolanctl dev status`: which programs run, whether each is ready, and what the hub is still waiting for.

use anyhow::bail;
use serde::Serialize;

use crate::admin;
use crate::cli::DevStatusArgs;
use crate::connect::connect;
use crate::dev::fleet::Fleet;
use crate::dev::process::Process;
use crate::dev::ready;
use crate::table::Table;

const READY: &str = "ready";

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
    admin: String,
    log: String,
}

/// Fails when anything is not as it should be, so that scripts can ask.
pub(crate) async fn run(args: &DevStatusArgs) -> anyhow::Result<()> {
    let fleet = Fleet::read(&args.fleet.dir)?;
    let mut programs = Vec::new();
    for process in &fleet.processes {
        programs.push(look_at(process).await);
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
        bail!("{unwell} programs and {missing} conditions are not as they should be");
    }
    Ok(())
}

async fn look_at(process: &Process) -> Program {
    let ready = process.admin.is_empty() || matches!(admin::get(&process.admin, "/readyz").await, Ok((200, _)));
    Program {
        name: process.name.clone(),
        pid: process.pid,
        state: match (process.is_running(), ready) {
            (false, _) => "ended",
            (true, false) => "not ready",
            (true, true) => READY,
        },
        admin: process.admin.clone(),
        log: process.log.display().to_string(),
    }
}

async fn missing(fleet: &Fleet) -> anyhow::Result<Vec<String>> {
    let hub = connect("the hub", Some(&fleet.hub_kubeconfig)).await?;
    Ok(ready::missing(&hub.client, fleet).await?.lines)
}

fn report(status: &Status) -> String {
    let mut table = Table::new(&["PROGRAM", "PID", "STATE", "ADMIN", "LOG"]);
    for program in &status.programs {
        table.row(vec![
            program.name.clone(),
            program.pid.to_string(),
            program.state.into(),
            program.admin.clone(),
            program.log.clone(),
        ]);
    }
    let mut text = format!("{table}router {}\n", status.router);
    for line in status.missing.iter().flatten() {
        text.push_str(line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn people_and_programs_are_told_the_same() {
        let mut status = Status {
            programs: vec![Program {
                name: "hub".into(),
                pid: 7,
                state: "not ready",
                admin: "127.0.0.1:9".into(),
                log: "fleet/hub.log".into(),
            }],
            router: "https://127.0.0.1:8443".into(),
            missing: Some(vec!["MemberCluster east: Joined is not reported yet".into()]),
        };
        let lines = [
            "PROGRAM   PID   STATE       ADMIN         LOG",
            "hub       7     not ready   127.0.0.1:9   fleet/hub.log",
            "router https://127.0.0.1:8443",
            "MemberCluster east: Joined is not reported yet",
        ];
        assert_eq!(report(&status), lines.join("\n") + "\n");
        let program =
            json!({"name": "hub", "pid": 7, "state": "not ready", "admin": "127.0.0.1:9", "log": "fleet/hub.log"});
        let told = json!({
            "programs": [program],
            "router": "https://127.0.0.1:8443",
            "missing": ["MemberCluster east: Joined is not reported yet"],
        });
        assert_eq!(serde_json::to_value(&status).unwrap(), told);
        status.missing = None;
        assert!(serde_json::to_value(&status).unwrap()["missing"].is_null());
    }
}
