//! Validation of the specs, one function per kind, for webhook, index and router alike.
//!
//! Every problem is found at once, each names its field and the fix, and no input makes these functions panic. They see one
//! object: what needs the others (does the cluster exist, do two shards overlap) is the index's.

mod circuit_breaker;
mod cluster_scoped;
mod fault_injection;
mod member;
mod policies;
mod root;
mod selectors;
mod sharding;
#[cfg(test)]
mod tests;
mod thresholds;

use std::fmt;

pub use circuit_breaker::validate_circuit_breaker;
pub use fault_injection::validate_fault_injection;
pub use member::validate_member;
pub use sharding::validate_sharding;

use crate::condition::ConditionReason;
use crate::names::is_dns_label;

/// What kind of problem a field has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The value cannot be served.
    Invalid,
    /// The field is missing.
    Required,
    /// The value is there already.
    Duplicate,
    /// The field or value is understood, but this version does not serve it yet, and nothing of the object can be served
    /// without it. Such an object is admitted and reported in its condition; an admission webhook warns and does not refuse.
    NotImplemented,
    /// The field is understood, but this version does not serve it yet; the rest of the object is served. Conditions
    /// `WebhookServed` and `RulesServed` name it, and an admission webhook warns.
    NotServed,
    /// What is asked for takes more than one author may have.
    TooMuch,
}

/// One thing wrong with a spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field, such as `spec.clusters[1].namespaces[0]`.
    pub field: String,
    /// What kind of problem it is.
    pub reason: Reason,
    /// What is wrong and how to mend it.
    pub message: String,
}

impl Problem {
    /// Whether the object is kept from being served by this problem: by any but an unserved part of it.
    pub fn refuses(&self) -> bool {
        self.reason != Reason::NotServed
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// The reason of condition `Accepted` that `problems` amount to: `Ok` if none of them refuses the object, and `Invalid` before
/// `TooMuch` before `NotImplemented`.
pub fn accepted_reason(problems: &[Problem]) -> ConditionReason {
    let reasons = problems.iter().map(|problem| match problem.reason {
        Reason::NotServed => ConditionReason::Ok,
        Reason::NotImplemented => ConditionReason::NotImplemented,
        Reason::TooMuch => ConditionReason::TooMuch,
        Reason::Invalid | Reason::Required | Reason::Duplicate => ConditionReason::Invalid,
    });
    // Declared in another order.
    let rank = |reason: &ConditionReason| match reason {
        ConditionReason::Invalid => 3,
        ConditionReason::TooMuch => 2,
        ConditionReason::NotImplemented => 1,
        _ => 0,
    };
    reasons.max_by_key(rank).unwrap_or(ConditionReason::Ok)
}

/// All `problems` in one line, for the message of a condition or a 422.
pub fn summary(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("; ")
}

/// The first ten of `problems` in one line, and how many more there are: messages are for people.
pub fn brief(problems: &[Problem]) -> String {
    const NAMED_MAX: usize = 10;
    let (named, rest) = problems.split_at(problems.len().min(NAMED_MAX));
    let named = summary(named);
    match rest.len() {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Collects problems while the rules run.
#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, field: impl Into<String>, reason: Reason, message: impl Into<String>) {
        self.0.push(Problem {
            field: field.into(),
            reason,
            message: message.into(),
        });
    }

    fn invalid(&mut self, field: impl Into<String>, message: impl fmt::Display) {
        self.add(field, Reason::Invalid, message.to_string());
    }

    fn required(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.add(field, Reason::Required, message);
    }

    fn not_implemented(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.add(field, Reason::NotImplemented, message);
    }

    /// Reports each item of `list` that an earlier one equals.
    fn duplicates(&mut self, field: &str, list: &[String]) {
        let mut seen = std::collections::BTreeSet::new();
        for (index, item) in list.iter().enumerate() {
            if !seen.insert(item) {
                self.add(
                    format!("{field}[{index}]"),
                    Reason::Duplicate,
                    format!("{item:?} is there already: remove one"),
                );
            }
        }
    }

    /// Reports a list of more than `most` items.
    fn at_most(&mut self, field: &str, count: usize, most: usize) {
        if count > most {
            self.invalid(field, format!("has {count} items, at most {most}: split the object"));
        }
    }

    /// Reports a name that is no DNS label.
    fn dns_label(&mut self, field: &str, name: &str) {
        if !is_dns_label(name) {
            let message = "at most 63 characters of a-z, 0-9 and '-', beginning and ending with a letter or digit";
            self.invalid(field, format!("{name:?} must be a DNS label: {message}"));
        }
    }

    /// Reports a number outside `range`.
    fn within(&mut self, field: &str, value: impl Into<i64>, range: std::ops::RangeInclusive<i64>) {
        let value = value.into();
        if !range.contains(&value) {
            self.invalid(
                field,
                format!("{value} must be from {} to {}", range.start(), range.end()),
            );
        }
    }
}
