//! Pages across members: together they are one list at one cursor; tokens are for who got them.

use portolan_testbed::eventually;
use portolan_tests::door::{Answer, Door};
use portolan_tests::watch::Watch;
use serde_json::json;

use crate::{MAPS, MEMBERS, Objects, door, list, objects, truth, version, world};

fn next(answer: &Answer) -> Option<String> {
    answer.json()["metadata"]["continue"]
        .as_str()
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
}

/// All pages: objects, the cursor of each.
async fn walk(door: &Door, path: &str, limit: usize, query: &str) -> (Objects, Vec<String>) {
    let (mut all, mut versions, mut token) = (Objects::new(), Vec::new(), None::<String>);
    loop {
        let on = token.map(|token| format!("&continue={token}")).unwrap_or_default();
        let answer = door
            .get(&format!("{path}?limit={limit}{query}{on}"), &[])
            .await
            .unwrap();
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        let page = objects(&answer.json());
        assert!(page.len() <= limit, "{} of {limit}", page.len());
        for (key, object) in page {
            assert!(all.insert(key.clone(), object).is_none(), "{key} twice");
        }
        versions.push(version(&answer));
        token = next(&answer);
        if token.is_none() {
            return (all, versions);
        }
    }
}

#[tokio::test]
async fn pages_together_are_the_whole_at_one_cursor() {
    let _shared = MEMBERS.read().await;
    let door = door().await;
    for (limit, query) in [(1, ""), (3, ""), (500, ""), (3, "&labelSelector=parity%3Dodd")] {
        let (all, versions) = walk(&door, MAPS, limit, query).await;
        assert_eq!(
            all,
            truth(query.trim_start_matches('&'), "application/json").await,
            "limit {limit}{query}"
        );
        assert!(versions.iter().all(|version| *version == versions[0]), "{versions:?}");
        // A watch can begin where the pages stand.
        let at = list(&door, &format!("resourceVersion={}{query}", versions[0])).await;
        assert_eq!(objects(&at.json()), all);
    }
    let (one, _) = walk(&door, "/api/v1/namespaces/lb-1/configmaps", 2, "").await;
    assert_eq!(one.len(), 8);
    // Of one member what follows is counted, of several nobody knows.
    for (path, remaining) in [("/api/v1/namespaces/lb-1/configmaps", json!(6)), (MAPS, json!(null))] {
        let page = door.get(&format!("{path}?limit=2"), &[]).await.unwrap().json();
        assert_eq!(page["metadata"]["remainingItemCount"], remaining, "{path}");
    }
    // Members that have nothing get no page: here all but one, or all.
    let of_one = one.keys().next().unwrap().rsplit('/').next().unwrap().to_owned();
    for query in [
        format!("&fieldSelector=metadata.name%3D{of_one}"),
        "&labelSelector=nobody%3Dhas".to_owned(),
    ] {
        let (few, _) = walk(&door, MAPS, 1, &query).await;
        assert_eq!(
            few,
            truth(query.trim_start_matches('&'), "application/json").await,
            "{query}"
        );
    }
}

