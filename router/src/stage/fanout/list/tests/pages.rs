//! Lists in pages: whose turn it is, and what an expired one comes with.

use super::*;

#[tokio::test]
async fn pages_walk_the_members_at_the_first_pages_cursor() {
    let east = |path: &str, _: &str| match path {
        path if path.contains("continue=m") => list(11, &["c"], ""),
        _ => list(11, &["a", "b"], "m"),
    };
    let west = |path: &str, _: &str| {
        if path.contains("Exact") {
            list(7, &["d"], "")
        } else {
            list(7, &["d"], "rest")
        }
    };
    let world = two(east, west).await;
    let first = world.get("?limit=2").await.unwrap();
    assert_eq!(first.names(), ["a", "b"]);
    let second = world
        .get(&format!("?limit=2&continue={}", first.next().unwrap()))
        .await
        .unwrap();
    assert_eq!(
        (second.names(), second.next()),
        (["c", "d"].map(str::to_owned).into(), None)
    );
    assert_eq!(first.version(), second.version());
    assert_eq!(
        world.asked(0),
        ["/api/v1/pods?limit=2", "/api/v1/pods?limit=2&continue=m"]
    );
    let asked = world.asked(1);
    assert_eq!(asked[0], "/api/v1/pods?limit=1");
    assert!(
        asked[1].contains("resourceVersion=7") && asked[1].contains("resourceVersionMatch=Exact"),
        "{asked:?}"
    );
    assert!(
        world.members[1].1.asked.lock()[0]
            .1
            .contains("PartialObjectMetadataList")
    );
}

/// So many names as the limit asks for.
fn within(version: u64, names: &[&str], path: &str) -> Say {
    let limit = path.split("limit=").nth(1).unwrap().split('&').next().unwrap();
    let limit = limit.parse::<usize>().unwrap().min(names.len());
    list(version, &names[..limit], if limit < names.len() { "m" } else { "" })
}

#[tokio::test]
async fn a_page_goes_on_with_the_next_member_while_it_has_room() {
    for (limit, pages) in [
        (500, &[&["a", "b", "c", "d"][..]][..]),
        (4, &[&["a", "b", "c", "d"]]),
        (3, &[&["a", "b", "c"], &["d"]]),
        (2, &[&["a", "b"], &["c", "d"]]),
        (1, &[&["a"], &["b"], &["c"], &["d"]]),
    ] {
        let east = |path: &str, _: &str| match path {
            path if path.contains("continue=") => list(11, &["b"], ""),
            path => within(11, &["a", "b"], path),
        };
        let west = |path: &str, _: &str| match path {
            path if path.contains("continue=") => list(7, &["d"], ""),
            path => within(7, &["c", "d"], path),
        };
        let world = two(east, west).await;
        let (mut token, mut version) = (String::new(), None);
        for page in pages {
            let answer = world.get(&format!("?limit={limit}{token}")).await.unwrap();
            assert_eq!(answer.names(), *page, "limit {limit}");
            assert_eq!(*version.get_or_insert(answer.version()), answer.version());
            token = answer
                .next()
                .map(|next| format!("&continue={next}"))
                .unwrap_or_default();
        }
        assert_eq!(token, "", "limit {limit}: there is no more");
        let asked = world.asked(1);
        assert!(
            asked[1..].iter().all(|path| path.contains("continue=m")
                || path.contains("resourceVersion=7") && path.contains("resourceVersionMatch=Exact")),
            "at one version: {asked:?}"
        );
    }
}

#[tokio::test]
async fn a_page_ends_before_a_member_that_cannot_go_on() {
    let long = "x".repeat(300 << 10);
    let pages: [(&str, Say, Say); 3] = [
        ("it is away", list(11, &["a"], ""), say(500, "")),
        ("it is in another form", list(11, &["a"], ""), {
            let mut other = list(7, &["d"], "");
            other.headers = vec![("content-type", "application/vnd.kubernetes.protobuf")];
            other
        }),
        ("the one before is long", list(11, &[&long], ""), list(7, &["d"], "")),
    ];
    for (what, first, second) in pages {
        let west = move |path: &str, _: &str| match path {
            path if path.contains("limit=500") || path.contains("limit=499") => second.clone(),
            _ => list(7, &["d"], ""),
        };
        let world = two(move |_, _| first.clone(), west).await;
        let page = world.get("?limit=500").await.unwrap();
        assert_eq!(page.names().len(), 1, "{what}");
        let token = page.next().expect(what);
        let rest = world.get(&format!("?limit=7&continue={token}")).await.unwrap();
        assert_eq!(rest.names(), ["d"], "{what}");
        assert_eq!(rest.version(), page.version(), "{what}");
    }
}

