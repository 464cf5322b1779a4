//! Why clients were told 410: the table in `docs/semantics.md` names the causes and how their messages begin. What it does
//! not name is a failure.

use std::collections::BTreeMap;

const SEMANTICS: &str = include_str!("../../../docs/semantics.md");
const HEADING: &str = "### Why a client lists again";

/// Each cause with the beginnings of its messages; `…` stands for whatever is told there.
fn named() -> Vec<(&'static str, Vec<&'static str>)> {
    let table = SEMANTICS.split_once(HEADING).map_or("", |(_, rest)| rest);
    let rows = table
        .lines()
        .skip_while(|line| !line.starts_with("| `"))
        .take_while(|line| line.starts_with("| `"));
    rows.filter_map(|row| {
        let mut cells = row.trim_matches('|').split('|');
        let cause = cells.next()?.split('`').nth(1)?;
        Some((cause, cells.next_back()?.split('`').skip(1).step_by(2).collect()))
    })
    .collect()
}

/// The cause of a message, if it is a named one.
pub(crate) fn of(message: &str) -> Option<&'static str> {
    let is = |pattern: &str| {
        let mut parts = pattern.split('…');
        let rest = message.strip_prefix(parts.next().unwrap_or_default());
        parts.try_fold(rest?, |rest, part| rest.find(part).map(|at| &rest[at + part.len()..]))
    };
    let named = named()
        .into_iter()
        .find(|(_, messages)| messages.iter().any(|message| is(message).is_some()));
    named.map(|(cause, _)| cause)
}

/// How many of each cause, over all clients.
pub(crate) fn counted(expired: &BTreeMap<String, BTreeMap<String, u64>>) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    for (message, count) in expired.values().flatten() {
        *counts.entry(of(message).unwrap_or("unnamed")).or_default() += count;
    }
    counts
}

/// Messages that are of no named cause, with who was told so.
pub(crate) fn unnamed(expired: &BTreeMap<String, BTreeMap<String, u64>>) -> Vec<String> {
    let told = expired
        .iter()
        .flat_map(|(client, messages)| messages.keys().map(move |message| (client, message)));
    told.filter(|(_, message)| of(message).is_none())
        .map(|(client, message)| format!("{client} was told 410 for no cause that docs/semantics.md names: {message}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_of_the_causes_that_are_documented() {
        let position = "too old resource version: 17 (of one member only)";
        assert_eq!(of(position), Some("position"));
        assert_eq!(of("what is asked of member east changed"), Some("changed"));
        assert_eq!(of("something else"), None);
    }
}
