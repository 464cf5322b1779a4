//! Durations as a person types them: `30s`, `5m`, `1h30m`, `250ms`, `7d`.
//!
//! For clap flags (`value_parser = parse_duration`) and configuration text. No fractions, no signs, no
//! calendar units. Callers: `args.rs` of every program.

use std::fmt::Write;
use std::time::Duration;

use thiserror::Error;

/// Why a text is not a duration.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DurationError {
    #[error("empty duration; write for example 30s, 5m or 1h30m")]
    Empty,
    #[error("no number before {0:?} in the duration; write for example 30s, 5m or 1h30m")]
    MissingNumber(String),
    #[error("unknown unit {0:?} in the duration; units are ms, s, m, h, d")]
    UnknownUnit(String),
    #[error("the duration {0:?} is too long")]
    Overflow(String),
}

/// Parses a sum of `<integer><unit>` terms. A lone `0` needs no unit.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(DurationError::Empty);
    }
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let overflow = || DurationError::Overflow(text.to_owned());
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        if number.is_empty() {
            return Err(DurationError::MissingNumber(after.to_owned()));
        }
        let (unit, next) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
        let number: u64 = number.parse().map_err(|_| overflow())?;
        let millis = number.checked_mul(unit_millis(unit)?).ok_or_else(overflow)?;
        total = total.checked_add(Duration::from_millis(millis)).ok_or_else(overflow)?;
        rest = next;
    }
    Ok(total)
}

/// Prints what [`parse_duration`] reads back, to the millisecond: `1h30m`.
pub fn format_duration(duration: Duration) -> String {
    let mut millis = duration.as_millis();
    if millis == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, size) in [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
        ("ms", 1),
    ] {
        if millis >= size {
            write!(text, "{}{unit}", millis / size).expect("writing to a String cannot fail");
            millis %= size;
        }
    }
    text
}

fn unit_millis(unit: &str) -> Result<u64, DurationError> {
    match unit {
        "ms" => Ok(1),
        "s" => Ok(1000),
        "m" => Ok(60_000),
        "h" => Ok(3_600_000),
        "d" => Ok(86_400_000),
        other => Err(DurationError::UnknownUnit(other.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_type() {
        for (text, seconds) in [
            ("30s", 30),
            ("5m", 300),
            ("1h30m", 5400),
            (" 7d ", 604_800),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(parse_duration("1s250ms"), Ok(Duration::from_millis(1250)));
    }

    #[test]
    fn refuses_the_rest_by_name() {
        assert_eq!(parse_duration(""), Err(DurationError::Empty));
        assert_eq!(parse_duration("5"), Err(DurationError::UnknownUnit(String::new())));
        assert_eq!(parse_duration("5x"), Err(DurationError::UnknownUnit("x".into())));
        assert_eq!(parse_duration("s5"), Err(DurationError::MissingNumber("s5".into())));
        assert_eq!(parse_duration("-5s"), Err(DurationError::MissingNumber("-5s".into())));
        assert_eq!(parse_duration("1.5s"), Err(DurationError::UnknownUnit(".".into())));
        for text in ["99999999999999999999s", "18446744073709551615d"] {
            assert_eq!(parse_duration(text), Err(DurationError::Overflow(text.into())));
        }
    }

    #[test]
    fn prints_what_it_reads() {
        for text in ["30s", "5m", "1h30m", "7d", "1s250ms", "0s", "1d1ms"] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
    }
}
