//! JSON, as it comes, written as YAML: for clients that take nothing else. Pure.
//!
//! No document is held: of what is under way the names of its containers' kinds, and one string. What is nested too deeply to be
//! indented stays as it is, as JSON is YAML too. Caller: `reply`.

use std::io::Write as _;

/// Beyond this depth nothing is indented: each line of it would be longer than the one before.
const MOST_DEPTH: usize = 64;
/// Words that YAML readers take for something else than text.
const OTHER_WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];

/// One document on its way.
#[derive(Debug, Default)]
pub(crate) struct Yaml {
    out: Vec<u8>,
    open: Vec<Container>,
    /// A string or a word that is not over, as it came.
    token: Vec<u8>,
    at: At,
    /// The next name is on the line that has begun.
    fresh: bool,
    begun: bool,
}

#[derive(Debug)]
struct Container {
    list: bool,
    /// Of the lines in it.
    indent: usize,
    empty: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum At {
    /// Before a value, or the end of an empty list.
    #[default]
    Value,
    /// Before a name, or the end of an object.
    Name,
    String {
        name: bool,
        escaped: bool,
    },
    /// A number, or one of three words.
    Word,
    /// After a value.
    Behind,
    /// In what is nested too deeply, at this depth of it.
    Deep {
        depth: usize,
        string: bool,
        escaped: bool,
    },
}

impl Yaml {
    /// The YAML of what is sure by now.
    pub(crate) fn push(&mut self, json: &[u8]) -> Vec<u8> {
        if !self.begun {
            (self.begun, self.fresh) = (true, true);
        }
        for byte in json {
            self.byte(*byte);
        }
        std::mem::take(&mut self.out)
    }

    /// The rest.
    pub(crate) fn end(&mut self) -> Vec<u8> {
        if self.at == At::Word {
            self.word();
        }
        self.out.push(b'\n');
        std::mem::take(&mut self.out)
    }

    fn byte(&mut self, byte: u8) {
        match self.at {
            At::String { name, escaped: true } => {
                self.token.push(byte);
                self.at = At::String { name, escaped: false };
            }
            At::String { name, .. } => {
                self.token.push(byte);
                match byte {
                    b'\\' => self.at = At::String { name, escaped: true },
                    b'"' => self.text(name),
                    _ => {}
                }
            }
            At::Deep { depth, string, escaped } => self.deep(byte, (depth, string, escaped)),
            At::Word if !matches!(byte, b',' | b'}' | b']') && !byte.is_ascii_whitespace() => self.token.push(byte),
            At::Word => {
                self.word();
                self.byte(byte);
            }
            At::Value | At::Name | At::Behind => self.structural(byte),
        }
    }

    fn structural(&mut self, byte: u8) {
        match byte {
            b',' if self.open.last().is_some_and(|open| open.list) => self.at = At::Value,
            b',' => self.at = At::Name,
            b':' => self.at = At::Value,
            b'}' | b']' => self.close(),
            _ if byte.is_ascii_whitespace() => {}
            b'"' => {
                self.token.push(byte);
                let name = self.at == At::Name;
                self.at = At::String { name, escaped: false };
            }
            b'{' | b'[' => self.enter(byte == b'['),
            _ => {
                self.token.push(byte);
                self.at = At::Word;
            }
        }
    }

    fn enter(&mut self, list: bool) {
        self.item();
        if self.open.len() >= MOST_DEPTH {
            self.space();
            self.out.push(if list { b'[' } else { b'{' });
            self.at = At::Deep {
                depth: 1,
                string: false,
                escaped: false,
            };
            return;
        }
        let indent = match self.open.last() {
            None => 0,
            // A list stands below its name, as API servers write it.
            Some(around) if !around.list && list => around.indent,
            Some(around) => around.indent + 2,
        };
        self.open.push(Container {
            list,
            indent,
            empty: true,
        });
        self.at = if list { At::Value } else { At::Name };
    }

    fn close(&mut self) {
        if let Some(closed) = self.open.pop().filter(|closed| closed.empty) {
            self.space();
            self.out.extend_from_slice(if closed.list { b"[]" } else { b"{}" });
        }
        self.at = At::Behind;
        self.fresh = false;
    }

    /// Begins a line of the container, unless one has begun.
    fn line(&mut self) {
        let Some(open) = self.open.last_mut() else { return };
        let indent = open.indent;
        open.empty = false;
        if !std::mem::take(&mut self.fresh) {
            self.out.push(b'\n');
            self.out.resize(self.out.len() + indent, b' ');
        }
    }

    /// Before a value: of a list, its dash.
    fn item(&mut self) {
        if self.open.last().is_some_and(|open| open.list) {
            self.line();
            self.out.extend_from_slice(b"- ");
            self.fresh = true;
        }
    }

