//! A list in JSON in which the leader lock may be: its bytes, in any cut → the same with the client's name.
//!
//! Nothing of it is held but the texts that could be the name. Called by `dispatch`, chunk by chunk.

use super::Names;
use crate::value::snapshot::LeaseName;

/// Where an object's name stands, `*` for whichever of a list: in a list, in an object, in a Table's row; and a Table's cells, of which
/// one shows it.
const PLACES: [&[&str]; 4] = [
    &["items", "*", "metadata", "name"],
    &["metadata", "name"],
    &["rows", "*", "object", "metadata", "name"],
    &["rows", "*", "cells", "*"],
];
/// Nothing that is looked for is deeper.
const DEEPEST: usize = 5;
/// Of a key that is kept: none that is looked for is longer.
const LONGEST_KEY: usize = 16;

/// One list on its way.
#[derive(Debug)]
pub(crate) struct Renaming {
    lease: LeaseName,
    open: Vec<Container>,
    /// Containers beyond [`DEEPEST`].
    deeper: usize,
    /// A text that is not over, with its quotes; of one that is too long to be looked for, its beginning was given out.
    text: Vec<u8>,
    at: At,
}

/// An object with the key that its next value has, or a list.
#[derive(Debug)]
struct Container {
    key: Option<Vec<u8>>,
    is_list: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum At {
    Outside { key: bool },
    Text { key: bool, escaped: bool, long: bool },
}

impl Renaming {
    pub(crate) fn new(lease: &LeaseName) -> Self {
        Self {
            lease: lease.clone(),
            open: Vec::new(),
            deeper: 0,
            text: Vec::new(),
            at: At::Outside { key: false },
        }
    }

    /// What is sure of it by now. A text that may be the name waits for its end.
    pub(crate) fn push(&mut self, json: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(json.len() + self.text.len());
        for byte in json {
            match self.at {
                At::Outside { key } => self.outside(*byte, key, &mut out),
                At::Text { .. } => self.within(*byte, &mut out),
            }
        }
        out
    }

    fn outside(&mut self, byte: u8, key: bool, out: &mut Vec<u8>) {
        match byte {
            b'"' => {
                self.text.push(byte);
                self.at = At::Text {
                    key,
                    escaped: false,
                    long: false,
                };
                return;
            }
            b'{' | b'[' => self.enter(byte == b'['),
            b'}' | b']' => self.leave(),
            b',' => {
                self.at = At::Outside {
                    key: self.is_in_object(),
                }
            }
            b':' => self.at = At::Outside { key: false },
            _ => {}
        }
        out.push(byte);
    }

    fn is_in_object(&self) -> bool {
        self.deeper == 0 && self.open.last().is_some_and(|open| !open.is_list)
    }

    fn enter(&mut self, is_list: bool) {
        if self.open.len() == DEEPEST {
            self.deeper += 1;
        } else {
            self.open.push(Container { key: None, is_list });
        }
        self.at = At::Outside {
            key: self.is_in_object(),
        };
    }

    fn leave(&mut self) {
        if self.deeper > 0 {
            self.deeper -= 1;
        } else {
            self.open.pop();
        }
        self.at = At::Outside { key: false };
    }

    fn within(&mut self, byte: u8, out: &mut Vec<u8>) {
        let At::Text { key, escaped, long } = self.at else {
            return;
        };
        self.text.push(byte);
        if byte == b'"' && !escaped {
            let text = std::mem::take(&mut self.text);
            self.at = At::Outside { key: false };
            if key {
                // Of one that is too long a part is left: it is none that is looked for.
                self.named(&text, long);
            }
            let names = Names {
                from: &self.lease.member,
                to: &self.lease.client,
            };
            let is_name = !key && !long && text[1..text.len() - 1] == *names.from.as_bytes() && self.is_place();
            if is_name {
                out.push(b'"');
                out.extend_from_slice(names.to.as_bytes());
                out.push(b'"');
            } else {
                out.extend(text);
            }
            return;
        }
        let long = long || self.text.len() > self.lease.member.len().max(LONGEST_KEY) + 2;
        if long {
            out.append(&mut self.text);
        }
        self.at = At::Text {
            key,
            escaped: byte == b'\\' && !escaped,
            long,
        };
    }

    fn named(&mut self, text: &[u8], long: bool) {
        if let Some(open) = self.open.last_mut() {
            open.key = (!long).then(|| text[1..text.len() - 1].to_vec());
        }
    }

    fn is_place(&self) -> bool {
        let is_at = |place: &&[&str]| {
            let mut both = place.iter().zip(&self.open);
            place.len() == self.open.len()
                && both.all(|(step, open)| match &open.key {
                    _ if open.is_list => *step == "*",
                    Some(key) => step.as_bytes() == key.as_slice(),
                    None => false,
                })
        };
        self.deeper == 0 && PLACES.iter().any(is_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::lease::rename_response_body;

    #[test]
    fn a_list_is_renamed_as_it_would_be_whole() {
        let lease = LeaseName {
            client: "op".into(),
            member: "op---blue".into(),
        };
        let long = "x".repeat(100);
        let lists = [
            format!(
                r#"{{"kind":"ConfigMapList","metadata":{{"name":"op---blue2"}},"items":[
                {{"metadata":{{"labels":{{"name":"op---blue","a\"":"op---blue"}},"name":"op---blue","uid":"u"}},"data":{{"name":"op---blue","{long}":"{long}"}}}},
                {{"metadata":{{"name":"x","{long}":"op---blue"}}}},
                {{"data":{{"k":"\"op---blue\"","deep":[[[{{"metadata":{{"name":"op---blue"}}}}]]]}},"metadata":{{"name":"op"}}}}]}}"#
            ),
            r#"{"kind":"Table","rows":[{"cells":["op---blue",1,["op---blue"]],"object":{"metadata":{"name":"op---blue"}}}]}"#.to_owned(),
            r#"{"kind":"Lease","metadata":{"name":"op---blue"},"spec":{}}"#.to_owned(),
        ];
        for list in lists {
            let whole = rename_response_body(&lease, Some("application/json"), list.clone().into());
            let expected: serde_json::Value = serde_json::from_slice(&whole).unwrap();
            for cut in 1..list.len() {
                let mut renaming = Renaming::new(&lease);
                let parts = list.as_bytes().chunks(cut);
                let renamed: Vec<u8> = parts.flat_map(|part| renaming.push(part)).collect();
                let renamed: serde_json::Value = serde_json::from_slice(&renamed).unwrap();
                assert_eq!(renamed, expected, "{cut}");
            }
        }
    }
}
