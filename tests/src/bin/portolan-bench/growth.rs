//! How one router grows with what it is told: members, callers, rules of policies. What a GET costs, what it keeps in memory, how
//! long a change takes.
//!
//! Of each size there are two routers: one whose instructions are counted, and one that runs by itself, for memory and times.
//! All members of a size are at one backend. What grows by which law: `report::growth`.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;

use crate::backend::POD;
use crate::counter::{NEVER_SHED, Tool};
use crate::load::Client;
use crate::policies;
use crate::report::{GrowthRow, GrowthSection, GrowthTable};
use crate::scripted::{Content, Scripted, What, caller, cluster, credential, resource};
use crate::usage;

/// Connections and caches are as they are for long when it is counted.
const WARM: usize = 300;
/// A router that has just been told of a thousand members is busy with them, under valgrind for long, and ends a connection on which
/// it has not come to know the caller: until then it is tried again.
const PATIENCE: Duration = Duration::from_mins(1);
/// Between tries.
const AGAIN: Duration = Duration::from_secs(1);
/// How long is looked at what a router does without requests; it does the rest of its work by the second.
const IDLE: Duration = Duration::from_secs(3);
/// Such looks until two are alike: what a router does at its start is over then.
const LOOKS: usize = 10;
/// Alike is within this part.
const ALIKE: f64 = 0.2;
/// For memory to come to rest.
const SETTLE: Duration = Duration::from_secs(2);
/// Changes, for the median.
const CHANGES: usize = 11;

/// How much to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amount {
    /// GETs that are counted.
    pub(crate) requests: usize,
    pub(crate) members: &'static [usize],
    pub(crate) callers: &'static [usize],
    pub(crate) rules: &'static [usize],
}

/// What there is more and more of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Axis {
    Members,
    Callers,
    Rules,
}

impl Axis {
    fn name(self) -> &'static str {
        match self {
            Self::Members => "members",
            Self::Callers => "callers",
            Self::Rules => "rules",
        }
    }

    fn content(self, size: usize) -> Content {
        let one = Content::default();
        match self {
            Self::Members => Content { members: size, ..one },
            Self::Callers => Content { callers: size, ..one },
            Self::Rules => Content {
                policies: policies::of_rules(size),
                ..one
            },
        }
    }

    /// The last of them as it is after so many changes.
    fn change(self, size: usize, times: usize) -> anyhow::Result<v1::Resource> {
        let body = match self {
            Self::Members => Body::Credential(credential(&cluster(size - 1), &format!("bench-{times}"))),
            Self::Callers => Body::CallerView(v1::CallerView {
                created_unix_seconds: Some(i64::try_from(times)?),
                ..caller(size - 1, Vec::new())
            }),
            Self::Rules => {
                let mut last = policies::of_rules(size).pop().context("a policy")?;
                last.generation += i64::try_from(times)?;
                last.spec_json =
                    last.spec_json
                        .replacen("\"limit\":100000", &format!("\"limit\":{}", 90_000 + times), 1);
                Body::Policy(last)
            }
        };
        Ok(resource(&format!("changed-{times}"), body))
    }
}

/// All tables.
pub(crate) async fn run(amount: Amount, step: fn(&str)) -> anyhow::Result<GrowthSection> {
    let tool = Tool::choose()?;
    let mut tables = Vec::new();
    for (axis, sizes) in [
        (Axis::Members, amount.members),
        (Axis::Callers, amount.callers),
        (Axis::Rules, amount.rules),
    ] {
        let mut rows = Vec::new();
        for size in sizes {
            step(&format!("growth: {size} {}", axis.name()));
            let row = measure(axis, *size, (tool, amount.requests), step).await;
            rows.push(row.with_context(|| format!("{size} {}", axis.name()))?);
        }
        tables.push(GrowthTable { of: axis.name(), rows });
    }
    Ok(GrowthSection {
        tool: tool.name(),
        requests: amount.requests,
        tables,
    })
}

async fn measure(
    axis: Axis,
    size: usize,
    (tool, requests): (Tool, usize),
    step: fn(&str),
) -> anyhow::Result<GrowthRow> {
    let mut row = GrowthRow {
        size,
        ..GrowthRow::default()
    };
    if let Err(error) = count(axis, &mut row, tool, requests).await {
        // By valgrind a router is fifty times slower: of a thousand members its questions to them come too late.
        step(&format!("growth: not counted by {}: {error:#}", tool.name()));
        (row.instructions, row.idle) = (f64::NAN, f64::NAN);
    }
    let what = What {
        content: axis.content(size),
        ..What::default()
    };
    let mut scripted = Scripted::of(what).await?;
    warmed(&mut scripted, WARM).await?;
    tokio::time::sleep(SETTLE).await;
    row.resident_kib = usage::resident_kib(scripted.router.pid())?;
    let mut changes = Vec::with_capacity(CHANGES);
    for times in 1..=CHANGES {
        changes.push(scripted.hub.change(vec![axis.change(size, times)?]).await?);
    }
    changes.sort_unstable();
    row.swap = changes[CHANGES / 2].as_secs_f64() * 1_000.0;
    Ok(row)
}

/// A client of the merged view that has had its first answers.
async fn warmed(scripted: &mut Scripted, requests: usize) -> anyhow::Result<Client> {
    scripted.router.ready().await?;
    let router = scripted.router.address("bind").await?;
    let begun = Instant::now();
    loop {
        let warmed = async {
            let client = Client::connected(scripted.to_router(&router, "")?, 1).await?;
            client.warm(POD, requests, 1).await?;
            anyhow::Ok(client)
        };
        match warmed.await {
            Err(_) if begun.elapsed() < PATIENCE => tokio::time::sleep(AGAIN).await,
            warmed => return warmed,
        }
    }
}

/// Instructions of a GET, less what the router does in that time without any.
async fn count(axis: Axis, row: &mut GrowthRow, tool: Tool, requests: usize) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let what = What {
        router_by: tool.wrapper(folder.path()),
        router_flags: vec![NEVER_SHED.to_owned()],
        content: axis.content(row.size),
        ..What::default()
    };
    let mut scripted = Scripted::of(what).await?;
    let client = warmed(&mut scripted, requests.min(WARM)).await?;
    let pid = scripted.router.pid();
    row.idle = idle(tool, pid, folder.path()).await?;
    let counting = tool.count(pid, folder.path())?;
    client.burst(POD, requests, 1).await?;
    let counted = counting.end()?;
    let of_requests = counted.instructions - row.idle * counted.elapsed.as_secs_f64();
    row.instructions = of_requests / usage::count(requests);
    Ok(())
}

/// Instructions a second without requests, when they have come to rest.
async fn idle(tool: Tool, pid: i32, folder: &Path) -> anyhow::Result<f64> {
    let mut last = f64::INFINITY;
    for _ in 0..LOOKS {
        let counting = tool.count(pid, folder)?;
        tokio::time::sleep(IDLE).await;
        let counted = counting.end()?;
        let now = counted.instructions / counted.elapsed.as_secs_f64();
        if (now - last).abs() <= last.min(now) * ALIKE {
            return Ok(now.min(last));
        }
        last = now;
    }
    Ok(last)
}