#[tokio::test]
async fn later_pages_show_the_first_pages_time() {
    let _shared = MEMBERS.read().await;
    let world = world().await;
    let door = door().await;
    let path = "/api/v1/secrets";
    for (member, namespace) in [("east", "la-1"), ("west", "lb-1")] {
        let direct = world.direct_door(member).await.unwrap();
        let secret = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": {"set": "paged"}}});
        for at in 0..3 {
            let answer = direct
                .post(
                    &format!("/api/v1/namespaces/{namespace}/secrets"),
                    &secret(&format!("p-{at}")),
                )
                .await
                .unwrap();
            assert_eq!(answer.status, 201);
        }
    }
    let selector = "labelSelector=set%3Dpaged";
    let shown = eventually("the Secrets have their labels, or are judged without", || async {
        let shown = objects(&door.get(&format!("{path}?{selector}"), &[]).await.unwrap().json());
        (shown.len() == 6).then_some(shown)
    })
    .await;
    let first = door.get(&format!("{path}?{selector}&limit=2"), &[]).await.unwrap();
    let west = world.direct("west");
    west.ok(&["delete", "secret", "p-1", "-n", "lb-1"]).await.unwrap();
    west.ok(&["create", "secret", "generic", "p-new", "-n", "lb-1"])
        .await
        .unwrap();
    west.ok(&["label", "secret", "p-new", "-n", "lb-1", "set=paged"])
        .await
        .unwrap();
    let mut all = objects(&first.json());
    let mut token = next(&first);
    while let Some(on) = token {
        let page = door
            .get(&format!("{path}?{selector}&limit=2&continue={on}"), &[])
            .await
            .unwrap();
        assert_eq!(version(&page), version(&first));
        all.extend(objects(&page.json()));
        token = next(&page);
    }
    assert_eq!(all.keys().collect::<Vec<_>>(), shown.keys().collect::<Vec<_>>());
    // Without a limit the rest comes at once.
    let rest = door
        .get(&format!("{path}?{selector}&continue={}", next(&first).unwrap()), &[])
        .await
        .unwrap();
    assert_eq!(objects(&rest.json()).len() + objects(&first.json()).len(), 6);
    assert_eq!(next(&rest), None);
}

/// Its pages up to the last, from a token on.
async fn rest(door: &Door, path: &str, first: &Answer) -> Objects {
    let (mut all, mut token) = (Objects::new(), next(first));
    while let Some(on) = token {
        let page = door.get(&format!("{path}?limit=2&continue={on}"), &[]).await.unwrap();
        assert_eq!(page.status, 200, "{}", page.message());
        assert_eq!(version(&page), version(first), "one cursor on all pages");
        for (key, object) in objects(&page.json()) {
            assert!(all.insert(key.clone(), object).is_none(), "{key} twice");
        }
        token = next(&page);
    }
    all
}

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "one story, of which each step needs the one before"
)]
async fn pages_go_on_when_namespaces_enter_and_leave_and_end_when_limits_change() {
    let _shared = MEMBERS.read().await;
    let world = world().await;
    let one = "/api/v1/namespaces/lg-1/configmaps";
    let door = world.listed_door("growing", MAPS).await.unwrap();
    let whole = objects(&door.get(MAPS, &[]).await.unwrap().json());
    let firsts = [MAPS, one].map(|path| {
        let door = &door;
        async move { door.get(&format!("{path}?limit=2"), &[]).await.unwrap() }
    });
    let [all, of_one] = futures::future::join_all(firsts).await.try_into().unwrap();
    let clusters = json!([{"name": "east", "namespaces": ["lg-1", "lg-2"]}, {"name": "west", "namespaces": ["lh-1"]}]);
    world.own("growing", clusters).await.unwrap();
    for (namespace, has) in [("lg-2", true), ("lh-2", false)] {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        eventually("the router knows", || async {
            let answer = door.get(&path, &[]).await.unwrap();
            // What has left is told to be empty.
            let is = answer.status == 200 && objects(&answer.json()).is_empty() != has;
            is.then_some(()).ok_or(answer.status)
        })
        .await;
    }
    let shown = rest(&door, one, &of_one).await;
    assert_eq!(
        shown.len() + 2,
        whole.keys().filter(|key| key.starts_with("lg-1/")).count()
    );
    // What was the shard's then, and is now.
    let mut shown = rest(&door, MAPS, &all).await;
    shown.extend(objects(&all.json()));
    let stayed: Vec<_> = whole.keys().filter(|key| !key.starts_with("lh-2/")).collect();
    assert_eq!(shown.keys().collect::<Vec<_>>(), stayed);
    // What has entered since comes by a watch from there.
    let path = format!("{MAPS}?resourceVersion={}", version(&all));
    let mut watch = Watch::open(&door, &path).await.unwrap();
    while watch.held.len() < 8 {
        watch.next().await.unwrap().unwrap();
    }
    assert!(
        watch.held.keys().all(|key| key.starts_with("lg-2/")),
        "{:?}",
        watch.held
    );

    let first = door.get(&format!("{MAPS}?limit=2"), &[]).await.unwrap();
    let even = json!([{
        "relateResources": [{"apiGroups": [""], "resources": ["configmaps"]}],
        "selector": {"matchLabels": {"parity": "even"}},
    }]);
    world.edit("growing", json!({"limits": even})).await.unwrap();
    let on = next(&first).unwrap();
    let expired = eventually("the pages have ended", || async {
        let page = door.get(&format!("{MAPS}?limit=2&continue={on}"), &[]).await.unwrap();
        (page.status == 410).then_some(page).ok_or("not yet")
    })
    .await;
    expired.expect_status(410, &["inconsistent list"]).unwrap();
    // Of what is left nothing is shown that is not the shard's any more.
    let (mut token, mut left) = (next(&expired), Objects::new());
    assert!(token.is_some(), "{:?}", expired.body);
    while let Some(on) = token {
        let page = door.get(&format!("{MAPS}?limit=2&continue={on}"), &[]).await.unwrap();
        assert_eq!(page.status, 200, "{}", page.message());
        left.extend(objects(&page.json()));
        token = next(&page);
    }
    let is_even = |object: &serde_json::Value| object["metadata"]["labels"]["parity"] == "even";
    assert!(left.len() > 8 && left.values().all(is_even), "{:?}", left.keys());
}

