//! What passes of the head of a member's answer: nothing by which a member could speak for the router. Pure.
//!
//! The client's connection is to the router: it keeps cookies and ways to connect for the router's name, and takes its token to
//! wherever a redirect points, as client-go does, to `http://` too.

use http::header::{
    ALT_SVC, HeaderName, HeaderValue, LOCATION, SET_COOKIE, STRICT_TRANSPORT_SECURITY, WWW_AUTHENTICATE,
};
use http::{HeaderMap, Response, StatusCode};

use super::Leg;
use super::outcome::refused_us;
use crate::resource::upstream::Body;
use crate::value::classify::View;
use crate::value::fault::Fault;

/// What a server says of itself, or asks its clients to keep.
const OF_A_SERVER: [HeaderName; 4] = [SET_COOKIE, WWW_AUTHENTICATE, ALT_SVC, STRICT_TRANSPORT_SECURITY];

/// The answer as far as it may pass. An error for one that is the router's own to see, and for a redirect that leaves the
/// member.
pub(super) fn received(leg: &Leg, mut response: Response<Body>) -> Result<Response<Body>, Fault> {
    if let Some(fault) = refused_us(leg, &response) {
        return Err(fault);
    }
    for name in &OF_A_SERVER {
        response.headers_mut().remove(name);
    }
    let status = response.status();
    if status.is_redirection() && status != StatusCode::NOT_MODIFIED {
        let location = within(&leg.asked.view, response.headers()).ok_or_else(|| {
            let cluster = leg.forward.target.cluster.to_string();
            Fault::BadGateway {
                message: format!("member cluster {cluster} answered {status} to elsewhere, where no token may go"),
                cluster,
            }
        })?;
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// Where a redirect goes, if that is a path of the same member: as the client is to ask for it.
fn within(view: &View, headers: &HeaderMap) -> Option<HeaderValue> {
    let mut all = headers.get_all(LOCATION).iter();
    let (Some(location), None) = (all.next(), all.next()) else {
        return None;
    };
    // What browsers take for a slash, or leave out before they look for one.
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && *byte != b'\\';
    let location = location
        .to_str()
        .ok()
        .filter(|text| text.bytes().all(|byte| is_plain(&byte)))?;
    if !location.starts_with('/') || location.starts_with("//") {
        return None;
    }
    let prefixed = match view {
        View::Merged => location.to_owned(),
        View::Explicit(cluster) => format!("/clusters/{cluster}{location}"),
    };
    HeaderValue::try_from(prefixed).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(view: &View, locations: &[&'static str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for location in locations {
            headers.append(LOCATION, HeaderValue::from_static(location));
        }
        within(view, &headers).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_redirect_stays_with_its_member() {
        let explicit = View::Explicit("east".to_owned());
        let to = "/api/v1/namespaces/a/services/b/proxy/?x=//y";
        assert_eq!(location(&View::Merged, &[to]).as_deref(), Some(to));
        assert_eq!(location(&explicit, &[to]), Some(format!("/clusters/east{to}")));
        for elsewhere in [
            "http://evil/",
            "https://evil/",
            "//evil/",
            "/\\evil",
            "\\\\evil",
            "/\t/evil",
            "evil",
            "?x",
            "",
        ] {
            assert_eq!(location(&View::Merged, &[elsewhere]), None, "{elsewhere:?}");
            assert_eq!(location(&explicit, &[elsewhere]), None, "{elsewhere:?}");
        }
        assert_eq!(location(&View::Merged, &[]), None);
        assert_eq!(
            location(&View::Merged, &["/a", "/b"]),
            None,
            "clients differ in which they take"
        );
    }
}
