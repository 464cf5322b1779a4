//! Records come back as they were written, no chunk is too long, and what was changed by hand is noticed.

use proptest::prelude::*;

use super::*;
use crate::operator::OperatorName;

fn shard(name: &str) -> ShardName {
    ShardName::new("ops", name).unwrap()
}

fn record(content: Content) -> Record {
    Record {
        term: 3,
        view_revision: 99,
        content,
    }
}

fn arbitrary_chunk() -> impl Strategy<Value = Chunk> {
    let owner = || prop_oneof![Just(None), "[a-c]".prop_map(|name| Some(shard(&name)))];
    let fence = (any::<u64>(), any::<bool>());
    let pair = (owner(), any::<u64>(), any::<u64>(), any::<bool>(), fence);
    let operator = prop_oneof![Just(""), Just("ops/"), Just("ops/rollouts")].prop_map(|name| name.parse().unwrap());
    let of_operators = prop::collection::btree_map(operator, pair, 1..3);
    let pairs = prop::collection::btree_map("[a-z]{1,8}", of_operators, 0..20);
    let departure = (any::<u64>(), any::<i64>());
    let departures = prop::collection::btree_map("[a-z]{1,8}", departure, 1..5);
    let departures = prop::collection::btree_map("[a-c]", departures, 0..3);
    (pairs, departures, any::<u64>()).prop_map(|(pairs, departures, dropped_up_to)| {
        let pair = |(owner, owner_count, view_revision, releasing, (epoch, whole))| Pair {
            // Of an epoch that is not known nothing is.
            fence: PairFence {
                epoch,
                whole: whole && epoch > 0,
            },
            owner,
            owner_count,
            view_revision,
            releasing,
        };
        let departure = |(view_revision, unix_seconds)| Departure {
            view_revision,
            unix_seconds,
        };
        let departures = departures.into_iter().map(|(name, namespaces)| {
            let namespaces = namespaces.into_iter();
            let namespaces = namespaces.map(|(namespace, one)| (namespace, departure(one)));
            (shard(&name), namespaces.collect())
        });
        let of_namespace = |all: BTreeMap<OperatorName, _>| {
            let all = all.into_iter();
            all.map(|(operator, one)| (operator, pair(one))).collect()
        };
        Chunk {
            pairs: pairs
                .into_iter()
                .map(|(namespace, all)| (namespace, of_namespace(all)))
                .collect(),
            departures: departures.collect(),
            dropped_up_to,
            ..Chunk::new("east", Slot::WHOLE)
        }
    })
}

/// What random halving makes of the whole.
fn arbitrary_slots() -> impl Strategy<Value = BTreeSet<Slot>> {
    prop::collection::vec(any::<prop::sample::Index>(), 0..12).prop_map(|halvings| {
        let mut slots = vec![Slot::WHOLE];
        for index in halvings {
            let halved = slots.swap_remove(index.index(slots.len()));
            slots.extend(halved.halves().unwrap());
        }
        slots.into_iter().collect()
    })
}

proptest! {
    #[test]
    fn a_chunk_comes_back_as_it_was_written(chunk in arbitrary_chunk()) {
        let record = record(Content::Chunk(chunk));
        prop_assert_eq!(Record::decode(&record.object_name(), &record.encode()).unwrap(), record);
    }

    #[test]
    fn each_namespace_is_of_one_slot(slots in arbitrary_slots(), namespace in "[a-z]{1,12}") {
        let holding: Vec<_> = slots.iter().copied().filter(|slot| slot.holds("key", &namespace)).collect();
        prop_assert_eq!(holding.len(), 1);
        prop_assert_eq!(Slot::of_namespace("key", &slots, &namespace), Some(holding[0]));
        prop_assert!(Slot::is_partition(&slots));
        for slot in &slots {
            prop_assert_eq!(slot.to_string().parse::<Slot>().unwrap(), *slot);
            let mut fewer = slots.clone();
            fewer.remove(slot);
            prop_assert!(!Slot::is_partition(&fewer));
        }
    }
}

/// Of the longest names, with as many owners as there can be.
#[test]
fn chunks_of_the_longest_names_are_bounded() {
    const NAMESPACES: usize = 10_000;
    let mut whole = Chunk::new(&"c".repeat(63), Slot::WHOLE);
    for index in 0..NAMESPACES {
        let owner = ShardName::new("n".repeat(63), format!("{}-{}", "s".repeat(200), index % 5000)).unwrap();
        let pair = Pair {
            fence: PairFence {
                epoch: u64::from(u32::MAX),
                whole: false,
            },
            owner: Some(owner),
            owner_count: u64::from(u32::MAX),
            view_revision: 9_999_999_999,
            releasing: false,
        };
        whole.add(&format!("{}-{index:05}", "n".repeat(57)), OperatorName::default(), pair);
    }
    let chunks = whole.clone().bounded("key");
    let slots: BTreeSet<_> = chunks.iter().map(|chunk| chunk.slot).collect();
    assert!(Slot::is_partition(&slots));
    let mut pairs = BTreeMap::new();
    let count = chunks.len();
    for chunk in chunks {
        assert!(chunk.pairs.keys().all(|namespace| chunk.slot.holds("key", namespace)));
        pairs.extend(chunk.pairs.clone());
        let data = record(Content::Chunk(chunk)).encode();
        let bytes: usize = data.values().map(String::len).sum();
        assert!(bytes < CHUNK_BYTES_MAX + 256, "{bytes}");
    }
    assert_eq!(pairs, whole.pairs);
    assert!(count <= 256, "{count} chunks");
}

