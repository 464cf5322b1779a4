//! Rust source as tokens with line numbers: comments are dropped, and a string is one token whatever it contains.
//!
//! Only as much of the language as [`crate::scan`] needs; rustc has accepted the files before.

/// A word, a string, or one sign of punctuation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An identifier, a keyword or a number. A raw identifier has lost its `r#`.
    Word,
    /// A string literal of any sort, without its quotes.
    Text,
    /// One character: an operator or a bracket.
    Sign,
}

/// One token and where it begins.
#[derive(Debug, Clone, Copy)]
pub struct Token<'a> {
    /// What it is.
    pub kind: Kind,
    /// Its text in the source.
    pub text: &'a str,
    /// Counted from 1.
    pub line: usize,
}

impl Token<'_> {
    /// Whether this is the word or the sign `text`; a string never is.
    pub fn is(&self, text: &str) -> bool {
        self.kind != Kind::Text && self.text == text
    }
}

/// All tokens of `source`. Character literals and lifetimes are left out: nothing imports through them.
pub fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    let mut line = 1;
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        let (length, kind, text) = token(rest, first);
        if let Some(kind) = kind {
            found.push(Token { kind, text, line });
        }
        line += rest[..length].split('\n').count() - 1;
        at += length;
    }
    found
}

/// The token that `rest` begins with: its length in bytes, its kind unless it is to be dropped, and its text.
fn token(rest: &str, first: char) -> (usize, Option<Kind>, &str) {
    if rest.starts_with("//") {
        return (rest.find('\n').unwrap_or(rest.len()), None, "");
    }
    if rest.starts_with("/*") {
        return (block_comment(rest), None, "");
    }
    if let Some((length, text)) = matches!(first, '"' | 'b' | 'c' | 'r').then(|| string(rest)).flatten() {
        return (length, Some(Kind::Text), text);
    }
    if first == '\'' {
        return (quote(rest), None, "");
    }
    if is_word(first) {
        let raw = if rest.starts_with("r#") { 2 } else { 0 };
        let length = raw + word(&rest[raw..]);
        return (length, Some(Kind::Word), &rest[raw..length]);
    }
    let kind = (!first.is_whitespace()).then_some(Kind::Sign);
    (first.len_utf8(), kind, &rest[..first.len_utf8()])
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn word(rest: &str) -> usize {
    rest.find(|character| !is_word(character)).unwrap_or(rest.len())
}

/// Length of the block comment that `rest` begins with; they nest.
fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        let here = &rest[at..];
        if here.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += here.chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// Length and content of the string literal that `rest` begins with, if it does.
fn string(rest: &str) -> Option<(usize, &str)> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| {
        let after = rest.strip_prefix(prefix).unwrap_or_default();
        after.starts_with('"') || (prefix.ends_with('r') && after.trim_start_matches('#').starts_with('"'))
    })?;
    let body = &rest[prefix.len()..];
    if prefix.ends_with('r') {
        let hashes = body.len() - body.trim_start_matches('#').len();
        let close = format!("\"{}", "#".repeat(hashes));
        let inside = &body[hashes + 1..];
        let end = inside.find(&close).unwrap_or(inside.len());
        return Some((prefix.len() + hashes + 1 + end + close.len(), &inside[..end]));
    }
    let inside = &body[1..];
    let end = closing(inside, '"');
    Some((prefix.len() + 1 + end + 1, &inside[..end]))
}

/// Where the first `quote` stands that no backslash protects.
fn closing(inside: &str, quote: char) -> usize {
    let mut protected = false;
    for (at, character) in inside.char_indices() {
        if protected {
            protected = false;
        } else if character == '\\' {
            protected = true;
        } else if character == quote {
            return at;
        }
    }
    inside.len()
}

/// Length of the character literal or the lifetime that `rest` begins with.
fn quote(rest: &str) -> usize {
    let inside = &rest[1..];
    let mut characters = inside.chars();
    let first = characters.next();
    let literal = first == Some('\\') || characters.next() == Some('\'');
    if literal {
        1 + closing(inside, '\'') + 1
    } else {
        1 + word(inside)
    }
}

#[cfg(test)]
mod tests {
    use super::tokens;

    fn texts(source: &str) -> Vec<&str> {
        tokens(source).iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_and_characters_are_dropped() {
        let source = "a // crate::b\n/* c /* d */ e */ 'x' '\\'' '\"' f::<'static>";
        assert_eq!(texts(source), ["a", "f", ":", ":", "<", ">"]);
    }

    #[test]
    fn a_string_is_one_token() {
        let source = r###"x "crate::a \" b" r#"c "d" e"# b"f" br##"g"# h"## r"i\" y"###;
        let expected = ["x", r#"crate::a \" b"#, r#"c "d" e"#, "f", r##"g"# h"##, r"i\", "y"];
        assert_eq!(texts(source), expected);
    }

    #[test]
    fn lines_are_counted_through_strings_and_comments() {
        let source = "a\n\"b\nc\"\n/*\n*/ r#type\n";
        let lines: Vec<_> = tokens(source).iter().map(|token| (token.text, token.line)).collect();
        assert_eq!(lines, [("a", 1), ("b\nc", 2), ("type", 5)]);
    }
}
