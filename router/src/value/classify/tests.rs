//! Requests and how the API server reads them; path tricks; nothing makes it panic.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};
use proptest::prelude::*;

use super::*;

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let pair = |(name, value): &(&str, &str)| {
        (
            HeaderName::try_from(*name).unwrap(),
            HeaderValue::from_bytes(value.as_bytes()).unwrap(),
        )
    };
    pairs.iter().map(pair).collect()
}

fn read(method: &str, uri: &str) -> Result<ApiRequest, Fault> {
    classify(
        &Method::try_from(method).unwrap(),
        &uri.parse::<Uri>().unwrap(),
        &HeaderMap::new(),
    )
}

/// `verb group/version resource[/subresource] namespace name`, with `-` for what is absent.
fn short(request: &ApiRequest) -> String {
    let Some(resource) = &request.resource else {
        return format!("{} nonresource", request.verb.as_str());
    };
    let sub = resource
        .subresource
        .as_ref()
        .map(|sub| format!("/{sub}"))
        .unwrap_or_default();
    format!(
        "{} {}/{} {}{sub} {} {}",
        request.verb.as_str(),
        resource.group,
        resource.version,
        resource.resource,
        resource.namespace.as_deref().unwrap_or("-"),
        resource.name.as_deref().unwrap_or("-"),
    )
}

fn check(table: &[(&str, &str, &str)]) {
    for (method, uri, expected) in table {
        assert_eq!(short(&read(method, uri).unwrap()), *expected, "{method} {uri}");
    }
}

#[test]
fn reads_as_the_api_server_does() {
    check(&[
        ("GET", "/api/v1/pods", "list /v1 pods - -"),
        ("GET", "/api/v1/pods/", "list /v1 pods - -"),
        ("HEAD", "/api/v1/pods", "list /v1 pods - -"),
        ("GET", "/api/v1/pods?watch", "watch /v1 pods - -"),
        ("GET", "/api/v1/pods?watch=yes", "watch /v1 pods - -"),
        ("GET", "/api/v1/pods?watch=0", "list /v1 pods - -"),
        ("GET", "/api/v1/pods?watch=False", "list /v1 pods - -"),
        ("GET", "/api/v1/namespaces/ns-a/pods", "list /v1 pods ns-a -"),
        ("GET", "/api/v1/namespaces/ns-a/pods/p", "get /v1 pods ns-a p"),
        ("GET", "/api/v1/namespaces/ns-a/pods/p?watch=1", "get /v1 pods ns-a p"),
        (
            "GET",
            "/api/v1/namespaces/ns-a/pods/p/log?follow=true",
            "get /v1 pods/log ns-a p",
        ),
        (
            "POST",
            "/api/v1/namespaces/ns-a/pods/p/exec",
            "create /v1 pods/exec ns-a p",
        ),
        (
            "GET",
            "/api/v1/namespaces/ns-a/pods/p/proxy/a//b/%2e%2e/c",
            "get /v1 pods/proxy ns-a p",
        ),
        ("GET", "/api/v1/nodes/n/proxy/../x", "get /v1 nodes/proxy - n"),
        ("POST", "/api/v1/namespaces/ns-a/pods", "create /v1 pods ns-a -"),
        (
            "PUT",
            "/api/v1/namespaces/ns-a/pods/p/status",
            "update /v1 pods/status ns-a p",
        ),
        (
            "PATCH",
            "/apis/apps/v1/namespaces/ns-a/deployments/d",
            "patch apps/v1 deployments ns-a d",
        ),
        (
            "DELETE",
            "/apis/apps/v1/namespaces/ns-a/deployments/d",
            "delete apps/v1 deployments ns-a d",
        ),
        (
            "DELETE",
            "/apis/apps/v1/namespaces/ns-a/deployments",
            "deletecollection apps/v1 deployments ns-a -",
        ),
        ("OPTIONS", "/api/v1/pods", "other /v1 pods - -"),
    ]);
}

