//! Which owners a body names that could be in another member than the object itself.
//!
//! A member's garbage collector deletes an object whose owner it cannot find. Owners without a namespace may be in any member;
//! those with one are in the object's member, unless the object's own place is another than its namespace's (a leader lock,
//! which is the primary's). They are looked for before a child of theirs is written. Pure: read and judged here, looked for
//! by `preflight::owners`. What cannot be read surely is refused: the API server might read it.

pub(crate) mod patch;
mod spelled;
#[cfg(test)]
mod tests;

use serde_json::Value;

use self::patch::JsonPatch;
use crate::value::classify::{ApiRequest, ResourceRequest, Verb, View};
use crate::value::fault::Fault;
use crate::value::media;
use crate::value::object::{self, Encoding, protobuf};
use crate::value::snapshot::{Binding, Caller};

/// What every reference to an owner contains, in JSON and YAML.
const FIELD: &str = "ownerReferences";
/// Where they are.
pub(super) const PATH: &str = "metadata.ownerReferences";
/// Subresources of Kubernetes' own kinds by which an object's owners change [read in 1.36: their strategies keep what is not
/// theirs of the spec, not of the metadata].
const OWNED_SUBRESOURCES: [&str; 3] = ["status", "approval", "finalize"];
/// Owners that an object may have here. Each may be asked for in each member, and nobody has as many.
const MAX_OWNERS: usize = 64;

/// One entry of `metadata.ownerReferences`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    /// API group; empty is the core group.
    pub(crate) group: String,
    /// API version, without the group.
    pub(crate) version: String,
    /// As in objects: `ConfigMap`.
    pub(crate) kind: String,
    /// Its name.
    pub(crate) name: String,
    /// Its uid.
    pub(crate) uid: String,
}

/// What a body says of owners.
#[derive(Debug, PartialEq)]
pub(crate) enum Named {
    /// It names these.
    Owners(Vec<Owner>),
    /// Only the object as it is tells.
    ByResult(JsonPatch),
}

/// What a member has by an owner's name, as far as the caller may know.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Sight {
    /// The owner.
    Owner,
    /// An object of that name with another uid.
    Other,
    /// An object of that name that is not the shard's: nothing more is told of it.
    Outside,
    /// Nothing.
    Nothing,
    /// It does not let the caller look.
    Forbidden,
    /// It cannot be asked.
    Unknown(Fault),
}

/// Whether the body of this request may make an object the child of another member's: a write of an object by the merged
/// view of a shard that has more than one place.
pub(crate) fn may_cross(asked: &ApiRequest, caller: &Caller) -> bool {
    let changes = |resource: &ResourceRequest| match (asked.verb, &resource.subresource) {
        (Verb::Create | Verb::Update | Verb::Patch, None) => true,
        (Verb::Update | Verb::Patch, Some(subresource)) => {
            resource.is_built_in() && OWNED_SUBRESOURCES.contains(&subresource.as_str())
        }
        _ => false,
    };
    let Caller::Pod(view) = caller else { return false };
    let Binding::One(shard) = &view.binding else {
        return false;
    };
    let home = &view.key.home_cluster;
    let mut places = shard.members.iter().map(|member| &member.cluster).chain([home]);
    asked.view == View::Merged
        && asked.resource.as_ref().is_some_and(changes)
        && places.any(|place| *place != shard.primary_cluster)
}

/// The owners that a body names; of a patch, those that it sets. Costs a search for some words where there is none.
pub(crate) fn read(verb: Verb, content_type: Option<&str>, body: &[u8]) -> Result<Named, Fault> {
    let kind = media::essence(content_type.unwrap_or_default()).to_ascii_lowercase();
    if verb == Verb::Patch && kind == "application/json-patch+json" {
        return Ok(JsonPatch::read(body)?.map_or(Named::Owners(Vec::new()), Named::ByResult));
    }
    let encoding = Encoding::required(content_type)?;
    let owners = match encoding {
        Encoding::Protobuf => of_protobuf(body)?,
        _ if !spelled::may_be(encoding, body) => Vec::new(),
        // Both lay an entry over the one of its uid.
        _ if matches!(
            kind.as_str(),
            "application/strategic-merge-patch+json" | "application/apply-patch+yaml"
        ) =>
        {
            laid_over(&object::parse(encoding, body)?)?
        }
        _ => of_object(&object::parse(encoding, body)?)?,
    };
    bounded(owners).map(Named::Owners)
}

fn bounded(owners: Vec<Owner>) -> Result<Vec<Owner>, Fault> {
    if owners.len() > MAX_OWNERS {
        let message = format!(
            "{} entries are too many: an object of several member clusters may have {MAX_OWNERS}",
            owners.len()
        );
        return Err(Fault::invalid(PATH, message));
    }
    Ok(owners)
}

fn of_protobuf(body: &[u8]) -> Result<Vec<Owner>, Fault> {
    let owner = |[kind, name, uid, api_version]: [String; 4]| Owner::new(&api_version, kind, name, uid);
    let read = protobuf::open(body).and_then(|(_, object)| protobuf::owners(object));
    let read = read.ok_or_else(|| Fault::BadRequest("the ownerReferences in the body cannot be read".to_owned()))?;
    Ok(read.into_iter().map(owner).collect())
}

/// Entries of `metadata.ownerReferences`, in their order.
fn entries(object: &Value) -> Result<&[Value], Fault> {
    match object.pointer("/metadata/ownerReferences") {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(entries)) => Ok(entries),
        Some(_) => Err(Fault::BadRequest("metadata.ownerReferences must be a list".to_owned())),
    }
}

