//! How the client begins: it lists, or resumes, and a watch is planned for it as the router does.

use std::sync::Arc;
use std::time::Duration;

use portolan_merge::cursor::{Cursor, Slot, Universe, is_cursor};
use portolan_merge::filter::NamespaceFilter;
use portolan_merge::resume::{Comeback, Resumed, Stream, Whose};
use portolan_merge::token::Binding;
use portolan_merge::watch::{Output, Start, WatchFormat, WatchLeg, WatchMerge, WatchSpec};

use super::{Line, Session, World, member_of};
use crate::client::Manner;
use crate::truth::{Owners, Truth};

impl World {
    pub(super) fn plan(&self, owners: &Owners, universe: &Universe, start: impl Fn(usize) -> Start) -> Vec<WatchLeg> {
        let asks = self.truth.asks(owners).into_iter();
        asks.map(|member| {
            let name = Truth::name(member);
            let slot = universe.slot(&name).unwrap();
            let owned = self.truth.owned(owners, member);
            let labelled = self.truth.labelled[member];
            // The path says which namespace it is, if it is one.
            let whole = self.truth.setting.unique || self.truth.scope.is_some();
            let share = (!whole)
                .then(|| NamespaceFilter::only(Arc::new(owned.iter().map(|name| Arc::from(name.as_str())).collect())));
            let filter = share.clone().filter(|_| !labelled);
            let asks = if labelled && !whole {
                owned
                    .iter()
                    .fold(1, |hash, name| hash * 31 + u64::from(name.as_bytes()[0]))
            } else {
                0
            };
            WatchLeg {
                cluster: name.into(),
                uid_hash: 0,
                slot,
                filter,
                share,
                request_hash: asks,
                selector_hash: 0,
                start: start(slot),
            }
        })
        .collect()
    }

    /// The client lists if it must, and watches.
    pub(super) fn connect_client(&mut self) {
        if self.session.is_some() {
            return;
        }
        let lists = matches!(self.client.manner, Manner::ListWatch | Manner::NoBookmarks);
        if self.client.resume.is_none() && lists && !self.list() {
            return;
        }
        let universe = self.truth.universe();
        let listing = self.client.resume.is_none();
        let router = self.router();
        let away = |member: &usize| self.truth.joined[*member] && !self.reaches(router, *member);
        if listing && !self.partial && (0..self.truth.members.len()).any(|member| away(&member)) {
            return;
        }
        let begins = match self.client.resume.clone() {
            None => {
                let stream = self.resume[router].begin(whose(self.truth.scope));
                Some((Cursor::new(&universe), stream, self.truth.owner.clone()))
            }
            Some(text) => self.resolve(&text, &universe, router),
        };
        let Some((cursor, stream, owners)) = begins else {
            self.tally.expired += 1;
            self.client.resume = None;
            return;
        };
        if self.all && self.dice.percent(5) {
            // Nothing comes of it: members are away. It asks once more.
            self.resume[router].end(self.clock, stream);
            return;
        }
        self.open(&owners, cursor, listing, (router, stream));
        if owners != self.truth.owner {
            // As a running one that hears of it.
            self.tally.older += 1;
            self.client.came_and_went = true;
            self.replan();
        }
    }

    /// The one that the client's next request comes to.
    pub(super) fn router(&mut self) -> usize {
        match self.resume.len() {
            1 => 0,
            routers => self.dice.below(routers),
        }
    }

    /// What a raw version or a cursor stands for.
    fn resolve(&mut self, text: &str, universe: &Universe, router: usize) -> Option<(Cursor, Stream, Owners)> {
        let alone = if self.resume.len() == 1 {
            Duration::MAX
        } else {
            Duration::ZERO
        };
        if is_cursor(text) {
            let (cursor, owners) = self.position(text, universe)?;
            return Some((cursor, self.resume[router].begin(whose(self.truth.scope)), owners));
        }
        let resume = &mut self.resume[router];
        let raw = text.parse().ok()?;
        let stands = self.own.as_ref().and_then(|own| own.resume(raw));
        let comes = Comeback {
            whose: whose(self.truth.scope),
            version: raw,
            universe,
            alone,
        };
        if let Resumed::At(cursor, stream) = resume.find(self.clock, comes) {
            let own = Some(&cursor) == stands.as_ref();
            assert!(
                own,
                "resumed by {raw} from where it does not stand: {cursor:?}, not {stands:?}"
            );
            self.tally.resumed_raw += 1;
            return Some((cursor, stream, self.truth.owner.clone()));
        }
        self.tally.unknown_raw += 1;
        None
    }

    fn open(&mut self, owners: &Owners, cursor: Cursor, anew: bool, (router, stream): (usize, Stream)) {
        let universe = self.truth.universe();
        let any = self.dice.percent(30);
        let listing = anew && self.client.manner == Manner::WatchList;
        let legs = self.plan(owners, &universe, |slot| match cursor.slot(slot) {
            Slot::At(version) => Start::At(version),
            Slot::Sync | Slot::Unasked if anew && any => Start::Any,
            Slot::Sync | Slot::Unasked if anew && !listing => Start::Recent,
            Slot::Sync | Slot::Unasked => Start::Sync,
        });
        let members: Vec<usize> = legs.iter().map(member_of).collect();
        self.client.connect();
        if self.trace {
            println!("open {cursor:?} {legs:?}");
        }
        self.client.replay |= cursor.slots().contains(&Slot::At(1));
        let merge = WatchMerge::new(WatchSpec {
            format: self.format,
            bookmarks: self.client.manner != Manner::NoBookmarks,
            initial_events: listing,
            cursor,
            legs,
            unique: self.truth.setting.unique,
            cluster_column: self.format == WatchFormat::Table && self.dice.percent(50),
            // A union that has too little memory for its names never gets through.
            known_objects: self
                .budget
                .clone()
                .filter(|_| !(self.small && self.truth.setting.unique)),
        })
        .recorded(stream.sent());
        let legs = members.into_iter().enumerate();
        let legs = legs.map(|(index, member)| Line {
            member,
            asked: self.truth.asked(owners, member, self.truth.labelled[member]),
            before: None,
            listed: None,
            stream: None,
            wants: Some(merge.start(index)),
        });
        let legs = legs.collect();
        self.tally.watches += 1;
        // Given up half way, an initial state cannot be completed for this client.
        let names = self.truth.setting.unique && !anew;
        let mendable = self.budget.is_some() && !self.small && !self.partial && !names && !self.client.replay;
        self.session = Some(Session {
            merge,
            universe,
            legs,
            labelled: self.truth.labelled.clone(),
            out: Output::default(),
            wire: Vec::new(),
            mendable,
            anew,
            router,
            stream,
        });
    }
}

/// Who asks for what.
pub(super) fn binding() -> Binding {
    Binding::new(["shard", "user", "/things"])
}

fn whose(scope: Option<&str>) -> Whose {
    Whose {
        caller: Binding::new(["shard", "user"]),
        request: Binding::new(["shard", "user", "/things", scope.unwrap_or_default()]),
    }
}
