//! The seed corpus, made by the code it is for, so that it changes with the formats. `tests/corpus.rs` writes it
//! (`PORTOLAN_BLESS=1`) and proves the checked-in files fresh.

use portolan_merge::cursor::{Cursor, Slot};
use portolan_merge::token::{Reading, Token};
use portolan_merge::wire;

use crate::cursors::{binding, universe, viewed};

/// Name of the target, name of the file, content.
pub type Seed = (&'static str, String, Vec<u8>);

/// All of them.
pub fn all() -> Vec<Seed> {
    let mut seeds = Vec::new();
    cursors(&mut seeds);
    json_lists(&mut seeds);
    protobuf_lists(&mut seeds);
    watches(&mut seeds);
    seeds
}

fn cursors(seeds: &mut Vec<Seed>) {
    let of = [0, 1, 3].into_iter().flat_map(|members| {
        [
            (format!("of-{members}"), universe(members)),
            (format!("viewed-of-{members}"), viewed(members)),
        ]
    });
    for (name, universe) in of {
        let mut cursor = Cursor::new(&universe);
        cursor.set(0, Slot::At(u64::MAX));
        cursor.set(1, Slot::Sync);
        let text = cursor.encode().unwrap();
        seeds.push(("cursor", name.clone(), text.clone().into_bytes()));
        seeds.push((
            "cursor",
            format!("cut-{name}"),
            text.as_bytes()[..text.len() - 1].to_vec(),
        ));
    }
    seeds.push(("cursor", "raw".into(), b"18446744073709551615".to_vec()));
    seeds.push(("cursor", "text".into(), b"abc".to_vec()));
    for member in [None, Some("eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ".to_owned())] {
        let mut cursor = Cursor::new(&universe(3));
        cursor.set(1, Slot::At(12_345));
        let name = if member.is_some() { "inside" } else { "begin" };
        let token = Token {
            cursor,
            slot: 1,
            member_token: member,
            reading: if name == "begin" { Reading::Pinned } else { Reading::Now },
        };
        let text = token.encode(&universe(3), &binding("user")).unwrap();
        seeds.push(("token", name.into(), text.clone().into_bytes()));
        seeds.push((
            "token",
            format!("foreign-{name}"),
            token.encode(&universe(3), &binding("someone")).unwrap().into_bytes(),
        ));
        // What is signed anew by the target.
        let inside = base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, text).unwrap();
        seeds.push(("token", format!("json-{name}"), inside[..inside.len() - 8].to_vec()));
    }
}

