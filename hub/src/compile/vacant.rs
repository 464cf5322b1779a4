//! Pairs whose namespace is gone: they stay their shard's for a while, so that who deletes a namespace may make it again at once
//! (`docs/semantics.md#namespaces`).
//!
//! A shard that chose the namespace by its labels asks for it no more once it is gone. That alone gives nothing away: the pair is
//! *vacant*, in a new epoch, until the rules of another shard of its operator take the name, the shard has the namespace in another member, or an hour
//! is over. A vacant pair keeps nobody from being accepted. Caller: `compile`, as it moves the ledger on.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use jiff::Timestamp;
use portolan_crds::{OperatorName, Selector, ShardName};

use super::ledger::{Entry, Field, VACANT_FOR};
use super::wanted::WantedMember;
use super::{Accepted, Verdict};
use crate::facts::Facts;
use crate::settings::Settings;

/// Label of every Namespace, by its API server: its name.
const METADATA_NAME: &str = "kubernetes.io/metadata.name";

/// What decides which pairs stay.
pub(super) struct Vacancies<'a> {
    pub(super) facts: &'a Facts,
    pub(super) settings: &'a Settings,
    pub(super) accepted: &'a BTreeMap<ShardName, Accepted>,
    pub(super) verdicts: &'a BTreeMap<ShardName, Verdict>,
    pub(super) now: Timestamp,
    /// By operator and member, once it has been asked for.
    // A RefCell: one run is one thread's.
    pub(super) takers: RefCell<BTreeMap<(OperatorName, String), Rc<Takers<'a>>>>,
}

/// Rules of all shards of one operator that take namespaces of one member by what follows from their names.
#[derive(Debug, Default)]
pub(super) struct Takers<'a> {
    names: BTreeMap<&'a str, BTreeSet<&'a ShardName>>,
    selectors: Vec<(&'a ShardName, Selector)>,
}

impl<'a> Takers<'a> {
    /// `keys`: those of labels that follow from a namespace's name.
    fn of(verdicts: &'a BTreeMap<ShardName, Verdict>, (operator, cluster): Field<'_>, keys: [&str; 4]) -> Self {
        let mut takers = Self::default();
        let of_operator = verdicts
            .iter()
            .filter(|(_, verdict)| verdict.wanted.operator == *operator);
        for (shard, verdict) in of_operator {
            let members = verdict.wanted.members.iter();
            for member in members.filter(|member| member.cluster == cluster) {
                for name in &member.rules.names {
                    takers.names.entry(name).or_default().insert(shard);
                }
                let selectors = member.rules.selectors.iter();
                let selectors = selectors.filter_map(|text| Selector::parse(text).ok());
                // What asks for another label takes nothing of which only the name is known.
                let by_name = selectors.filter(|selector| {
                    let mut requirements = selector.requirements().iter();
                    requirements.all(|one| keys.contains(&one.key()))
                });
                takers.selectors.extend(by_name.map(|selector| (shard, selector)));
            }
        }
        takers
    }
}

impl<'a> Vacancies<'a> {
    /// Whether a pair that nobody claims stays its owner's all the same.
    pub(super) fn keeps(&self, field: Field<'_>, namespace: &str, entry: &Entry) -> bool {
        let cluster = field.1;
        let Some(owner) = &entry.owner else { return false };
        let is_gone = self
            .facts
            .inventory(cluster)
            .is_some_and(|all| !all.contains_key(namespace));
        let lasts = entry.vacant_from.is_none_or(|from| self.now < from + VACANT_FOR);
        is_gone && lasts && self.goes_on(owner, cluster, namespace) && !self.is_taken(owner, field, namespace)
    }

    /// Whether the shard is in force, chooses namespaces of the member by their labels, and asks for this one in no other.
    fn goes_on(&self, owner: &ShardName, cluster: &str, namespace: &str) -> bool {
        let verdict = self.verdicts.get(owner).filter(|_| self.accepted.contains_key(owner));
        verdict.is_some_and(|verdict| {
            let mut members = verdict.wanted.members.iter();
            let by_labels = |member: &WantedMember| member.cluster == cluster && !member.rules.selectors.is_empty();
            let asks =
                |member: &WantedMember| member.namespaces.contains(namespace) || member.shadowed.contains(namespace);
            let is_elsewhere = members.clone().any(asks);
            members.any(by_labels) && !is_elsewhere
        })
    }

