//! Makes the member's request out of the client's, and cleans the head of the member's answer. Pure over heads; bodies
//! are `lease`'s.
//!
//! The client's selector can only be narrowed: shard and client are ANDed as requirements, never as text. What is not
//! ours (unknown parameters, their order, the bytes of the path) is not touched. Who the caller is reaches the member
//! only through headers written here; whatever the client sent of that kind is gone first. Called by `dispatch`.

mod headers;
#[cfg(test)]
mod tests;

use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH, HeaderName, HeaderValue, VIA, WARNING};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, StatusCode, Uri};
use portolan_crds::selector::Selector;
use portolan_merge::cursor::is_cursor;

use crate::decision::plan::{Forward, Rewrite};
use crate::value::classify::{ApiRequest, View, field, write_owner};
use crate::value::fault::Fault;
use crate::value::snapshot::LeaseName;
use crate::value::traffic::TrafficClass;

const LABEL_SELECTOR: &str = "labelSelector";
const FIELD_SELECTOR: &str = "fieldSelector";
const RESOURCE_VERSION: &str = "resourceVersion";
const RESOURCE_VERSION_MATCH: &str = "resourceVersionMatch";
/// Where a lock's name stands in `/apis/coordination.k8s.io/v1/namespaces/<ns>/leases/<name>`, cut at the slashes; one
/// earlier in `/api/v1/namespaces/…`, one later in `/apis/coordination.k8s.io/v1/watch/namespaces/…`.
const LOCK_NAME_SEGMENT: usize = 7;
const WATCH_SEGMENT: usize = 4;
/// Added to every proxied answer.
pub(crate) const VIA_VALUE: HeaderValue = HeaderValue::from_static("1.1 portolan");

/// Rewrites `head` in place: URI in origin form, credentials replaced by `bearer` and `Impersonate-*`, hop-by-hop and
/// forwarding headers gone, no Host. The upstream adds authority and trace context. 400 for an unreadable selector.
pub(crate) fn rewrite_head(
    forward: &Forward,
    request: &ApiRequest,
    head: &mut Parts,
    bearer: &HeaderValue,
) -> Result<(), Fault> {
    head.uri = match as_it_came(forward, request, &head.uri) {
        Some(path) => Uri::from(path),
        None => uri(forward, request)?,
    };
    headers::strip_request(&mut head.headers, forward.traffic.class == TrafficClass::Upgrade);
    if forward.rewrite.touches_bodies() {
        headers::accept_renamable(&mut head.headers, forward.traffic.class == TrafficClass::List);
        head.headers.remove(ACCEPT_ENCODING);
        // The body is buffered and may change: whoever sends it knows its length.
        head.headers.remove(CONTENT_LENGTH);
    }
    identify(forward, &mut head.headers, bearer.clone())?;
    headers::check_sent(&head.uri, &head.headers)
}

/// Cleans the head of a member's answer: hop-by-hop headers gone (but for the switch of protocols itself),
/// `via: 1.1 portolan` and the plan's warning added.
pub(crate) fn rewrite_response(forward: &Forward, head: &mut http::response::Parts) {
    if head.status != StatusCode::SWITCHING_PROTOCOLS {
        headers::strip_hop_by_hop(&mut head.headers);
    }
    if forward.rewrite.touches_bodies() {
        head.headers.remove(CONTENT_LENGTH);
    }
    head.headers.append(VIA, VIA_VALUE);
    if let Some(value) = forward.warning.as_deref().and_then(warning) {
        head.headers.append(WARNING, value);
    }
}

/// The same for an answer of one of several members: headers of its connection gone, `via` added.
pub(crate) fn clean_response(headers: &mut HeaderMap) {
    headers::strip_hop_by_hop(headers);
    headers.append(VIA, VIA_VALUE);
}

/// A `Warning` header as API servers write it and kubectl and client-go print it.
pub(crate) fn warning(text: &str) -> Option<HeaderValue> {
    let mut quoted = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            ' '..='~' => quoted.push(char),
            _ => quoted.push('?'),
        }
    }
    HeaderValue::try_from(format!("299 portolan \"{quoted}\"")).ok()
}

