//! `portolanctl dev status`: which programs run, whether each is ready, and what the hub is still waiting for.

use anyhow::bail;

use crate::cli::DevDirArgs;
use crate::connect::connect;
use crate::dev::fleet::Fleet;
use crate::dev::ready;
use crate::router;
use crate::table::Table;

/// Fails when anything is not as it should be, so that scripts can ask.
pub(crate) async fn run(args: &DevDirArgs) -> anyhow::Result<()> {
    let fleet = Fleet::read(&args.dir)?;
    let mut table = Table::new(&["PROGRAM", "PID", "STATE", "ADMIN", "LOG"]);
    let mut unwell = 0;
    for process in &fleet.processes {
        let ready = process.admin.is_empty() || matches!(router::get(&process.admin, "/readyz").await, Ok((200, _)));
        let state = match (process.is_running(), ready) {
            (false, _) => "ended",
            (true, false) => "not ready",
            (true, true) => "ready",
        };
        unwell += usize::from(state != "ready");
        table.row(vec![
            process.name.clone(),
            process.pid.to_string(),
            state.into(),
            process.admin.clone(),
            process.log.display().to_string(),
        ]);
    }
    table.print();
    println!("router {}", fleet.router_url);
    let hub = connect("the hub", Some(&fleet.hub_kubeconfig)).await?;
    let missing = ready::missing(&hub.client, &fleet).await?.lines;
    for line in &missing {
        println!("{line}");
    }
    if unwell > 0 || !missing.is_empty() {
        bail!(
            "{unwell} programs and {} conditions are not as they should be",
            missing.len()
        );
    }
    Ok(())
}
