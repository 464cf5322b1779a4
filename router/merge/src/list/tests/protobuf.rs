//! Protobuf lists.

use proptest::prelude::*;

use super::*;
use crate::wire;

/// A decoder of its own: fields of a message, length-delimited ones with their content.
fn decode(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
    fn number(message: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = message[0];
            *message = &message[1..];
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                break;
            }
        }
        value
    }
    let mut fields = Vec::new();
    while !message.is_empty() {
        let tag = number(&mut message);
        let content = match tag % 8 {
            0 => number(&mut message).to_le_bytes().to_vec(),
            2 => {
                let length = usize::try_from(number(&mut message)).unwrap();
                let content = message[..length].to_vec();
                message = &message[length..];
                content
            }
            other => panic!("wire type {other}"),
        };
        fields.push((tag / 8, content));
    }
    fields
}

fn one(fields: &[(u64, Vec<u8>)], number: u64) -> Vec<u8> {
    let found: Vec<_> = fields.iter().filter(|field| field.0 == number).collect();
    assert_eq!(found.len(), 1, "field {number} once");
    found[0].1.clone()
}

fn object(namespace: &str, name: &str, content: &[u8]) -> Vec<u8> {
    let mut meta = Vec::new();
    wire::put(&mut meta, wire::META_NAME, name.as_bytes());
    wire::put(&mut meta, wire::META_NAMESPACE, namespace.as_bytes());
    let mut object = Vec::new();
    wire::put(&mut object, wire::OBJECT_META, &meta);
    wire::put(&mut object, 2, content);
    object
}

fn envelope(kind: &str, list: &[u8]) -> Vec<u8> {
    let mut type_meta = Vec::new();
    wire::put(&mut type_meta, 1, b"v1");
    wire::put(&mut type_meta, 2, kind.as_bytes());
    let mut body = wire::MAGIC.to_vec();
    wire::put(&mut body, 1, &type_meta);
    wire::put(&mut body, 2, list);
    wire::put(&mut body, 3, b"");
    wire::put(&mut body, 4, b"");
    body
}

fn list(items: &[Vec<u8>]) -> Vec<u8> {
    let mut meta = Vec::new();
    wire::put(&mut meta, 1, b"");
    wire::put(&mut meta, 2, b"77");
    wire::put(&mut meta, 3, b"on");
    meta.extend([4 << 3, 3]);
    let mut list = Vec::new();
    wire::put(&mut list, 1, &meta);
    for item in items {
        wire::put(&mut list, 2, item);
    }
    envelope("ThingList", &list)
}

/// Items and fillers of a merged list, as they stand.
fn read(merged: &Merged) -> Vec<(u64, Vec<u8>)> {
    let unknown = decode(merged.body.strip_prefix(b"k8s\0").unwrap());
    let kind = decode(&one(&unknown, 1));
    assert_eq!((one(&kind, 1), one(&kind, 2)), (b"v1".to_vec(), b"ThingList".to_vec()));
    assert_eq!((one(&unknown, 3), one(&unknown, 4)), (Vec::new(), Vec::new()));
    let mut list = decode(&one(&unknown, 2));
    let list_meta = decode(&list.remove(0).1);
    assert_eq!(one(&list_meta, 2), meta().resource_version.into_bytes());
    assert_eq!(one(&list_meta, 3), b"to\"ken");
    assert_eq!(list_meta.len(), 3, "no remainingItemCount");
    list
}

fn items(list: Vec<(u64, Vec<u8>)>) -> Vec<Vec<u8>> {
    list.into_iter()
        .filter(|field| field.0 == 2)
        .map(|field| field.1)
        .collect()
}

type Leg = (Vec<(String, String, Vec<u8>)>, Vec<u16>);

fn legs() -> impl Strategy<Value = Vec<Leg>> {
    let item = ("ns-[a-d]", "[a-z]{1,8}", proptest::collection::vec(any::<u8>(), 0..300));
    let leg = (
        proptest::collection::vec(item, 0..6),
        proptest::collection::vec(any::<u16>(), 0..8),
    );
    proptest::collection::vec(leg, 1..4)
}

fn objects(leg: &Leg) -> Vec<Vec<u8>> {
    leg.0
        .iter()
        .map(|(namespace, name, content)| object(namespace, name, content))
        .collect()
}

