//! A JSON value in which no field stands twice.
//!
//! `serde_json::Value` keeps the last of two, an API server merges some of them: what is judged must be what is stored.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// YAML's way to take fields from elsewhere, which our reader does not follow and an API server does.
const MERGE_KEY: &str = "<<";

pub(super) struct Unambiguous(pub(super) Value);

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader).map(Self)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("a number that is none in JSON"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(Unambiguous(item)) = items.next_element()? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((key, Unambiguous(value))) = fields.next_entry::<String, _>()? {
            if key == MERGE_KEY || object.contains_key(&key) {
                return Err(A::Error::custom(format_args!(
                    "ambiguous: field {key:?} merges or stands twice"
                )));
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::value::object::{Encoding, parse};

    #[test]
    fn plain_values_are_read() {
        let body = br#"{"a":[1,-2,1.5,true,null,"x"],"b":{"c":18446744073709551615}}"#;
        let expected = json!({"a": [1, -2, 1.5, true, null, "x"], "b": {"c": u64::MAX}});
        assert_eq!(parse(Encoding::Json, body).unwrap(), expected);
        assert_eq!(parse(Encoding::Yaml, body).unwrap(), expected);
        assert_eq!(
            parse(Encoding::Yaml, b"a: [1, x]\nb:\n  c: null\n").unwrap(),
            json!({"a": [1, "x"], "b": {"c": null}})
        );
        let quoted = parse(Encoding::Yaml, b"a: \"!x\"\nb: wow!\n").unwrap();
        assert_eq!(quoted, json!({"a": "!x", "b": "wow!"}));
    }

    #[test]
    fn what_two_readers_read_otherwise_is_refused() {
        for (encoding, body) in [
            (
                Encoding::Json,
                r#"{"metadata":{"labels":{"a":"b"}},"metadata":{"labels":{"app":"foo"}}}"#,
            ),
            (Encoding::Json, r#"{"metadata":{"labels":{"app":"bar","app":"foo"}}}"#),
            (Encoding::Yaml, "metadata:\n  labels: {app: bar}\nmetadata: {}\n"),
            (Encoding::Yaml, "x: &x {labels: {app: bar}}\nmetadata:\n  <<: *x\n"),
            (Encoding::Yaml, "a: 1\n---\nb: 2\n"),
            (Encoding::Yaml, "!!binary bWV0YWRhdGE=: {labels: {app: bar}}\n"),
            (Encoding::Yaml, "{a: 1, !!binary bWV0YWRhdGE=: {labels: {app: bar}}}\n"),
            (Encoding::Yaml, "? !!binary bWV0YWRhdGE=\n: {labels: {app: bar}}\n"),
            (Encoding::Yaml, "metadata: !local {labels: {app: bar}}\n"),
            (Encoding::Json, "{} {}"),
            (Encoding::Json, ""),
        ] {
            assert!(parse(encoding, body.as_bytes()).is_err(), "{body}");
        }
    }
}
