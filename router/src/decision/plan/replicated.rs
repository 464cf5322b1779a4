//! Kinds without namespace that mean the same in every member of a shard (`docs/semantics.md#replicated-kinds`).
//!
//! One member decides about a write: the primary, unless the object says another one, as shards of several operators may have
//! several primaries. What it made of it is applied to the others afterwards, by `fanout::replicate`; a deletion
//! goes to each member that has the object. Pure: which members these are is said here. Caller: `clusterwide`.

use portolan_crds::selector::Selector;

use super::choose::{By, Choose, Holder};
use super::merged::Merged;
use super::{Candidate, Forward, LabelCheck, Need, Plan, Refusal, Rewrite, Rule, single};
use crate::value::classify::{ResourceRequest, Verb};
use crate::value::fault::Fault;
use crate::value::snapshot::Enforcement;

/// What follows a write that the member has carried out which decides.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Replicas {
    /// What was written; without its name where the body gives that.
    pub(crate) resource: ResourceRequest,
    /// What of it is the shard's: whatever the primary has by then is held against that. `None`: all.
    pub(crate) limits: Option<Selector>,
    /// The shard's other members.
    pub(crate) others: Vec<Replica>,
}

/// Another member than that.
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

    /// What follows the write at the member that `decides`; `None` of what is not replicated, or has no other member to go to.
    pub(super) fn replicas(&self, resource: &ResourceRequest, decides: &str) -> Option<Box<Replicas>> {
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
        let others = self.members_beside(decides, resource);
        (!others.is_empty()).then(|| {
            Box::new(Replicas {
                resource: resource.clone(),
                limits: self.enforced_limits(resource),
                others,
            })
        })
    }

    fn is_dry_run(&self) -> bool {
        self.route.request.query.first("dryRun").is_some()
    }

    pub(super) fn other_members(&self, resource: &ResourceRequest) -> Vec<Replica> {
        self.members_beside(&self.shard.primary_cluster, resource)
    }

    fn members_beside(&self, decides: &str, resource: &ResourceRequest) -> Vec<Replica> {
        let others = self.holders().filter(|cluster| *cluster != decides);
        let others = others.map(|cluster| Replica {
            cluster: cluster.to_owned(),
            way: self.way(cluster, resource),
        });
        others.collect()
    }

    fn way(&self, cluster: &str, resource: &ResourceRequest) -> Way {
        match self.route.whatever_state(cluster, Rewrite::default()) {
            Ok(mut forward) => {
                let held = self.route.cordon_of(&forward);
                forward.needs.retain(|need| matches!(need, Need::Access(_)));
                forward.needs.extend(self.copy_is_ours(resource));
                Way::Open(Box::new(Candidate { forward, held }))
            }
            Err(Refusal {
                rule: Rule::NotAllowed,
                fault,
            }) => Way::Closed(fault.to_string()),
            Err(Refusal { fault, .. }) => Way::Unknown(fault),
        }
    }

    /// What the limits demand of a copy that is there already. What it becomes, `fanout::replicate` holds against [`Replicas::limits`].
    fn copy_is_ours(&self, resource: &ResourceRequest) -> Option<Need> {
        let selector = self.enforced_limits(resource)?;
        Some(Need::Labels(LabelCheck {
            path: resource.object_path(),
            selector,
            connects: false,
            object: single::describe(resource),
            shard: self.shard.config.to_string(),
        }))
    }

    fn enforced_limits(&self, resource: &ResourceRequest) -> Option<Selector> {
        let enforced = self.shard.enforcement == Enforcement::Enforce;
        self.limits(resource, None).filter(|_| enforced)
    }

    /// A write of one object that is there: the primary decides if it has it, whoever else cannot be asked, or whom its object names.
    /// What it has not may be one other's own, which nobody follows unless its object says so.
    pub(super) fn write_replicated(&self, resource: &ResourceRequest, mut holder: Holder) -> Result<Plan, Refusal> {
        let mut primary = self.limit_candidate(&self.shard.primary_cluster, resource)?;
        primary.forward.replicas = self.replicas(resource, &self.shard.primary_cluster);
        let mut candidates = vec![primary];
        for Replica { cluster, way } in self.other_members(resource) {
            match way {
                Way::Open(_) => {
                    let mut other = self.limit_candidate(&cluster, resource)?;
                    other.forward.replicas = self.replicas(resource, &cluster);
                    candidates.push(other);
                }
                // The caller has nothing there.
                Way::Closed(_) => {}
                Way::Unknown(fault) => holder.unasked = holder.unasked.or(Some(fault)),
            }
        }
        // Whoever decides about it, here is nobody else.
        let asks_nobody = holder.unasked.is_none() && candidates.len() == 1;
        if asks_nobody && candidates.iter().all(|one| one.held.is_none()) {
            return Ok(candidates.swap_remove(0).forward.into());
        }
        let by = By::Holder(holder);
        Ok(Plan::Choose(Box::new(Choose { candidates, by })))
    }

    /// A deletion: of each member's own object of the name, or of none. The primary comes first, unless the object says otherwise.
    pub(super) fn delete_everywhere(&self, resource: &ResourceRequest) -> Result<Vec<Candidate>, Refusal> {
        let mut primary: Forward = self.limited(&self.shard.primary_cluster, resource, None)?;
        let mut parts = Vec::new();
        for other in self.other_members(resource) {
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
