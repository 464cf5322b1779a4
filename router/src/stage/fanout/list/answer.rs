//! The merged answer's head and the beginning of its body, once the members' heads are in order.

use std::collections::VecDeque;

use bytes::Bytes;
use futures::future::join_all;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderValue, VARY, WARNING};
use http::{HeaderMap, Method, Response};

use super::ahead::MemberBody;
use super::body::{Begun, Broken, ListBody};
use super::{Listing, gzip};
use crate::decision::plan::FanLeg;
use crate::decision::rewrite;
use crate::resource::upstream::{Body, Merged};
use crate::value::fault::Fault;

/// How much of a body is looked at for its kind.
const SNIFFED: usize = 256;
/// Of a union's answer that are held until it is known whether names collide, so that a header can say so.
const HELD_OF_UNION: usize = 1 << 20;

/// Whether every member sends a Table: aggregated APIs may not know them.
pub(super) async fn all_tables(legs: &[&FanLeg], sources: &mut [MemberBody]) -> Result<bool, Fault> {
    let begun = join_all(sources.iter_mut().map(MemberBody::peek)).await;
    for (leg, begun) in legs.iter().zip(begun) {
        let begun = begun.map_err(|error| leg.forward.unavailable(error.to_string()))?;
        if !begins_as_table(begun) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads the beginning before anything is said, so that a member that sends no list can still be named in a Status.
pub(super) async fn finish(
    listing: &Listing<'_>,
    legs: &[&FanLeg],
    mut headers: HeaderMap,
    mut body: ListBody,
) -> Result<Response<Body>, Fault> {
    let unique = listing.fan.plan.unique;
    let held = if unique { HELD_OF_UNION } else { gzip::THRESHOLD };
    let (mut first, mut size, mut whole) = (VecDeque::new(), 0, false);
    while size <= held {
        match std::future::poll_fn(|cx| body.poll_chunk(cx)).await {
            Some(Ok(chunk)) => {
                let chunk: Bytes = chunk;
                size += chunk.len();
                first.push_back(chunk);
            }
            Some(Err(broken)) => return Err(said_early(legs, broken)),
            None => {
                whole = true;
                break;
            }
        }
    }
    if unique && body.collisions() > 0 {
        headers.extend(hidden(listing, body.collisions()).map(|value| (WARNING, value)));
    }
    let packed = listing.gzip && size > gzip::THRESHOLD;
    if packed {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    if whole && !packed {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(size));
    }
    let begun = Begun {
        first,
        counted: body.collisions(),
        open: listing.fanouts.open.clone(),
        rest: (!whole).then_some(body),
    };
    let body = match (listing.fan.asking.asked.method == Method::HEAD, packed) {
        (true, _) => Body::Empty,
        (false, true) => Body::Merged(Merged::new(gzip::Gzip::new(begun))),
        (false, false) => Body::Merged(Merged::new(begun)),
    };
    let mut response = Response::new(body);
    *response.headers_mut() = headers;
    Ok(response)
}

/// Counts objects that an earlier member's name hides, and what is said to the client. Nothing of operators' definitions:
/// they are in every member that an operator works in, as they should be.
fn hidden(listing: &Listing<'_>, collisions: u64) -> Option<HeaderValue> {
    listing.fanouts.open.metrics.collided(collisions);
    let kind = listing.fan.asking.asked.resource.as_ref();
    if kind.is_some_and(|kind| kind.is("apiextensions.k8s.io", "customresourcedefinitions")) {
        return None;
    }
    let kind = kind.map_or("objects", |kind| kind.resource.as_str());
    tracing::warn!(
        shard = &*listing.fan.asking.caller.tenant(),
        collisions,
        kind,
        "names of cluster-scoped objects collide between members"
    );
    let text = format!(
        "{kind}: {collisions} hidden behind those of the same name in other member clusters; the explicit view shows them"
    );
    rewrite::warning(&text)
}

fn said_early(legs: &[&FanLeg], broken: Broken) -> Fault {
    let (index, why) = match broken {
        Broken::Body(leg, error) => (leg, error.to_string()),
        Broken::List(error) => (error.leg, format!("member cluster {error}")),
        Broken::Meta(why) => return Fault::Internal(why),
    };
    match legs.get(index) {
        Some(leg) => leg.forward.unavailable(why),
        None => Fault::Internal(why),
    }
}

/// Whether a JSON body begins as a Table does. API servers write the type first.
fn begins_as_table(body: &[u8]) -> bool {
    let head = &body[..body.len().min(SNIFFED)];
    let text: Vec<u8> = head
        .iter()
        .copied()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    text.windows(14).any(|window| window == b"\"kind\":\"Table\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_known_by_their_beginning() {
        assert!(begins_as_table(b"{\"kind\":\"Table\",\"apiVersion\""));
        assert!(begins_as_table(b"{\n  \"kind\": \"Table\",\n"));
        assert!(!begins_as_table(b"{\"kind\":\"PodList\",\"apiVersion\":\"v1\""));
        assert!(!begins_as_table(b""));
    }
}
