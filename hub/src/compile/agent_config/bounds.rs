//! How much one agent is asked for, and what of it is left out.
//!
//! Agents take messages of bounded size, and each thing that is asked costs the member a watch. An author is a namespace of the
//! hub: what ShardingConfigs of one ask for beyond the bounds is left out, and those of others are asked as without it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use portolan_crds::fair::most_of_each;
use portolan_crds::{GroupResource, ShardName};

use super::kinds::{KINDS_MAX, Named};

/// Bytes of kinds in one agent's orders. With selectors, fences and routers they stay below what an agent takes.
const KINDS_MAX_BYTES: usize = 512 * 1024;
/// A kind counts for at least so many.
const KIND_BYTES: usize = KINDS_MAX_BYTES / KINDS_MAX;
/// Bytes of selectors in one agent's orders.
const SELECTORS_MAX_BYTES: usize = 2 * 1024 * 1024;
/// A selector counts for at least so many: 4,096 of them are asked for at most, each of which is a watch.
const SELECTOR_BYTES: usize = 512;
/// What frames the fields of one entry.
const FRAME_BYTES: usize = 16;

/// What the ShardingConfigs of each namespace ask one agent for.
#[derive(Debug, Default)]
pub(super) struct Asks<'a> {
    pub(super) kinds: BTreeMap<&'a str, Rc<Named>>,
    pub(super) selectors: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

/// What an agent is not asked for although ShardingConfigs do, by the namespaces of those.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// How many kinds at most.
    kinds: BTreeMap<String, usize>,
    /// Texts of the selectors.
    selectors: BTreeMap<String, BTreeSet<String>>,
}

impl LeftOut {
    /// Of how many kinds at most that limits in this namespace name the objects get no labels.
    pub(crate) fn kinds(&self, namespace: &str) -> usize {
        self.kinds.get(namespace).copied().unwrap_or_default()
    }

    /// How many kinds, and how many selectors of callers, by namespace of the ShardingConfigs that ask for them.
    pub(crate) fn by_author(&self) -> BTreeMap<&str, (usize, usize)> {
        let kinds = self.kinds.iter().map(|(author, kinds)| (author, (*kinds, 0)));
        let selectors = self.selectors.iter().map(|(author, texts)| (author, (0, texts.len())));
        let mut all = BTreeMap::new();
        for (author, (kinds, selectors)) in kinds.chain(selectors) {
            let sum: &mut (usize, usize) = all.entry(author.as_str()).or_default();
            *sum = (sum.0 + kinds, sum.1 + selectors);
        }
        all
    }

    /// Whether the agent does not look for the Pods that the selector of this shard chooses.
    pub(crate) fn has_selector(&self, shard: &ShardName, selector: &str) -> bool {
        let selectors = self.selectors.get(shard.namespace());
        selectors.is_some_and(|selectors| selectors.contains(selector))
    }

    /// What the shard was to be told of by another one's selector, which is left out itself.
    pub(super) fn add_selector(&mut self, shard: &ShardName, selector: &str) {
        let selectors = self.selectors.entry(shard.namespace().to_owned()).or_default();
        selectors.insert(selector.to_owned());
    }
}

impl<'a> Asks<'a> {
    /// The kinds that are asked for. Of one namespace those that come first.
    pub(super) fn bounded_kinds(&self, left_out: &mut LeftOut) -> BTreeSet<&GroupResource> {
        let weigh = |kind: &&GroupResource| {
            let bytes = kind.group.len() + kind.resource.len() + FRAME_BYTES;
            bytes.max(KIND_BYTES)
        };
        let named = self.kinds.values();
        let weights = named.map(|named| named.kinds.iter().map(|kind| weigh(&kind)).sum());
        let most = most_of_each(weights, KINDS_MAX_BYTES);
        let mut asked = BTreeSet::new();
        for (namespace, named) in &self.kinds {
            let fits = fitting(named.kinds.iter(), weigh, most);
            let left = named.kinds.len() - fits.len() + named.more;
            if left > 0 {
                left_out.kinds.insert((*namespace).to_owned(), left);
            }
            asked.extend(fits);
        }
        asked
    }

