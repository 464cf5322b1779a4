//! Looks for the owners that a body names, before a child is written beside another member's owner (design 4).
//!
//! Only owners without a namespace are looked for, as the same user, in the child's member first. Refused is what is found
//! in another member, or might be there; an owner that is nowhere is the API server's to judge. Caller: `edge`.

use http::StatusCode;

use super::find::Finder;
use crate::decision::plan::choose::{Candidate, Holder};
use crate::decision::plan::owners::Owner;
use crate::decision::plan::{self, Forward, Plan};
use crate::stage::dispatch::gather_answer_body;
use crate::value::classify::{ApiRequest, Query, ResourceRequest, Verb};
use crate::value::fault::Fault;
use crate::value::kinds::{Kinds, Scope};

impl Finder<'_> {
    /// Refuses an object whose owner is in another member than itself: 403, or 503 while that is not known.
    pub(crate) async fn owners(&self, child: &Forward, owners: &[Owner], kinds: &Kinds) -> Result<(), Fault> {
        for owner in owners {
            let Some(resource) = self.clusterwide(child, owner, kinds) else {
                continue;
            };
            self.owner(child, owner, &resource, kinds).await?;
        }
        Ok(())
    }

    /// The plural name of an owner that has no namespace: as the child's member calls it, or any other that serves it.
    fn clusterwide(&self, child: &Forward, owner: &Owner, kinds: &Kinds) -> Option<String> {
        let (group, kind) = (owner.group.as_str(), owner.kind.as_str());
        let table = kinds.load();
        let elsewhere = || {
            let mut members = self.snapshot.targets.keys();
            members.find_map(|cluster| table.member(cluster)?.resource_of(group, kind).map(str::to_owned))
        };
        // Asked first as what is to be known: a miss makes discovery look again.
        let resource = kinds
            .resource_of(&child.target.cluster, group, kind)
            .or_else(elsewhere)?;
        let clusters = self.snapshot.targets.keys().map(|cluster| &**cluster);
        (kinds.scope(clusters, (group, &resource)) == Some(Scope::Cluster)).then_some(resource)
    }

    async fn owner(&self, child: &Forward, owner: &Owner, resource: &str, kinds: &Kinds) -> Result<(), Fault> {
        let holder = Holder {
            path: owner.path(resource),
            object: format!("owner {} {}", owner.kind, owner.name),
            writes: false,
        };
        let here = &child.target.cluster;
        // Of the caller's unary requests: these questions end.
        let asking = self.asking;
        let _place = self.dispatcher.caller_place_by(&asking.caller, asking.deadline).await?;
        let mut candidates = self.holders(owner, resource, &holder.path, kinds);
        // The child's own member first: there it is, as a rule.
        candidates.sort_by_key(|one| one.forward.target.cluster != *here);
        for candidate in &candidates {
            let cluster = &candidate.forward.target.cluster;
            if self.uid(&holder, candidate).await?.as_deref() != Some(&owner.uid) {
                continue;
            }
            if cluster == here {
                return Ok(());
            }
            return Err(Fault::Forbidden(format!(
                "{} is in member cluster {cluster}, and the object would be in {here}, whose garbage collector would delete it as an orphan: leave out this ownerReference",
                holder.object
            )));
        }
        Ok(())
    }

    /// Where the merged view would look for it.
    fn holders(&self, owner: &Owner, resource: &str, path: &str, kinds: &Kinds) -> Vec<Candidate> {
        let asked = ApiRequest {
            path: path.to_owned(),
            query: Query::new(None),
            method: http::Method::GET,
            verb: Verb::Get,
            resource: Some(ResourceRequest {
                group: owner.group.clone(),
                version: owner.version.clone(),
                resource: resource.to_owned(),
                name: Some(owner.name.clone()),
                // Of the object `namespaces/<name>`.
                namespace: (resource == "namespaces" && owner.group.is_empty()).then(|| owner.name.clone()),
                named_by_path: true,
                ..ResourceRequest::default()
            }),
            upgrade: None,
            ..self.asking.asked.clone()
        };
        match plan::plan(&self.asking.caller, &asked, self.snapshot, kinds).plan {
            Plan::Forward(forward) => vec![Candidate {
                forward: *forward,
                held: None,
            }],
            Plan::Choose(choose) => choose.candidates,
            _ => Vec::new(),
        }
    }

    /// The object's uid in this member; `None` if it is not there or may not be looked at.
    async fn uid(&self, holder: &Holder, candidate: &Candidate) -> Result<Option<String>, Fault> {
        let forward = &candidate.forward;
        if let Some(held) = &candidate.held {
            return Err(forward.unavailable(held.clone()));
        }
        let unknown = |why: &str| {
            forward.unavailable(format!(
                "whether {} is in member cluster {} is not known: {why}",
                holder.object, forward.target.cluster
            ))
        };
        match self.access.check(&forward.checks).await {
            Ok(()) => {}
            Err(Fault::Forbidden(_)) => return Ok(None),
            Err(fault) => return Err(fault),
        }
        let (leg, head) = self.question(holder, forward);
        let answer = self.dispatcher.read(leg, head).await;
        let answer = answer.map_err(|fault| unknown(&fault.to_string()))?;
        match answer.status() {
            StatusCode::OK => {
                let body = gather_answer_body(answer.into_body()).await;
                let body = body.map_err(|error| unknown(&error.to_string()))?;
                let object: serde_json::Value =
                    serde_json::from_slice(&body).map_err(|error| unknown(&error.to_string()))?;
                let uid = object.pointer("/metadata/uid").and_then(serde_json::Value::as_str);
                Ok(uid.map(str::to_owned))
            }
            StatusCode::NOT_FOUND | StatusCode::FORBIDDEN => Ok(None),
            other => Err(unknown(&format!("it answered {}", other.as_u16()))),
        }
    }
}
