//! Bearer tokens: only one that a joined member signed, for this audience, bound to a living Pod of a shard, is anybody.

use portolan_testbed::eventually;
use portolan_tests::world::{AUDIENCE, PodSpec};
use serde_json::{Value, json};

use crate::signer::{Signer, claims_of, now};
use crate::{WHERE, ask_with, pod_with_token, world};

/// The shard's own token, and the claims in it.
async fn good() -> (String, Value) {
    let token = world().await.fleet.merged_token("alpha").unwrap().trim().to_owned();
    let claims = claims_of(&token);
    assert_eq!(claims["aud"], json!([AUDIENCE]));
    (token, claims)
}

fn with(claims: &Value, change: impl FnOnce(&mut Value)) -> Value {
    let mut claims = claims.clone();
    change(&mut claims);
    claims
}

async fn nobody(what: &str, token: &str, words: &[&str]) {
    let answer = ask_with(token, WHERE).await;
    let outcome = answer.expect_status(401, words);
    outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(answer.header("retry-after").is_empty(), "{what}");
    let text = String::from_utf8_lossy(&answer.body);
    let secret = token.rsplit('.').next().unwrap_or(token);
    assert!(
        secret.len() < 16 || !text.contains(secret),
        "{what} is told back: {text}"
    );
}

#[tokio::test]
async fn no_token_and_garbage_are_nobody() {
    let world = world().await;
    let door = world.token_door(None).await.unwrap();
    let answer = door.get(WHERE, &[]).await.unwrap();
    answer.expect_status(401, &["no identity", AUDIENCE]).unwrap();
    for garbage in ["x", "a.b.c", "..", &"y".repeat(20_000), "eyJhbGciOiJub25lIn0.e30."] {
        nobody("garbage", garbage, &[]).await;
    }
    for header in ["Basic YTpi", "Bearer", "Bearer ", "Token x"] {
        let answer = door.get(WHERE, &[("authorization", header)]).await.unwrap();
        answer.expect_status(401, &[]).unwrap();
    }
}

#[tokio::test]
async fn hand_made_tokens_are_nobody() {
    let east = Signer::of_cluster(world().await.cluster("east").dir());
    let (token, claims) = good().await;
    assert_eq!(ask_with(&token, WHERE).await.status, 200);
    // What proves that the refusals below are about what they say: the same claims, signed alike, are good.
    assert_eq!(ask_with(&east.sign(&claims), WHERE).await.status, 200);

    let expired = with(&claims, |claims| {
        claims["exp"] = json!(now() - 60);
        claims["nbf"] = json!(now() - 3600);
        claims["iat"] = json!(now() - 3600);
    });
    nobody("expired", &east.sign(&expired), &["the token expired"]).await;
    let early = with(&claims, |claims| claims["nbf"] = json!(now() + 3000));
    nobody("not yet valid", &east.sign(&early), &["not valid"]).await;
    let audience = with(&claims, |claims| claims["aud"] = json!(["somebody-else"]));
    nobody("another audience", &east.sign(&audience), &["audience", AUDIENCE]).await;
    let mixed = with(&claims, |claims| {
        claims["kubernetes.io"]["pod"]["uid"] = json!("00000000-0000-0000");
    });
    nobody("another uid", &east.sign(&mixed), &["member east"]).await;

    let stranger = Signer::new();
    nobody("a stranger's key", &stranger.sign(&claims), &["no member cluster"]).await;
    nobody(
        "a stranger's key by east's name",
        &stranger.sign_as(&east.kid, &claims),
        &[],
    )
    .await;
    nobody("no signature", &east.unsigned(&claims), &[]).await;
    nobody("the public key as secret", &east.confused(&claims), &[]).await;
    let (head, _) = token.rsplit_once('.').unwrap();
    let (_, foreign) = stranger
        .sign(&claims)
        .rsplit_once('.')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    nobody("another token's signature", &format!("{head}.{foreign}"), &[]).await;
    nobody("a cut signature", &token[..token.len() - 8], &[]).await;
}

#[tokio::test]
async fn real_tokens_for_others_are_nobody() {
    let world = world().await;
    let (_, claims) = good().await;
    let pod = &claims["kubernetes.io"]["pod"];
    let bound = Some((pod["name"].as_str().unwrap(), pod["uid"].as_str().unwrap()));
    let east = world.cluster("east");
    let issue = |audiences: &'static [&'static str], bound| {
        east.issue_token("operators", "portolan-dev-alpha", audiences, bound)
    };
    let other = issue(&["https://other.example"], bound).await.unwrap();
    nobody("another audience", &other, &["audience"]).await;
    let api = issue(&[], bound).await.unwrap();
    nobody("the API server's audience", &api, &["audience"]).await;
    let unbound = issue(&[AUDIENCE], None).await.unwrap();
    nobody("bound to no Pod", &unbound, &["not bound to a Pod"]).await;
    let several = issue(&["other", AUDIENCE], bound).await.unwrap();
    assert_eq!(ask_with(&several, WHERE).await.status, 200);
}

#[tokio::test]
async fn a_foreign_clusters_token_is_nobody() {
    let world = world().await;
    let pod = PodSpec {
        namespace: "default",
        name: "foreign",
        service_account: "foreign",
        labels: json!({"shard": "alpha"}),
    };
    // The hub is no member.
    let uid = world.pod("hub", pod.clone()).await.unwrap();
    let token = world.token("hub", &pod, &uid).await.unwrap();
    nobody(
        "a cluster that has not joined",
        &token,
        &["no member cluster published the key"],
    )
    .await;
}

#[tokio::test]
async fn a_token_dies_with_its_pod() {
    let world = world().await;
    let token = pod_with_token("east", "mortal", "portolan-dev-alpha", json!({"shard": "alpha"})).await;
    eventually("it is a caller", || async {
        ask_with(&token, WHERE).await.status == 200
    })
    .await;
    let delete = [
        "delete",
        "pod",
        "mortal",
        "-n",
        "operators",
        "--grace-period=0",
        "--force",
    ];
    world.direct("east").ok(&delete).await.unwrap();
    // The API server itself goes by a token for ten seconds, and the router for as long by the answer; but the hub
    // tells the router sooner that the Pod is gone.
    let gone = eventually("it is nobody", || async {
        let answer = ask_with(&token, WHERE).await;
        (answer.status != 200).then_some(answer)
    })
    .await;
    assert!(gone.status == 401 || gone.status == 403, "{:?}", gone.body);
    // A successor of the same name is somebody else, and the old token is not its.
    let heir = pod_with_token("east", "mortal", "portolan-dev-alpha", json!({"shard": "alpha"})).await;
    eventually("the successor is a caller", || async {
        ask_with(&heir, WHERE).await.status == 200
    })
    .await;
    let old = ask_with(&token, WHERE).await;
    assert!(old.status == 401 || old.status == 403, "{} {:?}", old.status, old.body);
}
