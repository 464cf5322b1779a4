//! Names of what is sent to routers, and one resource as it is sent.

use std::sync::Arc;

use portolan_crds::ShardName;
use portolan_crds::labels::GATEWAY_ACCOUNT;
use portolan_runtime::hex;
use portolan_wire::v1;
use portolan_wire::v1::ResourceKind;
use portolan_wire::v1::resource::Body;
use prost::Message as _;
use sha2::{Digest, Sha256};

use super::World;
use crate::facts::PolicyName;

/// Bytes of a version, printed in hex: enough that no two contents of a fleet's life collide.
const VERSION_BYTES: usize = 16;
/// A change is told where all of the resource has more than so many times its bytes.
const FAR_LESS: usize = 2;

/// Name and kind of a resource on the wire.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Ref {
    Target(String),
    Identity(String),
    Coverage(String),
    Nodes(String),
    /// Those of one shard are next to each other.
    Ownership {
        shard: ShardName,
        cluster: String,
    },
    Shard(ShardName),
    View {
        home: String,
        pod_uid: String,
    },
    Credential {
        cluster: String,
        identity: String,
    },
    Policy(PolicyName),
}

/// One resource as it is sent. `Arc`: a transaction of each router shares it, and so does the next world in which it is the same.
#[derive(Debug, Clone)]
pub(crate) struct Compiled {
    pub(crate) resource: Arc<v1::Resource>,
    /// The same as what is different since the version before, where that is far less.
    pub(crate) change: Option<Arc<v1::Resource>>,
    /// Made without all facts: for routers that hold nothing under this name, no replacement of what they hold.
    pub(crate) provisional: bool,
}

impl Ref {
    /// The token of a member by which gateways act as others there.
    pub(crate) fn gateway_credential(cluster: &str) -> Self {
        Self::Credential {
            cluster: cluster.to_owned(),
            identity: GATEWAY_ACCOUNT.to_owned(),
        }
    }

    pub(crate) fn kind(&self) -> ResourceKind {
        match self {
            Self::Target(_) => ResourceKind::Target,
            Self::Identity(_) => ResourceKind::MemberIdentity,
            Self::Coverage(_) => ResourceKind::Coverage,
            Self::Nodes(_) => ResourceKind::Nodes,
            Self::Ownership { .. } => ResourceKind::Ownership,
            Self::Shard(_) => ResourceKind::Shard,
            Self::View { .. } => ResourceKind::CallerView,
            Self::Credential { .. } => ResourceKind::Credential,
            Self::Policy(_) => ResourceKind::Policy,
        }
    }

    /// The member cluster whose facts it is made of; shards and policies are made of none.
    pub(crate) fn cluster(&self) -> Option<&str> {
        match self {
            Self::Target(cluster)
            | Self::Identity(cluster)
            | Self::Coverage(cluster)
            | Self::Nodes(cluster)
            | Self::Ownership { cluster, .. }
            | Self::Credential { cluster, .. }
            | Self::View { home: cluster, .. } => Some(cluster),
            Self::Shard(_) | Self::Policy(_) => None,
        }
    }

    /// Whether there is another of this name for each router.
    pub(crate) fn is_of_one_router(&self) -> bool {
        matches!(self, Self::Credential { .. })
    }

    /// The shard to which it grants namespaces.
    pub(crate) fn owner(&self) -> Option<&ShardName> {
        match self {
            Self::Ownership { shard, .. } => Some(shard),
            _ => None,
        }
    }

    /// The shard whose rules it tells, or to which it grants namespaces.
    pub(crate) fn shard(&self) -> Option<&ShardName> {
        match self {
            Self::Shard(shard) => Some(shard),
            _ => self.owner(),
        }
    }

    /// The name on the wire.
    pub(crate) fn to_wire(&self) -> v1::ResourceRef {
        let name = match self {
            Self::Target(cluster) | Self::Identity(cluster) | Self::Coverage(cluster) | Self::Nodes(cluster) => {
                cluster.clone()
            }
            Self::Ownership { cluster, shard } => format!("{cluster}/{shard}"),
            Self::Shard(shard) => shard.to_string(),
            Self::Policy(policy) => policy.to_string(),
            Self::View { home, pod_uid } => format!("{home}/{pod_uid}"),
            Self::Credential { cluster, identity } => format!("{cluster}/{identity}"),
        };
        v1::ResourceRef {
            kind: self.kind().into(),
            name,
        }
    }

    /// `None` for what no hub of this protocol sent.
    pub(crate) fn from_wire(wire: &v1::ResourceRef) -> Option<Self> {
        let name = wire.name.clone();
        let in_cluster = || {
            let (cluster, rest) = wire.name.split_once('/')?;
            Some((cluster.to_owned(), rest))
        };
        Some(match wire.kind() {
            ResourceKind::Target => Self::Target(name),
            ResourceKind::MemberIdentity => Self::Identity(name),
            ResourceKind::Coverage => Self::Coverage(name),
            ResourceKind::Nodes => Self::Nodes(name),
            ResourceKind::Ownership => {
                let (cluster, shard) = in_cluster()?;
                let shard = shard.parse().ok()?;
                Self::Ownership { cluster, shard }
            }
            ResourceKind::Shard => Self::Shard(name.parse().ok()?),
            ResourceKind::CallerView => {
                let (home, pod_uid) = in_cluster()?;
                let pod_uid = pod_uid.to_owned();
                Self::View { home, pod_uid }
            }
            ResourceKind::Credential => {
                let (cluster, identity) = in_cluster()?;
                let identity = identity.to_owned();
                Self::Credential { cluster, identity }
            }
            ResourceKind::Policy => Self::Policy(name.parse().ok()?),
            ResourceKind::Unspecified => return None,
        })
    }
}

