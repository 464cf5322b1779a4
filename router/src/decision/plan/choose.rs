//! One request for one member, which the plan alone cannot name: an answer or the body tells which
//! (`docs/semantics.md#planning`).
//!
//! An object without a namespace is where it is: its metadata is looked for, in the primary first. A new Namespace goes
//! where its annotation or the shard says (`new_namespace`); a Lease of the callers to the primary, unless it is alive where
//! it was kept before. Pure: `preflight` asks and gathers, here it is decided. Never two members: a write whose place is in doubt is refused.

mod absence;

use std::sync::Arc;

pub(crate) use self::absence::{Absent, Presence, Unowned};
use portolan_crds::labels::DECIDES;

use super::Candidate;
use super::placing::{NewObject, Placing};
use crate::value::classify::path_in;
use crate::value::fault::Fault;
use crate::value::snapshot::{LeaseName, Shard};

/// Members that a refusal names.
const MOST_MEMBERS: usize = 4;

/// Candidates, and how to choose among them.
#[derive(Debug, Clone)]
pub(crate) struct Choose {
    /// At least one, the primary first where it is among them. All of the same class.
    pub(crate) candidates: Vec<Candidate>,
    /// What tells.
    pub(crate) by: By,
}

/// What tells which member it is.
#[derive(Debug, Clone)]
pub(crate) enum By {
    /// Who has the object.
    Holder(Holder),
    /// The body, which makes a Namespace.
    NewNamespace(Arc<Shard>),
    /// The body, which makes any other object without a namespace.
    NewObject(Box<NewObject>),
    /// Whether any has the namespace.
    Unowned(Box<Unowned>),
    /// Which Lease of the callers it is, and where that is alive.
    Lease(OtherLease),
}

/// Who decides about an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decides {
    /// Whoever has it.
    Place,
    /// The one that the object names: its kind is the same everywhere.
    Object,
}

/// An object without a namespace.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Holder {
    /// Its path in any member, without subresource.
    pub(crate) path: String,
    /// For messages.
    pub(crate) object: String,
    /// The request may change something.
    pub(crate) writes: bool,
    /// Others are joined to the object by its name alone: one that several members have is not written.
    pub(crate) one_of: bool,
    /// The first candidate decides for all: what would be made is made there, whoever else has one.
    pub(crate) replicated: bool,
    /// Who decides about it.
    pub(crate) decides: Decides,
    /// Why a member that may have it is no candidate: what no candidate has is not known to be nowhere.
    pub(crate) unasked: Option<Fault>,
    /// What tells where a write makes it that is nowhere, if any does.
    pub(crate) placing: Option<Box<Placing>>,
}

/// A Lease in the callers' namespace that is not the election's, unless a body that makes one says so. The candidates: the
/// primary; if Leases have `moved`, where they were kept before; if the body tells, the primary for the election's. Of
/// another kind that carries the lock, only the body tells, and the first is where any other goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OtherLease {
    /// Of the election's.
    pub(crate) names: LeaseName,
    /// Path of the Leases of the namespace, in any member.
    pub(crate) collection: String,
    /// As the path says; `None`: the body tells.
    pub(crate) name: Option<String>,
    /// Whether one may be alive in the second candidate.
    pub(crate) moved: bool,
    /// The name by which callers knew the election's before: where it is told, the last candidate but one is for that.
    pub(crate) former: Option<String>,
}

/// What a member says of an object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Finding {
    /// It has it.
    Has,
    /// It has not.
    HasNot,
    /// The member does not let the caller look.
    Forbidden,
    /// It cannot be asked.
    Unknown(Fault),
}

/// A candidate by its index, and what to warn of.
pub(crate) type Chosen = Result<(usize, Option<String>), Fault>;

