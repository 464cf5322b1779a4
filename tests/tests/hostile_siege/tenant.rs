//! What a tenant with a good token can do: each attack goes on until it is told to stop, and says how often it struck.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Method, Request};
use portolan_tests::door::{Door, Line, request};
use tokio::task::JoinSet;

/// Longest wait for an answer that nobody wants.
const IMPATIENT: Duration = Duration::from_millis(500);
/// Streams that are opened at a time and never read.
const UNREAD: usize = 200;

pub(crate) type Attacks = JoinSet<(&'static str, usize)>;

pub(crate) fn attacks(door: &Door, stop: &Arc<AtomicBool>) -> Attacks {
    let mut all = JoinSet::new();
    let again = |all: &mut Attacks, what, request: fn() -> Request<Vec<u8>>| {
        all.spawn(repeat(what, door.clone(), stop.clone(), request));
    };
    again(&mut all, "escapes that are none", || {
        get("/api/v1/namespaces/s-bad/pods/x/proxy/%zz")
    });
    again(&mut all, "Pods that are none", || {
        get("/api/v1/namespaces/s-bad/pods/x:1/proxy/")
    });
    again(&mut all, "a thousand groups", groups);
    again(&mut all, "a name behind a tag", tagged);
    again(&mut all, "lists of a member that lies", || get("/api/v1/configmaps"));
    again(&mut all, "errors of a member that lies", || {
        get("/api/v1/namespaces/s-mad/secrets")
    });
    again(&mut all, "redirects of a member that lies", || {
        get("/api/v1/namespaces/s-mad/services")
    });
    again(&mut all, "large bodies of nothing", || {
        let body = vec![b' '; 2 << 20];
        request(
            Method::POST,
            "/api/v1/namespaces/s-bad/configmaps",
            &[("content-type", "application/json")],
            &body,
        )
        .unwrap()
    });
    all.spawn(unread(
        "watches that nobody reads",
        door.clone(),
        stop.clone(),
        "?watch=true",
    ));
    all.spawn(unread("lists that nobody reads", door.clone(), stop.clone(), ""));
    all.spawn(abandoned(door.clone(), stop.clone()));
    all
}

fn get(path: &str) -> Request<Vec<u8>> {
    request(Method::GET, path, &[], &[]).unwrap()
}

fn groups() -> Request<Vec<u8>> {
    let names: Vec<String> = (0..100).map(|number| format!("group-{number}")).collect();
    let mut headers = vec![("impersonate-user", "ada")];
    headers.extend(names.iter().map(|name| ("impersonate-group", &**name)));
    request(Method::GET, "/api/v1/namespaces/s-bad/pods", &headers, &[]).unwrap()
}

fn tagged() -> Request<Vec<u8>> {
    let body = b"apiVersion: v1\nkind: ConfigMap\n!!binary bWV0YWRhdGE=: {name: x}\n";
    let headers = [("content-type", "application/yaml")];
    request(Method::POST, "/api/v1/namespaces/s-bad/configmaps", &headers, body).unwrap()
}

/// The same on one connection after the other, eight at a time on each.
async fn repeat(
    what: &'static str,
    door: Door,
    stop: Arc<AtomicBool>,
    request: fn() -> Request<Vec<u8>>,
) -> (&'static str, usize) {
    let mut times = 0;
    while !stop.load(Ordering::Relaxed) {
        let Ok(line) = door.open().await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        for _ in 0..50 {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let asked = (0..8).map(|_| tokio::time::timeout(IMPATIENT, line.ask(request())));
            let answers = futures::future::join_all(asked).await;
            times += answers.len();
            if answers.iter().any(|answer| matches!(answer, Ok(Err(_)))) {
                break;
            }
        }
    }
    (what, times)
}

/// Opens answers and reads none of them. Of those that wait for the unread ones before them, few begin.
async fn unread(what: &'static str, door: Door, stop: Arc<AtomicBool>, query: &'static str) -> (&'static str, usize) {
    let (mut times, mut lines): (usize, Vec<Line>) = (0, Vec::new());
    let mut held = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if held.len() >= UNREAD {
            held.clear();
            lines.clear();
        }
        let Ok(line) = door.open().await else { continue };
        let path = format!("/api/v1/namespaces/s-bad/configmaps{query}");
        let asked = (0..20).map(|_| tokio::time::timeout(IMPATIENT, line.send(get(&path))));
        let answers = futures::future::join_all(asked).await;
        times += answers.len();
        held.extend(answers.into_iter().flatten().flatten());
        lines.push(line);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    (what, times)
}

/// Asks and goes away before the answer: what HTTP/2 calls a rapid reset, with a good token.
async fn abandoned(door: Door, stop: Arc<AtomicBool>) -> (&'static str, usize) {
    let mut times = 0;
    while !stop.load(Ordering::Relaxed) {
        let Ok(line) = door.open().await else { continue };
        for _ in 0..200 {
            let asked = line.send(get("/api/v1/namespaces/s-bad/pods"));
            drop(tokio::time::timeout(Duration::from_micros(300), asked).await);
            times += 1;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    ("requests that are abandoned", times)
}
