//! Namespaces that come, are used and go, one after the other, while all members are there and while one is away. No client
//! that asks for bookmarks may list again or be told 410 for that, and events of the other members come all the while.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use http::Method;
use portolan_testbed::Fault;
use portolan_tests::door::request;
use serde_json::json;
use tokio::time::sleep;

use crate::actions::shares::Preview;
use crate::clients::{Clients, Report};
use crate::ground::{Ground, KINDS, MEMBERS};
use crate::judge::Judge;

/// From one namespace to the next, in the long form.
const PERIOD: Duration = Duration::from_mins(1);
/// Namespaces while all members are there, and then while one is away, in the long form.
const PHASE: u32 = 10;
/// Until every client knows of what was written; what it took is printed.
const PATIENCE: Duration = Duration::from_secs(30);
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// From one probe to the next.
const PROBES: Duration = Duration::from_secs(5);
/// What a phase without one writes to, in each member.
const HOMES: [(&str, &str); 3] = [("east", "home-e"), ("west", "home-w"), ("north", "home-n")];

/// Both forms: the short one has a phase of one namespace with all members there, and one with a member away.
pub(crate) struct Previews<'a> {
    pub(crate) ground: &'a Ground,
    pub(crate) clients: &'a mut Clients,
    pub(crate) judge: &'a mut Judge,
    /// Zero for the short form.
    pub(crate) lasts: Duration,
    /// Who finds out by lists what has left waits for a member that is away: of those nothing is asked.
    pub(crate) lists_wait: bool,
}

/// Lists and 410s of a client.
pub(crate) type Told = BTreeMap<String, (u64, BTreeMap<String, u64>)>;

