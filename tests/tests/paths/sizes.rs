//! Heads and bodies that are too large.

use http::Method;
use portolan_tests::door::request;

use crate::raw::send;
use crate::{heard, world};

const CONFIGMAPS: &str = "/api/v1/namespaces/paths/configmaps";
const MIB: usize = 1 << 20;

#[tokio::test]
async fn heads_have_a_bound() {
    let world = world().await;
    let door = world.merged_door("alpha").await.unwrap().with_prefix("/clusters/east");
    let long = "x".repeat(1_200_000);
    let token = door.token.as_ref().unwrap().trim();
    let ask = |headers: String| {
        format!(
            "GET /clusters/east/version?oversize HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n{headers}\
             Connection: close\r\n\r\n",
            door.address
        )
    };
    // Up to twice the bound by a Status.
    let refused = send(&door, ask(format!("X-Long: {long}\r\n")).as_bytes()).await;
    assert!(
        refused.len() == 1 && refused[0].status == 431 && refused[0].is_status(),
        "{refused:?}"
    );
    let refused = send(&door, ask(format!("X-Long: {long}{long}\r\n")).as_bytes()).await;
    assert!(refused.iter().all(|answer| answer.status == 431), "{refused:?}");
    let h2 = door.get("/version?oversize", &[("x-long", &long)]).await.unwrap();
    h2.expect_status(431, &["larger than 1048576 bytes"]).unwrap();
    assert!(!heard(world, "east", "oversize"));
}

/// What people send: selectors of many namespaces, tokens and groups by the dozen, a whole script as words.
#[tokio::test]
async fn heads_of_an_api_server_are_served() {
    let world = world().await;
    let door = world.merged_door("alpha").await.unwrap();
    let selector = |count: usize| {
        let names: Vec<_> = (0..count).map(|number| format!("namespace-{number}")).collect();
        format!("{CONFIGMAPS}?labelSelector=n%20in%20({})", names.join(","))
    };
    let long = "x".repeat(70_000);
    for (path, header) in [(selector(500), ""), (selector(3_000), ""), (selector(1), &long)] {
        let answer = door.get(&path, &[("x-long", header)]).await.unwrap();
        assert_eq!(
            answer.status,
            200,
            "{} + {}: {}",
            path.len(),
            header.len(),
            answer.message()
        );
    }
    let words = "command=word&".repeat(1_200);
    let path = format!("/api/v1/namespaces/paths/pods/none/exec?{words}container=x");
    let answer = door.call(Method::POST, &path, &[], b"").await.unwrap();
    assert_eq!(answer.status, 404, "the member's own answer: {}", answer.message());
    let token = door.token.as_ref().unwrap().trim();
    let many = "X-Many: one\r\n".repeat(1_000);
    let head = format!(
        "GET {CONFIGMAPS} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n{many}Connection: close\r\n\r\n",
        door.address
    );
    let answers = send(&door, head.as_bytes()).await;
    assert!(answers.len() == 1 && answers[0].status == 200, "{answers:?}");
}

/// haproxy's and others' defaults.
#[tokio::test]
async fn load_balancers_check_without_a_host_and_without_an_identity() {
    let door = world().await.token_door(None).await.unwrap();
    for (head, status) in [
        ("GET /readyz HTTP/1.0\r\n\r\n", 200),
        ("OPTIONS / HTTP/1.0\r\n\r\n", 405),
    ] {
        let answers = send(&door, head.as_bytes()).await;
        assert!(answers.len() == 1 && answers[0].status == status, "{head}: {answers:?}");
    }
}

#[tokio::test]
async fn bodies_have_a_bound() {
    let world = world().await;
    let door = world.merged_door("alpha").await.unwrap().with_prefix("/clusters/east");
    let json = [("content-type", "application/json")];
    let large = vec![b' '; 9 * MIB];
    let path = format!("{CONFIGMAPS}?huge");
    if let Ok(answer) = door.ask(request(Method::POST, &path, &json, &large).unwrap()).await {
        answer.expect_status(413, &["larger than"]).unwrap();
    }
    let token = door.token.as_ref().unwrap().trim();
    let head = |framing: &str| {
        format!(
            "POST /clusters/east{path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\n{framing}\r\nConnection: close\r\n\r\n",
            door.address
        )
    };
    let announced = send(&door, head(&format!("Content-Length: {}", 1_usize << 40)).as_bytes()).await;
    assert!(
        announced.len() == 1 && announced[0].status == 413 && announced[0].is_status(),
        "{announced:?}"
    );
    assert!(
        !heard(world, "east", "huge"),
        "a length that is told is refused before anything is sent"
    );

    let mut chunked = head("Transfer-Encoding: chunked").into_bytes();
    for _ in 0..9 {
        chunked.extend_from_slice(format!("{MIB:x}\r\n").as_bytes());
        chunked.resize(chunked.len() + MIB, b' ');
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    let answers = send(&door, &chunked).await;
    assert!(answers.iter().all(|answer| answer.status == 413), "{answers:?}");
    // Between the member's bound and the router's: the member's own refusal.
    let medium = vec![b' '; 4 * MIB];
    let direct = world.direct_door("east").await.unwrap();
    let wanted = direct.call(Method::POST, CONFIGMAPS, &json, &medium).await.unwrap();
    let got = door.call(Method::POST, CONFIGMAPS, &json, &medium).await.unwrap();
    assert_eq!((got.status, &got.body), (wanted.status, &wanted.body));
    assert_eq!(got.status, 413);
    // And the connections behind are good for the next.
    let object = br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"small-"}}"#;
    assert_eq!(
        door.call(Method::POST, CONFIGMAPS, &json, object).await.unwrap().status,
        201
    );
}
