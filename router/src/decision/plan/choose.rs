//! One request for one member, which the plan alone cannot name: an answer or the body tells which
//! (`docs/semantics.md#planning`).
//!
//! An object without a namespace is where it is: its metadata is looked for, in the primary first. A new Namespace goes
//! where its annotation or the shard says; a new Lease of the leader election to the primary. Pure: `preflight` asks and
//! gathers, here it is decided. Never two members: a
//! write whose place is in doubt is refused.

use std::sync::Arc;

use portolan_crds::labels::system_namespace;

use super::Forward;
use crate::value::fault::Fault;
use crate::value::object::{self, Encoding, protobuf};
use crate::value::snapshot::{Enforcement, GrantState, LeaseName, Shard, Snapshot};

/// Candidates, and how to choose among them.
#[derive(Debug, Clone)]
pub(crate) struct Choose {
    /// At least one, the primary first where it is among them. All of the same class.
    pub(crate) candidates: Vec<Candidate>,
    /// What tells.
    pub(crate) by: By,
}

/// A member that the request could go to.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    /// The whole plan, if it is this one.
    pub(crate) forward: Forward,
    /// Why it must not be asked now.
    pub(crate) held: Option<String>,
}

/// What tells which member it is.
#[derive(Debug, Clone)]
pub(crate) enum By {
    /// Who has the object.
    Holder(Holder),
    /// The body, which makes a Namespace.
    NewNamespace(Arc<Shard>),
    /// The body, which makes a Lease: if it is the one of the leader election the second candidate, else the first.
    Lease(LeaseName),
}

/// An object without a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Its path in any member, without subresource.
    pub(crate) path: String,
    /// For messages.
    pub(crate) object: String,
    /// The request may change something.
    pub(crate) writes: bool,
}

/// What a member says of an object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Finding {
    /// It has it.
    Has,
    /// It has not.
    HasNot,
    /// It does not let the caller look.
    Forbidden,
    /// It cannot be asked.
    Unknown(Fault),
}

/// A candidate by its index, and what to warn of.
pub(crate) type Chosen = Result<(usize, Option<String>), Fault>;

impl From<Forward> for Candidate {
    fn from(forward: Forward) -> Self {
        Self { forward, held: None }
    }
}

impl Holder {
    /// Which candidate has it, from what each of them said, in their order. One that cannot be asked may have it: what
    /// is not found elsewhere is then unknown, never absent; and a write that might be meant for it waits.
    pub(crate) fn choose(&self, findings: &[Finding]) -> Chosen {
        let unknown = |findings: &[Finding]| {
            findings.iter().find_map(|finding| match finding {
                Finding::Unknown(fault) => Some(fault.clone()),
                _ => None,
            })
        };
        if let Some(index) = findings.iter().position(|finding| *finding == Finding::Has) {
            return match unknown(&findings[..index]) {
                Some(fault) if self.writes => Err(fault),
                _ => Ok((index, None)),
            };
        }
        if let Some(fault) = unknown(findings) {
            return Err(fault);
        }
        // It answers the request itself with what it allows. If all say no it is the primary's: to say so, or to create.
        let hidden = findings.iter().position(|finding| *finding == Finding::Forbidden);
        Ok((hidden.unwrap_or(0), None))
    }
}

impl Choose {
    /// The members, for messages.
    pub(crate) fn clusters(&self) -> String {
        let clusters = self.candidates.iter().map(|one| &*one.forward.target.cluster);
        clusters.collect::<Vec<_>>().join(", ")
    }

    /// Whether the router must have all of the request's body before it sends any of it.
    pub(crate) fn gathers(&self) -> bool {
        let told = matches!(self.by, By::NewNamespace(_) | By::Lease(_));
        told || self.candidates.iter().any(|one| one.forward.gathers())
    }

