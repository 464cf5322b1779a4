//! Which rules does a request meet? All rows of all rules at once, by one bitset per word that some rule names.
//!
//! A row is one `ResourceRule`. For each dimension (group, resource, verb, namespace, cluster) there is the set of rows
//! that take anything and, by word, the set of rows that name it; a row matches if it is in one of the two in every
//! dimension. So a request costs a look-up per dimension and a handful of ANDs for each 512 rows, whatever the rules are.
//! The law (`tests`): the same answer as asking each rule by itself.

use std::collections::BTreeMap;

use portolan_crds::circuit_breaker::ResourceRule;

use super::bits::{Bits, Block, NOTHING, Rows, Union, both, each_row, either, is_empty};
use crate::value::hashed::HashMap;

/// The word that takes anything.
const ANY: &str = "*";
/// Plural name of the objects of leader elections.
const LEASES: &str = "leases";

/// A request in the words of rules.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    /// `None`: no resource. It meets rules that take any group, resource and namespace.
    pub(crate) resource: Option<AskedResource<'a>>,
    /// The API server's verb.
    pub(crate) verb: &'a str,
    /// `None`: it has none, or is over all of them. It meets rules that take any namespace, or name the empty one.
    pub(crate) namespace: Option<&'a str>,
    /// The members that it goes to, or may go to.
    pub(crate) clusters: &'a [&'a str],
    /// Of the caller's own leader election: it meets a row that names `leases`, and no other.
    pub(crate) election: bool,
}

impl Asked<'_> {
    /// A list or the start of a watch.
    pub(crate) fn is_collection(&self) -> bool {
        self.resource.is_some() && matches!(self.verb, "list" | "watch")
    }
}

/// What it is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AskedResource<'a> {
    /// API group; empty is the core group.
    pub(crate) group: &'a str,
    /// Plural name.
    pub(crate) resource: &'a str,
    /// First path segment after the object's name.
    pub(crate) subresource: Option<&'a str>,
}

/// What a list of a rule means that has nothing in it. `clusters` always means any then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Empty {
    /// As in a CircuitBreaker, where it is refused before.
    MatchesNothing,
    /// As in a FaultInjection.
    MatchesAll,
}

/// All rows of some rules, compiled.
#[derive(Debug, Default)]
pub(crate) struct Matcher {
    /// By row: its rule. Rows of a rule stand together, rules in order.
    rules: Vec<usize>,
    groups: Words,
    resources: Resources,
    verbs: Words,
    namespaces: Words,
    clusters: Words,
    /// Rows that name `leases`, or subresources of it.
    leases: Bits,
}

/// One dimension of single words.
#[derive(Debug, Default)]
struct Words {
    any: Bits,
    named: HashMap<Box<str>, Bits>,
}

/// Resources with their subresources.
#[derive(Debug, Default)]
struct Resources {
    /// `*`.
    any: Bits,
    /// `pods`: without subresources.
    named: HashMap<Box<str>, Bits>,
    /// `pods/exec`. Two levels, so that no text is put together to find one.
    subresources: HashMap<Box<str>, HashMap<Box<str>, Bits>>,
    /// `pods/*`: the subresources without the resource itself.
    with_any: HashMap<Box<str>, Bits>,
    /// `*/scale`.
    of_any: HashMap<Box<str>, Bits>,
}

impl Matcher {
    /// Tells the id of each rule that matches, once, in order.
    pub(crate) fn each(&self, asked: &Asked<'_>, mut found: impl FnMut(usize)) {
        let mut last = None;
        self.each_block(asked, |index, rows, _| {
            self.rules_of(index, &rows, &mut last, &mut found);
        });
    }

    /// The rows that match.
    pub(super) fn rows(&self, asked: &Asked<'_>) -> Rows {
        let mut all = Rows::default();
        self.each_block(asked, |index, rows, end| all.set(index, rows, end));
        all
    }

