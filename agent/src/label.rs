//! Which labels an object of a namespace, and the Namespace itself, shall have. Pure.
//!
//! The labels follow from the namespace's name and the hub-wide rule alone, so that every agent, after any restart and
//! in any order of events, wants the same. Callers: `namespaces`, `sweep`, `uninstall`.

use std::collections::BTreeMap;

use kube::api::ApiResource;
use portolan_crds::GroupResource;
use portolan_crds::labels::{LabelKeys, system_namespace};
use portolan_crds::shard::Bucketing;
use portolan_wire::v1 as wire;

/// Value of the control label on everything the agent labels.
const CONTROLLED: &str = "true";

/// The hub-wide rule: under which keys, and by which hash.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Labelling {
    pub(crate) keys: LabelKeys,
    pub(crate) bucketing: Bucketing,
}

impl Labelling {
    /// The labels of the Namespace called `namespace` and of every labelled object in it. `None`: a system namespace,
    /// which is left alone (`portolan_crds::labels::SYSTEM_NAMESPACES`).
    pub(crate) fn wanted(&self, namespace: &str) -> Option<BTreeMap<String, String>> {
        if system_namespace(namespace) {
            return None;
        }
        let bucket = self.bucketing.bucket_of(namespace).to_string();
        Some(BTreeMap::from([
            (self.keys.sharding_hash().to_owned(), bucket),
            (self.keys.namespace().to_owned(), namespace.to_owned()),
            (self.keys.control().to_owned(), CONTROLLED.to_owned()),
        ]))
    }

    /// Whether `labels` say what [`Self::wanted`] wants. True in system namespaces, where nothing is wanted.
    pub(crate) fn is_met(&self, namespace: &str, labels: Option<&BTreeMap<String, String>>) -> bool {
        let Some(wanted) = self.wanted(namespace) else {
            return true;
        };
        labels.is_some_and(|labels| wanted.iter().all(|(key, value)| labels.get(key) == Some(value)))
    }
}

/// What shall be labelled, and how: what the policies at admission follow.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Plan {
    pub(crate) labelling: Labelling,
    pub(crate) kinds: BTreeMap<GroupResource, ApiResource>,
}

impl From<&Labelling> for wire::LabelRule {
    fn from(labelling: &Labelling) -> Self {
        Self {
            prefix: labelling.keys.prefix().to_owned(),
            bucketing: Some(labelling.bucketing.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_crds::shard::BucketAlgorithm;
    use proptest::prelude::*;

    #[test]
    fn wanted_of_the_legacy_fleet() {
        let labelling = Labelling {
            keys: LabelKeys::default(),
            bucketing: Bucketing::new(BucketAlgorithm::Legacy, 32).unwrap(),
        };
        let wanted = labelling.wanted("ns-a").unwrap();
        let expected = [
            ("ctrlmesh.kusionstack.io/control", "true"),
            ("ctrlmesh.kusionstack.io/namespace", "ns-a"),
            ("ctrlmesh.kusionstack.io/sharding-hash", "15"),
        ];
        assert!(wanted.iter().map(|(k, v)| (k.as_str(), v.as_str())).eq(expected));
    }

    #[test]
    fn system_namespaces_are_left_alone() {
        let labelling = Labelling::default();
        for namespace in [
            "kube-system",
            "kube-public",
            "kube-node-lease",
            "portolan-system",
            "portolan-routers",
        ] {
            assert_eq!(labelling.wanted(namespace), None);
            assert!(labelling.is_met(namespace, None), "{namespace}");
        }
        assert!(!labelling.is_met("default", None));
    }

    proptest! {
        #[test]
        fn what_is_wanted_is_met_and_any_one_change_is_drift(
            namespace in "[a-z][a-z0-9-]{0,20}[a-z0-9]",
            buckets in 1_u16..=1024,
            own in proptest::collection::btree_map("[a-z]{1,5}", "[a-z]{0,5}", 0..4),
            spoiled in 0_usize..3,
            removed: bool,
        ) {
            let labelling = Labelling {
                keys: LabelKeys::default(),
                bucketing: Bucketing::new(BucketAlgorithm::Xxh3, buckets).unwrap(),
            };
            let wanted = labelling.wanted(&namespace).unwrap();
            prop_assert_eq!(wanted.keys().map(String::as_str).collect::<std::collections::BTreeSet<_>>(),
                labelling.keys.reserved().into_iter().collect());
            let mut labels = own;
            labels.extend(wanted.clone());
            prop_assert!(labelling.is_met(&namespace, Some(&labels)));
            let key = wanted.keys().nth(spoiled).unwrap();
            if removed { labels.remove(key); } else { labels.insert(key.clone(), "x-spoiled".into()); }
            prop_assert!(!labelling.is_met(&namespace, Some(&labels)));
        }
    }
}