#[test]
fn reads_namespaces_and_old_paths_as_the_api_server_does() {
    check(&[
        ("GET", "/api/v1/namespaces", "list /v1 namespaces - -"),
        ("GET", "/api/v1/namespaces/ns-a", "get /v1 namespaces ns-a ns-a"),
        ("DELETE", "/api/v1/namespaces/ns-a", "delete /v1 namespaces ns-a ns-a"),
        (
            "PUT",
            "/api/v1/namespaces/ns-a/finalize",
            "update /v1 namespaces/finalize ns-a ns-a",
        ),
        (
            "GET",
            "/api/v1/namespaces/ns-a/status",
            "get /v1 namespaces/status ns-a ns-a",
        ),
        ("GET", "/api/v1/watch/pods", "watch /v1 pods - -"),
        ("GET", "/api/v1/watch/namespaces/ns-a/pods", "watch /v1 pods ns-a -"),
        ("GET", "/api/v1/watch/namespaces/ns-a/pods/p", "watch /v1 pods ns-a p"),
        (
            "GET",
            "/api/v1/watch/pods?fieldSelector=metadata.name%3Dp",
            "watch /v1 pods - -",
        ),
        (
            "GET",
            "/apis/apps/v1/watch/deployments",
            "watch apps/v1 deployments - -",
        ),
        ("GET", "/api/v1/proxy/namespaces/ns-a/pods/p/x", "proxy /v1 pods ns-a p"),
    ]);
}

#[test]
fn reads_names_in_selectors_and_other_paths_as_the_api_server_does() {
    check(&[
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name%3Dp",
            "list /v1 pods - p",
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=spec.nodeName=n,metadata.name==p&watch",
            "watch /v1 pods - p",
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name!=p",
            "list /v1 pods - -",
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name%3Da%2Fb",
            "list /v1 pods - -",
        ),
        ("GET", "/api/v1/pods?fieldSelector=metadata.name=", "list /v1 pods - -"),
        ("GET", "/api", "get nonresource"),
        ("GET", "/api/v1", "get nonresource"),
        ("GET", "/apis", "get nonresource"),
        ("GET", "/apis/apps", "get nonresource"),
        ("GET", "/apis/apps/v1", "get nonresource"),
        ("GET", "/", "get nonresource"),
        ("GET", "/version", "get nonresource"),
        ("GET", "/openapi/v3/apis/apps/v1?hash=A", "get nonresource"),
        ("GET", "/API/v1/pods", "get nonresource"),
        ("GET", "/%61pi/v1/p%6fds", "list /v1 pods - -"),
        (
            "GET",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:basic-user",
            "get rbac.authorization.k8s.io/v1 clusterroles - system:basic-user",
        ),
    ]);
}

#[test]
fn the_views_are_told_apart_by_the_decoded_prefix() {
    let table = [
        (
            "/clusters/east/api/v1/pods?a=%20b&c",
            "east",
            "/api/v1/pods",
            Some("a=%20b&c"),
        ),
        ("/clusters/east", "east", "/", None),
        ("/clusters/east/", "east", "/", None),
        ("/%63lusters/e%61st/api/v1/p%6fds/", "east", "/api/v1/p%6fds/", None),
        (
            "/clusters/east/api/v1/nodes/n/proxy/a%2Fb//c/..",
            "east",
            "/api/v1/nodes/n/proxy/a%2Fb//c/..",
            None,
        ),
        ("/clusters/east/clusters/west/api", "east", "/clusters/west/api", None),
    ];
    for (uri, cluster, path, query) in table {
        let request = read("GET", uri).unwrap();
        assert_eq!(request.view, View::Explicit(cluster.into()), "{uri}");
        assert_eq!((request.path.as_str(), request.query.raw()), (path, query), "{uri}");
    }
    assert_eq!(read("GET", "/clustersx/east").unwrap().view, View::Merged);
    for uri in ["/clusters", "/clusters/"] {
        assert!(matches!(read("GET", uri), Err(Fault::NotFound(_))), "{uri}");
    }
}

