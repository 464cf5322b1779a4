//! Objects that programs look for to know the cluster that they run in, in namespaces that hardly a shard has
//! (`docs/semantics.md#planning`): reads of them by name, and of nothing beside them, go where they mean something.
//!
//! The UID of Namespace `kube-system` names the cluster: the primary's, which is the same for all callers of the shard. The others say
//! how to reach and to trust the API server beside the program: its home's. Where the shard owns the namespace, that has it. Caller: `merged`.

use super::FanLeg;
use super::Rule;
use super::merged::{Merged, Outcome};
use crate::value::classify::{ResourceRequest, Verb};

/// Namespace, resource of the core group, name.
const OF_HOME: [(&str, &str, &str); 3] = [
    ("kube-system", "configmaps", "extension-apiserver-authentication"),
    ("kube-public", "configmaps", "cluster-info"),
    ("default", "services", "kubernetes"),
];
/// The Namespace whose UID is the cluster's.
const CLUSTER: &str = "kube-system";

impl Merged<'_> {
    /// The member of such an object in `namespace`, if the request reads one.
    pub(super) fn well_known(&self, resource: &ResourceRequest, namespace: &str) -> Option<&str> {
        let reads = matches!(self.verb(), Verb::Get | Verb::List | Verb::Watch);
        if !reads || !resource.group.is_empty() || resource.subresource.is_some() {
            return None;
        }
        let name = resource.name.as_deref()?;
        if resource.resource == "namespaces" {
            return (name == CLUSTER).then_some(&self.shard.primary_cluster);
        }
        let known = OF_HOME.contains(&(namespace, resource.resource.as_str(), name));
        known.then_some(&self.view.key.home_cluster)
    }

    /// A list or a watch of Namespace `kube-system` alone, where the shard has it not.
    pub(super) fn cluster_itself(&self, resource: &ResourceRequest) -> Option<Outcome> {
        let is_it = resource.is("", "namespaces") && resource.name.as_deref() == Some(CLUSTER);
        if !is_it || self.shard.owner(CLUSTER).is_some() || *self.view.namespace == *CLUSTER {
            return None;
        }
        let cluster = self.well_known(resource, CLUSTER)?;
        Some(self.placed_leg(cluster, None).and_then(|leg: FanLeg| {
            let mut fan = self.fan_out(vec![leg], false)?;
            fan.only_member = false;
            Ok((Rule::WellKnown, fan.into()))
        }))
    }
}
