//! A ledger of before that was switched to owners of each operator.

use super::*;

/// `ns-a` of east is `a`'s, `ns-b` of west `b`'s, two programs, in a ledger of before; and that switched.
fn before_and_switched() -> [State; 2] {
    let mut chunks = Vec::new();
    for (cluster, namespace, owner) in [("east", "ns-a", "a"), ("west", "ns-b", "b")] {
        let mut chunk = Chunk::new(cluster, Slot::WHOLE);
        chunk.add(namespace, OperatorName::default(), pair(owner, 1));
        chunks.push(chunk);
    }
    let mut before = state(&[("ns-a", "a"), ("ns-b", "b")]);
    for (name, operator) in [("a", "rollouts"), ("b", "prometheus")] {
        let accepted = before.accepted.get_mut(&shard(name)).unwrap();
        Arc::make_mut(&mut accepted.spec).operator = Some(operator.to_owned());
    }
    before.ledger = Arc::new(Ledger::restore(Contention::Fleet, chunks, 1, false));
    let mut switched = before.clone();
    Arc::make_mut(&mut switched.ledger).separate(&before.accepted);
    [before, switched]
}

/// Chunks are written one by one, and before the root: a hub that dies in between has switched.
#[tokio::test]
async fn a_ledger_that_was_switched_in_part_is_read_as_switched() {
    let objects = Objects::default();
    let client = scripted_api(objects.clone());
    let (mut store, opened) = open(&client).await.unwrap();
    let [before, switched] = before_and_switched().map(|state| in_life(&opened, state));
    store.commit(&before).await.unwrap();
    let of_before = objects.lock().clone();
    let format = |object: &Value| {
        let text = object["data"]["record.json"].as_str().unwrap();
        serde_json::from_str::<Value>(text).unwrap()["format"].clone()
    };
    assert!(
        of_before.values().all(|object| format(object) == 1),
        "an older hub reads it"
    );
    let (_, again) = open(&client).await.unwrap();
    assert_eq!(again, before);
    let (mut store, _) = open(&client).await.unwrap();
    store.commit(&switched).await.unwrap();
    let whole = objects.lock().clone();
    let names: Vec<_> = whole
        .keys()
        .filter(|name| format(&whole[*name]) == 2)
        .cloned()
        .collect();
    assert_eq!(names.len(), 3, "the root and both chunks: {names:?}");
    // Of each number of these that were not written any more.
    for lost in 1..names.len() {
        for name in &names[..lost] {
            let mut object = of_before[name].clone();
            object["metadata"]["resourceVersion"] = whole[name]["metadata"]["resourceVersion"].clone();
            objects.lock().insert(name.clone(), object);
        }
        let (mut store, again) = open(&client).await.unwrap();
        assert_eq!(again, switched, "without {lost} of {names:?}");
        store.commit(&again).await.unwrap();
        let written = objects.lock().clone();
        assert!(
            names.iter().all(|name| format(&written[name]) == 2),
            "and is written whole"
        );
    }
}

/// All of it in one commit, each piece a write of its own: of a hundred thousand pairs some 250, eight at a time, where each may take 0.3 s
/// before the commit is late and is tried again.
#[tokio::test]
async fn a_ledger_of_many_pairs_is_switched_in_small_pieces() {
    const OF_EACH: usize = 10_000;
    let objects = Objects::default();
    let client = scripted_api(objects.clone());
    let (mut store, opened) = open(&client).await.unwrap();
    let [mut before, _] = before_and_switched();
    let chunks = ["east", "west"].map(|cluster| {
        let mut chunk = Chunk::new(cluster, Slot::WHOLE);
        for number in 0..OF_EACH {
            let owner = if number % 2 == 0 { "a" } else { "b" };
            let namespace = format!("namespace-of-some-team-{number}");
            chunk.add(&namespace, OperatorName::default(), pair(owner, 1_000_000));
        }
        chunk
    });
    before.ledger = Arc::new(Ledger::restore(Contention::Fleet, chunks, 1_000_000, false));
    let before = in_life(&opened, before);
    store.commit(&before).await.unwrap();
    let of_before = objects.lock().clone();
    let mut switched = before.clone();
    Arc::make_mut(&mut switched.ledger).separate(&before.accepted);
    store.commit(&switched).await.unwrap();
    let changed = objects.lock().clone().into_iter();
    let changed = changed.filter(|(name, object)| of_before.get(name) != Some(object));
    let bytes = |object: &Value| object["data"]["record.json"].as_str().unwrap().len();
    let written: Vec<_> = changed.map(|(_, object)| bytes(&object)).collect();
    let largest = written.iter().max().copied().unwrap_or_default();
    assert!(largest < CHUNK_BYTES_MAX + 1024, "{largest} bytes");
    assert!(written.len() < 2 * OF_EACH / 300, "{} writes", written.len());
    let (_, again) = open(&client).await.unwrap();
    assert!(again == switched);
}
