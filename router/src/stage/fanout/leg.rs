//! One member's part of a request to several: the client's request with other parameters, sent as `dispatch` sends any read.
//!
//! What the client asked for and what does not change from leg to leg is in [`Asking`]; what one leg is asked otherwise in
//! [`Overrides`]. Callers: `list` for each page, `watch` at the start and for each reconnect.

use std::sync::Arc;
use std::time::Duration;

use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HeaderName, HeaderValue,
    SEC_WEBSOCKET_EXTENSIONS, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response};
use opentelemetry::Context;
use portolan_merge::query::{LegQuery, Param};
use tokio::time::Instant;

use super::FanOuts;
use crate::decision::plan::FanLeg;
use crate::resource::routing::Routing;
use crate::resource::upstream::Body;
use crate::stage::dispatch::Leg;
use crate::stage::inject::WatchInjection;
use crate::stage::preflight::Pending;
use crate::value::classify::{ApiRequest, Query, Verb};
use crate::value::fault::Fault;
use crate::value::snapshot::Caller;
use crate::value::traffic::Traffic;

/// How long a member may take with the whole, in its own words.
const TIMEOUT_SECONDS: &str = "timeoutSeconds";
/// What of an object stands in the row of a Table.
const INCLUDE_OBJECT: &str = "includeObject";
/// Which objects, by their fields.
const FIELD_SELECTOR: &str = "fieldSelector";
/// A list, or what happens.
const WATCH: &str = "watch";

/// A watch that begins where a leader lock is being brought has no deadline of its own: the lock is there by then.
const BROUGHT_WITHIN: Duration = Duration::from_secs(10);

/// Keys and versions are read from JSON, whatever the client takes.
pub(super) const METADATA_LIST: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io");

/// Of the client's headers: its secrets, its body's, and those of a WebSocket that is ours to open.
const NOT_KEPT: [HeaderName; 8] = [
    AUTHORIZATION,
    COOKIE,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    SEC_WEBSOCKET_EXTENSIONS,
    SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION,
];

/// What all legs of one request have in common. Small: a watch keeps it for its life.
pub(crate) struct Asking {
    pub(crate) asked: ApiRequest,
    /// The client's, without what must not be kept.
    pub(crate) headers: HeaderMap,
    pub(crate) caller: Caller,
    /// Trace context that came with the request.
    pub(crate) received: Context,
    /// For the whole answer; `None` for watches.
    pub(crate) deadline: Option<Instant>,
    /// Faults that are ordered for a watch.
    pub(crate) injection: Option<Arc<WatchInjection>>,
}

/// What one leg is asked otherwise than the client asked. The default: as the client asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overrides {
    pub(crate) query: LegQuery,
    pub(crate) timeout_seconds: Param,
    pub(crate) include_object: Param,
    /// Besides what the client selects.
    pub(crate) fields: Option<String>,
    pub(crate) accept: Option<HeaderValue>,
    /// A list that ends by then, whatever the client asked for.
    pub(crate) list_until: Option<Instant>,
    /// Of a watch whose client was answered.
    pub(crate) running: bool,
}

impl Asking {
    pub(crate) fn new(asked: ApiRequest, head: &Parts, caller: Caller, received: Context) -> Self {
        let mut headers = head.headers.clone();
        for name in NOT_KEPT {
            headers.remove(name);
        }
        Self {
            asked,
            headers,
            caller,
            received,
            deadline: None,
            injection: None,
        }
    }
}

impl Overrides {
    fn apply(&self, query: &mut Query) {
        let all = self.query.overrides().into_iter();
        let more = [
            (TIMEOUT_SECONDS, &self.timeout_seconds),
            (INCLUDE_OBJECT, &self.include_object),
        ];
        for (key, param) in all.chain(more) {
            match param {
                Param::Keep => {}
                Param::Drop => query.remove(key),
                Param::Set(value) => query.set(key, value),
            }
        }
        if let Some(more) = &self.fields {
            let own = query.first(FIELD_SELECTOR).filter(|own| !own.is_empty());
            let both = own.map_or_else(|| more.clone(), |own| format!("{own},{more}"));
            query.set(FIELD_SELECTOR, &both);
        }
    }
}

