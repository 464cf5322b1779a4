//! Requests of all sorts, served and refused; returns every answer as a place to look into.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::Method;
use portolan_tests::door::{Answer, Door};
use portolan_tests::world::PodSpec;
use serde_json::json;

use crate::secrets::{Secrets, of_text, planted};
use crate::{Ground, SEEN};

const WEST: &str = "/api/v1/namespaces/team-b/configmaps";

pub(crate) type Places = Vec<(String, String)>;

struct Answers(Places);

impl Answers {
    fn keep(&mut self, what: &str, answer: &anyhow::Result<Answer>) {
        let text = match answer {
            Ok(answer) => {
                let headers = format!("{:?}", answer.headers);
                format!(
                    "{}\n{headers}\n{}",
                    answer.status,
                    String::from_utf8_lossy(&answer.body)
                )
            }
            Err(error) => format!("{error:#}"),
        };
        self.0.push((format!("answer to {what}"), text));
    }

    fn last(&self) -> &str {
        &self.0.last().unwrap().1
    }
}

pub(crate) async fn all_sorts(ground: &Ground, secrets: &mut Secrets) -> Places {
    let mut answers = Answers(Vec::new());
    served(ground, &mut answers).await;
    bad_tokens(ground, secrets, &mut answers).await;
    odd_headers(ground, secrets, &mut answers).await;
    bodies(ground, secrets, &mut answers).await;
    answers.0
}

/// With the real thing, so that it has been everywhere.
async fn served(ground: &Ground, answers: &mut Answers) {
    let merged = ground.world.merged_door("alpha").await.unwrap();
    let person = ground.world.explicit_door("west").await.unwrap();
    for (what, door, path, code) in [
        ("a list", &merged, WEST, "200"),
        (
            "a namespace that is nowhere",
            &merged,
            &*format!("/api/v1/namespaces/{SEEN}/configmaps/{SEEN}"),
            "404",
        ),
        (
            "what is not there",
            &merged,
            "/api/v1/namespaces/team-a/configmaps/none",
            "404",
        ),
        ("somebody's nodes", &person, "/api/v1/nodes", "200"),
        ("no such member", &person.with_prefix("/clusters/nowhere"), "/api", "40"),
        ("path tricks", &person, "/api/../x", "400"),
    ] {
        answers.keep(what, &door.get(path, &[]).await);
        assert!(answers.last().starts_with(code), "{what}: {}", answers.last());
    }
}

/// Tokens of every kind that is nobody.
async fn bad_tokens(ground: &Ground, secrets: &mut Secrets, answers: &mut Answers) {
    let garbage = planted(secrets, "garbage token");
    let encode = |text: String| URL_SAFE_NO_PAD.encode(text);
    let kid = planted(secrets, "kid of a token");
    let claim = planted(secrets, "claim of a token");
    let claims = encode(format!(r#"{{"sub":"{claim}","exp":4000000000}}"#));
    secrets.insert("planted: encoded claims".to_owned(), claims[4..40].to_owned());
    let forged = format!(
        "{}.{claims}.c2lnbmF0dXJl",
        encode(format!(r#"{{"alg":"RS256","kid":"{kid}"}}"#))
    );
    let east = ground.world.cluster("east");
    let for_api = east
        .issue_token("operators", "portolan-dev-alpha", &[], None)
        .await
        .unwrap();
    let unbound = east
        .issue_token("operators", "portolan-dev-alpha", &["portolan"], None)
        .await
        .unwrap();
    let pod = PodSpec {
        namespace: "operators",
        name: "stranger",
        service_account: "stranger",
        labels: json!({"app": "none"}),
    };
    let uid = ground.world.pod("east", pod.clone()).await.unwrap();
    let stranger = ground.world.token("east", &pod, &uid).await.unwrap();
    for (what, token) in [
        ("garbage", garbage),
        ("a forged token", forged),
        ("another audience", for_api),
        ("an unbound token", unbound),
        ("a Pod of no shard", stranger),
    ] {
        of_text(secrets, what, &token);
        let door = ground.world.token_door(Some(&token)).await.unwrap();
        answers.keep(what, &door.get(WEST, &[]).await);
        assert!(answers.last().starts_with("40"), "{what}: {}", answers.last());
        let url = door.with_prefix("/clusters/east");
        answers.keep(what, &url.get("/api", &[]).await);
    }
}

/// Where clients put credentials that are no bearer tokens.
async fn odd_headers(ground: &Ground, secrets: &mut Secrets, answers: &mut Answers) {
    let nobody = ground.world.token_door(None).await.unwrap();
    let merged = ground.world.merged_door("alpha").await.unwrap();
    let basic = planted(secrets, "basic password");
    let basic_value = format!("Basic {}", STANDARD.encode(format!("ada:{basic}")));
    secrets.insert("planted: encoded basic".to_owned(), basic_value[14..].to_owned());
    let protocol = planted(secrets, "bearer of a WebSocket");
    let encoded = URL_SAFE_NO_PAD.encode(&protocol);
    secrets.insert(
        "planted: encoded bearer of a WebSocket".to_owned(),
        encoded[4..40].to_owned(),
    );
    let protocol = format!("base64url.bearer.authorization.k8s.io.{encoded}, v4.channel.k8s.io");
    let cookie = planted(secrets, "cookie");
    let proxy = planted(secrets, "proxy authorization");
    let query = format!("{WEST}?access_token={}", planted(secrets, "token in a query"));
    for (what, door, path, headers) in [
        (
            "basic authentication",
            &nobody,
            WEST,
            vec![("authorization", &*basic_value)],
        ),
        (
            "a WebSocket's bearer",
            &nobody,
            WEST,
            vec![("sec-websocket-protocol", &*protocol)],
        ),
        ("a cookie", &merged, WEST, vec![("cookie", &*cookie)]),
        (
            "proxy authorization",
            &merged,
            WEST,
            vec![("proxy-authorization", &*proxy)],
        ),
        ("a token in the query", &merged, &*query, vec![]),
        ("two tokens", &merged, WEST, vec![("authorization", "Bearer second")]),
    ] {
        answers.keep(what, &door.get(path, &headers).await);
    }
}

/// Bodies of Secrets, and bodies that the router reads and cannot.
async fn bodies(ground: &Ground, secrets: &mut Secrets, answers: &mut Answers) {
    let merged = ground.world.merged_door("alpha").await.unwrap();
    let password = planted(secrets, "data of a Secret");
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"password": password},
    });
    // The answers to those who write it do contain it: they are the member's own.
    let write = merged.post("/api/v1/namespaces/team-b/secrets", &secret).await.unwrap();
    assert_eq!(write.status, 201, "{}", write.message());
    answers.keep(
        "a foreign Secret",
        &merged.post("/api/v1/namespaces/nobodys/secrets", &secret).await,
    );
    for (what, path, body) in [
        (
            "a broken lease",
            "/apis/coordination.k8s.io/v1/namespaces/operators/leases",
            "{\"metadata\": ",
        ),
        (
            "a broken review",
            "/apis/authentication.k8s.io/v1/tokenreviews",
            "{\"spec\": {\"token\": ",
        ),
    ] {
        let body = format!("{body}{}", planted(secrets, what));
        let headers = [("content-type", "application/json")];
        let door: &Door = &merged;
        answers.keep(what, &door.call(Method::POST, path, &headers, body.as_bytes()).await);
        let echo = answers.0.pop().unwrap();
        // An API server repeats what it cannot parse to whoever sent it; the router must not.
        if !echo.1.contains("audit-id") {
            answers.0.push(echo);
        }
    }
}
