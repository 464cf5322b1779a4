//! The spec before the one in force: kept while its object is the same, over restarts, and only where both fit.

use portolan_crds::ledger::{Content, EarlierSpec, SPEC_BYTES_MAX};

use super::*;

/// Shard `a` of an object, with a spec of so many bytes at least.
fn a(uid: &str, generation: i64, bytes: usize) -> State {
    let state = specs(generation, 1, bytes);
    let accepted = state.accepted.into_values().map(|one| Accepted {
        uid: uid.to_owned(),
        ..one
    });
    State {
        accepted: accepted.map(|one| (shard("a"), one)).collect(),
        ..State::default()
    }
}

/// Generation of what lies in the ledger as the spec before the present one.
fn kept(objects: &Objects) -> Option<i64> {
    let path = format!("{FOLDER}/{}", portolan_crds::ledger::spec_object(&shard("a")));
    let object = objects.lock()[&path].clone();
    let data: BTreeMap<String, String> = serde_json::from_value(object["data"].clone()).unwrap();
    let name = path.rsplit('/').next().unwrap();
    let Content::Spec(spec) = Record::decode(name, &data).unwrap().content else {
        unreachable!("{name} is a spec");
    };
    spec.before.map(|EarlierSpec { generation, .. }| generation)
}

#[tokio::test]
async fn the_spec_before_is_kept_over_restarts_while_the_object_is_the_same() {
    let objects = Objects::default();
    let client = scripted_api(objects.clone());
    let (mut store, opened) = open(&client).await.unwrap();
    let told = |state: State| in_life(&opened, state);
    store.commit(&told(a("one", 1, 1))).await.unwrap();
    assert_eq!(kept(&objects), None);
    store.commit(&told(a("one", 2, 2))).await.unwrap();
    assert_eq!(kept(&objects), Some(1));
    let (mut store, again) = open(&client).await.unwrap();
    assert_eq!(again, told(a("one", 2, 2)), "no hub goes by it");
    assert_eq!(kept(&objects), Some(1));
    // Written anew with the same spec, as after an edit of a label.
    store.commit(&told(a("one", 3, 2))).await.unwrap();
    assert_eq!(kept(&objects), Some(1));
    store.commit(&told(a("two", 1, 3))).await.unwrap();
    assert_eq!(kept(&objects), None, "another object of that name");
}

#[tokio::test]
async fn what_does_not_fit_into_one_record_is_not_kept() {
    let objects = Objects::default();
    let client = scripted_api(objects.clone());
    let (mut store, opened) = open(&client).await.unwrap();
    for (generation, bytes) in [(1, SPEC_BYTES_MAX / 2), (2, SPEC_BYTES_MAX / 2 + 1)] {
        store
            .commit(&in_life(&opened, a("one", generation, bytes)))
            .await
            .unwrap();
    }
    assert_eq!(kept(&objects), None);
    store.commit(&in_life(&opened, a("one", 3, 1))).await.unwrap();
    assert_eq!(kept(&objects), Some(2));
}
