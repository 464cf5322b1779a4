//! What one router holds: names of resources and their versions.
//!
//! Thousands of names for each of a thousand routers would be most of the hub's memory, and most routers hold the same: so
//! what is everybody's is shared between those that hold the same, and what is a router's own (its tokens) is beside it.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use crate::compile::Ref;

/// Names with their versions, shared by all that hold just these.
pub(crate) type Names = Arc<BTreeMap<Ref, String>>;

/// What a router that comes for the first time holds, so that all of those hold the same.
static NOTHING: LazyLock<Names> = LazyLock::new(Names::default);

/// What a router holds. Clones share everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    common: Names,
    own: Names,
}

impl Default for Held {
    fn default() -> Self {
        Self {
            common: NOTHING.clone(),
            own: NOTHING.clone(),
        }
    }
}

impl Held {
    /// What routers of the same subscription hold alike.
    pub(crate) fn common(&self) -> &Names {
        &self.common
    }

    /// What is of this router and no other.
    pub(crate) fn own(&self) -> &Names {
        &self.own
    }

    /// From now on it holds this, beside what is its own.
    pub(crate) fn set_common(&mut self, common: Names) {
        self.common = common;
    }

    pub(crate) fn get(&self, name: &Ref) -> Option<&String> {
        self.part(name).get(name)
    }

    pub(crate) fn contains_key(&self, name: &Ref) -> bool {
        self.part(name).contains_key(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Ref, &String)> {
        self.common.iter().chain(self.own.iter())
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &Ref> {
        self.common.keys().chain(self.own.keys())
    }

    pub(crate) fn len(&self) -> usize {
        self.common.len() + self.own.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn insert(&mut self, name: Ref, version: String) {
        Arc::make_mut(self.part_mut(&name)).insert(name, version);
    }

    pub(crate) fn remove(&mut self, name: &Ref) {
        Arc::make_mut(self.part_mut(name)).remove(name);
    }

    fn part(&self, name: &Ref) -> &Names {
        if name.is_of_one_router() {
            &self.own
        } else {
            &self.common
        }
    }

    fn part_mut(&mut self, name: &Ref) -> &mut Names {
        if name.is_of_one_router() {
            &mut self.own
        } else {
            &mut self.common
        }
    }
}

impl From<BTreeMap<Ref, String>> for Held {
    fn from(names: BTreeMap<Ref, String>) -> Self {
        let (own, common): (BTreeMap<_, _>, BTreeMap<_, _>) =
            names.into_iter().partition(|(name, _)| name.is_of_one_router());
        let shared = |names: BTreeMap<_, _>| {
            if names.is_empty() {
                NOTHING.clone()
            } else {
                names.into()
            }
        };
        Self {
            common: shared(common),
            own: shared(own),
        }
    }
}

impl FromIterator<(Ref, String)> for Held {
    fn from_iter<I: IntoIterator<Item = (Ref, String)>>(names: I) -> Self {
        Self::from(names.into_iter().collect::<BTreeMap<_, _>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_routers_own_does_not_keep_it_from_sharing() {
        let (target, token) = (Ref::Target("east".to_owned()), Ref::gateway_credential("east"));
        let named = |names: &[&Ref]| -> Held {
            let names = names.iter().map(|name| ((*name).clone(), "1".to_owned()));
            names.collect()
        };
        let (mut first, mut second) = (named(&[]), named(&[&token]));
        assert!(Arc::ptr_eq(first.common(), second.common()));
        first.insert(target.clone(), "2".to_owned());
        assert!(!second.contains_key(&target), "it is written to a copy");
        second.set_common(first.common().clone());
        let held = |name| second.get(name).map(String::as_str);
        assert_eq!((second.len(), held(&target), held(&token)), (2, Some("2"), Some("1")));
        second.remove(&token);
        assert_eq!(first, second);
    }
}
