//! How much this agent tells of one object, and of all of them.
//!
//! The API server bounds labels by the object's size alone, so whoever may make a Pod or a Namespace could fill the reports of
//! the whole member. What is over a bound is cut here, before it is kept, and the hub is told that it was: an object whose
//! labels are not known is chosen by no selector. Pure. Callers: `namespaces`, `callers` by object, `report` for all.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use portolan_crds::fair::most_of_each;
use portolan_crds::labels::is_shard_label;
use portolan_wire::protocol::{LABELS_MAX_BYTES, NAMESPACES_LABELS_MAX_BYTES};
use portolan_wire::v1::{CallerFact, NamespaceFact};

use crate::facts::FactMap;

/// A Pod counts once for each of these that its labels begin: far more than ordinary Pods have.
const BYTES_OF_ONE: usize = 4 * 1024;

/// Labels as they are told, and how many bytes there are if that is too many: then none are.
pub(crate) fn of_pod(labels: BTreeMap<String, String>) -> (HashMap<String, String>, u64) {
    cut(labels, LABELS_MAX_BYTES, |_| false)
}

/// Labels as they are told, and how many bytes there are if that is too many: then the shard labels alone are. What routers are
/// told of the objects in a namespace follows from those.
pub(crate) fn of_namespace(labels: BTreeMap<String, String>) -> (HashMap<String, String>, u64) {
    cut(labels, LABELS_MAX_BYTES, is_shard_label)
}

fn cut<L>(labels: L, most: usize, stays: impl Fn(&str) -> bool) -> (HashMap<String, String>, u64)
where
    L: IntoIterator<Item = (String, String)>,
{
    let mut told: HashMap<_, _> = labels.into_iter().collect();
    let bytes = bytes_of(&told);
    if bytes <= most {
        return (told, 0);
    }
    told.retain(|key, _| stays(key));
    // Whoever writes thousands of those has other prefixes than the hub's.
    if bytes_of(&told) > BYTES_OF_ONE {
        told.clear();
    }
    (told, bytes as u64)
}

/// The Namespaces as they are told: of those with the most labels they are cut, as long as all together have too many.
pub(crate) fn namespaces(all: FactMap<String, NamespaceFact>) -> FactMap<String, NamespaceFact> {
    let sizes = all.values().map(|fact| bytes_of(&fact.labels));
    let most = most_of_each(sizes, NAMESPACES_LABELS_MAX_BYTES);
    if most == usize::MAX {
        return all;
    }
    let told = |fact: Arc<NamespaceFact>| {
        if bytes_of(&fact.labels) <= most {
            return fact;
        }
        let fact = Arc::unwrap_or_clone(fact);
        let (labels, labels_cut) = cut(fact.labels, most, is_shard_label);
        Arc::new(NamespaceFact {
            labels,
            labels_cut,
            ..fact
        })
    };
    all.into_iter().map(|(name, fact)| (name, told(fact))).collect()
}

/// As how many Pods this one counts.
pub(crate) fn counts_as(pod: &CallerFact) -> usize {
    bytes_of(&pod.labels).div_ceil(BYTES_OF_ONE).max(1)
}

fn bytes_of(labels: &HashMap<String, String>) -> usize {
    labels.iter().map(|(key, value)| key.len() + value.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(bytes: usize) -> BTreeMap<String, String> {
        let filler = (0..bytes / 64).map(|at| (format!("k{at:06}"), "v".repeat(57)));
        filler.collect()
    }

    #[test]
    fn an_object_with_too_many_labels_is_cut_and_says_so() {
        assert_eq!(of_pod(labels(64 * 1024)).1, 0);
        let mut many = labels(1 << 20);
        assert_eq!(of_pod(many.clone()), (HashMap::new(), 1 << 20));
        many.insert("ctrlmesh.kusionstack.io/namespace".to_owned(), "ns".to_owned());
        let (told, bytes) = of_namespace(many.clone());
        assert_eq!(told.keys().collect::<Vec<_>>(), ["ctrlmesh.kusionstack.io/namespace"]);
        assert!(bytes > 1 << 20);
        for forged in 0..500 {
            many.insert(format!("p{forged}.example.com/namespace"), "ns".to_owned());
        }
        assert_eq!(of_namespace(many).0, HashMap::new());
    }

    #[test]
    fn of_many_namespaces_the_largest_labels_are_cut() {
        let fact = |name: &str, bytes: usize| {
            let (labels, labels_cut) = of_namespace(labels(bytes));
            let name = name.to_owned();
            let fact = NamespaceFact {
                name: name.clone(),
                labels,
                labels_cut,
                ..NamespaceFact::default()
            };
            (name, Arc::new(fact))
        };
        let mut all: FactMap<_, _> = (0..200).map(|at| fact(&format!("fat-{at}"), 60 * 1024)).collect();
        all.insert("usual".to_owned(), fact("usual", 640).1);
        let told = namespaces(all.clone());
        assert!(
            all.iter().all(|(name, fact)| Arc::ptr_eq(fact, &told[name])),
            "they fit"
        );
        all.extend((200..1_000).map(|at| fact(&format!("fat-{at}"), 60 * 1024)));
        let told = namespaces(all);
        assert_eq!((told["usual"].labels.len(), told["usual"].labels_cut), (10, 0));
        assert!(told["fat-7"].labels.is_empty() && told["fat-7"].labels_cut > 60_000);
    }

    #[test]
    fn a_pod_counts_by_its_labels() {
        let pod = |bytes| CallerFact {
            labels: of_pod(labels(bytes)).0,
            ..CallerFact::default()
        };
        let counts = [0, 640, 4_096, 4_160, 60 * 1024, 1 << 20].map(|bytes| counts_as(&pod(bytes)));
        assert_eq!(counts, [1, 1, 1, 2, 15, 1]);
    }
}
