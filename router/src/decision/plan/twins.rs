//! An object without a namespace that is about to be made: another member may have one of that name (`docs/semantics.md#twins`).
//!
//! One API server answers 409 then; made in one member all the same, the new object would hide the other, or be hidden. So the
//! others are asked first, for metadata, as the caller. Pure: `preflight::twins` asks. Callers: `clusterwide`, `new_object`.

use super::choose::Finding;
use super::merged::Merged;
use super::replicated::{Replica, Way};
use super::{Need, OtherCopies};
use crate::value::classify::ResourceRequest;
use crate::value::fault::{AboutObject, Fault};

impl Merged<'_> {
    /// Copies of what is to be made in the primary that may be on their way out. A member that cannot be asked is told of once the
    /// object is made.
    pub(super) fn copies(&self, resource: &ResourceRequest) -> Option<Need> {
        let others = self.other_members(resource).into_iter();
        let others = others.filter_map(|Replica { way, .. }| match way {
            Way::Open(candidate) => Some(*candidate),
            Way::Closed(_) | Way::Unknown(_) => None,
        });
        let others: Vec<_> = others.collect();
        (!others.is_empty()).then(|| {
            Need::Copies(Box::new(OtherCopies {
                resource: resource.clone(),
                others,
                makes: self.shard.primary_cluster.clone(),
            }))
        })
    }

    /// False where every member that is known to serve the kind lets nobody get an object of it: questions to an API server.
    pub(super) fn can_be_got(&self, resource: &ResourceRequest) -> bool {
        let served = self.holders().filter_map(|cluster| {
            let kinds = self.route.kinds.member(cluster)?;
            Some(kinds.get(&resource.group, &resource.resource)?.verbs.contains("get"))
        });
        let served: Vec<bool> = served.collect();
        served.is_empty() || served.contains(&true)
    }

    pub(super) fn may_serve(&self, cluster: &str, resource: &ResourceRequest) -> bool {
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

/// Whether one of this name may be made, from what the other members have; with a text to warn of where one does not let the caller
/// look.
pub(crate) fn judge(
    resource: &ResourceRequest,
    name: &str,
    found: &[(String, Finding)],
) -> Result<Option<String>, Fault> {
    let kind = resource.kind();
    if let Some((cluster, _)) = found.iter().find(|(_, finding)| *finding == Finding::Has) {
        let message = format!("{kind} {name:?} already exists in member cluster {cluster}");
        return Err(already_exists(resource, name, message));
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
