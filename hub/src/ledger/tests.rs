//! The ledger against a scripted API server: what is stored comes back, in bounded pieces; a hub that is not the hub any
//! more ends; and what statuses said before there were ledgers is taken over or refused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use kube::Client;
use portolan_crds::ledger::{CHUNK_BYTES_MAX, Chunk, Departure, Pair, Record, Slot};
use portolan_crds::{ClusterEntry, Contention, OperatorName, ShardName, ShardingConfigSpec};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::records::{Batch, Earlier, Unsaved};
use super::*;
use crate::compile::{Accepted, Ledger, State};
use crate::index::Index;
use crate::metrics::Metrics;
use crate::testing::{Objects, SharedFaults, faulty_api, scripted_api};

const NAMESPACE: &str = "portolan-system";
const FOLDER: &str = "/api/v1/namespaces/portolan-system/configmaps";

fn shard(name: &str) -> ShardName {
    ShardName::new("ops", name).unwrap()
}

fn pair(owner: &str, view_revision: u64) -> Pair {
    Pair {
        fence: portolan_crds::ledger::PairFence { epoch: 1, whole: true },
        owner: Some(shard(owner)),
        owner_count: 1,
        view_revision,
        releasing: false,
    }
}

/// `pairs`: namespaces of east and their owners.
fn state(pairs: &[(&str, &str)]) -> State {
    let mut chunk = Chunk::new("east", Slot::WHOLE);
    let mut accepted = BTreeMap::new();
    let mut view_revision = 0;
    for (namespace, owner) in pairs {
        view_revision += 1;
        chunk.add(namespace, OperatorName::default(), pair(owner, view_revision));
        let entry = ClusterEntry {
            name: Some("east".to_owned()),
            ..ClusterEntry::default()
        };
        let spec = ShardingConfigSpec {
            clusters: vec![entry],
            ..ShardingConfigSpec::default()
        };
        let one = Accepted {
            uid: format!("uid-{owner}"),
            generation: 1,
            spec: Arc::new(spec),
            ..Accepted::default()
        };
        accepted.insert(shard(owner), one);
    }
    State {
        accepted,
        ledger: Arc::new(Ledger::restore(Contention::Fleet, [chunk], view_revision, false)),
        ..State::default()
    }
}

async fn open(client: &Client) -> Result<(Store, State), LedgerError> {
    Store::open(client.clone(), NAMESPACE, &Arc::default(), (Metrics::default(), 1)).await
}

async fn refusal(client: &Client) -> LedgerError {
    open(client).await.err().expect("it cannot be opened")
}

/// `wanted` in the life of the ledger that `opened` has.
fn in_life(opened: &State, wanted: State) -> State {
    State {
        incarnation: opened.incarnation.clone(),
        ..wanted
    }
}

#[tokio::test]
async fn what_was_stored_comes_back_by_the_same_incarnation() {
    let client = scripted_api(Objects::default());
    let (mut store, opened) = open(&client).await.unwrap();
    assert!(opened.is_empty() && !opened.incarnation.is_empty());
    let wanted = in_life(&opened, state(&[("ns-a", "a"), ("ns-b", "b")]));
    store.commit(&wanted).await.unwrap();
    let (_, again) = open(&client).await.unwrap();
    assert_eq!(again, wanted);
}

#[tokio::test]
async fn what_did_not_change_is_not_written() {
    let objects = Objects::default();
    let client = scripted_api(objects.clone());
    let (mut store, opened) = open(&client).await.unwrap();
    let wanted = in_life(&opened, state(&[("ns-a", "a"), ("ns-b", "b")]));
    store.commit(&wanted).await.unwrap();
    let before = objects.lock().clone();
    store.commit(&wanted).await.unwrap();
    assert_eq!(*objects.lock(), before);
    let moved = in_life(&opened, state(&[("ns-a", "a"), ("ns-b", "a"), ("ns-c", "b")]));
    store.commit(&moved).await.unwrap();
    let written = objects
        .lock()
        .iter()
        .filter(|(path, object)| before.get(*path) != Some(*object))
        .count();
    assert_eq!(written, 1, "one chunk");
    let gone = in_life(&opened, State::default());
    store.commit(&gone).await.unwrap();
    assert_eq!(objects.lock().len(), 1, "nothing but the root");
}

