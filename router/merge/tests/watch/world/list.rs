//! How the client lists: pages of the real list core, one at a time, with whatever happens between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use portolan_merge::cursor::{Cursor, Slot, Universe, View};
use portolan_merge::list::{ListFormat, ListLeg, ListMerge, ListOptions, MergedMeta, Wants};
use portolan_merge::query::{CollectionQuery, LegAsk, ListAsk, ListRead, Param, QueryFault};
use portolan_merge::token::{Reading, Token};
use portolan_merge::watch::{ListingFault, Start, WatchLeg};
use serde_json::{Value, json};

use super::World;
use super::connect::binding;
use crate::client::Cache;
use crate::member::{Key, ListAsked, Page, Serves};
use crate::shard::Shard;

/// A list under way.
#[derive(Default)]
pub(super) struct Paging {
    limit: Option<usize>,
    version: Option<String>,
    /// Where it goes on.
    token: Option<String>,
    /// The same on every page.
    cursor: Option<String>,
    items: Cache,
    /// What all pages together are to be.
    expected: Cache,
    inconsistent: bool,
    /// Namespaces that had left the shard, or their member, before its last page.
    left: BTreeSet<&'static str>,
}

/// What came of one request.
enum Answer {
    /// The merged body.
    Page(Value),
    /// 410, with the token to go on with if there is one.
    Expired(Option<String>),
    /// The same for pages of another epoch: the rest is another list.
    Rest(String),
    /// A member cannot be asked, or the hub.
    Away,
    /// 403.
    Outside,
}

impl World {
    /// One page. True if it was the last and the client has its list.
    pub(super) fn list(&mut self) -> bool {
        let mut paging = match self.paging.take() {
            Some(paging) => paging,
            None => self.begin_list(),
        };
        let router = if self.truth.setting.apart { self.router() } else { 0 };
        match self.page(&mut paging, router) {
            Answer::Away => self.paging = Some(paging),
            Answer::Outside => self.leave_scope(),
            // It begins anew, unless it takes what is offered.
            Answer::Expired(token) => {
                self.tally.expired_lists += 1;
                self.client.last_listed = None;
                if let Some(token) = token.filter(|_| self.dice.percent(50)) {
                    paging.token = Some(token);
                    paging.inconsistent = true;
                    self.paging = Some(paging);
                }
            }
            Answer::Rest(token) => {
                self.tally.expired_lists += 1;
                self.client.last_listed = None;
                if self.dice.percent(50) {
                    paging.token = Some(token);
                    (paging.inconsistent, paging.cursor) = (true, None);
                    // It may be shown again what it was shown.
                    paging.items.clear();
                    self.paging = Some(paging);
                }
            }
            Answer::Page(body) => return self.turn_page(paging, &body),
        }
        false
    }

    fn begin_list(&mut self) -> Paging {
        let limit = self.dice.percent(60).then(|| 1 + self.dice.below(3));
        let version = match self.dice.below(4) {
            0 => Some("0".to_owned()),
            1 => self.client.last_listed.clone(),
            _ => None,
        };
        Paging {
            limit,
            version,
            ..Paging::default()
        }
    }

    fn turn_page(&mut self, mut paging: Paging, body: &Value) -> bool {
        self.tally.pages += 1;
        let meta = &body["metadata"];
        let cursor = meta["resourceVersion"].as_str().unwrap().to_owned();
        let first = paging.cursor.get_or_insert_with(|| cursor.clone());
        assert_eq!(*first, cursor, "one cursor on all pages");
        for item in body["items"].as_array().unwrap() {
            let text = |field: &str| item["metadata"][field].as_str().unwrap_or_default().to_owned();
            let key = (text("namespace"), text("name"));
            let object = (text("uid"), text("resourceVersion").parse().unwrap());
            assert!(paging.items.insert(key, object).is_none(), "twice in a list: {item}");
        }
        if let Some(token) = meta["continue"].as_str() {
            assert!(paging.limit.is_some(), "a page that nobody asked for");
            paging.token = Some(token.to_owned());
            self.paging = Some(paging);
            return false;
        }
        if paging.inconsistent {
            // A client that keeps a cache lists anew.
            return false;
        }
        let missing = |(key, object): &(&Key, &(String, u64))| {
            paging.items.get(*key) != Some(*object) && !paging.left.contains(&*key.0)
        };
        let mut expected = paging.expected.iter();
        assert_eq!(expected.find(missing), None, "the list is not the union at its cursor");
        let mut items = paging.items.iter();
        let more = items.find(|(key, object)| paging.expected.get(*key) != Some(*object));
        assert_eq!(more, None, "more than was the shard's at the cursor");
        self.tally.lists += 1;
        self.client.list(paging.items, cursor);
        true
    }