proptest! {
    #[test]
    fn a_merge_is_the_union(legs in legs()) {
        let bodies = legs.iter().map(|leg| Body::cut(list(&objects(leg)), &leg.1)).collect();
        let merged = merge(ListFormat::Protobuf, options(), bodies).unwrap();
        prop_assert_eq!(items(read(&merged)), legs.iter().flat_map(objects).collect::<Vec<_>>());
        for meta in merged.metas {
            let expected = LegMeta { resource_version: "77".to_owned(), continue_: Some("on".to_owned()), remaining: Some(3), shard_selector: None };
            prop_assert_eq!(meta, Some(expected));
        }
    }

    #[test]
    fn a_filter_leaves_what_it_admits_and_nothing_of_the_rest(legs in legs()) {
        let bodies = legs.iter().map(|leg| Body::cut(list(&objects(leg)), &leg.1).only(&["ns-a", "ns-c"])).collect();
        let merged = merge(ListFormat::Protobuf, options(), bodies).unwrap();
        let fields = read(&merged);
        let all: Vec<_> = legs.iter().flat_map(|leg| leg.0.clone()).collect();
        prop_assert_eq!(fields.len(), all.len());
        for ((number, content), (namespace, name, inside)) in fields.into_iter().zip(all) {
            let whole = object(&namespace, &name, &inside);
            if namespace == "ns-a" || namespace == "ns-c" {
                prop_assert_eq!((number, content), (2, whole));
            } else {
                prop_assert_eq!((number, content), (15, vec![0; whole.len()]));
            }
        }
    }

    #[test]
    fn a_name_counts_once(legs in legs()) {
        let bodies = legs.iter().map(|leg| Body::cut(list(&objects(leg)), &leg.1)).collect();
        let merged = merge(ListFormat::Protobuf, ListOptions { unique: true, ..options() }, bodies).unwrap();
        let (mut expected, mut taken) = (Vec::new(), HashSet::new());
        for leg in &legs {
            let free = leg.0.iter().filter(|item| !taken.contains(&item.1));
            expected.extend(free.map(|item| object(&item.0, &item.1, &item.2)).collect::<Vec<_>>());
            taken.extend(leg.0.iter().map(|item| item.1.clone()));
        }
        let all: usize = legs.iter().map(|leg| leg.0.len()).sum();
        prop_assert_eq!(merged.collisions, (all - expected.len()) as u64);
        prop_assert_eq!(items(read(&merged)), expected);
    }

    #[test]
    fn noise_is_an_error_or_a_list_but_no_panic(legs in legs(), noise in proptest::collection::vec(any::<u8>(), 0..20), at: u16, filtered: bool) {
        let mut body = list(&objects(&legs[0]));
        let at = body.len() * usize::from(at) / usize::from(u16::MAX);
        let end = (at + noise.len()).min(body.len());
        body.splice(at..end, noise);
        let mut body = Body::cut(body, &legs[0].1);
        body.filter = filtered.then(|| only(&["ns-a"]));
        let _ = merge(ListFormat::Protobuf, options(), vec![body]);
    }
}

#[test]
fn every_truncation_wants_more() {
    let whole = list(&[object("ns-a", "a", &[7; 200]), object("ns-b", "b", b"")]);
    // The four bytes behind the list say nothing, so a list without them is whole.
    let end = whole.len() - 4;
    for filter in [None, Some(only(&["ns-b"]))] {
        for at in 0..=whole.len() {
            let mut body = Body::bytewise(&whole[..at]);
            body.filter.clone_from(&filter);
            let merged = merge(ListFormat::Protobuf, options(), vec![body]);
            if at < end || (at - end) % 2 == 1 {
                assert_eq!(merged.err().unwrap().fault, ListFault::Cut, "at {at}");
            } else {
                assert_eq!(
                    items(read(&merged.unwrap())).len(),
                    if filter.is_some() { 1 } else { 2 }
                );
            }
        }
    }
}

#[test]
fn claimed_lengths_are_not_believed() {
    for claimed in [1000, u64::from(u32::MAX), u64::MAX] {
        let mut whole = envelope("ThingList", b"");
        whole.truncate(whole.len() - 6);
        wire::put_header(&mut whole, 2, claimed);
        wire::put(&mut whole, 1, b"");
        let mut item = whole.clone();
        wire::put_header(&mut item, 2, claimed - 20);
        item.extend(b"abc");
        for body in [whole.clone(), item.clone()] {
            for filter in [None, Some(only(&["ns-a"]))] {
                let mut body = Body::whole(body.clone());
                body.filter = filter;
                let error = merge(ListFormat::Protobuf, options(), vec![body]).err().unwrap();
                let beyond = claimed == u64::MAX && matches!(error.fault, ListFault::Broken(_));
                assert!(
                    beyond || matches!(error.fault, ListFault::Cut | ListFault::ItemTooLarge { .. }),
                    "{error}"
                );
            }
        }
        let two = vec![Body::whole(whole.clone()), Body::whole(whole)];
        assert!(merge(ListFormat::Protobuf, options(), two).is_err());
        let mut head = wire::MAGIC.to_vec();
        wire::put_header(&mut head, 1, claimed << 11 | 1 << 40);
        let error = merge(ListFormat::Protobuf, options(), vec![Body::whole(head)])
            .err()
            .unwrap();
        assert!(matches!(error.fault, ListFault::Broken(_)), "{error}");
    }
}