impl Previews<'_> {
    /// Leaves all members there, and the shard as it was.
    pub(crate) async fn run(&mut self) -> anyhow::Result<()> {
        let (before, begun) = (told(&self.reports().await?), Instant::now());
        let mut delays = Vec::new();
        for phase in 0.. {
            let away = (phase % 2 == 1).then(|| ["west", "north"][phase / 2 % 2]);
            if let Some(away) = away {
                self.ground.world.cluster(away).fault(Fault::Blackhole).await?;
            }
            self.lists_wait = away.is_some();
            for _ in 0..if self.lasts.is_zero() { 1 } else { PHASE } {
                delays.extend(self.round(away).await?);
                unchanged(&before, &told(&self.reports().await?))?;
            }
            if let Some(away) = away {
                self.ground.world.cluster(away).fault(Fault::None).await?;
            }
            if phase > 0 && begun.elapsed() >= self.lasts {
                break;
            }
        }
        crate::rest(self.ground, self.clients, self.judge).await?;
        unchanged(&before, &told(&self.reports().await?))?;
        delays.sort_unstable();
        let at = |share: usize| delays.get(delays.len() * share / 100).copied().unwrap_or_default();
        println!(
            "previews: {:?}, {} probes; all clients had them after {:?} (median), {:?} (99 %), {:?} (worst)",
            begun.elapsed(),
            delays.len(),
            at(50),
            at(99),
            delays.last()
        );
        Ok(())
    }

    /// One namespace, and what each probe took.
    async fn round(&mut self, away: Option<&str>) -> anyhow::Result<Vec<Duration>> {
        let begun = Instant::now();
        let half = if self.lasts.is_zero() {
            Duration::ZERO
        } else {
            PERIOD / 2
        };
        let there: Vec<&'static str> = MEMBERS.into_iter().filter(|member| Some(*member) != away).collect();
        let preview = Preview::open(self.ground, &there).await;
        self.write(preview.member, &preview.name, "made").await?;
        let mut delays = self.probe_until(&there, begun + half).await?;
        let (member, name) = (preview.member, preview.name.clone());
        preview.close(self.ground, Duration::ZERO).await;
        delays.extend(self.probe_until(&there, begun + 2 * half).await?);
        let inside = format!("{name}/");
        self.all("forget a namespace", |report| {
            // kube-rs finds it out by a list, which waits for who is away.
            let waits = away.is_some() && reads_whole_objects(report);
            waits || !report.held().keys().any(|key| key.starts_with(&inside))
        })
        .await?;
        println!(
            "{name} of {member}, away: {away:?}, worst probe {:?}",
            delays.iter().max()
        );
        Ok(delays)
    }

    /// Writes to one member after the other, once at least, and measures until all clients know of it.
    async fn probe_until(&mut self, there: &[&'static str], end: Instant) -> anyhow::Result<Vec<Duration>> {
        let mut delays = Vec::new();
        for (member, namespace) in HOMES.into_iter().cycle() {
            if !there.contains(&member) {
                continue;
            }
            let value = format!("{:?}", Instant::now());
            delays.extend(self.write(member, namespace, &value).await?);
            if Instant::now() + PROBES > end {
                break;
            }
            sleep(PROBES).await;
        }
        Ok(delays)
    }

    /// One object of each kind, and until all clients hold it so.
    pub(crate) async fn write(&mut self, member: &str, namespace: &str, value: &str) -> anyhow::Result<Vec<Duration>> {
        let (mut delays, lists_wait) = (Vec::new(), self.lists_wait);
        for (root, plural) in KINDS {
            let (kind, api) = if plural == "configmaps" {
                ("ConfigMap", "v1")
            } else {
                ("Greeting", "example.com/v1")
            };
            let path = format!("{root}/namespaces/{namespace}/{plural}/probe?fieldManager=soak&force=true");
            let mut object = json!({
                "apiVersion": api, "kind": kind,
                "metadata": {"name": "probe", "annotations": {"soak.test/value": value}},
            });
            if kind == "Greeting" {
                object["spec"] = json!({"message": "probe"});
            }
            let headers = [("content-type", "application/apply-patch+yaml")];
            let asked = request(Method::PATCH, &path, &headers, object.to_string().as_bytes())?;
            let answer = self.ground.lines.ask_until_answered(member, asked).await?;
            ensure!(answer.status < 300, "{path}: {}", answer.message());
            let (object, written) = (answer.json(), Instant::now());
            let version = number(object["metadata"]["resourceVersion"].as_str().unwrap_or_default());
            let key = format!("{namespace}/probe");
            self.all("know of a write", |report| {
                report.resource != plural
                    || (lists_wait && reads_whole_objects(report))
                    || !report.namespace.is_empty()
                    || report.held().get(&key).is_some_and(|(_, held)| number(held) >= version)
            })
            .await?;
            delays.push(written.elapsed());
        }
        Ok(delays)
    }

    /// Waits until it is so of every client that asks for bookmarks.
    async fn all(&mut self, what: &str, so: impl Fn(&Report) -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let reports = self.reports().await?;
            let odd: Vec<&Report> = reports
                .iter()
                .filter(|report| bookmarks(report) && !so(report))
                .collect();
            let Some(first) = odd.first() else {
                return Ok(());
            };
            if Instant::now() > deadline {
                let (count, name, said) = (odd.len(), &first.name, &first.expired);
                bail!(
                    "{count} clients do not {what} within {PATIENCE:?}, such as {name}; said: {said:?}; lately:\n{}",
                    first.lately.join("\n")
                );
            }
            sleep(ASK_AGAIN).await;
        }
    }

    pub(crate) async fn reports(&mut self) -> anyhow::Result<Vec<Report>> {
        self.clients.revive()?;
        let reports = self.clients.report().await?;
        self.judge.hear(&reports, &self.ground.ledger);
        Ok(reports)
    }
}

/// Of one member: its agent may have written labels since.
fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

/// Whether a client asks for them; without, its position is the version of one member's object.
fn bookmarks(report: &Report) -> bool {
    !report.name.contains("without bookmarks") && !report.name.starts_with("kubectl")
}

/// Whether a client reads no DELETED of metadata alone, and lists again instead.
fn reads_whole_objects(report: &Report) -> bool {
    report.name.starts_with("kube-rs")
}

pub(crate) fn told(reports: &[Report]) -> Told {
    let told = |report: &&Report| bookmarks(report) && !reads_whole_objects(report);
    let asking = reports.iter().filter(told);
    asking
        .map(|report| (report.name.clone(), (report.lists, report.expired.clone())))
        .collect()
}

pub(crate) fn unchanged(before: &Told, now: &Told) -> anyhow::Result<()> {
    let odd = now.iter().filter(|(name, told)| before.get(*name) != Some(*told));
    let odd: Vec<String> = odd
        .map(|(name, told)| format!("{name}: (lists, 410s) {:?}, then {told:?}", before.get(name)))
        .collect();
    ensure!(
        odd.is_empty(),
        "clients listed again for a namespace that came or went:\n{}",
        odd.join("\n")
    );
    Ok(())
}
