//! Whether two shards without `clusters` may have some of the same objects. Limits alone say what such a shard has, in the clusters
//! where its callers run.
//!
//! Two of them overlap if they may have one home, and there is a kind and a namespace for which the selectors of both can hold. Of
//! a kind that no limit of either names both have everything, as they have of cluster-scoped kinds, and that counts for nothing;
//! but a shard without any limit has all kinds. Agents label an object by its namespace and by that one's bucket: a selector
//! of the one and a selector of the other label are held against each other. Pure; called by the hub.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;

use crate::labels::LabelKeys;
use crate::names::{WILDCARD, is_dns_label};
use crate::selector::{Operator, Requirement, Selector};
use crate::shard::Bucketing;
use crate::sharding::{ObjectLimiter, ResourceGroup, ShardingConfigSpec};

#[cfg(test)]
mod tests;

/// Kinds of two shards that are looked at apart: groups by resources, of which those that the same limits name are one. Shards whose
/// limits make more of them count as overlapping.
const LOOKED_AT: usize = 4096;

/// What a shard without `clusters` has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Names of clusters; none: wherever callers run.
    homes: BTreeSet<String>,
    limits: Vec<Limit>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Limit {
    /// None: all kinds.
    kinds: Vec<ResourceGroup>,
    selector: Selector,
}

/// How objects are labelled.
#[derive(Clone, Copy, Debug)]
pub struct Labelling<'a> {
    /// The keys of the labels.
    pub keys: &'a LabelKeys,
    /// The bucket of each namespace.
    pub bucketing: Bucketing,
}

/// Some of what two shards both have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    kind: Kind,
    place: Place,
    /// What its other labels are like.
    labels: Selector,
}

/// One kind, or all that nothing names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kind {
    group: Option<String>,
    resource: Option<String>,
}

/// Namespaces, as far as selectors choose them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Place {
    bucket: Option<u16>,
    namespace: Option<String>,
}

impl Extent {
    /// What a shard of this spec has; `None`: it has clusters. A root has what all of its children have.
    pub fn of(spec: &ShardingConfigSpec) -> Option<Self> {
        let is_disabled = spec.root.is_some() && spec.active_root().is_none();
        if !spec.clusters.is_empty() || is_disabled {
            return None;
        }
        let mut extent = Self {
            homes: spec.caller_clusters.iter().cloned().collect(),
            limits: Vec::new(),
        };
        extent.narrow(&spec.limits);
        if let Some(root) = &spec.root {
            // Each child has its share of these, or of everything.
            match root.resource_selector.as_slice() {
                [] => extent.narrow(&[ObjectLimiter::default()]),
                limits => extent.narrow(limits),
            }
        }
        Some(extent)
    }

    /// Leaves what these limits select, too.
    pub fn narrow(&mut self, limits: &[ObjectLimiter]) {
        let limits = limits.iter().map(|limit| Limit {
            kinds: limit.relate_resources.clone(),
            selector: limit.selector.as_ref().map_or(Selector::everything(), |selector| {
                Selector::from_label_selector(selector).unwrap_or(Selector::nothing())
            }),
        });
        self.limits.extend(limits);
    }

    /// Whether it has no home that `other` has not.
    pub fn stays_within_homes_of(&self, other: &Self) -> bool {
        other.homes.is_empty() || (!self.homes.is_empty() && self.homes.is_subset(&other.homes))
    }

    /// Some of what both have.
    pub fn meets(&self, other: &Self, labelling: Labelling<'_>) -> Option<Meeting> {
        let may_be_beside = self.homes.is_empty() || other.homes.is_empty() || !self.homes.is_disjoint(&other.homes);
        if !may_be_beside {
            return None;
        }
        let limits: Vec<_> = self.limits.iter().chain(&other.limits).collect();
        let rules = Rules::of(&limits);
        let (groups, resources) = (
            rules.apart(|kinds| &kinds.api_groups),
            rules.apart(|kinds| &kinds.resources),
        );
        if groups.len().saturating_mul(resources.len()) > LOOKED_AT {
            return Some(Meeting::uncounted());
        }
        let has_all = self.limits.is_empty() || other.limits.is_empty();
        for (resource, by_resource) in &resources {
            for (group, by_group) in &groups {
                let named: BTreeSet<_> = by_group
                    .intersection(by_resource)
                    .map(|rule| rules.limits[*rule])
                    .collect();
                if named.is_empty() && !has_all {
                    continue;
                }
                let selectors = named.iter().map(|limit| &limits[*limit].selector);
                let both = selectors.fold(Selector::everything(), |all, one| all.and(one));
                if let Some(place) = Place::of(&both, labelling) {
                    let kind = Kind {
                        group: group.map(str::to_owned),
                        resource: resource.map(str::to_owned),
                    };
                    return Some(Meeting::new(kind, place, &both, labelling.keys));
                }
            }
        }
        None
    }
}

/// A kind that both name, in words.
pub fn shared_kind(ours: &[ResourceGroup], theirs: &[ResourceGroup]) -> Option<String> {
    let mut pairs = ours.iter().flat_map(|one| theirs.iter().map(move |other| (one, other)));
    pairs.find_map(|(one, other)| {
        let group = shared_word(&one.api_groups, &other.api_groups)?;
        let resource = shared_word(&one.resources, &other.resources)?;
        let word = |word: &str| (word != WILDCARD).then(|| word.to_owned());
        let (group, resource) = (word(group), word(resource));
        Some(Kind { group, resource }.to_string())
    })
}