    #[expect(clippy::too_many_lines, reason = "what a page is depends on all of it")]
    fn page(&mut self, paging: &mut Paging, router: usize) -> Answer {
        let query = self.list_query(paging);
        if !self.catch_up(router, &query) {
            return Answer::Away;
        }
        let shard = self.routers[router].shard.clone();
        if self.is_outside(&shard) {
            return Answer::Outside;
        }
        let then = self.begun_in(&query, &shard);
        let begun = then.as_ref().unwrap_or(&shard);
        let universe = &begun.universe();
        let may_leave = self.partial && query.is_first();
        let (mut slots, mut missing) = (Vec::new(), Vec::new());
        for member in begun.asks(self.truth.scope) {
            let slot = shard.slot(universe, member);
            if may_leave && !self.reaches(router, member) {
                missing.push(slot);
            } else {
                slots.push(slot);
            }
        }
        if slots.is_empty() {
            return Answer::Away;
        }
        let mut read = match query.list(universe, &binding(), &slots) {
            Ok(ListAsk::Read(read)) => read,
            Ok(ListAsk::Invalid(invalid)) => panic!("a list that members are to refuse: {invalid:?}"),
            Err(QueryFault::Expired(_)) => return Answer::Expired(None),
            Err(QueryFault::Rest { token }) => return Answer::Rest(token),
            Err(QueryFault::BadRequest(why)) => panic!("{why}"),
        };
        for slot in missing {
            read.cursor.set(slot, Slot::Sync);
        }
        let pages = read.legs.len();
        let asks: Vec<LegAsk> = read.legs.iter().chain(&read.pins).cloned().collect();
        let mut answers = Vec::new();
        for (index, ask) in asks.iter().enumerate() {
            match self.ask(router, &shard, ask, paging) {
                None => return Answer::Away,
                Some(Ok(page)) => answers.push(page),
                Some(Err(own)) => {
                    return Answer::Expired(read.continued.then(|| offer(universe, &read, index, own)).flatten());
                }
            }
        }
        let pins = answers.split_off(pages);
        for (ask, pin) in read.pins.iter().zip(&pins) {
            read.cursor.set(ask.slot, Slot::At(pin.version));
            if pin.items.is_empty() {
                read.later.retain(|slot| *slot != ask.slot);
            }
        }
        if !read.continued {
            for (ask, page) in read.legs.iter().zip(&answers) {
                read.cursor.set(ask.slot, Slot::At(page.version));
            }
            paging.expected = self.expected(&shard, universe, &read.cursor);
        }
        if let Some(then) = &then {
            self.tally.older_pages += 1;
            let gone = then
                .owner
                .iter()
                .filter(|(namespace, member)| shard.owner.get(**namespace) != Some(member));
            paging.left.extend(gone.map(|(namespace, _)| *namespace));
        }
        Answer::Page(self.merge(&shard, then.as_ref(), &read, &answers))
    }

    /// The shard as it was when the list was begun, if that is another view of which all is known (the router's `Then`).
    fn begun_in(&self, query: &CollectionQuery, shard: &Shard) -> Option<Shard> {
        let Some(View::Older(revision)) = query.begun_in(&shard.universe()) else {
            return None;
        };
        let asked = shard.asks(self.truth.scope);
        let then = shard.as_of(revision)?;
        let asks = then.asks(self.truth.scope);
        let known = !asks.is_empty() && asks.iter().all(|member| asked.contains(member));
        known.then_some(then)
    }

