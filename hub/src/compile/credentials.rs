//! Tokens → each router's own for each member: told to it and to no other.
//!
//! There are as many as members times routers, and some change at any time: each is kept once, by the facts, and worlds share all
//! of a router of which none has changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use itertools::EitherOrBoth::{Both, Left, Right};
use itertools::Itertools;
use portolan_crds::labels::GATEWAY_ACCOUNT;
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;

use super::Ref;
use super::reference::{Offered, version};
use crate::facts::{Facts, Token, Tokens};

/// Tokens of all joined members. Clones share everything.
#[derive(Debug, Clone, Default)]
pub(crate) struct Credentials(Arc<All>);

#[derive(Debug, Clone, Default)]
struct All {
    /// Each joined member, also where there are none.
    members: BTreeMap<String, OfMember>,
    /// Of routers that have any.
    by_router: BTreeMap<Arc<str>, Arc<Own>>,
}

/// What a member's are made of.
#[derive(Debug, Clone)]
struct OfMember {
    name: Arc<Ref>,
    tokens: Arc<Tokens>,
}

/// All of one router, in the order of their names.
#[derive(Debug, Default)]
pub(crate) struct Own(Vec<Arc<Credential>>);

/// One token as it is told.
#[derive(Debug, PartialEq)]
pub(crate) struct Credential {
    /// Shared by those of the member.
    name: Arc<Ref>,
    version: String,
    token: Arc<Token>,
}

/// What becomes of some tokens of a router, in the order of their names; none: it has that of the member no more.
type Changes = Vec<(Arc<Ref>, Option<Arc<Token>>)>;

impl Credentials {
    /// What the agents of joined members have minted. `last`: of the world before.
    pub(super) fn of(facts: &Facts, last: Option<&Self>) -> Self {
        let nothing = Self::default();
        let last = last.unwrap_or(&nothing);
        let joined = facts.members.keys().filter(|cluster| facts.joined(cluster).is_some());
        let members = joined.map(|cluster| {
            let known = last.0.members.get(cluster);
            let of_member = OfMember {
                name: known.map_or_else(|| Ref::gateway_credential(cluster).into(), |known| known.name.clone()),
                tokens: facts
                    .agents
                    .get(cluster)
                    .map(|agent| agent.tokens.clone())
                    .unwrap_or_default(),
            };
            (cluster.clone(), of_member)
        });
        let members: BTreeMap<_, _> = members.collect();
        let mut changes = BTreeMap::<Arc<str>, Changes>::new();
        let mut is_same = true;
        for both in last
            .0
            .members
            .iter()
            .merge_join_by(&members, |one, other| one.0.cmp(other.0))
        {
            is_same &= both.has_left() && both.has_right();
            let (before, now) = both.map_any(|(_, before)| before, |(_, now)| now).left_and_right();
            note_changes(before, now, &mut changes);
        }
        if is_same && changes.is_empty() {
            return last.clone();
        }
        let mut by_router = last.0.by_router.clone();
        for (router, changes) in changes {
            let own = by_router.remove(&router).unwrap_or_default().with(changes);
            if !own.0.is_empty() {
                by_router.insert(router, own.into());
            }
        }
        Self(Arc::new(All { members, by_router }))
    }

    /// All that is of the router of this name; none: there is nothing.
    pub(crate) fn of_router(&self, router: &str) -> Option<&Arc<Own>> {
        self.0.by_router.get(router)
    }

    /// What is of the router under this name.
    pub(crate) fn get(&self, router: &str, name: &Ref) -> Option<&Arc<Credential>> {
        self.of_router(router)?.get(name)
    }

    /// How many there are, of all routers.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.by_router.values().map(|own| own.0.len()).sum()
    }

    /// These, each with the text of a token of one member.
    #[cfg(test)]
    pub(crate) fn of_member(cluster: &str, by_router: &[(&str, &str)]) -> Self {
        let token = |text: &str| Token {
            router_uid: String::new(),
            token: text.into(),
            expires_unix_seconds: 0,
        };
        let tokens: Tokens = by_router
            .iter()
            .map(|(router, text)| ((*router).into(), token(text).into()))
            .collect();
        let of_member = OfMember {
            name: Ref::gateway_credential(cluster).into(),
            tokens: tokens.into(),
        };
        let mut changes = BTreeMap::new();
        note_changes(None, Some(&of_member), &mut changes);
        let all = changes
            .into_iter()
            .map(|(router, changes)| (router, Own::default().with(changes).into()));
        Self(Arc::new(All {
            members: [(cluster.to_owned(), of_member.clone())].into(),
            by_router: all.collect(),
        }))
    }
}

