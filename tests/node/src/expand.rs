//! `$(NAME)` in commands, arguments and variables, as Kubernetes has it: `$$` is a dollar sign, and what names no variable
//! stays as it is written.

use std::collections::BTreeMap;

/// The text with the values of what it refers to.
pub(crate) fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        rest = after;
        if let Some(escaped) = after.strip_prefix('$') {
            expanded.push('$');
            rest = escaped;
        } else if let Some((name, behind)) = after.strip_prefix('(').and_then(|open| open.split_once(')')) {
            match variables.get(name) {
                Some(value) => expanded.push_str(value),
                None => expanded.extend(["$(", name, ")"]),
            }
            rest = behind;
        } else {
            expanded.push('$');
        }
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_documentation_has_it() {
        let variables = BTreeMap::from([("A", "1"), ("B", "$(A)"), ("EMPTY", "")].map(|(k, v)| (k.into(), v.into())));
        for (text, expanded) in [
            ("", ""),
            ("plain", "plain"),
            ("$(A)-$(A)", "1-1"),
            // What a value holds is not looked at again.
            ("$(B)", "$(A)"),
            ("[$(EMPTY)]", "[]"),
            ("$(C)", "$(C)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$A $ $", "$A $ $"),
            ("$(A", "$(A"),
            ("$($(A))", "$($(A))"),
        ] {
            assert_eq!(expand(text, &variables), expanded, "{text}");
        }
    }
}
