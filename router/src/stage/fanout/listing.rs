//! What a client holds of one member, told in an earlier stream, and what came to its share: the member lists it, page by
//! page, as of where the client stands.
//!
//! One change of a shard makes many watches ask at once, so they take turns: some of each member, fewer of each caller, and
//! so many pages in all. A member that will not list, or not in a form that can be read, ends the watch with 410; one that
//! cannot be reached is asked again. Caller: `stream::resync`.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use portolan_merge::query::{LegQuery, Param};
use portolan_merge::watch::{Came, CameFault, Listing, ListingFault};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use super::absence;
use super::connect::{Answered, Away, Shared};
use super::leg::{self, METADATA_LIST, Overrides};
use crate::decision::plan::FanLeg;
use crate::resource::keyed::Keyed;
use crate::resource::upstream::{Body, BodyError, gather};
use crate::value::fault::Fault;
use crate::value::media::Shape;
use crate::value::snapshot::CallerId;

/// Objects of a page, and the bytes that a page may have: fewer are asked for when those are too many. More than the largest
/// object that API servers take.
const PAGE_OBJECTS: u32 = 250;
const PAGE_BYTES: usize = 4 << 20;
/// For one page, and for all of a list: less than members keep what they have compacted.
const PAGE_PATIENCE: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_mins(4);
/// Lists at a time, of one member and of one caller there.
const OF_MEMBER: usize = 4;
const OF_CALLER: usize = 2;
/// Pages at a time in all: 64 MiB.
const PAGES: usize = 16;

/// The turns of all lists of one process.
pub(crate) struct Turns {
    members: Keyed<String, Semaphore>,
    callers: Keyed<(String, CallerId), Semaphore>,
    pages: Semaphore,
}

/// A leg whose member lists what the client holds.
pub(super) type ListingLeg = Pin<Box<dyn Future<Output = Result<Listing, NotListed>> + Send>>;

/// What came to a leg, as far as it is not read.
pub(super) struct Coming {
    shared: Arc<Shared>,
    leg: FanLeg,
    asks: Asks,
    came: Came,
    token: Option<String>,
    limit: u32,
    until: Instant,
}

/// A leg whose member lists what came: events, and what is to be read after them.
pub(super) type ComingLeg = Pin<Box<dyn Future<Output = Result<(Bytes, Option<Box<Coming>>), NotListed>> + Send>>;

/// What a member is to list.
struct Asks {
    version: u64,
    accept: HeaderValue,
    include_object: Param,
    /// The only objects that are wanted, as a field selector.
    fields: Option<String>,
}

/// Why there is no list.
#[derive(Debug)]
pub(super) enum NotListed {
    /// No memory is left for it.
    NoMemory,
    /// The member will not list it, however often it is asked so.
    Never(String),
    /// What it answered cannot be read.
    Unreadable(String),
    /// As of a watch that does not begin.
    Answered(Box<Answered>),
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            members: Keyed::default(),
            callers: Keyed::default(),
            pages: Semaphore::new(PAGES),
        }
    }
}

/// Has the member list what the client holds: `leg` is as the client was answered from, with the hold and target of now.
/// `fields`: the only objects that are wanted.
pub(super) fn list(
    shared: &Arc<Shared>,
    leg: FanLeg,
    (listing, version): (Listing, u64),
    fields: Option<String>,
    wait: Duration,
) -> ListingLeg {
    let shared = shared.clone();
    Box::pin(async move {
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        let asks = Asks {
            version,
            accept: METADATA_LIST,
            include_object: Param::Keep,
            fields,
        };
        let reader = Reader {
            shared: &shared,
            leg: &leg,
            asks: &asks,
            limit: PAGE_OBJECTS,
            until: Instant::now() + PATIENCE,
        };
        in_turn(&shared, &leg, reader.read(listing)).await?
    })
}

/// Has the member list what came to a leg.
pub(super) fn come(
    shared: &Arc<Shared>,
    leg: FanLeg,
    (shape, version): (Shape, u64),
    fields: Option<String>,
    wait: Duration,
) -> ComingLeg {
    let coming = Coming {
        shared: shared.clone(),
        asks: Asks {
            version,
            accept: shared.accepted.list_header_for(shape),
            include_object: shared.include_object(),
            fields,
        },
        leg,
        came: Came::new(shape.watch(), version),
        token: None,
        limit: PAGE_OBJECTS,
        until: Instant::now() + wait + PATIENCE,
    };
    Box::pin(async move {
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        Box::new(coming).page().await
    })
}

/// The next page of it.
pub(super) fn come_on(coming: Box<Coming>) -> ComingLeg {
    Box::pin(coming.page())
}

impl Coming {
    async fn page(mut self: Box<Self>) -> Result<(Bytes, Option<Box<Self>>), NotListed> {
        let body = loop {
            let mut reader = Reader {
                shared: &self.shared,
                leg: &self.leg,
                asks: &self.asks,
                limit: self.limit,
                until: self.until,
            };
            let page = in_turn(&self.shared, &self.leg, reader.page(self.token.clone())).await?;
            self.limit = reader.limit;
            if let Some(body) = page? {
                break body;
            }
        };
        match self.came.page(&body) {
            Ok((events, None)) => Ok((events, None)),
            Ok((events, next)) => {
                self.token = next;
                Ok((events, Some(self)))
            }
            Err(fault @ (CameFault::NotAList | CameFault::AnotherVersion)) => Err(NotListed::Never(fault.to_string())),
        }
    }
}