    /// The selectors that are asked for, with their namespaces. Of one namespace the shortest.
    pub(super) fn bounded_selectors(&self, left_out: &mut LeftOut) -> Vec<(&'a str, &'a str)> {
        let mut asked = Vec::new();
        let weigh_in = |namespace: &str| {
            let frame = namespace.len() + FRAME_BYTES;
            move |selector: &&str| (selector.len() + frame).max(SELECTOR_BYTES)
        };
        let all = self.selectors.iter();
        let weights = all.map(|(namespace, selectors)| selectors.iter().map(weigh_in(namespace)).sum());
        let most = most_of_each(weights, SELECTORS_MAX_BYTES);
        for (namespace, selectors) in &self.selectors {
            let mut shortest: Vec<_> = selectors.iter().copied().collect();
            shortest.sort_by_key(|selector| selector.len());
            let mut fits = fitting(shortest.into_iter(), weigh_in(namespace), most);
            fits.sort_unstable();
            if fits.len() < selectors.len() {
                let left = selectors
                    .iter()
                    .filter(|selector| fits.binary_search(*selector).is_err());
                let left = left.map(|selector| (*selector).to_owned()).collect();
                left_out.selectors.insert((*namespace).to_owned(), left);
            }
            asked.extend(fits.into_iter().map(|selector| (*namespace, selector)));
        }
        asked
    }
}

/// The first of these that weigh `most` together.
fn fitting<T>(all: impl Iterator<Item = T>, weigh: impl Fn(&T) -> usize, most: usize) -> Vec<T> {
    let mut left = most;
    all.take_while(|one| {
        let weight = weigh(one);
        let fits = weight <= left;
        left = left.saturating_sub(weight);
        fits
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(kinds: impl IntoIterator<Item = GroupResource>) -> Rc<Named> {
        Rc::new(Named {
            kinds: kinds.into_iter().collect(),
            more: 0,
        })
    }

    #[test]
    fn one_namespace_leaves_room_for_what_others_ask() {
        let long = |prefix: char, at: usize| format!("{prefix}{at:05}{}", "x".repeat(300));
        let kinds = (0..16_384).map(|at| GroupResource::new(long('g', at), long('r', at)));
        let pods = GroupResource::new("", "pods");
        let selectors: Vec<_> = (0..50)
            .map(|at| format!("x in ({at},{})", "v".repeat(61_000)))
            .collect();
        let mut asks = Asks::default();
        asks.kinds.insert("evil", named(kinds));
        asks.kinds.insert("others", named([pods.clone()]));
        asks.selectors
            .insert("evil", selectors.iter().map(String::as_str).collect());
        asks.selectors.insert("others", ["app=op"].into());
        let mut left_out = LeftOut::default();
        let asked = asks.bounded_kinds(&mut left_out);
        let bytes: usize = asked.iter().map(|kind| kind.group.len() + kind.resource.len()).sum();
        assert!(asked.contains(&pods) && bytes < KINDS_MAX_BYTES, "{bytes}");
        assert_eq!(left_out.kinds("evil"), 16_384 - (asked.len() - 1));
        assert_eq!(left_out.kinds("others"), 0);
        let asked = asks.bounded_selectors(&mut left_out);
        let bytes: usize = asked.iter().map(|(_, selector)| selector.len()).sum();
        assert!(
            asked.contains(&("others", "app=op")) && bytes < SELECTORS_MAX_BYTES,
            "{bytes}"
        );
        assert_eq!(asked.len(), 35, "34 of evil's fit");
        let shard = |namespace: &str| ShardName::new(namespace, "s").unwrap();
        let left = selectors
            .iter()
            .filter(|text| left_out.has_selector(&shard("evil"), text));
        assert_eq!(left.count(), 50 - 34);
        assert!(!left_out.has_selector(&shard("others"), "app=op"));
    }

    #[test]
    fn what_fits_is_asked_whole() {
        let pods = GroupResource::new("", "pods");
        let asks = Asks {
            kinds: [("a", named([pods.clone()])), ("b", named([pods]))].into(),
            selectors: [("a", ["x", "y"].into())].into(),
        };
        let mut left_out = LeftOut::default();
        assert_eq!(asks.bounded_kinds(&mut left_out).len(), 1);
        assert_eq!(asks.bounded_selectors(&mut left_out), [("a", "x"), ("a", "y")]);
        assert_eq!(left_out, LeftOut::default());
    }
}
