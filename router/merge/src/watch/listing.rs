//! What the client holds of a member, where that was told in an earlier stream: the member lists it, as of where the client
//! stands, to be compared with the member's state. And what is asked of a leg while its share changes (`change`).

use serde::Deserialize;
use serde_json::value::RawValue;

use super::known::{KnownObjects, Uid, write_key};
use super::output::Output;
use super::state::ResyncCause;
use super::{Act, Expiry, Start, WatchMerge};
use crate::filter::NamespaceFilter;
use crate::object_meta::json_item;

/// A member's list of what the client holds, page by page.
#[derive(Debug)]
pub struct Listing {
    known: KnownObjects,
    owned: Option<NamespaceFilter>,
    /// Only what is not of this: what left.
    without: Option<NamespaceFilter>,
}

/// Why a page cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListingFault {
    /// No list of metadata in JSON.
    #[error("what it answered is no list of metadata")]
    NotAList,
    /// No memory is left for what the client holds.
    #[error("no memory left for the keys of a list")]
    NoMemory,
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(default)]
    metadata: PageMeta,
    /// `null` is how API servers write an empty list of metadata; what has none at all is no list.
    #[serde(borrow, deserialize_with = "items")]
    items: Vec<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct PageMeta {
    #[serde(default, rename = "continue")]
    continue_: String,
}

fn items<'de, D: serde::Deserializer<'de>>(items: D) -> Result<Vec<&'de RawValue>, D::Error> {
    let items: Option<Vec<&RawValue>> = Deserialize::deserialize(items)?;
    Ok(items.unwrap_or_default())
}

impl Listing {
    /// Takes a page in. The token of the next one, if there is one.
    pub fn page(&mut self, body: &[u8]) -> Result<Option<String>, ListingFault> {
        let page: Page<'_> = serde_json::from_slice(body).map_err(|_| ListingFault::NotAList)?;
        let mut key = String::new();
        for item in page.items {
            let meta = json_item(item.get().as_bytes()).ok_or(ListingFault::NotAList)?;
            let version = meta.resource_version.parse().map_err(|_| ListingFault::NotAList)?;
            let held = self.owned.as_ref().is_none_or(|owned| owned.admits_object(&meta));
            if !held || self.without.as_ref().is_some_and(|stays| stays.admits_object(&meta)) {
                continue;
            }
            write_key(&mut key, &meta);
            if !self.known.set(&key, Uid::of(&meta.uid), version) {
                return Err(ListingFault::NoMemory);
            }
        }
        Ok(Some(page.metadata.continue_).filter(|token| !token.is_empty()))
    }
}

impl WatchMerge {
    /// What a leg's list is read into.
    pub fn listing(&self, leg: usize) -> Listing {
        let this = &self.legs[leg];
        let owned = match &this.change {
            Some(change) => change.held.clone(),
            None => this.owned().cloned(),
        };
        let leaving = this.change.as_ref().filter(|change| change.leaving);
        Listing {
            known: self.legs.nothing_known(),
            owned,
            without: leaving.and_then(|_| this.owned().cloned()),
        }
    }

    /// The leg's list is through: what is to be done next.
    pub fn listed(&mut self, leg: usize, listing: Listing, out: &mut Output) -> Option<Act> {
        let this = &mut self.legs[leg];
        if !this.state.is_listing() || self.acts.expired {
            return self.next_act();
        }
        let mut known = listing.known;
        let change = this.change.take();
        let starved = change.as_ref().is_some_and(|change| change.starved);
        if starved || this.known.take().is_some_and(|told| !known.take_over(*told)) {
            self.out_of_memory(leg);
            return self.next_act();
        }
        let start = if let Some(change) = change.filter(|change| change.leaving) {
            this.state.complete();
            let at = self.legs.position(leg).version().unwrap_or(0);
            self.leave_behind(leg, known.drain(), at);
            self.bookmarks.due = true;
            self.go_on_with(leg, change.held, (false, at))
        } else {
            this.known = Some(Box::new(known));
            this.begin_resync(ResyncCause::Recovery)
        };
        self.acts.restart(leg, start);
        self.proceed(out);
        self.next_act()
    }

