//! Roots that are shared out by objects: what moves when counts change, and how often.

use jiff::SignedDuration;
use portolan_crds::GroupResource;
use portolan_crds::partition::{PAIR_WEIGHT, Part, SETTLED_PERMILLE, TOLERATED_PERMILLE};

use super::roots::{fleet, parts, root, sized};
use super::*;
use crate::facts::counted;

const BUCKETS: usize = 32;

fn by_objects(size: usize) -> ShardingConfigSpec {
    root(&format!(
        "auto: {{shardingSize: {size}, everyShardReplicas: 1, balance: Objects}}"
    ))
}

fn at(minutes: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)
}

/// What the agent says of each of its two kinds.
fn tell(fleet: &mut Fleet, cluster: &str, by_bucket: impl Fn(usize) -> u64) {
    let Settings { keys, bucketing, .. } = Settings::default();
    let rule = v1::LabelRule {
        prefix: keys.prefix().to_owned(),
        bucketing: Some(bucketing.into()),
    };
    let figures: Vec<_> = (0..BUCKETS).map(by_bucket).collect();
    let agent = fleet.agent(cluster);
    for resource in ["pods", "configmaps"] {
        let kind = GroupResource::new("", resource);
        let coverage = v1::KindCoverage {
            rule: Some(rule.clone()),
            ..v1::KindCoverage::default()
        };
        agent.coverage.get_or_insert_default().insert(kind.clone(), coverage);
        agent.counts.insert(kind, counted(&figures));
    }
}

/// All children are written, and all routers have answered.
fn settle_at(fleet: &mut Fleet, now: Timestamp) -> Vec<Part> {
    for _ in 0..8 {
        let world = fleet.compile_at(u64::MAX, now);
        fleet.write_children(&world);
    }
    parts(&fleet.compile_at(u64::MAX, now))
}

/// Heaviest and lightest child by what agents have told, the heaviest without its lightest pair, in thousandths.
fn apart(fleet: &Fleet, parts: &[Part]) -> u64 {
    let told = |cluster: &str, bucket: u16| -> u64 {
        let counts = fleet.facts.agents[cluster].counts.values();
        counts.map(|kind| u64::from(kind[usize::from(bucket)])).sum()
    };
    let weights = parts.iter().map(|part| {
        let pairs = part
            .pairs()
            .map(|(cluster, bucket)| told(cluster, bucket) + PAIR_WEIGHT);
        let pairs: Vec<_> = pairs.collect();
        (pairs.iter().sum::<u64>(), pairs.iter().min().copied().unwrap_or(0))
    });
    let weights: Vec<_> = weights.collect();
    let most = weights.iter().map(|(all, lightest)| all - lightest).max().unwrap();
    most * 1000 / weights.iter().map(|(all, _)| all).min().unwrap()
}

/// Most of east is in its first buckets.
fn heavy(first: usize) -> impl Fn(usize) -> u64 {
    move |bucket| if bucket < first { 1000 } else { 0 }
}

#[test]
fn shards_have_as_many_objects_each_once_all_clusters_are_counted() {
    let mut fleet = fleet();
    fleet.apply("root", by_objects(2));
    let before = settle_at(&mut fleet, at(0));
    assert_eq!(before[0].len(), before[1].len(), "nobody has counted");
    let of_first = |bucket: usize| {
        before[0]
            .pairs()
            .any(|(cluster, of)| cluster == "east" && usize::from(of) == bucket)
    };
    tell(&mut fleet, "east", |bucket| if of_first(bucket) { 1000 } else { 0 });
    assert_eq!(settle_at(&mut fleet, at(1)), before, "west is not counted");
    tell(&mut fleet, "west", |_| 0);
    assert!(apart(&fleet, &before) > TOLERATED_PERMILLE);
    let after = settle_at(&mut fleet, at(1));
    assert!(apart(&fleet, &after) <= SETTLED_PERMILLE, "{after:?}");
    let objects = |fleet: &Fleet| -> Vec<Option<u64>> {
        let generated = fleet.state.roots[&shard_name("root")].in_force.as_ref().unwrap();
        let children = generated.expansion.children.iter();
        children.map(|child| generated.objects(child)).collect()
    };
    let all: Option<u64> = objects(&fleet).into_iter().sum();
    assert_eq!(all, Some(16 * 2 * 1000), "buckets, kinds and objects of each");
    // Of another root nothing depends on it.
    fleet.apply("root", sized(2));
    let pairs = settle_at(&mut fleet, at(2));
    assert_eq!(objects(&fleet), [None; 2]);
    assert_eq!(pairs[0].len(), pairs[1].len());
}

