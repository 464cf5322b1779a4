//! Members that are away, refuse, break off, or send no list.

use std::collections::HashMap;
use std::sync::Arc;

use super::*;
use crate::stage::fanout::partial::tests::{LONG_AGO, young};
use crate::stage::fanout::tests::born;
use crate::value::snapshot::{MemberIdentity, Snapshot};

#[tokio::test]
async fn a_list_waits_for_a_member_that_cannot_be_had() {
    for sick in [
        refusal(500, "etcd is away"),
        refusal(503, "x"),
        say(302, ""),
        Say {
            headers: vec![("content-type", "text/html")],
            ..say(200, "<html>")
        },
    ] {
        let world = two(|_, _| list(1, &["a"], ""), move |_, _| sick.clone()).await;
        match world.get("").await {
            Err(Fault::TooManyRequests {
                message,
                cluster,
                retry_after_seconds,
            }) => {
                assert!(message.contains("west") && retry_after_seconds > 0, "{message}");
                assert_eq!(cluster.as_deref(), Some("west"));
            }
            other => panic!("{:?}", other.map(|answer| answer.code)),
        }
    }
}

#[tokio::test]
async fn a_version_that_a_member_does_not_have_yet_is_its_own_to_say() {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "Timeout: Too large resource version: 9, current: 7",
        "reason": "Timeout", "details": {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}], "retryAfterSeconds": 1}, "code": 504});
    let world = two(|_, _| list(1, &["a"], ""), move |_, _| say(504, status.clone())).await;
    let answer = world.get("").await.unwrap();
    assert_eq!(
        (answer.code, answer.json()["details"]["causes"][0]["reason"].as_str()),
        (504, Some("ResourceVersionTooLarge"))
    );
}

#[tokio::test]
async fn a_first_list_may_begin_without_a_member_and_says_so() {
    let mut world = two(|_, _| refusal(500, "etcd is away"), |_, _| list(7, &["a"], "")).await;
    world.unavailable = Unavailable::PartialStart;
    world.caller = young(&world.fanouts.routing);
    for query in ["", "?resourceVersion=0", "?limit=5"] {
        let answer = world.get(query).await.unwrap();
        assert_eq!(answer.names(), ["a"], "{query}");
        let warning = answer.headers["warning"].to_str().unwrap();
        assert!(warning.contains("east") && warning.starts_with("299 "), "{warning}");
        assert_eq!(world.slot(&answer.version(), "east"), Slot::Sync);
        let again = world.get(&format!("?resourceVersion={}", answer.version())).await;
        assert!(matches!(again, Err(Fault::TooManyRequests { .. })), "not a first list");
    }
    assert!(matches!(
        world.get("?resourceVersion=17").await,
        Err(Fault::TooManyRequests { .. })
    ));
}

/// Clients that list anew without a version drop from their stores what is not in the answer.
#[tokio::test]
async fn what_a_caller_may_have_been_shown_is_not_taken_back() {
    let mut world = two(|_, _| refusal(500, "etcd is away"), |_, _| list(7, &["a"], "")).await;
    world.unavailable = Unavailable::PartialStart;
    let now = world.routing.upstreams.get("east").unwrap().last_answer();
    for (created, elsewhere, first) in [
        (Some(now + 6), Some(LONG_AGO), true),
        (Some(now + 5), Some(LONG_AGO), false),
        (None, Some(LONG_AGO), false),
        (Some(now + 6), Some(now + 1), false),
        (Some(now + 6), None, false),
    ] {
        world.caller = born(created);
        let mut carrier = world.fanouts.routing.last_answers.carry();
        let hub = async {
            let asked = carrier.questions.recv().await.unwrap();
            assert_eq!(asked.question, ["east"]);
            let known = elsewhere.map(|until| ("east".to_owned(), until));
            let _ = asked.answer.send(known.into_iter().collect::<HashMap<_, _>>());
            std::future::pending::<()>().await;
        };
        let answer = tokio::select! {
            answer = world.get("") => answer,
            () = hub => unreachable!("it goes on"),
        };
        assert_eq!(
            answer.is_ok(),
            first,
            "created {created:?}, another router's last answer {elsewhere:?}"
        );
    }
    world.caller = born(Some(now + 6));
    assert!(world.get("").await.is_err(), "the hub is away");
}

