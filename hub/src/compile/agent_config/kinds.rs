//! Which kinds the limits in force name in each member: nobody has objects labelled elsewhere.
//!
//! A rule names each of its groups with each of its resources: a few kilobytes of a spec are thousands of kinds. Most specs name what
//! others name, as the children of a root do. So rules are looked at once for all specs that have the same, and of one namespace's no
//! further than agents may be asked. Pure.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use portolan_crds::{GroupResource, ShardName, ShardingConfigSpec};

use super::super::Accepted;
use super::super::callers::homes;
use super::super::wanted::clusters_of;
use crate::facts::Facts;

/// As many kinds are asked for at most.
pub(super) const KINDS_MAX: usize = 2_048;
/// Kinds of one namespace's rules that are looked at for one member, those that several name counted for each: one that has more
/// rules than that, all different, does not have the others looked at.
const LOOKED_AT: usize = 32_768;

/// Groups and resources of each rule of a spec.
type Rules<'a> = Vec<(&'a [String], &'a [String])>;
/// By the namespaces of shards: which rules they have, by their places.
type ByNamespace<'a> = BTreeMap<&'a str, BTreeSet<usize>>;

/// The rules of all shards.
pub(super) struct Kinds<'a> {
    rules: Vec<Rules<'a>>,
    anywhere: ByNamespace<'a>,
    in_cluster: BTreeMap<&'a str, ByNamespace<'a>>,
    /// What rules name: of one namespace they are mostly the same in all members.
    // A RefCell: one run is one thread's.
    named: RefCell<BTreeMap<Vec<usize>, Rc<Named>>>,
}

/// What the rules of one namespace name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) kinds: BTreeSet<GroupResource>,
    /// So many more at most, which were not looked at.
    pub(super) more: usize,
}

impl<'a> Kinds<'a> {
    pub(super) fn of(facts: &'a Facts, accepted: &'a BTreeMap<ShardName, Accepted>) -> Self {
        let mut kinds = Self {
            rules: Vec::new(),
            anywhere: BTreeMap::new(),
            in_cluster: BTreeMap::new(),
            named: RefCell::default(),
        };
        let mut places = HashMap::<Rules<'a>, usize>::new();
        for (name, accepted) in accepted.iter().filter(|(_, accepted)| !accepted.spec.limits.is_empty()) {
            let rules = rules_of(&accepted.spec);
            let place = *places.entry(rules).or_insert_with_key(|rules| {
                kinds.rules.push(rules.clone());
                kinds.rules.len() - 1
            });
            let entries = accepted.spec.clusters.iter();
            let mut clusters: BTreeSet<_> = entries.flat_map(|entry| clusters_of(facts, name, entry)).collect();
            // Without clusters a shard is of where its callers run.
            match homes(accepted) {
                _ if !accepted.spec.clusters.is_empty() => {}
                None => {
                    kinds.anywhere.entry(name.namespace()).or_default().insert(place);
                }
                Some(homes) => clusters.extend(homes.iter().map(String::as_str)),
            }
            for cluster in clusters {
                let here = kinds.in_cluster.entry(cluster).or_default();
                here.entry(name.namespace()).or_default().insert(place);
            }
        }
        kinds
    }

    /// What is asked for in `cluster`, by the namespaces of the shards.
    pub(super) fn asked(&self, cluster: &str) -> BTreeMap<&'a str, Rc<Named>> {
        let mut places = self.in_cluster.get(cluster).cloned().unwrap_or_default();
        for (namespace, anywhere) in &self.anywhere {
            places.entry(namespace).or_default().extend(anywhere);
        }
        let asked = places.into_iter();
        asked
            .map(|(namespace, places)| (namespace, self.named(places.into_iter().collect())))
            .collect()
    }

    fn named(&self, places: Vec<usize>) -> Rc<Named> {
        let mut known = self.named.borrow_mut();
        if let Some(named) = known.get(&places) {
            return named.clone();
        }
        let rules = places.iter().flat_map(|place| self.rules[*place].iter().copied());
        let named = Rc::new(Named::by(rules));
        known.insert(places, named.clone());
        named
    }
}

