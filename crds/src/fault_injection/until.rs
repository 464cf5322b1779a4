//! The hard end of a FaultInjection as it is written: a point in time with its offset (RFC 3339), and nothing looser.

use jiff::Timestamp;
use thiserror::Error;

/// Text that is no point in time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no point in time: write one with its offset from UTC (RFC 3339), such as \"2026-01-02T15:04:05Z\"")]
pub struct TimeError(pub String);

/// Longest text that is one, to the nanosecond and with an offset.
const LONGEST: usize = "2026-01-02T15:04:05.123456789+01:00".len();

/// 0001-01-01T00:00:00Z: before it there is none for an API server's rules.
const FIRST: Timestamp = Timestamp::constant(-62_135_596_800, 0);
/// 9999-12-30T22:00:00Z: after it there is none for jiff, which has room for all offsets.
const LAST: Timestamp = Timestamp::constant(253_402_207_200, 0);

/// Reads `spec.until`.
pub fn parse_until(text: &str) -> Result<Timestamp, TimeError> {
    let refuse = || TimeError(text.to_owned());
    // jiff also reads what has no seconds, a space for the T, or the name of a zone.
    let shaped = text.len() <= LONGEST && has_shape(text.as_bytes());
    let read = shaped.then(|| text.parse::<Timestamp>().ok()).flatten();
    read.filter(|read| (FIRST..LAST).contains(read)).ok_or_else(refuse)
}

fn has_shape(text: &[u8]) -> bool {
    let Some((head, rest)) = text.split_at_checked("2026-01-02T15:04:05".len()) else {
        return false;
    };
    let fits = |text: &[u8], shape: &[u8]| {
        let one = |(byte, shape): (&u8, &u8)| match shape {
            b'0' => byte.is_ascii_digit(),
            b'T' => byte.eq_ignore_ascii_case(&b'T'),
            b'+' => matches!(byte, b'+' | b'-'),
            shape => byte == shape,
        };
        text.len() == shape.len() && text.iter().zip(shape).all(one)
    };
    let rest = match rest {
        [b'.', fraction @ ..] => {
            let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if !(1..=9).contains(&digits) {
                return false;
            }
            &fraction[digits..]
        }
        rest => rest,
    };
    // jiff reads a leap second, and offsets of more than a day.
    let below = |text: &[u8], most: &[u8]| text < most;
    let is_offset = |rest: &[u8]| fits(rest, b"+00:00") && below(&rest[1..3], b"24") && below(&rest[4..], b"60");
    fits(head, b"0000-00-00T00:00:00")
        && below(&head[17..], b"60")
        && (rest.eq_ignore_ascii_case(b"Z") || is_offset(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rfc_3339_is_read() {
        for (text, second) in [
            ("1970-01-01T00:00:01Z", 1),
            ("1970-01-01t00:00:01z", 1),
            ("1970-01-01T01:00:01+01:00", 1),
            ("1969-12-31T23:30:01.5-00:30", 1),
            ("1970-01-01T00:00:01.123456789Z", 1),
            ("1970-01-01T23:59:01+23:59", 1),
        ] {
            assert_eq!(parse_until(text).map(Timestamp::as_second), Ok(second), "{text}");
        }
        for text in [
            "",
            "tomorrow",
            "2026-01-02",
            "2026-01-02T15:04Z",
            "2026-01-02T15:04:05",
            "2026-01-02 15:04:05Z",
            "2026-02-30T15:04:05Z",
            "2026-01-02T25:04:05Z",
            "2026-01-02T15:04:05.Z",
            "2026-01-02T15:04:05+1:00",
            "2026-01-02T15:04:05+01:00[Europe/Berlin]",
            "2026-01-02T15:04:05.1234567890Z",
            "+002026-01-02T15:04:05Z",
            "2026-01-02T15:04:60Z",
            "2026-01-02T15:04:05+24:00",
            "2026-01-02T15:04:05+01:60",
            "0000-12-31T23:59:59Z",
            "9999-12-31T00:00:00Z",
            "2026-01-02T15:04:05Ä",
        ] {
            assert_eq!(parse_until(text), Err(TimeError(text.to_owned())), "{text}");
        }
    }
}