/// The time at which a Pod was made is its home's word.
#[tokio::test]
async fn a_caller_whose_homes_clock_is_not_known_to_agree_is_younger_than_nothing() {
    let mut world = two(|_, _| refusal(500, "etcd is away"), |_, _| list(7, &["a"], "")).await;
    world.unavailable = Unavailable::PartialStart;
    world.caller = young(&world.fanouts.routing);
    assert!(world.get("").await.is_ok());
    let routing = world.fanouts.routing.load();
    let mut snapshot = Snapshot::clone(&routing.snapshot);
    let homes = Arc::make_mut(&mut snapshot.identities);
    let home = homes.get("east").unwrap();
    let home = MemberIdentity {
        clock_agrees: false,
        ..MemberIdentity::clone(home)
    };
    homes.insert("east".into(), Arc::new(home));
    world.fanouts.routing.swap(snapshot);
    assert!(matches!(world.get("").await, Err(Fault::TooManyRequests { .. })));
}

#[tokio::test]
async fn what_no_member_may_see_is_refused_here() {
    let world = two(|_, _| list(1, &[], ""), |_, _| list(1, &[], "")).await;
    assert!(matches!(world.get("?continue=abc").await, Err(Fault::BadRequest(_))));
    assert!(matches!(
        world.get("?resourceVersion=7&resourceVersionMatch=Exact").await,
        Err(Fault::Expired(_))
    ));
    assert!(
        matches!(
            world.get("?resourceVersionMatch=Exact").await,
            Err(Fault::BadRequest(_))
        ),
        "the member did not refuse"
    );
    assert_eq!(world.asked(0).len(), 1, "the one that was to refuse");
    assert_eq!(world.asked(1).len(), 0);
}

#[tokio::test]
async fn a_cut_body_never_looks_whole() {
    // Long enough that the client has the beginning when the member breaks off.
    let names: Vec<String> = (0..6_000).map(|at| format!("pod-{at:030}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let whole = list(1, &names, "");
    let cut = Say {
        cut: Some(whole.body.len() / 2),
        ..whole
    };
    let world = two(move |_, _| cut.clone(), |_, _| list(1, &["z"], "")).await;
    match world.get("").await {
        Ok(answer) => assert!(answer.body.is_err(), "{:?}", answer.body.map(|body| body.len())),
        Err(fault) => panic!("{fault}"),
    }
    // A short one is not begun at all, and the member is named.
    let short = Say {
        cut: Some(60),
        ..list(1, &["a"], "")
    };
    let world = two(move |_, _| short.clone(), |_, _| list(1, &["z"], "")).await;
    match world.get("").await {
        Err(Fault::TooManyRequests { message, .. }) => assert!(message.contains("east"), "{message}"),
        other => panic!("{:?}", other.map(|answer| answer.code)),
    }
}

#[tokio::test]
async fn what_is_no_list_names_its_member() {
    for body in [
        "<html>hello</html>",
        "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"1\"}}",
        "[]",
        "",
    ] {
        let world = two(|_, _| list(1, &["a"], ""), move |_, _| say(200, body)).await;
        match world.get("").await {
            Err(Fault::TooManyRequests { message, .. }) => assert!(message.contains("west"), "{message}"),
            other => panic!("{body}: {:?}", other.map(|answer| answer.json())),
        }
    }
    let packed = Say {
        headers: vec![("content-type", "application/json"), ("content-encoding", "gzip")],
        ..list(1, &[], "")
    };
    let world = two(|_, _| list(1, &["a"], ""), move |_, _| packed.clone()).await;
    assert!(
        matches!(world.get("").await, Err(Fault::TooManyRequests { message, .. }) if message.contains("west") && message.contains("gzip"))
    );
}

#[tokio::test]
async fn members_that_answer_in_different_types_are_asked_for_json() {
    let protobuf = |_: &str, accept: &str| {
        if accept.contains("protobuf") {
            Say {
                headers: vec![("content-type", "application/vnd.kubernetes.protobuf")],
                ..say(200, "k8s")
            }
        } else {
            list(1, &["a"], "")
        }
    };
    let world = two(protobuf, |_, _| list(1, &["z"], "")).await;
    let accept = [("accept", "application/vnd.kubernetes.protobuf,application/json")];
    let answer = world.ask(PODS, &accept).await.unwrap();
    assert_eq!(
        (answer.names(), world.asked(0).len()),
        (vec!["a".to_owned(), "z".to_owned()], 2)
    );
    assert_eq!(answer.headers["content-type"], "application/json");
}

#[tokio::test]
async fn a_member_that_ignores_what_is_accepted_is_named() {
    let deaf = |_: &str, _: &str| Say {
        headers: vec![("content-type", "application/vnd.kubernetes.protobuf")],
        ..say(200, "k8s")
    };
    let world = two(|_, _| list(1, &["a"], ""), deaf).await;
    let refused = world.get("").await.err();
    assert!(
        matches!(&refused, Some(Fault::TooManyRequests { message, .. }) if message.contains("west")),
        "{refused:?}"
    );
    assert!(world.asked(1).len() <= 2, "not again and again");
}