#[test]
fn pairs_move_beyond_the_tolerance_only_and_then_not_before_their_time() {
    let mut fleet = fleet();
    fleet.apply("root", by_objects(2));
    tell(&mut fleet, "east", heavy(16));
    tell(&mut fleet, "west", |_| 0);
    settle_at(&mut fleet, at(0));
    let first = settle_at(&mut fleet, at(0));
    tell(&mut fleet, "east", |bucket| heavy(16)(bucket) + 3 * bucket as u64);
    assert!(apart(&fleet, &first) <= TOLERATED_PERMILLE);
    assert_eq!(settle_at(&mut fleet, at(11)), first, "within the tolerance");
    tell(&mut fleet, "east", |bucket| {
        let is_of_first = first[0]
            .pairs()
            .any(|(cluster, of)| cluster == "east" && usize::from(of) == bucket);
        if is_of_first { 5000 } else { 1000 }
    });
    assert!(apart(&fleet, &first) > TOLERATED_PERMILLE);
    assert_eq!(settle_at(&mut fleet, at(20)), first, "looked at 9 minutes ago");
    let moved = settle_at(&mut fleet, at(21));
    assert!(apart(&fleet, &moved) <= SETTLED_PERMILLE, "{moved:?}");
    // An edit does not wait.
    fleet.apply("root", by_objects(3));
    assert_eq!(settle_at(&mut fleet, at(22)).len(), 3);
}

#[test]
fn a_member_that_wobbles_or_lies_moves_the_others_pairs_less_and_less_often() {
    let mut fleet = fleet();
    fleet.apply("root", by_objects(3));
    tell(&mut fleet, "east", |bucket| 10 * bucket as u64);
    let mut last = Vec::new();
    let mut moves = Vec::new();
    for minute in 0..24 * 60 {
        // A different half of its buckets each minute, far beyond what there can be.
        tell(&mut fleet, "west", |bucket| {
            if (bucket * 7 + minute) % 32 < 16 { u64::MAX } else { 0 }
        });
        let world = fleet.compile_at(u64::MAX, at(minute.try_into().unwrap()));
        fleet.write_children(&world);
        let now = world.state.roots[&shard_name("root")].in_force.clone();
        let now = now.map(|generated| {
            generated
                .expansion
                .children
                .iter()
                .map(|child| child.part.clone())
                .collect()
        });
        let now: Vec<Part> = now.unwrap_or_default();
        if now != last {
            moves.push(minute);
            last = now;
        }
    }
    assert!((4..=9).contains(&moves.len()), "{moves:?}");
    let gaps: Vec<_> = moves.windows(2).skip(1).map(|two| two[1] - two[0]).collect();
    assert!(gaps.iter().all(|gap| *gap >= 10) && gaps.is_sorted(), "{moves:?}");
}

#[test]
fn what_an_agent_that_begins_anew_has_not_counted_yet_counts_as_it_did() {
    let mut fleet = fleet();
    fleet.apply("root", by_objects(2));
    tell(&mut fleet, "east", heavy(16));
    tell(&mut fleet, "west", |_| 0);
    let before = settle_at(&mut fleet, at(0));
    let whole = fleet.facts.agents["east"].clone();
    fleet.agent("east").counts.clear();
    assert_eq!(settle_at(&mut fleet, at(100)), before);
    let has = |part: &Part, cluster: &str, bucket: usize| {
        let mut pairs = part.pairs();
        pairs.any(|(of, one)| of == cluster && usize::from(one) == bucket)
    };
    tell(&mut fleet, "west", |bucket| {
        if has(&before[0], "west", bucket) { 5000 } else { 0 }
    });
    let moved = settle_at(&mut fleet, at(200));
    assert_ne!(moved, before, "east is counted: as it was");
    // What it tells then are no first counts, which would not wait.
    *fleet.agent("east") = whole;
    tell(&mut fleet, "east", |bucket| {
        if has(&moved[0], "east", bucket) { 90_000 } else { 0 }
    });
    assert_eq!(settle_at(&mut fleet, at(201)), moved);
    assert_ne!(settle_at(&mut fleet, at(300)), moved);
}
