//! Several members' groups → the groups of their union.
//!
//! A resource is offered in the versions that all members which serve it have in common, with the verbs and subresources
//! that all of them allow: whatever a client does by this document works on each of them. A resource without a common
//! version, or of another scope or kind elsewhere, is left out and told as a [`Conflict`]. Order, preferred version and
//! everything else that must be one member's word is the primary's. The order of the other members is of no effect.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{Group, Named, Resource, Subresource, Version};

/// What one member serves.
#[derive(Debug, Clone, Copy)]
pub struct Served<'a> {
    /// The member cluster's name.
    pub cluster: &'a str,
    /// The member whose word decides order and preference. At most one is.
    pub primary: bool,
    /// Only what no other member serves counts: a home cluster that is no member of the shard.
    pub aside: bool,
    /// The groups it serves, the core group (without a name) among them.
    pub groups: &'a [Group],
}

/// A resource that the members cannot offer as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// API group of the resource.
    pub group: String,
    /// Plural name of the resource.
    pub resource: String,
    /// What each member serves: its versions, or scope and kind where these differ.
    pub offers: BTreeMap<String, String>,
}

impl std::fmt::Display for Conflict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        let offers: Vec<_> = self
            .offers
            .iter()
            .map(|(cluster, what)| format!("{cluster}: {what}"))
            .collect();
        write!(
            f,
            "{}{dot}{} is left out: the member clusters that have it serve no version of it in common ({})",
            self.resource,
            self.group,
            offers.join("; ")
        )
    }
}

/// What several members serve as one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct United {
    /// Core group first if there is one, then the primary's order.
    pub groups: Vec<Group>,
    /// What is left out, by group and resource.
    pub conflicts: Vec<Conflict>,
}

/// Offers of one resource: (cluster index, version) → resource.
type Offers<'a> = BTreeMap<usize, Vec<(&'a str, &'a Resource)>>;

/// Makes one discovery of several members'.
pub fn unite(members: &[Served<'_>]) -> United {
    let mut members = members.to_vec();
    members.sort_by_key(|member| (!member.primary, member.aside, member.cluster));
    let offers = gather(&members);
    let mut offered = HashMap::new();
    let mut conflicts = Vec::new();
    for ((group, resource), offers) in &offers {
        match agree(offers) {
            Ok(versions) => {
                offered.insert((*group, *resource), versions);
            }
            Err(()) => conflicts.push(conflict(&members, (group, resource), offers)),
        }
    }
    let groups = in_order(members.iter().flat_map(|member| member.groups), |group| {
        &group.metadata.name
    });
    let groups = groups.into_iter().filter_map(|(name, groups)| {
        let versions = in_order(groups.iter().flat_map(|group| &group.versions), |version| {
            &version.version
        });
        let versions: Vec<_> = versions
            .into_iter()
            .filter_map(|(version, same)| unite_version(name, version, &same, &offers, &offered))
            .collect();
        let metadata = Named { name: name.to_owned() };
        (!versions.is_empty()).then_some(Group { metadata, versions })
    });
    United {
        groups: groups.collect(),
        conflicts,
    }
}

/// Every resource with who offers it how. What is aside counts where nobody else offers it.
fn gather<'a>(members: &[Served<'a>]) -> BTreeMap<(&'a str, &'a str), Offers<'a>> {
    let mut all: BTreeMap<(&str, &str), Offers<'_>> = BTreeMap::new();
    for (index, member) in members.iter().enumerate() {
        let known: HashSet<(&str, &str)> = if member.aside {
            all.keys().copied().collect()
        } else {
            HashSet::new()
        };
        for group in member.groups {
            for version in &group.versions {
                for resource in &version.resources {
                    let key = (group.metadata.name.as_str(), resource.resource.as_str());
                    if known.contains(&key) {
                        continue;
                    }
                    let offers = all.entry(key).or_default().entry(index).or_default();
                    offers.push((&version.version, resource));
                }
            }
        }
    }
    all
}

/// The versions that all who offer it have, if all mean the same by it.
fn agree<'a>(offers: &Offers<'a>) -> Result<BTreeSet<&'a str>, ()> {
    let mut common: Option<BTreeSet<&str>> = None;
    let mut meant: Option<(&str, &str)> = None;
    for resources in offers.values() {
        let versions: BTreeSet<&str> = resources.iter().map(|(version, _)| *version).collect();
        common = Some(match common {
            None => versions,
            Some(common) => common.intersection(&versions).copied().collect(),
        });
        let means = meaning(resources);
        if *meant.get_or_insert(means) != means {
            return Err(());
        }
    }
    common.filter(|common| !common.is_empty()).ok_or(())
}

