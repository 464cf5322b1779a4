//! The faults, one by one: what each is, what is to come of it, how it begins and how it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Response, Uri};
use portolan_testbed::Fault;
use tokio::task::JoinSet;

use crate::front::{Front, Frozen, Told};
use crate::ground::{Ground, Way};
use crate::load::Callers;
use crate::{disk, flood};

/// What happens to west, or to the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Reset,
    Unanswered,
    Silent,
    Frozen,
    Flapping,
    Errors,
    TooMany,
    Expired,
    Stranger,
    Hundredth,
    TenTimes,
    Slow,
    Busier,
    Tenfold,
    Half,
    Reader,
    Flood,
    ClockFast,
    ClockSlow,
    Disk,
}

/// Whether its breakers for lists and single objects are to open.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opens {
    Within(Duration),
    Never,
    /// Either is right.
    Maybe,
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) kind: Kind,
    pub(crate) name: &'static str,
    pub(crate) opens: Opens,
    /// How long it goes on, or once it is open where it is to open.
    pub(crate) lasts: Duration,
    /// How much longer west takes than it does here, before it begins.
    pub(crate) away: Duration,
}

const fn case(kind: Kind, name: &'static str, opens: Opens, seconds: u64) -> Case {
    let lasts = Duration::from_secs(seconds);
    Case {
        kind,
        name,
        opens,
        lasts,
        away: AWAY,
    }
}

const fn within(seconds: u64) -> Opens {
    Opens::Within(Duration::from_secs(seconds))
}

/// What the hub must not be away for at its beginning or end is at the edges. What restarts the router comes last, and what asks a lot
/// after what depends on the member's pace.
pub(crate) const ALL: [Case; 20] = [
    Case {
        away: NEAR,
        ..case(Kind::Busier, "busy: from 3 to 60 ms", Opens::Never, 30)
    },
    case(Kind::Half, "half the endpoints gone", within(10), 8),
    case(Kind::Reset, "RST", within(1), 8),
    case(Kind::Unanswered, "SYN blackhole", within(10), 8),
    case(Kind::Silent, "established and silent", within(10), 8),
    case(Kind::Frozen, "frozen", within(10), 8),
    case(Kind::Flapping, "flapping each second", Opens::Maybe, 12),
    case(Kind::Errors, "30 % 5xx", Opens::Never, 12),
    case(Kind::TooMany, "429 storm", Opens::Never, 8),
    case(Kind::Expired, "expired certificate", within(10), 8),
    case(Kind::Stranger, "wrong certificate", within(10), 8),
    case(Kind::Hundredth, "1 % slow", Opens::Never, 30),
    case(Kind::TenTimes, "ten times slower than itself", within(30), 6),
    case(Kind::Slow, "5 s slow", within(30), 6),
    case(Kind::Tenfold, "ten times the load", Opens::Never, 30),
    case(Kind::Reader, "slow reader", Opens::Never, 10),
    case(Kind::Flood, "caller flood", Opens::Never, 10),
    case(Kind::ClockFast, "router's clock 5 minutes fast", Opens::Never, 12),
    case(Kind::ClockSlow, "router's clock 5 minutes slow", Opens::Never, 12),
    case(Kind::Disk, "disk full for the state file", Opens::Never, 8),
];

/// A fault that is on.
#[derive(Default)]
pub(crate) struct Inflicted {
    frozen: Vec<Frozen>,
    callers: Vec<Callers>,
    going_on: JoinSet<()>,
}

/// Members are in other places than routers; one that is ten times as slow is slow then. What a busy machine adds is little beside it.
pub(crate) const AWAY: Duration = Duration::from_millis(100);
/// A member beside the router that has little to do, and what it takes when it is busy.
const NEAR: Duration = Duration::from_millis(3);
const BUSY: Duration = Duration::from_millis(60);
/// Callers beside those who ask all the time.
const MORE: usize = 9;
/// What is slow, is so by that.
const SLOW: Duration = Duration::from_secs(5);
const CLOCK: i32 = 300;

impl Kind {
    /// Whether it shows only against what the member took minutes ago.
    pub(crate) fn needs_a_pace(self) -> bool {
        matches!(
            self,
            Self::Hundredth | Self::TenTimes | Self::Slow | Self::Busier | Self::Tenfold
        )
    }

