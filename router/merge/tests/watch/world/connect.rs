//! How the client begins: it lists, or resumes, and a watch is planned for it as the router does.

use std::sync::Arc;

use portolan_merge::cursor::{Cursor, Slot, Universe};
use portolan_merge::filter::NamespaceFilter;
use portolan_merge::query::CollectionQuery;
use portolan_merge::resume::{Comeback, Resumed, Stream, Whose};
use portolan_merge::token::Binding;
use portolan_merge::watch::{Output, Start, WatchFormat, WatchLeg, WatchMerge, WatchSpec};

use super::{Line, Session, World, member_of};
use crate::client::Manner;
use crate::shard::Shard;
use crate::truth::Truth;

impl World {
    pub(super) fn plan(&self, shard: &Shard, universe: &Universe, start: impl Fn(usize) -> Start) -> Vec<WatchLeg> {
        let asks = shard.asks(self.truth.scope).into_iter();
        asks.map(|member| {
            let slot = shard.slot(universe, member);
            let owned = shard.owned(member);
            let labelled = self.truth.labelled[member];
            // The path says which namespace it is, if it is one.
            let whole = self.truth.setting.unique || self.truth.scope.is_some();
            let only = |names: Vec<&str>| NamespaceFilter::only(Arc::new(names.into_iter().map(Arc::from).collect()));
            let share = match self.truth.scope {
                Some(scope) => Some(only(vec![scope])),
                None if whole => None,
                None => Some(only(owned.iter().map(String::as_str).collect())),
            };
            let filter = share.clone().filter(|_| !labelled && !whole);
            let asks = if labelled && !whole {
                owned
                    .iter()
                    .fold(1, |hash, name| hash * 31 + u64::from(name.as_bytes()[0]))
            } else {
                0
            };
            WatchLeg {
                cluster: Truth::name(member).into(),
                uid_hash: shard.life(member),
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
        let listing = self.client.resume.is_none();
        let router = self.router();
        let query = watch_query(self.client.resume.as_deref());
        if !self.catch_up(router, &query) {
            return;
        }
        let shard = self.routers[router].shard.clone();
        if self.is_outside(&shard) {
            return self.leave_scope();
        }
        let away = |member: usize| !self.reaches(router, member);
        if listing && !self.partial && shard.members().any(away) {
            return;
        }
        let universe = shard.universe();
        let Some((cursor, stream, then)) = self.begin(&query, &shard, &universe, router) else {
            self.tally.expired += 1;
            self.client.resume = None;
            return;
        };
        if self.all && self.dice.percent(5) {
            // Nothing comes of it: members are away. It asks once more.
            self.routers[router].resume.end(self.clock, stream);
            return;
        }
        self.open(&then, cursor, listing, (router, stream));
        if then.revision != shard.revision {
            if let Some(session) = self.session.take() {
                let merge = session.merge.of_older_view();
                self.session = Some(Session { merge, ..session });
            }
            // As a running one that hears of it.
            self.tally.older += 1;
            self.client.came_and_went = true;
            self.client.retold = self.truth.changed_since(then.revision);
            self.replan();
        }
    }

    /// Where the client begins, and in which view of the shard. `None`: 410.
    fn begin(
        &mut self,
        query: &CollectionQuery,
        shard: &Shard,
        universe: &Universe,
        router: usize,
    ) -> Option<(Cursor, Stream, Shard)> {
        let begun = match query.raw() {
            Some(raw) => return self.resolve(raw, shard, universe, router),
            None if query.is_first() => (Cursor::new(universe), shard.clone()),
            None => self.position(query, shard, universe)?,
        };
        let stream = self.routers[router].resume.begin(whose(self.truth.scope));
        Some((begun.0, stream, begun.1))
    }

    /// What the version of an object stands for.
    fn resolve(
        &mut self,
        raw: u64,
        shard: &Shard,
        universe: &Universe,
        router: usize,
    ) -> Option<(Cursor, Stream, Shard)> {
        let stands = self.own.as_ref().and_then(|own| own.resume(raw));
        let comes = Comeback {
            whose: whose(self.truth.scope),
            version: raw,
            universe,
            alone: self.alone(router),
        };
        let resume = &mut self.routers[router].resume;
        // Who began with a state instead of a list is without the rest of it, as behind any API server.
        let listed = self.client.last_listed.is_some();
        let only = self.truth.scope.and_then(|scope| shard.only_member(scope));
        if let Some(member) = only.filter(|_| listed) {
            // As `fanout::watch::position` of the router.
            let mut cursor = Cursor::new(universe);
            cursor.set(shard.slot(universe, member), Slot::At(raw));
            self.tally.only_member += 1;
            // What a comparison finds gone is told first, and what came and went before it never: who goes on from the middle
            // of it hears of that.
            self.client.replay |= self.client.told_gone;
            // A state is told by name: the object that came last may be older than one before it.
            self.client.replay |= self.client.cache.values().any(|(_, version)| *version > raw);
            self.client.came_and_went = true;
            return Some((cursor, resume.begin(comes.whose), shard.clone()));
        }
        if let Resumed::At(cursor, stream) = resume.find(self.clock, comes) {
            let own = Some(&cursor) == stands.as_ref();
            assert!(
                own,
                "resumed by {raw} from where it does not stand: {cursor:?}, not {stands:?}"
            );
            self.tally.resumed_raw += 1;
            return Some((cursor, stream, shard.clone()));
        }
        self.tally.unknown_raw += 1;
        None
    }

    fn open(&mut self, shard: &Shard, cursor: Cursor, anew: bool, (router, stream): (usize, Stream)) {
        let universe = shard.universe();
        let any = self.dice.percent(30);
        let listing = anew && self.client.manner == Manner::WatchList;
        let legs = self.plan(shard, &universe, |slot| match cursor.slot(slot) {
            Slot::At(version) => Start::At(version),
            Slot::Sync | Slot::Unasked if anew && any => Start::Any,
            Slot::Sync | Slot::Unasked if anew && !listing => Start::Recent,
            Slot::Sync | Slot::Unasked => Start::Sync,
        });
        let members: Vec<_> = legs.iter().map(|leg| (member_of(leg), leg.uid_hash)).collect();
        self.client.connect();
        if self.trace {
            println!("open {cursor:?} {legs:?}, holding {:?}", self.client.cache);
        }
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
        let in_order = self.truth.scope.is_some_and(|scope| shard.only_member(scope).is_some());
        let merge = if in_order { merge.in_order() } else { merge };
        let whole = self.truth.setting.whole;
        let merge = if whole { merge.of_whole_objects() } else { merge };
        let legs = members.into_iter().enumerate().map(|(index, (member, life))| Line {
            wants: Some(merge.start(index)),
            ..Line::new(
                member,
                life,
                self.truth.asked(shard, member, self.truth.labelled[member]),
            )
        });
        let legs = legs.collect();
        self.tally.watches += 1;
        // Given up half way, an initial state cannot be completed for this client.
        let names = self.truth.setting.unique && !anew;
        let mendable =
            self.budget.is_some() && !self.small && !self.partial && !names && !in_order && !self.client.replay;
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

/// From where a client without a position, or with this one, asks for a watch.
fn watch_query(position: Option<&str>) -> CollectionQuery {
    CollectionQuery::parse(|name| position.filter(|_| name == "resourceVersion").map(ToOwned::to_owned))
}

fn whose(scope: Option<&str>) -> Whose {
    Whose {
        caller: Binding::new(["shard", "user"]),
        request: Binding::new(["shard", "user", "/things", scope.unwrap_or_default()]),
    }
}
