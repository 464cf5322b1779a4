//! One leg of a merged watch on its way to its member, and what the member's first answer means for the whole.
//!
//! The futures are boxed and live only while a leg (re)connects: an open stream is a body and nothing else. Callers: `watch`
//! for the first connection, `stream` for all others.

use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Response, StatusCode};
use portolan_merge::query::{Begin, LegQuery, Param};
use portolan_merge::watch::{Start, WatchLeg};
use tokio::time::Instant;

use super::FanOuts;
use super::absence;
use super::leg::{self, Asking, Overrides};
use super::named;
use crate::decision::plan::{FanLeg, FanOut};
use crate::resource::routing::Routing;
use crate::resource::upstream::Body;
use crate::value::classify::ApiRequest;
use crate::value::fault::{Fault, PolicyRefusal};
use crate::value::media::{Accepted, Media, Shape, described};

/// Added to what members are told of the end of the client's stream: its end is to be ours, after the bookmark that they send
/// before theirs. Later they would send none to a watch that is shorter than their minute, and its position would stay until
/// they have forgotten it.
const GRACE_SECONDS: u64 = 1;

/// API servers send a bookmark two seconds before the end that they were told, else each minute.
const HURRY_SECONDS: u64 = 3;

/// What all legs of one merged watch share.
pub(super) struct Shared {
    pub(super) fanouts: Arc<FanOuts>,
    pub(super) asking: Asking,
    pub(super) accepted: Accepted,
    /// Members of which the client began with nothing and its caller was never shown anything: without them alone it may be
    /// told less than all (`docs/semantics.md#unreachable-is-not-deleted`).
    pub(super) never_shown: Vec<Arc<str>>,
    /// When the client's stream ends.
    pub(super) ends: Instant,
}

/// A leg that waits, or waits for its member.
pub(super) type Connecting = Pin<Box<dyn Future<Output = Answered> + Send>>;

/// What came of it.
#[derive(Debug)]
pub(super) enum Answered {
    /// Events come.
    Live(Response<Body>),
    /// The member does not serve the kind.
    Absent(Response<Body>),
    /// The member will not serve this request, however often it is asked.
    Refused(Response<Body>),
    /// The version is too old for the member.
    Gone,
    /// The member cannot serve it now.
    Away(Away),
}

/// Why a member cannot serve now.
#[derive(Debug)]
pub(super) struct Away {
    pub(super) why: String,
    /// A 429 of its own, for a client that asked for nobody else.
    pub(super) answer: Option<Response<Body>>,
    /// A breaker of the caller's stands before it.
    pub(super) policy: Option<Box<PolicyRefusal>>,
}

impl Away {
    pub(super) fn because(why: String) -> Self {
        Self {
            why,
            answer: None,
            policy: None,
        }
    }
}

/// How one leg is to be asked.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) query: LegQuery,
    /// The others' shape, once one has chosen.
    pub(super) shape: Option<Shape>,
    /// The only objects that are read, as a field selector.
    pub(super) fields: Option<String>,
    /// The first bookmark is waited for.
    pub(super) hurries: bool,
    pub(super) wait: Duration,
}

impl Wish {
    /// Whether it goes on from a version of the member.
    fn has_place(&self) -> bool {
        matches!(&self.query.resource_version, Param::Set(version) if version != "0")
    }

    /// `plain`: the member knows no watch-list.
    pub(super) fn of(start: Start, plain: bool) -> LegQuery {
        let begin = match (start, plain) {
            (Start::At(0), _) => Begin::Latest,
            (Start::At(version) | Start::Exact(version) | Start::Came(version), _) => Begin::At(version),
            // A watch-list that may be as old as the member's cache: the marker tells where what was there ends.
            (Start::Any, false) => {
                let mut query = Begin::Sync { not_older: None }.query();
                query.resource_version = Param::Set("0".to_owned());
                return query;
            }
            (Start::Any, true) => Begin::Any,
            (Start::Recent | Start::Sync, false) => Begin::Sync { not_older: None },
            (Start::Recent | Start::Sync, true) => Begin::Recent,
        };
        begin.query()
    }
}

/// `routing`: whose connections and credentials to use; the current one's if not given.
pub(super) fn connect(
    shared: &Arc<Shared>,
    plan: &Arc<FanOut>,
    leg: usize,
    wish: Wish,
    routing: Option<Arc<Routing>>,
) -> Connecting {
    let (shared, plan) = (shared.clone(), plan.clone());
    Box::pin(async move {
        if !wish.wait.is_zero() {
            tokio::time::sleep(wish.wait).await;
        }
        let routing = routing.unwrap_or_else(|| shared.fanouts.routing.load());
        let leg = &plan.legs[leg];
        let has_place = wish.has_place();
        let overrides = shared.overrides(&wish);
        let answer = leg::start(&shared.fanouts, &shared.asking, leg, &overrides, routing).await;
        classify_response(&shared, &plan, (leg, has_place), answer)
    })
}

impl Shared {
    /// Whether the initial events may do without a member that cannot be reached. To a client that lists anew, what is not
    /// among them is deleted.
    pub(super) fn may_leave_out(&self, cluster: &str) -> bool {
        self.never_shown.iter().any(|never| **never == *cluster)
    }

