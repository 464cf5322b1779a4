//! For whom what is written: who has asked for it owes it.

use super::*;

#[test]
fn what_is_written_is_for_whose_shards_it_is() {
    let other = ShardName::new("others", "x").unwrap();
    let before = state(&[("ns-a", "a"), ("ns-b", "b")]);
    let mut after = before.clone();
    let mut chunk = after
        .ledger
        .chunks("east", "", &[Slot::WHOLE].into(), &[Slot::WHOLE].into())
        .remove(0);
    chunk
        .pairs
        .get_mut("ns-b")
        .unwrap()
        .get_mut(&OperatorName::default())
        .unwrap()
        .owner = Some(other.clone());
    let one = chunk
        .pairs
        .remove("ns-a")
        .unwrap()
        .remove(&OperatorName::default())
        .unwrap();
    let left = Departure {
        view_revision: one.view_revision,
        unix_seconds: 0,
    };
    chunk
        .departures
        .entry(shard("a"))
        .or_default()
        .insert("ns-a".to_owned(), left);
    after.ledger = Arc::new(Ledger::restore(Contention::Fleet, [chunk], 3, false));
    let one = after.accepted.remove(&shard("b")).unwrap();
    after.accepted.insert(other, one);
    let listed = portolan_crds::ledger::Root {
        specs: before.accepted.keys().cloned().collect(),
        ..portolan_crds::ledger::Root::default()
    };
    let batch = Batch::new(&after, &listed, &Unsaved::between(&before, &after), &Earlier::default());
    let for_whom: BTreeMap<_, _> = batch
        .contents
        .iter()
        .map(|(content, authors)| (name_of(content), authors.iter().map(String::as_str).collect::<Vec<_>>()))
        .collect();
    assert_eq!(
        for_whom["portolan-ledger-east-0-of-1"],
        ["ops", "others"],
        "who let go, and who took"
    );
    assert_eq!(
        for_whom.values().filter(|authors| **authors == ["others"]).count(),
        1,
        "a spec"
    );
    assert_eq!(
        batch.authors,
        ["ops", "others"].map(str::to_owned).into(),
        "one is listed no more"
    );
}