#[test]
fn path_tricks_are_refused() {
    for uri in [
        "/clusters/east/../west/api/v1/pods",
        "/clusters/east/%2e%2e/west/api/v1/pods",
        "/clusters/east/%2E%2e/west",
        "/clusters/%2e%2e/api",
        "/clusters/east%2f..%2fwest/api/v1/pods",
        "/clusters//east/api",
        "/clusters/east//api/v1/pods",
        "//clusters/east/api",
        "//",
        "/api/v1/pods//",
        "/api/v1/./pods",
        "/api/v1/namespaces/ns-a/pods/..",
        "/api/v1/namespaces/ns-a%2Fpods/x",
        "/api/v1/namespaces/ns%00a/pods",
        "/api/v1/namespaces/ns%0aa/pods",
        "/api/v1/namespaces/a%252fb/pods",
        "/api/v1/namespaces/a%5cb/pods",
        "/api/v1/namespaces/a%zz/pods",
        "/api/v1/namespaces/a%f",
        "/api/v1/namespaces/%ff/pods",
        "/api/v1/namespaces/ns-a/pods/p/exec/../log",
        "/api/v1/namespaces/ns-a/configmaps/p/proxy/../x",
        "/apis/apps/v1/namespaces/ns-a/pods/p/proxy/..",
        "/api/v1/namespaces/../pods/p/proxy/x",
        "/healthz/../api",
        "/api/v1/watch",
    ] {
        assert!(
            matches!(read("GET", uri), Err(Fault::BadRequest(_))),
            "{uri}: {:?}",
            read("GET", uri)
        );
    }
}

#[test]
fn authorities() {
    let get = |uri: &str, version, pairs: &[(&str, &str)]| {
        check_authority(&Method::GET, &uri.parse().unwrap(), &headers(pairs), version)
    };
    let (h1, h2) = (Version::HTTP_11, Version::HTTP_2);
    assert!(get("/api", h1, &[("host", "router:8443")]).is_ok());
    assert!(get("https://router:8443/api", h2, &[]).is_ok());
    assert!(get("https://router:8443/api", h2, &[("host", "Router:8443")]).is_ok());
    assert!(get("/api", h2, &[("host", "[::1]:8443")]).is_ok());
    assert!(get("/readyz", Version::HTTP_10, &[]).is_ok(), "HTTP/1.0 knows no Host");
    for (uri, version, pairs) in [
        ("/api", Version::HTTP_10, vec![("host", "a"), ("host", "b")]),
        ("http://evil/api", Version::HTTP_10, vec![]),
        ("/api", h1, vec![]),
        ("/api", h2, vec![]),
        ("/api", h1, vec![("host", "a"), ("host", "a")]),
        ("/api", h1, vec![("host", "")]),
        ("/api", h1, vec![("host", "a/b")]),
        ("/api", h1, vec![("host", "u@a")]),
        ("http://evil/api", h1, vec![("host", "router")]),
        ("https://evil/api", h1, vec![("host", "evil")]),
        ("https://evil/api", h2, vec![("host", "router")]),
        ("https://u@evil/api", h2, vec![]),
        ("*", h1, vec![("host", "a")]),
    ] {
        assert!(
            matches!(get(uri, version, &pairs), Err(Fault::BadRequest(_))),
            "{uri} {pairs:?}"
        );
    }
    let connect = check_authority(
        &Method::CONNECT,
        &"a:1".parse().unwrap(),
        &headers(&[("host", "a:1")]),
        h1,
    );
    assert!(matches!(connect, Err(Fault::BadRequest(_))));
}

#[test]
fn upgrades_need_both_headers() {
    let asks = |uri: &str, pairs: &[(&str, &str)]| {
        let asked = classify(&Method::GET, &uri.parse().unwrap(), &headers(pairs)).unwrap();
        asked.upgrade.map(|u| u.protocol)
    };
    let upgrade = |pairs: &[(&str, &str)]| asks("/api/v1/pods?watch=true", pairs);
    let websocket = [("connection", "upgrade"), ("upgrade", "websocket")];
    assert_eq!(
        asks("/api/v1/pods", &websocket),
        None,
        "a list switches nowhere, and has bounds"
    );
    let both = upgrade(&[("connection", "keep-alive, Upgrade"), ("upgrade", "SPDY/3.1")]);
    assert_eq!(both.as_deref(), Some("SPDY/3.1"));
    assert_eq!(upgrade(&[("upgrade", "websocket")]), None);
    assert_eq!(upgrade(&[("connection", "upgrade")]), None);
}

