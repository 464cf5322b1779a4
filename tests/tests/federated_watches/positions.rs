//! From where watches may go on, and how others are told that they may not.

use crate::stream::Watch;
use crate::{MAPS, MEMBERS, door, make, make_in, position};

#[tokio::test]
async fn what_is_no_cursor_of_ours_is_expired_within_the_stream() {
    let _calm = MEMBERS.read().await;
    let door = door("raws").await;
    let version = make("raws", "east", "raw").await;
    let other = crate::door("marks").await;
    let foreign = position(&other).await;
    for version in [
        version.to_string(),
        foreign,
        "123456789012345678901234567890".to_owned(),
    ] {
        let mut watch = Watch::json(&door, &format!("resourceVersion={version}")).await;
        let event = watch.next().await.unwrap();
        assert_eq!(event["type"], "ERROR", "{event}");
        assert_eq!(
            (&event["object"]["code"], &event["object"]["reason"]),
            (&410.into(), &"Expired".into())
        );
        assert_eq!(watch.next().await, None);
    }
    // What is no version at all, members refuse; so do combinations.
    for query in ["resourceVersion=abc", "sendInitialEvents=true", "limit=x"] {
        let answer = door.get(&format!("{MAPS}?watch=true&{query}"), &[]).await.unwrap();
        let code = answer.status;
        assert!(code == 400 || code == 422, "{query}: {code} {}", answer.message());
        assert_eq!(answer.json()["kind"], "Status", "{query}");
    }
}

/// What happens elsewhere in a member takes its memory of events: a client whose watches are short must come past that.
#[tokio::test]
async fn a_short_watch_says_before_its_end_where_its_members_are() {
    let _calm = MEMBERS.read().await;
    let door = door("short").await;
    let mut before = position(&door).await;
    for round in 0..2 {
        let mut watch = Watch::json(&door, &format!("resourceVersion={before}&timeoutSeconds=5")).await;
        make_in("east", "default", &format!("elsewhere-{round}")).await;
        let mut last = String::new();
        while let Some(event) = watch.next().await {
            assert_eq!(event["type"], "BOOKMARK", "{event}");
            last = event["object"]["metadata"]["resourceVersion"]
                .as_str()
                .unwrap()
                .to_owned();
        }
        // Of one width, and of one view.
        assert!(last > before, "{last:?} is no newer than {before}");
        before = last;
    }
}

#[tokio::test]
async fn clients_without_bookmarks_resume_from_the_last_object() {
    let _calm = MEMBERS.read().await;
    let door = door("marks").await;
    // Two members may have given both objects the same version, or the plan may have changed in between: then the client lists.
    for round in 0..5 {
        let [first, second, third, fourth] = [1, 2, 3, 4].map(|number| format!("object-{round}-{number}"));
        let start = position(&door).await;
        let mut watch = Watch::open(&door, &format!("resourceVersion={start}"), "application/json").await;
        make("marks", "east", &first).await;
        watch.sees(&first).await;
        let version = make("marks", "west", &second).await;
        watch.sees(&second).await;
        assert_eq!(watch.count("BOOKMARK"), 0);
        drop(watch);
        make("marks", "east", &third).await;
        let mut resumed = Watch::open(&door, &format!("resourceVersion={version}"), "application/json").await;
        if resumed.next().await.unwrap()["type"] == "ERROR" {
            continue;
        }
        assert_eq!(resumed.seen, [format!("ADDED marks-e/{third}")]);
        make("marks", "west", &fourth).await;
        assert_eq!(resumed.sees(&fourth).await, "ADDED");
        return;
    }
    panic!("no position was remembered");
}
