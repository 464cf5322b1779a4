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
    let long = "x".repeat(100_000);
    let many = "X-Many: oversize\r\n".repeat(200);
    let token = door.token.as_ref().unwrap().trim();
    for (path, headers) in [
        ("/version?oversize".to_owned(), format!("X-Long: {long}\r\n")),
        ("/version?oversize".to_owned(), many),
        (format!("/version?oversize={long}"), String::new()),
    ] {
        let head = format!(
            "GET /clusters/east{path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n{headers}\
             Connection: close\r\n\r\n",
            door.address
        );
        let answers = send(&door, head.as_bytes()).await;
        let refused = answers.iter().all(|answer| [400, 414, 431].contains(&answer.status));
        assert!(refused, "{answers:?}");
    }
    let h2 = door.get("/version?oversize", &[("x-long", &long)]).await;
    assert!(
        h2.as_ref()
            .map_or(true, |answer| [400, 414, 431].contains(&answer.status)),
        "{h2:?}"
    );
    assert!(!heard(world, "east", "oversize"));
    // Long, but what an operator with many namespaces in a selector sends.
    let selector = (0..500)
        .map(|number| format!("namespace-{number}"))
        .collect::<Vec<_>>()
        .join(",");
    let path = format!("{CONFIGMAPS}?labelSelector=n%20in%20({selector})");
    assert_eq!(door.get(&path, &[]).await.unwrap().status, 200);
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
