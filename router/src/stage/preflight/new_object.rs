//! Finds out in which member an object without a namespace is made: the one of its owners, else the one that its annotation names,
//! else the primary.
//!
//! Owners are looked for as the caller, in all members at once; once one is found, the next one is asked for there first. The rules
//! are `plan::placing`'s.

use futures::future::join_all;

use super::owners::looks;
use super::{Pending, Preflight};
use crate::decision::plan::new_object::{Looker, lookers};
use crate::decision::plan::owners::{self, Named, Owner, Sight};
use crate::decision::plan::placing::{NewObject, Placing, Seen, kind_of};
use crate::decision::plan::wanted::Wanted;
use crate::decision::plan::{self, Candidate, Plan};
use crate::resource::upstream::Body;
use crate::value::classify::{ResourceRequest, Verb};
use crate::value::fault::Fault;
use crate::value::kinds::Scope;

impl Preflight {
    /// Which candidate a create goes to; with a text to warn of. 409 if another member has one of the name.
    pub(super) async fn new_object(
        &self,
        new: &NewObject,
        candidates: &[Candidate],
        pending: Pending<'_>,
        body: &mut Body,
    ) -> Result<(usize, Option<String>), Fault> {
        // Nobody may make us read the body before they may do all.
        for (index, candidate) in candidates.iter().enumerate() {
            match self.access(pending.caller, &candidate.forward).await {
                Err(Fault::Forbidden(_)) if index > 0 => {}
                allowed => allowed?,
            }
        }
        let bytes = pending.gather(body).await?;
        let wanted = Wanted::read(&new.placing.annotation, pending.content_type(), &bytes)?;
        let (index, doubt) = self
            .place(&new.placing, candidates, (&wanted.cluster, &bytes), pending)
            .await?;
        let warning = self.no_twin(new, &wanted.name, (candidates, index), pending).await?;
        Ok((index, doubt.or(warning)))
    }

    /// Which candidate it is for what an apply or a PUT makes that no member has; with a text to warn of. A PUT of most kinds makes
    /// nothing: an annotation that names no candidate is left for a member to answer that.
    pub(super) async fn applied(
        &self,
        placing: &Placing,
        candidates: &[Candidate],
        pending: Pending<'_>,
        body: &mut Body,
    ) -> Result<(usize, Option<String>), Fault> {
        let bytes = pending.gather(body).await?;
        let wanted = Wanted::read(&placing.annotation, pending.content_type(), &bytes)?;
        let is_candidate = |named: &String| candidates.iter().any(|one| *one.forward.target.cluster == **named);
        let is_put = pending.asked.verb == Verb::Update;
        let named = wanted.cluster.filter(|named| !is_put || is_candidate(named));
        self.place(placing, candidates, (&named, &bytes), pending).await
    }

    async fn place(
        &self,
        placing: &Placing,
        candidates: &[Candidate],
        (named_member, bytes): (&Option<String>, &[u8]),
        pending: Pending<'_>,
    ) -> Result<(usize, Option<String>), Fault> {
        // What depends on the object as it is makes none.
        let named = match owners::read(pending.asked.verb, pending.content_type(), bytes)? {
            Named::Owners(named) => named,
            Named::ByResult(_) => Vec::new(),
        };
        let mut seen: Vec<Seen<'_>> = Vec::new();
        for (index, owner) in named.iter().enumerate() {
            if named[..index].contains(owner) {
                continue;
            }
            let likely = seen.iter().find_map(Seen::cluster);
            let sights = self.seek(owner, likely, &placing.holders, pending).await?;
            seen.push(Seen { owner, sights });
        }
        let named = named_member.as_deref();
        let index = placing.place(candidates, &seen, named)?;
        Ok((index, placing.doubt(&seen, named)))
    }

    /// What members have by an owner's name: the `likely` one alone if that has it. None of an owner with a namespace, which the
    /// garbage collector does not look for, nor of a kind that no member serves.
    async fn seek(
        &self,
        owner: &Owner,
        likely: Option<&str>,
        holders: &[String],
        pending: Pending<'_>,
    ) -> Result<Vec<(String, Sight)>, Fault> {
        owner.check()?;
        let kind = kind_of(owner, holders, &pending.routing.kinds);
        if !matches!(kind, Ok(Some(_))) {
            self.routing.miss();
        }
        let Some((resource, Scope::Cluster)) = kind? else {
            return Ok(Vec::new());
        };
        let asked = owner.request(resource, None)?;
        let holder = looks(owner, &asked);
        let places = if asked.is("", "namespaces") {
            vec![namespace(owner, asked, pending)?]
        } else {
            let asked = pending.question(&holder.path, Some(asked));
            let routing = pending.routing;
            lookers(pending.caller, &asked, &routing.snapshot, &routing.kinds).map_err(|_| owner.outside())?
        };
        let look = async |(cluster, way): &Looker| {
            let sight = match way {
                Ok(candidate) => self.sight(&holder, candidate, owner, pending).await,
                Err(fault) => Sight::Unknown(fault.clone()),
            };
            (cluster.to_string(), sight)
        };
        if let Some(first) = places.iter().find(|(cluster, _)| Some(&**cluster) == likely) {
            let found = look(first).await;
            if found.1 == Sight::Owner {
                return Ok(vec![found]);
            }
        }
        Ok(join_all(places.iter().map(look)).await)
    }
}

/// A Namespace is where the shard has it.
fn namespace(owner: &Owner, asked: ResourceRequest, pending: Pending<'_>) -> Result<Looker, Fault> {
    let asked = pending.question(&asked.object_path(), Some(asked));
    let routing = pending.routing;
    match plan::plan(pending.caller, &asked, &routing.snapshot, &routing.kinds).plan {
        Plan::Forward(forward) => Ok((forward.target.cluster.clone(), Ok(Candidate::from(*forward)))),
        Plan::Refuse(fault) if !matches!(fault, Fault::Forbidden(_)) => Err(fault),
        _ => Err(owner.outside()),
    }
}