impl PartialEq for Compiled {
    fn eq(&self, other: &Self) -> bool {
        let same = || Arc::ptr_eq(&self.resource, &other.resource) || self.resource == other.resource;
        self.provisional == other.provisional && same()
    }
}

/// The world before, of which most is the same in the next: what is, is not encoded and hashed anew, and worlds share it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Earlier<'a>(pub(super) Option<&'a World>);

impl Earlier<'_> {
    /// The resource of this name and content.
    pub(super) fn compiled(self, name: &Ref, body: Body) -> Compiled {
        let known = self.0.and_then(|world| world.resources.get(name));
        match known {
            Some(known) if known.resource.body.as_ref() == Some(&body) => known.clone().provisional(false),
            Some(known) => Compiled::new(body).after(&known.resource),
            None => Compiled::new(body),
        }
    }
}

/// What there is for a router, in which version.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offered<'a> {
    pub(crate) name: &'a Ref,
    pub(crate) version: &'a String,
    /// As in [`Compiled`].
    pub(crate) provisional: bool,
}

impl Compiled {
    pub(crate) fn offered<'a>(&'a self, name: &'a Ref) -> Offered<'a> {
        Offered {
            name,
            version: &self.resource.version,
            provisional: self.provisional,
        }
    }

    /// A resource under the hash of its content.
    pub(super) fn new(body: Body) -> Self {
        let resource = v1::Resource {
            version: version(&body),
            body: Some(body),
        };
        Self {
            resource: Arc::new(resource),
            change: None,
            provisional: false,
        }
    }

    /// With what is different since `before`.
    fn after(self, before: &v1::Resource) -> Self {
        let (Some(Body::Ownership(was)), Some(Body::Ownership(now))) = (&before.body, &self.resource.body) else {
            return self;
        };
        let change = v1::Resource {
            version: self.resource.version.clone(),
            body: Some(Body::OwnershipChange(v1::OwnershipChange::between(
                was,
                &before.version,
                now,
            ))),
        };
        let is_far_less = change.encoded_len() < self.resource.encoded_len() / FAR_LESS;
        Self {
            change: is_far_less.then(|| Arc::new(change)),
            ..self
        }
    }

    /// For a router that holds `held`: without a change that would tell it nothing.
    pub(crate) fn since(&self, held: Option<&String>) -> Self {
        let leads_on = |change: &&Arc<v1::Resource>| match &change.body {
            Some(Body::OwnershipChange(change)) => held == Some(&change.from),
            _ => false,
        };
        Self {
            resource: self.resource.clone(),
            change: self.change.as_ref().filter(leads_on).cloned(),
            provisional: self.provisional,
        }
    }

    /// The resource of this name and content, compiled after `last`.
    #[cfg(test)]
    pub(crate) fn after_world(last: Option<&World>, name: &Ref, body: Body) -> Self {
        Earlier(last).compiled(name, body)
    }

    pub(super) fn provisional(self, provisional: bool) -> Self {
        Self { provisional, ..self }
    }

    pub(crate) fn version(&self) -> &String {
        &self.resource.version
    }
}

/// The body's field number is part of what is hashed, so that kinds are told apart.
pub(super) fn version(body: &Body) -> String {
    let mut bytes = Vec::with_capacity(body.encoded_len());
    body.encode(&mut bytes);
    hex(&Sha256::digest(&bytes)[..VERSION_BYTES])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let shard = ShardName::new("ops", "blue").unwrap();
        let east = "east".to_owned();
        let names = [
            Ref::Target(east.clone()),
            Ref::Identity(east.clone()),
            Ref::Coverage(east.clone()),
            Ref::Nodes(east.clone()),
            Ref::Ownership {
                cluster: east.clone(),
                shard: shard.clone(),
            },
            Ref::Shard(shard),
            Ref::View {
                home: east,
                pod_uid: "p".to_owned(),
            },
            Ref::gateway_credential("east"),
            Ref::Policy("CircuitBreaker/ops/calm".parse().unwrap()),
            Ref::Policy("FaultInjection/ops/a.b".parse().unwrap()),
        ];
        for name in names {
            assert_eq!(Ref::from_wire(&name.to_wire()), Some(name));
        }
        assert_eq!(Ref::from_wire(&v1::ResourceRef::default()), None);
        for name in [
            "CircuitBreaker/ops",
            "Shard/ops/a",
            "CircuitBreaker/ops/a/b",
            "FaultInjection//a",
        ] {
            let wire = v1::ResourceRef {
                kind: ResourceKind::Policy.into(),
                name: name.to_owned(),
            };
            assert_eq!(Ref::from_wire(&wire), None, "{name}");
        }
    }
}
