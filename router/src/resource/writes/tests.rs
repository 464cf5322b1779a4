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

pub(crate) fn releasing(epoch: u64) -> Arc<Snapshot> {
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
    let mut write = writes.begin((&"east".into(), "a", "ops/blue"), Some(epoch));
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

#[tokio::test(start_paused = true)]
async fn a_write_whose_outcome_is_not_known_is_not_answered_while_it_may_be_under_way() {
    let writes = writes();
    drop(begun(&writes, 2));
    tokio::time::advance(LOST_FOR).await;
    assert_eq!(is_answered(&writes, 2), Some(false));
    assert_eq!(is_answered(&writes, 3), Some(true), "it was of an earlier grant");
    tokio::time::advance(UNDER_WAY_FOR).await;
    assert_eq!(is_answered(&writes, 2), Some(true));
}

#[tokio::test(start_paused = true)]
async fn a_lost_write_that_said_no_epoch_is_of_every_epoch_for_a_minute() {
    let writes = writes();
    let mut write = writes.begin((&"east".into(), "a", "ops/blue"), None);
    write.leaves();
    drop(write);
    assert_eq!(is_answered(&writes, 2), Some(false));
    assert_eq!(is_answered(&writes, 9), Some(false), "its member admits it in any");
    tokio::time::advance(LOST_FOR).await;
    assert_eq!(is_answered(&writes, 9), Some(true));
}

#[test]
fn one_that_never_left_is_nothing() {
    let writes = writes();
    drop(writes.begin((&"east".into(), "a", "ops/blue"), Some(2)));
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

#[tokio::test(start_paused = true)]
async fn what_an_earlier_process_has_sent_is_over_in_time_or_if_its_folder_tells() {
    let writes = Arc::new(Writes::default());
    writes.inherit(&granted(2));
    assert!(!writes.is_over());
    tokio::time::advance(UNDER_WAY_FOR).await;
    assert_eq!(is_answered(&writes, 2), Some(true));
    assert!(writes.is_over());

    let writes = Arc::new(Writes::default());
    writes.earlier_are_answered();
    writes.inherit(&granted(2));
    assert_eq!(is_answered(&writes, 2), Some(true));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_over_while_a_write_is_open_or_lost() {
    let writes = Arc::new(Writes::default());
    writes.earlier_are_answered();
    assert!(writes.is_over());
    let mut open = begun(&writes, 2);
    assert!(!writes.is_over());
    open.answered();
    drop(open);
    assert!(writes.is_over());
    drop(begun(&writes, 2));
    let mut bare = writes.begin((&"east".into(), "b", "ops/blue"), None);
    bare.leaves();
    drop(bare);
    assert!(!writes.is_over());
    tokio::time::advance(LOST_FOR).await;
    assert!(!writes.is_over());
    tokio::time::advance(UNDER_WAY_FOR).await;
    assert!(writes.is_over());
}

#[tokio::test(start_paused = true)]
async fn writes_say_no_epoch_for_a_while_where_their_member_has_none_and_only_while_the_hub_is_heard() {
    let writes = Arc::<Writes>::default();
    let (east, west) = (Arc::from("east"), Arc::from("west"));
    let bare = |epoch| writes.says_no_epoch((&east, "ns-a", "ops/blue"), epoch);
    let has_none = |epoch| writes.has_no_epoch((&east, "ns-a", "ops/blue"), epoch);
    let stream = writes.stream();
    stream.told();
    assert!(!bare(3));
    has_none(3);
    assert!(bare(3));
    assert!(!bare(4), "another grant");
    assert!(!writes.says_no_epoch((&west, "ns-a", "ops/blue"), 3));
    tokio::time::advance(BARE_FOR).await;
    assert!(!bare(3), "by now it may be annotated");
    has_none(3);
    drop(stream);
    assert!(!bare(3), "the namespace may be another's by now");
    let stream = writes.stream();
    assert!(!bare(3), "nor is it known before the hub has told");
    stream.told();
    assert!(bare(3));
}

/// Shards of two operators have the namespace, each in an epoch of its own.
fn shared(blue: (u64, v1::GrantState), pink: (u64, v1::GrantState)) -> Arc<Snapshot> {
    let owned = [("ops/blue", "ops/rollouts", blue), ("ops/pink", "ops/prometheus", pink)];
    let owned = owned.map(|(shard, operator, (epoch, state))| {
        let grant = v1::NamespaceGrant {
            namespace: "a".into(),
            owner_count: epoch,
            state: state.into(),
            ..v1::NamespaceGrant::default()
        };
        Body::Ownership(v1::Ownership {
            cluster: "east".into(),
            shard: shard.into(),
            operator: operator.into(),
            namespaces: vec![grant],
            ..v1::Ownership::default()
        })
    });
    told::upsert(&Snapshot::default(), "1", owned).snapshot.into()
}

/// What is open, lost and bare of one operator's shard is nothing to a handover of another's.
#[tokio::test(start_paused = true)]
async fn a_handover_waits_for_no_write_of_another_operator() {
    use v1::GrantState::{Granted, Releasing};
    let writes = Arc::new(Writes::default());
    writes.inherit(&shared((2, Granted), (5, Granted)));
    let answered = |blue, pink| {
        let answered = writes.answered(&shared((3, blue), (6, pink))).unwrap();
        let epochs = answered.pairs.iter().map(|pair| pair.epoch);
        epochs.collect::<Vec<_>>()
    };
    let begin = |shard, epoch| {
        let mut write = writes.begin((&"east".into(), "a", shard), epoch);
        write.leaves();
        write
    };
    let mut slow = begin("ops/pink", Some(6));
    drop((begin("ops/pink", Some(6)), begin("ops/pink", None)));
    assert_eq!(answered(Releasing, Granted), [3], "those of pink are nothing to blue");
    assert_eq!(answered(Granted, Releasing), [0; 0]);
    let mut own = begin("ops/blue", Some(3));
    assert_eq!(answered(Releasing, Granted), [0; 0]);
    own.answered();
    drop(own);
    assert_eq!(answered(Releasing, Releasing), [3]);
    tokio::time::advance(UNDER_WAY_FOR).await;
    assert_eq!(answered(Releasing, Releasing), [3], "one of pink is open");
    slow.answered();
    drop(slow);
    assert_eq!(answered(Releasing, Releasing), [3, 6]);

    let east = "east".into();
    let stream = writes.stream();
    stream.told();
    writes.has_no_epoch((&east, "a", "ops/pink"), 6);
    writes.has_no_epoch((&east, "a", "ops/blue"), 3);
    assert!(writes.says_no_epoch((&east, "a", "ops/pink"), 6) && writes.says_no_epoch((&east, "a", "ops/blue"), 3));
    assert!(!writes.says_no_epoch((&east, "a", "ops/blue"), 6));
}
