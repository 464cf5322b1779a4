//! Why something is not a selector.

use thiserror::Error;

use super::operator::Operator;

/// Why a text or a `LabelSelector` is not a selector. The API server refuses the same input.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SelectorError {
    /// The text breaks off or goes on where the grammar does not allow it.
    #[error("found {found:?}, expected {expected}")]
    Syntax {
        /// The token that was found; empty at the end of the text.
        found: String,
        /// What could have stood there.
        expected: &'static str,
    },
    /// A key that no label can have.
    #[error(
        "invalid label key {0:?}: an optional DNS subdomain and '/', then at most 63 characters of A-Z, a-z, 0-9, '-', '_' and '.', beginning and ending with a letter or digit"
    )]
    Key(String),
    /// A value that no label can have.
    #[error(
        "invalid value {value:?} of label {key:?}: at most 63 characters of A-Z, a-z, 0-9, '-', '_' and '.', beginning and ending with a letter or digit"
    )]
    Value {
        /// The label.
        key: String,
        /// The value that no label can have.
        value: String,
    },
    /// Too many or too few values for the operator.
    #[error("operator {operator} on label {key:?} takes {takes}, not {given}")]
    Arity {
        /// The label.
        key: String,
        /// The operator.
        operator: Operator,
        /// How many values the operator takes, in words.
        takes: &'static str,
        /// How many values were given.
        given: usize,
    },
    /// `>` and `<` compare 64-bit integers.
    #[error("operator {operator} on label {key:?} compares integers, not {value:?}")]
    Integer {
        /// The label.
        key: String,
        /// The operator.
        operator: Operator,
        /// The value that is no integer.
        value: String,
    },
    /// A `LabelSelector` operator other than the four that Kubernetes knows.
    #[error("unknown operator {operator:?} on label {key:?}: one of In, NotIn, Exists, DoesNotExist")]
    Operator {
        /// The label.
        key: String,
        /// The word that is no operator.
        operator: String,
    },
}
