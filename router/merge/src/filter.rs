//! Which objects of a member are the caller's, told from the namespace alone: what a shard's labels would say, without them.
//!
//! Until an agent has labelled a kind completely, and for ever for kinds it does not label, the router asks a member
//! without the labels that agents write and drops what is not the shard's itself. The answer must be the one that the
//! labels would give, so the requirements on them are evaluated from the namespace's name: agents compute them from it.
//! What only labels of the user's can tell is not here: it stays in the `labelSelector`. Made by `plan`, asked for each
//! item and event by `list` and `watch`.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use portolan_crds::labels::{LabelKeys, system_namespace};
use portolan_crds::selector::{Operator, Requirement, Selector};
use portolan_crds::shard::{BucketAlgorithm, Bucketing};
use xxhash_rust::xxh3::Xxh3;

use crate::object_meta::ObjectMeta;

/// Names of namespaces. Shared: one set per member and snapshot, however many requests are under way.
pub type Names = Arc<HashSet<Arc<str>>>;

/// The value that agents write into the label `control`.
const CONTROLLED: &str = "true";

/// The namespaces of one member that belong to the caller. Cheap to clone; equal if it says the same in the same words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceFilter {
    /// A hash of `reach`; computed once, because a reach may name thousands and every request asks.
    digest: u64,
    reach: Reach,
    labels: Option<Arc<NamespaceLabels>>,
    by_name: bool,
    placeless: bool,
    /// Namespaces that this one has to admit as well.
    and: Option<Arc<Self>>,
}

/// Which namespaces are reached, before requirements on labels narrow them.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Reach {
    All,
    Only(Names),
    Except(Names),
}

/// Requirements on the labels that agents write, and what they would write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceLabels {
    keys: LabelKeys,
    bucketing: Bucketing,
    requirements: Vec<Requirement>,
    nothing: bool,
}

impl NamespaceFilter {
    fn new(reach: Reach) -> Self {
        Self {
            digest: reach.digest(),
            reach,
            labels: None,
            by_name: false,
            placeless: false,
            and: None,
        }
    }

    /// A filter that admits the whole member.
    pub fn all() -> Self {
        Self::new(Reach::All)
    }

    /// A filter that admits these namespaces.
    pub fn only(names: Names) -> Self {
        Self::new(Reach::Only(names))
    }

    /// A filter that admits all but these namespaces: another member of the shard owns them.
    pub fn except(names: Names) -> Self {
        if names.is_empty() {
            return Self::all();
        }
        Self::new(Reach::Except(names))
    }

    /// The filter, narrowed to the namespaces whose objects would have these labels.
    #[must_use]
    pub fn with_labels(self, labels: NamespaceLabels) -> Self {
        let labels = (!labels.is_everything()).then(|| Arc::new(labels));
        Self { labels, ..self }
    }

