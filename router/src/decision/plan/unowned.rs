//! A namespace in the path that no shard is known to own: answered as by an API server that has no such namespace where no member
//! of the shard has it, and refused where one has (`docs/semantics.md#namespaces`).
//!
//! The primary's RBAC comes first, as nobody without a right learns what there is. Then the hub is asked, which knows all namespaces of
//! all members; while it is away the members are, as the caller. A collection is the primary's answer to a selector that selects nothing:
//! whatever its format, it is empty, and a watch of it stays open until a shard has the namespace. Pure: `preflight` asks. Callers:
//! `merged`, `new_namespace`.

use std::sync::Arc;

use portolan_crds::selector::Selector;

use super::choose::{Absent, By, Choose, Decides, Holder, Unowned};
use super::merged::{Merged, Outcome};
use super::new_namespace::may_take;
use super::{Candidate, FanOut, Need, Plan, Refusal, Rewrite, Rule};
use crate::value::check::{Attributes, Check};
use crate::value::classify::{ResourceRequest, Verb};

impl Merged<'_> {
    /// Whether other shards, of whatever operator, have the namespace in any member of this one.
    pub(super) fn is_anothers(&self, namespace: &str) -> bool {
        let mut members = self.shard.members.iter();
        members.any(|member| self.route.snapshot.owners(&member.cluster, namespace).next().is_some())
    }

    /// The plan for a namespace that no shard is known to own; `refusal`: what is said if it is there.
    pub(super) fn unowned(&self, resource: &ResourceRequest, namespace: &str, refusal: String) -> Outcome {
        if self.members().next().is_none() {
            return Err(Refusal::forbidden(Rule::OutsideRefused, refusal));
        }
        if self.collects() {
            let fan = self.empty_collection(resource, namespace, refusal)?;
            return Ok((Rule::UnownedNamespace, fan.into()));
        }
        let absent = match (self.verb(), &resource.name) {
            (Verb::DeleteCollection, _) => Absent::Nothing,
            (_, Some(name)) => Absent::Object(resource.kind(), name.clone()),
            (_, None) => Absent::Namespace,
        };
        let primary = self.primary_without_needs()?;
        let by = By::Unowned(Box::new(self.question(resource, namespace, refusal, absent)?));
        let candidates = vec![primary.into()];
        Ok((
            Rule::UnownedNamespace,
            Plan::Choose(Box::new(Choose { candidates, by })),
        ))
    }

    /// The same of the Namespace itself.
    pub(super) fn unowned_namespace(&self, resource: &ResourceRequest, name: &str, refusal: String) -> Outcome {
        let members: Vec<&str> = self.members().collect();
        let absent = match (self.verb(), self.bound()) {
            (Verb::Patch, Some(shard)) if resource.subresource.is_none() => Absent::Made(shard),
            _ => Absent::Object(resource.kind(), name.to_owned()),
        };
        if members.is_empty() || !matches!(absent, Absent::Made(_)) {
            return self.unowned(resource, name, refusal);
        }
        let by = By::Unowned(Box::new(self.question(resource, name, refusal, absent)?));
        Ok((Rule::UnownedNamespace, self.choose(&members, resource, by)?))
    }

    /// A list or a watch that shows nothing as long as no shard has the namespace.
    fn empty_collection(
        &self,
        resource: &ResourceRequest,
        namespace: &str,
        refusal: String,
    ) -> Result<FanOut, Refusal> {
        let unserved = |cluster: &&str| {
            let served = self.route.kinds.serves(cluster, &resource.group, &resource.resource);
            served == Some(false)
        };
        let mut serving = self.holders().filter(|cluster| !unserved(cluster));
        let cluster = serving.next().unwrap_or(&self.shard.primary_cluster);
        let leg = self.placed_leg(cluster, Some(Selector::nothing()))?;
        let unowned = self.question(resource, namespace, refusal, Absent::Nothing)?;
        Ok(FanOut {
            only_member: false,
            unowned: Some(Box::new(unowned)),
            ..self.fan_out(vec![leg], false)?
        })
    }

    /// What must be known first.
    pub(super) fn question(
        &self,
        resource: &ResourceRequest,
        namespace: &str,
        refusal: String,
        absent: Absent,
    ) -> Result<Unowned, Refusal> {
        let mut lookable = Vec::new();
        let mut blocked = Vec::new();
        for cluster in self.members() {
            match self.route.whatever_state(cluster, Rewrite::default()) {
                Ok(mut forward) => {
                    forward.needs.retain(|need| matches!(need, Need::Access(_)));
                    let held = self.route.cordon_of(&forward);
                    lookable.push(Candidate { forward, held });
                }
                Err(refusal) => blocked.push((Arc::from(cluster), refusal.fault)),
            }
        }
        let namespaces = ResourceRequest {
            version: "v1".to_owned(),
            resource: "namespaces".to_owned(),
            namespace: Some(namespace.to_owned()),
            name: Some(namespace.to_owned()),
            named_by_path: true,
            ..ResourceRequest::default()
        };
        Ok(Unowned {
            namespace: namespace.to_owned(),
            shard: self.shard.config.clone(),
            operator: self.shard.operator().into(),
            rights: self.rights(resource, namespace)?,
            clusters: self.members().map(Arc::from).collect(),
            may_be_taken: self.members().any(|cluster| may_take(self.shard, cluster, namespace)),
            holder: Holder {
                path: namespaces.object_path(),
                object: format!("Namespace {namespace}"),
                writes: !self.route.request.is_read(),
                one_of: false,
                replicated: false,
                decides: Decides::Place,
                unasked: None,
                placing: None,
            },
            lookable,
            blocked,
            refusal,
            absent,
        })
    }

    /// What the primary is asked: whether the caller may act as whom it wants to, and whether that may do this there.
    fn rights(&self, resource: &ResourceRequest, namespace: &str) -> Result<Vec<Check>, Refusal> {
        let primary = &*self.shard.primary_cluster;
        let forward = self.route.whatever_state(primary, Rewrite::default())?;
        let wanted = Attributes {
            verb: self.verb().as_str().to_owned(),
            group: resource.group.clone(),
            version: resource.version.clone(),
            resource: resource.resource.clone(),
            subresource: resource.subresource.clone().unwrap_or_default(),
            namespace: namespace.to_owned(),
            name: resource.name.clone().unwrap_or_default(),
        };
        let right = Check::Resource {
            cluster: primary.to_owned(),
            user: self.route.seen_as(&forward.act_as),
            wanted,
        };
        let access = forward.access().cloned();
        Ok(access.chain([right]).collect())
    }

    /// What deletes nothing: the one write that is sent, if any is.
    fn primary_without_needs(&self) -> Result<super::Forward, Refusal> {
        let rewrite = Rewrite {
            selector: Some(Selector::nothing()),
            ..Rewrite::default()
        };
        let mut forward = self.route.whatever_state(&self.shard.primary_cluster, rewrite)?;
        forward.needs.retain(|need| matches!(need, Need::Access(_)));
        Ok(forward)
    }
}