fn rules_of(spec: &ShardingConfigSpec) -> Rules<'_> {
    let rules = spec.limits.iter().flat_map(|limit| &limit.relate_resources);
    let rules = rules.map(|rule| (rule.api_groups.as_slice(), rule.resources.as_slice()));
    rules.collect()
}

impl Named {
    fn by<'a>(rules: impl Iterator<Item = (&'a [String], &'a [String])>) -> Self {
        let mut named = Self::default();
        let mut left = LOOKED_AT;
        for (groups, resources) in rules {
            let count = groups.len().saturating_mul(resources.len());
            let before = left;
            let kinds = groups
                .iter()
                .flat_map(|group| resources.iter().map(move |one| (group, one)));
            for (group, resource) in kinds {
                if left == 0 || named.kinds.len() > KINDS_MAX {
                    break;
                }
                left -= 1;
                // Subresources have no labels of their own.
                let whole = resource.split('/').next().unwrap_or_default();
                named.kinds.insert(GroupResource::new(group, whole));
            }
            named.more = named.more.saturating_add(count - (before - left));
        }
        named
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn limited(groups: usize, resources: usize, at: usize) -> Accepted {
        let names =
            |prefix: &str, count: usize| -> Vec<_> { (0..count).map(|one| format!("{prefix}{one}-{at}")).collect() };
        let limit = json!({
            "relateResources": [{"apiGroups": names("g", groups), "resources": names("r", resources)}],
            "selector": {"matchLabels": {"tier": "gold"}},
        });
        let spec = ShardingConfigSpec {
            limits: vec![serde_json::from_value(limit).unwrap()],
            caller_clusters: (0..100).map(|member| format!("m-{member}")).collect(),
            ..ShardingConfigSpec::default()
        };
        Accepted {
            spec: Arc::new(spec),
            ..Accepted::default()
        }
    }

    /// As `spec.limits` of a few kilobytes each may be.
    #[test]
    fn what_many_specs_name_is_looked_at_no_further_than_agents_are_asked() {
        let facts = Facts::default();
        let name = |namespace: &str, at: usize| ShardName::new(namespace, format!("s-{at:04}")).unwrap();
        let children = (0..240).map(|at| (name("root", at), limited(64, 256, 0)));
        let different = (0..3_000).map(|at| (name("evil", at), limited(64, 64, at)));
        let few = [(name("others", 0), limited(2, 3, 0))];
        let accepted: BTreeMap<_, _> = children.chain(different).chain(few).collect();
        let kinds = Kinds::of(&facts, &accepted);
        assert_eq!(kinds.rules.len(), 1 + 3_000 + 1, "children have their root's");
        for member in 0..100 {
            let asked = kinds.asked(&format!("m-{member}"));
            let counts = |namespace: &str| (asked[namespace].kinds.len(), asked[namespace].more);
            assert_eq!(counts("root"), (KINDS_MAX + 1, 64 * 256 - KINDS_MAX - 1));
            assert_eq!(counts("evil"), (KINDS_MAX + 1, 3_000 * 64 * 64 - KINDS_MAX - 1));
            assert_eq!(counts("others"), (6, 0));
        }
        assert_eq!(kinds.named.borrow().len(), 3, "the same in all members");
    }

    #[test]
    fn what_many_rules_repeat_is_looked_at_to_a_bound() {
        let groups: Vec<_> = (0..64).map(|one| format!("g{one}")).collect();
        let resources = ["pods", "pods/status"].map(str::to_owned);
        let rules = || std::iter::repeat_n((groups.as_slice(), resources.as_slice()), 10);
        let named = Named::by(rules());
        assert_eq!(
            (named.kinds.len(), named.more),
            (64, 0),
            "a subresource is no other kind"
        );
        let named = Named::by(rules().cycle().take(1_000));
        assert_eq!((named.kinds.len(), named.more), (64, 1_000 * 128 - LOOKED_AT));
    }
}
