//! Paths and authorities.

use http::Method;
use portolan_testbed::eventually;
use portolan_tests::door::{Door, request};

use crate::raw::{send, send_one};
use crate::{heard, world};

/// Each would reach west, or another path of east, if anything on the way cleaned it up.
const TRICKS: [&str; 22] = [
    "/clusters/east/../west/version",
    "/clusters/east/./version",
    "/clusters/east/api/v1/../../../west/version",
    "/clusters/../version",
    "/clusters/./east/version",
    "/clusters/..",
    "/clusters/east/%2e%2e/west/version",
    "/clusters/east/%2E%2e/west/version",
    "/clusters/east/.%2e/west/version",
    "/clusters/east/%2e%2e%2fwest/version",
    "/clusters/east%2f..%2fwest/version",
    "/clusters/east%2fversion",
    "/clusters/%2e%2e/version",
    "/clusters/east/%252e%252e/west/version",
    "/clusters/east//version",
    "/clusters//east/version",
    "//clusters/east/version",
    "/clusters/east/api/v1//namespaces",
    "/clusters/east/api/v1/namespaces/a%00b",
    "/clusters/east/api/v1/namespaces/a%0d%0aHost:%20west",
    "/clusters/east/api/v1/namespaces/a%5c..%5cb",
    "/clusters/east/api/v1/namespaces/%zz",
];

#[tokio::test]
async fn tricks_in_paths_are_refused() {
    let world = world().await;
    let person = world.explicit_door("east").await.unwrap().with_prefix("");
    let caller = world.merged_door("alpha").await.unwrap();
    let line = person.open().await.unwrap();
    for path in TRICKS {
        let marked = format!("{path}?marker=tricked");
        let head = format!(
            "GET {marked} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            person.address
        );
        let answer = send_one(&person, head.as_bytes()).await;
        assert!(answer.status == 400 && answer.is_status(), "{path}: {answer:?}");
        for door in [&person, &caller] {
            let answer = door.get(&marked, &[]).await.unwrap();
            answer
                .expect_status(400, &[])
                .unwrap_or_else(|error| panic!("{path}: {error}"));
        }
    }
    for path in [
        "/api/v1/namespaces/paths/../other/pods",
        "/api/v1/namespaces/paths%2fpods",
        "/api//v1",
    ] {
        let answer = caller.get(&format!("{path}?marker=tricked"), &[]).await.unwrap();
        answer.expect_status(400, &[]).unwrap();
    }
    // What looks odd and is not.
    for path in [
        "/clusters/east/version/",
        "/clusters/%65ast/version",
        "/clusters/east/api/v1/namespaces/p%61ths",
    ] {
        let path = format!("{path}?marker=honest");
        let answer = line.ask(request(Method::GET, &path, &[], &[]).unwrap()).await.unwrap();
        assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
    }
    eventually("east writes down what it hears", async || {
        heard(world, "east", "marker=honest")
    })
    .await;
    for member in ["east", "west"] {
        assert!(!heard(world, member, "tricked"), "{member}");
    }
}

/// Controls, spaces and raw backslashes, which no URI has: the parser or the router refuses them.
#[tokio::test]
async fn bytes_that_no_uri_has_are_refused() {
    let world = world().await;
    let door = world.explicit_door("east").await.unwrap();
    for path in [
        "/clusters/east/\0version",
        "/clusters/east/a b",
        "/clusters/east/\\..\\west",
        "clusters/east/version",
        "",
    ] {
        let head = format!(
            "GET {path}?marker=bytes HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            door.address
        );
        let answers = send(&door, head.as_bytes()).await;
        assert!(
            answers.iter().all(|answer| answer.status == 400),
            "{path:?}: {answers:?}"
        );
    }
    assert!(!heard(world, "east", "bytes") && !heard(world, "west", "bytes"));
}

async fn refused_head(door: &Door, head: &str) {
    let answer = send_one(door, head.as_bytes()).await;
    assert!(answer.status == 400 && answer.is_status(), "{head}: {answer:?}");
}

#[tokio::test]
async fn authorities_are_one_and_ours() {
    let world = world().await;
    let door = world.explicit_door("east").await.unwrap();
    let (address, path) = (&door.address, "/clusters/east/version?marker=authority");
    let end = "Connection: close\r\n\r\n";
    for head in [
        format!("GET https://evil.example{path} HTTP/1.1\r\nHost: evil.example\r\n{end}"),
        format!("GET https://evil.example{path} HTTP/1.1\r\nHost: {address}\r\n{end}"),
        format!("GET http://{address}{path} HTTP/1.1\r\nHost: {address}\r\n{end}"),
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nHost: {address}\r\n{end}"),
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nHost: evil.example\r\n{end}"),
        format!("GET {path} HTTP/1.1\r\n{end}"),
        format!("GET {path} HTTP/1.1\r\nHost: \r\n{end}"),
        format!("GET {path} HTTP/1.1\r\nHost: user@{address}\r\n{end}"),
        format!("GET {path} HTTP/1.1\r\nHost: a b\r\n{end}"),
        format!("GET {path} HTTP/1.1\r\nHost: {address}/clusters/west\r\n{end}"),
        format!("CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n{end}"),
        format!("CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n{end}"),
        format!("OPTIONS * HTTP/1.1\r\nHost: {address}\r\n{end}"),
    ] {
        refused_head(&door, &head).await;
    }
    let door = door.with_prefix("");
    let contradicting = door.get(path, &[("host", "evil.example")]).await;
    if let Ok(answer) = contradicting {
        answer.expect_status(400, &[]).unwrap();
    }
    assert!(!heard(world, "east", "authority") && !heard(world, "west", "authority"));
    // And the same line without tricks is served.
    let honest = format!("GET {path}-honest HTTP/1.1\r\nHost: {address}\r\n{end}");
    assert_eq!(send_one(&door, honest.as_bytes()).await.status, 200);
    eventually("east heard that", async || heard(world, "east", "authority-honest")).await;
}