#[tokio::test]
async fn tokens_are_for_who_got_them_and_whole() {
    let _shared = MEMBERS.read().await;
    let world = world().await;
    let door = door().await;
    let token = next(&list(&door, "limit=2").await).unwrap();
    let theirs = world.direct_door("east").await.unwrap();
    let theirs = next(&list(&theirs, "limit=2").await).unwrap();
    let flipped = |at: usize| {
        let mut text = token.clone().into_bytes();
        text[at] = if text[at] == b'A' { b'B' } else { b'A' };
        String::from_utf8(text).unwrap()
    };
    for bad in [
        "abc",
        "!!",
        &token[1..],
        &token[..token.len() - 4],
        &flipped(3),
        &flipped(token.len() / 2),
        &theirs,
    ] {
        let answer = list(&door, &format!("limit=2&continue={bad}")).await;
        answer.expect_status(400, &["continue key is not valid"]).unwrap();
    }
    let other = list(&door, &format!("limit=2&labelSelector=a&continue={token}")).await;
    other.expect_status(400, &["continue"]).unwrap();
    let elsewhere = door
        .get(&format!("/api/v1/secrets?limit=2&continue={token}"), &[])
        .await
        .unwrap();
    elsewhere.expect_status(400, &["continue"]).unwrap();
    let stranger = world.merged_door("other").await.unwrap();
    let answer = list(&stranger, &format!("limit=2&continue={token}")).await;
    assert!([400, 410].contains(&answer.status), "{:?}", answer.body);
    let both = list(&door, &format!("limit=2&continue={token}&resourceVersion=7")).await;
    both.expect_status(400, &["specifying resource version is not allowed when using continue"])
        .unwrap();
    assert_eq!(
        list(&door, &format!("limit=2&continue={token}")).await.status,
        200,
        "the token itself is good"
    );
}

#[tokio::test]
async fn kubectl_pages_through() {
    let _shared = MEMBERS.read().await;
    let shown = world()
        .await
        .merged("lists")
        .ok(&["get", "configmaps", "-A", "--chunk-size=3", "-o", "name"])
        .await
        .unwrap();
    assert_eq!(
        shown.lines().count(),
        truth("", "application/json").await.len(),
        "{shown}"
    );
}