/// Asks one member, once it is sure that the caller may (free for who does not impersonate), and a leader lock on its way is
/// there. Any answer of its API server
/// is `Ok`, whatever its code; a `Fault` means that there is none: `Forbidden` that it may not. Connection and
/// credential are `routing`'s: the request's own at first, the current one for a reconnect.
pub(crate) async fn start(
    fanouts: &FanOuts,
    asking: &Asking,
    leg: &FanLeg,
    overrides: &Overrides,
    routing: Arc<Routing>,
) -> Result<Response<Body>, Fault> {
    if let Some(why) = &leg.held {
        return Err(leg.forward.unavailable(why.clone()));
    }
    fanouts.preflight.access(&asking.caller, &leg.forward).await?;
    let head = head(asking, overrides);
    let pending = Pending {
        head: &head,
        asked: &asking.asked,
        caller: &asking.caller,
        routing: &routing,
        received: &asking.received,
        deadline: overrides
            .list_until
            .or(asking.deadline)
            .unwrap_or_else(|| Instant::now() + BROUGHT_WITHIN),
    };
    fanouts.preflight.bring_locks(&leg.forward, pending).await?;
    let mut asked = asking.asked.clone();
    overrides.apply(&mut asked.query);
    // Whatever the client's connection is to become: members stream their events.
    asked.upgrade = None;
    let mut forward = Box::new(leg.forward.clone());
    if overrides.list_until.is_some() {
        asked.query.remove(WATCH);
        asked.verb = Verb::List;
        forward.traffic = Traffic::collection(false);
    }
    let leg = Leg {
        forward,
        asked: Box::new(asked),
        routing,
        caller: asking.caller.clone(),
        deadline: overrides.list_until.or(asking.deadline),
        received: asking.received.clone(),
        replanner: None,
        running: overrides.running,
    };
    fanouts.dispatcher.read(leg, head).await
}

fn head(asking: &Asking, overrides: &Overrides) -> Parts {
    let (mut head, ()) = Request::new(()).into_parts();
    // A HEAD is answered with what a GET would tell.
    head.method = match &asking.asked.method {
        &Method::HEAD => Method::GET,
        other => other.clone(),
    };
    head.headers.clone_from(&asking.headers);
    if let Some(accept) = &overrides.accept {
        head.headers.insert(ACCEPT, accept.clone());
    }
    // Bytes are looked for in the answers.
    head.headers
        .insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_is_changed_and_in_its_place() {
        let mut query = Query::new(Some(
            "labelSelector=a&resourceVersion=9&x=1&limit=5&timeoutSeconds=3&watch",
        ));
        let overrides = Overrides {
            query: LegQuery {
                resource_version: Param::Set("7".to_owned()),
                limit: Param::Drop,
                allow_watch_bookmarks: Param::Set("true".to_owned()),
                ..LegQuery::default()
            },
            ..Overrides::default()
        };
        overrides.apply(&mut query);
        assert_eq!(
            query.raw(),
            Some("labelSelector=a&resourceVersion=7&x=1&timeoutSeconds=3&watch&allowWatchBookmarks=true")
        );
        let only = Overrides {
            fields: Some("metadata.namespace=n".to_owned()),
            ..Overrides::default()
        };
        for (asked, sent) in [
            ("fieldSelector=a%3Db&x", "fieldSelector=a%3Db,metadata.namespace%3Dn&x"),
            ("x&fieldSelector=", "x&fieldSelector=metadata.namespace%3Dn"),
        ] {
            let mut query = Query::new(Some(asked));
            only.apply(&mut query);
            assert_eq!(query.raw(), Some(sent));
        }
    }
}