    /// Between a name and what stands on its line.
    fn space(&mut self) {
        if !self.fresh && self.open.last().is_some_and(|open| !open.list) {
            self.out.push(b' ');
        }
        self.fresh = false;
    }

    fn text(&mut self, name: bool) {
        let token = std::mem::take(&mut self.token);
        let text: Option<String> = serde_json::from_slice(&token).ok();
        if name {
            self.line();
        } else {
            self.item();
            self.space();
        }
        match &text {
            Some(text) if is_plain(text) => self.out.extend_from_slice(text.as_bytes()),
            Some(text) => quote(&mut self.out, text),
            // What Rust cannot read, the client may.
            None => self.out.extend_from_slice(&token),
        }
        if name {
            self.out.push(b':');
        }
        self.at = At::Behind;
    }

    fn word(&mut self) {
        self.item();
        self.space();
        self.out.append(&mut self.token);
        self.at = At::Behind;
    }

    fn deep(&mut self, byte: u8, (depth, string, escaped): (usize, bool, bool)) {
        self.out.push(byte);
        let depth = match byte {
            b'{' | b'[' if !string => depth + 1,
            b'}' | b']' if !string => depth - 1,
            _ => depth,
        };
        let ends = byte == b'"' && !escaped;
        self.at = if depth == 0 {
            At::Behind
        } else {
            At::Deep {
                depth,
                string: string != ends,
                escaped: string && byte == b'\\' && !escaped,
            }
        };
    }
}

/// Whether every reader takes it for this text without quotes.
fn is_plain(text: &str) -> bool {
    let mut bytes = text.bytes();
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'/');
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic())
        && bytes.all(letters)
        && !OTHER_WORDS.iter().any(|word| text.eq_ignore_ascii_case(word))
}

fn quote(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for char in text.chars() {
        let written = match char {
            '"' | '\\' => write!(out, "\\{char}"),
            '\n' => write!(out, "\\n"),
            '\t' => write!(out, "\\t"),
            // YAML takes no other in any text.
            '\u{feff}' | '\u{2028}' | '\u{2029}' => write!(out, "\\u{:04x}", u32::from(char)),
            _ if char.is_control() => write!(out, "\\u{:04x}", u32::from(char)),
            _ => write!(out, "{char}"),
        };
        written.expect("writing to a Vec cannot fail");
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However it is cut.
    fn yaml(json: &str) -> String {
        let whole = cut(json, json.len().max(1));
        for size in 1..json.len().min(40) {
            assert_eq!(cut(json, size), whole, "{size}");
        }
        whole
    }

    fn cut(json: &str, size: usize) -> String {
        let mut yaml = Yaml::default();
        let mut out = Vec::new();
        for part in json.as_bytes().chunks(size) {
            out.extend(yaml.push(part));
        }
        out.extend(yaml.end());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_list_is_written_as_an_api_server_writes_it() {
        let json = r#"{"kind":"List","metadata":{},"items":[
            {"name":"a","labels":{"app.io/x":"true"},"ports":[80,81],"none":null},
            {"name":"b:c","empty":[],"nested":[["x"],[]]}, 7]}
        "#;
        let expected = "\
kind: List
metadata: {}
items:
- name: a
  labels:
    app.io/x: \"true\"
  ports:
  - 80
  - 81
  none: null
- name: \"b:c\"
  empty: []
  nested:
  - - x
  - []
- 7
";
        assert_eq!(yaml(json), expected);
        assert_eq!(yaml("{}"), "{}\n");
        assert_eq!(yaml("[]"), "[]\n");
        assert_eq!(yaml("12"), "12\n");
    }

    #[test]
    fn texts_are_what_they_were() {
        let json =
            r#"{"a":"1","b":"no","c":"x # y","d":"l\n\"\\","e":"\ud83d\ude00\u0085\u2028","f":"","g":"-","h":"\/"}"#;
        let expected = "a: \"1\"\nb: \"no\"\nc: \"x # y\"\nd: \"l\\n\\\"\\\\\"\ne: \"\u{1f600}\\u0085\\u2028\"\nf: \"\"\ng: \"-\"\nh: \"/\"\n";
        assert_eq!(yaml(json), expected);
    }

    #[test]
    fn what_is_nested_too_deeply_stays_as_it_is() {
        let deep = 1_000;
        let inner = r#"{"x":"]}\"","y":[{}]}"#;
        let json = format!("{}{inner}{},1]", "[".repeat(deep), "]".repeat(deep - 1));
        let written = yaml(&json);
        assert!(written.len() < 3 * json.len(), "{}", written.len());
        assert!(written.contains(inner) && written.ends_with("\n- 1\n"), "{written}");
    }
}