    /// The filter, narrowed to the namespaces that `other`, of the same kind, admits as well.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            and: Some(Arc::new(other)),
            ..self
        }
    }

    /// The filter for the kind `namespaces`: `metadata.name` decides.
    #[must_use]
    pub fn of_names(self) -> Self {
        Self { by_name: true, ..self }
    }

    /// The filter for kinds that may turn out to have no namespace: their objects pass.
    #[must_use]
    pub fn with_placeless(self) -> Self {
        Self {
            placeless: true,
            ..self
        }
    }

    /// Whether objects of `namespace` are the caller's. "" is an object without a namespace.
    pub fn admits(&self, namespace: &str) -> bool {
        if namespace.is_empty() {
            return self.placeless && !self.by_name;
        }
        let reached = match &self.reach {
            Reach::All => true,
            Reach::Only(names) => names.contains(namespace),
            Reach::Except(names) => !names.contains(namespace),
        };
        let labelled = self.labels.as_ref().is_none_or(|labels| labels.fits(namespace));
        reached && labelled && self.and.as_ref().is_none_or(|and| and.admits(namespace))
    }

    /// Whether an object is the caller's. Of namespaces the name is asked for, of all other objects the namespace. A Namespace
    /// that says to be in one is none: reading may have stopped there, before the name was said again.
    pub fn admits_object(&self, meta: &ObjectMeta<'_>) -> bool {
        if self.by_name {
            return meta.namespace.is_empty() && self.admits(&meta.name);
        }
        self.admits(&meta.namespace)
    }

    /// Whether an object of this namespace and name is the caller's.
    pub fn admits_key(&self, namespace: &str, name: &str) -> bool {
        self.admits(if self.by_name { name } else { namespace })
    }

    /// Whether some namespace is admitted by this filter and by `one`, and not by `other`. True where that cannot be told.
    pub fn shares_beyond(&self, other: &Self, one: &Self) -> bool {
        let beyond = self.beyond(other);
        beyond.is_none_or(|names| names.iter().any(|name| one.admits(name)))
    }

    /// The namespaces that this filter admits and `other` does not, in order; `None`: they cannot be named.
    pub fn beyond(&self, other: &Self) -> Option<Vec<Arc<str>>> {
        let alike = self.labels == other.labels
            && (self.by_name, self.placeless) == (other.by_name, other.placeless)
            && self.and == other.and;
        let mut names: Vec<Arc<str>> = match (&self.reach, &other.reach) {
            _ if !alike => return None,
            (_, Reach::All) => Vec::new(),
            (Reach::Only(own), _) => own.iter().filter(|name| !other.admits(name)).cloned().collect(),
            (Reach::All | Reach::Except(_), Reach::Except(others)) => others.iter().cloned().collect(),
            (Reach::All | Reach::Except(_), Reach::Only(_)) => return None,
        };
        names.retain(|name| self.admits(name));
        names.sort_unstable();
        Some(names)
    }

    /// What selects the objects of one namespace, of whatever kind.
    pub fn field_selector(&self, namespace: &str) -> String {
        let field = if self.by_name { "name" } else { "namespace" };
        format!("metadata.{field}={namespace}")
    }

    /// Whether it admits every namespace, so that no object need be looked at.
    pub fn is_everything(&self) -> bool {
        self.reach == Reach::All && self.labels.is_none() && self.and.is_none()
    }

    /// Whether the filter provably admits nothing.
    pub fn is_nothing(&self) -> bool {
        let unreached = matches!(&self.reach, Reach::Only(names) if names.is_empty());
        let unlabelled = self.labels.as_ref().is_some_and(|labels| labels.nothing);
        !self.placeless && (unreached || unlabelled)
    }

    /// How many namespaces the filter names.
    pub fn names(&self) -> usize {
        match &self.reach {
            Reach::All => 0,
            Reach::Only(names) | Reach::Except(names) => names.len(),
        }
    }
}

impl Reach {
    fn digest(&self) -> u64 {
        let (word, names) = match self {
            Self::All => ("all", None),
            Self::Only(names) => ("only", Some(names)),
            Self::Except(names) => ("except", Some(names)),
        };
        let mut names: Vec<&str> = names
            .into_iter()
            .flat_map(|names| names.iter())
            .map(|name| &**name)
            .collect();
        names.sort_unstable();
        let mut hash = Xxh3::new();
        for part in std::iter::once(word).chain(names) {
            feed(&mut hash, part);
        }
        hash.digest()
    }
}

/// A number for what of one member's objects is the caller's: in these namespaces (`None`: as the path says), with these
/// labels of the user's. For [`crate::cursor::Universe::covering`], so it is the same on every router and for ever. Whether
/// objects without a namespace pass is not in it: that is only until somebody has said whether there are any.
pub fn share_digest(namespaces: Option<&NamespaceFilter>, selector: Option<&Selector>) -> u64 {
    let mut hash = Xxh3::new();
    if let Some(filter) = namespaces {
        feed(&mut hash, if filter.by_name { "names" } else { "namespaces" });
        hash.update(&filter.digest.to_le_bytes());
        if let Some(labels) = &filter.labels {
            feed(&mut hash, &labels.selector().to_string());
            feed(
                &mut hash,
                match labels.bucketing.algorithm() {
                    BucketAlgorithm::Xxh3 => "xxh3",
                    BucketAlgorithm::Legacy => "legacy",
                },
            );
            hash.update(&labels.bucketing.buckets().to_le_bytes());
        }
    }
    feed(&mut hash, "selector");
    if let Some(selector) = selector {
        feed(&mut hash, &selector.to_string());
    }
    hash.digest()
}