#[tokio::test]
async fn the_earlier_of_two_hubs_ends() {
    let client = scripted_api(Objects::default());
    let (mut first, opened) = open(&client).await.unwrap();
    first.commit(&in_life(&opened, state(&[("ns-a", "a")]))).await.unwrap();
    first.check().await.unwrap();
    let (mut second, taken) = open(&client).await.unwrap();
    assert!(matches!(first.check().await, Err(LedgerError::Superseded { .. })));
    // Also without looking: of what is there already, and of what is new.
    let (mut third, _) = open(&client).await.unwrap();
    let changed = second
        .commit(&in_life(&taken, state(&[("ns-a", "b")])))
        .await
        .unwrap_err();
    assert!(
        matches!(changed, LedgerError::Superseded { ours: 2, theirs: 3, .. }),
        "{changed}"
    );
    third.commit(&taken).await.unwrap();
}

#[tokio::test]
async fn a_hub_that_was_superseded_adds_nothing_either() {
    let client = scripted_api(Objects::default());
    let (mut first, opened) = open(&client).await.unwrap();
    let (mut second, _) = open(&client).await.unwrap();
    let error = first
        .commit(&in_life(&opened, state(&[("ns-a", "a")])))
        .await
        .unwrap_err();
    assert!(matches!(error, LedgerError::Superseded { .. }), "{error}");
    // What it left is listed nowhere, and is written over.
    let wanted = in_life(&opened, state(&[("ns-a", "b")]));
    let error = second.commit(&wanted).await.unwrap_err();
    assert!(!error.is_final(), "{error}");
    second.commit(&wanted).await.unwrap();
    assert_eq!(open(&client).await.unwrap().1, wanted);
}

#[tokio::test]
async fn what_somebody_else_changed_is_not_written_over() {
    for change in ["edit", "delete"] {
        let objects = Objects::default();
        let client = scripted_api(objects.clone());
        let (mut store, opened) = open(&client).await.unwrap();
        store.commit(&in_life(&opened, state(&[("ns-a", "a")]))).await.unwrap();
        let path = format!("{FOLDER}/portolan-ledger-east-0-of-1");
        match change {
            "edit" => {
                let mut objects = objects.lock();
                let object = objects.get_mut(&path).unwrap();
                let text = object["data"]["record.json"]
                    .as_str()
                    .unwrap()
                    .replace("ops/a", "ops/z");
                object["data"]["record.json"] = json!(text);
                object["metadata"]["resourceVersion"] = json!("77");
            }
            _ => drop(objects.lock().remove(&path)),
        }
        let error = store
            .commit(&in_life(&opened, state(&[("ns-a", "b")])))
            .await
            .unwrap_err();
        assert!(error.is_final(), "{change}: {error}");
        assert!(error.to_string().contains("portolan-ledger-east-0-of-1"), "{error}");
        // Nor does the next one start from it.
        let error = refusal(&client).await.to_string();
        assert!(
            error.contains("portolan-ledger-east-0-of-1") && error.contains("ledger adopt"),
            "{error}"
        );
    }
}

/// Data of the first chunk of `state` as a hub of this term writes it.
fn data_of(state: &State, term: u64) -> Value {
    let whole = [Slot::WHOLE].into();
    let chunk = state.ledger.chunks("east", "", &whole, &whole).remove(0);
    let record = Record {
        term,
        view_revision: state.ledger.view_revision(),
        content: portolan_crds::ledger::Content::Chunk(chunk),
    };
    json!(record.encode())
}