#[test]
fn what_is_no_list_names_the_member() {
    let good = || Body::whole(list(&[object("ns-a", "a", b"")]));
    let fault = |body: &[u8]| {
        let error = merge(
            ListFormat::Protobuf,
            options(),
            vec![good(), Body::whole(body.to_vec())],
        )
        .err()
        .unwrap();
        assert_eq!((error.leg, &*error.cluster), (1, "c1"));
        error.fault
    };
    assert_eq!(fault(b"<html>"), ListFault::NotAList("<html>".to_owned()));
    assert_eq!(fault(b"{\"kind\":1}"), ListFault::NotAList("{\"kind\":1}".to_owned()));
    assert_eq!(fault(b""), ListFault::Cut);
    assert!(matches!(
        fault(&envelope("OtherList", b"")),
        ListFault::TypeDiffers { .. }
    ));
    assert!(matches!(
        fault(&[b"k8s\0", &[0xff; 30][..]].concat()),
        ListFault::Broken(_)
    ));
    let mut untyped = wire::MAGIC.to_vec();
    wire::put(&mut untyped, 2, b"");
    assert!(matches!(fault(&untyped), ListFault::Broken(_)));
    let mut late = Vec::new();
    wire::put(&mut late, 2, b"");
    wire::put(&mut late, 1, b"");
    assert!(matches!(fault(&envelope("ThingList", &late)), ListFault::Broken(_)));
    let mut beyond = Vec::new();
    wire::put(&mut beyond, 1, b"");
    wire::put_header(&mut beyond, 2, 5);
    assert!(matches!(fault(&envelope("ThingList", &beyond)), ListFault::Broken(_)));
    // The field of the items, but a number: as a length it would point anywhere.
    let numbered = [0x10, 0xff, 0xff, 0xff, 0xff, 0x0f];
    assert!(matches!(fault(&envelope("ThingList", &numbered)), ListFault::Broken(_)));
    let mut twice = list(&[]);
    wire::put(&mut twice, 2, b"");
    assert!(matches!(fault(&twice), ListFault::Broken(_)));
}

#[test]
fn unknown_fields_and_lists_without_anything_pass() {
    let mut inside = Vec::new();
    wire::put(&mut inside, 1, b"");
    inside.extend([9 << 3, 0x80, 1]);
    wire::put(&mut inside, 7, b"new");
    wire::put(&mut inside, 2, &object("ns-a", "a", b""));
    for filter in [None, Some(only(&["ns-a"]))] {
        let body = |inside: &[u8]| {
            let mut body = Body::bytewise(&envelope("ThingList", inside));
            body.filter.clone_from(&filter);
            body
        };
        let merged = merge(
            ListFormat::Protobuf,
            options(),
            vec![body(&inside), body(b""), body(&inside)],
        )
        .unwrap();
        let numbers: Vec<_> = read(&merged).iter().map(|field| field.0).collect();
        assert_eq!(numbers, [9, 7, 2, 9, 7, 2]);
        assert_eq!(merged.metas[1], Some(LegMeta::default()));
    }
}

#[test]
fn tags_longer_than_need_be_stay_as_long() {
    let thing = object("ns-b", "b", b"x");
    let mut inside = vec![1 << 3 | 2, 0, 0x80 | (2 << 3 | 2), 0];
    wire::put_varint(&mut inside, thing.len() as u64);
    inside.extend(&thing);
    let body = || Body::whole(envelope("ThingList", &inside));
    let merged = merge(
        ListFormat::Protobuf,
        options(),
        vec![body().only(&["ns-a"]), body().only(&["ns-b"])],
    )
    .unwrap();
    assert_eq!(read(&merged), [(15, vec![0; thing.len()]), (2, thing)]);
}

#[test]
fn large_items_are_refused_where_they_must_be_held() {
    let body = list(&[object("ns-a", "a", &[7; 1000])]);
    let small = || ListOptions {
        max_item_bytes: 500,
        ..options()
    };
    let held = vec![Body::whole(body.clone()).only(&["ns-a"])];
    let error = merge(ListFormat::Protobuf, small(), held).err().unwrap();
    assert_eq!(error.fault, ListFault::ItemTooLarge { limit: 500 });
    assert!(merge(ListFormat::Protobuf, small(), vec![Body::whole(body)]).is_ok());
}
