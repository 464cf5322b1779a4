//! A page goes on with the members that come next, while there is room and time.
//!
//! kube-rs has each object of a page worked on before the next page is there, by its cache of before: pages should be as few as those of
//! one API server. Nobody waits longer for a page because of that, nor loses what it has: whatever is wrong with a next member keeps
//! for the next page, which begins with it.

use std::time::Duration;

use http::HeaderMap;
use portolan_merge::query::LegAsk;
use tokio::time::{Instant, timeout_at};

use super::{Round, head};
use crate::decision::plan::FanLeg;
use crate::stage::fanout::list::ahead::{MemberBody, ReadAhead};
use crate::stage::fanout::list::heads::Head;
use crate::stage::fanout::list::status::Page;
use crate::value::media::Media;

/// What a page may keep of members with which it is over, before it asks the next.
const PAGE_BYTES: usize = 256 << 10;

/// How long after its beginning a page still goes on.
const PAGE_TIME: Duration = Duration::from_secs(1);

/// What a next member has at least, from when it is asked.
const LEAST_TIME: Duration = Duration::from_millis(250);

/// A member that the page goes on with.
struct Further<'a> {
    leg: &'a FanLeg,
    source: MemberBody,
    /// The heads of all.
    headers: HeaderMap,
    /// `None`: it is too long to know.
    page: Option<Page>,
}

impl<'a> Round<'a> {
    /// Asks the members that come next, one after the other, for what the page has room for, and adds them to `legs` and `sources`.
    pub(super) async fn go_on(
        &mut self,
        media: Media,
        ahead: &ReadAhead,
        (legs, sources): (&mut Vec<&'a FanLeg>, &mut Vec<MemberBody>),
        headers: &mut HeaderMap,
    ) {
        let Some((mut room, mut page)) = self.begun(media, ahead, sources).await else {
            return;
        };
        let until = self.began + PAGE_TIME;
        while !page.more && Instant::now() < until {
            room = room.saturating_sub(page.objects);
            let kept: usize = sources.iter().map(MemberBody::kept).sum();
            if room == 0 || ahead.room(kept).is_none() {
                return;
            }
            let Some(ask) = self.read.next(room) else { return };
            let until = until.max(Instant::now() + LEAST_TIME);
            let further = self.further(&ask, (media, &page), (ahead, kept), headers.clone());
            let further = timeout_at(until, further).await;
            match further.unwrap_or_else(|_| Err("it takes too long".to_owned())) {
                Ok(further) => {
                    self.read.later.remove(0);
                    legs.push(further.leg);
                    sources.push(further.source);
                    *headers = further.headers;
                    let Some(next) = further.page else { return };
                    page = next;
                }
                Err(why) => {
                    let legs = &self.listing.fan.plan.legs;
                    let cluster = legs.iter().find(|leg| leg.slot == ask.slot).map(FanLeg::cluster);
                    tracing::debug!(
                        cluster = cluster.map(|name| &**name),
                        why,
                        "a page ends before a member"
                    );
                    return;
                }
            }
        }
    }

    /// How many objects a page has room for, and the member that it begins with, if a next one may be asked at all.
    async fn begun(&mut self, media: Media, ahead: &ReadAhead, sources: &mut [MemberBody]) -> Option<(u64, Page)> {
        let limit = self.listing.fan.asking.asked.query.first("limit")?;
        let room = limit.parse().ok().filter(|_| self.read.paged)?;
        self.read.next(room)?;
        let whole = sources.last_mut()?.whole(ahead, 0, PAGE_BYTES);
        let whole = timeout_at(self.began + PAGE_TIME, whole).await.ok()?.ok()??;
        Some((room, Page::read(media, &whole)?))
    }

    /// A next member's answer, whole unless it is long. The error says why the page ends before it.
    async fn further(
        &mut self,
        ask: &LegAsk,
        (media, before): (Media, &Page),
        (ahead, kept): (&ReadAhead, usize),
        mut headers: HeaderMap,
    ) -> Result<Further<'a>, String> {
        let asked = head(self.listing, ask, self.listing.wanted.header()).await;
        let (leg, found) = asked.map_err(|fault| fault.to_string())?;
        let response = match found {
            Head::List(same, response) if same == media => response,
            Head::List(..) => return Err("it answers in another format".to_owned()),
            Head::Absent(response) | Head::Refused(response) => {
                return Err(format!("it answers {}", response.status()));
            }
            Head::Away(fault) => return Err(fault.to_string()),
        };
        let mut source = self.source(leg, response, self.began, &mut headers);
        let whole = source.whole(ahead, kept, PAGE_BYTES.saturating_sub(kept)).await?;
        let page = match whole {
            Some(whole) => Some(Page::read(media, &whole).ok_or("its answer is no list")?),
            None => None,
        };
        if page.as_ref().is_some_and(|page| page.of != before.of) {
            return Err("its list is of another type".to_owned());
        }
        Ok(Further {
            leg,
            source,
            headers,
            page,
        })
    }
}
