//! Which routers may have acted, of those that are gone and of those that are away.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::router;
use crate::facts::{FORGOTTEN_AFTER, Facts, PROCESS_ENDED};

fn facts_with(status: &Value) -> Facts {
    let mut object = router("gateway", "one", "key");
    object.data["status"] = status.clone();
    let mut facts = Facts::default();
    facts.apply_router(&object);
    facts
}

#[test]
fn a_router_that_is_gone_is_noted_but_for_one_that_ended_in_order() {
    for (process, noted) in [("3f1a", true), (PROCESS_ENDED, false)] {
        let status = json!({"process": process});
        let gone = router("gateway", "one", "key");
        let mut facts = facts_with(&status);
        assert!(facts.router_gone.is_none());
        facts.delete_router(&gone);
        assert_eq!(facts.router_gone.is_some(), noted, "deleted: {process}");
        let mut facts = facts_with(&status);
        facts.reset_routers(&[]);
        assert_eq!(facts.router_gone.is_some(), noted, "not in a list: {process}");
        let mut facts = facts_with(&status);
        facts.apply_router(&router("gateway", "two", "another"));
        assert_eq!(facts.router_gone.is_some(), noted, "replaced: {process}");
    }
}

#[test]
fn a_router_that_has_been_away_for_long_is_not_waited_for() {
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let ago = |seconds: i64| (now - SignedDuration::from_secs(seconds)).to_string();
    let limit = i64::try_from(FORGOTTEN_AFTER.as_secs()).unwrap();
    for (connected, seconds, awaited) in [
        ("False", limit + 1, false),
        ("False", limit - 60, true),
        // Of one that stays it is told no oftener than every few minutes.
        ("True", limit + 1, true),
        ("Unknown", limit + 1, true),
    ] {
        let condition = json!({"type": "Connected", "status": connected, "reason": "Ok", "message": "",
            "lastTransitionTime": ago(seconds)});
        let facts = facts_with(&json!({"conditions": [condition], "lastSeen": ago(seconds)}));
        let found = facts.awaited_routers(now).count();
        assert_eq!(found == 1, awaited, "{connected}, {seconds} s ago");
    }
}