#[test]
fn upgrades_that_would_tunnel_other_requests_are_no_upgrades() {
    for (protocol, path, taken) in [
        ("websocket", "/api/v1/namespaces/a/pods?watch=1", true),
        ("WebSocket", "/api/v1/namespaces/a/pods/p/exec", true),
        ("SPDY/3.1", "/api/v1/namespaces/a/pods/p/portforward", true),
        ("h2c", "/api/v1/namespaces/a/pods", false),
        ("TLS/1.0, h2c", "/api/v1/namespaces/a/pods", false),
        ("websocket, h2c", "/api/v1/namespaces/a/pods", false),
        // The program behind it speaks what it likes.
        ("tcp", "/api/v1/namespaces/a/pods/p/proxy/x", true),
        ("h2c", "/api/v1/namespaces/a/services/s/proxy/", true),
    ] {
        let headers = headers(&[("connection", "Upgrade, HTTP2-Settings"), ("upgrade", protocol)]);
        let request = classify(&Method::GET, &path.parse().unwrap(), &headers).unwrap();
        assert_eq!(request.upgrade.is_some(), taken, "{protocol} {path}");
    }
}

#[test]
fn a_write_that_no_server_switches_for_stays_a_write() {
    for (method, path, taken) in [
        ("POST", "/api/v1/namespaces/a/pods/p/exec", true),
        ("POST", "/api/v1/namespaces/a/services/s/proxy/x", true),
        ("POST", "/api/v1/namespaces/a/pods", false),
        ("PUT", "/api/v1/namespaces/a/pods/p", false),
        ("PATCH", "/api/v1/namespaces/a/pods/p/log", false),
    ] {
        let headers = headers(&[("connection", "Upgrade"), ("upgrade", "websocket")]);
        let method = Method::try_from(method).unwrap();
        let request = classify(&method, &path.parse().unwrap(), &headers).unwrap();
        assert_eq!(request.upgrade.is_some(), taken, "{method} {path}");
    }
}

#[test]
fn queries_that_go_would_not_read_are_refused() {
    // Go reads none of more than ten thousand parameters: a selector among them would select everything.
    let query = "a=1".to_owned() + &"&".repeat(MAX_PARAMETERS);
    let refused = read("GET", &format!("/api/v1/pods?{query}"));
    assert!(matches!(refused, Err(Fault::BadRequest(_))), "{refused:?}");
    assert!(read("GET", &format!("/api/v1/pods?{}", &query[..100])).is_ok());
    let words = "command=word&".repeat(1_200);
    assert!(read("GET", &format!("/api/v1/namespaces/a/pods/p/exec?{words}")).is_ok());
}

#[test]
fn impersonation_is_read_and_asked_for() {
    let read = |pairs: &[(&str, &str)]| Impersonation::from_headers(&headers(pairs));
    assert_eq!(read(&[("accept", "x")]), Ok(None));
    let found = read(&[
        ("impersonate-user", "system:serviceaccount:ns:sa"),
        ("impersonate-group", "a"),
        ("impersonate-group", "b"),
        ("impersonate-uid", "u1"),
        ("impersonate-extra-example.com%2fscope", "x"),
        ("impersonate-extra-%41", "y"),
    ]);
    let found = found.unwrap().unwrap();
    let attributes: Vec<_> = found
        .attributes()
        .into_iter()
        .map(|a| {
            format!(
                "{}|{}|{:?}|{:?}|{}",
                a.group, a.resource, a.subresource, a.namespace, a.name
            )
        })
        .collect();
    assert_eq!(
        attributes,
        [
            "|serviceaccounts|None|Some(\"ns\")|sa",
            "|groups|None|None|a",
            "|groups|None|None|b",
            "authentication.k8s.io|uids|None|None|u1",
            "authentication.k8s.io|userextras|Some(\"example.com/scope\")|None|x",
            "authentication.k8s.io|userextras|Some(\"A\")|None|y",
        ]
    );
    let mut written = HeaderMap::new();
    found.write(&mut written).unwrap();
    assert_eq!(Impersonation::from_headers(&written).unwrap().unwrap(), found);
    assert_eq!(
        Impersonation::user("system:serviceaccount:ns").attributes()[0].resource,
        "users"
    );
    let user = ("impersonate-user", "a");
    for bad in [
        vec![("impersonate-group", "a")],
        vec![("impersonate-user", "")],
        vec![("impersonate-user", "a"), ("impersonate-user", "b")],
        vec![("impersonate-user", "a"), ("impersonate-extra-", "b")],
        vec![("impersonate-user", "a"), ("impersonate-unknown", "b")],
        vec![("impersonate-uid", "a")],
        // Only routers say for which owner of a namespace a write is, however it is spelled.
        vec![user, ("impersonate-extra-ctrlmesh.kusionstack.io%2fepoch", "4")],
        vec![user, ("impersonate-extra-ctrlmesh.kusionstack.io%2fshard", "x/y")],
        vec![user, ("impersonate-extra-%43trlmesh.kusionstack.io%2fepoch", "4")],
        vec![("impersonate-user", "a"), ("impersonate-group", "")],
    ] {
        assert!(matches!(read(&bad), Err(Fault::BadRequest(_))), "{bad:?}");
    }
}

