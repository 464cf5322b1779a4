//! What must be known before a request may leave. Said by the plan, asked by `preflight`.

use std::sync::Arc;

use portolan_crds::selector::Selector;

use super::Candidate;
use crate::value::check::Check;
use crate::value::classify::ResourceRequest;
use crate::value::snapshot::LeaseName;

/// One thing that must be known, or be so, before a request may leave.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Need {
    /// A yes of the hub, or of the member.
    Access(Check),
    /// The owners that the body names are in the member that the object will be in; see
    /// [`owners`](super::owners).
    Owners,
    /// What the other members have by the name that the body gives may be beside what is made; see [`twins`](super::twins).
    Copies(Box<OtherCopies>),
    /// The object is the shard's as it is.
    Labels(LabelCheck),
    /// The object is the shard's as it becomes.
    Body(BodyRule),
    /// What is recorded of the leader lock is where it is now.
    Lock(Box<LockMove>),
}

/// No copy of what is to be made in one member may be on its way out in another, nor say that yet another decides about it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OtherCopies {
    /// What is created, without its name.
    pub(crate) resource: ResourceRequest,
    /// The other members that may have one.
    pub(crate) others: Vec<Candidate>,
    /// The member in which it is to be made.
    pub(crate) makes: Arc<str>,
}

/// What is recorded of a leader lock must have been brought from where that was before
/// (`docs/semantics.md#leader-election`).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LockMove {
    /// `namespace/name` of the ShardingConfig.
    pub(crate) shard: String,
    /// What marks the lock where it was, once it was brought.
    pub(crate) mark: String,
    /// The member where it was, and its names there.
    pub(crate) from: (Arc<str>, LeaseName),
    /// Paths of the collections of its kinds in any member: first that of the request.
    pub(crate) collections: Vec<String>,
}

/// The labels of an object, by a GET of its metadata as the same user, must match; see
/// [`labels::check_labels`](super::labels::check_labels).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LabelCheck {
    /// Path of the object in the member, without subresource.
    pub(crate) path: String,
    /// What its labels must match.
    pub(crate) selector: Selector,
    /// Whether the request connects to what runs behind the object. Without the object it goes nowhere: nobody may read its
    /// name otherwise than this check does.
    pub(crate) connects: bool,
    /// For the refusal: what, where, whose.
    pub(crate) object: String,
    /// The shard's ShardingConfig.
    pub(crate) shard: String,
}

/// What the body makes of an object must be the shard's; see [`labels::check_body`](super::labels::check_body).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BodyRule {
    /// What the labels of the result must match.
    pub(crate) selector: Selector,
    /// How the body becomes the result.
    pub(crate) change: Change,
    /// For the refusal: what, where.
    pub(crate) object: String,
    /// The shard's ShardingConfig.
    pub(crate) shard: String,
}

/// How a body relates to the object that results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The body is the object.
    Whole,
    /// The body is the object, but absent labels stay as they are: custom resources' `/status`.
    Status,
    /// The body's labels are laid over the object's: a Pod's `/binding`.
    Over,
    /// The body is a patch.
    Patch,
}
