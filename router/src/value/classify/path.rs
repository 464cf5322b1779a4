//! The path: hygiene, the view's prefix, and the API server's reading of the rest.
//!
//! Member and router must read one path alike, so whatever two readers could read differently (dot segments, `//`, encoded
//! slashes and dots, control characters) is refused in every segment that is read here. Only what follows
//! `…/proxy/` of a Pod, Service or Node is for the program behind it, and travels as it came.

use std::borrow::Cow;

use super::{ResourceRequest, Verb, View};
use crate::value::fault::Fault;
use http::Method;

/// Prefix of the explicit view.
const CLUSTERS: &str = "clusters";
/// Resources of the core group whose `/proxy/` has a tail.
const PROXIED: [&str; 3] = ["pods", "services", "nodes"];
/// Subresources of a Namespace; any other second segment is a resource in it.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

/// Whether the API server could have an object of this name; the rule for segments of resource paths.
pub(super) fn is_segment_name(name: &str) -> bool {
    !is_empty_or_dots(name) && !name.contains(['/', '%'])
}

fn is_empty_or_dots(segment: &str) -> bool {
    matches!(segment, "" | "." | "..")
}

/// The byte that two hexadecimal digits spell.
pub(super) fn hex_pair(high: Option<u8>, low: Option<u8>) -> Option<u8> {
    let digit = |byte: Option<u8>| {
        char::from(byte?)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    Some((digit(high)? << 4) | digit(low)?)
}

/// The path, cut at the slashes.
pub(super) struct Path<'a> {
    /// For which view.
    pub(super) view: View,
    /// What the member is asked for: starts with a slash, raw.
    pub(super) member: &'a str,
    /// Decoded segments of `member` without the tail of a proxy, and without the empty ones at the ends.
    pub(super) segments: Vec<Cow<'a, str>>,
}

/// Cuts and checks a raw path.
pub(super) fn split(raw: &str) -> Result<Path<'_>, Fault> {
    let (first, after) = first_segment(raw);
    if first.is_empty() || decode(first)? != CLUSTERS {
        return of(View::Merged, raw);
    }
    let (name, member) = first_segment(after);
    if name.is_empty() && !member.is_empty() {
        return Err(empty_segment());
    }
    if name.is_empty() {
        let hint = "the explicit view of a member cluster is /clusters/<name>/: the name is missing";
        return Err(Fault::NotFound(hint.into()));
    }
    let member = if member.is_empty() { "/" } else { member };
    of(View::Explicit(decode(name)?.into_owned()), member)
}

/// Cuts and checks a raw path that is the view's as it stands.
pub(super) fn of(view: View, member: &str) -> Result<Path<'_>, Fault> {
    if !member.starts_with('/') {
        return Err(Fault::BadRequest("the path does not begin with '/'".into()));
    }
    Ok(Path {
        view,
        member,
        segments: segments(member)?,
    })
}

/// `/a/b` → `a`, `/b`. Empty or a lone slash → empty.
fn first_segment(path: &str) -> (&str, &str) {
    let rest = path.strip_prefix('/').unwrap_or(path);
    // Byte by byte: the search of a `str` is for long texts, and segments are short.
    let end = rest.bytes().position(|byte| byte == b'/');
    rest.split_at(end.unwrap_or(rest.len()))
}

/// Decodes segment by segment, up to the tail of a proxy. One slash at the end means nothing, as for the API server.
fn segments(path: &str) -> Result<Vec<Cow<'_, str>>, Fault> {
    let mut segments: Vec<Cow<'_, str>> = Vec::with_capacity(8);
    // As nearly all are, and looked at once.
    let plain = !path.bytes().any(|byte| byte == b'%' || is_refused(byte));
    let mut rest = path;
    while !matches!(rest, "" | "/") {
        let (segment, after) = first_segment(rest);
        segments.push(if plain && !is_empty_or_dots(segment) {
            Cow::Borrowed(segment)
        } else {
            decode(segment)?
        });
        rest = after;
        if is_proxy(&segments) {
            check_escapes(rest)?;
            break;
        }
    }
    Ok(segments)
}

/// What follows `proxy` travels as it came, but for escapes that are none: API servers end the stream of such a request
/// before they know whose it is.
fn check_escapes(tail: &str) -> Result<(), Fault> {
    let mut bytes = tail.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' && hex_pair(bytes.next(), bytes.next()).is_none() {
            let why = "the path behind \"proxy\" is not percent-encoded correctly";
            return Err(Fault::BadRequest(why.into()));
        }
    }
    Ok(())
}