    fn overrides(&self, wish: &Wish) -> Overrides {
        let left = self.ends.saturating_duration_since(Instant::now()).as_secs() + GRACE_SECONDS;
        let seconds = if wish.hurries { HURRY_SECONDS } else { left };
        Overrides {
            query: wish.query.clone(),
            timeout_seconds: Param::Set(seconds.to_string()),
            fields: wish.fields.clone(),
            include_object: self.include_object(),
            accept: Some(self.accept(wish.shape)),
            list_until: None,
            // The shape is chosen by who is asked first.
            running: wish.shape.is_some(),
        }
    }

    fn accept(&self, shape: Option<Shape>) -> HeaderValue {
        match shape {
            Some(shape) => self.accepted.header_for(shape),
            None => self.accepted.header(),
        }
    }

    /// The client of a Table wants rows alone.
    pub(super) fn hides_objects(&self) -> bool {
        self.asking.asked.query.first("includeObject").as_deref() == Some("None")
    }

    /// A row without its object's metadata says nothing of version and namespace. Other answers than Tables do not heed it.
    pub(super) fn include_object(&self) -> Param {
        if self.hides_objects() {
            Param::Set("Metadata".to_owned())
        } else {
            Param::Keep
        }
    }
}

/// The legs of a plan for the merge core; those without a start of their own begin with what is there.
pub(super) fn watch_legs(asked: &ApiRequest, plan: &FanOut, starts: &[Start]) -> Vec<WatchLeg> {
    let leg = |(index, leg): (usize, &FanLeg)| WatchLeg {
        cluster: leg.cluster().clone(),
        uid_hash: hash_of(&leg.forward.target.cluster_uid),
        slot: leg.slot,
        filter: leg.filter.clone(),
        share: leg.believed(asked),
        request_hash: leg.asks(),
        selector_hash: hash_of(&leg.share.selector),
        start: starts.get(index).copied().unwrap_or(Start::Sync),
    };
    plan.legs.iter().enumerate().map(leg).collect()
}

fn hash_of(what: &impl Hash) -> u64 {
    let mut hash = DefaultHasher::new();
    what.hash(&mut hash);
    hash.finish()
}

/// What a member's first answer means for the whole watch. `has_place`: it was to go on from a version of the member.
fn classify_response(
    shared: &Shared,
    plan: &FanOut,
    (leg, has_place): (&FanLeg, bool),
    answer: Result<Response<Body>, Fault>,
) -> Answered {
    let cluster = leg.cluster();
    let response = match answer {
        Ok(response) => response,
        Err(fault @ (Fault::BadRequest(_) | Fault::Forbidden(_))) => {
            let format = Media::preferred(&shared.asking.headers);
            return Answered::Refused(super::own_answer(&fault, format));
        }
        Err(fault) => {
            let away = Away::because(fault.to_string());
            let policy = match fault {
                Fault::Policy(refusal) => Some(refusal),
                _ => None,
            };
            return Answered::Away(Away { policy, ..away });
        }
    };
    let status = response.status();
    match status {
        StatusCode::OK if shared.accepted.shape(response.headers()).is_some() => Answered::Live(response),
        // What stands in front of an API server, and is not one.
        StatusCode::OK => Answered::Away(Away::because(format!(
            "member cluster {cluster} did not answer with a watch: {}",
            described(response.headers())
        ))),
        StatusCode::NOT_FOUND => {
            let (routing, asked) = (&shared.fanouts.routing, &shared.asking.asked);
            // A member that is asked alone has said all there is.
            let doubt = (plan.legs.len() > 1).then(|| absence::doubt(routing, asked, (leg, &plan.legs), has_place));
            match doubt.flatten() {
                Some(why) => Answered::Away(Away::because(why)),
                None => Answered::Absent(named(plan, cluster, response)),
            }
        }
        StatusCode::GONE => Answered::Gone,
        StatusCode::TOO_MANY_REQUESTS => Answered::Away(Away {
            answer: Some(response),
            ..Away::because(format!("member cluster {cluster} answered {status}"))
        }),
        _ if status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT => {
            Answered::Refused(named(plan, cluster, response))
        }
        _ => Answered::Away(Away::because(format!("member cluster {cluster} answered {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_asked_for_a_marker_wherever_the_state_comes_first() {
        let words = |start, plain| {
            let query = Wish::of(start, plain);
            let text = |param: &Param| match param {
                Param::Set(value) => value.clone(),
                Param::Keep => "keep".to_owned(),
                Param::Drop => String::new(),
            };
            (
                text(&query.resource_version),
                text(&query.send_initial_events),
                text(&query.allow_watch_bookmarks),
            )
        };
        for (start, plain, version, initial) in [
            (Start::At(7), false, "7", ""),
            (Start::At(0), false, "", "false"),
            (Start::Any, false, "0", "true"),
            (Start::Any, true, "0", ""),
            (Start::Recent, false, "", "true"),
            (Start::Recent, true, "", ""),
            (Start::Sync, false, "", "true"),
            (Start::Sync, true, "", ""),
        ] {
            let expected = (version.to_owned(), initial.to_owned(), "true".to_owned());
            assert_eq!(words(start, plain), expected, "{start:?} {plain}");
        }
    }
}
