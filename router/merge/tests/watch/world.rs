//! One history: members that change, break and move, one client, and the merged watch between them.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use portolan_merge::cursor::Universe;
use portolan_merge::resume::{ResumeBounds, Stream as Resumable};
use portolan_merge::watch::{Act, Budget, Expiry, Output, Sent, Start, WatchFormat, WatchLeg, WatchMerge};

mod away;
mod connect;
mod faults;
mod list;
mod routers;
mod setting;
mod swaps;
mod views;

use self::list::Paging;
use self::routers::Router;
use crate::client::Client;
use crate::dice::Dice;
use crate::member::{Asked, Serves, Stream};
use crate::truth::Truth;

/// The side that does the IO, as the router's: legs, their streams, what is on its way to the client.
struct Session {
    merge: WatchMerge,
    universe: Universe,
    legs: Vec<Line>,
    /// How its members are asked: a watch that runs may keep its way.
    labelled: Vec<bool>,
    out: Output,
    wire: Vec<u8>,
    /// With memory for shadows: nothing may expire it, unless it resumed and a member has compacted where it stood.
    mendable: bool,
    anew: bool,
    /// Which router serves it, and as which stream.
    router: usize,
    stream: Resumable,
}

/// A client that is not looked at now, and its connection, which stands still meanwhile.
struct Seat {
    client: Client,
    session: Option<Session>,
    paging: Option<Paging>,
    own: Option<Sent>,
}

impl Seat {
    fn new(client: Client) -> Self {
        Self {
            client,
            session: None,
            paging: None,
            own: None,
        }
    }
}

struct Line {
    member: usize,
    /// Which incarnation of it.
    life: u64,
    /// What its plan asks.
    asked: Asked,
    /// What the plan before asked, while a new one is told.
    before: Option<Asked>,
    /// What its list is asked for.
    listed: Option<Asked>,
    stream: Option<Stream>,
    wants: Option<Start>,
}

impl Line {
    fn new(member: usize, life: u64, asked: Asked) -> Self {
        Self {
            member,
            life,
            asked,
            before: None,
            listed: None,
            stream: None,
            wants: None,
        }
    }
}

#[derive(Default, Debug)]
pub(crate) struct Tally {
    pub(crate) lists: usize,
    pub(crate) pages: usize,
    pub(crate) expired_lists: usize,
    pub(crate) expired: usize,
    pub(crate) resumed_raw: usize,
    pub(crate) unknown_raw: usize,
    pub(crate) replans: usize,
    pub(crate) flips: usize,
    pub(crate) mended: usize,
    pub(crate) events: usize,
    pub(crate) bookmarks: usize,
    pub(crate) watches: usize,
    pub(crate) listed: usize,
    pub(crate) entered: usize,
    pub(crate) older: usize,
    pub(crate) scopes: usize,
    pub(crate) caught_up: usize,
    pub(crate) hub_away: usize,
    pub(crate) restores: usize,
    pub(crate) days: usize,
    pub(crate) forgotten_views: usize,
    /// Pages of lists that were begun in an older view.
    pub(crate) older_pages: usize,
    pub(crate) only_member: usize,
    pub(crate) outlasted: usize,
}

pub(crate) struct World {
    dice: Dice,
    truth: Truth,
    client: Client,
    format: WatchFormat,
    session: Option<Session>,
    /// Another client of the same caller with the same request.
    twin: Option<Seat>,
    /// What the client's own last stream has sent: it alone knows what the version of an object stands for.
    own: Option<Sent>,
    routers: Vec<Router>,
    /// Of their memories.
    bounds: ResumeBounds,
    /// Streams whose client is gone, which the router has not noticed.
    half_open: Vec<Session>,
    /// With what was added to histories after some of them had been pinned.
    all: bool,
    /// Clients that resume by objects' versions, over connections that break, from members that count alike.
    breaks: bool,
    clock: Duration,
    /// The client's list under way.
    paging: Option<Paging>,
    budget: Option<Budget>,
    small: bool,
    partial: bool,
    trace: bool,
    pub(crate) tally: Tally,
}

impl World {
    pub(crate) fn run(&mut self) {
        let steps = 20 + self.dice.below(150);
        let rests = self.dice.below(steps);
        for step in 0..steps {
            self.step();
            if step == rests && self.dice.percent(30) {
                self.rest();
            }
            if step % 40 == rests % 40 && self.truth.setting.silence {
                self.outlast();
            }
        }
        self.client.remembers = self.dice.percent(40);
        for _ in 0..self.dice.below(20) {
            self.step();
        }
        self.rest();
        if self.client.remembers {
            // It may have lost its connection at any event of it.
            self.client.rewind(&mut self.dice);
            self.drop_session();
            self.rest();
        }
        self.tally.events = self.client.events;
        self.tally.bookmarks = self.client.bookmarks;
        self.idle();
        if self.twin.is_some() {
            self.change_client();
            self.rest();
        }
        self.session = None;
        self.twin = None;
        self.half_open.clear();
        if let Some(budget) = &self.budget {
            assert_eq!(budget.used(), 0, "memory of shadows was not given back");
        }
    }

