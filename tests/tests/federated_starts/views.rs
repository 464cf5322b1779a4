//! From a list of before the shard changed: what entered since is told as ADDED, what left as DELETED, and nobody lists again.

use portolan_tests::door::Door;
use portolan_tests::go_client::GoClient;
use portolan_tests::watch::Held;
use serde_json::json;

use crate::formats::{Events, FORMATS, Format};
use crate::retries::take;
use crate::{CALM, Place, change, door, listed, make, maps, own, remove, truth, world};

const BEFORE: &[Place] = &[("east", "fv-a"), ("east", "fv-g"), ("east", "fv-m"), ("west", "fv-w")];
const AFTER: &[Place] = &[("east", "fv-a"), ("east", "fv-n"), ("west", "fv-m"), ("west", "fv-w")];
/// What is or was the shard's, or is going to be.
const ALL: [Place; 6] = [
    ("east", "fv-a"),
    ("east", "fv-g"),
    ("east", "fv-m"),
    ("west", "fv-m"),
    ("east", "fv-n"),
    ("west", "fv-w"),
];

/// Of a client that holds this.
async fn watch(door: &Door, format: Format, path: &str, held: &Held, from: &str) -> Events {
    let mut watch = Events::open(door, format, path, from).await;
    watch.held = held.clone();
    watch
}

/// How often this was told.
fn count(watch: &Events, event: &str) -> usize {
    watch.seen.iter().filter(|seen| *seen == event).count()
}

#[tokio::test]
async fn a_cursor_of_an_older_view_is_told_what_entered_and_what_left() {
    let _calm = CALM.read().await;
    let door = door("views").await;
    for place in ALL {
        for name in ["same", "gone"] {
            make(place, name).await;
        }
    }
    make(("east", "fv-m"), "only-east").await;
    make(("west", "fv-m"), "only-west").await;
    let (held, position) = listed(&door, &maps(None)).await;
    assert_eq!(held, truth(BEFORE).await);
    let (_, of_one) = listed(&door, &maps(Some("fv-a"))).await;

    let clusters =
        json!([{"name": "east", "namespaces": ["fv-a", "fv-n"]}, {"name": "west", "namespaces": ["fv-w", "fv-m"]}]);
    own("views", clusters, AFTER).await;
    for place in ALL {
        make(place, "new").await;
        change(place, "same").await;
        remove(place, "gone").await;
    }
    let now = truth(AFTER).await;
    for format in FORMATS {
        let mut all = watch(&door, format, &maps(None), &held, &position).await;
        all.holds(&now).await;
        for (told, times) in [
            ("ADDED fv-n/same", 1),
            ("DELETED fv-g/same", 1),
            ("DELETED fv-m/only-east", 1),
            ("ADDED fv-m/only-west", 1),
            ("ADDED fv-a/same", 0),
            ("DELETED fv-a/same", 0),
            ("ADDED fv-a/new", 1),
            ("DELETED fv-a/gone", 1),
        ] {
            assert_eq!(count(&all, told), times, "{format:?} {told}: {:?}", all.seen);
        }
        each_alone(&door, format, (&held, &now), [&position, &of_one]).await;
    }
    a_retry_watcher_goes_on(held, &position, &now).await;
    what_came_back_is_listed_anew(&door, &position, &now).await;
}

/// A namespace that stayed, one that came, one that went, one that moved; from the list of all and from that of `fv-a`.
async fn each_alone(door: &Door, format: Format, (held, now): (&Held, &Held), [all, one]: [&str; 2]) {
    let own = |held: &Held, namespace: &str| -> Held {
        let mut own = held.clone();
        own.retain(|key, _| key.starts_with(&format!("{namespace}/")));
        own
    };
    for (namespace, from) in [
        ("fv-a", all),
        ("fv-a", one),
        ("fv-n", all),
        ("fv-n", one),
        ("fv-g", all),
    ] {
        let path = maps(Some(namespace));
        let mut alone = watch(door, format, &path, &own(held, namespace), from).await;
        alone.holds(&own(now, namespace)).await;
    }
    // What was whose then is another member's now.
    let moved = maps(Some("fv-m"));
    Events::open(door, format, &moved, all).await.is_expired().await;
    Events::open(door, format, &maps(None), one).await.is_expired().await;
}

/// client-go's, from the older list and over ends of its streams.
async fn a_retry_watcher_goes_on(mut held: Held, position: &str, now: &Held) {
    let kubeconfig = world().await.fleet.merged_kubeconfig("views");
    let from = format!("--resource-version={position}");
    let mut client = GoClient::start(&kubeconfig, &["retry", "--watch-seconds=2", &from]).unwrap();
    while held != *now {
        take(&mut held, &client.wait_type("event").await.unwrap());
    }
}

/// Whether it was the shard's before it left is not known.
async fn what_came_back_is_listed_anew(door: &Door, position: &str, held: &Held) {
    let (_, later) = listed(door, &maps(None)).await;
    let clusters = json!([
        {"name": "east", "namespaces": ["fv-a", "fv-n", "fv-g"]}, {"name": "west", "namespaces": ["fv-w", "fv-m"]},
    ]);
    let places = [AFTER, &[("east", "fv-g")]].concat();
    own("views", clusters, &places).await;
    let now = truth(&places).await;
    for format in FORMATS {
        Events::open(door, format, &maps(None), position)
            .await
            .is_expired()
            .await;
        // Who has seen it leave is told that it is back.
        watch(door, format, &maps(None), held, &later).await.holds(&now).await;
    }
}

#[tokio::test]
async fn all_are_watched_from_a_list_of_one_of_an_older_view() {
    let _calm = CALM.read().await;
    let door = door("grown").await;
    for place in [("east", "fg-a"), ("east", "fg-n")] {
        make(place, "before").await;
    }
    let (held, position) = listed(&door, &maps(Some("fg-a"))).await;
    let places = [("east", "fg-a"), ("east", "fg-n")];
    own(
        "grown",
        json!([{"name": "east", "namespaces": ["fg-a", "fg-n"]}]),
        &places,
    )
    .await;
    make(("east", "fg-a"), "after").await;
    let now = truth(&places).await;
    for format in FORMATS {
        let mut all = watch(&door, format, &maps(None), &held, &position).await;
        all.holds(&now).await;
        let told = ["ADDED fg-n/before", "ADDED fg-a/after", "ADDED fg-a/before"].map(|event| count(&all, event));
        assert_eq!(told, [1, 1, 0], "{:?}", all.seen);
    }
}
