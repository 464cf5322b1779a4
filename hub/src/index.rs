//! Folds watch events and agents' messages into [`Facts`], and says who has to look again.
//!
//! Every change goes through one lock, held for no `.await`; a change wakes either the compiler (routers may have to
//! know) or only the status writer. Not here: any rule about what follows from the facts (`compile`). Callers:
//! `watch`, `enroll`, agent sessions; readers are `distribute`, `status` and admin pages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::api::DynamicObject;
use parking_lot::{Mutex, RwLock};
use portolan_crds::ConditionReason;
use tokio::sync::watch;

use crate::facts::{Facts, PROCESS_ENDED, Pin, RouterObject};
use crate::pace::Paces;

mod agents;
mod bounds;
mod budgets;
mod callers;
mod fold;
mod objects;
mod policies;
mod report;
mod shards;
#[cfg(test)]
mod tests;

pub(crate) use bounds::{MAX_SUBJECT_BYTES, MAX_SUBJECT_FACTS, OutOfBounds};
pub(crate) use objects::{member_from, router_from, shard_from};
pub(crate) use report::Report;
use shards::Turns;

/// Between two looks at how long agents have said nothing.
const LOOKS_EVERY: Duration = Duration::from_secs(1);
/// From one look to the next: then this program stood still, and has not read what agents told meanwhile.
const STALLED: Duration = Duration::from_secs(5);

/// How far a change reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    Nothing,
    /// Figures may differ, or a status that was written has come back: statuses are looked at now and then in any case.
    Figures,
    /// Conditions may differ; what routers know does not.
    Status,
    /// What routers must know may differ.
    Compile,
}

/// The facts and their two alarms.
#[derive(Debug)]
pub(crate) struct Index {
    // A lock, not an ArcSwap: writers are many and touch one entry each; readers hold it for one pass.
    facts: RwLock<Facts>,
    // Watches: readers skip what they missed, and nothing queues.
    compile: watch::Sender<u64>,
    status: watch::Sender<u64>,
    // A mutex: held for one look at one entry.
    paces: Mutex<Paces>,
    // A mutex: held while something waits or is taken in. Locked before the facts, never while these are held.
    turns: Mutex<Turns>,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            facts: RwLock::new(Facts {
                listening: true,
                ..Facts::default()
            }),
            compile: watch::Sender::new(0),
            status: watch::Sender::new(0),
            paces: Mutex::default(),
            turns: Mutex::default(),
        }
    }
}

impl Index {
    /// Looks at the facts. The closure must be quick and cannot await.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&Facts) -> T) -> T {
        look(&self.facts.read())
    }

    /// Changes whenever routers may have to know something else.
    pub(crate) fn compile_changes(&self) -> watch::Receiver<u64> {
        self.compile.subscribe()
    }

    /// Changes whenever more than figures did.
    pub(crate) fn status_changes(&self) -> watch::Receiver<u64> {
        self.status.subscribe()
    }

    /// Applies one change and wakes whom it concerns.
    pub(crate) fn write(&self, apply: impl FnOnce(&mut Facts) -> Change) {
        let change = apply(&mut self.facts.write());
        if change >= Change::Compile {
            self.compile.send_modify(|count| *count += 1);
        }
        if change >= Change::Status {
            self.status.send_modify(|count| *count += 1);
        }
    }

    /// Lets what agents said of labels age, and what waits for its turn have it, until it is dropped.
    pub(crate) async fn pass_time(self: Arc<Self>) {
        let mut since = Instant::now();
        let mut looked = since;
        loop {
            tokio::time::sleep(LOOKS_EVERY).await;
            let now = Instant::now();
            if now - looked > STALLED {
                since = now;
            }
            looked = now;
            self.write(|facts| facts.age_coverage(now, since));
            self.settle(now);
            self.take_turns(now);
        }
    }

    /// Wakes the compiler for changes that came too often.
    fn settle(&self, now: Instant) {
        if self.paces.lock().settle(now) {
            self.compile.send_modify(|count| *count += 1);
        }
    }

    /// Reports of one agent stream, as long as no later stream of the cluster has replaced it. What is beyond the bounds of
    /// one agent is refused, and changes nothing.
    pub(crate) fn report(&self, cluster: &str, epoch: u64, report: Report) -> Result<(), OutOfBounds> {
        self.report_at(cluster, epoch, report, Instant::now())
    }

    /// What agents change too often is compiled a moment later.
    fn report_at(&self, cluster: &str, epoch: u64, report: Report, now: Instant) -> Result<(), OutOfBounds> {
        let mut refusal = None;
        self.write(|facts| match facts.apply_report(cluster, epoch, report) {
            Ok(Change::Compile) if !self.paces.lock().take(cluster, now) => Change::Status,
            Ok(change) => change,
            Err(error) => {
                refusal = Some(error);
                Change::Nothing
            }
        });
        refusal.map_or(Ok(()), Err)
    }
}

impl Facts {
    pub(crate) fn apply_member(&mut self, object: &DynamicObject) -> Change {
        let Some(name) = object.metadata.name.clone() else {
            return Change::Nothing;
        };
        let before = self.members.get(&name);
        let member = member_from(object, before);
        let change = match before {
            Some(before) if *before == member => Change::Nothing,
            Some(before) if same_but_status(before, &member) => Change::Figures,
            _ => Change::Compile,
        };
        let replaced = before.is_some_and(|before| before.uid != member.uid);
        if replaced {
            self.delete_member(&name);
        }
        self.members.insert(name, member);
        change
    }