#[tokio::test]
async fn a_write_of_its_own_that_comes_late_is_no_edit() {
    let faults = SharedFaults::default();
    let client = faulty_api(Objects::default(), faults.clone());
    let (mut store, opened) = open(&client).await.unwrap();
    store.commit(&in_life(&opened, state(&[("ns-a", "a")]))).await.unwrap();
    let [given_up, wanted] = ["b", "c"].map(|owner| in_life(&opened, state(&[("ns-a", owner)])));
    faults.lock().refused = true;
    store.commit(&given_up).await.unwrap_err();
    let late = (format!("{FOLDER}/portolan-ledger-east-0-of-1"), data_of(&given_up, 1));
    *faults.lock() = crate::testing::Faults {
        overtaken: Some(late),
        ..crate::testing::Faults::default()
    };
    let error = store.commit(&wanted).await.unwrap_err();
    assert!(!error.is_final(), "{error}");
    store.commit(&wanted).await.unwrap();
    assert_eq!(open(&client).await.unwrap().1, wanted);
}

#[tokio::test]
async fn a_last_write_of_the_hub_of_before_is_read_anew() {
    let (objects, faults) = (Objects::default(), SharedFaults::default());
    let client = faulty_api(objects.clone(), faults.clone());
    let (mut first, opened) = open(&client).await.unwrap();
    first.commit(&in_life(&opened, state(&[("ns-a", "a")]))).await.unwrap();
    let last = state(&[("ns-a", "a"), ("ns-b", "a")]);
    // It is carried out when the root is raised: before the next hub reads.
    let root = format!("{FOLDER}/portolan-ledger");
    let same = objects.lock()[&root]["data"].clone();
    faults.lock().overtaken = Some((root, same));
    let error = refusal(&client).await;
    assert!(!error.is_final(), "{error}");
    let path = format!("{FOLDER}/portolan-ledger-east-0-of-1");
    objects.lock().get_mut(&path).unwrap()["data"] = data_of(&last, 1);
    assert_eq!(open(&client).await.unwrap().1.ledger, last.ledger);
}

/// It had begun before the next hub read, is carried out after it, and nobody was told of it.
#[tokio::test]
async fn a_write_of_the_hub_of_before_that_comes_late_is_written_over() {
    let faults = SharedFaults::default();
    let client = faulty_api(Objects::default(), faults.clone());
    let (mut first, opened) = open(&client).await.unwrap();
    first.commit(&in_life(&opened, state(&[("ns-a", "a")]))).await.unwrap();
    let (mut second, taken) = open(&client).await.unwrap();
    let late = data_of(&state(&[("ns-a", "a"), ("ns-b", "a")]), first.term());
    faults.lock().overtaken = Some((format!("{FOLDER}/portolan-ledger-east-0-of-1"), late));
    let wanted = in_life(&taken, state(&[("ns-a", "a"), ("ns-b", "b")]));
    let error = second.commit(&wanted).await.unwrap_err();
    assert!(!error.is_final(), "{error}");
    second.commit(&wanted).await.unwrap();
    assert_eq!(open(&client).await.unwrap().1, wanted);
}

/// What is older than what was read is no last write: somebody has put it there.
#[tokio::test]
async fn a_record_that_was_set_back_is_not_written_over() {
    let faults = SharedFaults::default();
    let client = faulty_api(Objects::default(), faults.clone());
    let (mut first, opened) = open(&client).await.unwrap();
    let before = in_life(&opened, state(&[("ns-a", "a")]));
    first
        .commit(&in_life(&opened, state(&[("ns-a", "a"), ("ns-b", "b")])))
        .await
        .unwrap();
    let (mut second, _) = open(&client).await.unwrap();
    let copy = data_of(&before, first.term());
    faults.lock().overtaken = Some((format!("{FOLDER}/portolan-ledger-east-0-of-1"), copy));
    let wanted = in_life(&opened, state(&[("ns-a", "b"), ("ns-b", "b")]));
    let error = second.commit(&wanted).await.unwrap_err();
    assert!(error.is_final(), "{error}");
}

