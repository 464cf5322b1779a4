//! Which namespaces of each member a shard owns, in the two forms that planning needs: as a filter and as a selector.
//!
//! Compiled once per view, because every collection asks and a shard may own thousands. Called by `build`; the readers are
//! in `plan`.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use portolan_crds::labels::{LabelKeys, system_namespace};
use portolan_crds::selector::{Operator, Requirement, Selector};
use portolan_merge::filter::{Names, NamespaceFilter};

use super::{Grant, Member};
use crate::value::hashed::HashMap;

/// Longest list of namespaces, in bytes, that a request to a member carries. Members take a megabyte of head, what stands
/// in front of them less; filtering beyond it costs the member's bandwidth, a refused request everything.
const MAX_SELECTOR_BYTES: usize = 8 << 10;

/// What of one member is the shard's, before the limits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reach {
    /// By name; "everything" for a member that is the shard's as a whole.
    pub(crate) filter: NamespaceFilter,
    /// The same by labels, where they can say it.
    pub(crate) selector: Result<Selector, Unlabelled>,
}

/// Why the agents' labels do not choose what of a member is the caller's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unlabelled {
    /// A system namespace is among it, which agents leave alone.
    System(Arc<str>),
    /// So many bytes of namespaces are more than a selector carries.
    TooLong(usize),
    /// All but some namespaces, or limits that no label selector can say.
    Unsayable,
    /// The agent does not label the kind by the shard's rule, has not told, or is not heard.
    Untold,
    /// So many objects have theirs, of so many. All of them: new ones do not get theirs at admission.
    Incomplete { labelled: u64, total: u64 },
    /// The agent has not confirmed the labels of a namespace, which is new or was made anew.
    Unconfirmed(String),
}

impl fmt::Display for Unlabelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(namespace) => write!(f, "{namespace} is a system namespace, which agents do not label"),
            Self::TooLong(bytes) => write!(
                f,
                "its namespaces have {bytes} bytes of names, and a selector carries {MAX_SELECTOR_BYTES}"
            ),
            Self::Unsayable => f.write_str("no label selector says that"),
            Self::Untold => f.write_str("the agent does not label the kind, or is not heard"),
            Self::Incomplete { labelled, total } if labelled < total => {
                write!(f, "{labelled} of {total} objects of the kind have their labels there")
            }
            Self::Incomplete { .. } => {
                f.write_str("new objects of the kind do not get their labels at admission there")
            }
            Self::Unconfirmed(namespace) => {
                write!(f, "the agent has not confirmed the labels of namespace {namespace}")
            }
        }
    }
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
                selector: if filter.is_everything() {
                    Ok(Selector::everything())
                } else {
                    Err(Unlabelled::Unsayable)
                },
                filter,
            }
        })
        .collect()
}

fn only(names: Names, keys: &LabelKeys) -> Reach {
    Reach {
        selector: by_namespace(&names, keys),
        filter: NamespaceFilter::only(names),
    }
}

fn by_namespace(names: &Names, keys: &LabelKeys) -> Result<Selector, Unlabelled> {
    if let Some(system) = names.iter().filter(|name| system_namespace(name)).min() {
        return Err(Unlabelled::System(system.clone()));
    }
    let bytes: usize = names.iter().map(|name| name.len() + 1).sum();
    if bytes > MAX_SELECTOR_BYTES {
        return Err(Unlabelled::TooLong(bytes));
    }
    let values = names.iter().map(ToString::to_string);
    // No namespace at all is no valid requirement, and selects nothing.
    let requirement = Requirement::new(keys.namespace(), Operator::In, values);
    Ok(requirement.map_or(Selector::nothing(), |requirement| {
        Selector::from_requirements([requirement])
    }))
}
