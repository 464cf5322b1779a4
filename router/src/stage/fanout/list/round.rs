//! One round of a list: every member that is needed is asked at once, and their heads decide what becomes of it.

mod further;

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WARNING};
use http::{HeaderMap, Response, StatusCode};
use portolan_merge::cursor::Slot;
use portolan_merge::list::{ListFormat, ListLeg, ListMerge, ListOptions};
use portolan_merge::query::{LegAsk, ListRead};
use portolan_merge::token::{Reading, Token};
use tokio::time::Instant;

use super::ahead::{MemberBody, ReadAhead};
use super::answer::{all_tables, finish};
use super::body::{Assemble, Foreign, ListBody};
use super::heads::{self, Head};
use super::status::{Told, pinned, whole};
use super::{Listing, Overrides, start};
use crate::decision::plan::{FanLeg, FanOut};
use crate::decision::rewrite;
use crate::resource::upstream::Body;
use crate::stage::fanout::leg::METADATA_LIST;
use crate::stage::fanout::metrics::FanOutMetrics;
use crate::stage::fanout::{Fan, absence, named};
use crate::value::classify::ApiRequest;
use crate::value::fault::Fault;
use crate::value::media::{Accepted, Media, Shape};

/// Largest object that is kept until it is known whether it is shown: etcd takes 1.5 MiB, aggregated APIs may send more.
const MAX_ITEM_BYTES: usize = 16 << 20;

/// What became of a round.
pub(super) enum Turn {
    /// The client is answered.
    Answer(Response<Body>),
    /// Once more, in this format.
    Asking(Accepted),
    /// Once more and whole: of a member that names no version nothing would be known on the next page.
    Whole,
    /// Once more without these slots, and what is said about it.
    Without(Vec<usize>, Vec<HeaderValue>),
}

