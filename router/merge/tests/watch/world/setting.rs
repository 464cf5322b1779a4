//! What one history is about, all of it from its seed.

use std::time::Duration;

use portolan_merge::resume::ResumeBounds;
use portolan_merge::watch::{Budget, WatchFormat};

use super::routers::Router;
use super::{Seat, Tally, World};
use crate::client::{Client, Manner};
use crate::dice::Dice;
use crate::truth::{Setting, Truth};

impl World {
    /// `all`, `views`, `silence`: also with what was added to histories after some of them had been pinned.
    #[expect(clippy::too_many_lines, reason = "a table of what a history is made of")]
    pub(crate) fn new(seed: u64, all: bool, views: bool, silence: bool) -> Self {
        let mut dice = Dice::new(seed);
        let setting = setting(&mut dice);
        let format = *dice.pick(&[WatchFormat::Json, WatchFormat::Protobuf, WatchFormat::Table]);
        let manner = *dice.pick(&[
            Manner::WatchList,
            Manner::WatchList,
            Manner::ListWatch,
            Manner::NoBookmarks,
            Manner::WatchOnly,
        ]);
        let small = dice.percent(15);
        let breaks = all && dice.percent(30);
        let manner = match manner {
            Manner::WatchList if breaks => Manner::NoBookmarks,
            Manner::ListWatch if breaks => Manner::WatchOnly,
            manner => manner,
        };
        let twin = all && dice.percent(if breaks { 70 } else { 40 });
        let bounds = bounds(all && dice.percent(30));
        let flips = all && !setting.unique && dice.percent(50);
        let routers = 1 + usize::from(all && dice.percent(30));
        let setting = Setting {
            flips,
            close: breaks,
            ..setting
        };
        let setting = if views {
            let widened = widened(setting, seed, routers);
            Setting {
                silence: silence && widened.silence,
                ..widened
            }
        } else {
            setting
        };
        let trace = std::env::var_os("PORTOLAN_SEED").is_some();
        if trace {
            println!("{format:?} {manner:?} {setting:?} {routers} routers");
        }
        // They look at the same.
        let narrow = setting.narrow;
        let truth = Truth::new(setting, &mut dice);
        Self {
            all,
            breaks,
            half_open: Vec::new(),
            routers: (0..routers).map(|_| Router::new(&truth.shard, bounds)).collect(),
            bounds,
            truth,
            client: Client::new(manner, format),
            format,
            session: None,
            twin: (twin && !narrow).then(|| Seat::new(Client::new(manner, format))),
            own: None,
            clock: Duration::ZERO,
            paging: None,
            budget: dice.percent(85).then(|| Budget::new(if small { 400 } else { 1 << 20 })),
            small,
            trace,
            partial: dice.percent(30),
            dice,
            tally: Tally::default(),
        }
    }
}

fn setting(dice: &mut Dice) -> Setting {
    let unique = dice.percent(35);
    Setting {
        members: 1 + dice.below(4),
        unique,
        labelled: dice.percent(50),
        selector: dice.percent(40),
        moves: dice.percent(50),
        compaction: dice.percent(60),
        flips: false,
        close: false,
        views: false,
        narrow: false,
        apart: false,
        restores: false,
        days: false,
        whole: false,
        silence: false,
    }
}

/// With what was added of late, from dice of its own.
fn widened(setting: Setting, seed: u64, routers: usize) -> Setting {
    let mut dice = Dice::new(!seed);
    let views = !setting.unique && dice.percent(50);
    Setting {
        views,
        moves: views || setting.moves,
        narrow: views && dice.percent(30),
        apart: routers > 1,
        restores: dice.percent(20),
        days: dice.percent(25),
        whole: dice.percent(25),
        silence: dice.percent(60),
        ..setting
    }
}

/// How much routers remember: `little` is soon forgotten.
fn bounds(little: bool) -> ResumeBounds {
    if !little {
        return ResumeBounds::default();
    }
    ResumeBounds {
        keep: Duration::from_secs(40),
        streams: 3,
        positions: 64,
        callers: 1,
        ring: 6,
    }
}
