//! `portolanctl dev restart` and `dev stop`: asks the supervisor, which alone starts programs, and waits until it is done.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::cli::DevProgramArgs;
use crate::dev::fleet::{Fleet, SUPERVISOR};
use crate::dev::process::{Process, tail};
use crate::dev::request::Request;
use crate::dev::{programs, supervise};

const POLL: Duration = Duration::from_millis(100);
/// A program has 15 s to end, and some to come back.
const PATIENCE: Duration = Duration::from_mins(1);

/// Returns when every program named runs anew and is ready, or has ended.
pub(crate) async fn run(request: Request, args: &DevProgramArgs) -> anyhow::Result<()> {
    let dir = args.fleet.dir.canonicalize().unwrap_or_else(|_| args.fleet.dir.clone());
    let before = Fleet::read(&dir)?;
    let mut named = Vec::new();
    for name in &args.programs {
        let all = || before.processes.iter().map(|process| process.name.as_str());
        let Some(process) = before.process(name) else {
            bail!(
                "the fleet has no program {name}: it has {}",
                all().collect::<Vec<_>>().join(", ")
            );
        };
        if name != SUPERVISOR {
            named.push(process);
        } else if request == Request::restart {
            process.stop().await;
        } else {
            bail!("the supervisor is not stopped alone: `portolanctl dev down` ends the fleet");
        }
    }
    if Fleet::read(&dir)?.supervisor().is_none() {
        println!("- starting the supervisor");
        supervise::start(&dir).await?;
    }
    for process in &named {
        println!("- {}: {request:?}", process.name);
        request.ask(&dir, &process.name)?;
    }
    let deadline = Instant::now() + PATIENCE;
    for process in named {
        until_done(request, process, &dir, deadline).await?;
    }
    Ok(())
}

async fn until_done(request: Request, before: &Process, dir: &Path, deadline: Instant) -> anyhow::Result<()> {
    let name = &before.name;
    loop {
        let fleet = Fleet::read(dir)?;
        let now = fleet
            .process(name)
            .with_context(|| format!("{name} is not recorded any more"))?;
        if request.is_done(before, now) {
            return match request {
                Request::restart if !now.admin.is_empty() => programs::wait_process_ready(now, deadline).await,
                _ => Ok(()),
            };
        }
        if Instant::now() > deadline {
            bail!(
                "{name} does not {request:?}; the end of {}:\n{}",
                now.log.display(),
                tail(&now.log)
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

impl Request {
    fn is_done(self, before: &Process, now: &Process) -> bool {
        match self {
            Self::restart => now.is_running() && !now.is_same(before),
            Self::stop => now.stopped && !now.is_running(),
        }
    }
}