/// The members' answers, sorted.
pub(super) struct Round<'a> {
    listing: &'a Listing<'a>,
    began: Instant,
    read: ListRead,
    lists: Vec<(&'a FanLeg, Media, Response<Body>)>,
    pins: Vec<(&'a FanLeg, Response<Body>)>,
    /// The first answer of a member that does not serve the kind.
    absent: Option<Response<Body>>,
    without: Vec<usize>,
    away: Option<Fault>,
    warnings: Vec<HeaderValue>,
    /// Whether members that are away are done without.
    leaves_out: bool,
}

/// A member's own answer, as it goes to the client.
pub(super) fn passed(leg: &FanLeg, response: Response<Body>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    rewrite::rewrite_response(&leg.forward, &mut head);
    Response::from_parts(head, body)
}

/// One that is the whole answer, and says whose it is.
pub(super) fn refusal(plan: &FanOut, leg: &FanLeg, response: Response<Body>) -> Response<Body> {
    named(plan, leg.cluster(), passed(leg, response))
}

impl<'a> Round<'a> {
    /// Asks, and waits for all heads.
    pub(super) async fn ask(listing: &'a Listing<'a>, read: ListRead) -> Result<Turn, Fault> {
        let began = Instant::now();
        let asks = read.legs.iter().map(|ask| (ask, listing.wanted.header()));
        let asks = asks.chain(read.pins.iter().map(|ask| (ask, METADATA_LIST)));
        let heads = join_all(asks.map(|(ask, accept)| head(listing, ask, accept))).await;
        let pages = read.legs.len();
        let mut round = Self {
            listing,
            began,
            read,
            lists: Vec::new(),
            pins: Vec::new(),
            absent: None,
            without: Vec::new(),
            away: None,
            warnings: Vec::new(),
            leaves_out: false,
        };
        let mut heads = heads.into_iter().collect::<Result<Vec<_>, _>>()?;
        for (leg, head) in &mut heads {
            if matches!(head, Head::Absent(_))
                && let Some(fault) = round.doubted(leg)
            {
                *head = Head::Away(fault);
            }
        }
        let away = heads.iter().filter(|(_, head)| matches!(head, Head::Away(_)));
        let away = away.map(|(leg, _)| leg.cluster().clone()).collect();
        let never_shown = never_shown(listing, round.read.continued, away).await;
        for (index, (leg, head)) in heads.into_iter().enumerate() {
            match head {
                Head::Refused(response) => return round.refused(leg, index, response).await.map(Turn::Answer),
                Head::Absent(response) => round.not_found(leg, response),
                Head::Away(fault) => round.leave_out(leg, fault, never_shown.contains(leg.cluster())),
                Head::List(media, response) if index < pages => round.lists.push((leg, media, response)),
                Head::List(_, response) => round.pins.push((leg, response)),
            }
        }
        round.turn().await
    }

    /// A 404 of which nobody knows that it means absence. A member that is asked alone has said all there is.
    fn doubted(&self, leg: &FanLeg) -> Option<Fault> {
        let Fan { plan, asking, .. } = &self.listing.fan;
        if plan.legs.len() < 2 {
            return None;
        }
        let has_place = self.read.continued || self.listing.query.has_place(&plan.universe, leg.slot);
        let routing = &self.listing.fanouts.routing;
        let why = absence::doubt(routing, &asking.asked, (leg, &plan.legs), has_place)?;
        Some(leg.forward.unavailable(why))
    }

    /// A member that serves nothing of this.
    fn not_found(&mut self, leg: &FanLeg, response: Response<Body>) {
        let Fan { plan, asking, .. } = &self.listing.fan;
        self.warnings.extend(absence::warning(&asking.asked, leg));
        self.absent.get_or_insert_with(|| refusal(plan, leg, response));
        self.without.push(leg.slot);
    }

    /// A member that cannot be had: the list waits for it, unless it may begin without it.
    fn leave_out(&mut self, leg: &FanLeg, fault: Fault, may_go_without: bool) {
        if may_go_without {
            let text = format!(
                "objects of member cluster {} are missing from this list and follow when it is back: {fault}",
                leg.cluster()
            );
            self.warnings.extend(rewrite::warning(&text));
            self.leaves_out = true;
            self.without.push(leg.slot);
            let shard = self.listing.fan.asking.caller.tenant();
            tracing::warn!(%shard, cluster = %leg.cluster(), error = %fault, "a list begins without a member");
            self.metrics().list_without(leg.cluster(), "left-out");
        } else {
            self.metrics().list_without(leg.cluster(), "held");
        }
        self.away.get_or_insert(fault);
    }

    fn metrics(&self) -> &'a FanOutMetrics {
        &self.listing.fanouts.open.metrics
    }

    async fn turn(mut self) -> Result<Turn, Fault> {
        match self.away.take() {
            Some(fault) if !self.leaves_out || (self.lists.is_empty() && self.pins.is_empty()) => return Err(fault),
            _ => {}
        }
        if self.lists.is_empty() {
            if self.read.continued {
                let why = "the kind is no longer served where this list goes on";
                return Err(Fault::Expired(why.to_owned()));
            }
            return match self.absent {
                Some(response) if self.pins.is_empty() => Ok(Turn::Answer(response)),
                _ => Ok(Turn::Without(self.without, self.warnings)),
            };
        }
        for slot in self.listing.absent.iter().chain(&self.without) {
            self.read.cursor.set(*slot, Slot::Sync);
        }
        self.read.later.retain(|slot| !self.without.contains(slot));
        let media = self.lists[0].1;
        if self.lists.iter().any(|(_, other, _)| *other != media) {
            return self.asked_for_json();
        }
        if !self.read_pins().await? {
            return Ok(Turn::Whole);
        }
        self.answer(media).await
    }

    /// Once only: who answers in another type even then will not do better.
    fn asked_for_json(&self) -> Result<Turn, Fault> {
        let json = self.listing.wanted.json();
        if self.listing.wanted != json {
            return Ok(Turn::Asking(json));
        }
        match self.lists.iter().find(|(_, media, _)| *media != Media::Json) {
            None => Err(Fault::Internal("lists of one type that differ".to_owned())),
            Some((leg, _, _)) => {
                let why = format!("member cluster {} does not answer in JSON when asked to", leg.cluster());
                Err(leg.forward.unavailable(why))
            }
        }
    }

    /// Their versions are the later pages' versions; who has nothing gets no page. False: one has something and names no
    /// version, as aggregated APIs without a store do.
    async fn read_pins(&mut self) -> Result<bool, Fault> {
        let deadline = self.listing.fan.asking.deadline;
        let pins = std::mem::take(&mut self.pins);
        let pins = pins
            .into_iter()
            .map(async |(leg, response)| (leg, pinned(response, deadline).await));
        for (leg, pin) in join_all(pins).await {
            let pin = pin.map_err(|why| {
                leg.forward
                    .unavailable(format!("member cluster {}: {why}", leg.cluster()))
            })?;
            let position = position(&pin.version);
            self.read.cursor.set(leg.slot, position);
            if pin.empty {
                self.read.later.retain(|slot| *slot != leg.slot);
            } else if position == Slot::Sync {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn answer(mut self, media: Media) -> Result<Turn, Fault> {
        let listing = self.listing;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, media.content_type());
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        let (mut legs, mut sources) = (Vec::new(), Vec::new());
        for (leg, _, response) in std::mem::take(&mut self.lists) {
            sources.push(self.source(leg, response, Instant::now(), &mut headers));
            legs.push(leg);
        }
        let ahead = ReadAhead::new(listing.fanouts.ahead.clone());
        if media != Media::Json || listing.wanted.shape_of(media) != Some(Shape::Table) {
            self.go_on(media, &ahead, (&mut legs, &mut sources), &mut headers).await;
        }
        for warning in listing.warnings.iter().chain(&self.warnings) {
            headers.append(WARNING, warning.clone());
        }
        let format = match (media, listing.wanted.shape_of(media)) {
            (Media::Protobuf, _) => ListFormat::Protobuf,
            (Media::Json, Some(Shape::Table)) => {
                if !all_tables(&legs, &mut sources).await? {
                    return Ok(Turn::Asking(Accepted::plain()));
                }
                ListFormat::Table
            }
            (Media::Json, _) => ListFormat::Json,
        };
        let asked = &listing.fan.asking.asked;
        let merge = ListMerge::new(
            format,
            legs.iter().map(|leg| list_leg(listing, asked, leg)).collect(),
            self.options(),
        );
        let assemble = self.assemble(legs.iter().map(|leg| leg.slot).collect());
        // Nor is it the member's doing that less is shown than was asked for.
        let narrowed = |leg: &FanLeg| listing.then.as_ref().is_some_and(|then| then.narrows(leg));
        let trusted = |leg: &FanLeg| leg.filter.is_none() && !narrowed(leg);
        let trusted = legs.iter().enumerate().filter(|(_, leg)| trusted(leg));
        let foreign = Foreign {
            metrics: listing.fanouts.open.metrics.clone(),
            legs: trusted.map(|(index, leg)| (index, leg.cluster().clone())).collect(),
        };
        let body = ListBody::new(merge, sources, ahead, assemble).counting(foreign);
        finish(listing, &legs, headers, body).await.map(Turn::Answer)
    }

    /// A member's answer as a part of the list, which may wait for it as long as the request might at `since`; what its head says goes
    /// into that of all.
    fn source(&self, leg: &FanLeg, response: Response<Body>, since: Instant, headers: &mut HeaderMap) -> MemberBody {
        let deadline = self.listing.fan.asking.deadline;
        let patience = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(since));
        let (head, body) = passed(leg, response).into_parts();
        for warning in head.headers.get_all(WARNING) {
            if !headers.get_all(WARNING).iter().any(|held| held == warning) {
                headers.append(WARNING, warning.clone());
            }
        }
        for via in head.headers.get_all(http::header::VIA) {
            headers.insert(http::header::VIA, via.clone());
        }
        MemberBody::new(leg.cluster(), body, patience)
    }

    fn options(&self) -> ListOptions {
        ListOptions {
            unique: self.listing.fan.plan.unique,
            cluster_column: true,
            hide_objects: self.listing.hide_objects,
            max_item_bytes: MAX_ITEM_BYTES,
        }
    }

    /// The cursor of all, and where the next page begins. `slots`: of the legs that are merged, in their order.
    fn assemble(&self, slots: Vec<usize>) -> Assemble {
        let (mut cursor, binding) = (self.read.cursor.clone(), self.listing.binding);
        let (paged, reading, later) = (self.read.paged, self.read.reading, self.read.later.clone());
        let universe = self.listing.universe.clone();
        // Of several members each counts its own, and what is filtered here they count too.
        let plan = &self.listing.fan.plan;
        let narrows = |leg: &FanLeg| self.listing.then.as_ref().is_some_and(|then| then.narrows(leg));
        let counts = matches!(plan.legs.as_slice(), [leg] if leg.filter.is_none() && !narrows(leg));
        Box::new(move |metas| {
            let (mut next, mut remaining) = (None, None);
            for (slot, meta) in slots.iter().zip(metas) {
                let Some(meta) = meta else { continue };
                cursor.set(*slot, position(&meta.resource_version));
                if let Some(member) = meta.continue_.as_ref().filter(|text| !text.is_empty()) {
                    if !paged {
                        return Err("a member sent a page, though the whole was asked for".to_owned());
                    }
                    next = Some((*slot, Some(member.clone())));
                    remaining = meta.remaining.filter(|_| counts);
                }
            }
            let next = next.or_else(|| later.first().map(|slot| (*slot, None)));
            let resource_version = cursor.encode().map_err(|error| error.to_string())?;
            let token = next.map(|(leg, member)| Token {
                cursor,
                slot: leg,
                member_token: member,
                reading,
            });
            let continue_ = token.map(|token| token.encode(&universe, &binding)).transpose();
            Ok(portolan_merge::list::MergedMeta {
                resource_version,
                continue_: continue_.map_err(|error| error.to_string())?,
                remaining,
                shard_selector: portolan_merge::list::shard_selector(metas),
            })
        })
    }

    /// A member's word for all of them. An expired page is ours to say: the token to go on with must be ours, too.
    async fn refused(self, leg: &FanLeg, index: usize, response: Response<Body>) -> Result<Response<Body>, Fault> {
        let plan = &self.listing.fan.plan;
        let Some(first) = self.read.legs.first() else {
            return Ok(refusal(plan, leg, response));
        };
        if response.status() != StatusCode::GONE || !self.read.continued {
            return Ok(refusal(plan, leg, response));
        }
        let (_, body) = whole(response, self.listing.fan.asking.deadline).await;
        let own = match &first.query.continue_ {
            portolan_merge::query::Param::Set(own) => Some(own.clone()),
            _ => None,
        };
        let token = Token {
            cursor: self.read.cursor.clone(),
            slot: first.slot,
            member_token: if index == 0 { Told::read(&body).continue_ } else { own },
            reading: match self.read.reading {
                Reading::Anew => Reading::Anew,
                Reading::Pinned | Reading::Now => Reading::Now,
            },
        };
        let token = token
            .encode(&self.listing.universe, &self.listing.binding)
            .map_err(|error| Fault::Internal(error.to_string()))?;
        Ok(self.listing.rest(&token))
    }
}

/// Those of the members that are away that this list may go without.
async fn never_shown(listing: &Listing<'_>, continued: bool, away: Vec<Arc<str>>) -> Vec<Arc<str>> {
    if continued || !listing.query.is_first() {
        return Vec::new();
    }
    let (fan, fanouts) = (&listing.fan, listing.fanouts);
    fanouts.never_shown(&fan.plan, &fan.asking.caller, away).await
}

async fn head<'a>(listing: &'a Listing<'a>, ask: &LegAsk, accept: HeaderValue) -> Result<(&'a FanLeg, Head), Fault> {
    let fan = &listing.fan;
    let mut legs = fan.plan.legs.iter();
    let Some(leg) = legs.find(|leg| leg.slot == ask.slot) else {
        return Err(Fault::Internal("a slot without a leg".to_owned()));
    };
    let overrides = Overrides {
        query: ask.query.clone(),
        accept: Some(accept),
        ..Overrides::default()
    };
    let outcome = start(listing.fanouts, &fan.asking, leg, &overrides, fan.routing.clone()).await;
    Ok((leg, heads::classify_response(leg, outcome, fan.asking.deadline).await?))
}

/// What a member's version means in a cursor. Aggregated APIs that keep nothing have none, or say 0, which is none to be asked for.
fn position(version: &str) -> Slot {
    match version.parse() {
        Ok(0) | Err(_) => Slot::Sync,
        Ok(version) => Slot::At(version),
    }
}

fn list_leg(listing: &Listing<'_>, asked: &ApiRequest, leg: &FanLeg) -> ListLeg {
    ListLeg {
        cluster: leg.cluster().clone(),
        filter: match &listing.then {
            Some(then) => then.believed(asked, leg),
            None => leg.filter.clone().or_else(|| leg.believed(asked)),
        },
    }
}