    /// As [`Matcher::each`], of rows that are known already.
    pub(super) fn each_of(&self, rows: &Rows, mut found: impl FnMut(usize)) {
        let mut last = None;
        for (index, rows) in rows.blocks() {
            self.rules_of(index, rows, &mut last, &mut found);
        }
    }

    /// Tells rows that match, a block at a time, where there are any, and which block ends them all.
    fn each_block(&self, asked: &Asked<'_>, mut tell: impl FnMut(usize, Block, usize)) {
        let [groups, resources, namespaces] = match asked.resource {
            Some(resource) => [
                self.groups.sets(Some(resource.group)),
                self.resources.sets(&resource),
                self.namespaces.sets(Some(asked.namespace.unwrap_or_default())),
            ],
            None => [
                self.groups.sets(None),
                [&self.resources.any, NOTHING, NOTHING, NOTHING],
                self.namespaces.sets(None),
            ],
        };
        let verbs = self.verbs.sets(Some(asked.verb));
        let mut dimensions = [groups, resources, verbs, namespaces].map(Union::of);
        // The one with the fewest rows says of most blocks of thousands that there are none.
        dimensions.sort_unstable_by_key(|union| union.count);
        let [fewest, others @ ..] = &dimensions;
        let clusters = asked
            .clusters
            .iter()
            .filter_map(|cluster| self.clusters.named.get(*cluster));
        // Empty, and nothing allocated, as long as no rule names a cluster of the request.
        let clusters: Vec<&Bits> = clusters.collect();
        let range = fewest.range();
        let end = range.end;
        for index in range {
            let mut rows = fewest.block(index);
            if is_empty(&rows) {
                continue;
            }
            for union in others {
                rows = both(&rows, &union.block(index));
            }
            let any = *self.clusters.any.block(index);
            let named = clusters.iter().fold(any, |all, set| either(&all, set.block(index)));
            rows = both(&rows, &named);
            if asked.election {
                rows = both(&rows, self.leases.block(index));
            }
            if !is_empty(&rows) {
                tell(index, rows, end);
            }
        }
    }

    /// Tells the rules of these rows, but the one that was told last.
    fn rules_of(&self, index: usize, rows: &Block, last: &mut Option<usize>, found: &mut impl FnMut(usize)) {
        each_row(index, rows, |row| {
            let rule = self.rules[row];
            if last.replace(rule) != Some(rule) {
                found(rule);
            }
        });
    }
}

impl Words {
    fn sets(&self, word: Option<&str>) -> [&Bits; 4] {
        let named = word.and_then(|word| self.named.get(word));
        [&self.any, named.unwrap_or(NOTHING), NOTHING, NOTHING]
    }
}

impl Resources {
    fn sets(&self, asked: &AskedResource<'_>) -> [&Bits; 4] {
        let Some(subresource) = asked.subresource else {
            let named = self.named.get(asked.resource);
            return [&self.any, named.unwrap_or(NOTHING), NOTHING, NOTHING];
        };
        let exact = self.subresources.get(asked.resource).and_then(|of| of.get(subresource));
        [
            &self.any,
            exact.unwrap_or(NOTHING),
            self.with_any.get(asked.resource).unwrap_or(NOTHING),
            self.of_any.get(subresource).unwrap_or(NOTHING),
        ]
    }
}

/// Rows on their way into a [`Matcher`].
#[derive(Debug, Default)]
pub(super) struct MatcherBuilder {
    /// Of the rule that rows are added to.
    rule: usize,
    rules: Vec<usize>,
    groups: WordRows,
    resources: ResourceRows,
    verbs: WordRows,
    namespaces: WordRows,
    clusters: WordRows,
    leases: Vec<usize>,
}

/// Rows of one dimension, ascending. Ordered, so that nothing depends on how a hash falls.
#[derive(Debug, Default)]
struct WordRows {
    any: Vec<usize>,
    named: BTreeMap<Box<str>, Vec<usize>>,
}