    /// Its next request.
    fn list_query(&self, paging: &mut Paging) -> CollectionQuery {
        let query = CollectionQuery::parse(|name| match name {
            "limit" => paging.limit.map(|limit| limit.to_string()),
            "continue" => paging.token.clone(),
            "resourceVersion" if paging.token.is_none() => paging.version.clone(),
            _ => None,
        });
        if self.truth.setting.unique {
            paging.limit = None;
            return query.unlimited();
        }
        query
    }

    /// `None`: it cannot be reached. The error is an expiry, with the member's own token to go on with.
    fn ask(
        &mut self,
        router: usize,
        shard: &Shard,
        ask: &LegAsk,
        paging: &Paging,
    ) -> Option<Result<Page, Option<String>>> {
        let member = shard.members().nth(ask.slot)?;
        if !self.reaches(router, member) {
            return None;
        }
        let value = |param: &Param, own: Option<String>| match param {
            Param::Keep => own,
            Param::Drop => None,
            Param::Set(value) => Some(value.clone()),
        };
        let limit = value(&ask.query.limit, paging.limit.map(|limit| limit.to_string()));
        let asked = ListAsked {
            limit: limit.map(|limit| limit.parse().unwrap()),
            token: value(&ask.query.continue_, paging.token.clone()),
            version: value(&ask.query.resource_version, paging.version.clone()),
            exact: value(&ask.query.resource_version_match, None).is_some(),
            behind: if self.dice.percent(25) { self.dice.next() % 4 } else { 0 },
        };
        let of = self.truth.asked(shard, member, self.truth.labelled[member]);
        Some(self.truth.members[member].list(&of, &asked))
    }

    /// The member's list of what the client holds.
    pub(super) fn list_leg(&mut self, index: usize, version: u64) {
        let limit = Some(1 + self.dice.below(4));
        let Some(session) = &mut self.session else { return };
        let line = &mut session.legs[index];
        let of = line.listed.clone().expect("it is known what to list");
        self.tally.listed += 1;
        let mut listing = session.merge.listing(index);
        let mut token = None;
        let act = loop {
            let asked = ListAsked {
                limit,
                token: token.take(),
                version: Some(version.to_string()),
                exact: true,
                behind: 0,
            };
            let Ok(page) = self.truth.members[line.member].list(&of, &asked) else {
                let mut gone = self.truth.members[line.member].watch(self.format, Start::Sync, of, Serves::NOW);
                gone.bytes.clear();
                gone.fail(410, "Expired");
                break session.merge.push(index, gone.bytes.into(), &mut session.out).unwrap();
            };
            match listing.page(&body(&page)) {
                Ok(Some(next)) => token = Some(next),
                Ok(None) => break session.merge.listed(index, listing, &mut session.out),
                Err(ListingFault::NoMemory) => break session.merge.unlisted(index),
                Err(fault) => panic!("{fault}"),
            }
        };
        self.act(act);
    }

    /// What is there at the cursor.
    pub(super) fn expected(&self, shard: &Shard, universe: &Universe, cursor: &Cursor) -> Cache {
        let mut expected = BTreeMap::new();
        for member in shard.order().filter(|member| shard.joined[*member]) {
            let Slot::At(version) = cursor.slot(shard.slot(universe, member)) else {
                continue;
            };
            for (key, object) in self.truth.members[member].objects_at(version) {
                if self.truth.visible(shard, member, &object) && self.truth.in_scope(&key.0) {
                    expected.entry(key).or_insert((object.uid, object.version));
                }
            }
        }
        expected
    }