    /// The leg's list does not fit into memory.
    pub fn unlisted(&mut self, leg: usize) -> Option<Act> {
        self.out_of_memory(leg);
        self.next_act()
    }

    pub(super) fn out_of_memory(&mut self, leg: usize) {
        let cluster = &self.legs[leg].cluster;
        self.acts.expire(
            Expiry::Memory,
            format!("no memory left to tell what is in member {cluster}"),
        );
    }

    /// The only objects that the leg's stream is read for, or that are listed of it, as a field selector, if that can be
    /// said.
    pub fn selects_only(&self, leg: usize) -> Option<String> {
        let this = &self.legs[leg];
        let change = this.change.as_ref().filter(|_| this.state.is_resync())?;
        let (owned, held) = (this.owned()?, change.held.as_ref()?);
        let (of, beyond) = match (change.entering, change.leaving) {
            (true, _) => (owned, held),
            (false, true) => (held, owned),
            (false, false) => return None,
        };
        match &*of.beyond(beyond)? {
            [name] => Some(of.field_selector(name)),
            _ => None,
        }
    }

    /// The leg's member does not list what was there where its stream stands: what came is read by a watch, as of later.
    pub fn reads_what_came_by_watching(&mut self, leg: usize) -> Option<Act> {
        let this = &mut self.legs[leg];
        if let Some(change) = &mut this.change {
            change.exactly = false;
        }
        if this.is_entering() && this.state.is_resync() && !self.acts.expired {
            let start = this.begin_resync(ResyncCause::Recovery);
            self.acts.restart(leg, start);
        }
        self.next_act()
    }

    /// Whether the leg's next bookmark is waited for: the sooner it comes the better.
    pub fn is_catching_up(&self, leg: usize) -> bool {
        let this = &self.legs[leg];
        let at = self.legs.position(leg).version().unwrap_or(0);
        let until = this.change.as_ref().map_or(0, |change| change.until);
        // What has left is told once some member has said of what type it is.
        let untold = !self.deletes.is_empty() && !self.emitter.knows_type();
        this.state.is_live() && (untold || at < until.max(this.exact_from))
    }

    /// Whether what came to the leg's share is being read.
    pub fn is_telling_change(&self, leg: usize) -> bool {
        let this = &self.legs[leg];
        this.is_entering() && this.state.is_resync()
    }

    /// Whether the leg is being told of a change of the shard: until it is, no bookmark is of the new view.
    pub fn is_changing(&self, leg: usize) -> bool {
        self.legs[leg].is_owed()
    }

    /// What came is told as of `version`: on from where the stream stood.
    pub(super) fn entered(&mut self, leg: usize, version: u64) {
        self.delete_unseen(leg, version);
        let at = self.legs.position(leg).version().unwrap_or(0);
        let this = &mut self.legs[leg];
        this.stream.reset();
        if let Some(change) = &mut this.change {
            change.until = version;
        }
        self.acts.restart(leg, Start::At(at));
    }

    /// Asks for a list of what the client holds. `None`: that cannot be kept.
    pub(super) fn list(&mut self, leg: usize, held: Option<NamespaceFilter>, cause: ResyncCause) -> Option<Start> {
        let at = self.legs.position(leg).version()?;
        if !self.legs.can_list() {
            return None;
        }
        let nothing = self.legs.nothing_known();
        let this = &mut self.legs[leg];
        this.seen = this.seen.max(at);
        this.begin_listing(held, cause, nothing);
        Some(Start::Exact(at))
    }

    /// Whether the stream has come to where what came was told.
    pub(super) fn arrive(&mut self, leg: usize, out: &mut Output) {
        if self.legs.has_arrived(leg) {
            self.bookmarks.due = true;
            self.proceed(out);
        }
    }
}