/// Puts in who asks.
fn identify(forward: &Forward, headers: &mut HeaderMap, bearer: HeaderValue) -> Result<(), Fault> {
    let cluster = &forward.target.cluster;
    headers.insert(http::header::AUTHORIZATION, bearer);
    forward
        .act_as
        .write(headers)
        .map_err(|_| unfit("the user name", cluster))?;
    match forward.grant.as_ref().filter(|grant| grant.fenced) {
        Some(grant) => write_owner(headers, &grant.shard, grant.epoch).map_err(|_| unfit("the shard", cluster)),
        None => Ok(()),
    }
}

fn unfit(what: &str, cluster: &str) -> Fault {
    Fault::Internal(format!("{what} for member cluster {cluster} cannot stand in a header"))
}

/// What nothing is changed of: a GET of one object is sent on without being written and read anew.
fn as_it_came(forward: &Forward, request: &ApiRequest, uri: &Uri) -> Option<PathAndQuery> {
    let same = uri.path() == request.path && uri.query() == request.query.raw();
    // A cursor is not passed on.
    let plain = same && forward.rewrite == Rewrite::default() && uri.query().is_none();
    uri.path_and_query().filter(|_| plain).cloned()
}

fn uri(forward: &Forward, request: &ApiRequest) -> Result<Uri, Fault> {
    let rewrite = &forward.rewrite;
    let mut query = request.query.clone();
    // No member reads it, and what is read or deleted here is its newest state in any case.
    let version = query.first(RESOURCE_VERSION);
    if request.view == View::Merged && version.is_some_and(|version| is_cursor(&version)) {
        query.remove(RESOURCE_VERSION);
        query.remove(RESOURCE_VERSION_MATCH);
    }
    if let Some(selector) = &rewrite.selector {
        let client = query.first(LABEL_SELECTOR).unwrap_or_default();
        let narrowed = narrow(selector, &client)?;
        query.set(LABEL_SELECTOR, &narrowed.to_string());
    }
    if let Some(fields) = rewrite.fields {
        let client = query.first(FIELD_SELECTOR).filter(|client| !client.is_empty());
        let both = client.map_or_else(|| fields.to_owned(), |client| format!("{client},{fields}"));
        query.set(FIELD_SELECTOR, &both);
    }
    let mut path = request.path.clone();
    if let Some(lease) = rewrite.renames_answers() {
        path = lock_path(lease, request);
        if let Some(fields) = query.first(FIELD_SELECTOR) {
            let fields = field::replace(&fields, "metadata.name", &lease.client, &lease.member);
            query.set(FIELD_SELECTOR, &fields);
        }
    }
    if let Some(lock) = &rewrite.shown {
        // No two of one name: what really has the client's is not the caller's.
        let client = query.first(FIELD_SELECTOR).filter(|client| !client.is_empty());
        let other = format!("metadata.name!={}", lock.client);
        let both = client.map_or_else(|| other.clone(), |client| format!("{client},{other}"));
        query.set(FIELD_SELECTOR, &both);
    }
    if let Some(query) = query.raw() {
        path.push('?');
        path.push_str(query);
    }
    origin_form(path)
}

/// What both the shard and the client select.
pub(crate) fn narrow(shard: &Selector, client: &str) -> Result<Selector, Fault> {
    let client = Selector::parse(client)
        .map_err(|error| Fault::BadRequest(format!("unable to parse labelSelector {client:?}: {error}")))?;
    Ok(shard.and(&client))
}

fn lock_path(lock: &LeaseName, request: &ApiRequest) -> String {
    let Some(resource) = request.resource.as_ref().filter(|resource| resource.named_by_path) else {
        return request.path.clone();
    };
    let mut segments: Vec<&str> = request.path.split('/').collect();
    let core = usize::from(resource.group.is_empty());
    let watch = segments.get(WATCH_SEGMENT - core) == Some(&"watch");
    if let Some(name) = segments.get_mut(LOCK_NAME_SEGMENT - core + usize::from(watch)) {
        *name = &lock.member;
    }
    segments.join("/")
}

fn origin_form(path: String) -> Result<Uri, Fault> {
    let length = path.len();
    let path = PathAndQuery::try_from(path).map_err(|_| {
        Fault::BadRequest(format!(
            "the request's path and query cannot be sent to a member: {length} bytes, the shard's selector included"
        ))
    })?;
    Ok(Uri::from(path))
}

/// Whether a header name begins with `prefix`; names are in lower case.
fn begins(name: &HeaderName, prefix: &str) -> bool {
    name.as_str().starts_with(prefix)
}
