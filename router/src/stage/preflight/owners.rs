//! Looks for the owners that a body names, before a child is written beside another member's owner.
//!
//! Looked for as the same user, in the child's member first, are owners without a namespace, and those with one where the
//! child's member is not its namespace's. Refused is what is found in another member, or might be there; an owner that is
//! nowhere is the API server's to refuse. What is not the shard's is never asked for. An owner that the object has already
//! is nobody's new one: whoever writes such an object again goes on. The rules are `plan::owners`'.

use futures::future::join_all;
use http::StatusCode;
use serde_json::Value;

use super::{JSON, MAX_METADATA_BYTES, Pending, Preflight};
use crate::decision::plan::Candidate;
use crate::decision::plan::choose::{Decides, Finding, Holder};
use crate::decision::plan::owners::{self, Named, Owner, Sight};
use crate::decision::plan::{self, Forward, LabelCheck, Need, Plan, Rewrite};
use crate::resource::upstream::{Body, gather};
use crate::value::classify::ResourceRequest;
use crate::value::fault::Fault;
use crate::value::kinds::Scope;
use crate::value::object;
use crate::value::traffic::Traffic;

/// The child as its member has it.
enum Stored {
    NotAsked,
    /// `None`: there is none, or the caller may not read it.
    Asked(Option<Value>),
}

/// Where an owner may be, beside the child's member.
enum Places {
    /// Nowhere else: it is the child's namespace's, which is that member's.
    Beside,
    /// It is not the shard's.
    Outside,
    /// In another member for certain: a Namespace that the shard has there.
    In(String),
    /// In these, how it is asked for, the child's own member first.
    Any(Holder, Vec<Candidate>),
}

impl Preflight {
    /// Refuses an object whose owner is in another member than itself: 403, or 503 while that is not known. A JSON patch that
    /// depends on the object as it is leaves bound to that.
    pub(super) async fn owners(&self, child: &Forward, pending: Pending<'_>, body: &mut Body) -> Result<(), Fault> {
        let bytes = pending.gather(body).await?;
        let mut stored = Stored::NotAsked;
        let named = match owners::read(pending.asked.verb, pending.content_type(), &bytes)? {
            Named::Owners(named) => named,
            Named::ByResult(patch) => {
                // There is none: the member says so.
                let Some(object) = self.stored(child, pending).await? else {
                    return Ok(());
                };
                let judged = patch.judge(&object, &bytes)?;
                *body = Body::from(judged.body);
                stored = Stored::Asked(Some(object));
                judged.owners
            }
        };
        for (index, owner) in named.iter().enumerate() {
            if named[..index].contains(owner) {
                continue;
            }
            if let Err(refusal) = self.owner(child, owner, pending).await {
                self.unless_it_has(owner, refusal, &mut stored, (child, pending))
                    .await?;
            }
        }
        Ok(())
    }

