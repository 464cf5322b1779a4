//! The beginning of a JSON object as API servers write typed ones: no spaces, no escapes, the names first. Reading it so takes a
//! third of what it takes to read any JSON; whatever is written otherwise is left to that.

use std::borrow::Cow;

use super::{Enough, ObjectMeta};

/// As [`super::json_while`] has it, or nothing.
pub(super) fn json<'a>(object: &'a [u8], enough: Enough<'a>) -> Option<ObjectMeta<'a>> {
    let mut meta = ObjectMeta::default();
    let mut rest = Rest(object);
    rest.token(b'{')?;
    loop {
        match rest.key()? {
            b"kind" => meta.kind = rest.text()?,
            b"apiVersion" => meta.api_version = rest.text()?,
            b"metadata" if enough(&meta) => {
                rest.token(b'{')?;
                return rest.metadata(meta);
            }
            _ => return None,
        }
        rest.token(b',')?;
    }
}

/// What is not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    /// Until all names are known.
    fn metadata(mut self, mut meta: ObjectMeta<'a>) -> Option<ObjectMeta<'a>> {
        loop {
            match self.key()? {
                b"name" => meta.name = self.text()?,
                b"namespace" => meta.namespace = self.text()?,
                b"uid" => meta.uid = self.text()?,
                b"resourceVersion" => meta.resource_version = self.text()?,
                // What typed servers write between them, `selfLink` of old ones.
                b"generateName" | b"selfLink" => drop(self.text()?),
                _ => return None,
            }
            if meta.is_complete() {
                return Some(meta);
            }
            self.token(b',')?;
        }
    }

    fn token(&mut self, token: u8) -> Option<()> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        (*first == token).then_some(())
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        let key = self.string()?;
        self.token(b':')?;
        Some(key)
    }

    fn text(&mut self) -> Option<Cow<'a, str>> {
        std::str::from_utf8(self.string()?).ok().map(Cow::Borrowed)
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        self.token(b'"')?;
        let special = |byte: &u8| matches!(byte, b'"' | b'\\' | ..b' ');
        let end = self.0.iter().position(special)?;
        let (string, rest) = self.0.split_at(end);
        self.0 = rest;
        self.token(b'"')?;
        Some(string)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::{select, subsequence};
    use proptest::strategy::ValueTree as _;

    use super::super::{json_item, json_while, types_known};
    use super::*;

    const NAMES: &[&str] = &[
        r#""name":"a""#,
        r#""namespace":"ns""#,
        "\"uid\":\"u-\u{fc}\"",
        r#""resourceVersion":"7""#,
    ];
    /// What may stand between and behind them.
    const OTHERS: &[&[u8]] = &[
        br#""generateName":"a-""#,
        br#""selfLink":"/a""#,
        br#""selfLink":null"#,
        br#""generateName":"a\"-""#,
        br#""namespace":"other""#,
        br#""namespace":null"#,
        br#""name":"""#,
        br#""name":"\u0061""#,
        br#""n\u0061mespace":"other""#,
        br#""annotations":"b""#,
        br#""annotations":{"a":"b"}"#,
        br#""labels":{"namespace":"other"}"#,
        br#""generation":1"#,
        b"\"\xff\":\"x\"",
        b"\"selfLink\":\"\xff\"",
        b"\"selfLink\":\"\n\"",
        br#" "selfLink":"/a""#,
    ];

    #[test]
    fn what_servers_write_is_read() {
        let pod = br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","generateName":"a-","namespace":"ns","uid":"u","resourceVersion":"7","labels":{}}}"#;
        let meta = json(pod, types_known).unwrap();
        assert_eq!((&*meta.kind, &*meta.name, &*meta.resource_version), ("Pod", "a", "7"));
        assert_eq!(json_while(pod, types_known), Some(meta));
    }

    fn object() -> impl Strategy<Value = Vec<u8>> {
        let names = Just(NAMES.to_vec()).prop_shuffle();
        let names = (names, prop_oneof![4 => Just(4), 1 => Just(3)]);
        let others = proptest::collection::vec((select(OTHERS), 0_usize..8), 0..3);
        let types = subsequence(vec![r#""kind":"Pod""#, r#""apiVersion":"v1""#, r#""spec":{}"#], 0..=3);
        let types = prop_oneof![3 => Just(vec![r#""kind":"Pod""#, r#""apiVersion":"v1""#]), 1 => types];
        let behind = select(&["", ",\"spec\":{}", ",\"metadata\":{\"namespace\":\"x\"}", ",\"x\""][..]);
        (names, others, types, behind).prop_map(|((names, count), others, types, behind)| {
            let mut members: Vec<&[u8]> = names[..count].iter().map(|name| name.as_bytes()).collect();
            for (other, at) in others {
                members.insert(at.min(members.len()), other);
            }
            let types = types.join(",") + if types.is_empty() { "" } else { "," };
            let meta = members.join(&b',');
            [
                b"{",
                types.as_bytes(),
                b"\"metadata\":{",
                &meta,
                b"}",
                behind.as_bytes(),
                b"}",
            ]
            .concat()
        })
    }

    #[test]
    fn half_of_the_objects_below_are_read() {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let mut read = 0;
        for _ in 0..200 {
            let object = object().new_tree(&mut runner).unwrap().current();
            read += usize::from(json(&object, |_| true).is_some());
        }
        assert!((50..150).contains(&read), "{read}");
    }

    proptest! {
        #[test]
        fn what_is_read_so_is_read_otherwise_as_well(object in object(), cut in 0_usize..400) {
            for text in [&object[..], object.get(..cut).unwrap_or_default()] {
                for enough in [types_known as Enough<'_>, |_| true] {
                    if let Some(meta) = json(text, enough) {
                        prop_assert_eq!(json_while(text, enough), Some(meta), "{}", String::from_utf8_lossy(text));
                    }
                }
            }
        }

        /// However little of it was read, it is whose all of it says it is.
        #[test]
        fn nothing_behind_says_otherwise(object in object()) {
            if let (Some(meta), Some(whole)) = (json_item(&object), json_while(&object, |_| false)) {
                prop_assert_eq!(meta.namespace, whole.namespace);
            }
        }
    }
}
