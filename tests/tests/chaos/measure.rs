//! One fault: well for a while, sick, well again, and what everybody felt of it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use portolan_testbed::eventually;
use portolan_tests::door::Door;
use serde_json::{Value, json};

use crate::clients::Clients;
use crate::disk;
use crate::fault::{Case, Kind, Opens};
use crate::ground::{EAST, Ground, WEST};
use crate::load::Callers;
use crate::peer::Peer;
use crate::probe::Probe;
use crate::table::{Felt, Load, Row, milliseconds};
use crate::work::Work;

/// Other suites have the machine as well, and two cores are all there is: three times as long is no fault. What it was is printed.
pub(crate) const SLACK: u32 = 3;
/// Of the member's recovery.
pub(crate) const BACK_WITHIN: Duration = Duration::from_secs(2);
/// Nothing is waited for longer.
const SEEN_WITHIN: Duration = Duration::from_secs(75);
const LOOK: Duration = Duration::from_millis(20);
/// A member's pace is known from what it took two minutes ago and more, by whole minutes.
const PACE_AFTER: Duration = Duration::from_secs(200);

/// What all measurements have in common.
pub(crate) struct Scene {
    pub(crate) ground: &'static Ground,
    /// East's, by the router and by the proxy.
    pub(crate) others: [Door; 2],
    pub(crate) clients: Clients,
    /// Before each fault.
    pub(crate) well: Duration,
    /// When callers began.
    pub(crate) began: Instant,
    /// How far away west is, and since when.
    pub(crate) away: (Duration, Instant),
    /// Of the sick member, by the router and by the proxy.
    pub(crate) callers: [Callers; 2],
    /// Ends with it.
    pub(crate) _peer: Peer<'static>,
}

/// West's breakers, by class.
struct Breakers(Vec<Value>);

impl Breakers {
    async fn of(ground: &Ground) -> anyhow::Result<Self> {
        let mut all = ground.admin("/breakers").await?;
        all.retain(|breaker| breaker["cluster"] == "west");
        Ok(Self(all))
    }

    /// Classes that are open.
    fn open(&self) -> impl Iterator<Item = &str> {
        let open = self.0.iter().filter(|breaker| breaker["state"] == "open");
        open.filter_map(|breaker| breaker["class"].as_str())
    }

    fn transitions(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for breaker in &self.0 {
            for (reason, times) in breaker["transitionsByReason"].as_object().into_iter().flatten() {
                let class = breaker["class"].as_str().unwrap_or_default();
                all.insert(format!("{class} {reason}"), times.as_u64().unwrap_or_default());
            }
        }
        all
    }
}

fn more(now: BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let more = now.into_iter().map(|(key, times)| {
        let times = times.saturating_sub(before.get(&key).copied().unwrap_or(0));
        (key, times)
    });
    more.filter(|(_, times)| *times > 0).collect()
}

/// A fault's name as part of an object's.
fn slug(row: &Row) -> String {
    let words = row.fault.to_lowercase().replace(' ', "-");
    let letters = words
        .chars()
        .filter(|letter| letter.is_ascii_alphanumeric() || *letter == '-');
    let letters: String = letters.collect();
    format!("after-{letters}-{}", u8::from(row.hub_away))
}

impl Scene {
    /// Measures a fault, between two times at which all is well.
    pub(crate) async fn measure(&mut self, case: &Case, row: &mut Row) -> anyhow::Result<()> {
        let ground = self.ground;
        case.kind.prepare(ground).await?;
        if self.away.0 != case.away {
            ground.is_away_by(case.away);
            self.away = (case.away, Instant::now());
        }
        ground.hub_is(row.hub_away).await?;
        self.is_well().await?;
        if case.kind.needs_a_pace() {
            tokio::time::sleep(PACE_AFTER.saturating_sub(self.away.1.elapsed())).await;
        }
        let (lists, breakers) = (self.clients.lists().await?, Breakers::of(ground).await?.transitions());
        let before = self.load();
        tokio::time::sleep(self.well).await;
        row.healthy = self.load().since(before);

        let [ours, theirs] = self.others.clone().map(|door| Probe::start(door, EAST));
        for callers in &self.callers {
            callers.told();
        }
        let work = Work::start(ground.sick_door().await?, ground.world.merged("alpha"), slug(row));
        self.sick(case, row).await?;
        (row.others, row.others_behind_proxy) = (Felt::of(&ours.end().await), Felt::of(&theirs.end().await));
        row.reconcile = work.end().await;
        let blind = self.clients.see_anew(ground).await?;
        let wrong = blind
            .into_iter()
            .map(|client| format!("{client} does not see what is made afterwards"));
        row.wrong.extend(wrong);
        row.relists = more(self.clients.lists().await?, &lists);
        row.transitions = more(Breakers::of(ground).await?.transitions(), &breakers);
        if case.kind == Kind::Half {
            ground.hub_is(false).await?;
        }
        case.kind.tidy(ground).await
    }

