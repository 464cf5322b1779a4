//! What the run did and what it saw, printed in the end, and round by round while it runs.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::actions::Action;
use crate::causes;
use crate::ground::Ground;
use crate::judge::Judge;

pub(crate) struct Summary {
    seed: u64,
    rounds: u32,
    actions: BTreeMap<&'static str, u32>,
    worst_rest: Duration,
    pub(crate) failures: Vec<String>,
}

impl Summary {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            rounds: 0,
            actions: BTreeMap::new(),
            worst_rest: Duration::ZERO,
            failures: Vec::new(),
        }
    }

    pub(crate) fn round(&mut self, actions: &[Action]) {
        self.rounds += 1;
        println!("round {}: {actions:?}", self.rounds);
        for action in actions {
            *self.actions.entry(action.name()).or_default() += 1;
        }
    }

    pub(crate) fn rested(&mut self, after: Duration) {
        println!("  at rest after {after:?}");
        self.worst_rest = self.worst_rest.max(after);
    }

    pub(crate) fn print(&self, took: Duration, ground: &Ground, judge: &Judge) {
        let expired = causes::counted(&judge.expired);
        let told: u64 = expired.values().sum();
        let relists: u64 = judge.lists.values().map(|lists| lists.saturating_sub(1)).sum();
        let of = |family: &str| ground.meter.of(family);
        println!("seed                   {}", self.seed);
        println!("seconds                {}", took.as_secs());
        println!("rounds                 {}", self.rounds);
        println!("actions                {:?}", self.actions);
        println!("clients                {}", judge.lists.len());
        println!(
            "resumes                {}",
            of("watch_starts").get("resumed").unwrap_or(&0)
        );
        println!("relists                {relists}, {told} after a 410");
        println!("410 by cause (clients) {expired:?}");
        println!("410 by cause (routers) {:?}", of("watches_expired"));
        println!("leg restarts           {:?}", of("leg_restarts"));
        println!("deletes told           {}", judge.deletes);
        println!("false deletes          {}", judge.false_deletes.len());
        let repeats = judge.repeats.iter().map(|(client, (count, _))| (client, count));
        println!("deletes told twice     {:?}", repeats.collect::<BTreeMap<_, _>>());
        println!("worst time to rest     {:?}", self.worst_rest);
        for (client, (_, trace)) in &judge.repeats {
            println!(
                "  {client}, up to the first delete that it was told twice:\n    {}",
                trace.join("\n    ")
            );
        }
        for (client, messages) in &judge.expired {
            if !messages.is_empty() {
                println!("  {client}: {} lists, {messages:?}", judge.lists[client]);
            }
        }
    }
}
