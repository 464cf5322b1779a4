//! One statement about one label, and what labels may look like.

use std::collections::BTreeSet;
use std::fmt;

use super::error::SelectorError;
use super::operator::Operator;
use crate::names::is_dns_subdomain;

/// Longest label value and longest name part of a label key, in bytes (Kubernetes: labels and selectors).
pub const LABEL_MAX: usize = 63;

/// One statement about one label, valid by construction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    pub(super) key: String,
    pub(super) operator: Operator,
    pub(super) values: BTreeSet<String>,
}

impl Requirement {
    /// A checked requirement: key and values as labels allow them, as many values as the operator takes.
    pub fn new<V: Into<String>>(
        key: impl Into<String>,
        operator: Operator,
        values: impl IntoIterator<Item = V>,
    ) -> Result<Self, SelectorError> {
        let key = key.into();
        let values: BTreeSet<String> = values.into_iter().map(Into::into).collect();
        if !is_label_key(&key) {
            return Err(SelectorError::Key(key));
        }
        let (fits, takes) = match operator {
            Operator::In | Operator::NotIn => (!values.is_empty(), "at least one value"),
            Operator::Exists | Operator::DoesNotExist => (values.is_empty(), "no value"),
            Operator::GreaterThan | Operator::LessThan => (values.len() == 1, "exactly one value"),
        };
        if !fits {
            return Err(SelectorError::Arity {
                key,
                operator,
                takes,
                given: values.len(),
            });
        }
        if let Some(value) = values.iter().find(|value| !is_label_value(value)) {
            return Err(SelectorError::Value {
                value: value.clone(),
                key,
            });
        }
        let compares = matches!(operator, Operator::GreaterThan | Operator::LessThan);
        if let Some(value) = values.iter().find(|value| compares && value.parse::<i64>().is_err()) {
            return Err(SelectorError::Integer {
                value: value.clone(),
                key,
                operator,
            });
        }
        Ok(Self { key, operator, values })
    }

    /// The label it speaks about.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// How the requirement relates label and values.
    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// The values it compares with: none for `Exists` and `DoesNotExist`, one for the comparisons.
    pub fn values(&self) -> &BTreeSet<String> {
        &self.values
    }

    /// Whether a label with this value, or no such label, satisfies it.
    pub fn accepts(&self, value: Option<&str>) -> bool {
        let compare = |holds: fn(&i64, &i64) -> bool| {
            let number = value.and_then(|value| value.parse::<i64>().ok());
            number
                .zip(self.bound())
                .is_some_and(|(number, bound)| holds(&number, &bound))
        };
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan => compare(i64::gt),
            Operator::LessThan => compare(i64::lt),
        }
    }

    /// The number that a comparison compares with.
    pub(super) fn bound(&self) -> Option<i64> {
        self.values.first().and_then(|value| value.parse().ok())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, operator, values } = self;
        let list = || values.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        match operator {
            Operator::In if values.len() == 1 => write!(f, "{key}={}", list()),
            Operator::In => write!(f, "{key} in ({})", list()),
            Operator::NotIn if values.len() == 1 => write!(f, "{key}!={}", list()),
            Operator::NotIn => write!(f, "{key} notin ({})", list()),
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{}", list()),
            Operator::LessThan => write!(f, "{key}<{}", list()),
        }
    }
}

/// Whether `key` can be a label's key: `[<DNS subdomain>/]<name>`.
pub fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key
        .split_once('/')
        .map_or((None, key), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(is_dns_subdomain) && !name.is_empty() && is_label_value(name)
}

/// Whether `value` can be a label's value. The empty value can.
pub fn is_label_value(value: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = value.as_bytes();
    bytes.len() <= LABEL_MAX
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}