    /// From the fault's beginning until all is as before.
    async fn sick(&self, case: &Case, row: &mut Row) -> anyhow::Result<()> {
        let ground = self.ground;
        let inflicted = case.kind.inflict(ground).await?;
        let (sick, before) = (Instant::now(), self.load());
        row.opened_milliseconds = self.until_open(case, sick).await?;
        let open = self.load();
        if case.kind == Kind::Disk && !row.hub_away {
            self.is_told_something_new().await?;
        }
        // What opens is looked at for so long from then on, what does not for so long in all.
        let opens = row.opened_milliseconds.is_some() && !matches!(case.opens, Opens::Maybe);
        let spent = if opens { Duration::ZERO } else { sick.elapsed() };
        tokio::time::sleep(case.lasts.saturating_sub(spent)).await;
        row.sick = self.load().since(before);
        if opens {
            row.open = self.load().since(open);
        }
        [row.callers, row.callers_behind_proxy] = self.callers.each_ref().map(Callers::told);
        case.kind.lift(ground, inflicted).await?;
        row.back_milliseconds = self.until_back(case, row.hub_away).await?;
        Ok(())
    }

    fn load(&self) -> Load {
        let Ground { ours, second, .. } = self.ground;
        Load {
            seconds: self.began.elapsed().as_secs_f64(),
            connections: ours.stage.accepted() + second.accepted(),
            requests: u64::try_from(ours.front.times("")).unwrap_or(u64::MAX),
        }
    }

    async fn until_open(&self, case: &Case, sick: Instant) -> anyhow::Result<Option<u64>> {
        let at_most = match case.opens {
            Opens::Within(time) => time * SLACK,
            Opens::Never | Opens::Maybe => case.lasts,
        };
        let mut seen = BTreeSet::new();
        while sick.elapsed() < at_most {
            let breakers = Breakers::of(self.ground).await?;
            seen.extend(breakers.open().map(str::to_owned));
            let open = if case.kind == Kind::Half {
                let told = self.ground.admin("/endpoints").await?;
                told.iter()
                    .any(|endpoint| endpoint["cluster"] == "west" && endpoint["state"] == "ejected")
            } else {
                match case.kind {
                    Kind::Busier | Kind::Tenfold => !seen.is_empty(),
                    // A list that takes a second is not slow.
                    Kind::TenTimes => seen.contains("unary"),
                    _ => seen.contains("unary") && seen.contains("list"),
                }
            };
            if open {
                return Ok(Some(milliseconds(sick.elapsed())));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(None)
    }

    /// Until both kinds of requests are answered; of a disk, until the state is on it.
    async fn until_back(&self, case: &Case, hub_away: bool) -> anyhow::Result<Option<u64>> {
        let over = Instant::now();
        if case.kind == Kind::Disk && !hub_away {
            let freed = disk::state(self.ground).await?.ctime();
            while disk::state(self.ground).await?.ctime() == freed {
                if over.elapsed() > SEEN_WITHIN {
                    return Ok(None);
                }
                tokio::time::sleep(LOOK).await;
            }
        }
        let door = self.ground.sick_door().await?;
        for path in [format!("{WEST}/where"), WEST.to_owned()] {
            while door.get(&path, &[]).await?.status != 200 {
                if over.elapsed() > SEEN_WITHIN {
                    return Ok(None);
                }
                tokio::time::sleep(LOOK).await;
            }
        }
        Ok(Some(milliseconds(over.elapsed())))
    }

    /// The hub tells of a namespace that is new to a shard; returns when that is served.
    async fn is_told_something_new(&self) -> anyhow::Result<()> {
        let world = &self.ground.world;
        world.namespace("east", "team-d").await?;
        let clusters = json!([{"name": "east", "namespaces": ["team-c", "team-d"]}]);
        world.own("beta", clusters).await?;
        let door = world.merged_door("beta").await?;
        eventually("what is new is served", || async {
            let answer = door.get("/api/v1/namespaces/team-d/configmaps", &[]).await?;
            anyhow::ensure!(answer.status == 200, "{} {}", answer.status, answer.message());
            anyhow::Ok(())
        })
        .await;
        Ok(())
    }

    /// Everybody is served, and every client sees what happens.
    async fn is_well(&mut self) -> anyhow::Result<()> {
        let door = self.ground.sick_door().await?;
        for path in [format!("{WEST}/where"), WEST.to_owned()] {
            eventually("west is well", || async {
                let answer = door.get(&path, &[]).await?;
                anyhow::ensure!(answer.status == 200, "{} {}", answer.status, answer.message());
                anyhow::Ok(())
            })
            .await;
        }
        let blind = self.clients.see_anew(self.ground).await?;
        anyhow::ensure!(
            blind.is_empty(),
            "before the fault these do not see what is made: {blind:?}"
        );
        Ok(())
    }
}