#[derive(Debug, Default)]
struct ResourceRows {
    /// `*`, and `pods`.
    plain: WordRows,
    subresources: BTreeMap<Box<str>, BTreeMap<Box<str>, Vec<usize>>>,
    with_any: BTreeMap<Box<str>, Vec<usize>>,
    of_any: BTreeMap<Box<str>, Vec<usize>>,
}

impl MatcherBuilder {
    /// Rows of the current rule.
    pub(super) fn add_each(&mut self, rows: &[ResourceRule], empty: Empty) {
        for row in rows {
            self.add(row, empty);
        }
    }

    /// A row of the current rule.
    pub(super) fn add(&mut self, rule: &ResourceRule, empty: Empty) {
        let row = self.rules.len();
        self.rules.push(self.rule);
        self.groups.add(row, &rule.api_groups, empty);
        self.verbs.add(row, &rule.verbs, empty);
        self.namespaces.add(row, &rule.namespaces, empty);
        self.clusters.add(row, &rule.clusters, Empty::MatchesAll);
        self.resources.add(row, &rule.resources, empty);
        let of_leases = |name: &String| name.split('/').next() == Some(LEASES);
        if rule.resources.iter().any(of_leases) {
            self.leases.push(row);
        }
    }

    /// Rows are of the next rule from here on.
    pub(super) fn next_rule(&mut self) {
        self.rule += 1;
    }

    pub(super) fn build(self) -> Matcher {
        Matcher {
            rules: self.rules,
            groups: self.groups.build(),
            resources: self.resources.build(),
            verbs: self.verbs.build(),
            namespaces: self.namespaces.build(),
            clusters: self.clusters.build(),
            leases: Bits::of(&self.leases),
        }
    }
}

impl WordRows {
    fn add(&mut self, row: usize, words: &[String], empty: Empty) {
        if words.is_empty() && empty == Empty::MatchesAll {
            self.any.push(row);
        }
        for word in words {
            self.add_word(row, word);
        }
    }

    fn add_word(&mut self, row: usize, word: &str) {
        match word {
            ANY => push(&mut self.any, row),
            word => push(self.named.entry(word.into()).or_default(), row),
        }
    }

    fn build(self) -> Words {
        Words {
            any: Bits::of(&self.any),
            named: bits(self.named),
        }
    }
}

impl ResourceRows {
    fn add(&mut self, row: usize, names: &[String], empty: Empty) {
        if names.is_empty() {
            self.plain.add(row, names, empty);
        }
        for name in names {
            match name.split_once('/') {
                None => self.plain.add_word(row, name),
                // As admission policies of Kubernetes have it: all, with all subresources.
                Some((ANY, ANY)) => self.plain.add_word(row, ANY),
                Some((ANY, of)) => push(self.of_any.entry(of.into()).or_default(), row),
                Some((resource, ANY)) => push(self.with_any.entry(resource.into()).or_default(), row),
                Some((resource, of)) => {
                    let all = self.subresources.entry(resource.into()).or_default();
                    push(all.entry(of.into()).or_default(), row);
                }
            }
        }
    }

    fn build(self) -> Resources {
        let Words { any, named } = self.plain.build();
        let subresources = self.subresources.into_iter();
        Resources {
            any,
            named,
            subresources: subresources.map(|(resource, all)| (resource, bits(all))).collect(),
            with_any: bits(self.with_any),
            of_any: bits(self.of_any),
        }
    }
}

/// A word may stand twice in a list.
fn push(rows: &mut Vec<usize>, row: usize) {
    if rows.last() != Some(&row) {
        rows.push(row);
    }
}

fn bits(rows: BTreeMap<Box<str>, Vec<usize>>) -> HashMap<Box<str>, Bits> {
    rows.into_iter().map(|(word, rows)| (word, Bits::of(&rows))).collect()
}