/// Scope and kind: a client that took one for the other would ask wrong paths or read wrong objects.
fn meaning<'a>(resources: &[(&'a str, &'a Resource)]) -> (&'a str, &'a str) {
    let first = resources.first().map(|(_, resource)| *resource);
    let kind = first.and_then(|resource| resource.response_kind.as_ref());
    (
        first.map_or("", |resource| resource.scope.as_str()),
        kind.map_or("", |kind| kind.kind.as_str()),
    )
}

fn conflict(members: &[Served<'_>], (group, resource): (&str, &str), offers: &Offers<'_>) -> Conflict {
    let meanings: HashSet<_> = offers.values().map(|resources| meaning(resources)).collect();
    let what = |resources: &Vec<(&str, &Resource)>| {
        let versions: Vec<_> = resources.iter().map(|(version, _)| *version).collect();
        let (scope, kind) = meaning(resources);
        if meanings.len() > 1 {
            format!("{scope} {kind}")
        } else {
            versions.join(", ")
        }
    };
    Conflict {
        group: group.to_owned(),
        resource: resource.to_owned(),
        offers: offers
            .iter()
            .filter_map(|(index, resources)| Some((members.get(*index)?.cluster.to_owned(), what(resources))))
            .collect(),
    }
}

/// One version of a group. A version that a member itself serves empty stays; one that conflicts have emptied does not.
fn unite_version(
    group: &str,
    version: &str,
    same: &[&Version],
    offers: &BTreeMap<(&str, &str), Offers<'_>>,
    offered: &HashMap<(&str, &str), BTreeSet<&str>>,
) -> Option<Version> {
    let names = in_order(same.iter().flat_map(|one| &one.resources), |resource| {
        &resource.resource
    });
    let resources: Vec<_> = names
        .into_iter()
        .filter_map(|(name, _)| {
            offered
                .get(&(group, name))
                .filter(|versions| versions.contains(version))?;
            let all = offers.get(&(group, name))?.values().flatten();
            let all: Vec<_> = all
                .filter(|(at, _)| *at == version)
                .map(|(_, resource)| *resource)
                .collect();
            fold(&all)
        })
        .collect();
    let empty_itself = same.iter().all(|one| one.resources.is_empty());
    if resources.is_empty() && !empty_itself {
        return None;
    }
    let current = same.iter().find(|one| one.freshness != "Stale");
    Some(Version {
        version: version.to_owned(),
        resources,
        freshness: current.or(same.first()).map(|one| one.freshness.clone())?,
    })
}

/// One resource in one version: the first one's word, narrowed to what all allow.
fn fold(all: &[&Resource]) -> Option<Resource> {
    let (first, rest) = all.split_first()?;
    let mut one = Resource::clone(first);
    for other in rest {
        one.verbs.retain(|verb| other.verbs.contains(verb));
        extend(&mut one.short_names, &other.short_names);
        extend(&mut one.categories, &other.categories);
        one.subresources.retain_mut(|sub| narrow(sub, &other.subresources));
    }
    Some(one)
}

fn narrow(sub: &mut Subresource, others: &[Subresource]) -> bool {
    let Some(other) = others.iter().find(|other| other.subresource == sub.subresource) else {
        return false;
    };
    sub.verbs.retain(|verb| other.verbs.contains(verb));
    !sub.verbs.is_empty()
}

fn extend(words: &mut Vec<String>, more: &[String]) {
    for word in more {
        if !words.contains(word) {
            words.push(word.clone());
        }
    }
}

/// Items by name, in the order of their first mention.
fn in_order<'a, T>(
    items: impl Iterator<Item = &'a T>,
    name: impl Fn(&'a T) -> &'a String,
) -> Vec<(&'a str, Vec<&'a T>)> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut all: Vec<(&str, Vec<&T>)> = Vec::new();
    for item in items {
        let name = name(item).as_str();
        let place = *places.entry(name).or_insert_with(|| {
            all.push((name, Vec::new()));
            all.len() - 1
        });
        if let Some((_, same)) = all.get_mut(place) {
            same.push(item);
        }
    }
    all
}
