//! Heads of answers by which a member would speak for the router: a client takes its token to wherever a redirect points,
//! and keeps what a server says of the name that it connected to.

use http::Response;

use crate::front::Told;
use crate::world;

const ELSEWHERE: &str = "https://elsewhere.invalid/api/v1/namespaces/h-mad/configmaps/moved";

#[tokio::test]
async fn a_redirect_away_from_the_member_is_a_bad_gateway() {
    let (world, front) = world().await;
    front.lies_about("/moved-away", |_| {
        let head = Response::builder().status(307).header("location", ELSEWHERE);
        Some(Told::Head(head))
    });
    front.lies_about("/moved-within", |_| {
        let head = Response::builder()
            .status(307)
            .header("location", "/api/v1/namespaces/h-mad/configmaps/there?x=1");
        Some(Told::Head(head))
    });
    let merged = world.listed_door("alpha", "/api/v1/configmaps").await.unwrap();
    let explicit = world.explicit_door("mad").await.unwrap();
    for (door, prefix) in [(&merged, ""), (&explicit, "/clusters/mad")] {
        let away = door
            .get("/api/v1/namespaces/h-mad/configmaps/moved-away", &[])
            .await
            .unwrap();
        away.expect_status(502, &["mad", "307", "elsewhere"]).unwrap();
        assert_eq!(away.header("location"), "");
        let within = door
            .get("/api/v1/namespaces/h-mad/configmaps/moved-within", &[])
            .await
            .unwrap();
        let there = format!("{prefix}/api/v1/namespaces/h-mad/configmaps/there?x=1");
        assert_eq!((within.status, within.header("location")), (307, &*there));
    }
}

#[tokio::test]
async fn what_a_member_says_for_the_routers_name_does_not_pass() {
    const SAID: &[(&str, &str)] = &[
        ("set-cookie", "session=mine; Path=/"),
        ("www-authenticate", "Basic realm=\"give\""),
        ("alt-svc", "h2=\"elsewhere.invalid:443\""),
        ("strict-transport-security", "max-age=31536000"),
        ("x-told", "all the same"),
    ];
    let (world, front) = world().await;
    front.lies_about("/h-mad/secrets", |_| Some(Told::With(SAID)));
    let merged = world.listed_door("alpha", "/api/v1/configmaps").await.unwrap();
    let explicit = world.explicit_door("mad").await.unwrap();
    for door in [&merged, &explicit] {
        for path in ["secrets/none", "secrets", "secrets?watch=true&timeoutSeconds=1"] {
            let path = format!("/api/v1/namespaces/h-mad/{path}");
            let answer = door.get(&path, &[]).await.unwrap();
            let kept = SAID.iter().filter(|(name, _)| !answer.header(name).is_empty());
            let kept: Vec<_> = kept.map(|(name, _)| *name).filter(|name| *name != "x-told").collect();
            assert!(kept.is_empty(), "{path}: {} with {kept:?}", answer.status);
        }
        let answer = door.get("/api/v1/namespaces/h-mad/secrets/none", &[]).await.unwrap();
        assert_eq!(answer.header("x-told"), "all the same", "the front: {answer:?}");
    }
}

/// A 404 of a kind that the member's discovery says it serves is no absence: half of the objects is no answer.
#[tokio::test]
async fn a_404_for_a_kind_that_it_serves_is_never_half_a_list() {
    let (world, front) = world().await;
    let door = world.listed_door("alpha", "/api/v1/configmaps").await.unwrap();
    let path = "/apis/policy/v1/poddisruptionbudgets";
    assert_eq!(door.get(path, &[]).await.unwrap().status, 200);
    front.lies_about(path, |_| Some(Told::Head(Response::builder().status(404))));
    for query in ["", "?limit=5", "?resourceVersion=0"] {
        let answer = door.get(&format!("{path}{query}"), &[]).await.unwrap();
        answer.expect_status(429, &["mad", "404"]).unwrap();
    }
}
