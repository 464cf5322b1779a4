//! The words that a selector relates a label and its values by.

use std::fmt;

/// What a [`Requirement`](super::Requirement) says about its label. `k=v` and `k==v` are `In` with one value, `k!=v` is `NotIn` with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    /// The label exists and its value is one of the values.
    In,
    /// The label does not exist, or its value is none of the values.
    NotIn,
    /// The label exists.
    Exists,
    /// The label does not exist.
    DoesNotExist,
    /// The label exists, is a decimal integer, and is greater than the one value.
    GreaterThan,
    /// The label exists, is a decimal integer, and is less than the one value.
    LessThan,
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
