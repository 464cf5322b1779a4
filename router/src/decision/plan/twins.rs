//! Creates of what has no namespace: another member may have an object of that name (`docs/semantics.md#twins`).
//!
//! One API server answers 409 then; made in the primary all the same, the new object would hide the other. So the others are
//! asked first, for metadata, as the caller. Pure: what is to be asked is said here, `preflight::twins` asks. Caller:
//! `clusterwide`.

use super::choose::Finding;
use super::merged::Merged;
use super::replicated::{Replica, Way};
use super::{Candidate, Need, Other, Refusal, Rewrite, Rule, Twins};
use crate::value::classify::{ResourceRequest, Verb};
use crate::value::fault::{AboutObject, Fault};

impl Merged<'_> {
    /// What must be known before an object without a namespace is made in the primary.
    pub(super) fn twins(&self, resource: &ResourceRequest) -> Result<Option<Need>, Refusal> {
        let makes = self.verb() == Verb::Create && resource.subresource.is_none() && !resource.named_by_path;
        if makes && self.is_replicated(resource) {
            return Ok(self.copies(resource));
        }
        // Also where the shard does not have definitions replicated each member may have its own.
        if !makes || resource.is_definition() || !self.can_be_got(resource) {
            return Ok(None);
        }
        let primary = &*self.shard.primary_cluster;
        let others = self
            .holders()
            .filter(|cluster| *cluster != primary && self.may_serve(cluster, resource));
        let others = others
            .map(|cluster| self.other(cluster))
            .collect::<Result<Vec<_>, _>>()?;
        Ok((!others.is_empty()).then(|| {
            Need::Twins(Box::new(Twins {
                resource: resource.clone(),
                others,
                replicated: false,
                makes: self.shard.primary_cluster.clone(),
            }))
        }))
    }

    /// Copies that may be on their way out. A member that cannot be asked is told of once the object is made.
    fn copies(&self, resource: &ResourceRequest) -> Option<Need> {
        let others = self.other_members(resource).into_iter();
        let others = others.filter_map(|Replica { way, .. }| match way {
            Way::Open(candidate) => Some(Other::Asked(candidate)),
            Way::Closed(_) | Way::Unknown(_) => None,
        });
        let others: Vec<Other> = others.collect();
        (!others.is_empty()).then(|| {
            Need::Twins(Box::new(Twins {
                resource: resource.clone(),
                others,
                replicated: true,
                makes: self.shard.primary_cluster.clone(),
            }))
        })
    }

    fn other(&self, cluster: &str) -> Result<Other, Refusal> {
        match self.route.whatever_state(cluster, Rewrite::default()) {
            Ok(mut forward) => {
                let held = self.route.cordon_of(&forward);
                forward.needs.retain(|need| matches!(need, Need::Access(_)));
                Ok(Other::Asked(Box::new(Candidate { forward, held })))
            }
            Err(Refusal {
                rule: Rule::NotAllowed, ..
            }) => Ok(Other::Closed(cluster.to_owned())),
            Err(refusal) => Err(refusal),
        }
    }

    /// False where every member that is known to serve the kind lets nobody get an object of it: questions to an API server.
    fn can_be_got(&self, resource: &ResourceRequest) -> bool {
        let served = self.holders().filter_map(|cluster| {
            let kinds = self.route.kinds.member(cluster)?;
            Some(kinds.get(&resource.group, &resource.resource)?.verbs.contains("get"))
        });
        let served: Vec<bool> = served.collect();
        served.is_empty() || served.contains(&true)
    }

    fn may_serve(&self, cluster: &str, resource: &ResourceRequest) -> bool {
        let (group, kind) = (&resource.group, &resource.resource);
        self.route.kinds.serves(cluster, group, kind) != Some(false)
    }
}

/// The refusal while a copy is on its way out: as one API server says it of an object that has finalizers yet.
pub(crate) fn leaving(resource: &ResourceRequest, name: &str, cluster: &str) -> Fault {
    let kind = resource.kind();
    let message =
        format!("object is being deleted: {kind} {name:?} is being cleaned up in member cluster {cluster} yet");
    already_exists(resource, name, message)
}

/// The refusal where another member decides about what is to be made, as a copy of it says.
pub(crate) fn decided(resource: &ResourceRequest, name: &str, (cluster, decides): (&str, &str)) -> Fault {
    let kind = resource.kind();
    let message = format!(
        "{kind} {name:?} already exists in member cluster {cluster}, and member cluster {decides} decides about it"
    );
    already_exists(resource, name, message)
}

fn already_exists(resource: &ResourceRequest, name: &str, message: String) -> Fault {
    Fault::AlreadyExists {
        message,
        about: Box::new(AboutObject {
            group: resource.group.clone(),
            resource: resource.resource.clone(),
            name: Some(name.to_owned()),
        }),
    }
}

impl Twins {
    /// Whether it may be made, from what the others have; with a text to warn of where one does not let the caller look.
    pub(crate) fn judge(&self, name: &str, found: &[(String, Finding)]) -> Result<Option<String>, Fault> {
        let kind = self.resource.kind();
        if self.replicated {
            return Ok(None);
        }
        if let Some((cluster, _)) = found.iter().find(|(_, finding)| *finding == Finding::Has) {
            let message = format!("{kind} {name:?} already exists in member cluster {cluster}");
            return Err(already_exists(&self.resource, name, message));
        }
        let unknown = found.iter().find_map(|(_, finding)| match finding {
            Finding::Unknown(fault) => Some(fault.clone()),
            _ => None,
        });
        if let Some(fault) = unknown {
            return Err(fault);
        }
        let hidden: Vec<&str> = found
            .iter()
            .filter(|(_, finding)| *finding == Finding::Forbidden)
            .map(|(cluster, _)| cluster.as_str())
            .collect();
        Ok((!hidden.is_empty()).then(|| {
            format!(
                "whether {} has {kind} {name:?} too is not known: it does not let this caller get it",
                hidden.join(", ")
            )
        }))
    }
}
