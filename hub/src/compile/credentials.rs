//! Tokens → each router's own for each member: told to it and to no other. Shared by worlds, member by member, as there are as many
//! as members times routers.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_crds::labels::GATEWAY_ACCOUNT;
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;

use super::{Compiled, Ref};
use crate::facts::{AgentReport, Facts, Token};

/// Tokens of all members. Clones share everything.
#[derive(Debug, Clone, Default)]
pub(crate) struct Credentials(Arc<BTreeMap<String, Arc<OfMember>>>);

/// One for each joined member, also where there are none: with it goes what routers hold of it.
#[derive(Debug)]
struct OfMember {
    /// Of the facts that they are made of; none: no agent has told of any.
    stamp: Option<u64>,
    name: Ref,
    by_router: BTreeMap<String, Compiled>,
}

impl OfMember {
    fn of(cluster: &str, agent: Option<&AgentReport>, last: Option<&Self>) -> Self {
        let compiled = |(router, token): (&String, &Token)| {
            let known = last.and_then(|last| last.by_router.get(router));
            let known = known.filter(|known| is_of(known, token)).cloned();
            (router.clone(), known.unwrap_or_else(|| credential(cluster, token)))
        };
        Self {
            stamp: agent.map(|agent| agent.tokens.stamp()),
            name: Ref::gateway_credential(cluster),
            by_router: agent
                .into_iter()
                .flat_map(|agent| &*agent.tokens)
                .map(compiled)
                .collect(),
        }
    }
}

impl Credentials {
    /// What the agents of joined members have minted. `last`: of the world before.
    pub(super) fn of(facts: &Facts, last: Option<&Self>) -> Self {
        let joined = facts.members.keys().filter(|cluster| facts.joined(cluster).is_some());
        let by_member = joined.map(|cluster| {
            let agent = facts.agents.get(cluster);
            let known = last.and_then(|last| last.0.get(cluster));
            let stamp = agent.map(|agent| agent.tokens.stamp());
            let same = known.filter(|known| known.stamp == stamp).cloned();
            let of_member = same.unwrap_or_else(|| OfMember::of(cluster, agent, known.map(|known| &**known)).into());
            (cluster.clone(), of_member)
        });
        let all = Self(Arc::new(by_member.collect()));
        let same = last.filter(|last| last.is_as(&all, Arc::ptr_eq));
        same.cloned().unwrap_or(all)
    }

    /// All that is of the router of this name.
    pub(crate) fn of_router<'a, 'b>(
        &'a self,
        router: &'b str,
    ) -> impl Iterator<Item = (&'a Ref, &'a Compiled)> + use<'a, 'b> {
        let members = self.0.values();
        members.filter_map(move |of_member| Some((&of_member.name, of_member.by_router.get(router)?)))
    }

    /// What is of the router under this name.
    pub(crate) fn get(&self, router: &str, name: &Ref) -> Option<&Compiled> {
        let of_member = self.0.get(name.cluster()?)?;
        of_member.by_router.get(router).filter(|_| of_member.name == *name)
    }

    /// Whether it is the very same.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// These, of one member.
    #[cfg(test)]
    pub(crate) fn of_member(cluster: &str, by_router: BTreeMap<String, Compiled>) -> Self {
        let of_member = OfMember {
            stamp: None,
            name: Ref::gateway_credential(cluster),
            by_router,
        };
        Self(Arc::new([(cluster.to_owned(), of_member.into())].into()))
    }

    /// How many there are, of all routers.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.values().map(|of_member| of_member.by_router.len()).sum()
    }

    /// Whether they are of the same members, and `same` for each.
    fn is_as(&self, other: &Self, same: impl Fn(&Arc<OfMember>, &Arc<OfMember>) -> bool) -> bool {
        let mut both = self.0.iter().zip(&*other.0);
        self.0.len() == other.0.len() && both.all(|((ours, one), (theirs, other))| ours == theirs && same(one, other))
    }
}

/// Tokens alone count, and not of what they were made.
impl PartialEq for Credentials {
    fn eq(&self, other: &Self) -> bool {
        let same =
            |one: &Arc<OfMember>, other: &Arc<OfMember>| Arc::ptr_eq(one, other) || one.by_router == other.by_router;
        self.is(other) || self.is_as(other, same)
    }
}

fn is_of(known: &Compiled, token: &Token) -> bool {
    match &known.resource.body {
        Some(Body::Credential(told)) => {
            told.token == *token.token.expose() && told.expires_unix_seconds == token.expires_unix_seconds
        }
        _ => false,
    }
}

fn credential(cluster: &str, token: &Token) -> Compiled {
    Compiled::new(Body::Credential(v1::Credential {
        cluster: cluster.to_owned(),
        identity: GATEWAY_ACCOUNT.to_owned(),
        token: token.token.expose().clone(),
        expires_unix_seconds: token.expires_unix_seconds,
    }))
}
