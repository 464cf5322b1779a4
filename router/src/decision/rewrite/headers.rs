//! Which headers do not pass, and what becomes of those that pass changed.

use http::HeaderMap;
use http::header::{
    ACCEPT, AUTHORIZATION, CONNECTION, EXPECT, FORWARDED, HOST, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

use super::begins;
use crate::value::classify::impersonate;
use crate::value::media::{self, JSON, Range, elements};

/// Of one connection, besides what `Connection` names.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];
/// Who the client says it is, or who forwarded it: never believed, never passed on.
/// `x-real-ip` would stand in the member's audit log.
const CLAIMS: [&str; 4] = ["x-remote-", "x-forwarded-", "x-real-ip", impersonate::PREFIX];
/// A WebSocket subprotocol by which browsers hand their token to an API server.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";
/// Removes what must not reach a member. `upgrades` keeps the request to switch protocols.
pub(super) fn strip_request(headers: &mut HeaderMap, upgrades: bool) {
    let upgrade = headers.get(UPGRADE).cloned().filter(|_| upgrades);
    let trailers = has_token(headers, &TE, "trailers");
    strip_hop_by_hop(headers);
    for name in [HOST, AUTHORIZATION, FORWARDED, EXPECT, TE] {
        headers.remove(name);
    }
    let claims: Vec<HeaderName> = headers
        .keys()
        .filter(|name| CLAIMS.iter().any(|claim| begins(name, claim)))
        .cloned()
        .collect();
    for name in claims {
        headers.remove(name);
    }
    strip_token_protocol(headers);
    if let Some(upgrade) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, upgrade);
    } else if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Removes the headers of one connection and those that `Connection` names.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<_> = elements(headers, &CONNECTION)
        .filter_map(|token| HeaderName::try_from(token).ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    elements(headers, name).any(|element| element.eq_ignore_ascii_case(token))
}

fn strip_token_protocol(headers: &mut HeaderMap) {
    let carries = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.contains(TOKEN_PROTOCOL));
    if !headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().any(carries) {
        return;
    }
    let kept: Vec<&str> = elements(headers, &SEC_WEBSOCKET_PROTOCOL)
        .filter(|protocol| !protocol.starts_with(TOKEN_PROTOCOL))
        .collect();
    let kept = kept.join(", ");
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if let Ok(value) = HeaderValue::try_from(&kept)
        && !kept.is_empty()
    {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
    }
}

/// Leaves of `Accept` only what a Lease can be renamed in.
pub(super) fn accept_renamable(headers: &mut HeaderMap) {
    if !headers.contains_key(ACCEPT) {
        return;
    }
    let kept: Vec<String> = media::ranges(headers).iter().filter_map(Range::narrowed).collect();
    let accept = HeaderValue::try_from(kept.join(",")).ok().filter(|_| !kept.is_empty());
    headers.insert(ACCEPT, accept.unwrap_or(HeaderValue::from_static(JSON)));
}