#[tokio::test]
async fn a_hub_that_leads_next_writes_the_root_alone() {
    let objects = Objects::default();
    let client = scripted_api(objects.clone());
    let (mut first, opened) = open(&client).await.unwrap();
    let wanted = in_life(&opened, state(&[("ns-a", "a"), ("ns-b", "b")]));
    first.commit(&wanted).await.unwrap();
    let before = objects.lock().clone();
    let (second, again) = open(&client).await.unwrap();
    assert_eq!(again, wanted);
    assert!(second.term() > first.term());
    let written = |before: &BTreeMap<String, Value>| {
        let objects = objects.lock();
        let written = objects
            .iter()
            .filter(|(path, object)| before.get(*path) != Some(*object));
        written.map(|(path, _)| path.clone()).collect::<Vec<_>>()
    };
    assert_eq!(written(&before), [format!("{FOLDER}/portolan-ledger")]);
    // A grant that it has written it tells nobody of: the root is another's.
    let more = in_life(&opened, state(&[("ns-a", "a"), ("ns-b", "b"), ("ns-c", "b")]));
    let error = first.commit(&more).await.unwrap_err();
    assert!(matches!(error, LedgerError::Superseded { .. }), "{error}");

    // After a hub of before there were replicas, which does not look at the root, all is written once more.
    let root = format!("{FOLDER}/portolan-ledger");
    let text = objects.lock()[&root]["data"]["record.json"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut record: Record = serde_json::from_str(&text).unwrap();
    let portolan_crds::ledger::Content::Root(of_before) = &mut record.content else {
        panic!("{text}")
    };
    of_before.confirmed = false;
    objects.lock().get_mut(&root).unwrap()["data"] = json!(record.encode());
    let before = objects.lock().clone();
    open(&client).await.unwrap();
    assert!(written(&before).len() > 3, "{:?}", written(&before));
}

#[tokio::test]
async fn what_is_not_listed_need_not_be_read() {
    let objects = Objects::default();
    let client = scripted_api(objects.clone());
    let (mut store, opened) = open(&client).await.unwrap();
    let wanted = in_life(&opened, state(&[("ns-a", "a")]));
    store.commit(&wanted).await.unwrap();
    let copy = |objects: &Objects| {
        let mut copy = objects.lock()[&format!("{FOLDER}/portolan-ledger")].clone();
        copy["metadata"]["name"] = json!("portolan-ledger-backup");
        objects.lock().insert(format!("{FOLDER}/portolan-ledger-backup"), copy);
    };
    copy(&objects);
    assert_eq!(open(&client).await.unwrap().1, wanted);
    assert!(
        objects.lock().contains_key(&format!("{FOLDER}/portolan-ledger-backup")),
        "it stays"
    );
}

/// A label or an annotation that somebody put on it changes nothing that is ours.
#[tokio::test]
async fn a_record_under_a_new_version_is_still_ours() {
    let objects = Objects::default();
    let client = scripted_api(objects.clone());
    let (mut store, opened) = open(&client).await.unwrap();
    store.commit(&in_life(&opened, state(&[("ns-a", "a")]))).await.unwrap();
    for object in objects.lock().values_mut() {
        object["metadata"]["resourceVersion"] = json!("77");
    }
    let moved = in_life(&opened, state(&[("ns-a", "b")]));
    let error = store.commit(&moved).await.unwrap_err();
    assert!(!error.is_final(), "{error}");
    let error = store.commit(&moved).await;
    assert!(
        error.as_ref().is_err_and(|error| !error.is_final()) || error.is_ok(),
        "the root is another"
    );
    store.commit(&moved).await.unwrap();
    assert_eq!(open(&client).await.unwrap().1, moved);
}

#[tokio::test]
async fn a_root_that_is_gone_is_no_first_start() {
    let objects = Objects::default();
    let client = scripted_api(objects.clone());
    let (mut store, opened) = open(&client).await.unwrap();
    store.commit(&in_life(&opened, state(&[("ns-a", "a")]))).await.unwrap();
    objects.lock().remove(&format!("{FOLDER}/portolan-ledger"));
    let error = refusal(&client).await;
    assert!(matches!(error, LedgerError::Damaged { .. }), "{error}");
}

/// An API server that answers the n-th write with an error although it was carried out.
#[tokio::test]
async fn an_answer_that_was_lost_costs_one_more_try() {
    for lost in 0..3 {
        let objects = Objects::default();
        let faults = SharedFaults::default();
        let client = faulty_api(objects.clone(), faults.clone());
        let (mut store, opened) = open(&client).await.unwrap();
        let wanted = in_life(&opened, state(&[("ns-a", "a"), ("ns-b", "b")]));
        faults.lock().lost_after = Some(lost);
        let error = store.commit(&wanted).await.unwrap_err();
        assert!(!error.is_final(), "{error}");
        store.commit(&wanted).await.unwrap();
        assert_eq!(open(&client).await.unwrap().1, wanted);
    }
}

/// Many shards, of which each has a spec of so many bytes at least.
fn specs(generation: i64, count: usize, bytes: usize) -> State {
    let spec = ShardingConfigSpec {
        caller_clusters: vec!["c".repeat(bytes)],
        ..ShardingConfigSpec::default()
    };
    let one = Accepted {
        uid: "uid".to_owned(),
        generation,
        spec: Arc::new(spec),
        ..Accepted::default()
    };
    let accepted = (0..count).map(|index| (shard(&format!("shard-{index}")), one.clone()));
    State {
        accepted: accepted.collect(),
        ..State::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_waited_for_once() {
    let faults = SharedFaults::default();
    let client = faulty_api(Objects::default(), faults.clone());
    let (mut store, opened) = open(&client).await.unwrap();
    let wanted = in_life(&opened, specs(1, 300, 1));
    for away in [true, true] {
        faults.lock().away = away;
        let asked = tokio::time::Instant::now();
        let error = store.commit(&wanted).await.unwrap_err();
        assert!(matches!(error, LedgerError::Late { .. }), "{error}");
        assert!(asked.elapsed().as_secs() <= 11, "{:?}", asked.elapsed());
    }
    faults.lock().away = false;
    store.commit(&wanted).await.unwrap();
    assert_eq!(open(&client).await.unwrap().1, wanted);
}

#[tokio::test(start_paused = true)]
async fn what_is_written_all_the_time_is_written_slower() {
    let client = scripted_api(Objects::default());
    let (mut store, opened) = open(&client).await.unwrap();
    let mut commits = 0;
    while store.is_due() {
        commits += 1;
        store
            .commit(&in_life(&opened, specs(commits, 1, 500 * 1024)))
            .await
            .unwrap();
    }
    assert!((30..=40).contains(&commits), "a minute's worth: {commits}");
    tokio::time::advance(std::time::Duration::from_secs(3)).await;
    assert!(store.is_due());
}

#[test]
fn an_accepted_spec_is_told_whole() {
    let before = State::default();
    let after = state(&[("ns-a", "a")]);
    let changes = Unsaved::between(&before, &after);
    let listed = portolan_crds::ledger::Root::default();
    let batch = Batch::new(&after, &listed, &changes, &Earlier::default());
    let names: Vec<_> = batch.contents.iter().map(|(content, _)| name_of(content)).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(batch.root.objects(), names.into_iter().collect());
}

fn name_of(content: &portolan_crds::ledger::Content) -> String {
    let record = Record {
        term: 1,
        view_revision: 1,
        content: content.clone(),
    };
    record.object_name()
}

/// Everything of a ledger of `pairs`, written, and read back from what is listed.
struct Stored {
    root: portolan_crds::ledger::Root,
    contents: BTreeMap<String, portolan_crds::ledger::Content>,
    said: State,
}

impl Stored {
    fn new() -> Self {
        Self {
            root: portolan_crds::ledger::Root::default(),
            contents: BTreeMap::new(),
            said: State::default(),
        }
    }

    /// Names of what was written.
    fn say(&mut self, next: State) -> BTreeSet<String> {
        let changes = Unsaved::between(&self.said, &next);
        let batch = Batch::new(&next, &self.root, &changes, &Earlier::default());
        let written = batch.contents.iter().map(|(content, _)| name_of(content)).collect();
        for (content, _) in batch.contents {
            self.contents.insert(name_of(&content), content);
        }
        self.root = batch.root;
        self.said = next;
        written
    }

    fn read(&self) -> State {
        let listed = self.root.objects().into_iter().map(|name| self.contents[&name].clone());
        records::state(&self.root, listed.collect(), self.said.ledger.view_revision()).unwrap()
    }
}

fn ledger_of(pairs: &BTreeMap<String, (u8, u64)>, departures: &BTreeMap<String, u64>) -> State {
    let mut chunk = Chunk::new("east", Slot::WHOLE);
    for (namespace, (owner, view_revision)) in pairs {
        let pair = pair(&format!("shard-{owner}"), *view_revision);
        chunk.add(namespace, OperatorName::default(), pair);
    }
    for (namespace, view_revision) in departures {
        let departure = Departure {
            view_revision: *view_revision,
            unix_seconds: Timestamp::UNIX_EPOCH.as_second(),
        };
        let of_shard = chunk.departures.entry(shard("left")).or_default();
        of_shard.insert(namespace.clone(), departure);
    }
    State {
        ledger: Arc::new(Ledger::restore(Contention::Fleet, [chunk], 1, false)),
        ..State::default()
    }
}

proptest! {
    /// Whatever is said one after the other, what was said last is read back.
    #[test]
    fn what_was_said_last_is_read_back(
        states in prop::collection::vec(
            (
                prop::collection::btree_map("[a-d]{1,3}", (0..3_u8, 0..9_u64), 0..12),
                prop::collection::btree_map("[a-d]{1,3}", 0..9_u64, 0..4),
            ),
            1..6,
        )
    ) {
        let mut stored = Stored::new();
        for (pairs, departures) in states {
            let next = ledger_of(&pairs, &departures);
            stored.say(next.clone());
            prop_assert_eq!(&*stored.read().ledger, &*next.ledger);
        }
    }
}

/// The largest member there may be: chunks of bounded size, and a pair that changes touches one of them.
#[test]
fn a_pair_that_changes_touches_one_chunk() {
    let name = |index: usize| format!("{}-{index:05}", "n".repeat(57));
    let mut pairs: BTreeMap<_, _> = (0..50_000).map(|index| (name(index), (0, index as u64))).collect();
    let mut stored = Stored::new();
    let all = stored.say(ledger_of(&pairs, &BTreeMap::new()));
    assert!((128..=512).contains(&all.len()), "{} chunks", all.len());
    for content in stored.contents.values() {
        let record = Record {
            term: u64::MAX,
            view_revision: u64::MAX,
            content: content.clone(),
        };
        let bytes: usize = record.encode().values().map(String::len).sum();
        assert!(bytes < CHUNK_BYTES_MAX + 256, "{bytes}");
    }
    for index in [0, 7, 49_999] {
        pairs.insert(name(index), (1, 50_001));
        let written = stored.say(ledger_of(&pairs, &BTreeMap::new()));
        assert_eq!(written.len(), 1, "{written:?}");
    }
    assert_eq!(stored.read().ledger, stored.said.ledger);
    assert!(stored.say(ledger_of(&pairs, &BTreeMap::new())).is_empty());
}

mod authors;
mod earlier;
mod statuses;
mod switched;
