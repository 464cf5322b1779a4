//! What happens to the fleet: each action does something, leaves it so for a while, and takes it back. Those of one round
//! happen side by side, on different parts of it.

mod members;
mod ours;
pub(crate) mod shares;

use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};

use crate::ground::{Ground, MEMBERS};

/// For how long an action lasts, in milliseconds.
const LASTS: std::ops::Range<u64> = 1_000..6_000;

/// One thing that happens.
#[derive(Clone, Debug)]
pub(crate) struct Action {
    what: What,
    /// To how it was.
    lasts: Duration,
}

/// What happens, and to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Writes alone.
    Nothing,
    Member(members::Way, &'static str),
    Share(shares::Way),
    Agent(&'static str),
    Hub,
    Routers(ours::Way),
}

impl Action {
    /// One to three, no two of them on the same part. `long`: also what takes a minute.
    pub(crate) fn draw(rng: &mut StdRng, long: bool) -> Vec<Self> {
        let mut all: Vec<What> = Vec::new();
        all.extend(MEMBERS.map(|member| What::Member(members::Way::draw(rng), member)));
        all.extend(MEMBERS.map(What::Agent));
        all.extend(shares::Way::ALL.map(What::Share));
        all.push(What::Nothing);
        all.extend(long.then_some(What::Hub));
        all.extend(ours::Way::ALL.choose(rng).map(|way| What::Routers(*way)));
        all.shuffle(rng);
        let count = rng.random_range(1..=3);
        let lasts = all.into_iter().take(count).map(|what| Self {
            what,
            lasts: Duration::from_millis(rng.random_range(LASTS)),
        });
        lasts.collect()
    }

    /// For the summary.
    pub(crate) fn name(&self) -> &'static str {
        match self.what {
            What::Nothing => "nothing",
            What::Member(way, _) => way.name(),
            What::Share(way) => way.name(),
            What::Agent(_) => "agent stopped",
            What::Hub => "hub away",
            What::Routers(way) => way.name(),
        }
    }

    /// Returns when all is as it was.
    pub(crate) async fn run(self, ground: &Ground) {
        let lasts = self.lasts;
        match self.what {
            What::Nothing => tokio::time::sleep(lasts).await,
            What::Member(way, member) => way.run(ground, member, lasts).await,
            What::Share(way) => way.run(ground, lasts).await,
            What::Agent(member) => ours::stop_agent(ground, member, lasts).await,
            What::Hub => ours::stop_hub(ground, lasts).await,
            What::Routers(way) => way.run(ground, lasts).await,
        }
    }
}