/// Does it when it is this caller's turn at this member.
async fn in_turn<T>(shared: &Shared, leg: &FanLeg, does: impl Future<Output = T>) -> Result<T, NotListed> {
    // A request that is a watch by its path cannot be turned into a list.
    if !shared.asking.asked.query.flag("watch") {
        return Err(answered(Answered::Gone));
    }
    let turns = &shared.fanouts.turns;
    let target = leg.forward.target.cluster_uid.clone();
    let caller = CallerId::of(&shared.asking.caller);
    let caller = turns
        .callers
        .entry((target.clone(), caller), || Semaphore::new(OF_CALLER));
    let member = turns.members.entry(target, || Semaphore::new(OF_MEMBER));
    let _caller = turn(&caller).await;
    let _member = turn(&member).await;
    Ok(does.await)
}

/// None of them is ever closed: then it is nobody's turn to wait.
async fn turn(semaphore: &Semaphore) -> Option<SemaphorePermit<'_>> {
    semaphore.acquire().await.ok()
}

fn answered(answered: Answered) -> NotListed {
    NotListed::Answered(Box::new(answered))
}

fn away(why: String) -> NotListed {
    answered(Answered::Away(Away::because(why)))
}

/// One list of one leg.
struct Reader<'a> {
    shared: &'a Shared,
    leg: &'a FanLeg,
    asks: &'a Asks,
    /// Objects of the next page.
    limit: u32,
    until: Instant,
}

impl Reader<'_> {
    async fn read(mut self, mut listing: Listing) -> Result<Listing, NotListed> {
        let mut token = None;
        loop {
            let page = self.page(token.clone()).await?;
            let Some(page) = page else { continue };
            let next = match listing.page(&page) {
                Ok(next) => next,
                Err(ListingFault::NoMemory) => return Err(NotListed::NoMemory),
                Err(fault) => return Err(NotListed::Unreadable(self.of_member(&fault.to_string()))),
            };
            if next.is_none() {
                return Ok(listing);
            }
            token = next;
        }
    }

    /// The bytes of the page that this token leads to; none: they are too many, and fewer objects are to be asked for.
    async fn page(&mut self, token: Option<String>) -> Result<Option<Bytes>, NotListed> {
        let fanouts = &self.shared.fanouts;
        let _page = turn(&fanouts.turns.pages).await;
        let until = self.until.min(Instant::now() + PAGE_PATIENCE);
        if until <= Instant::now() {
            return Err(NotListed::Unreadable(self.of_member("its list has no end")));
        }
        let overrides = Overrides {
            query: exact(self.asks.version, self.limit, token),
            timeout_seconds: Param::Drop,
            include_object: self.asks.include_object.clone(),
            fields: self.asks.fields.clone(),
            accept: Some(self.asks.accept.clone()),
            list_until: Some(until),
            running: true,
        };
        let routing = fanouts.routing.load();
        let response = match leg::start(fanouts, &self.shared.asking, self.leg, &overrides, routing).await {
            Ok(response) => response,
            Err(fault @ (Fault::BadRequest(_) | Fault::Forbidden(_))) => {
                return Err(NotListed::Never(fault.to_string()));
            }
            Err(fault) => return Err(away(fault.to_string())),
        };
        let body = match response.status() {
            StatusCode::OK => response.into_body(),
            StatusCode::GONE => return Err(answered(Answered::Gone)),
            StatusCode::NOT_FOUND => {
                let doubt = absence::doubt(&fanouts.routing, &self.shared.asking.asked, (self.leg, &[]), true);
                return Err(doubt.map_or_else(|| answered(Answered::Absent(response)), away));
            }
            status if will_not(status) => {
                return Err(NotListed::Never(self.of_member(&format!("it answered {status}"))));
            }
            status => return Err(away(self.of_member(&format!("it answered {status}")))),
        };
        self.gather(body, until).await
    }

    async fn gather(&mut self, body: Body, until: Instant) -> Result<Option<Bytes>, NotListed> {
        match timeout_at(until, gather(body, PAGE_BYTES)).await {
            Ok(Ok(bytes)) => Ok(Some(bytes)),
            Ok(Err(BodyError::TooLarge { .. })) if self.limit > 1 => {
                self.limit = (self.limit / 4).max(1);
                Ok(None)
            }
            Ok(Err(BodyError::TooLarge { limit })) => {
                let why = format!("one of its objects is larger than {limit} bytes");
                Err(NotListed::Never(self.of_member(&why)))
            }
            Ok(Err(error)) => Err(away(self.of_member(&error.to_string()))),
            Err(_) => Err(away(self.of_member("it did not finish a page in time"))),
        }
    }

    fn of_member(&self, why: &str) -> String {
        format!(
            "what the client holds of member cluster {} is not listed: {why}",
            self.leg.cluster()
        )
    }
}

/// A refusal that another attempt does not change.
fn will_not(status: StatusCode) -> bool {
    let later = [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT];
    status.is_client_error() && !later.contains(&status)
}

/// A page of what there was at a version. A token says the version itself.
fn exact(version: u64, limit: u32, token: Option<String>) -> LegQuery {
    let (version, matching) = match &token {
        None => (Param::Set(version.to_string()), Param::Set("Exact".to_owned())),
        Some(_) => (Param::Drop, Param::Drop),
    };
    LegQuery {
        resource_version: version,
        resource_version_match: matching,
        limit: Param::Set(limit.to_string()),
        continue_: token.map_or(Param::Drop, Param::Set),
        send_initial_events: Param::Drop,
        allow_watch_bookmarks: Param::Drop,
    }
}
