//! What a GET and an event cost the router beside a plain hyper forwarder, in instructions, in the same run and by the same tool.
//!
//! With a Pod of 4 KiB and a token of 1 KB; one request at a time, and some at once, where wake-ups are shared. Events of 3 KB come
//! so slowly that each has a wake-up of its own. HAProxy stands beside them if it is in `PATH`, and callgrind tells by cause what each
//! spends. Caller: `run`, which fails if the router costs more than it may.

use std::path::Path;

use anyhow::Context as _;

use crate::backend::POD;
use crate::child::Child;
use crate::counter::{NEVER_SHED, Tool};
use crate::load::{Client, Route};
use crate::peers::events::{Amount, Watching};
use crate::peers::foreign::{Foreign, Kind, Way};
use crate::peers::lanes::quiet;
use crate::place::Subject;
use crate::report::{AT_ONCE, InstructionsRow, InstructionsSection};
use crate::scripted::{CLUSTER, Scripted, TOKEN_BYTES, What};
use crate::usage;

/// Connections and caches are as they are for long when it is counted.
const WARM: usize = 300;
const WATCHES: usize = 20;
/// Over all watches, milliseconds apart: under valgrind, too, each is over before the next.
const EVENTS_PER_SECOND: u64 = 100;

pub(crate) async fn run(flags: &[String], requests: usize, step: fn(&str)) -> anyhow::Result<InstructionsSection> {
    let tool = Tool::choose()?;
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let flags = &[flags, &[NEVER_SHED.to_owned()]].concat();
    step(&format!("instructions: starting, by {}", tool.name()));
    let what = What {
        router_flags: flags.clone(),
        router_by: tool.wrapper(folder.path()),
        forwarder_by: tool.wrapper(folder.path()),
        token_bytes: TOKEN_BYTES,
        // The one that events are of.
        pods: 1,
        ..What::default()
    };
    let mut scripted = Scripted::of(what).await?;
    let mut started = Started::start(&mut scripted, tool.wrapper(folder.path()), flags).await?;
    let subjects = started.subjects(&mut scripted).await?;
    let members = scripted.direct_routes().await?;
    let events = Amount {
        watches: WATCHES,
        watches_per_connection: WATCHES,
        rate: EVENTS_PER_SECOND,
        seconds: (requests as u64 / EVENTS_PER_SECOND).max(1),
    };
    let mut section = InstructionsSection {
        tool: tool.name(),
        requests,
        events: usize::try_from(events.rate * events.seconds)?,
        ..InstructionsSection::default()
    };
    for subject in subjects {
        step(&format!("instructions: {}", subject.name));
        let row = async {
            let mut row = count(&subject, tool, folder.path(), requests).await?;
            row.event = count_events(&subject, tool, folder.path(), (&members, events)).await?;
            anyhow::Ok(row)
        };
        let row = row.await.with_context(|| subject.name)?;
        section.add(row, subject.name.starts_with("router"));
    }
    Ok(section)
}

/// What is counted beside the programs of [`Scripted`].
struct Started {
    /// A router without access lines.
    silent: Child,
    haproxy: Option<Foreign>,
}

impl Started {
    async fn start(scripted: &mut Scripted, by: Vec<String>, flags: &[String]) -> anyhow::Result<Self> {
        let hub = scripted.hub.address.to_string();
        let mut silent = scripted.another_router("quiet", &hub, &quiet(flags))?;
        silent.ready().await?;
        scripted.router.ready().await?;
        let haproxy = haproxy(scripted, by).await?;
        Ok(Self { silent, haproxy })
    }

    async fn subjects(&mut self, scripted: &mut Scripted) -> anyhow::Result<Vec<Subject>> {
        let forwarder = scripted.forwarder.address("bind").await?;
        let router = scripted.router.address("bind").await?;
        let silent_at = self.silent.address("bind").await?;
        let explicit = format!("/clusters/{CLUSTER}");
        let (loud, silent) = (scripted.router.pid(), self.silent.pid());
        let mut routes = vec![
            ("plain hyper", scripted.to_server(&forwarder)?, scripted.forwarder.pid()),
            ("router, explicit", scripted.to_router(&router, &explicit)?, loud),
            ("router, merged", scripted.to_router(&router, "")?, loud),
            (
                "no access lines, explicit",
                scripted.to_router(&silent_at, &explicit)?,
                silent,
            ),
            ("no access lines, merged", scripted.to_router(&silent_at, "")?, silent),
        ];
        if let Some(haproxy) = &self.haproxy {
            let route = scripted.to_server(&haproxy.address.to_string())?;
            routes.push(("HAProxy", route, haproxy.child.pid()));
        }
        let subject = |(name, route, pid)| Subject::new(name, route, Some(pid));
        Ok(routes.into_iter().map(subject).collect())
    }
}

/// Started as a program that is counted; none: its program is missing.
async fn haproxy(scripted: &mut Scripted, mut by: Vec<String>) -> anyhow::Result<Option<Foreign>> {
    if Kind::Haproxy.version().is_none() {
        return Ok(None);
    }
    if by.is_empty() {
        by.push("env".to_owned());
    }
    let way = Way {
        dir: scripted.dir.path().to_owned(),
        identity: scripted.server_identity.clone(),
        ca: scripted.server_ca.clone(),
        backend: scripted.backend.address("bind").await?.parse()?,
        by,
    };
    Foreign::start(Kind::Haproxy, way).await.map(Some)
}

async fn count(subject: &Subject, tool: Tool, folder: &Path, requests: usize) -> anyhow::Result<InstructionsRow> {
    let pid = subject.proxy.context("nothing stands between client and server")?;
    let client = Client::connected(subject.route.clone(), 1).await?;
    client.warm(POD, requests.min(WARM), AT_ONCE).await?;
    let each = usage::count(requests);
    let counting = tool.count(pid, folder)?;
    client.burst(POD, requests, 1).await?;
    let alone = counting.end()?;
    let counting = tool.count(pid, folder)?;
    client.burst(POD, requests, AT_ONCE).await?;
    let at_once = counting.end()?.instructions / each;
    let mut row = InstructionsRow {
        name: subject.name,
        alone: alone.instructions / each,
        at_once,
        ..InstructionsRow::default()
    };
    row.causes = alone
        .causes
        .into_iter()
        .map(|(cause, sum)| (cause, sum / each))
        .collect();
    Ok(row)
}

async fn count_events(
    subject: &Subject,
    tool: Tool,
    folder: &Path,
    (members, amount): (&[Route], Amount),
) -> anyhow::Result<f64> {
    let pid = subject.proxy.context("nothing stands between client and server")?;
    let mut watching = Watching::begin(&subject.route, members, amount).await?;
    let counting = tool.count(pid, folder)?;
    let events = watching.hear_all().await?;
    Ok(counting.end()?.instructions / usage::count(events))
}
