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
        while !meta.is_complete() {
            match self.key()? {
                b"name" => meta.name = self.text()?,
                b"namespace" => meta.namespace = self.text()?,
                b"uid" => meta.uid = self.text()?,
                b"resourceVersion" => meta.resource_version = self.text()?,
                // `generateName`, and of old servers `selfLink`.
                _ => drop(self.text()?),
            }
            self.token(b',')?;
        }
        Some(meta)
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
    use proptest::sample::select;

    use super::super::{json_while, types_known};
    use super::*;

    #[test]
    fn what_servers_write_is_read() {
        let pod = br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","generateName":"a-","namespace":"ns","uid":"u","resourceVersion":"7","labels":{}}}"#;
        let meta = json(pod, types_known).unwrap();
        assert_eq!((&*meta.kind, &*meta.name, &*meta.resource_version), ("Pod", "a", "7"));
        assert_eq!(json_while(pod, types_known), Some(meta));
    }

    const VALUES: &[&str] = &[
        r#""a""#,
        r#""""#,
        r#""a\"b""#,
        r#""\u0061""#,
        "\"\n\"",
        "\"\u{fc}\"",
        "null",
        "7",
        "{}",
        r#"{"name":"x"}"#,
        "[1]",
    ];

    /// Mostly what is read.
    fn value() -> impl Strategy<Value = String> {
        prop_oneof![3 => Just(r#""b""#.to_owned()), 1 => select(VALUES).prop_map(str::to_owned)]
    }

    fn members(names: &'static [&'static str], value: BoxedStrategy<String>) -> BoxedStrategy<String> {
        let member = (select(names), value).prop_map(|(name, value)| format!("\"{name}\":{value}"));
        let members = proptest::collection::vec(member, 0..8);
        let comma = prop_oneof![9 => Just(","), 1 => Just(", ")];
        (members, comma)
            .prop_map(|(members, comma)| format!("{{{}}}", members.join(comma)))
            .boxed()
    }

    proptest! {
        #[test]
        fn what_is_read_so_is_read_otherwise_as_well(object in {
            let meta = members(&["name", "namespace", "uid", "resourceVersion", "annotations", "n\\u0061me", "labels"], value().boxed());
            members(&["kind", "apiVersion", "metadata", "spec"], prop_oneof![value(), meta].boxed())
        }, cut in 0_usize..200) {
            for text in [&object[..], object.get(..cut).unwrap_or_default()] {
                for enough in [types_known as Enough<'_>, |_| true] {
                    if let Some(meta) = json(text.as_bytes(), enough) {
                        prop_assert_eq!(json_while(text.as_bytes(), enough), Some(meta), "{}", text);
                    }
                }
            }
        }
    }
}
