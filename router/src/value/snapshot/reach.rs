//! Which namespaces of each member a shard owns, in the two forms that planning needs: as a filter and as a selector.
//!
//! Compiled once per view, because every collection asks and a shard may own thousands. Called by `build`; the readers are
//! in `plan`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use portolan_crds::labels::{LabelKeys, system_namespace};
use portolan_crds::selector::{Operator, Requirement, Selector};
use portolan_merge::filter::{Names, NamespaceFilter};

use super::{Grant, Member};

/// Longest list of namespaces, in bytes, that a request to a member carries. Members take a megabyte of head, what stands
/// in front of them less; filtering beyond it costs the member's bandwidth, a refused request everything.
const MAX_SELECTOR_BYTES: usize = 8 << 10;

/// What of one member is the shard's, before the limits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reach {
    /// By name; "everything" for a member that is the shard's as a whole.
    pub(crate) filter: NamespaceFilter,
    /// The same by labels; `None` where labels cannot say it: system namespaces have none, and a selector has bounds.
    pub(crate) selector: Option<Selector>,
}

/// One per member, in their order.
pub(super) fn reaches(members: &[Member], owners: &HashMap<Arc<str>, Grant>, keys: &LabelKeys) -> Vec<Reach> {
    let mut owned: Vec<HashSet<Arc<str>>> = vec![HashSet::default(); members.len()];
    for (namespace, grant) in owners {
        if let Some(names) = owned.get_mut(grant.member) {
            names.insert(namespace.clone());
        }
    }
    // Of several whole members the first has what nobody was granted by name.
    let whole = members.iter().position(|member| member.all_namespaces);
    owned
        .into_iter()
        .enumerate()
        .map(|(index, names)| {
            if whole != Some(index) {
                return only(names.into(), keys);
            }
            let others = owners.iter().filter(|(_, grant)| grant.member != index);
            let filter = NamespaceFilter::except(Names::new(others.map(|(name, _)| name.clone()).collect()));
            Reach {
                selector: filter.is_everything().then(Selector::everything),
                filter,
            }
        })
        .collect()
}

fn only(names: Names, keys: &LabelKeys) -> Reach {
    let length: usize = names.iter().map(|name| name.len() + 1).sum();
    let sayable = length <= MAX_SELECTOR_BYTES && !names.iter().any(|name| system_namespace(name));
    let values = names.iter().map(ToString::to_string);
    Reach {
        // No namespace at all is no valid requirement, and selects nothing.
        selector: sayable.then(|| {
            Requirement::new(keys.namespace(), Operator::In, values).map_or(Selector::nothing(), |requirement| {
                Selector::from_requirements([requirement])
            })
        }),
        filter: NamespaceFilter::only(names),
    }
}