    /// The members' bodies through the list core, in pieces.
    fn merge(&mut self, shard: &Shard, then: Option<&Shard>, read: &ListRead, pages: &[Page]) -> Value {
        let plan = self.plan(shard, &shard.universe(), |_| Start::Sync);
        let before = then.map(|then| self.plan(then, &then.universe(), |_| Start::Sync));
        let leg = |plan: &[WatchLeg], ask: &LegAsk| plan.iter().find(|leg| leg.slot == ask.slot).unwrap().clone();
        let legs = read.legs.iter().map(|ask| {
            let now = leg(&plan, ask);
            let filter = match before.as_ref().and_then(|before| leg(before, ask).share) {
                Some(then) => Some(now.filter.or(now.share).map_or(then.clone(), |now| now.and(then))),
                None => now.filter,
            };
            ListLeg {
                cluster: now.cluster,
                filter,
            }
        });
        let options = ListOptions {
            unique: self.truth.setting.unique,
            cluster_column: false,
            hide_objects: false,
            max_item_bytes: 1 << 20,
        };
        let mut merge = ListMerge::new(ListFormat::Json, legs.collect(), options);
        let mut bodies: Vec<Vec<u8>> = pages.iter().map(body).collect();
        let (mut out, mut text) = (VecDeque::new(), Vec::new());
        loop {
            match merge.wants() {
                Wants::Leg(leg) if bodies[leg].is_empty() => merge.end(leg, &mut out).unwrap(),
                Wants::Leg(leg) => {
                    let most = 1 + self.dice.below(bodies[leg].len());
                    let piece: Vec<u8> = bodies[leg].drain(..most).collect();
                    merge.push(leg, Bytes::from(piece), &mut out).unwrap();
                }
                Wants::Meta => {
                    let universe = then.unwrap_or(shard).universe();
                    let metas: Vec<_> = merge.metas().iter().map(|meta| meta.clone().unwrap()).collect();
                    let own = metas.into_iter().map(|meta| meta.continue_);
                    merge
                        .set_meta(assemble(&universe, read, own.collect()), &mut out)
                        .unwrap();
                }
                Wants::Done => break,
            }
            text.extend(out.drain(..).flatten());
        }
        text.extend(out.drain(..).flatten());
        serde_json::from_slice(&text).expect("a list")
    }
}

/// As the router does it: on with the member that has more, else with the next.
fn assemble(universe: &Universe, read: &ListRead, own: Vec<Option<String>>) -> MergedMeta {
    let more = read.legs.iter().zip(own).find_map(|(ask, own)| {
        let own = own.filter(|own| !own.is_empty())?;
        Some((ask.slot, Some(own)))
    });
    let next = more.or_else(|| read.later.first().map(|slot| (*slot, None)));
    let token = next.map(|(leg, member)| Token {
        cursor: read.cursor.clone(),
        slot: leg,
        member_token: member,
        reading: read.reading,
    });
    MergedMeta {
        remaining: None,
        shard_selector: None,
        resource_version: read.cursor.encode().unwrap(),
        continue_: token.map(|token| token.encode(universe, &binding()).unwrap()),
    }
}

fn offer(universe: &Universe, read: &ListRead, index: usize, offered: Option<String>) -> Option<String> {
    let first = read.legs.first()?;
    let own = match &first.query.continue_ {
        Param::Set(own) => Some(own.clone()),
        _ => None,
    };
    let token = Token {
        cursor: read.cursor.clone(),
        slot: first.slot,
        member_token: if index == 0 { offered } else { own },
        reading: match read.reading {
            Reading::Anew => Reading::Anew,
            Reading::Pinned | Reading::Now => Reading::Now,
        },
    };
    Some(token.encode(universe, &binding()).unwrap())
}

fn body(page: &Page) -> Vec<u8> {
    let items = page.items.iter().map(|object| {
        let mut meta = json!({"name": object.name, "uid": object.uid, "resourceVersion": object.version.to_string()});
        if !object.namespace.is_empty() {
            meta["namespace"] = json!(object.namespace);
        }
        json!({"metadata": meta, "spec": {"a": "}{\n\""}})
    });
    let items: Vec<Value> = items.collect();
    let meta = json!({"resourceVersion": page.version.to_string(), "continue": page.token.clone().unwrap_or_default()});
    let list = json!({"kind": "ThingList", "apiVersion": "test/v1", "metadata": meta, "items": items});
    list.to_string().into_bytes()
}
