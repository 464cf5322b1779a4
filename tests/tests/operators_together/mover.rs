//! Moves namespaces between the two shards of an operator by edits of its root, as people make them: what the canary takes by name.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use portolan_crds::ShardingConfig;
use portolan_testbed::eventually;
use portolan_tests::world::HUB;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, IteratorRandom as _};
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use tokio::time::sleep;

use crate::ground::{Ground, canary};
use crate::ledger::Ledger;
use crate::operators::{OPERATORS, Operator};
use crate::places::{HOME, NAMESPACES};

/// Between two edits, in milliseconds.
const PAUSE: std::ops::Range<u64> = 500..2_500;
/// Where so many of an operator are on their way, no more begin.
const UNDER_WAY: usize = 3;
/// Of so many looks at one that is on its way it is wanted back once.
const THOUGHT_BETTER_OF: u32 = 10;
/// Of one edit.
const AT_A_TIME: std::ops::RangeInclusive<usize> = 1..=2;
/// How often it is said how far the run is.
const TOLD_EVERY: usize = 20;

pub(crate) struct Mover<'a> {
    pub(crate) ledger: &'a Ledger,
    hub: Client,
    rng: StdRng,
    /// What each canary takes, as the roots say it.
    canaries: BTreeMap<&'static str, BTreeSet<&'static str>>,
    pub(crate) count: usize,
}

impl<'a> Mover<'a> {
    pub(crate) async fn new(ground: &Ground, ledger: &'a Ledger, seed: u64) -> anyhow::Result<Self> {
        let canaries = OPERATORS
            .iter()
            .map(|operator| (operator.name, operator.first().into_iter().collect()));
        Ok(Self {
            ledger,
            hub: ground.world.cluster(HUB).client().await?,
            rng: StdRng::seed_from_u64(seed),
            canaries: canaries.collect(),
            count: 0,
        })
    }

    /// Until so many have been asked for in all, of these operators.
    pub(crate) async fn run(&mut self, operators: &[Operator], until: usize) {
        let mut told = self.count;
        while self.count < until {
            if self.count >= told + TOLD_EVERY {
                told = self.count;
                println!("{told} moves of {until}");
            }
            let place = self.rng.random_range(0..operators.len());
            let most = self.rng.random_range(AT_A_TIME).min(until - self.count);
            self.edit(&operators[place], most).await;
            sleep(Duration::from_millis(self.rng.random_range(PAUSE))).await;
        }
    }

    /// Some of its namespaces are to be the other shard's; or one that is on its way is wanted back.
    async fn edit(&mut self, operator: &Operator, most: usize) {
        let under_way = self.under_way(operator);
        let back = under_way.choose(&mut self.rng).copied();
        let back = back.filter(|_| self.rng.random_ratio(1, THOUGHT_BETTER_OF));
        let idle = NAMESPACES.into_iter().filter(|name| !under_way.contains(name));
        let room = UNDER_WAY.saturating_sub(under_way.len()).min(most);
        let chosen: Vec<_> = match back {
            Some(name) => vec![name],
            None => idle.sample(&mut self.rng, room),
        };
        if chosen.is_empty() {
            return;
        }
        let wanted = self.canaries.entry(operator.name).or_default();
        for name in &chosen {
            if !wanted.remove(name) {
                wanted.insert(name);
            }
        }
        let wanted: Vec<_> = wanted.iter().copied().collect();
        let roots: Api<ShardingConfig> = Api::namespaced(self.hub.clone(), HOME);
        let patch = Patch::Merge(json!({"spec": {"root": {"canary": canary(operator, &wanted)}}}));
        let params = PatchParams::default();
        eventually("an edit is taken", || roots.patch(operator.name, &params, &patch)).await;
        self.count += chosen.len();
    }

    fn under_way(&self, operator: &Operator) -> Vec<&'static str> {
        let wanted = &self.canaries[operator.name];
        let is_open = |name: &&str| {
            let shard = operator.shard(wanted.contains(name));
            !self.ledger.has(operator.name, name, &shard)
        };
        NAMESPACES.into_iter().filter(is_open).collect()
    }

    /// Waits until all that is wanted is so.
    pub(crate) async fn settle(&self) {
        for operator in &OPERATORS {
            let what = format!("every move of {} ends", operator.name);
            eventually(&what, || async {
                let left = self.under_way(operator);
                if left.is_empty() { Ok(()) } else { Err(left) }
            })
            .await;
        }
    }
}
