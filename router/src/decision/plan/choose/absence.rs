//! A namespace in the path that no shard is known to own: what must be known of it, and what is said then. How it is planned
//! [`unowned`](super::super::unowned) says.

use std::sync::Arc;

use portolan_crds::names::ShardName;

use super::super::Candidate;
use super::{Finding, Holder};
use crate::value::check::Check;
use crate::value::fault::Fault;
use crate::value::snapshot::{Shard, Snapshot};

/// A namespace of which it is not known whether any member of the shard has it.
#[derive(Debug, Clone)]
pub(crate) struct Unowned {
    /// Its name.
    pub(crate) namespace: String,
    /// The caller's.
    pub(in crate::decision::plan) shard: ShardName,
    /// With whose shards that contends for namespaces.
    pub(in crate::decision::plan) operator: Arc<str>,
    /// Rights that the primary must confirm first.
    pub(crate) rights: Vec<Check>,
    /// Members of the shard: it is somewhere if one of them has it.
    pub(crate) clusters: Vec<Arc<str>>,
    /// Whether the shard's rules may take it in one of them.
    pub(crate) may_be_taken: bool,
    /// How members are asked for the Namespace where the hub cannot tell.
    pub(crate) holder: Holder,
    /// The members that can be asked so. Empty once that is over.
    pub(crate) lookable: Vec<Candidate>,
    /// The others, and why they cannot be asked.
    pub(in crate::decision::plan) blocked: Vec<(Arc<str>, Fault)>,
    /// What is said where the namespace is there.
    pub(in crate::decision::plan) refusal: String,
    /// What is said where it is nowhere.
    pub(crate) absent: Absent,
}

/// How a request is answered in a namespace that is nowhere.
#[derive(Debug, Clone)]
pub(crate) enum Absent {
    /// By the member, of what it has by this selector: nothing.
    Nothing,
    /// There is no such object: its kind and its name.
    Object(String, String),
    /// There is no such Namespace to make anything in.
    Namespace,
    /// There is no such Namespace; a server-side apply makes it, as this shard says.
    Made(Arc<Shard>),
}

/// What the hub knows of a namespace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Presence<'a> {
    /// Members that have it.
    pub(crate) there: &'a [String],
    /// Members that had none, and cannot be heard now.
    pub(crate) away: &'a [String],
}

impl Unowned {
    /// Whether others have the namespace by now in any member of this shard, and it has not. Where it may have it beside other operators',
    /// their grants say nothing of its own.
    pub(crate) fn is_taken(&self, snapshot: &Snapshot) -> bool {
        let mut clusters = self.clusters.iter();
        clusters.any(|cluster| {
            let mut owners = snapshot.owners(cluster, &self.namespace).peekable();
            let is_there = owners.peek().is_some() && owners.all(|owner| *owner != self.shard);
            let contender = || snapshot.contender(&self.operator, cluster, &self.namespace);
            is_there && (!self.may_be_taken || contender().is_some())
        })
    }

    /// Whether the caller's own shard gets the namespace, as the snapshot says: its grant may take its time.
    pub(crate) fn is_coming(&self, snapshot: &Snapshot) -> bool {
        let mut clusters = self.clusters.iter();
        clusters.any(|cluster| {
            let mut owners = snapshot.owners(cluster, &self.namespace);
            owners.any(|owner| *owner == self.shard)
        })
    }

    /// What is said where the namespace is there.
    pub(crate) fn refused(&self) -> Fault {
        Fault::Forbidden(self.refusal.clone())
    }

    /// Ok: it is nowhere, as far as members can be heard. One that cannot had none, and may have made one since: nothing is `made`
    /// there then.
    pub(crate) fn judge(&self, presence: Presence<'_>, makes: bool) -> Result<(), Fault> {
        if !presence.there.is_empty() {
            return Err(self.refused());
        }
        match presence.away.first() {
            Some(cluster) if makes => Err(Fault::Unavailable {
                message: format!(
                    "whether Namespace {} is in member cluster {cluster} is not known: it had none, and cannot be heard now",
                    self.namespace
                ),
                cluster: Some(cluster.clone()),
                sent: false,
            }),
            _ => Ok(()),
        }
    }

    /// Ok: none of the members `asked` has it. One that cannot be asked may have it,
    /// and one that does not let the caller look, too.
    pub(crate) fn is_absent(&self, asked: &[String], findings: Vec<Finding>) -> Result<(), Fault> {
        let blocked = self.blocked.iter();
        let mut blocked = blocked.filter(|(cluster, _)| asked.iter().any(|asked| **asked == **cluster));
        let mut unknown = blocked.next().map(|(_, fault)| fault.clone());
        for finding in findings {
            match finding {
                Finding::Has | Finding::Forbidden => return Err(self.refused()),
                Finding::Unknown(fault) => unknown = unknown.or(Some(fault)),
                Finding::HasNot => {}
            }
        }
        unknown.map_or(Ok(()), Err)
    }

    /// Whether the request would make something. `applies`: it is a server-side apply.
    pub(crate) fn makes(&self, applies: bool) -> bool {
        matches!(self.absent, Absent::Namespace) || applies && self.holder.writes
    }

    /// In the words of an API server. `applies`: what it would make is in no Namespace.
    pub(crate) fn not_found(&self, applies: bool) -> Fault {
        Fault::NotFound(match &self.absent {
            Absent::Object(kind, name) if !applies => format!("{kind} {name:?} not found"),
            _ => format!("namespaces {:?} not found", self.namespace),
        })
    }
}