/// Tokens alone count, and not of what they were made. With a member goes what routers hold of it, also where there are none.
impl PartialEq for Credentials {
    fn eq(&self, other: &Self) -> bool {
        let is_same = || {
            let (ours, theirs) = (&self.0.by_router, &other.0.by_router);
            self.0.members.keys().eq(other.0.members.keys()) && ours == theirs
        };
        Arc::ptr_eq(&self.0, &other.0) || is_same()
    }
}

impl Own {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Credential>> {
        self.0.iter()
    }

    pub(crate) fn offered(&self) -> impl Iterator<Item = Offered<'_>> {
        self.0.iter().map(|credential| credential.offered())
    }

    pub(crate) fn get(&self, name: &Ref) -> Option<&Arc<Credential>> {
        let place = self.0.binary_search_by(|known| (*known.name).cmp(name));
        place.ok().map(|place| &self.0[place])
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    fn with(&self, changes: Changes) -> Self {
        let mut all = Vec::with_capacity(self.0.len() + changes.len());
        let mut known = self.0.iter().peekable();
        for (name, token) in changes {
            while let Some(other) = known.next_if(|known| *known.name < *name) {
                all.push(other.clone());
            }
            let _ = known.next_if(|known| *known.name == *name);
            all.extend(token.map(|token| Arc::new(Credential::of(name, token))));
        }
        all.extend(known.cloned());
        all.shrink_to_fit();
        Self(all)
    }
}

// Most are compared with themselves, run by run: of an `Eq` an `Arc` looks at the place first.
impl Eq for Own {}

impl PartialEq for Own {
    fn eq(&self, other: &Self) -> bool {
        let mut both = self.0.iter().zip(&other.0);
        let is_same = |one: &Credential, other: &Credential| (&one.name, &one.version) == (&other.name, &other.version);
        self.0.len() == other.0.len() && both.all(|(one, other)| Arc::ptr_eq(one, other) || is_same(one, other))
    }
}

impl Credential {
    fn of(name: Arc<Ref>, token: Arc<Token>) -> Self {
        Self {
            version: version(&body(&name, &token)),
            name,
            token,
        }
    }

    pub(crate) fn offered(&self) -> Offered<'_> {
        Offered {
            name: &self.name,
            version: &self.version,
            provisional: false,
        }
    }

    pub(crate) fn to_wire(&self) -> v1::Resource {
        v1::Resource {
            version: self.version.clone(),
            body: Some(body(&self.name, &self.token)),
        }
    }
}

fn body(name: &Ref, token: &Token) -> Body {
    Body::Credential(v1::Credential {
        cluster: name.cluster().unwrap_or_default().to_owned(),
        identity: GATEWAY_ACCOUNT.to_owned(),
        token: token.token.expose().clone(),
        expires_unix_seconds: token.expires_unix_seconds,
    })
}

/// What leads from the tokens of a member to those that it has now.
fn note_changes(before: Option<&OfMember>, now: Option<&OfMember>, changes: &mut BTreeMap<Arc<str>, Changes>) {
    let Some(name) = now.or(before).map(|of_member| &of_member.name) else {
        return;
    };
    let tokens = |of_member: Option<&OfMember>| of_member.map(|of_member| of_member.tokens.clone()).unwrap_or_default();
    let (before, now) = (tokens(before), tokens(now));
    if Arc::ptr_eq(&before, &now) {
        return;
    }
    for both in before.iter().merge_join_by(&*now, |one, other| one.0.cmp(other.0)) {
        let (router, token) = match both {
            Both((_, before), (_, now)) if Arc::ptr_eq(before, now) => continue,
            Left((router, _)) => (router, None),
            Right((router, now)) | Both(_, (router, now)) => (router, Some(now.clone())),
        };
        let changes = changes.entry(router.clone()).or_default();
        changes.push((name.clone(), token));
    }
}
