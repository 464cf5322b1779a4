//! A text to compare with, made ready once: the same function says of a document whether it is good and of a request
//! whether it matches.

use regex::{Regex, RegexBuilder};
use thiserror::Error;

use super::{EXACT_MAX, REGEX_MAX, TextMatch};

/// Most memory that one compiled regular expression takes, and what it keeps while it searches, in bytes each. A path of an API
/// server needs some kilobytes.
const COMPILED_MAX: usize = 1 << 20;

/// A text, or what it looks like.
#[derive(Clone, Debug)]
pub enum TextPattern {
    /// All of it.
    Exact(String),
    /// All of it matches this; anchored at both ends.
    Regex(Regex),
}

/// What is wrong with a [`TextMatch`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TextError {
    /// Neither is given.
    #[error("needs exact or regex: leave it out for any")]
    Empty,
    /// One of them is too long.
    #[error("exact may have {EXACT_MAX} characters and regex {REGEX_MAX}: shorten it")]
    TooLong,
    /// The regular expression does not compile, or is too large when it is compiled.
    #[error("regex {0:?} cannot be used: {1}")]
    Regex(String, String),
}

impl TextPattern {
    /// Whether it is, or matches, all of `text`.
    pub fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == text,
            Self::Regex(regex) => regex.is_match(text),
        }
    }
}

impl TextMatch {
    /// Makes it ready. An empty text is as if it were not given, as the original has it; `exact` wins.
    pub fn compile(&self) -> Result<TextPattern, TextError> {
        if self
            .exact
            .as_ref()
            .is_some_and(|exact| exact.chars().count() > EXACT_MAX)
        {
            return Err(TextError::TooLong);
        }
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        match (given(&self.exact), given(&self.regex)) {
            (None, None) => Err(TextError::Empty),
            // Not used, but it must be none that would fail the day that exact goes.
            (exact, Some(regex)) => {
                let regex = whole(&regex)?;
                Ok(exact.map_or(TextPattern::Regex(regex), TextPattern::Exact))
            }
            (Some(exact), None) => Ok(TextPattern::Exact(exact)),
        }
    }
}

/// The expression that matches what `pattern` matches from end to end.
fn whole(pattern: &str) -> Result<Regex, TextError> {
    if pattern.chars().count() > REGEX_MAX {
        return Err(TextError::TooLong);
    }
    let build = |pattern: &str| {
        let mut builder = RegexBuilder::new(pattern);
        builder.size_limit(COMPILED_MAX).dfa_size_limit(COMPILED_MAX).build()
    };
    let refuse = |error: regex::Error| {
        // The last line says what is wrong; those before it draw where.
        let told = error.to_string();
        let told = told.lines().last().unwrap_or_default().trim_start_matches("error: ");
        TextError::Regex(pattern.to_owned(), told.to_owned())
    };
    // By itself first: `a)|(b` would be another expression between anchors.
    build(pattern).map_err(refuse)?;
    build(&format!(r"\A(?:{pattern})\z")).map_err(refuse)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regex(pattern: &str) -> Result<TextPattern, TextError> {
        let regex = Some(pattern.to_owned());
        TextMatch { exact: None, regex }.compile()
    }

    #[test]
    fn a_regex_must_match_all_of_it() {
        let pods = regex("/api/v1/namespaces/[^/]+/pods|/healthz").unwrap();
        for (path, matches) in [
            ("/api/v1/namespaces/a/pods", true),
            ("/healthz", true),
            ("/api/v1/namespaces/a/pods/x", false),
            ("/x/healthz", false),
            ("/healthz\n", false),
        ] {
            assert_eq!(pods.matches(path), matches, "{path}");
        }
        assert!(regex("a|ab").unwrap().matches("ab"));
        assert!(!regex("(?m)a$").unwrap().matches("a\nb"));
    }

    #[test]
    fn exact_wins_and_nothing_is_refused() {
        let text = |exact: &str, regex: &str| {
            let (exact, regex) = (Some(exact.to_owned()), Some(regex.to_owned()));
            TextMatch { exact, regex }.compile()
        };
        assert!(text("a.b", "c").unwrap().matches("a.b"));
        assert!(!text("a.b", "axb").unwrap().matches("axb"));
        assert!(text("", "axb").unwrap().matches("axb"));
        assert!(matches!(text("", ""), Err(TextError::Empty)));
        assert!(matches!(TextMatch::default().compile(), Err(TextError::Empty)));
        assert!(matches!(text("a", "("), Err(TextError::Regex(..))));
    }

    #[test]
    fn what_does_not_compile_or_is_too_large_is_refused_with_its_reason() {
        for (pattern, told) in [
            ("a)|(b", "unopened group"),
            ("[a", "unclosed character class"),
            (r"(a)\1", "backreferences are not supported"),
            ("(?=a)", "look-around"),
            (r"(\w{100}){100}", "size limit"),
        ] {
            let error = regex(pattern).unwrap_err().to_string();
            assert!(
                error.contains(told) && error.contains(&format!("{pattern:?}")),
                "{error}"
            );
        }
        assert!(matches!(regex(&"a".repeat(REGEX_MAX + 1)), Err(TextError::TooLong)));
        assert!(regex(&"a".repeat(REGEX_MAX)).is_ok());
    }
}
