//! Authors who say much: what they say waits for their turn, and nobody else does.

use portolan_crds::ShardName;

use super::*;

const SPEC: usize = 700 * 1024;

fn edited(author: &str, name: &str, generation: i64, bytes: usize) -> DynamicObject {
    let kind = ApiResource::erase::<ShardingConfig>(&());
    let spec = json!({"selector": {}, "serviceAccounts": ["a".repeat(bytes)]});
    let mut object = object(&kind, name, spec).within(author);
    object.metadata.generation = Some(generation);
    object
}

fn generation(index: &Index, author: &str, name: &str) -> Option<i64> {
    let name = ShardName::new(author, name).unwrap();
    index.read(|facts| facts.shards.get(&name).map(|object| object.generation))
}

/// Thirty objects of evil have been written anew once a second, for so long.
fn flooded(index: &Index, seconds: i64) -> (Instant, usize) {
    let start = Instant::now();
    let mut taken_in = 0;
    for second in 0..seconds {
        let now = start + Duration::from_secs(u64::try_from(second).unwrap());
        for number in 0..30 {
            let name = format!("e-{number}");
            index.shard_applied_at(&edited("evil", &name, second + 2, SPEC), now);
            taken_in += usize::from(generation(index, "evil", &name) == Some(second + 2));
        }
        index.take_turns(now);
        let calm = edited("ops", "calm", second + 2, 1000);
        index.shard_applied_at(&calm, now);
        assert_eq!(generation(index, "ops", "calm"), Some(second + 2), "in second {second}");
    }
    (start + Duration::from_secs(u64::try_from(seconds).unwrap()), taken_in)
}

fn begun() -> Index {
    let index = Index::default();
    let all: Vec<_> = (0..30)
        .map(|number| edited("evil", &format!("e-{number}"), 1, SPEC))
        .collect();
    index.shards_begun(&all);
    assert_eq!(index.waiting(), 0, "what is there at the start is taken in at once");
    assert_eq!(generation(&index, "evil", "e-29"), Some(1));
    index
}

#[test]
fn who_writes_much_waits_for_its_turn_and_nobody_else_does() {
    let index = begun();
    let (end, taken_in) = flooded(&index, 12);
    assert!((20..40).contains(&taken_in), "{taken_in} of 360 edits");
    assert_eq!(index.waiting(), 30);
    index.take_turns(end + Duration::from_mins(10));
    let newest = (0..30).filter(|number| generation(&index, "evil", &format!("e-{number}")) == Some(13));
    assert!(newest.count() >= 23, "what was said last is taken in, a burst of it");
    index.take_turns(end + Duration::from_mins(20));
    assert_eq!(index.waiting(), 0);
}

#[test]
fn what_else_changes_of_what_waits_counts_at_once() {
    let index = begun();
    let (end, _) = flooded(&index, 2);
    let name = ShardName::new("evil", "e-29").unwrap();
    assert!(index.is_waiting(&name));
    let spec = |index: &Index| index.read(|facts| facts.shards[&name].spec.clone().unwrap());
    let before = spec(&index);
    let mut object = edited("evil", "e-29", 9, SPEC);
    object.metadata.finalizers = Some(vec![portolan_crds::labels::FINALIZER_SHARD.to_owned()]);
    index.shard_applied_at(&object, end);
    assert!(index.read(|facts| facts.shards[&name].has_finalizer));
    assert!(Arc::ptr_eq(&before, &spec(&index)), "the spec of before");
    object.metadata.generation = Some(10);
    object.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        Timestamp::UNIX_EPOCH,
    ));
    index.shard_applied_at(&object, end);
    assert!(index.read(|facts| facts.shards[&name].deleting) && !index.is_waiting(&name));
    index.shard_deleted(&object);
    assert_eq!(generation(&index, "evil", "e-29"), None);
    // Made anew, it is another object, which waits; that of before is gone.
    let gone = ShardName::new("evil", "e-28").unwrap();
    let mut anew = edited("evil", "e-28", 1, SPEC);
    anew.metadata.uid = Some("another".to_owned());
    index.shard_applied_at(&anew, end);
    assert!(index.is_waiting(&gone) && generation(&index, "evil", "e-28").is_none());
    // Nor does a list that is told anew take anything in out of turn.
    assert!(index.charge("evil", 64 << 20, end));
    index.shards_listed(std::slice::from_ref(&anew));
    assert_eq!((index.waiting(), index.read(|facts| facts.shards.len())), (1, 0));
    // A hub that begins to lead knows of all that there is.
    index.shards_begun(&[anew]);
    assert_eq!((index.waiting(), index.read(|facts| facts.shards.len())), (0, 1));
    index.shards_listed(&[]);
    assert_eq!(index.waiting(), 0);
}

#[test]
fn a_spec_is_read_once_a_generation() {
    let index = Index::default();
    let mut object = edited("ops", "a", 1, 10);
    object.data["spec"]["serviceAccounts"] = json!(["Not A Name"]);
    index.shard_applied(&object);
    let name = ShardName::new("ops", "a").unwrap();
    let known = |index: &Index| index.read(|facts| facts.shards[&name].clone());
    let first = known(&index);
    assert!(
        first.flaw.as_ref().unwrap().message.contains("Not A Name"),
        "{:?}",
        first.flaw
    );
    object.data["status"] = json!({"observedGeneration": 1});
    index.shard_applied(&object);
    let second = known(&index);
    assert_eq!(second.status.observed_generation, Some(1));
    assert!(Arc::ptr_eq(first.spec.as_ref().unwrap(), second.spec.as_ref().unwrap()));
    assert_eq!((first.flaw, first.bytes), (second.flaw, second.bytes));
}