fn shared_word<'a>(ours: &'a [String], theirs: &'a [String]) -> Option<&'a str> {
    let is_any = |words: &[String]| words.iter().any(|word| word == WILDCARD);
    if is_any(ours) {
        return theirs.first().map(String::as_str);
    }
    if is_any(theirs) {
        return ours.first().map(String::as_str);
    }
    let theirs: BTreeSet<_> = theirs.iter().collect();
    ours.iter().find(|word| theirs.contains(word)).map(String::as_str)
}

/// The rules of several limits: each names kinds by groups and resources.
struct Rules<'a> {
    kinds: Vec<Option<&'a ResourceGroup>>,
    /// The limit of each.
    limits: Vec<usize>,
}

/// A word, or any that nothing names, with the rules that name it.
type Apart<'a> = Vec<(Option<&'a str>, BTreeSet<usize>)>;

impl<'a> Rules<'a> {
    fn of(limits: &[&'a Limit]) -> Self {
        let mut rules = Self {
            kinds: Vec::new(),
            limits: Vec::new(),
        };
        for (index, limit) in limits.iter().enumerate() {
            let all = limit.kinds.is_empty().then_some(None);
            for kinds in limit.kinds.iter().map(Some).chain(all) {
                rules.kinds.push(kinds);
                rules.limits.push(index);
            }
        }
        rules
    }

    /// One word for all that the same rules name, in order, and last what none names.
    fn apart(&self, words: impl Fn(&'a ResourceGroup) -> &'a Vec<String>) -> Apart<'a> {
        let mut any = BTreeSet::new();
        let mut by_word = BTreeMap::<&str, BTreeSet<usize>>::new();
        for (rule, kinds) in self.kinds.iter().enumerate() {
            let Some(kinds) = kinds else {
                any.insert(rule);
                continue;
            };
            for word in words(kinds) {
                if word == WILDCARD {
                    any.insert(rule);
                } else {
                    by_word.entry(word).or_default().insert(rule);
                }
            }
        }
        let named = by_word.into_iter().map(|(word, rules)| (Some(word), &rules | &any));
        let all = named.chain([(None, any.clone())]);
        let mut seen = HashSet::new();
        let mut apart = Apart::new();
        for (word, rules) in all {
            if seen.insert(rules.clone()) {
                apart.push((word, rules));
            }
        }
        apart
    }
}

impl Place {
    /// A namespace of which objects may be that the selector selects; `None`: there is none.
    fn of(selector: &Selector, Labelling { keys, bucketing }: Labelling<'_>) -> Option<Self> {
        if selector.is_nothing() {
            return None;
        }
        let about = |key: &str| selector.requirements().iter().find(|one| one.key() == key);
        let accepts = |about: Option<&Requirement>, value: &str| about.is_none_or(|one| one.accepts(Some(value)));
        if !accepts(about(keys.control()), "true") {
            return None;
        }
        let by_bucket = about(keys.sharding_hash());
        let has = |bucket: u16| accepts(by_bucket, &bucket.to_string());
        let named = |bucket: u16| by_bucket.map(|_| bucket);
        match about(keys.namespace()) {
            Some(by_name) if by_name.operator() == Operator::In => {
                let mut names = by_name.values().iter();
                let name = names.find(|name| is_dns_label(name) && has(bucketing.bucket_of(name)))?;
                Some(Self {
                    bucket: named(bucketing.bucket_of(name)),
                    namespace: Some(name.clone()),
                })
            }
            Some(by_name) if by_name.operator() == Operator::DoesNotExist => None,
            // Each bucket has more names than any selector leaves out.
            _ => {
                let bucket = (0..bucketing.buckets()).find(|bucket| has(*bucket))?;
                Some(Self {
                    bucket: named(bucket),
                    namespace: None,
                })
            }
        }
    }
}

impl Meeting {
    fn new(kind: Kind, place: Place, both: &Selector, keys: &LabelKeys) -> Self {
        let reserved = keys.reserved();
        let own = both.requirements().iter().filter(|one| !reserved.contains(&one.key()));
        Self {
            kind,
            place,
            labels: Selector::from_requirements(own.cloned()),
        }
    }

    /// Of shards whose limits name too many kinds, each by others, to look at all.
    fn uncounted() -> Self {
        Self {
            kind: Kind {
                group: None,
                resource: None,
            },
            place: Place::default(),
            labels: Selector::everything(),
        }
    }
}

impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        match (&self.place.namespace, self.place.bucket) {
            (Some(namespace), Some(bucket)) => write!(f, " of namespace {namespace}, bucket {bucket}")?,
            (Some(namespace), None) => write!(f, " of namespace {namespace}")?,
            (None, Some(bucket)) => write!(f, " of bucket {bucket}")?,
            (None, None) => {}
        }
        if !self.labels.is_everything() {
            write!(f, " with {}", self.labels)?;
        }
        Ok(())
    }
}

/// As kinds are named on command lines.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.resource.as_deref(), self.group.as_deref()) {
            (Some(resource), None | Some("")) => f.write_str(resource),
            (Some(resource), Some(group)) => write!(f, "{resource}.{group}"),
            (None, Some("")) => f.write_str("all kinds of the core group"),
            (None, Some(group)) => write!(f, "all kinds of {group}"),
            (None, None) => f.write_str("all kinds"),
        }
    }
}
