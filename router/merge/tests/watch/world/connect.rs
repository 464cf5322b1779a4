//! How the client begins: it lists, or resumes, and a watch is planned for it as the router does.

use std::sync::Arc;

use portolan_merge::cursor::{Cursor, Slot, Universe};
use portolan_merge::filter::NamespaceFilter;
use portolan_merge::watch::{Output, Start, WatchFormat, WatchLeg, WatchMerge, WatchSpec};

use super::{Line, Session, World, binding, member_of};
use crate::client::Manner;
use crate::truth::Truth;

impl World {
    pub(super) fn plan(&self, universe: &Universe, start: impl Fn(usize) -> Start) -> Vec<WatchLeg> {
        let joined = self.truth.order().filter(|member| self.truth.joined[*member]);
        joined
            .map(|member| {
                let name = Truth::name(member);
                let slot = universe.slot(&name).unwrap();
                let owned = self.truth.owned(member);
                let labelled = self.truth.labelled[member];
                let filter = (!labelled && !self.truth.setting.unique).then(|| {
                    NamespaceFilter::only(Arc::new(owned.iter().map(|name| Arc::from(name.as_str())).collect()))
                });
                let asks = if labelled && !self.truth.setting.unique {
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
                    request_hash: asks,
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
        let up = |member: &usize| self.truth.joined[*member] && !self.truth.members[*member].up;
        if listing && !self.partial && (0..self.truth.members.len()).any(|member| up(&member)) {
            return;
        }
        let text = self.client.resume.clone();
        let raw = text.as_ref().and_then(|text| text.parse().ok());
        let cursor = match text {
            None => Cursor::new(&universe),
            Some(text) => {
                let Some(cursor) = self.resolve(&text, &universe) else {
                    self.tally.expired += 1;
                    self.client.resume = None;
                    return;
                };
                cursor
            }
        };
        self.open(universe, cursor, listing);
        if let (Some(raw), Some(session)) = (raw, &mut self.session) {
            session.merge.resumed(raw);
        }
    }

    /// What a raw version or a cursor stands for.
    fn resolve(&mut self, text: &str, universe: &Universe) -> Option<Cursor> {
        if let Ok(cursor) = Cursor::decode(text, universe) {
            return Some(cursor);
        }
        let raw = text.parse().ok()?;
        let known = self.resume.find(self.clock, &binding(), raw);
        let known = known.filter(|cursor| cursor.epoch() == universe.epoch());
        // Where this one stands is earlier if another stream sent the same number: it hears some of it once more.
        let own = self.ended.as_ref().and_then(|sent| sent.resume(raw));
        if known.is_some() && own.is_some() && known != own {
            self.client.goes_back();
        }
        if known.is_some() {
            self.tally.resumed_raw += 1;
        } else {
            self.tally.unknown_raw += 1;
        }
        known
    }

    fn open(&mut self, universe: Universe, cursor: Cursor, anew: bool) {
        let any = self.dice.percent(30);
        let listing = anew && self.client.manner == Manner::WatchList;
        let legs = self.plan(&universe, |slot| match cursor.slot(slot) {
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
        });
        let legs = members.into_iter().enumerate();
        let legs = legs.map(|(index, member)| Line {
            member,
            stream: None,
            wants: Some(merge.start(index)),
        });
        let legs = legs.collect();
        self.tally.watches += 1;
        // Given up half way, an initial state cannot be completed for this client.
        let mendable = anew && self.budget.is_some() && !self.small && !self.partial;
        self.session = Some(Session {
            merge,
            universe,
            legs,
            labelled: self.truth.labelled.clone(),
            out: Output::default(),
            wire: Vec::new(),
            mendable,
        });
    }
}