/// Of an object, or of a patch that replaces the list. An entry that lacks a part is the API server's to refuse.
fn of_object(object: &Value) -> Result<Vec<Owner>, Fault> {
    bounded(entries(object)?.iter().filter_map(whole).collect())
}

/// Of a patch whose entries are laid over those of the object, by uid. One that deletes names no owner; nor does one that says
/// nothing but a uid and flags; of one that changes a part of another what comes out is not known.
fn laid_over(patch: &Value) -> Result<Vec<Owner>, Fault> {
    let named = entries(patch)?.iter().enumerate().filter(|(_, entry)| {
        let deletes = entry.get("$patch").and_then(Value::as_str) == Some("delete");
        let says = |field: &str| entry.get(field).is_some_and(|value| !value.is_null());
        !deletes && ["apiVersion", "kind", "name"].iter().any(|field| says(field))
    });
    named
        .map(|(index, entry)| {
            whole(entry).ok_or_else(|| {
                let message = "say apiVersion, kind, name and uid together: an owner must be known to be in the object's member \
                               cluster";
                Fault::invalid(&format!("{PATH}[{index}]"), message.to_owned())
            })
        })
        .collect()
}

fn whole(entry: &Value) -> Option<Owner> {
    let text = |field: &str| entry.get(field)?.as_str().map(str::to_owned);
    let api_version = text("apiVersion")?;
    Some(Owner::new(&api_version, text("kind")?, text("name")?, text("uid")?))
}

impl Owner {
    fn new(api_version: &str, kind: String, name: String, uid: String) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            kind,
            name,
            uid,
        }
    }

    /// For messages.
    pub(crate) fn describe(&self) -> String {
        format!("owner {} {}", self.kind, self.name)
    }

    /// Whether an API server may have it, whatever its kind is called there.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        self.request("objects", None).map(drop)
    }

    /// How it is asked for under this plural name, in the child's namespace if it has one; or why no API server has it.
    pub(crate) fn request(&self, resource: &str, namespace: Option<&str>) -> Result<ResourceRequest, Fault> {
        let is_namespace = resource == "namespaces" && self.group.is_empty();
        let request = ResourceRequest {
            group: self.group.clone(),
            version: self.version.clone(),
            resource: resource.to_owned(),
            name: Some(self.name.clone()),
            // Of the object `namespaces/<name>`: its own name.
            namespace: if is_namespace {
                Some(self.name.clone())
            } else {
                namespace.map(str::to_owned)
            },
            named_by_path: true,
            ..ResourceRequest::default()
        };
        match request.unfit_part() {
            None => Ok(request),
            Some(part) => {
                let message = format!(
                    "{}: no API server has an object of this {part}: leave out this ownerReference",
                    self.describe()
                );
                Err(Fault::invalid(PATH, message))
            }
        }
    }

    /// Whether it may be beside the child, from what the child's member has and what the others have that might have it; these
    /// are asked only where the first does not settle it. One that is nowhere is the API server's to judge.
    ///
    /// A right uid and a wrong one get one answer, but where the caller may read the object by this name.
    pub(crate) fn judge(&self, here: &str, own: &Sight, others: &[(String, Sight)]) -> Result<(), Fault> {
        match own {
            Sight::Owner => return Ok(()),
            Sight::Outside => return Err(self.outside()),
            Sight::Unknown(fault) => return Err(fault.clone()),
            Sight::Other | Sight::Nothing | Sight::Forbidden => {}
        }
        let hidden_here = *own == Sight::Forbidden;
        let elsewhere = others.iter().find(|(_, sight)| match sight {
            Sight::Owner => true,
            // What is not in its own member is not kept there, whatever its uid.
            Sight::Other | Sight::Outside => !hidden_here,
            Sight::Nothing | Sight::Forbidden | Sight::Unknown(_) => false,
        });
        if let Some((cluster, _)) = elsewhere {
            return Err(self.crosses(here, cluster));
        }
        let unknown = others.iter().find_map(|(_, sight)| match sight {
            Sight::Unknown(fault) => Some(fault.clone()),
            _ => None,
        });
        if let Some(fault) = unknown {
            return Err(fault);
        }
        match others.iter().find(|(_, sight)| *sight == Sight::Forbidden) {
            Some((cluster, _)) if !hidden_here => Err(Fault::Forbidden(format!(
                "{} is not in member cluster {here}, where the object would be and be deleted as an orphan, and {cluster} does \
                 not let this caller look for it: leave out this ownerReference",
                self.describe()
            ))),
            _ => Ok(()),
        }
    }

    /// It is in another member than the child.
    pub(crate) fn crosses(&self, here: &str, there: &str) -> Fault {
        Fault::Forbidden(format!(
            "{} is in member cluster {there}, and the object would be in {here}, whose garbage collector would delete it as an orphan: leave out this ownerReference",
            self.describe()
        ))
    }

    /// It is not the shard's: nobody is asked for it.
    pub(crate) fn outside(&self) -> Fault {
        Fault::Forbidden(format!(
            "{} is outside the caller's shard, so it is not known to be in the object's member cluster: leave out this \
             ownerReference",
            self.describe()
        ))
    }

    /// Whether the object as it was read has this owner: who writes it again makes it nobody's child.
    pub(crate) fn is_of(&self, object: &Value) -> bool {
        let mut entries = entries(object).into_iter().flatten().filter_map(whole);
        entries.any(|owner| owner == *self)
    }
}
