//! Lengths of time as users write them: `30s`, `1m30s`, `500ms`.

use std::fmt;
use std::time::Duration as StdDuration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The text form, from Gateway API's GEP-2257: one to four of whole hours, minutes, seconds, milliseconds.
pub const DURATION_PATTERN: &str = r"^([0-9]{1,5}(h|m|s|ms)){1,4}$";

/// A length of time in text form. It is kept as written, so that one bad value is a [`crate::Problem`] of its field and
/// not an object that cannot be read; [`Duration::parse`] says what it means.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Duration(
    #[cfg_attr(feature = "schema", schemars(length(max = 32), regex(pattern = DURATION_PATTERN)))] String,
);

/// Text that is no length of time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a duration: write whole numbers with h, m, s or ms, such as \"30s\" or \"1m30s\"")]
pub struct DurationError(pub String);

impl Duration {
    /// What the text means.
    pub fn parse(&self) -> Result<StdDuration, DurationError> {
        let refuse = || DurationError(self.0.clone());
        let mut rest = self.0.as_str();
        let mut total = StdDuration::ZERO;
        for part in 0.. {
            if rest.is_empty() && part > 0 {
                break;
            }
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            if part == 4 || !(1..=5).contains(&digits) {
                return Err(refuse());
            }
            let (number, tail) = rest.split_at(digits);
            let number = number.parse::<u64>().map_err(|_| refuse())?;
            // "ms" first: a bare "m" is its prefix.
            let units = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
            let (unit, milliseconds) = units
                .into_iter()
                .find(|(unit, _)| tail.starts_with(unit))
                .ok_or_else(refuse)?;
            total += StdDuration::from_millis(number * milliseconds);
            rest = &tail[unit.len()..];
        }
        Ok(total)
    }
}

impl From<&str> for Duration {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for Duration {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_pattern_allows() {
        let cases = [
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("1h1m1s1ms", 3_661_001),
            ("0s", 0),
        ];
        for (text, milliseconds) in cases {
            assert_eq!(
                Duration::from(text).parse(),
                Ok(StdDuration::from_millis(milliseconds)),
                "{text}"
            );
        }
    }

    #[test]
    fn refuses_the_rest() {
        for text in [
            "",
            "30",
            "s",
            "-1s",
            "1.5s",
            "1d",
            "123456s",
            "1s1s1s1s1s",
            "1 s",
            "1sx",
            "٣s",
        ] {
            assert!(Duration::from(text).parse().is_err(), "{text}");
        }
    }
}