    /// What is no fault yet, and takes the router away.
    pub(crate) async fn prepare(self, ground: &'static Ground) -> anyhow::Result<()> {
        match self {
            Self::Half => ground.endpoints(true).await,
            Self::ClockFast => ground.clock(Some(CLOCK)).await,
            Self::ClockSlow => ground.clock(Some(-CLOCK)).await,
            Self::Disk => ground.small_disk(true).await,
            Self::Reader => flood::fill(ground).await,
            _ => Ok(()),
        }
    }

    /// Takes it back.
    pub(crate) async fn tidy(self, ground: &'static Ground) -> anyhow::Result<()> {
        match self {
            Self::Half => ground.endpoints(false).await,
            Self::ClockFast | Self::ClockSlow => ground.clock(None).await,
            Self::Disk => ground.small_disk(false).await,
            _ => Ok(()),
        }
    }

    /// Begins on both ways.
    pub(crate) async fn inflict(self, ground: &'static Ground) -> anyhow::Result<Inflicted> {
        let mut inflicted = Inflicted::default();
        let ways = [&ground.ours, &ground.theirs];
        match self {
            Self::Reset => set(ways, Fault::Reset),
            Self::Unanswered => set(ways, Fault::Unanswered),
            Self::Silent | Self::Half => set(ways, Fault::Blackhole),
            Self::Frozen => {
                ground.world.cluster("west").freeze().await?;
                inflicted.frozen = ways.map(|way| way.front.freeze()).into();
            }
            Self::Slow | Self::Hundredth | Self::TenTimes | Self::Errors | Self::TooMany => {
                for way in ways {
                    self.lie(way.front);
                }
            }
            Self::Flapping => drop(inflicted.going_on.spawn(flap(ways))),
            Self::Expired | Self::Stranger => self.certificates(ways).await?,
            Self::Reader => flood::unread(&mut inflicted.going_on, ground).await?,
            Self::Flood => flood::flood(&mut inflicted.going_on, ground).await?,
            Self::Disk => disk::fill(ground).await?,
            Self::Busier => ground.is_away_by(BUSY),
            Self::Tenfold => {
                for _ in 0..MORE {
                    inflicted.callers.push(Callers::start(ground.sick_door().await?));
                }
            }
            Self::ClockFast | Self::ClockSlow => {}
        }
        Ok(inflicted)
    }

    /// Ends it.
    pub(crate) async fn lift(self, ground: &'static Ground, inflicted: Inflicted) -> anyhow::Result<()> {
        drop(inflicted);
        let ways = [&ground.ours, &ground.theirs];
        set(ways, Fault::None);
        for way in ways {
            way.front.is_honest();
        }
        match self {
            Self::Frozen => ground.world.cluster("west").thaw().await?,
            Self::Expired | Self::Stranger => {
                for way in ways {
                    way.front.wears(Duration::from_hours(24))?;
                }
            }
            Self::Disk => disk::empty(ground).await?,
            Self::Busier => ground.is_away_by(NEAR),
            _ => {}
        }
        Ok(())
    }

    fn lie(self, front: &Front) {
        let number = Arc::new(AtomicUsize::new(0));
        front.lies_about("", move |_: &Uri| {
            let number = number.fetch_add(1, Ordering::Relaxed);
            match self {
                Self::Slow => Some(Told::Late(SLOW)),
                Self::Hundredth => number.is_multiple_of(100).then_some(Told::Late(SLOW)),
                Self::TenTimes => Some(Told::Slower(10)),
                // Spread: never many in a row.
                Self::Errors => (number * 3 % 10 < 3).then(|| Told::Head(Response::builder().status(500))),
                _ => {
                    let head = Response::builder().status(429).header("retry-after", "1");
                    Some(Told::Head(head))
                }
            }
        });
    }

    async fn certificates(self, ways: [&Way; 2]) -> anyhow::Result<()> {
        for way in ways {
            if self == Self::Stranger {
                way.front.wears_a_strangers()?;
            } else {
                way.front.wears(Duration::ZERO)?;
            }
        }
        // Certificates end by the second. Connections of before know nothing of it: they break, as when a server is restarted.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        set(ways, Fault::Reset);
        tokio::time::sleep(Duration::from_millis(20)).await;
        set(ways, Fault::None);
        Ok(())
    }
}

fn set(ways: [&Way; 2], fault: Fault) {
    for way in ways {
        way.stage.set(fault);
    }
}

async fn flap(ways: [&'static Way; 2]) {
    for fault in [Fault::Reset, Fault::None].into_iter().cycle() {
        set(ways, fault);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
