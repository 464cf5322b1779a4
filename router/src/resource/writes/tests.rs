//! What may be said of writes, and what may not.

use portolan_wire::v1::resource::Body;

use super::*;
use crate::value::snapshot::told;

fn snapshot(grants: &[(&str, u64, v1::GrantState)]) -> Arc<Snapshot> {
    let grants = grants.iter().map(|(namespace, epoch, state)| v1::NamespaceGrant {
        namespace: (*namespace).to_owned(),
        owner_count: *epoch,
        state: (*state).into(),
        ..v1::NamespaceGrant::default()
    });
    let owned = v1::Ownership {
        cluster: "east".into(),
        shard: "ops/blue".into(),
        namespaces: grants.collect(),
        ..v1::Ownership::default()
    };
    told::upsert(&Snapshot::default(), "1", [Body::Ownership(owned)])
        .snapshot
        .into()
}

fn granted(epoch: u64) -> Arc<Snapshot> {
    snapshot(&[("a", epoch, v1::GrantState::Granted)])
}

fn releasing(epoch: u64) -> Arc<Snapshot> {
    snapshot(&[("a", epoch, v1::GrantState::Releasing)])
}

fn is_answered(writes: &Writes, epoch: u64) -> Option<bool> {
    let answered = writes.answered(&releasing(epoch))?;
    Some(
        answered
            .pairs
            .iter()
            .any(|pair| pair.namespace == "a" && pair.epoch == epoch),
    )
}

/// Of a process that was there when epoch 2 came.
fn writes() -> Arc<Writes> {
    let writes = Arc::new(Writes::default());
    writes.inherit(&granted(1));
    writes
}

fn begun(writes: &Arc<Writes>, epoch: u64) -> Write {
    let mut write = writes.begin(&"east".into(), "a", epoch);
    write.leaves();
    write
}

#[tokio::test]
async fn a_pair_is_answered_once_its_last_write_is() {
    let writes = writes();
    assert_eq!(is_answered(&writes, 2), Some(true));
    let (mut one, mut other) = (begun(&writes, 2), begun(&writes, 2));
    assert_eq!(is_answered(&writes, 2), Some(false));
    one.answered();
    drop(one);
    assert_eq!(is_answered(&writes, 2), Some(false));
    other.answered();
    drop(other);
    writes.changed().await;
    assert_eq!(is_answered(&writes, 2), Some(true));
    assert!(writes.pairs.is_empty());
    assert_eq!(writes.answered(&granted(2)).unwrap().pairs, []);
}

#[test]
fn a_write_whose_outcome_is_not_known_is_never_answered() {
    let writes = writes();
    drop(begun(&writes, 2));
    assert_eq!(is_answered(&writes, 2), Some(false));
    assert_eq!(is_answered(&writes, 3), Some(true), "it was of an earlier grant");
}

#[test]
fn one_that_never_left_is_nothing() {
    let writes = writes();
    drop(writes.begin(&"east".into(), "a", 2));
    assert_eq!(is_answered(&writes, 2), Some(true));
}

#[test]
fn nothing_is_said_of_what_an_earlier_process_may_have_sent() {
    let writes = Arc::new(Writes::default());
    assert_eq!(is_answered(&writes, 2), None, "the hub has told nothing yet");
    writes.inherit(&granted(2));
    // Of later transactions all is known.
    writes.inherit(&granted(3));
    assert_eq!(is_answered(&writes, 2), Some(false));
    assert_eq!(is_answered(&writes, 3), Some(true));
}