proptest! {
    #[test]
    fn never_panics_and_never_leaves_the_path(path in "(/[a-zA-Z0-9.%~:*-]{0,6}){0,9}", query in "[a-z=&%;+0-9]{0,20}") {
        let uri = format!("{}?{query}", if path.is_empty() { "/" } else { &path });
        if let Ok(uri) = uri.parse::<Uri>() && let Ok(request) = classify(&Method::GET, &uri, &HeaderMap::new()) {
            prop_assert!(request.path.starts_with('/'));
            prop_assert!(uri.path().ends_with(&request.path) || request.path == "/");
            prop_assert_eq!(request.query.raw(), uri.query());
        }
    }

    #[test]
    fn any_bytes_that_are_a_uri(text in "\\PC{0,60}", verb in "[A-Z]{1,9}") {
        if let (Ok(uri), Ok(method)) = (text.parse::<Uri>(), Method::try_from(verb.as_str())) {
            let _ = classify(&method, &uri, &HeaderMap::new());
            let _ = check_authority(&method, &uri, &HeaderMap::new(), Version::HTTP_11);
        }
    }
}

#[test]
fn so_many_groups_and_extras_are_impersonated_and_no_more() {
    let read = |groups: usize, extras: usize| {
        let mut pairs = vec![("impersonate-user", "ada")];
        pairs.extend(std::iter::repeat_n(("impersonate-group", "g"), groups));
        pairs.extend(std::iter::repeat_n(("impersonate-extra-scope", "x"), extras));
        Impersonation::from_headers(&headers(&pairs))
    };
    assert!(read(32, 0).is_ok() && read(30, 2).is_ok());
    assert!(matches!(read(33, 0), Err(Fault::BadRequest(_))));
    assert!(matches!(read(31, 2), Err(Fault::BadRequest(_))));
}

#[test]
fn a_lease_is_one_lease_and_nothing_with_the_words_in_its_path() {
    const ALL: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
    const ONE: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/leader";
    let is_lease = |method: Method, path: &str, pairs: &[(&str, &str)]| {
        let path = path.parse().unwrap();
        classify(&method, &path, &headers(pairs)).unwrap().is_lease()
    };
    for (method, path) in [
        (Method::GET, ONE),
        (Method::PUT, ONE),
        (Method::PATCH, ONE),
        (Method::DELETE, ONE),
        (Method::POST, ALL),
        (
            Method::GET,
            "/clusters/east/apis/coordination.k8s.io/v1beta1/namespaces/ns/leases/leader",
        ),
    ] {
        assert!(is_lease(method.clone(), path, &[]), "{method} {path}");
    }
    for (method, path) in [
        (Method::GET, ALL),
        (
            Method::GET,
            &*format!("{ALL}?watch=1&fieldSelector=metadata.name=leader"),
        ),
        (
            Method::GET,
            "/apis/coordination.k8s.io/v1/watch/namespaces/ns/leases/leader",
        ),
        (
            Method::GET,
            "/apis/coordination.k8s.io/v1/proxy/namespaces/ns/leases/leader",
        ),
        (Method::DELETE, ALL),
        (Method::GET, "/apis/coordination.k8s.io/v1"),
        (Method::GET, "/apis/coordination.k8s.io/v1/namespaces/ns/other/leader"),
        (Method::PUT, &*format!("{ONE}/proxy")),
        (Method::PUT, &*format!("/api/v1/namespaces/ns/pods/p/proxy{ONE}")),
        (Method::PUT, "/api/v1/namespaces/ns/configmaps/leases"),
    ] {
        assert!(!is_lease(method.clone(), path, &[]), "{method} {path}");
    }
    let switches = [("connection", "upgrade"), ("upgrade", "websocket")];
    assert!(!is_lease(Method::GET, ONE, &switches));
}