    /// The refusal, unless the object has the owner already.
    async fn unless_it_has(
        &self,
        owner: &Owner,
        refusal: Fault,
        stored: &mut Stored,
        (child, pending): (&Forward, Pending<'_>),
    ) -> Result<(), Fault> {
        if let Stored::NotAsked = stored {
            let named = pending
                .asked
                .resource
                .as_ref()
                .is_some_and(|resource| resource.named_by_path);
            let object = if named {
                self.stored(child, pending).await.unwrap_or_default()
            } else {
                None
            };
            *stored = Stored::Asked(object);
        }
        match stored {
            Stored::Asked(Some(object)) if owner.is_of(object) => Ok(()),
            _ => Err(refusal),
        }
    }

    /// The object that is written, as its member has it; `None` if it has none.
    async fn stored(&self, child: &Forward, pending: Pending<'_>) -> Result<Option<Value>, Fault> {
        let Some(resource) = &pending.asked.resource else {
            return Ok(None);
        };
        let resource = ResourceRequest {
            subresource: None,
            ..resource.clone()
        };
        let asked = pending.question(&resource.object_path(), Some(resource));
        // Under the name that it has in the member.
        let rewrite = Rewrite {
            lease: child.rewrite.lease.clone(),
            ..Rewrite::default()
        };
        let forward = Forward {
            rewrite,
            ..question(child, Vec::new())
        };
        let cluster = &child.target.cluster;
        let unknown = |why: String| {
            child.unavailable(format!(
                "the owners of the object in member cluster {cluster} are not known: {why}"
            ))
        };
        let answer = self.read_as(forward, asked, JSON, pending).await;
        let answer = answer.map_err(|fault| unknown(fault.to_string()))?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Ok(None),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(Fault::Forbidden(format!(
                    "whose child this patch makes the object depends on the object, and member cluster {cluster} does not let \
                     this caller get it: patch without metadata.ownerReferences, or by a merge patch"
                )));
            }
            other => return Err(unknown(format!("it answered {}", other.as_u16()))),
        }
        let bytes = gather(answer.into_body(), MAX_METADATA_BYTES).await;
        let bytes = bytes.map_err(|error| unknown(error.to_string()))?;
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| unknown(error.to_string()))
    }

    /// Whether one owner may be named.
    async fn owner(&self, child: &Forward, owner: &Owner, pending: Pending<'_>) -> Result<(), Fault> {
        owner.check()?;
        let Some((resource, scope)) = self.served(child, owner, pending) else {
            return Ok(());
        };
        let namespace = pending
            .asked
            .resource
            .as_ref()
            .and_then(|child| child.namespace.as_deref());
        // Of an object without a namespace no owner has one: the garbage collector leaves it alone.
        if scope == Scope::Namespaced && namespace.is_none() {
            return Ok(());
        }
        let asked = owner.request(resource, namespace.filter(|_| scope == Scope::Namespaced))?;
        let here = &*child.target.cluster;
        let (holder, candidates) = match places(child, owner, (asked, scope), pending) {
            Places::Beside => return Ok(()),
            Places::Outside => return Err(owner.outside()),
            Places::In(there) => return Err(owner.crosses(here, &there)),
            Places::Any(holder, candidates) => (holder, candidates),
        };
        let sight = async |candidate: &Candidate| {
            let cluster = candidate.forward.target.cluster.to_string();
            (cluster, self.sight(&holder, candidate, owner, pending).await)
        };
        let Some((first, others)) = candidates.split_first() else {
            return Err(Fault::Internal("no member to look for an owner in".to_owned()));
        };
        let (_, own) = sight(first).await;
        let settled = matches!(own, Sight::Owner | Sight::Outside | Sight::Unknown(_));
        let elsewhere = if settled {
            Vec::new()
        } else {
            join_all(others.iter().map(sight)).await
        };
        owner.judge(here, &own, &elsewhere)
    }

    /// The plural name of an owner's kind and its scope: as the child's member has them, or any other that serves it.
    fn served<'a>(&self, child: &Forward, owner: &Owner, pending: Pending<'a>) -> Option<(&'a str, Scope)> {
        let (group, kind) = (owner.group.as_str(), owner.kind.as_str());
        let (kinds, members) = (&pending.routing.kinds, pending.routing.snapshot.targets.keys());
        let of = |cluster: &str| {
            let served = kinds.member(cluster)?;
            let resource = served.resource_of(group, kind)?;
            Some((resource, served.get(group, resource)?.scope))
        };
        let here = of(&child.target.cluster);
        if here.is_none() && kinds.member(&child.target.cluster).is_some() {
            self.routing.miss();
        }
        here.or_else(|| members.into_iter().find_map(|cluster| of(cluster)))
    }

    /// What a member has by the owner's name.
    pub(super) async fn sight(
        &self,
        holder: &Holder,
        candidate: &Candidate,
        owner: &Owner,
        pending: Pending<'_>,
    ) -> Sight {
        let body = match self.look(holder, candidate, pending).await {
            (Finding::Has, body) => body,
            (Finding::HasNot, _) => return Sight::Nothing,
            (Finding::Forbidden, _) => return Sight::Forbidden,
            (Finding::Unknown(fault), _) => return Sight::Unknown(fault),
        };
        let unknown = |why: String| Sight::Unknown(holder.unknown(&candidate.forward, &why));
        let body = match gather(body, MAX_METADATA_BYTES).await {
            Ok(body) => body,
            Err(error) => return unknown(error.to_string()),
        };
        let metadata = match object::metadata(&body) {
            Ok(metadata) => metadata,
            Err(error) => return unknown(error.to_string()),
        };
        let labels = metadata.labels.unwrap_or_default();
        let is_its = |check: &LabelCheck| check.selector.matches(&labels);
        let mut checks = candidate.forward.needs.iter().filter_map(|need| match need {
            Need::Labels(check) => Some(check),
            _ => None,
        });
        if !checks.all(is_its) {
            return Sight::Outside;
        }
        if metadata.uid.as_deref() == Some(&owner.uid) {
            Sight::Owner
        } else {
            Sight::Other
        }
    }
}

/// How an owner is looked for.
pub(super) fn looks(owner: &Owner, asked: &ResourceRequest) -> Holder {
    Holder {
        path: asked.object_path(),
        object: owner.describe(),
        writes: false,
        one_of: false,
        replicated: false,
        decides: Decides::Place,
        unasked: None,
        placing: None,
    }
}

/// Where the merged view would look for it, and the child's own member.
fn places(child: &Forward, owner: &Owner, (resource, scope): (ResourceRequest, Scope), pending: Pending<'_>) -> Places {
    let is_namespace = resource.is("", "namespaces");
    let holder = looks(owner, &resource);
    let asked = pending.question(&holder.path, Some(resource));
    let routing = pending.routing;
    let plan = plan::plan(pending.caller, &asked, &routing.snapshot, &routing.kinds).plan;
    let here = &child.target.cluster;
    let is_here = |candidate: &Candidate| candidate.forward.target.cluster == *here;
    let mut candidates = match plan {
        Plan::Forward(forward) if forward.target.cluster == *here && scope == Scope::Namespaced => {
            return Places::Beside;
        }
        Plan::Forward(forward) if is_namespace && forward.target.cluster != *here => {
            return Places::In(forward.target.cluster.to_string());
        }
        Plan::Forward(forward) => vec![Candidate::from(*forward)],
        _ if is_namespace => return Places::Outside,
        Plan::Choose(choose) => choose.candidates,
        // Whoever may not look there is told by the child's own member.
        _ => Vec::new(),
    };
    let at = candidates.iter().position(is_here);
    let own = at.map_or_else(|| Candidate::from(own(child)), |at| candidates.remove(at));
    candidates.insert(0, own);
    Places::Any(holder, candidates)
}

/// The child's own member, asked as the child is written.
fn own(child: &Forward) -> Forward {
    let access = |need: &&Need| matches!(need, Need::Access(_));
    question(child, child.needs.iter().filter(access).cloned().collect())
}

/// A question to the child's member, as the same user.
fn question(child: &Forward, needs: Vec<Need>) -> Forward {
    Forward {
        target: child.target.clone(),
        traffic: Traffic::QUESTION,
        rewrite: Rewrite::default(),
        act_as: child.act_as.clone(),
        needs,
        warning: None,
        grant: None,
        replicas: None,
    }
}
