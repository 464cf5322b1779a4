//! A member that was restored from a backup: another incarnation, with the same objects at older versions.

use super::*;

#[test]
fn what_a_restored_member_has_is_told_though_it_is_older() {
    let mut merge = merge(WatchFormat::Json, &[Start::Sync]);
    merge.legs[0].known = Some(Box::new(KnownObjects::new(None)));
    let mut out = Output::default();
    let there = named("ADDED", "a", "1", 3) + &named("ADDED", "b", "1", 8) + &named("ADDED", "c", "1", 9);
    let _ = merge.push(0, (there + &bookmark(9, true)).into(), &mut out);
    merge.flush(&mut out);
    drain(&mut out);
    let restored = WatchLeg {
        cluster: "m0".into(),
        uid_hash: 1,
        slot: 0,
        filter: None,
        request_hash: 0,
        share: None,
        selector_hash: 0,
        start: Start::Sync,
    };
    let universe = Universe::new("shard", ["m0#1".to_owned()]);
    let acts = merge.replan(&universe, vec![restored], &mut out);
    let start = Start::Sync;
    assert_eq!(acts, [Act::Restart { leg: 0, start }]);
    let there = named("ADDED", "a", "1", 3) + &named("ADDED", "b", "1", 4);
    let _ = merge.push(0, (there + &bookmark(4, true)).into(), &mut out);
    merge.flush(&mut out);
    let said = String::from_utf8(drain(&mut out).concat()).unwrap();
    let told = |what: &str, name: &str| {
        let line = said.lines().find(|line| line.contains(&format!("\"name\":\"{name}\"")));
        assert!(line.is_some_and(|line| line.contains(what)), "{name}: {said}");
    };
    told("ADDED", "a");
    told("\"resourceVersion\":\"4\"", "b");
    told("DELETED", "c");
}