    /// Everything arrives, and then the client holds what there is.
    fn rest(&mut self) {
        self.settle();
        // Members never stay silent for long. Those without a marker are through with a bookmark, and may be asked again.
        for _ in 0..3 {
            self.bookmark_all();
            self.settle();
        }
        let truth: BTreeMap<_, _> = self
            .truth
            .union()
            .into_iter()
            .filter(|((namespace, _), _)| self.truth.in_scope(namespace))
            .map(|(key, object)| (key, (object.uid, object.version)))
            .collect();
        assert_eq!(
            self.client.cache, truth,
            "the cache at rest is not the union of the members"
        );
    }

    /// When nothing happens there are no more bookmarks than one member sends.
    fn idle(&mut self) {
        let before = self.client.bookmarks;
        for _ in 0..5 {
            self.bookmark_all();
            self.settle();
        }
        assert!(
            self.client.bookmarks - before <= 5 + 1,
            "more bookmarks than any member sent"
        );
    }

    fn bookmark_all(&mut self) {
        for line in self.session.iter_mut().flat_map(|session| &mut session.legs) {
            if let Some(stream) = &mut line.stream {
                stream.mark(false);
            }
        }
    }

    fn bookmark_plain(&mut self) {
        for line in self.session.iter_mut().flat_map(|session| &mut session.legs) {
            let member = &self.truth.members[line.member];
            if let Some(stream) = line.stream.as_mut().filter(|_| member.plain) {
                member.feed(stream);
                stream.mark(false);
            }
        }
    }

    fn step(&mut self) {
        self.clock += Duration::from_secs(if self.twin.is_some() { 1 } else { 2 });
        if self.session.is_none() && self.dice.percent(40) {
            self.connect_client();
        }
        if self.breaks && self.dice.percent(8) {
            return self.cut_client();
        }
        if self.later_fault() {
            return;
        }
        match self.dice.below(100) {
            0..25 => self.truth.change(&mut self.dice),
            25..65 => self.shovel(),
            65..68 if self.truth.setting.views && self.dice.percent(60) => self.change_scope(),
            65..75 => self.deliver(),
            75..80 => self.connect_client(),
            80..84 => self.disturb_member(),
            84..88 => self.disturb_stream(),
            88..90 => self.cut_client(),
            90..92 if self.truth.setting.moves => self.reconfigure(),
            92 if self.truth.setting.flips => self.flip(),
            93 if self.twin.is_some() => self.change_client(),
            92 if self.all && !self.half_open.is_empty() => self.notice(),
            93 if self.routers.len() > 1 => self.disturb_router(),
            92..94 => self.bookmark_member(),
            94..97 => self.give_up(),
            _ => self.flush(),
        }
    }

    /// Some bytes of some member into the machine, or its leg connected.
    fn shovel(&mut self) {
        if let Some(index) = self.line() {
            self.shovel_leg(index);
        }
        if self.dice.percent(50) {
            self.flush();
        }
    }

    /// A leg's member is asked.
    fn connect_leg(&mut self, index: usize, start: Start) {
        if let Start::Exact(version) = start {
            return self.list_leg(index, version);
        }
        let Some(session) = &mut self.session else { return };
        let line = &mut session.legs[index];
        let member = &self.truth.members[line.member];
        let mut asked = line.asked.clone();
        if let Some(only) = session.merge.selects_only(index).filter(|_| self.dice.percent(70)) {
            let only = only.strip_prefix("metadata.namespace=").expect("kinds with namespaces");
            asked.namespaces = Some([only.to_owned()].into());
            self.tally.entered += 1;
        }
        if member.plain {
            session.merge.disable_watch_list(index);
        }
        let serves = Serves {
            behind: if self.dice.percent(25) { self.dice.next() % 4 } else { 0 },
            marker: self.dice.percent(50),
        };
        if self.trace {
            println!("leg {index} asks {start:?} of {asked:?} behind {}", serves.behind);
        }
        line.stream = Some(member.watch(self.format, start, asked, serves));
    }

