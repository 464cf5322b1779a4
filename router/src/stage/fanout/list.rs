//! One list of many members' lists (`docs/semantics.md#lists`).
//!
//! `portolan_merge::query` says what each member is asked, `round` asks and puts the answer together. Here a round is
//! repeated where its heads say that it must: without members that do not serve the kind, or in another format. What a
//! client may read of a failure is a member's own Status wherever one member's word decides.

mod ahead;
mod answer;
mod body;
mod heads;
mod round;
mod status;
mod then;

use std::sync::Arc;

use http::Response;
use http::header::{ACCEPT, HeaderName, HeaderValue, USER_AGENT};
use portolan_merge::cursor::Universe;
use portolan_merge::query::{CONTINUE_INCONSISTENT, CollectionQuery, InvalidQuery, ListAsk, QueryFault};
use portolan_merge::resume::Whose;
use portolan_merge::token::Binding;

use self::heads::Head;
use self::round::{Round, Turn};
use self::then::Then;
use super::leg::{Asking, Overrides, start};
use super::watch::since::refuse_left;
use super::{Fan, FanOuts, gzip, refused_by};
use crate::decision::plan::{FanLeg, FanOut};
use crate::decision::rewrite;
use crate::resource::upstream::Body;
use crate::stage::reply;
use crate::value::fault::Fault;
use crate::value::media::{Accepted, Media, takes_gzip};
use crate::value::snapshot::Caller;

/// Whether rows carry their objects' metadata, which the router needs to filter them.
const INCLUDE_OBJECT: &str = "includeObject";

/// A list on its way to be answered.
pub(super) struct Listing<'a> {
    fanouts: &'a FanOuts,
    fan: Fan,
    query: CollectionQuery,
    binding: Binding,
    wanted: Accepted,
    /// The client's for a Status of ours.
    status: Media,
    gzip: bool,
    hide_objects: bool,
    /// Of the view in which the list was begun, if that is an older one.
    then: Option<Then>,
    /// What its cursors speak of.
    universe: Arc<Universe>,
    /// Slots of the members still to be asked, in order.
    slots: Vec<usize>,
    /// Slots of members that serve nothing of this, or were left out.
    absent: Vec<usize>,
    /// Told to the client with the answer.
    warnings: Vec<HeaderValue>,
}

/// Answers a LIST.
pub(super) async fn list(fanouts: &Arc<FanOuts>, fan: Fan) -> Result<Response<Body>, Fault> {
    Listing::new(fanouts, fan)?.run().await
}

/// Who may go on with what this request was answered: the caller, acting as whom it acts, for the same objects.
fn binding(asking: &Asking, plan: &FanOut) -> Binding {
    bind(asking, plan, &[])
}

/// Whose stream it is: one replica's, of one way to ask. What another replica of the operator, under the same
/// ServiceAccount, or another informer in the same Pod was sent says nothing of what this one has seen.
pub(super) fn whose(asking: &Asking, plan: &FanOut) -> Whose {
    let header = |name: HeaderName| asking.headers.get(name).and_then(|value| value.to_str().ok());
    let [accept, agent] = [ACCEPT, USER_AGENT].map(|name| header(name).unwrap_or_default());
    let bookmarks = asking.asked.query.first("allowWatchBookmarks").unwrap_or_default();
    let form = [accept, agent, &*bookmarks];
    let replica = match &asking.caller {
        Caller::Pod(view) => [&*view.key.home_cluster, &*view.key.pod_uid],
        Caller::Person { user, .. } => ["", &**user],
    };
    Whose {
        caller: Binding::new(replica),
        request: bind(asking, plan, &[&form[..], &replica].concat()),
    }
}

fn bind(asking: &Asking, plan: &FanOut, more: &[&str]) -> Binding {
    let (shard, user) = match &asking.caller {
        Caller::Pod(view) => (view.shard().map_or("", |shard| shard), &*view.user),
        Caller::Person { user, .. } => ("", &**user),
    };
    let act_as = plan
        .legs
        .first()
        .map(|leg| format!("{:?}", leg.forward.act_as))
        .unwrap_or_default();
    let query = |name| asking.asked.query.first(name).unwrap_or_default();
    let (labels, fields) = (query("labelSelector"), query("fieldSelector"));
    let request = [shard, user, &*act_as, &*asking.asked.path, &*labels, &*fields];
    // Tokens of before, and of the many who send none, are bound as they were.
    let sharded = query("shardSelector");
    let sharded = Some(&*sharded).filter(|selector| !selector.is_empty());
    Binding::new(request.iter().copied().chain(sharded).chain(more.iter().copied()))
}