    /// Which candidate a new Namespace goes to, from its body.
    pub(crate) fn place(&self, shard: &Shard, snapshot: &Snapshot, body: &[u8], content_type: Option<&str>) -> Chosen {
        let wanted = Wanted::read(shard.label_keys.cluster(), content_type, body)?;
        let owner = shard.owner(&wanted.name).filter(|_| !wanted.name.is_empty());
        let index = match (&wanted.cluster, owner) {
            (Some(cluster), _) => self.named(cluster, shard)?,
            (None, Some((member, grant))) if grant.exact => self.named(&member.cluster, shard)?,
            (None, _) if self.candidates.len() == 1 => 0,
            (None, _) => {
                return Err(Fault::BadRequest(format!(
                    "a Namespace could go to several member clusters of shard {} ({}): say which by the annotation {}",
                    shard.config,
                    self.clusters(),
                    shard.label_keys.cluster()
                )));
            }
        };
        let cluster = &self.candidates[index].forward.target.cluster;
        match doubt(shard, snapshot, cluster, &wanted.name) {
            None => Ok((index, None)),
            Some((true, why)) if shard.enforcement == Enforcement::Enforce => Err(Fault::Forbidden(format!(
                "Namespace {} in member cluster {cluster} would be outside shard {}: {why}",
                wanted.name, shard.config
            ))),
            Some((_, why)) => Ok((
                index,
                Some(format!("Namespace {} in member cluster {cluster}: {why}", wanted.name)),
            )),
        }
    }

    fn named(&self, cluster: &str, shard: &Shard) -> Result<usize, Fault> {
        let mut candidates = self.candidates.iter();
        let index = candidates.position(|one| *one.forward.target.cluster == *cluster);
        index.ok_or_else(|| {
            Fault::BadRequest(format!(
                "member cluster {cluster:?} is not among those of shard {} ({})",
                shard.config,
                self.clusters()
            ))
        })
    }
}

/// Whether the shard would not own the Namespace there, and why; or that it is not known yet.
fn doubt(shard: &Shard, snapshot: &Snapshot, cluster: &str, name: &str) -> Option<(bool, String)> {
    let owner = shard.owner(name);
    let elsewhere = owner.filter(|(member, grant)| grant.exact && *member.cluster != *cluster);
    if let Some((member, _)) = elsewhere {
        let other = &member.cluster;
        return Some((
            true,
            format!("the shard owns the one of member cluster {other}, which would shadow it"),
        ));
    }
    if let Some(other) = snapshot.owner(cluster, name)
        && *other != shard.config
    {
        return Some((true, format!("it belongs to shard {other} there")));
    }
    match owner {
        Some((_, grant)) if grant.pair.state == GrantState::Releasing => {
            Some((true, "it is on its way to another shard".to_owned()))
        }
        Some((member, _)) if *member.cluster == *cluster => None,
        _ if system_namespace(name) => Some((true, "a system namespace is owned by exact name only".to_owned())),
        _ => Some((
            false,
            format!(
                "shard {} owns it once the hub has seen it, and only if spec.clusters selects it there",
                shard.config
            ),
        )),
    }
}

/// What the body of a new Namespace says.
struct Wanted {
    /// Empty: the API server shall make one.
    name: String,
    cluster: Option<String>,
}

impl Wanted {
    fn read(annotation: &str, content_type: Option<&str>, body: &[u8]) -> Result<Self, Fault> {
        let encoding = Encoding::required(content_type)?;
        let unreadable = || Fault::BadRequest("the metadata in the body cannot be read".to_owned());
        if encoding == Encoding::Protobuf {
            let (_, object) = protobuf::open(body).ok_or_else(unreadable)?;
            return Ok(Self {
                name: protobuf::name(object).ok_or_else(unreadable)?,
                cluster: protobuf::annotations(object).ok_or_else(unreadable)?.remove(annotation),
            });
        }
        let object = object::parse(encoding, body)?;
        let metadata = object.get("metadata");
        let text = |value: Option<&serde_json::Value>| match value {
            None | Some(serde_json::Value::Null) => Ok(None),
            Some(value) => value.as_str().map(|text| Some(text.to_owned())).ok_or_else(unreadable),
        };
        let field = |name: &str| metadata.and_then(|metadata| metadata.get(name));
        Ok(Self {
            name: text(field("name"))?.unwrap_or_default(),
            cluster: text(field("annotations").and_then(|all| all.get(annotation)))?,
        })
    }
}