    fn shovel_leg(&mut self, index: usize) -> bool {
        let Some(session) = &self.session else { return false };
        let up = self.reaches(session.router, session.legs[index].member);
        let Some(session) = &mut self.session else { return false };
        let line = &mut session.legs[index];
        let member = &self.truth.members[line.member];
        if let Some(start) = line.wants {
            if up {
                line.wants = None;
                self.connect_leg(index, start);
            }
            return up;
        }
        let Some(stream) = &mut line.stream else { return false };
        if !up && !self.dice.percent(30) {
            // Frozen or gone: a blackholed stream says nothing.
            return false;
        }
        if up {
            member.feed(stream);
        }
        if stream.bytes.is_empty() && (stream.ended || !up) {
            line.stream = None;
            let act = session.merge.lost(index);
            self.act(Some(act));
            return true;
        }
        if stream.bytes.is_empty() || (session.merge.paused(index) && self.dice.percent(70)) {
            return false;
        }
        let most = if self.dice.percent(50) {
            stream.bytes.len()
        } else {
            1 + self.dice.below(stream.bytes.len())
        };
        let chunk: Vec<u8> = stream.bytes.drain(..most).collect();
        if self.trace {
            println!("leg {index} reads {}", String::from_utf8_lossy(&chunk));
        }
        let act = session
            .merge
            .push(index, Bytes::from(chunk), &mut session.out)
            .expect("members speak well here");
        self.act(act);
        true
    }

    fn act(&mut self, mut act: Option<Act>) {
        while let Some(this) = act {
            if self.trace {
                println!("act {this:?}");
            }
            let Some(session) = &mut self.session else { return };
            match this {
                Act::Restart { leg, start } => {
                    if start == Start::Sync {
                        self.tally.mended += 1;
                    }
                    let line = &mut session.legs[leg];
                    line.stream = None;
                    line.wants = Some(start);
                    let told = line.listed.take().or(line.before.take());
                    let told = told.unwrap_or_else(|| line.asked.clone());
                    line.listed = matches!(start, Start::Exact(_)).then_some(told);
                }
                Act::Expired { cause, why } => {
                    let compacted = cause == Expiry::Compacted && !session.anew && self.truth.setting.compaction;
                    // What came and went meanwhile, and is back, may be held or not.
                    let unsure = cause == Expiry::Changed && self.client.came_and_went;
                    let untold =
                        cause == Expiry::Metadata && self.truth.setting.whole && self.format == WatchFormat::Json;
                    assert!(
                        !session.mendable || compacted || unsure || untold,
                        "expired what can be mended: {cause:?}, {why}"
                    );
                    self.tally.expired += 1;
                    self.drop_session();
                    // Sometimes the connection breaks before it comes.
                    if cause != Expiry::Metadata || self.dice.percent(60) {
                        self.client.resume = None;
                    }
                    return;
                }
            }
            act = session.merge.next_act();
        }
    }

    fn flush(&mut self) {
        if let Some(session) = &mut self.session {
            session.merge.flush(&mut session.out);
            while let Some(chunk) = session.out.pop() {
                session.wire.extend_from_slice(&chunk);
            }
            assert!(session.out.is_empty());
        }
    }

    fn wake(&mut self) {
        self.flush();
        let act = self.session.as_mut().and_then(|session| {
            // A list would have to wait for who is away.
            if session.legs.iter().all(|line| line.stream.is_some()) {
                session.merge.expire_untold();
            }
            session.merge.next_act()
        });
        self.act(act);
    }

    /// Some of what was written reaches the client.
    fn deliver(&mut self) {
        self.wake();
        if let Some(session) = &mut self.session {
            let most = if self.dice.percent(70) {
                session.wire.len()
            } else {
                self.dice.below(session.wire.len() + 1)
            };
            let bytes: Vec<u8> = session.wire.drain(..most).collect();
            self.client.read(&bytes, &self.truth);
        }
    }

    /// Everybody is back, and all that is on its way arrives.
    fn settle(&mut self) {
        for member in &mut self.truth.members {
            member.up = true;
        }
        self.mend_routers();
        for round in 0.. {
            assert!(round < 1_000, "no rest");
            if round % 20 == 19 {
                // Members never stay silent for long.
                self.bookmark_all();
            }
            self.connect_client();
            if round % 10 == 9 {
                // Who has no marker is waited for until then.
                self.bookmark_plain();
            }
            let legs = self.session.as_ref().map_or(0, |session| session.legs.len());
            let mut busy = self.session.is_none();
            for leg in 0..legs {
                let mut chunks = 0;
                while self.session.as_ref().is_some_and(|session| leg < session.legs.len()) && self.shovel_leg(leg) {
                    busy = true;
                    chunks += 1;
                    assert!(chunks < 100_000, "a leg is asked again for ever");
                }
            }
            self.wake();
            if let Some(session) = &mut self.session {
                busy |= !session.wire.is_empty();
                let bytes = std::mem::take(&mut session.wire);
                self.client.read(&bytes, &self.truth);
                busy |= session
                    .legs
                    .iter()
                    .any(|line| line.stream.is_none() || line.stream.as_ref().is_some_and(|s| !s.bytes.is_empty()));
            }
            if !busy {
                break;
            }
        }
    }
}

fn member_of(leg: &WatchLeg) -> usize {
    leg.cluster.trim_start_matches("member-").parse().unwrap()
}
