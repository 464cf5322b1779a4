//! Label selectors as a conjunction of requirements: parse, AND, match and print.
//!
//! A router ANDs the shard's selector into what the client asked for. The client can narrow and never widen, so the
//! algebra works on requirements and not on text: `a=1` of the client and `a=2` of the shard is nothing, not either.
//! Every [`Selector`] is kept in canonical form (sorted, one statement per fact), so equal meaning found by the
//! reduction means equal value, equal text and equal hash.

mod error;
mod operator;
mod parse;
mod reduce;
mod requirement;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

pub use error::SelectorError;
pub use operator::Operator;
use reduce::Facts;
pub use requirement::{LABEL_MAX, Requirement, is_label_key, is_label_value};
use sha2::{Digest, Sha256};

/// A conjunction of requirements in canonical form. `Default` selects everything.
///
/// ```
/// use portolan_crds::Selector;
///
/// let shard = Selector::parse("app in (web, shop)")?;
/// let narrowed = shard.and(&Selector::parse("app=shop,tier")?);
/// assert_eq!(narrowed.to_string(), "app=shop,tier");
/// assert!(shard.and(&Selector::parse("app=mail")?).is_nothing());
/// # Ok::<(), portolan_crds::SelectorError>(())
/// ```
///
/// Printed as the API server's query text. A selector that provably matches nothing is kept as such
/// ([`Selector::is_nothing`]) and prints as a contradiction, so that even a reader who does not ask gets nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selector {
    /// `None` matches no labels at all.
    requirements: Option<Vec<Requirement>>,
}

impl Selector {
    /// Selects every object.
    pub const fn everything() -> Self {
        Self {
            requirements: Some(Vec::new()),
        }
    }

    /// Selects no object.
    pub const fn nothing() -> Self {
        Self { requirements: None }
    }

    /// Reads the API server's `labelSelector` query text, percent-decoded: the grammar of apimachinery's
    /// `labels.Parse`, with `=`, `==`, `!=`, `in`, `notin`, `k`, `!k`, `>` and `<`. Empty text selects everything.
    ///
    /// One deviation: a NUL ends the text for the API server; here it is an error.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        parse::parse(text).map(Self::from_requirements)
    }

    /// Reads a `metav1.LabelSelector`. An empty one selects everything, as it does in Kubernetes.
    pub fn from_label_selector(selector: &LabelSelector) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            requirements.push(Requirement::new(key, Operator::In, [value])?);
        }
        for expression in selector.match_expressions.iter().flatten() {
            let operator = match expression.operator.as_str() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => {
                    return Err(SelectorError::Operator {
                        key: expression.key.clone(),
                        operator: other.to_owned(),
                    });
                }
            };
            requirements.push(Requirement::new(
                &expression.key,
                operator,
                expression.values.iter().flatten(),
            )?);
        }
        Ok(Self::from_requirements(requirements))
    }

    /// The conjunction of `requirements`, reduced.
    pub fn from_requirements(requirements: impl IntoIterator<Item = Requirement>) -> Self {
        let mut facts = BTreeMap::<String, Facts>::new();
        for requirement in requirements {
            facts.entry(requirement.key.clone()).or_default().add(requirement);
        }
        let reduced = facts
            .into_iter()
            .map(|(key, facts)| facts.reduce(&key))
            .collect::<Option<Vec<_>>>();
        Self {
            requirements: reduced.map(|all| all.into_iter().flatten().collect()),
        }
    }

    /// The requirements, sorted by label. Empty both for everything and for nothing.
    pub fn requirements(&self) -> &[Requirement] {
        self.requirements.as_deref().unwrap_or_default()
    }

    /// Whether it is empty and so selects every object.
    pub fn is_everything(&self) -> bool {
        self.requirements.as_ref().is_some_and(Vec::is_empty)
    }

    /// Whether it provably selects no object: the answer is empty and no member need be asked.
    pub fn is_nothing(&self) -> bool {
        self.requirements.is_none()
    }

    /// What both select: never more than either.
    pub fn and(&self, other: &Self) -> Self {
        match (&self.requirements, &other.requirements) {
            (Some(ours), Some(theirs)) => Self::from_requirements(ours.iter().chain(theirs).cloned()),
            _ => Self::nothing(),
        }
    }

    /// Bytes of its text in the query of a URL, which is how an API server is asked for what it selects.
    pub fn url_bytes(&self) -> usize {
        let escaped = |byte: u8| {
            if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
                1
            } else {
                3
            }
        };
        self.to_string().bytes().map(escaped).sum()
    }

    /// A short name of it, by which programs tell each other which selector they mean: 128 bits in hex.
    ///
    /// ```
    /// use portolan_crds::Selector;
    ///
    /// let digest = |text| Selector::parse(text).map(|selector| selector.digest());
    /// assert_eq!(digest("b=2,a in (1)")?, digest("a=1,b=2")?);
    /// assert_ne!(digest("a=1")?, digest("a=2")?);
    /// # Ok::<(), portolan_crds::SelectorError>(())
    /// ```
    pub fn digest(&self) -> String {
        digest_of(&self.to_string())
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements.as_ref().is_some_and(|all| {
            all.iter()
                .all(|requirement| requirement.accepts(labels.get(&requirement.key).map(String::as_str)))
        })
    }
}

/// [`Selector::digest`] of the selector with this canonical text.
pub fn digest_of(canonical: &str) -> String {
    let hash = Sha256::digest(canonical);
    hash[..16].iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Default for Selector {
    fn default() -> Self {
        Self::everything()
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(requirements) = &self.requirements else {
            return f.write_str("nothing,!nothing");
        };
        for (index, requirement) in requirements.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{requirement}")?;
        }
        Ok(())
    }
}