impl Holder {
    /// Which candidate has it, from what each of them said, in their order. One that cannot be asked may have it: what
    /// is not found elsewhere is then unknown, never absent; and a write that might be meant for it waits.
    pub(crate) fn choose(&self, findings: &[Finding]) -> Result<usize, Fault> {
        // It answers itself, with what it allows.
        if self.replicated && self.writes && findings.first() == Some(&Finding::Forbidden) {
            return Ok(0);
        }
        let unknown = |findings: &[Finding]| {
            findings.iter().find_map(|finding| match finding {
                Finding::Unknown(fault) => Some(fault.clone()),
                _ => None,
            })
        };
        if let Some(index) = findings.iter().position(|finding| *finding == Finding::Has) {
            let before = unknown(&findings[..index]).or_else(|| self.unasked.clone().filter(|_| index > 0));
            return match before {
                Some(fault) if self.writes => Err(fault),
                _ => Ok(index),
            };
        }
        if let Some(fault) = unknown(findings).or_else(|| self.unasked.clone()) {
            return Err(fault);
        }
        // It answers the request itself with what it allows. If all say no it is the primary's: to say so, or to create.
        let hidden = findings.iter().position(|finding| *finding == Finding::Forbidden);
        Ok(hidden.unwrap_or(0))
    }
}

impl Holder {
    /// The refusal of a write about which a member decides that is none of the candidates.
    pub(crate) fn decided_elsewhere(&self, decides: &str) -> Fault {
        let conflict = || decided_elsewhere(&self.object, decides);
        self.unasked.clone().unwrap_or_else(conflict)
    }

    /// Whether every member is to be asked, and none is enough.
    pub(crate) fn asks_all(&self) -> bool {
        self.writes && self.one_of
    }

    /// Refuses a write of what several members have by one name, as far as they say.
    pub(crate) fn is_one(&self, candidates: &[Candidate], findings: &[Finding]) -> Result<(), Fault> {
        let named = candidates.iter().zip(findings);
        let have = named.filter(|(_, finding)| **finding == Finding::Has);
        let clusters: Vec<&str> = have.map(|(candidate, _)| &*candidate.forward.target.cluster).collect();
        if self.asks_all() && clusters.len() > 1 {
            return Err(Fault::Forbidden(several(&self.object, &clusters)));
        }
        Ok(())
    }
}

impl OtherLease {
    /// Path of the Lease `name`, in any member; `None` if there can be none of that name.
    pub(crate) fn path(&self, name: &str) -> Option<String> {
        path_in(&self.collection, name)
    }
}

impl Choose {
    /// The members, for messages.
    pub(crate) fn clusters(&self) -> String {
        let clusters = self.candidates.iter().map(|one| &*one.forward.target.cluster);
        clusters.collect::<Vec<_>>().join(", ")
    }

    /// Whether it is about a namespace that no shard is known to own.
    pub(crate) fn is_unowned(&self) -> bool {
        matches!(self.by, By::Unowned(_))
    }

    /// Whether the request makes a Namespace, if it is one that may.
    pub(crate) fn makes_namespace(&self) -> bool {
        match &self.by {
            By::NewNamespace(_) => true,
            By::Unowned(unowned) => matches!(unowned.absent, Absent::Made(_)),
            By::Holder(_) | By::NewObject(_) | By::Lease(_) => false,
        }
    }

    /// Whether the router must have all of the request's body before it sends any of it.
    pub(crate) fn gathers(&self) -> bool {
        let told = match &self.by {
            By::Lease(lease) => lease.name.is_none(),
            By::NewObject(_) => true,
            By::NewNamespace(_) | By::Unowned(_) | By::Holder(_) => self.makes_namespace(),
        };
        told || self.candidates.iter().any(|one| one.forward.gathers())
    }
}

/// The refusal of a write of what is the same everywhere and none of the shard's members decides about.
pub(crate) fn decided_elsewhere(object: &str, decides: &str) -> Fault {
    Fault::Conflict(format!(
        "member cluster {decides} decides about {object}, as its annotation {DECIDES} says, and is no member of this shard that can be \
         asked: write it through a shard that has that member, or take the annotation off in each member"
    ))
}

/// What is said of one name that several members have.
pub(super) fn several(object: &str, clusters: &[&str]) -> String {
    let named = &clusters[..clusters.len().min(MOST_MEMBERS)];
    let more = if clusters.len() > MOST_MEMBERS {
        " and others"
    } else {
        ""
    };
    let views: Vec<String> = named.iter().map(|cluster| format!("/clusters/{cluster}/")).collect();
    format!(
        "{object} is another one in each of member clusters {}{more}: ask for the one you mean by {}",
        named.join(", "),
        views.join(" or ")
    )
}
