//! What one router holds: names of resources and their versions.
//!
//! Thousands of names for each of a thousand routers would be most of the hub's memory, and most routers hold the same: so
//! what is everybody's is shared between those that hold the same, and what is a router's own (its tokens) is beside it.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use crate::compile::{Own, Ref};

/// Names with their versions, shared by all that hold just these.
pub(crate) type Names = Arc<BTreeMap<Ref, String>>;

/// What a router that comes for the first time holds, so that all of those hold the same.
static NOTHING: LazyLock<Names> = LazyLock::new(Names::default);

/// What a router holds. Clones share everything.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    common: Names,
    own: OwnNames,
}

/// What is of one router and no other.
#[derive(Debug, Clone)]
enum OwnNames {
    /// Just what it was told, which is kept all the same.
    Told(Arc<Own>),
    /// What it said itself, or what came of a refusal.
    Named(Names),
}

impl OwnNames {
    fn get(&self, name: &Ref) -> Option<&String> {
        match self {
            Self::Told(own) => own.get(name).map(|credential| credential.offered().version),
            Self::Named(names) => names.get(name),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&Ref, &String)> {
        let (told, named) = match self {
            Self::Told(own) => (Some(own), None),
            Self::Named(names) => (None, Some(names)),
        };
        let told = told.into_iter().flat_map(|own| own.offered());
        let named = named.into_iter().flat_map(|names| names.iter());
        told.map(|entry| (entry.name, entry.version)).chain(named)
    }

    fn len(&self) -> usize {
        match self {
            Self::Told(own) => own.len(),
            Self::Named(names) => names.len(),
        }
    }

    fn names_mut(&mut self) -> &mut BTreeMap<Ref, String> {
        if let Self::Told(_) = self {
            let names = self.iter().map(|(name, version)| (name.clone(), version.clone()));
            *self = Self::Named(Arc::new(names.collect()));
        }
        match self {
            Self::Named(names) => Arc::make_mut(names),
            Self::Told(_) => unreachable!("they are named now"),
        }
    }
}

impl Default for Held {
    fn default() -> Self {
        Self {
            common: NOTHING.clone(),
            own: OwnNames::Named(NOTHING.clone()),
        }
    }
}

impl Held {
    /// What routers of the same subscription hold alike.
    pub(crate) fn common(&self) -> &Names {
        &self.common
    }

    /// What is of this router and no other.
    pub(crate) fn own(&self) -> impl Iterator<Item = (&Ref, &String)> {
        self.own.iter()
    }

    /// From now on it holds this, beside what is its own.
    pub(crate) fn set_common(&mut self, common: Names) {
        self.common = common;
    }

    /// From now on it holds just this of what is its own.
    pub(crate) fn set_own(&mut self, own: Arc<Own>) {
        self.own = OwnNames::Told(own);
    }

    /// Whether it holds just this of what is its own, as far as that is known without a comparison.
    pub(crate) fn is_own(&self, own: Option<&Arc<Own>>) -> bool {
        match (&self.own, own) {
            (OwnNames::Told(held), Some(own)) => Arc::ptr_eq(held, own),
            (_, own) => self.own.len() == 0 && own.is_none(),
        }
    }

    pub(crate) fn get(&self, name: &Ref) -> Option<&String> {
        if name.is_of_one_router() {
            self.own.get(name)
        } else {
            self.common.get(name)
        }
    }

    pub(crate) fn contains_key(&self, name: &Ref) -> bool {
        self.get(name).is_some()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Ref, &String)> {
        self.common.iter().chain(self.own.iter())
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &Ref> {
        self.iter().map(|(name, _)| name)
    }

    pub(crate) fn len(&self) -> usize {
        self.common.len() + self.own.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn insert(&mut self, name: Ref, version: String) {
        self.part_mut(&name).insert(name, version);
    }

    pub(crate) fn remove(&mut self, name: &Ref) {
        self.part_mut(name).remove(name);
    }

    fn part_mut(&mut self, name: &Ref) -> &mut BTreeMap<Ref, String> {
        if name.is_of_one_router() {
            self.own.names_mut()
        } else {
            Arc::make_mut(&mut self.common)
        }
    }
}

/// However it came to hold it.
impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
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
            own: OwnNames::Named(shared(own)),
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