/// Whether the last segment is the `proxy` of a Pod, Service or Node, so that what follows is not ours.
fn is_proxy(segments: &[Cow<'_, str>]) -> bool {
    if segments.last().is_none_or(|last| last != "proxy") {
        return false;
    }
    let words: Vec<&str> = segments.iter().map(AsRef::as_ref).collect();
    match words.as_slice() {
        ["api", _, "namespaces", _, kind, _, _] | ["api", _, kind, _, _] => PROXIED.contains(kind),
        _ => false,
    }
}

fn empty_segment() -> Fault {
    Fault::BadRequest("the path has an empty segment ('//')".into())
}

/// One segment, decoded and checked.
fn decode(segment: &str) -> Result<Cow<'_, str>, Fault> {
    if !segment.contains('%') {
        check(segment.as_bytes(), segment)?;
        return Ok(Cow::Borrowed(segment));
    }
    let broken = || Fault::BadRequest(format!("path segment {segment:?} is not percent-encoded correctly"));
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let byte = hex_pair(rest.next(), rest.next()).ok_or_else(broken)?;
        // No client escapes a dot, no name has a slash or a percent sign: these are for confusing readers.
        if matches!(byte, b'.' | b'/' | b'%' | b'\\') {
            return Err(Fault::BadRequest(format!(
                "path segment {segment:?} hides {:?} behind percent-encoding",
                char::from(byte)
            )));
        }
        bytes.push(byte);
    }
    check(&bytes, segment)?;
    String::from_utf8(bytes).map(Cow::Owned).map_err(|_| broken())
}

fn is_refused(byte: u8) -> bool {
    byte.is_ascii_control() || byte == b'\\'
}

fn check(bytes: &[u8], segment: &str) -> Result<(), Fault> {
    if matches!(bytes, b"." | b"..") {
        return Err(Fault::BadRequest(format!("path segment {segment:?} is a dot segment")));
    }
    if bytes.iter().copied().any(is_refused) {
        return Err(Fault::BadRequest(format!(
            "path segment {segment:?} has a control character or backslash"
        )));
    }
    if bytes.is_empty() { Err(empty_segment()) } else { Ok(()) }
}

/// What RequestInfo makes of the method and the segments, before the query is looked at.
pub(super) fn resource(method: &Method, segments: &[Cow<'_, str>]) -> Result<(Verb, Option<ResourceRequest>), Fault> {
    let verb = verb_of(method);
    let mut parts = segments.iter().map(AsRef::as_ref);
    let (group, mut parts): (&str, Vec<&str>) = match (parts.next(), segments.len()) {
        (Some("api"), 3..) => ("", parts.collect()),
        (Some("apis"), 4..) => (parts.next().unwrap_or_default(), parts.collect()),
        _ => return Ok((verb, None)),
    };
    let version = parts.remove(0);
    let mut verb = verb;
    if let Some(special) = [("watch", Verb::Watch), ("proxy", Verb::Proxy)]
        .into_iter()
        .find(|(word, _)| parts[0] == *word)
    {
        if parts.len() < 2 {
            return Err(Fault::BadRequest(format!(
                "no resource follows {:?} in the path",
                special.0
            )));
        }
        verb = special.1;
        parts.remove(0);
    }
    let mut namespace = None;
    if let ["namespaces", name, rest @ ..] = parts.as_slice() {
        namespace = Some((*name).to_owned());
        if rest.first().is_some_and(|word| !NAMESPACE_SUBRESOURCES.contains(word)) {
            parts = rest.to_vec();
        }
    }
    let name = parts.get(1).map(|name| (*name).to_owned());
    let request = ResourceRequest {
        group: group.to_owned(),
        version: version.to_owned(),
        resource: parts[0].to_owned(),
        subresource: parts
            .get(2)
            .filter(|_| verb != Verb::Proxy)
            .map(|word| (*word).to_owned()),
        namespace,
        named_by_path: name.is_some(),
        name,
    };
    Ok((verb, Some(request)))
}

fn verb_of(method: &Method) -> Verb {
    match *method {
        Method::GET | Method::HEAD => Verb::Get,
        Method::POST => Verb::Create,
        Method::PUT => Verb::Update,
        Method::PATCH => Verb::Patch,
        Method::DELETE => Verb::Delete,
        _ => Verb::Other,
    }
}
