//! What everybody feels while one member is sick, fault by fault, in one table: callers of other members, behind the router and
//! behind a plain proxy under the same fault, how soon the member's breakers open and close, what still comes to it, and what
//! clients had to list again. It is printed, and kept as JSON in the target folder.
//!
//! `make chaos` runs all faults, and again while the hub is away; `make test` runs some. What a plain proxy makes of it is told
//! and not judged.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "also in functions that only tests call; what was measured is told"
)]

#[path = "chaos/clients.rs"]
mod clients;
#[path = "chaos/clock.rs"]
mod clock;
#[path = "chaos/disk.rs"]
mod disk;
#[path = "chaos/fault.rs"]
mod fault;
#[path = "chaos/flood.rs"]
mod flood;
#[path = "hostile/front.rs"]
mod front;
#[path = "chaos/ground.rs"]
mod ground;
#[path = "chaos/judge.rs"]
mod judge;
#[path = "chaos/load.rs"]
mod load;
#[path = "chaos/measure.rs"]
mod measure;
#[path = "hostile_siege/peer.rs"]
mod peer;
#[path = "hostile_siege/probe.rs"]
mod probe;
#[path = "chaos/table.rs"]
mod table;
#[path = "chaos/work.rs"]
mod work;

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use self::clients::Clients;
use self::fault::{Case, Kind};
use self::ground::Ground;
use self::load::Callers;
use self::measure::Scene;
use self::peer::{Peer, Second};
use self::table::Row;

/// In `make test`: one that opens at once, one that opens by what is looked at, and one that must not open.
const SHORT: [Kind; 3] = [Kind::Reset, Kind::TooMany, Kind::Stranger];
/// There, each goes on for so long at most.
const SHORTLY: Duration = Duration::from_secs(4);

/// What is chosen from outside.
struct Options {
    long: bool,
    /// Names of faults, or parts of them; all if empty.
    only: Vec<String>,
}

impl Options {
    #[expect(clippy::disallowed_methods, reason = "settings of this test alone")]
    fn read() -> Self {
        let only = std::env::var("PORTOLAN_CHAOS_ONLY").unwrap_or_default();
        let only = only.split(',').map(|name| name.trim().to_owned());
        Self {
            long: std::env::var("PORTOLAN_CHAOS").is_ok_and(|all| all == "all"),
            only: only.filter(|name| !name.is_empty()).collect(),
        }
    }

    /// With the hub, and once more without it.
    fn cases(&self) -> Vec<(&'static Case, bool)> {
        let wanted = |case: &&Case| match &*self.only {
            [] => self.long || SHORT.contains(&case.kind),
            only => only.iter().any(|name| case.name.contains(name.as_str())),
        };
        let passes: &[bool] = if self.long { &[false, true] } else { &[false] };
        let all = passes
            .iter()
            .flat_map(|away| fault::ALL.iter().filter(wanted).map(move |case| (case, *away)));
        all.collect()
    }
}

/// The fleet, its clients, and a plain proxy beside it.
async fn scene(long: bool) -> Scene {
    // Faults go on in tasks of their own.
    let ground: &'static Ground = Box::leak(Box::new(Ground::start().await.unwrap()));
    let ca_pem = STANDARD.decode(&ground.theirs.front.ca_bundle).unwrap();
    let second = Second {
        address: &ground.theirs.address(),
        ca_pem: &String::from_utf8(ca_pem).unwrap(),
    };
    ground.is_away_by(fault::AWAY);
    let peer = Peer::start(&ground.world, Some(second)).await.unwrap();
    let by_proxy = peer.door_to("west", "team-b").await.unwrap().with_prefix("/second");
    ground.by_proxy.set(by_proxy.clone()).unwrap();
    let callers = [
        Callers::start(ground.sick_door().await.unwrap()),
        Callers::start(by_proxy),
    ];
    let mut clients = Clients::start(&ground.world).await.unwrap();
    let late = clients.see("where", Duration::from_mins(1)).await.unwrap();
    assert_eq!(late, Vec::<String>::new(), "these never held what there is");
    Scene {
        ground,
        others: [ground.other_door().await.unwrap(), peer.door("team-c").await.unwrap()],
        clients,
        well: Duration::from_secs(if long { 4 } else { 2 }),
        began: Instant::now(),
        away: (fault::AWAY, Instant::now()),
        callers,
        _peer: peer,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sick_member_is_nobody_elses_affair() {
    let options = Options::read();
    let mut scene = scene(options.long).await;
    let mut rows = Vec::new();
    for (case, hub_away) in options.cases() {
        let mut case = *case;
        if !options.long && options.only.is_empty() {
            case.lasts = case.lasts.min(SHORTLY);
        }
        let mut row = Row::new(case.name, hub_away);
        // What was measured before is worth telling.
        let measured = scene.measure(&case, &mut row).await;
        let ended = measured.is_err();
        match measured {
            Ok(()) => judge::judge(&case, &mut row),
            Err(error) => row.wrong.push(format!("not measured: {error:#}")),
        }
        println!("{}", table::line(&row));
        rows.push(row);
        if ended {
            break;
        }
    }
    scene.ground.hub_is(false).await.unwrap();
    println!("{}", table::table(&rows));
    println!("{}", table::keep(&rows, "chaos.json").unwrap().display());
    let wrong = rows
        .iter()
        .flat_map(|row| row.wrong.iter().map(|wrong| format!("{}: {wrong}", row.name())));
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
