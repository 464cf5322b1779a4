//! Moves namespaces from shard to shard, many at the same time, by edits of the ShardingConfigs as people make them: of the old owner
//! and the new one, in either order. Sometimes it thinks better of one that is on its way. One by one: `portolanctl shards move`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use portolan_crds::ShardingConfig;
use portolan_testbed::eventually;
use portolan_tests::ctl;
use portolan_tests::programs::argument;
use portolan_tests::world::HUB;
use rand::rngs::StdRng;
use rand::seq::{IteratorRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use tokio::time::sleep;

use crate::ground::{Ground, NAMESPACES, SHARDS, clusters, first_owner, member_of};
use crate::history::{History, revision};
use crate::judge::Ask;

/// Between two edits, in milliseconds.
const PAUSE: std::ops::Range<u64> = 100..700;
/// At most so many are on their way.
const UNDER_WAY: usize = 9;
/// Of one edit.
const AT_A_TIME: std::ops::RangeInclusive<usize> = 1..=4;
/// How often it is said how far the run is, which may take an hour.
const TOLD_EVERY: usize = 50;
/// Of so many moves one is thought better of while it is on its way.
const THOUGHT_BETTER_OF: u32 = 6;

/// What somebody wanted, and when that was written.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) ask: Ask,
    pub(crate) at: Instant,
}

pub(crate) struct Mover<'a> {
    ground: &'a Ground,
    history: &'a History,
    hub: Client,
    rng: StdRng,
    /// As the ShardingConfigs say it.
    wanted: BTreeMap<&'static str, &'static str>,
    /// To be wanted elsewhere if they are still on their way at the next edit. Once: else a long move would never end.
    doubtful: BTreeSet<&'static str>,
    pub(crate) asks: BTreeMap<&'static str, Vec<Asked>>,
    pub(crate) count: usize,
}

impl<'a> Mover<'a> {
    pub(crate) async fn new(ground: &'a Ground, history: &'a History, seed: u64) -> anyhow::Result<Self> {
        Ok(Self {
            ground,
            history,
            hub: ground.world.cluster(HUB).client().await?,
            rng: StdRng::seed_from_u64(seed),
            wanted: NAMESPACES.into_iter().map(|name| (name, first_owner(name))).collect(),
            doubtful: BTreeSet::new(),
            asks: BTreeMap::new(),
            count: 0,
        })
    }

    /// Until so many are asked for in all.
    pub(crate) async fn run(&mut self, until: usize) {
        let mut told = self.count;
        while self.count < until {
            if self.count >= told + TOLD_EVERY {
                told = self.count;
                println!("{told} moves of {until}");
            }
            let most = self.rng.random_range(AT_A_TIME).min(until - self.count);
            let drawn = self.draw(most);
            if !drawn.is_empty() {
                self.edit(&drawn).await;
            }
            sleep(Duration::from_millis(self.rng.random_range(PAUSE))).await;
        }
    }

    /// Namespaces with another owner than is wanted now.
    fn draw(&mut self, most: usize) -> Vec<(&'static str, &'static str)> {
        let under_way = self.under_way();
        let anew = under_way.iter().copied().find(|name| self.doubtful.remove(name));
        let room = UNDER_WAY.saturating_sub(under_way.len()).min(most);
        let idle = NAMESPACES.into_iter().filter(|name| !under_way.contains(name));
        let begun = idle.sample(&mut self.rng, room);
        self.doubtful.retain(|name| under_way.contains(name));
        for name in &begun {
            if self.rng.random_ratio(1, THOUGHT_BETTER_OF) {
                self.doubtful.insert(name);
            }
        }
        let names = anew.into_iter().chain(begun).take(most);
        let drawn = names.map(|name| {
            let others = SHARDS.into_iter().filter(|shard| *shard != self.wanted[name]);
            (name, others.choose(&mut self.rng).unwrap())
        });
        drawn.collect()
    }

    fn under_way(&self) -> Vec<&'static str> {
        let open = |name: &&str| !self.history.is_settled(name, self.wanted[name]);
        NAMESPACES.into_iter().filter(|name| open(name)).collect()
    }

    /// Waits until all that is wanted is so; `portolanctl shards move` moves alone.
    pub(crate) async fn settle(&self) {
        let what = "every move ends";
        // A hub that has started waits for routers of before.
        for _ in 0..2 {
            let settled = async {
                while !self.under_way().is_empty() {
                    sleep(Duration::from_millis(50)).await;
                }
            };
            if tokio::time::timeout(portolan_testbed::patience(), settled)
                .await
                .is_ok()
            {
                return;
            }
        }
        panic!("{what}: {:?} do not", self.under_way());
    }

    /// One, by the command line.
    pub(crate) async fn by_hand(&mut self) {
        let (name, to) = self.draw(1)[0];
        let (dir, shard) = (argument(self.ground.world.fleet.dir()), format!("operators/{to}"));
        let (before, member) = (self.revision_of(name).await, member_of(name));
        let arguments = [
            "shards",
            "move",
            name,
            "--cluster",
            member,
            "--to",
            &shard,
            "--dir",
            &dir,
            "--yes",
        ];
        ctl::ok(&arguments).await.unwrap();
        self.asked(name, to, before);
    }

    async fn edit(&mut self, drawn: &[(&'static str, &'static str)]) {
        let mut befores = Vec::new();
        let mut changed = Vec::new();
        for (name, to) in drawn {
            befores.push(self.revision_of(name).await);
            changed.extend([self.wanted[name], to]);
            self.wanted.insert(name, to);
        }
        changed.sort_unstable();
        changed.dedup();
        changed.shuffle(&mut self.rng);
        let shards: Api<ShardingConfig> = Api::namespaced(self.hub.clone(), "operators");
        for shard in changed {
            let owners = self.wanted.iter().map(|(name, owner)| (*name, *owner));
            let patch = Patch::Merge(json!({"spec": {"clusters": clusters(owners, shard)}}));
            let params = PatchParams::default();
            eventually("an edit is taken", || shards.patch(shard, &params, &patch)).await;
        }
        for ((name, to), before) in drawn.iter().zip(befores) {
            self.asked(name, to, before);
        }
    }

    async fn revision_of(&self, name: &str) -> u64 {
        revision(self.ground.world.cluster(member_of(name))).await
    }

    fn asked(&mut self, name: &'static str, to: &'static str, before: u64) {
        self.count += 1;
        self.wanted.insert(name, to);
        let ask = Ask {
            shard: to.to_owned(),
            revision: before,
        };
        let at = Instant::now();
        self.asks.entry(name).or_default().push(Asked { ask, at });
    }
}
