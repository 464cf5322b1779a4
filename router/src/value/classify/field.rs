//! Field selectors, as far as they name one object. The grammar is apimachinery's `fields.ParseSelector`.

use super::path::is_segment_name;

/// The value that `selector` demands of `field` with `=` or `==`, if it is a possible object name. `None` also when the
/// selector cannot be read: the member refuses it.
pub(super) fn exact(selector: &str, field: &str) -> Option<String> {
    let terms = terms(selector)?;
    let (_, value) = terms
        .into_iter()
        .find(|(name, value)| name == field && value.is_some())?;
    value.filter(|value| is_segment_name(value))
}

/// Replaces `from` by `to` where `selector` demands it of `field`; everything else stays as it is.
pub(crate) fn replace(selector: &str, field: &str, from: &str, to: &str) -> String {
    let terms = split(selector).into_iter().map(|term| match operator(term) {
        Some((name, operator, value)) if name == field && value == from => format!("{field}{operator}{to}"),
        _ => term.to_owned(),
    });
    terms.collect::<Vec<_>>().join(",")
}

/// (field, value if it is demanded exactly) for each term.
fn terms(selector: &str) -> Option<Vec<(String, Option<String>)>> {
    let terms = split(selector).into_iter().filter(|term| !term.is_empty());
    terms
        .map(|term| {
            let (field, operator, value) = operator(term)?;
            let value = unescape(value)?;
            Some((field.to_owned(), (operator != "!=").then_some(value)))
        })
        .collect()
}

/// Cuts at commas that no backslash escapes.
fn split(selector: &str) -> Vec<&str> {
    let (mut terms, mut start, mut escaped) = (Vec::new(), 0, false);
    for (index, byte) in selector.bytes().enumerate() {
        if !escaped && byte == b',' {
            terms.push(&selector[start..index]);
            start = index + 1;
        }
        escaped = byte == b'\\' && !escaped;
    }
    terms.push(&selector[start..]);
    terms
}

/// Cuts a term at its first operator.
fn operator(term: &str) -> Option<(&str, &str, &str)> {
    let at = term.find(['=', '!'])?;
    let rest = &term[at..];
    let operator = ["!=", "==", "="]
        .into_iter()
        .find(|operator| rest.starts_with(operator))?;
    Some((&term[..at], operator, &rest[operator.len()..]))
}

fn unescape(value: &str) -> Option<String> {
    let mut plain = String::with_capacity(value.len());
    let mut rest = value.chars();
    while let Some(char) = rest.next() {
        match char {
            '\\' => plain.push(rest.next().filter(|next| matches!(next, '\\' | ',' | '='))?),
            ',' | '=' => return None,
            other => plain.push(other),
        }
    }
    Some(plain)
}
