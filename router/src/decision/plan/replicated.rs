//! Kinds without namespace that mean the same in every member of a shard (`docs/semantics.md#replicated-kinds`).
//!
//! The primary decides about a write. What it made of it is applied to the others afterwards, by `fanout::replicate`; a deletion
//! goes to each member that has the object. Pure: which members these are is said here. Caller: `clusterwide`.

use super::merged::Merged;
use super::{Candidate, Forward, Refusal, Rewrite, Rule};
use crate::value::classify::{ResourceRequest, Verb};
use crate::value::fault::Fault;

/// What follows a write that the primary has carried out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Replicas {
    /// What was written; without its name where the body gives that.
    pub(crate) resource: ResourceRequest,
    /// The shard's other members.
    pub(crate) others: Vec<Replica>,
}

/// Another member than the primary.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Replica {
    pub(crate) cluster: String,
    pub(crate) way: Way,
}

/// Whether a member can be asked, as far as a plan knows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Way {
    Open(Box<Candidate>),
    /// It does not let the router act as this caller, so the caller has nothing there.
    Closed(String),
    /// Not now.
    Unknown(Fault),
}

impl Merged<'_> {
    pub(super) fn is_replicated(&self, resource: &ResourceRequest) -> bool {
        let mut kinds = self.shard.replicated.iter();
        kinds.any(|(group, kind)| resource.is(group, kind))
    }

    /// What follows the write at the primary; `None` of what is not replicated, or has no other member to go to.
    pub(super) fn replicas(&self, resource: &ResourceRequest) -> Option<Box<Replicas>> {
        let writes = matches!(self.verb(), Verb::Create | Verb::Update | Verb::Patch);
        let follows = match resource.subresource.as_deref() {
            None => true,
            // The versions that it says are stored are those of the shard's objects in all members.
            Some("status") => resource.is_definition(),
            Some(_) => false,
        };
        if !writes || !follows || !self.is_replicated(resource) || self.is_dry_run() {
            return None;
        }
        let others = self.other_members();
        (!others.is_empty()).then(|| {
            Box::new(Replicas {
                resource: resource.clone(),
                others,
            })
        })
    }

    fn is_dry_run(&self) -> bool {
        self.route.request.query.first("dryRun").is_some()
    }

    pub(super) fn other_members(&self) -> Vec<Replica> {
        let primary = &*self.shard.primary_cluster;
        let others = self.holders().filter(|cluster| *cluster != primary);
        let others = others.map(|cluster| Replica {
            cluster: cluster.to_owned(),
            way: self.way(cluster),
        });
        others.collect()
    }

    fn way(&self, cluster: &str) -> Way {
        match self.route.whatever_state(cluster, Rewrite::default()) {
            Ok(mut forward) => {
                let held = self.route.cordon_of(&forward);
                forward.needs.retain(|need| matches!(need, super::Need::Access(_)));
                Way::Open(Box::new(Candidate { forward, held }))
            }
            Err(Refusal {
                rule: Rule::NotAllowed,
                fault,
            }) => Way::Closed(fault.to_string()),
            Err(Refusal { fault, .. }) => Way::Unknown(fault),
        }
    }

    /// A deletion: of each member's own object of the name, or of none. The primary comes first.
    pub(super) fn delete_everywhere(&self, resource: &ResourceRequest) -> Result<Vec<Candidate>, Refusal> {
        let mut primary: Forward = self.limited(&self.shard.primary_cluster, resource, None)?;
        let mut parts = Vec::new();
        for other in self.other_members() {
            match other.way {
                Way::Open(candidate) => parts.push(*candidate),
                Way::Closed(why) => primary.warning = primary.warning.or(Some(why)),
                Way::Unknown(fault) => {
                    return Err(Refusal {
                        rule: Rule::NoTarget,
                        fault,
                    });
                }
            }
        }
        parts.insert(0, primary.into());
        Ok(parts)
    }
}

impl Replicas {
    /// For `/explain`.
    pub(super) fn explain(&self) -> String {
        let others: Vec<&str> = self.others.iter().map(|other| &*other.cluster).collect();
        format!(
            "what it makes of the object is applied to {} as the same user",
            others.join(", ")
        )
    }
}