fn json_lists(seeds: &mut Vec<Seed>) {
    let item = r#"{"metadata":{"name":"a","namespace":"ns-a","uid":"u","resourceVersion":"3","labels":{"x":"\"]}\\"}},"spec":{"items":[{}]}}"#;
    let other = item.replace("ns-a", "ns-b").replace("\"a\"", "\"\u{fc}\\u00fc\"");
    let meta = r#""metadata":{"resourceVersion":"77","continue":"on","remainingItemCount":3}"#;
    let table = r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7"},"columnDefinitions":[{"name":"Name","type":"string"}],"rows":[{"cells":["a"],"object":ITEM}]}"#;
    let lists = [
        (
            "builtin",
            format!("{{\"kind\":\"PodList\",\"apiVersion\":\"v1\",{meta},\"items\":[{item},{other}]}}\n"),
        ),
        (
            "custom",
            format!("{{\"apiVersion\":\"x/v1\",\"items\":[{other}, {item}],\"kind\":\"XList\",{meta}}}"),
        ),
        (
            "null",
            format!(r#"{{"kind":"PodList","apiVersion":"v1",{meta},"items":null}}"#),
        ),
        (
            "status",
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":500}"#.into(),
        ),
        ("html", "<html><body>busy</body></html>".into()),
        ("deep", format!(r#"{{"items":[{{"a":{}"#, "[{".repeat(300))),
        ("table", table.replace("ITEM", item)),
    ];
    for (name, list) in lists {
        // Plain, filtered and twice, cut, and as a Table.
        for (way, flags) in [("plain", 0), ("filtered", 3), ("cut", 16), ("table", 5)] {
            let data = [list.as_bytes(), &[flags]].concat();
            seeds.push(("json_list", format!("{name}-{way}"), data));
        }
    }
}

fn field(out: &mut Vec<u8>, number: u64, content: &[u8]) {
    wire::put(out, number, content);
}

fn object(namespace: &str, name: &str, version: &str) -> Vec<u8> {
    let mut meta = Vec::new();
    field(&mut meta, wire::META_NAME, name.as_bytes());
    field(&mut meta, wire::META_NAMESPACE, namespace.as_bytes());
    field(&mut meta, wire::META_UID, b"u");
    field(&mut meta, wire::META_VERSION, version.as_bytes());
    let mut object = Vec::new();
    field(&mut object, wire::OBJECT_META, &meta);
    field(&mut object, 2, b"spec");
    object
}

fn envelope(kind: &str, object: &[u8]) -> Vec<u8> {
    let mut type_meta = Vec::new();
    field(&mut type_meta, wire::TYPE_META_VERSION, b"v1");
    field(&mut type_meta, wire::TYPE_META_KIND, kind.as_bytes());
    let mut body = wire::MAGIC.to_vec();
    field(&mut body, wire::UNKNOWN_TYPE_META, &type_meta);
    field(&mut body, wire::UNKNOWN_RAW, object);
    field(&mut body, 3, b"");
    field(&mut body, 4, b"");
    body
}

fn protobuf_lists(seeds: &mut Vec<Seed>) {
    let mut meta = Vec::new();
    field(&mut meta, wire::LIST_META_VERSION, b"77");
    field(&mut meta, wire::LIST_META_CONTINUE, b"on");
    let mut list = Vec::new();
    field(&mut list, wire::LIST_META, &meta);
    let mut claimed = list.clone();
    for object in [object("ns-a", "a", "3"), object("ns-b", "b", "4")] {
        field(&mut list, wire::LIST_ITEMS, &object);
    }
    wire::put_header(&mut claimed, wire::LIST_ITEMS, u64::from(u32::MAX));
    // The field of the items, but a number.
    let numbered = [&list[..], &[0x10, 0xff, 0xff, 0xff, 0xff, 0x0f]].concat();
    let lists = [
        ("list", envelope("PodList", &list)),
        ("empty", envelope("PodList", b"")),
        ("claimed", envelope("PodList", &claimed)),
        ("numbered", envelope("PodList", &numbered)),
        ("html", b"<html>".to_vec()),
    ];
    for (name, list) in lists {
        for (way, flags) in [("plain", 0), ("filtered", 3), ("cut", 16)] {
            seeds.push(("protobuf_list", format!("{name}-{way}"), [&list[..], &[flags]].concat()));
        }
    }
}

fn watches(seeds: &mut Vec<Seed>) {
    let object = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"NAME","namespace":"NS","uid":"u","resourceVersion":"RV"},"spec":{"x":"\"}\n"}}"#;
    let bookmark = r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
    let expired = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","reason":"Expired","code":410}}"#;
    let (mut lines, mut frames) = (Vec::new(), Vec::new());
    for (kind, name, namespace, version) in [
        ("ADDED", "a", "ns-a", "6"),
        ("MODIFIED", "a", "ns-a", "7"),
        ("ADDED", "b", "ns-b", "8"),
        ("DELETED", "a", "ns-a", "12"),
    ] {
        let object = object
            .replace("NAME", name)
            .replace("NS", namespace)
            .replace("RV", version);
        if kind == "DELETED" {
            lines.push(bookmark.to_owned());
        }
        lines.push(format!(r#"{{"type":"{kind}","object":{object}}}"#));
        frames.extend(frame(kind, &envelope("Pod", &self::object(namespace, name, version))));
    }
    let streams = [
        ("events", lines.join("\n") + "\n"),
        ("expired", [&lines[0], expired, ""].join("\n")),
        ("partial", format!("{}\n\n{}", lines[0], &lines[1][..40])),
        ("html", "<html>\n".to_owned()),
    ];
    for (way, flags) in [
        ("plain", 0),
        ("filtered", 1),
        ("unique", 2),
        ("listed", 4 + 8),
        ("cut", 80),
    ] {
        for (name, stream) in &streams {
            seeds.push((
                "watch_frames",
                format!("{name}-{way}"),
                [stream.as_bytes(), &[flags]].concat(),
            ));
        }
        for (name, length) in [("events", frames.len()), ("partial", frames.len() - 9)] {
            seeds.push((
                "watch_envelopes",
                format!("{name}-{way}"),
                [&frames[..length], &[flags]].concat(),
            ));
        }
        let huge = [&frames[..], &[0xff; 5], &[flags]].concat();
        seeds.push(("watch_envelopes", format!("huge-{way}"), huge));
    }
}

fn frame(kind: &str, object: &[u8]) -> Vec<u8> {
    let mut extension = Vec::new();
    field(&mut extension, 1, object);
    let mut event = Vec::new();
    field(&mut event, 1, kind.as_bytes());
    field(&mut event, 2, &extension);
    let length = u32::try_from(event.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], &event].concat()
}