#[tokio::test]
async fn nobody_is_sent_to_a_member_that_has_nothing() {
    let world = two(|_, _| list(11, &["a"], ""), |_, _| list(7, &[], "")).await;
    let first = world.get("?limit=2").await.unwrap();
    assert_eq!((first.names(), first.next()), (vec!["a".to_owned()], None));
}

/// As metrics.k8s.io answers, whatever the limit.
#[tokio::test]
async fn kinds_without_versions_come_in_one_page() {
    let unversioned = |names: &[&str]| {
        let mut said: Value = serde_json::from_slice(&list(0, names, "").body).unwrap();
        said["metadata"] = json!({});
        say(200, said)
    };
    let world = two(move |_, _| unversioned(&["a", "b"]), move |_, _| unversioned(&["c"])).await;
    let answer = world.get("?limit=500").await.unwrap();
    assert_eq!(
        (answer.names(), answer.next()),
        (["a", "b", "c"].map(str::to_owned).into(), None)
    );
    assert!(
        !world.asked(1).last().unwrap().contains("limit"),
        "{:?}",
        world.asked(1)
    );
}

#[tokio::test]
async fn a_member_that_has_nothing_may_say_null() {
    let nothing = r#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7"},"items":null}"#;
    let world = two(|_, _| list(1, &["a"], ""), move |_, _| say(200, nothing)).await;
    let answer = world.get("?limit=1").await.unwrap();
    assert_eq!((answer.names(), answer.next()), (vec!["a".to_owned()], None));
}

#[tokio::test]
async fn an_expired_page_comes_with_a_token_for_the_rest_as_it_is_now() {
    let east = |path: &str, _: &str| match path {
        path if path.contains("continue=m") => {
            let mut said: Value = serde_json::from_slice(&refusal(410, "too old").body).unwrap();
            said["metadata"]["continue"] = "fresh".into();
            said["reason"] = "Expired".into();
            say(410, said)
        }
        path if path.contains("continue=fresh") => list(99, &["c"], ""),
        _ => list(11, &["a"], "m"),
    };
    let world = two(east, |_, _| list(7, &["d"], "")).await;
    let first = world.get("?limit=1").await.unwrap();
    let expired = world
        .get(&format!("?limit=1&continue={}", first.next().unwrap()))
        .await
        .unwrap();
    let status = expired.json();
    assert_eq!(
        (expired.code, status["reason"].as_str(), status["code"].as_u64()),
        (410, Some("Expired"), Some(410))
    );
    let token = expired.next().unwrap();
    let rest = world.get(&format!("?limit=1&continue={token}")).await.unwrap();
    assert_eq!(rest.names(), ["c"]);
    assert_eq!(world.slot(&rest.version(), "east"), Slot::At(99));
    let last = world
        .get(&format!("?limit=1&continue={}", rest.next().unwrap()))
        .await
        .unwrap();
    assert_eq!(last.names(), ["d"]);
    assert_eq!(world.asked(1).last().unwrap(), "/api/v1/pods?limit=1", "as it is now");
}

#[tokio::test]
async fn a_token_is_for_its_shard_selector() {
    let east = |path: &str, _: &str| match path {
        path if path.contains("continue=m") => list(11, &["c"], ""),
        _ => list(11, &["a", "b"], "m"),
    };
    let world = two(east, |_: &str, _: &str| list(7, &["d"], "")).await;
    let page = |selector: &str| format!("?limit=2&shardSelector={selector}");
    let first = world.get(&page("half")).await.unwrap();
    let token = first.next().unwrap();
    let other = world.get(&format!("{}&continue={token}", page("rest"))).await;
    assert!(matches!(other, Err(Fault::BadRequest(_))), "another half's");
    let second = world.get(&format!("{}&continue={token}", page("half"))).await.unwrap();
    assert_eq!(second.names(), ["c", "d"]);
    assert!(
        world.asked(0).iter().all(|path| path.contains("shardSelector=")),
        "every member is asked for it"
    );
}
