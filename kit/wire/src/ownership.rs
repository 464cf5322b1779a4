//! What is different between two versions of an Ownership: a shard may own thousands of namespaces of a member, of which one comes or
//! goes at a time. The hub makes changes, routers carry them out. Pure.

use std::collections::{BTreeMap, HashMap};

use crate::v1::{DepartedNamespace, NamespaceGrant, Ownership, OwnershipChange};

impl OwnershipChange {
    /// What leads from `before`, which has version `from`, to `now`.
    pub fn between(before: &Ownership, from: &str, now: &Ownership) -> Self {
        let (namespaces, gone) = difference(&before.namespaces, &now.namespaces);
        let (departed, forgotten) = difference(&before.departed, &now.departed);
        Self {
            from: from.to_owned(),
            now: Some(Ownership {
                namespaces,
                departed,
                cluster: now.cluster.clone(),
                shard: now.shard.clone(),
                departed_dropped_up_to: now.departed_dropped_up_to,
                incarnation: now.incarnation.clone(),
                operator: now.operator.clone(),
            }),
            gone,
            forgotten,
        }
    }

    /// The Ownership that it leads to from `before`, which must have the version [`Self::from`]; grants and departures are in the order
    /// of their namespaces. `None`: the change says of no Ownership what it is now.
    pub fn apply(self, before: &Ownership) -> Option<Ownership> {
        let now = self.now?;
        Some(Ownership {
            namespaces: changed(&before.namespaces, now.namespaces, &self.gone),
            departed: changed(&before.departed, now.departed, &self.forgotten),
            ..now
        })
    }
}

/// An entry of a list in which each namespace stands once.
trait OfNamespace: Clone + PartialEq {
    fn namespace(&self) -> &str;
}

impl OfNamespace for NamespaceGrant {
    fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl OfNamespace for DepartedNamespace {
    fn namespace(&self) -> &str {
        &self.namespace
    }
}

/// Entries of `now` that are new or others than `before`, and the namespaces that have none any more.
fn difference<T: OfNamespace>(before: &[T], now: &[T]) -> (Vec<T>, Vec<String>) {
    let mut left: HashMap<_, _> = before.iter().map(|entry| (entry.namespace(), entry)).collect();
    let mut differs = |entry: &&T| left.remove(entry.namespace()) != Some(*entry);
    let others = now.iter().filter(|entry| differs(entry)).cloned().collect();
    let mut gone: Vec<_> = left.into_keys().map(ToOwned::to_owned).collect();
    gone.sort_unstable();
    (others, gone)
}

/// The entries of `before` with `others` in the place of those of their namespaces, and without those that are `gone`.
fn changed<T: OfNamespace>(before: &[T], others: Vec<T>, gone: &[String]) -> Vec<T> {
    let mut entries: BTreeMap<_, _> = before
        .iter()
        .map(|entry| (entry.namespace().to_owned(), entry.clone()))
        .collect();
    for namespace in gone {
        entries.remove(namespace);
    }
    entries.extend(others.into_iter().map(|entry| (entry.namespace().to_owned(), entry)));
    entries.into_values().collect()
}

#[cfg(test)]
mod tests {
    use proptest::collection::btree_map;
    use proptest::prelude::*;

    use super::*;

    fn ownership() -> impl Strategy<Value = Ownership> {
        let grants = btree_map(0..8_u8, (1..4_u64, any::<bool>()), 0..8);
        let departed = btree_map(0..8_u8, 1..4_u64, 0..8);
        (grants, departed, 0..3_u64, 0..2_u8).prop_map(|(grants, departed, dropped, incarnation)| Ownership {
            cluster: "east".to_owned(),
            shard: "ops/a".to_owned(),
            operator: "ops/rollouts".to_owned(),
            namespaces: grants
                .into_iter()
                .map(|(namespace, (owner_count, fenced))| NamespaceGrant {
                    namespace: namespace.to_string(),
                    owner_count,
                    fenced,
                    ..NamespaceGrant::default()
                })
                .collect(),
            departed: departed
                .into_iter()
                .map(|(namespace, view_revision)| DepartedNamespace {
                    namespace: namespace.to_string(),
                    view_revision,
                    left_unix_seconds: 7,
                })
                .collect(),
            departed_dropped_up_to: dropped,
            incarnation: incarnation.to_string(),
        })
    }

    proptest! {
        #[test]
        fn a_change_leads_from_one_version_to_the_other(before in ownership(), now in ownership()) {
            let change = OwnershipChange::between(&before, "1", &now);
            prop_assert_eq!(change.from.as_str(), "1");
            prop_assert_eq!(change.apply(&before), Some(now));
        }
    }

    #[test]
    fn what_stays_is_not_in_a_change() {
        let grant = |namespace: &str, owner_count| NamespaceGrant {
            namespace: namespace.to_owned(),
            owner_count,
            ..NamespaceGrant::default()
        };
        let owned = |namespaces: &[NamespaceGrant]| Ownership {
            namespaces: namespaces.to_vec(),
            ..Ownership::default()
        };
        let before = owned(&[grant("a", 1), grant("b", 1), grant("c", 1)]);
        let change = OwnershipChange::between(&before, "1", &owned(&[grant("a", 1), grant("c", 2), grant("d", 1)]));
        assert_eq!(change.now.unwrap().namespaces, [grant("c", 2), grant("d", 1)]);
        assert_eq!(change.gone, ["b"]);
    }
}
