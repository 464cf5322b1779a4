//! Pairs whose namespace is gone: they stay their shard's for a while, so that who deletes a namespace may make it again at once
//! (`docs/semantics.md#namespaces`).
//!
//! A shard that chose the namespace by its labels asks for it no more once it is gone. That alone gives nothing away: the pair is
//! *vacant*, in a new epoch, until the rules of another shard take the name, the shard has the namespace in another member, or an hour
//! is over. A vacant pair keeps nobody from being accepted. Caller: `compile`, as it moves the ledger on.

use std::collections::BTreeMap;

use jiff::Timestamp;
use portolan_crds::{Selector, ShardName};

use super::ledger::{Entry, VACANT_FOR};
use super::wanted::{Rules, WantedMember};
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
}

impl Vacancies<'_> {
    /// Whether a pair that nobody claims stays its owner's all the same.
    pub(super) fn keeps(&self, cluster: &str, namespace: &str, entry: &Entry) -> bool {
        let Some(owner) = &entry.owner else { return false };
        let is_gone = self
            .facts
            .inventory(cluster)
            .is_some_and(|all| !all.contains_key(namespace));
        let lasts = entry.vacant_from.is_none_or(|from| self.now < from + VACANT_FOR);
        is_gone && lasts && self.goes_on(owner, cluster, namespace) && !self.is_taken(owner, cluster, namespace)
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

    /// Whether the rules of another shard take whatever has this name in the member.
    fn is_taken(&self, owner: &ShardName, cluster: &str, namespace: &str) -> bool {
        let others = self.verdicts.iter().filter(|(name, _)| *name != owner);
        let members = others.flat_map(|(_, verdict)| &verdict.wanted.members);
        let mut rules = members
            .filter(|member| member.cluster == cluster)
            .map(|member| &member.rules);
        let labels = self.labels(namespace);
        rules.any(|rules| rules.take(namespace, &labels))
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

impl Rules {
    /// Whether a namespace of this name is theirs whatever labels it may have beside these, which follow from the name.
    fn take(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        let takes = |text: &String| {
            let selector = Selector::parse(text).unwrap_or(Selector::nothing());
            let mut requirements = selector.requirements().iter();
            requirements.all(|one| labels.contains_key(one.key())) && selector.matches(labels)
        };
        self.names.contains(namespace) || self.selectors.iter().any(takes)
    }
}