    pub(crate) fn delete_member(&mut self, name: &str) -> Change {
        // What its agent said goes too: a cluster that comes back under this name joins anew.
        let known = self.members.remove(name).is_some() | self.agents.remove(name).is_some();
        self.silent.remove(name);
        self.spoke_again.remove(name);
        self.join_refusals.remove(name);
        if known { Change::Compile } else { Change::Nothing }
    }

    /// Replaces all members by a complete list.
    pub(crate) fn reset_members(&mut self, objects: &[DynamicObject]) -> Change {
        let names: Vec<_> = objects
            .iter()
            .filter_map(|object| object.metadata.name.as_deref())
            .collect();
        let gone: Vec<_> = self
            .members
            .keys()
            .filter(|name| !names.contains(&name.as_str()))
            .cloned()
            .collect();
        let deleted = gone.iter().map(|name| self.delete_member(name)).max();
        let applied = objects.iter().map(|object| self.apply_member(object)).max();
        deleted.max(applied).unwrap_or(Change::Nothing)
    }

    pub(crate) fn apply_router(&mut self, object: &DynamicObject) -> Change {
        let Some((name, router)) = router_from(object) else {
            return self.delete_router(object);
        };
        let change = match self.routers.get(&name) {
            Some(before) if *before == router => Change::Nothing,
            Some(before)
                if before.uid == router.uid
                    && before.key_hashes == router.key_hashes
                    && before.subscription == router.subscription =>
            {
                if before.generation == router.generation {
                    Change::Figures
                } else {
                    Change::Status
                }
            }
            _ => Change::Compile,
        };
        let uid = router.uid.clone();
        let before = self.routers.insert(name.clone(), router);
        if change == Change::Compile {
            self.drop_tokens(&name);
        }
        if let Some(before) = before.filter(|before| before.uid != uid) {
            self.router_refusals.remove(&name);
            self.router_is_gone(&before);
        }
        change
    }

    pub(crate) fn delete_router(&mut self, object: &DynamicObject) -> Change {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let Some(before) = self.routers.remove(name) else {
            return Change::Nothing;
        };
        self.drop_tokens(name);
        self.router_refusals.remove(name);
        self.router_is_gone(&before);
        Change::Compile
    }

    fn router_is_gone(&mut self, router: &RouterObject) {
        self.enrolled_here.remove(&router.uid);
        // Of one that ended in order no write is open, and nobody has its key.
        if router.status.process.as_deref() != Some(PROCESS_ENDED) {
            self.note_router_gone();
        }
    }

    /// Routers that may act on something: all but those that are forgotten for their long absence.
    pub(crate) fn awaited_routers(&self, now: Timestamp) -> impl Iterator<Item = &String> {
        let awaited = self.routers.iter().filter(move |(_, router)| !router.is_forgotten(now));
        awaited.map(|(name, _)| name)
    }

    /// A router may have been there of which nothing is known any more.
    pub(crate) fn note_router_gone(&mut self) {
        self.router_gone = Some(tokio::time::Instant::now());
    }

    /// Replaces all routers by a complete list.
    pub(crate) fn reset_routers(&mut self, objects: &[DynamicObject]) -> Change {
        let listed: Vec<_> = objects
            .iter()
            .filter_map(|object| object.metadata.name.clone())
            .collect();
        let gone: Vec<_> = self.routers.extract_if(.., |name, _| !listed.contains(name)).collect();
        for (_, router) in &gone {
            self.router_is_gone(router);
        }
        self.router_refusals.retain(|name, _| listed.contains(name));
        let deleted = (!gone.is_empty()).then_some(Change::Compile);
        let applied = objects.iter().map(|object| self.apply_router(object)).max();
        let routers = &self.routers;
        for agent in self.agents.values_mut() {
            agent.retain_tokens(|name| routers.contains_key(name));
        }
        deleted.max(applied).unwrap_or(Change::Nothing)
    }

    /// Forgets the tokens that are not of the router that has this name now.
    fn drop_tokens(&mut self, name: &str) {
        let uid = self.routers.get(name).map(|router| &*router.uid);
        for agent in self.agents.values_mut() {
            agent.drop_token(name, uid);
        }
    }

    /// Keeps or forgets why `cluster` was not let in, for its status.
    pub(crate) fn note_refusal(&mut self, cluster: &str, refusal: Option<(ConditionReason, String)>) -> Change {
        let before = match refusal.clone() {
            Some(refusal) => self.join_refusals.insert(cluster.to_owned(), refusal),
            None => self.join_refusals.remove(cluster),
        };
        if before == refusal {
            Change::Nothing
        } else {
            Change::Status
        }
    }

    /// Keeps or forgets why the Hello of `router` was refused, for its status.
    pub(crate) fn note_router_refusal(&mut self, router: &str, refusal: Option<String>) -> Change {
        let before = match refusal.clone() {
            Some(refusal) => self.router_refusals.insert(router.to_owned(), refusal),
            None => self.router_refusals.remove(router),
        };
        if before == refusal {
            Change::Nothing
        } else {
            Change::Status
        }
    }

    pub(crate) fn set_pins(&mut self, pins: BTreeMap<String, Pin>) -> Change {
        if *self.pins == pins {
            return Change::Nothing;
        }
        self.pins = pins.into();
        Change::Compile
    }
}

fn same_but_status(before: &crate::facts::MemberObject, after: &crate::facts::MemberObject) -> bool {
    before.uid == after.uid
        && before.generation == after.generation
        && before.labels == after.labels
        && before.in_force == after.in_force
        && before.accept == after.accept
}