/// Feeds a part behind its length: no two lists of parts read alike.
pub(crate) fn feed(hash: &mut Xxh3, part: &str) {
    hash.update(&(part.len() as u64).to_le_bytes());
    hash.update(part.as_bytes());
}

/// For people: names sorted, and no more of them than a line takes.
impl fmt::Display for NamespaceFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 20;
        let list = |names: &Names| {
            let mut names: Vec<&str> = names.iter().map(|name| &**name).collect();
            names.sort_unstable();
            let more = names.len().saturating_sub(SHOWN);
            names.truncate(SHOWN);
            let shown = names.join(", ");
            if more == 0 {
                shown
            } else {
                format!("{shown} and {more} more")
            }
        };
        match &self.reach {
            Reach::All => f.write_str("all namespaces")?,
            Reach::Only(names) if names.is_empty() => f.write_str("no namespace")?,
            Reach::Only(names) => write!(f, "namespaces {}", list(names))?,
            Reach::Except(names) => write!(f, "all namespaces but {}", list(names))?,
        }
        match &self.labels {
            Some(labels) => write!(f, " whose labels would match {}", labels.selector()),
            None => Ok(()),
        }
    }
}

impl NamespaceLabels {
    /// The part of `selector` that speaks of labels that agents write under `keys`; the rest is ignored.
    pub fn of(selector: &Selector, keys: &LabelKeys, bucketing: Bucketing) -> Self {
        let reserved = keys.reserved();
        let about = |one: &&Requirement| reserved.contains(&one.key());
        Self {
            requirements: selector.requirements().iter().filter(about).cloned().collect(),
            nothing: selector.is_nothing(),
            keys: keys.clone(),
            bucketing,
        }
    }

    /// Whether every namespace's labels fit.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    /// Whether the labels that an agent gives to objects of `namespace` fit. Agents leave system namespaces alone: there
    /// the bucket is absent, and only the name is what it is.
    pub fn fits(&self, namespace: &str) -> bool {
        if self.nothing {
            return false;
        }
        let labelled = !system_namespace(namespace);
        let mut digits = [0; 5];
        self.requirements.iter().all(|requirement| {
            let value = match requirement.key() {
                key if key == self.keys.namespace() => Some(namespace),
                key if key == self.keys.sharding_hash() && labelled => {
                    Some(decimal(self.bucketing.bucket_of(namespace), &mut digits))
                }
                key if key == self.keys.control() && labelled => Some(CONTROLLED),
                _ => None,
            };
            requirement.accepts(value)
        })
    }

    /// Whether labels say the same as names do, once they are complete: system namespaces have none, so what would pass
    /// or stop one of those by its name must be told by name.
    pub fn is_sayable(&self) -> bool {
        self.requirements.iter().all(|requirement| {
            requirement.key() != self.keys.namespace()
                || matches!(requirement.operator(), Operator::In | Operator::NotIn)
                    && !requirement.values().iter().any(|name| system_namespace(name))
        })
    }

    /// The requirements as a selector, to be injected once labels are complete.
    pub fn selector(&self) -> Selector {
        if self.nothing {
            return Selector::nothing();
        }
        Selector::from_requirements(self.requirements.iter().cloned())
    }
}

/// A bucket as the label has it, without an allocation per event.
fn decimal(mut number: u16, digits: &mut [u8; 5]) -> &str {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(number % 10).unwrap_or_default();
        number /= 10;
        if number == 0 {
            break;
        }
    }
    std::str::from_utf8(&digits[at..]).unwrap_or_default()
}

#[cfg(test)]
mod tests;