/// Names that meet in one slot of one ledger are spread over another's.
#[test]
fn nobody_knows_which_namespaces_share_a_slot() {
    let slot: Slot = "0-of-256".parse().unwrap();
    let names = (0..).map(|index| format!("ns-{index}"));
    let chosen: Vec<_> = names.filter(|name| slot.holds("one", name)).take(64).collect();
    let still = chosen.iter().filter(|name| slot.holds("another", name)).count();
    assert!(still < 8, "{still} of 64");
}

#[test]
fn what_was_changed_by_hand_is_noticed() {
    let spec = SpecInForce {
        shard: shard("a"),
        uid: "u".to_owned(),
        generation: 2,
        spec: serde_json::json!({"unknown": ["field"]}),
        before: Some(EarlierSpec {
            generation: 1,
            spec: serde_json::json!({"unknown": ["another"]}),
        }),
        lock: None,
        withheld: Vec::new(),
    };
    let record = record(Content::Spec(spec));
    let (name, good) = (record.object_name(), record.encode());
    assert_eq!(Record::decode(&name, &good).unwrap(), record);
    let with = |key: &str, change: fn(&str) -> String| {
        let mut data = good.clone();
        let text = data.get_mut(key).unwrap();
        *text = change(text);
        Record::decode(&name, &data).unwrap_err().to_string()
    };
    let edited = with(DATA_RECORD, |text| text.replace("\"generation\":2", "\"generation\":3"));
    assert!(edited.contains("changed by hand"), "{edited}");
    let cut = with(DATA_RECORD, |text| text[..text.len() / 2].to_owned());
    assert!(cut.contains("changed by hand"), "{cut}");
    let misnamed = Record::decode(&spec_object(&shard("b")), &good)
        .unwrap_err()
        .to_string();
    assert!(misnamed.contains(&name), "{misnamed}");
    let mut without = good.clone();
    without.remove(DATA_CHECKSUM);
    assert!(matches!(
        Record::decode(&name, &without),
        Err(RecordError::Missing(DATA_CHECKSUM))
    ));
    let text = good[DATA_RECORD].replacen("\"format\":1", "\"format\":3", 1);
    let later = [(DATA_CHECKSUM, checksum(&text)), (DATA_RECORD, text)];
    let later = later.map(|(key, value)| (key.to_owned(), value)).into();
    assert!(matches!(Record::decode(&name, &later), Err(RecordError::Format(3))));
}

#[test]
fn a_record_that_is_listed_and_missing_or_not_understood_is_named() {
    let spec = |name: &str, spec| {
        Content::Spec(SpecInForce {
            shard: shard(name),
            uid: "u".to_owned(),
            generation: 2,
            spec,
            before: None,
            lock: None,
            withheld: Vec::new(),
        })
    };
    let root = Root {
        specs: [shard("a"), shard("b")].into(),
        ..Root::default()
    };
    let good = |name| spec(name, serde_json::json!({"clusters": []}));
    assert_eq!(root.check(&[good("a"), good("b")]), Ok(()));
    let missing = root.check(&[good("a")]).unwrap_err();
    assert!(missing.contains("ops/b is missing"), "{missing}");
    let later = spec(
        "b",
        serde_json::json!({"clusters": [], "enforcement": "OfALaterVersion"}),
    );
    let unread = root.check(&[good("a"), later]).unwrap_err();
    assert!(unread.contains("the spec of ops/b in force cannot be read"), "{unread}");
    let overlapping = Root {
        chunks: [(
            "east".to_owned(),
            ["0-of-1", "0-of-2"].map(|slot| slot.parse().unwrap()).into(),
        )]
        .into(),
        ..Root::default()
    };
    assert!(overlapping.check(&[]).unwrap_err().contains("east"));
}

#[test]
fn names_of_objects_tell_what_they_hold() {
    let slot = "3-of-8".parse().unwrap();
    assert_eq!(chunk_object("east", slot), "portolan-ledger-east-3-of-8");
    for bad in ["", "3", "3-of-7", "8-of-8", "-1-of-8", "3-of-2097152", "3-of-0"] {
        assert!(bad.parse::<Slot>().is_err(), "{bad}");
    }
    let root = Root {
        chunks: [("east".to_owned(), [slot].into())].into(),
        specs: [shard("a")].into(),
        ..Root::default()
    };
    assert_eq!(spec_object(&shard("a")).len(), "portolan-ledger-spec-".len() + 32);
    let objects = [chunk_object("east", slot), spec_object(&shard("a"))];
    assert_eq!(root.objects(), objects.into());
}