    /// Whether the rules of another shard of the operator take whatever has this name in the member.
    fn is_taken(&self, owner: &ShardName, field: Field<'_>, namespace: &str) -> bool {
        let takers = self.takers(field);
        let named = takers.names.get(namespace).into_iter().flatten();
        let labels = self.labels(namespace);
        let mut selectors = takers.selectors.iter().filter(|(shard, _)| *shard != owner);
        named.copied().any(|shard| shard != owner) || selectors.any(|(_, selector)| selector.matches(&labels))
    }

    /// Made once in a run, where there is any vacant pair: of a large fleet it is all selectors of the member.
    fn takers(&self, (operator, cluster): Field<'_>) -> Rc<Takers<'a>> {
        let mut known = self.takers.borrow_mut();
        let field = (operator.clone(), cluster.to_owned());
        if let Some(takers) = known.get(&field) {
            return takers.clone();
        }
        let keys = &self.settings.keys;
        let keys = [METADATA_NAME, keys.namespace(), keys.sharding_hash(), keys.control()];
        let takers = Rc::new(Takers::of(self.verdicts, (operator, cluster), keys));
        known.insert(field, takers.clone());
        takers
    }

    /// The labels that follow from a namespace's name.
    fn labels(&self, namespace: &str) -> BTreeMap<String, String> {
        let Settings { keys, bucketing, .. } = self.settings;
        let labels = [
            (METADATA_NAME, namespace.to_owned()),
            (keys.namespace(), namespace.to_owned()),
            (keys.sharding_hash(), bucketing.bucket_of(namespace).to_string()),
            (keys.control(), true.to_string()),
        ];
        labels.map(|(key, value)| (key.to_owned(), value)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::wanted::{Rules, Wanted};
    use super::*;

    #[test]
    fn selectors_are_read_once_in_a_run_and_those_by_other_labels_are_left() {
        let settings = Settings::default();
        let rules = |names: &[&str], selectors: &[&str]| Rules {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            selectors: selectors.iter().map(|text| (*text).to_owned()).collect(),
            ..Rules::default()
        };
        let mut verdicts = BTreeMap::new();
        for (name, rules) in [
            (
                "a",
                rules(&["ns-a"], &["", "team=x", "team=x,kubernetes.io/metadata.name=ns-b"]),
            ),
            ("b", rules(&["ns-a"], &["kubernetes.io/metadata.name in (ns-b)"])),
        ] {
            let member = WantedMember {
                cluster: "east".to_owned(),
                rules,
                ..WantedMember::default()
            };
            let wanted = Wanted {
                members: vec![member],
                ..Wanted::default()
            };
            let verdict = Verdict {
                wanted: wanted.into(),
                ..Verdict::default()
            };
            verdicts.insert(ShardName::new("ops", name).unwrap(), verdict);
        }
        let vacancies = Vacancies {
            facts: &Facts::default(),
            settings: &settings,
            accepted: &BTreeMap::new(),
            verdicts: &verdicts,
            now: Timestamp::UNIX_EPOCH,
            takers: RefCell::default(),
        };
        let everybody = OperatorName::default();
        let takers = vacancies.takers((&everybody, "east"));
        assert_eq!((takers.names["ns-a"].len(), takers.selectors.len()), (2, 2));
        assert!(Rc::ptr_eq(&takers, &vacancies.takers((&everybody, "east"))));
        assert!(vacancies.takers((&everybody, "west")).selectors.is_empty());
        let shard = |name| ShardName::new("ops", name).unwrap();
        let is_taken = |name, namespace| vacancies.is_taken(&shard(name), (&everybody, "east"), namespace);
        assert!(is_taken("a", "ns-b") && !is_taken("a", "ns-c"));
        assert!(is_taken("b", "ns-c"), "the empty selector is everything");
    }
}
