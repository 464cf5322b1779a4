//! What a router may be told. It stands in the router's certificate, set at enrolment; a Hello may ask for less.
//!
//! One spelling everywhere (URI names of certificates, bootstrap tokens, Hello, flags of portolanctl): the scopes
//! `everything`, `shard:<namespace>/<name>` (repeatable), or `caller:<cluster>/<namespace>/<pod>`.

use std::collections::BTreeSet;
use std::str::FromStr;

use portolan_crds::names::{ShardName, is_dns_label, is_dns_subdomain};
use thiserror::Error;

const EVERYTHING: &str = "everything";
const SHARD: &str = "shard:";
const CALLER: &str = "caller:";
/// What a certificate writes before each scope.
const URI: &str = "portolan:subscription:";

/// A router's part of the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subscription {
    /// All of it: a gateway.
    Everything,
    /// These shards, their callers, and the members that they use.
    Shards(BTreeSet<ShardName>),
    /// One caller, its shard and the members that this uses; never a token that may act as somebody else.
    Caller(CallerPod),
}

/// A Pod by its name, which a router beside it knows before the Pod has a uid.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallerPod {
    /// The member cluster in which it runs.
    pub cluster: String,
    /// Namespace of the Pod.
    pub namespace: String,
    /// Name of the Pod.
    pub pod: String,
}

/// Scopes that are no subscription.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{0:?} is no subscription: say everything, shard:NAMESPACE/NAME (repeatable), or one caller:CLUSTER/NAMESPACE/POD"
)]
pub struct SubscriptionError(String);

impl Subscription {
    /// Reads scopes, of which there is at least one.
    ///
    /// # Errors
    /// An unknown scope, none at all, or scopes that do not go together.
    pub fn from_scopes<'a>(scopes: impl IntoIterator<Item = &'a str>) -> Result<Self, SubscriptionError> {
        let scopes: Vec<_> = scopes.into_iter().collect();
        let bad = || SubscriptionError(scopes.join(","));
        match scopes.as_slice() {
            [EVERYTHING] => return Ok(Self::Everything),
            [one] if one.starts_with(CALLER) => {
                let caller = one.strip_prefix(CALLER).and_then(CallerPod::parse);
                return caller.map(Self::Caller).ok_or_else(bad);
            }
            [] => return Err(bad()),
            _ => {}
        }
        let shards = scopes.iter().map(|scope| scope.strip_prefix(SHARD)?.parse().ok());
        shards.collect::<Option<_>>().map(Self::Shards).ok_or_else(bad)
    }

    /// What [`Self::from_scopes`] reads.
    pub fn scopes(&self) -> Vec<String> {
        match self {
            Self::Everything => vec![EVERYTHING.to_owned()],
            Self::Shards(shards) => shards.iter().map(|shard| format!("{SHARD}{shard}")).collect(),
            Self::Caller(caller) => vec![format!(
                "{CALLER}{}/{}/{}",
                caller.cluster, caller.namespace, caller.pod
            )],
        }
    }

    /// The URI names of a certificate of this subscription.
    pub fn to_uris(&self) -> Vec<String> {
        self.scopes().into_iter().map(|scope| format!("{URI}{scope}")).collect()
    }

    /// Reads the URI names of a certificate; others than [`Self::to_uris`] makes say nothing.
    ///
    /// # Errors
    /// Scopes that [`Self::from_scopes`] refuses; a certificate that says nothing has none, which it refuses too.
    pub fn from_uris(uris: &[String]) -> Result<Self, SubscriptionError> {
        Self::from_scopes(uris.iter().filter_map(|uri| uri.strip_prefix(URI)))
    }

    /// Whether `asked` is the same or less.
    pub fn covers(&self, asked: &Self) -> bool {
        match (self, asked) {
            (Self::Everything, _) => true,
            (Self::Shards(mine), Self::Shards(asked)) => asked.is_subset(mine),
            // Whose caller it is nobody knows in advance.
            (Self::Shards(_), _) => false,
            (Self::Caller(_), _) => self == asked,
        }
    }
}

impl FromStr for CallerPod {
    type Err = SubscriptionError;

    fn from_str(text: &str) -> Result<Self, SubscriptionError> {
        Self::parse(text).ok_or_else(|| SubscriptionError(text.to_owned()))
    }
}

impl CallerPod {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let (cluster, namespace, pod) = (parts.next()?, parts.next()?, parts.next()?);
        let good = is_dns_label(cluster) && is_dns_label(namespace) && is_dns_subdomain(pod);
        (good && parts.next().is_none()).then(|| Self {
            cluster: cluster.to_owned(),
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(scopes: &[&str]) -> Subscription {
        Subscription::from_scopes(scopes.iter().copied()).unwrap()
    }

    #[test]
    fn subscriptions_round_trip() {
        for scopes in [
            &["everything"][..],
            &["shard:ops/a", "shard:ops/b.c"],
            &["caller:east/ops/operator-0"],
        ] {
            let subscription = of(scopes);
            assert_eq!(subscription.scopes(), scopes);
            let mut uris = subscription.to_uris();
            uris.push("spiffe://elsewhere".to_owned());
            assert_eq!(Subscription::from_uris(&uris), Ok(subscription));
        }
    }

    #[test]
    fn what_is_not_understood_is_no_subscription() {
        for scopes in [
            &[][..],
            &[""],
            &["all"],
            &["everything", "shard:ops/a"],
            &["shard:a"],
            &["shard:ops/a", "caller:east/ops/p"],
            &["caller:east/ops/p", "caller:east/ops/q"],
            &["caller:east/ops"],
            &["caller:east/ops/p/q"],
            &["caller:East/ops/p"],
        ] {
            let error = Subscription::from_scopes(scopes.iter().copied()).unwrap_err();
            assert!(error.to_string().contains("say everything"), "{error}");
        }
    }

    #[test]
    fn the_same_or_less_is_covered() {
        let (all, a, ab) = (
            of(&["everything"]),
            of(&["shard:ops/a"]),
            of(&["shard:ops/a", "shard:ops/b"]),
        );
        let caller = of(&["caller:east/ops/p"]);
        for (granted, asked) in [(&all, &caller), (&all, &ab), (&ab, &a), (&a, &a), (&caller, &caller)] {
            assert!(granted.covers(asked), "{granted:?} {asked:?}");
        }
        let other = of(&["caller:east/ops/q"]);
        for (granted, asked) in [(&a, &all), (&a, &ab), (&a, &caller), (&caller, &a), (&caller, &other)] {
            assert!(!granted.covers(asked), "{granted:?} {asked:?}");
        }
    }
}