pub(super) fn fault_of(fault: QueryFault) -> Fault {
    match fault {
        QueryFault::BadRequest(why) => Fault::BadRequest(why),
        QueryFault::Expired(why) => Fault::Expired(why),
        QueryFault::Rest { .. } => Fault::Expired(CONTINUE_INCONSISTENT.to_owned()),
    }
}

impl<'a> Listing<'a> {
    fn new(fanouts: &'a FanOuts, mut fan: Fan) -> Result<Self, Fault> {
        let (plan, asking) = (&fan.plan, &mut fan.asking);
        let mut query = CollectionQuery::parse(|name| asking.asked.query.first(name).map(Into::into));
        let looked_at = |leg: &FanLeg| leg.filter.is_some() || leg.believed(&asking.asked).is_some();
        let filtered = plan.unique || plan.legs.iter().any(looked_at);
        if plan.unique && plan.legs.len() > 1 {
            // Which names were on earlier pages nobody remembers; API servers may send more than the limit.
            query = query.unlimited();
        }
        refuse_left(plan, &query)?;
        let then = Then::of(&fan, &query);
        let (plan, asking) = (&fan.plan, &mut fan.asking);
        let binding = binding(asking, plan);
        let hide_objects = filtered && asking.asked.query.first(INCLUDE_OBJECT).as_deref() == Some("None");
        if hide_objects {
            asking.asked.query.set(INCLUDE_OBJECT, "Metadata");
        }
        Ok(Self {
            fanouts,
            wanted: Accepted::of_whole(&asking.headers)?,
            status: Media::preferred(&asking.headers),
            gzip: takes_gzip(&asking.headers),
            slots: match &then {
                Some(then) => then.slots(),
                None => plan.legs.iter().map(|leg| leg.slot).collect(),
            },
            universe: then.as_ref().map_or(&plan.universe, |then| &then.universe).clone(),
            then,
            query,
            binding,
            hide_objects,
            absent: Vec::new(),
            warnings: plan.without().filter_map(|text| rewrite::warning(&text)).collect(),
            fan,
        })
    }

    /// Each turn takes a member away, or settles the format or that there are no pages, so it ends.
    async fn run(mut self) -> Result<Response<Body>, Fault> {
        loop {
            let read = match self.query.list(&self.universe, &self.binding, &self.slots) {
                Ok(ListAsk::Invalid(invalid)) => return self.refused(invalid).await,
                Ok(ListAsk::Read(read)) => read,
                Err(QueryFault::Rest { token }) => return Ok(self.rest(&token)),
                Err(fault) => return Err(fault_of(fault)),
            };
            match Round::ask(&self, read).await? {
                Turn::Answer(response) => return Ok(response),
                Turn::Asking(wanted) => self.wanted = wanted,
                Turn::Whole => self.query = self.query.unlimited(),
                Turn::Without(without, warnings) => {
                    self.slots.retain(|slot| !without.contains(slot));
                    self.absent.extend(without);
                    self.warnings.extend(warnings);
                }
            }
        }
    }

    /// The pages that were left are expired; what of them is there now can be had by this token.
    fn rest(&self, token: &str) -> Response<Body> {
        let fault = Fault::Expired(CONTINUE_INCONSISTENT.to_owned());
        reply::reply_with_continue(&fault, token, self.status).map(Body::from)
    }

    /// The first member that can be had refuses it in its own words.
    async fn refused(&self, InvalidQuery(query): InvalidQuery) -> Result<Response<Body>, Fault> {
        let overrides = Overrides {
            query,
            ..Overrides::default()
        };
        let mut gone = None;
        let (plan, asking) = (&self.fan.plan, &self.fan.asking);
        for leg in &plan.legs {
            let outcome = start(self.fanouts, asking, leg, &overrides, self.fan.routing.clone()).await;
            match heads::classify_response(leg, outcome, asking.deadline).await? {
                Head::Refused(response) => return Ok(refused_by(plan, leg.cluster(), round::passed(leg, response))),
                Head::List(..) => return Err(fault_of(InvalidQuery::fault())),
                Head::Absent(response) => gone = gone.or_else(|| Some(Ok(round::refusal(plan, leg, response)))),
                Head::Away(fault) => gone = gone.or(Some(Err(fault))),
            }
        }
        gone.unwrap_or_else(|| Err(Fault::Internal("a plan over no members".to_owned())))
    }
}

#[cfg(test)]
mod tests;
