//! Of its only member a client is told all in order, after the member's 410 too.

use super::plain::{named, push};
use super::*;

fn compared() -> WatchMerge {
    let mut merge = merge(WatchFormat::Json, &[Start::Sync]).in_order();
    merge.legs[0].known = Some(Box::new(KnownObjects::new(None)));
    let there = named("ADDED", "a", 3) + &named("ADDED", "b", 4) + &named("ADDED", "z", 4) + &bookmark(5, true);
    push(&mut merge, 0, there, &mut Output::default());
    let gone = "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410}}\n".to_owned();
    let (acts, _) = push(&mut merge, 0, gone, &mut Output::default());
    let start = Start::Sync;
    assert_eq!(acts, [Act::Restart { leg: 0, start }]);
    merge
}

/// Types, names and versions of what was said.
fn told(said: &str) -> Vec<(String, String, String)> {
    let lines = said.lines().map(|line| serde_json::from_str(line).unwrap());
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let told = lines.map(|event: serde_json::Value| {
        let meta = &event["object"]["metadata"];
        (
            text(&event["type"]),
            text(&meta["name"]),
            text(&meta["resourceVersion"]),
        )
    });
    told.collect()
}

#[test]
fn what_has_left_comes_first_then_what_is_new_by_version() {
    let mut merge = compared();
    let mut out = Output::default();
    let state = named("ADDED", "b", 9) + &named("ADDED", "c", 7) + &named("ADDED", "z", 4);
    let (_, said) = push(&mut merge, 0, state + &named("DELETED", "c", 10), &mut out);
    assert_eq!(said, "", "told by name: what is earlier may yet come");
    let (acts, said) = push(&mut merge, 0, bookmark(12, true), &mut out);
    assert!(acts.is_empty());
    let told = told(&said);
    let expected = [
        ("DELETED", "a", "5"),
        ("ADDED", "c", "7"),
        ("MODIFIED", "b", "9"),
        ("DELETED", "c", "10"),
    ];
    let events = told.iter().map(|(kind, name, version)| (&**kind, &**name, &**version));
    assert!(events.take(4).eq(expected), "{told:?}");
    assert_eq!((told.len(), &*told[4].0), (5, "BOOKMARK"));
    assert_eq!(merge.cursor().slot(0), Slot::At(12));
}

/// What was held would be counted as told: gone by the next reading, its DELETED would come before it.
#[test]
fn a_member_that_is_lost_meanwhile_is_410() {
    let mut merge = compared();
    push(&mut merge, 0, named("ADDED", "c", 9), &mut Output::default());
    assert!(matches!(
        merge.lost(0),
        Act::Expired {
            cause: Expiry::Member,
            ..
        }
    ));
    let mut merge = compared();
    let start = Start::Sync;
    assert_eq!(merge.lost(0), Act::Restart { leg: 0, start }, "nothing is held");
}

#[test]
fn more_than_may_be_held_is_410() {
    let budget = Budget::new(500 * 1024);
    let mut merge = compared().bounded(budget.clone());
    let mut out = Output::default();
    let (acts, _) = push(&mut merge, 0, event("ADDED", 9, 300 * 1024), &mut out);
    assert!(acts.is_empty() && budget.used() > 300 * 1024);
    let more = event("ADDED", 10, 300 * 1024).replace("\"name\":\"p\"", "\"name\":\"q\"");
    let (acts, said) = push(&mut merge, 0, more, &mut out);
    let cause = |act: &Act| {
        matches!(
            act,
            Act::Expired {
                cause: Expiry::Memory,
                ..
            }
        )
    };
    assert!(acts.iter().any(cause) && said.is_empty(), "{acts:?}");
    drop(merge);
    assert_eq!(budget.used(), 0);
}

#[test]
fn half_of_what_all_share_is_nobodys_to_hold() {
    let budget = Budget::new(800 * 1024);
    let mut merge = compared().bounded(budget.clone());
    assert!(budget.take(500 * 1024));
    let (acts, _) = push(&mut merge, 0, event("ADDED", 9, 10 * 1024), &mut Output::default());
    assert!(acts.iter().any(|act| matches!(act, Act::Expired { .. })), "{acts:?}");
}

/// A router that has not heard of the second member may take what was told for the only one's.
#[test]
fn with_a_second_member_it_is_not_mended_by_name() {
    let expires = |mut merge: WatchMerge| {
        let two = [Start::Sync, Start::Sync];
        let acts = merge.replan(&Universe::new("shard", names(&two)), legs(&two), &mut Output::default());
        let gone = "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410}}\n".to_owned();
        let later = push(&mut merge, 0, gone, &mut Output::default()).0;
        let all = acts.into_iter().chain(later);
        all.filter(|act| matches!(act, Act::Expired { .. })).count()
    };
    let mut live = compared();
    push(&mut live, 0, bookmark(12, true), &mut Output::default());
    assert_eq!((expires(live), expires(compared())), (1, 1));
}

#[test]
fn a_table_tells_its_columns_with_the_first_row_that_is_told() {
    let row = |name: &str, version: u64, columns: bool| {
        let columns = if columns {
            r#"[{"name":"Name","type":"string"}]"#
        } else {
            "null"
        };
        let meta = format!(r#"{{"name":"{name}","uid":"u","resourceVersion":"{version}"}}"#);
        format!(
            r#"{{"type":"ADDED","object":{{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{{}},"columnDefinitions":{columns},"rows":[{{"cells":["{name}"],"object":{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{meta}}}}}]}}}}
"#
        )
    };
    let mut merge = merge(WatchFormat::Table, &[Start::Sync]).in_order();
    merge.legs[0].known = Some(Box::new(KnownObjects::new(None)));
    merge.legs[0].begin_resync(ResyncCause::Recovery);
    let mut out = Output::default();
    let (_, said) = push(&mut merge, 0, row("b", 9, true) + &row("c", 7, false), &mut out);
    assert_eq!(said, "");
    merge.legs[0].without_watch_list = true;
    let (_, said) = push(
        &mut merge,
        0,
        row("c", 10, false).replace("ADDED", "MODIFIED"),
        &mut out,
    );
    let tables: Vec<&str> = said.lines().collect();
    assert!(
        tables[0].contains("\"c\"") && tables[0].contains("\"columnDefinitions\":[{"),
        "{said}"
    );
    assert!(
        tables[1].contains("\"b\"") && tables[1].contains("\"columnDefinitions\":null"),
        "{said}"
    );
}

#[test]
fn a_shard_that_changes_meanwhile_is_410() {
    let mut merge = compared();
    let mut out = Output::default();
    push(&mut merge, 0, named("ADDED", "b", 9), &mut out);
    let universe = Universe::new("shard", ["m0".to_owned()]);
    let acts = merge.replan(&universe, Vec::new(), &mut out);
    assert!(
        matches!(
            &acts[0],
            Act::Expired {
                cause: Expiry::Changed,
                ..
            }
        ),
        "{acts:?}"
    );
}
