//! Lists in pages: whose turn it is, and what an expired one comes with.

use portolan_merge::wire;

use super::status::Page;
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
    let (mut cut, mut other) = (list(7, &["d"], ""), list(7, &["d"], ""));
    cut.cut = Some(cut.body.len() - 1);
    other.body = String::from_utf8(other.body)
        .unwrap()
        .replace("PodList", "SecretList")
        .into();
    let a = || list(11, &["a"], "");
    let pages: [(&str, Say, Say); 8] = [
        ("it is away", a(), say(500, "")),
        ("the version is gone", a(), refusal(410, "compacted")),
        ("it breaks off", a(), cut),
        (
            "it is broken",
            a(),
            say(200, r#"{"kind":"PodList","apiVersion":"v1","items":[}"#),
        ),
        ("it is no list", a(), say(200, "[]")),
        ("it is of another type", a(), other),
        ("it is in another form", a(), {
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

/// A member that answers its pin at once, and the whole after so long.
fn slow(version: u64, name: &'static str, late: Duration) -> impl Fn(&str, &str) -> Say + Send + Sync {
    move |path, _| Say {
        late: if path.contains("limit=1") { Duration::ZERO } else { late },
        ..list(version, &[name], "")
    }
}

#[tokio::test]
async fn a_page_does_not_wait_for_the_next_member_longer_than_for_a_moment() {
    const NEVER: Duration = Duration::from_mins(1);
    for (east, west, asked) in [
        (Duration::ZERO, NEVER, 2),
        (Duration::from_millis(1_050), Duration::ZERO, 1),
    ] {
        let world = two(slow(11, "a", east), slow(7, "d", west)).await;
        let began = Instant::now();
        let page = world.get("?limit=500").await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        assert_eq!((page.names(), world.asked(1).len()), (vec!["a".to_owned()], asked));
        let rest = format!("?limit=1&continue={}", page.next().unwrap());
        assert_eq!(world.get(&rest).await.unwrap().names(), ["d"]);
    }
}

#[tokio::test]
async fn a_page_ends_where_there_is_no_room_to_keep_it() {
    let world = two(|_, _| list(11, &["a"], ""), |_, _| list(7, &["d"], "")).await;
    let all = u32::try_from(AHEAD_BYTES).unwrap();
    let held = world.fanouts.ahead.clone().try_acquire_many_owned(all).unwrap();
    let page = world.get("?limit=500").await.unwrap();
    assert_eq!((page.names(), world.asked(1).len()), (vec!["a".to_owned()], 1));
    drop(held);
    let page = world.get("?limit=500").await.unwrap();
    assert_eq!(
        (page.names(), page.next()),
        (["a", "d"].map(str::to_owned).into(), None)
    );
    assert_eq!(world.fanouts.ahead.available_permits(), AHEAD_BYTES);
}

#[tokio::test]
async fn a_page_goes_on_past_members_that_have_nothing() {
    // At its pin or only later: what it had may not be the caller's.
    for pinned in [0, 1] {
        let middle = move |path: &str, _: &str| {
            let objects = if path.ends_with("limit=1") { pinned } else { 0 };
            list(5, &["x"][..objects], "")
        };
        let world = world(vec![
            ("east", Member::start(|_, _| list(11, &["a"], "")).await),
            ("middle", Member::start(middle).await),
            ("west", Member::start(|_, _| list(7, &["d"], "")).await),
        ]);
        let page = world.get("?limit=2").await.unwrap();
        assert_eq!(
            (page.names(), page.next()),
            (["a", "d"].map(str::to_owned).into(), None)
        );
        assert_eq!(world.asked(1).len(), 1 + pinned);
    }
}

/// A list in protobuf of objects with these names.
fn protobuf(version: &str, names: &[&str]) -> Say {
    let put = |number, content: &[u8]| {
        let mut field = Vec::new();
        wire::put(&mut field, number, content);
        field
    };
    // As `generated.proto` of Kubernetes has them: ListMeta's version, ObjectMeta's name, a list's metadata and items.
    let meta = put(1, &put(2, version.as_bytes()));
    let items = names.iter().flat_map(|name| put(2, &put(1, &put(1, name.as_bytes()))));
    let list: Vec<u8> = meta.into_iter().chain(items).collect();
    let (version, kind) = (
        put(wire::TYPE_META_VERSION, b"v1"),
        put(wire::TYPE_META_KIND, b"PodList"),
    );
    let type_meta = put(wire::UNKNOWN_TYPE_META, &[version, kind].concat());
    Say {
        headers: vec![("content-type", "application/vnd.kubernetes.protobuf")],
        body: [b"k8s\0".to_vec(), type_meta, put(wire::UNKNOWN_RAW, &list)].concat(),
        ..say(200, "")
    }
}

#[tokio::test]
async fn a_page_in_protobuf_goes_on_too() {
    let member = |version: u64, name: &'static str| {
        move |_: &str, accept: &str| {
            if accept.contains("protobuf") {
                protobuf(&version.to_string(), &[name])
            } else {
                list(version, &[name], "")
            }
        }
    };
    let world = two(member(11, "first"), member(7, "second")).await;
    let accept = [("accept", "application/vnd.kubernetes.protobuf")];
    for (limit, objects) in [(1, 1), (2, 2)] {
        let page = world.ask(&format!("{PODS}?limit={limit}"), &accept).await.unwrap();
        assert_eq!(page.headers["content-type"], "application/vnd.kubernetes.protobuf");
        let page = Page::read(Media::Protobuf, &page.body.unwrap()).unwrap();
        assert_eq!(
            (page.objects, page.more, &*page.of.kind),
            (objects, objects < 2, "PodList")
        );
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
    for meta in [
        json!({}),
        json!({"resourceVersion": ""}),
        json!({"resourceVersion": "0"}),
    ] {
        let unversioned = |names: &'static [&'static str]| {
            let mut said: Value = serde_json::from_slice(&list(0, names, "").body).unwrap();
            said["metadata"] = meta.clone();
            move |_: &str, _: &str| say(200, &said)
        };
        let world = two(unversioned(&["a", "b"]), unversioned(&["c"])).await;
        let answer = world.get("?limit=500").await.unwrap();
        assert_eq!(
            (answer.names(), answer.next()),
            (["a", "b", "c"].map(str::to_owned).into(), None),
            "{meta}"
        );
        let asked = world.asked(1);
        assert!(!asked.last().unwrap().contains("limit"), "{meta}: {asked:?}");
    }
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
