//! Lengths of time as people and programs write them: `30s`, `1m30s`, `500ms`, `1.5h`, `7d`. The one parser of them, for
//! fields of objects, for flags and for what Kubernetes clients send.

use std::fmt::{self, Write as _};
use std::time::Duration as StdDuration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The text form in objects, from Gateway API's GEP-2257: one to four of whole hours, minutes, seconds, milliseconds.
pub const DURATION_PATTERN: &str = r"^([0-9]{1,5}(h|m|s|ms)){1,4}$";

/// What [`format_duration`] writes, the largest first.
const UNITS: [(&str, u128); 5] = [
    ("d", 24 * 3_600_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
];
/// What Go reads besides: its micro is the sign of that name, or the Greek letter.
const SMALL_UNITS: [(&str, u128); 4] = [("us", 1_000), ("µs", 1_000), ("μs", 1_000), ("ns", 1)];
/// Digits of a fraction that count; an hour has 3.6 × 10¹² nanoseconds.
const FRACTION_DIGITS: usize = 12;

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
    /// The length of time that the text stands for, if it is of the form [`DURATION_PATTERN`].
    pub fn parse(&self) -> Result<StdDuration, DurationError> {
        let plain = |(number, unit): (&str, &str)| {
            number.len() <= 5 && !number.contains('.') && ["h", "m", "s", "ms"].contains(&unit)
        };
        if terms(&self.0).count() > 4 || !terms(&self.0).all(plain) {
            return Err(DurationError(self.0.clone()));
        }
        parse_duration(&self.0)
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

/// Reads a sum of `<number><unit>` terms as Go does, with days besides. A lone `0` needs no unit; there are no signs.
pub fn parse_duration(text: &str) -> Result<StdDuration, DurationError> {
    let refuse = || DurationError(text.to_owned());
    let trimmed = text.trim();
    if trimmed == "0" {
        return Ok(StdDuration::ZERO);
    }
    let sum = terms(trimmed).try_fold(0_u128, |sum, (number, unit)| {
        sum.checked_add(nanoseconds(number, unit)?)
    });
    let sum = sum.filter(|_| !trimmed.is_empty()).ok_or_else(refuse)?;
    let seconds = u64::try_from(sum / 1_000_000_000).map_err(|_| refuse())?;
    let rest = u32::try_from(sum % 1_000_000_000).map_err(|_| refuse())?;
    Ok(StdDuration::new(seconds, rest))
}

/// Reads what Go's `time.ParseDuration` does, but for signs: fields that the original read so. No days, no spaces.
pub fn parse_go_duration(text: &str) -> Result<StdDuration, DurationError> {
    if text.contains(|c: char| c == 'd' || c.is_whitespace()) {
        return Err(DurationError(text.to_owned()));
    }
    parse_duration(text)
}

/// Prints what [`parse_duration`] reads back, to the millisecond: `1h30m`.
pub fn format_duration(duration: StdDuration) -> String {
    let (mut rest, mut text) = (duration.as_nanos(), String::new());
    for (unit, size) in UNITS {
        if rest >= size {
            write!(text, "{}{unit}", rest / size).expect("writing to a String cannot fail");
            rest %= size;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Numbers with what follows each, as far as the next number. A text that begins with no number has an empty one.
fn terms(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut rest = text;
    std::iter::from_fn(move || {
        let (number, after) = rest.split_at(rest.find(|c| !is_number(c)).unwrap_or(rest.len()));
        let (unit, next) = after.split_at(after.find(is_number).unwrap_or(after.len()));
        let term = (!rest.is_empty()).then_some((number, unit));
        rest = next;
        term
    })
}

fn nanoseconds(number: &str, unit: &str) -> Option<u128> {
    let (_, size) = UNITS.into_iter().chain(SMALL_UNITS).find(|(name, _)| *name == unit)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let digits = |text: &str| {
        if text.is_empty() {
            Some(0)
        } else {
            text.parse::<u64>().ok().map(u128::from)
        }
    };
    let fraction = &fraction[..fraction.len().min(FRACTION_DIGITS)];
    let part = digits(fraction)? * size / 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    Some(digits(whole)? * size + part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_and_go_write() {
        for (text, milliseconds) in [
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            (" 7d ", 604_800_000),
            ("0", 0),
            ("0s", 0),
            ("1s250ms", 1_250),
            ("1.5s", 1_500),
            (".5h", 1_800_000),
            ("1500us", 1),
            ("2000000ns", 2),
        ] {
            let read = parse_duration(text).map(|duration| duration.as_millis());
            assert_eq!(read, Ok(milliseconds), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest_by_name() {
        for text in [
            "",
            "5",
            "5x",
            "s",
            "s5",
            "-5s",
            ".s",
            "1.2.3s",
            "1e400s",
            "1 s",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            assert_eq!(parse_duration(text), Err(DurationError(text.to_owned())));
        }
    }

    #[test]
    fn what_go_reads_has_no_days_and_no_spaces() {
        for (text, nanoseconds) in [
            ("0", 0),
            ("1.5s", 1_500_000_000),
            ("100ms", 100_000_000),
            ("1h2m3.5s", 3_723_500_000_000),
            (".5s", 500_000_000),
            ("5.s", 5_000_000_000),
            ("1us", 1_000),
            ("1µs", 1_000),
            ("1μs", 1_000),
            ("7ns", 7),
        ] {
            let read = parse_go_duration(text).map(|duration| duration.as_nanos());
            assert_eq!(read, Ok(nanoseconds), "{text}");
        }
        for text in ["", "1", "1d", " 1s", "1s ", "1 s", "-1s", "+1s", "1m 1s", "s"] {
            assert_eq!(parse_go_duration(text), Err(DurationError(text.to_owned())));
        }
    }

    #[test]
    fn prints_what_it_reads() {
        for text in ["30s", "5m", "1h30m", "7d", "1s250ms", "0s", "1d1ms"] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
    }

    #[test]
    fn objects_have_what_the_pattern_allows() {
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
        for text in [
            "",
            "0",
            "30",
            "s",
            "-1s",
            "1.5s",
            "1d",
            "1us",
            "123456s",
            "1s1s1s1s1s",
            "1 s",
            " 1s",
            "1s ",
            "1sx",
            "٣s",
        ] {
            assert!(Duration::from(text).parse().is_err(), "{text}");
        }
    }
}
