//! How many of a hundred requests a fault hits: parsed once, asked for each request with a number that was drawn for it.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Digits before the point, and after it, that a percentage may have.
const WHOLE_DIGITS: usize = 3;
const FRACTION_DIGITS: usize = 9;

/// How many of a hundred, from 0 (none) to 100 (all).
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Percent(f64);

/// Text that is no percentage.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no percentage: write a number from \"0\" (none) to \"100\" (all), such as \"12.5\"")]
pub struct PercentError(pub String);

impl Percent {
    /// None.
    pub const NONE: Self = Self(0.0);
    /// All of them: what an absent percentage means.
    pub const ALL: Self = Self(100.0);

    /// What a field says; absent means [`Self::ALL`].
    pub fn of(field: Option<&str>) -> Result<Self, PercentError> {
        field.map_or(Ok(Self::ALL), str::parse)
    }

    /// Whether it is meant by `draw`, a number of [0, 100) that was drawn evenly.
    pub fn hits(self, draw: f64) -> bool {
        draw < self.0
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Percent {
    type Err = PercentError;

    fn from_str(text: &str) -> Result<Self, PercentError> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = |text: &str, most: usize| text.len() <= most && text.bytes().all(|byte| byte.is_ascii_digit());
        let shaped = digits(whole, WHOLE_DIGITS) && digits(fraction, FRACTION_DIGITS);
        // Needs a digit; an empty whole is one that Go reads as 0.
        let number = text.parse::<f64>().ok().filter(|number| shaped && *number <= 100.0);
        number.map(Self).ok_or_else(|| PercentError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_from_0_to_100_are_percentages() {
        for (text, percent) in [
            ("0", 0.0),
            ("100", 100.0),
            ("100.0", 100.0),
            ("12.5", 12.5),
            ("007", 7.0),
            (".5", 0.5),
            ("5.", 5.0),
            ("0.000000001", 1e-9),
        ] {
            assert_eq!(text.parse(), Ok(Percent(percent)), "{text}");
        }
        for text in [
            "", ".", "100.1", "101", "-1", "+5", "1e1", "NaN", "inf", "50%", " 5", "5,5", "1000", "0x10", "٣",
        ] {
            assert_eq!(text.parse::<Percent>(), Err(PercentError(text.to_owned())));
        }
    }

    #[test]
    fn absent_is_all_and_0_is_none() {
        assert_eq!(Percent::of(None), Ok(Percent::ALL));
        assert_eq!(Percent::of(Some("0")), Ok(Percent::NONE));
        for draw in [0.0, 50.0, 99.999_999] {
            assert!(Percent::ALL.hits(draw), "{draw}");
            assert!(!Percent::NONE.hits(draw), "{draw}");
        }
    }

    proptest! {
        #[test]
        fn so_many_of_a_hundred_are_hit(percent in 0_u32..=100) {
            let parsed: Percent = percent.to_string().parse().unwrap();
            let hit = (0..100).filter(|draw| parsed.hits(f64::from(*draw))).count();
            prop_assert_eq!(hit, percent as usize);
        }
    }
}
