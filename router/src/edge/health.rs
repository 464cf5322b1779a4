//! `/livez`, `/healthz` and `/readyz` of the merged view: the router's own checks, in the words of an API server, to anyone.
//!
//! The router is alive as long as it answers; it is ready when all its named parts are. Callers of `?verbose`, of
//! `?exclude=NAME` and of one check (`/readyz/NAME`) are answered as an API server answers them. Caller: `call`.

use std::fmt::Write as _;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Response, StatusCode};
use portolan_runtime::Check;

use crate::decision::plan::LocalAnswer;
use crate::value::classify::{ApiRequest, View};
use crate::value::fault::Fault;

/// Passes wherever it is asked.
const PING: &str = "ping";

/// 405 for what load balancers ask that know no more of a server than its port. Needs no identity, as health does.
pub(super) fn served(asked: &ApiRequest) -> Result<(), Fault> {
    if asked.method != Method::OPTIONS || asked.view != View::Merged || asked.path != "/" {
        return Ok(());
    }
    let message = "OPTIONS is not served: GET /readyz tells whether this router is ready".to_owned();
    Err(Fault::MethodNotAllowed(message))
}

/// As an API server answers what is no object.
pub(super) fn text(status: StatusCode, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

/// The answer. `parts`: of the router.
pub(super) fn answer(kind: LocalAnswer, asked: &ApiRequest, parts: Vec<Check>) -> (StatusCode, String) {
    let mut checks = vec![Check {
        name: PING.to_owned(),
        waits_for: None,
        required: true,
    }];
    if kind == LocalAnswer::Ready {
        checks.extend(parts);
    }
    let path = asked.path.trim_matches('/');
    let Some((root, name)) = path.split_once('/') else {
        return all(path, asked, &checks);
    };
    let Some(check) = checks.iter().find(|check| check.name == name) else {
        return (StatusCode::NOT_FOUND, format!("{root} has no check {name:?}\n"));
    };
    match &check.waits_for {
        None => (StatusCode::OK, "ok".to_owned()),
        Some(why) => {
            let text = format!("internal server error: waiting for {why}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, text)
        }
    }
}

fn all(root: &str, asked: &ApiRequest, checks: &[Check]) -> (StatusCode, String) {
    let exclude = asked
        .query
        .pairs()
        .filter(|(key, name)| key == "exclude" && !name.is_empty());
    let exclude: Vec<_> = exclude.map(|(_, name)| name).collect();
    let (mut text, mut failed) = (String::new(), false);
    let mut line = |said: std::fmt::Arguments<'_>| {
        text.write_fmt(said).expect("writing to a String cannot fail");
    };
    for Check {
        name,
        waits_for,
        required,
    } in checks
    {
        match waits_for {
            _ if exclude.iter().any(|one| one == name) => line(format_args!("[+]{name} excluded: ok\n")),
            None => line(format_args!("[+]{name} ok\n")),
            Some(why) if !required => line(format_args!("[!]{name} ready, waiting for {why}\n")),
            Some(why) => {
                failed = true;
                line(format_args!("[-]{name} failed: waiting for {why}\n"));
            }
        }
    }
    let unknown = exclude
        .iter()
        .filter(|one| checks.iter().all(|check| check.name.as_str() != one.as_ref()));
    let unknown: Vec<_> = unknown.map(|name| format!("{name:?}")).collect();
    if !unknown.is_empty() {
        let unknown = unknown.join(", ");
        line(format_args!(
            "warn: some health checks cannot be excluded: no matches for {unknown}\n"
        ));
    }
    if failed {
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("{text}{root} check failed\n"),
        )
    } else if asked.query.first("verbose").is_some() {
        (StatusCode::OK, format!("{text}{root} check passed\n"))
    } else {
        (StatusCode::OK, "ok".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;
    use crate::decision::plan;
    use crate::value::classify::classify;

    #[test]
    fn health_is_told_check_by_check_as_an_api_server_does() {
        let parts = |waits: Option<&str>| {
            let check = |name: &str, waits: Option<&str>| Check {
                name: name.to_owned(),
                waits_for: waits.map(str::to_owned),
                required: waits != Some("a disk"),
            };
            vec![check("identity", None), check("snapshot", waits)]
        };
        let ask = |path: &str, waits| {
            let asked = classify(&Method::GET, &path.parse().unwrap(), &HeaderMap::new()).unwrap();
            let (code, text) = answer(plan::local(&asked).unwrap(), &asked, parts(waits));
            (code.as_u16(), text)
        };
        let waits = Some("the hub");
        for (path, waits, code, text) in [
            ("/livez", waits, 200, "ok"),
            ("/healthz/", waits, 200, "ok"),
            ("/livez?verbose", waits, 200, "[+]ping ok\nlivez check passed\n"),
            ("/readyz", None, 200, "ok"),
            (
                "/readyz?verbose=1",
                None,
                200,
                "[+]ping ok\n[+]identity ok\n[+]snapshot ok\nreadyz check passed\n",
            ),
            (
                "/readyz",
                waits,
                500,
                "[+]ping ok\n[+]identity ok\n[-]snapshot failed: waiting for the hub\nreadyz check failed\n",
            ),
            ("/readyz", Some("a disk"), 200, "ok"),
            (
                "/readyz?verbose",
                Some("a disk"),
                200,
                "[+]ping ok\n[+]identity ok\n[!]snapshot ready, waiting for a disk\nreadyz check passed\n",
            ),
            ("/readyz?exclude=snapshot", waits, 200, "ok"),
            (
                "/readyz?verbose&exclude=snapshot&exclude=etcd",
                waits,
                200,
                "[+]ping ok\n[+]identity ok\n[+]snapshot excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"etcd\"\nreadyz check passed\n",
            ),
            ("/readyz/identity", waits, 200, "ok"),
            (
                "/readyz/snapshot",
                waits,
                500,
                "internal server error: waiting for the hub\n",
            ),
            ("/livez/ping", waits, 200, "ok"),
            ("/livez/snapshot", waits, 404, "livez has no check \"snapshot\"\n"),
        ] {
            assert_eq!(ask(path, waits), (code, text.to_owned()), "{path}");
        }
    }
}
