//! Names of resources: each kind has its own spelling, see `ResourceRef` in the protocol.

use crate::v1::resource::Body;
use crate::v1::{Ownership, Resource, ResourceKind, ResourceRef};

impl Resource {
    /// Kind and name; `None` for a resource of a kind that this revision does not know.
    pub fn reference(&self) -> Option<ResourceRef> {
        let (kind, name) = match self.body.as_ref()? {
            Body::Target(target) => (ResourceKind::Target, target.cluster.clone()),
            Body::MemberIdentity(identity) => (ResourceKind::MemberIdentity, identity.cluster.clone()),
            Body::Coverage(coverage) => (ResourceKind::Coverage, coverage.cluster.clone()),
            Body::Nodes(nodes) => (ResourceKind::Nodes, nodes.cluster.clone()),
            Body::Ownership(owned) => owned.reference(),
            Body::OwnershipChange(change) => change.now.as_ref()?.reference(),
            Body::Shard(shard) => (ResourceKind::Shard, shard.name.clone()),
            Body::CallerView(view) => (
                ResourceKind::CallerView,
                format!("{}/{}", view.home_cluster, view.pod_uid),
            ),
            Body::Policy(policy) => (ResourceKind::Policy, policy.name.clone()),
            Body::Credential(one) => (ResourceKind::Credential, format!("{}/{}", one.cluster, one.identity)),
        };
        Some(ResourceRef {
            kind: kind.into(),
            name,
        })
    }
}

impl Ownership {
    fn reference(&self) -> (ResourceKind, String) {
        (ResourceKind::Ownership, format!("{}/{}", self.cluster, self.shard))
    }
}
