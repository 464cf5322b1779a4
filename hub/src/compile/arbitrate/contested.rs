//! Pairs that somebody else has, in words for who may read them.

use portolan_crds::ShardName;
use portolan_crds::names::STRANGERS_SHARD;

/// Most pairs or problems named in one message; the rest is counted.
const NAMED_MAX: usize = 10;

/// A pair that somebody else has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contested {
    /// `cluster/namespace`
    pub(crate) pair: String,
    /// `None`: nobody knows, while the ledger withholds what it does not name.
    pub(crate) owner: Option<ShardName>,
}

impl Contested {
    /// For authors of the hub namespace `namespace`.
    pub(crate) fn told_in(&self, namespace: &str) -> String {
        match &self.owner {
            Some(owner) if owner.namespace() == namespace => format!("{} (of {owner})", self.pair),
            Some(_) => format!("{} (of {STRANGERS_SHARD})", self.pair),
            None => format!("{} (not in the adopted ledger)", self.pair),
        }
    }
}

/// [`Contested::told_in`], of a few of them.
pub(crate) fn some_contested<'a>(
    contested: impl IntoIterator<Item = &'a Contested, IntoIter: ExactSizeIterator>,
    namespace: &str,
) -> String {
    let told = contested.into_iter().map(|contested| contested.told_in(namespace));
    some_of(told, ", ")
}

/// The first few, and how many more: messages are for people.
pub(crate) fn some_of(
    items: impl IntoIterator<Item: std::fmt::Display, IntoIter: ExactSizeIterator>,
    separator: &str,
) -> String {
    let items = items.into_iter();
    let more = items.len().saturating_sub(NAMED_MAX);
    let named = items.take(NAMED_MAX).map(|item| item.to_string());
    let text = named.collect::<Vec<_>>().join(separator);
    if more > 0 {
        return format!("{text} and {more} more");
    }
    text
}
