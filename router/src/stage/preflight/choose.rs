//! Finds out which member a [`Choose`] is for: who has the object, or what the body says.
//!
//! Members are asked for the object's metadata, the first candidate alone and, if it has nothing, all others at once. What
//! they say is weighed by `plan::choose`.

use futures::future::join_all;
use http::StatusCode;
use jiff::Timestamp;

use super::twins::Said;
use super::{JSON, MAX_METADATA_BYTES, Pending, Preflight};
use crate::decision::lease;
use crate::decision::plan::Candidate;
use crate::decision::plan::choose::{By, Choose, Chosen, Decides, Finding, Holder, OtherLease};
use crate::decision::plan::twins::leaving;
use crate::decision::plan::{Absent, Forward, Need};
use crate::resource::upstream::{Body, gather};
use crate::value::fault::Fault;
use crate::value::media;
use crate::value::object;
use crate::value::snapshot::Shard;

/// Which candidate it is.
#[derive(Default)]
struct Choice {
    index: usize,
    /// For the client.
    warning: Option<String>,
    /// No other member follows what this one makes of it, of whatever kind it is.
    alone: bool,
    /// It is the member of the owners that the body names: nobody need look for them again.
    beside_owners: bool,
}

impl Choice {
    fn beside_owners((index, warning): (usize, Option<String>)) -> Self {
        Self {
            index,
            warning,
            beside_owners: true,
            ..Self::default()
        }
    }
}

fn index_of(candidates: &[Candidate], cluster: &str) -> Option<usize> {
    candidates
        .iter()
        .position(|one| *one.forward.target.cluster == *cluster)
}

impl Preflight {
    /// The one plan; what it needs is still to be [checked](Self::check). The body is gathered where it tells, and stays
    /// there to be sent.
    pub(crate) async fn choose(
        &self,
        choose: Choose,
        pending: Pending<'_>,
        body: &mut Body,
    ) -> Result<Box<Forward>, Fault> {
        let chosen = self.chosen(&choose, pending, body).await?;
        let mut candidates = choose.candidates;
        if chosen.index >= candidates.len() {
            return Err(Fault::Internal("a member was chosen that is no candidate".to_owned()));
        }
        let Candidate { mut forward, held } = candidates.swap_remove(chosen.index);
        if let Some(held) = held {
            return Err(forward.unavailable(held));
        }
        forward.warning = forward.warning.or(chosen.warning);
        forward.replicas = forward.replicas.filter(|_| !chosen.alone);
        if chosen.beside_owners {
            forward.needs.retain(|need| *need != Need::Owners);
        }
        Ok(Box::new(forward))
    }

    // Boxed is what most requests do not need: all would be as large.
    async fn chosen(&self, choose: &Choose, pending: Pending<'_>, body: &mut Body) -> Result<Choice, Fault> {
        let candidates = &choose.candidates;
        let (index, warning) = match &choose.by {
            By::Holder(holder) if holder.decides == Decides::Object => {
                return Box::pin(self.decider(holder, candidates, pending)).await;
            }
            By::Holder(holder) => {
                let (index, is_nowhere) = self.holder(holder, candidates, pending).await?;
                match holder.placing.as_deref().filter(|_| is_nowhere && pending.makes()) {
                    None => (index, None),
                    Some(placing) => {
                        let chosen = Box::pin(self.applied(placing, candidates, pending, body)).await?;
                        return Ok(Choice::beside_owners(chosen));
                    }
                }
            }
            By::NewNamespace(shard) => self.place_namespace(choose, shard, pending, body).await?,
            By::NewObject(new) => {
                let chosen = Box::pin(self.new_object(new, candidates, pending, body)).await?;
                return Ok(Choice::beside_owners(chosen));
            }
            By::Unowned(unowned) => {
                let applies = pending.content_type().is_some_and(media::is_apply);
                Box::pin(self.nowhere(unowned, applies, pending)).await?;
                match &unowned.absent {
                    Absent::Nothing => (0, None),
                    Absent::Made(shard) if applies => self.place_namespace(choose, shard, pending, body).await?,
                    Absent::Made(_) | Absent::Object(..) | Absent::Namespace => return Err(unowned.not_found(applies)),
                }
            }
            By::Lease(lease) => {
                let chosen = Box::pin(self.lease(lease, candidates, pending, body));
                (chosen.await?, None)
            }
        };
        Ok(Choice {
            index,
            warning,
            ..Choice::default()
        })
    }

    async fn place_namespace(&self, choose: &Choose, shard: &Shard, pending: Pending<'_>, body: &mut Body) -> Chosen {
        let bytes = pending.gather(body).await?;
        choose.place(shard, &pending.routing.snapshot, &bytes, pending.content_type())
    }

    /// Which candidate decides about what all members have alike: the one that the object names, as the first says that has it; else
    /// the primary, or the one that has it by itself. What is applied the primary makes.
    async fn decider(&self, holder: &Holder, candidates: &[Candidate], pending: Pending<'_>) -> Result<Choice, Fault> {
        let Some((first, others)) = candidates.split_first() else {
            return Err(Fault::Internal("no member to look in".to_owned()));
        };
        let is_apply = || pending.content_type().is_some_and(media::is_apply);
        let applies = holder.replicated && holder.writes && is_apply();
        let mut said = vec![self.said(holder, first, pending).await];
        let makes = applies && said[0].finding == Finding::HasNot;
        // Who may not read the first's may be told by a copy who decides.
        if said[0].finding != Finding::Has {
            let others = others.iter().map(|other| self.said(holder, other, pending));
            said.extend(join_all(others).await);
        }
        // What it would make anew may be on its way out elsewhere.
        let leaves = said.iter().skip(1).find(|said| makes && said.leaves);
        if let (Some(leaves), Some(resource)) = (leaves, &pending.asked.resource) {
            let name = resource.name.as_deref().unwrap_or_default();
            return Err(leaving(resource, name, &leaves.cluster));
        }
        if let Some(decides) = said.iter().find_map(|said| said.decides.as_deref()) {
            match index_of(candidates, decides) {
                Some(index) if self.takes(holder, (candidates, index), &said, pending).await => {
                    return Ok(Choice {
                        index,
                        ..Choice::default()
                    });
                }
                None if holder.writes => return Err(holder.decided_elsewhere(decides)),
                _ => {}
            }
        }
        let findings: Vec<Finding> = said.into_iter().map(|said| said.finding).collect();
        if applies && findings[0] == Finding::Forbidden {
            // One that cannot be asked may name another than the first.
            let unknown = findings.iter().find_map(|finding| match finding {
                Finding::Unknown(fault) => Some(fault.clone()),
                _ => None,
            });
            unknown.map_or(Ok(()), Err)?;
        }
        let index = if applies { 0 } else { holder.choose(&findings)? };
        Ok(Choice {
            index,
            alone: index != 0,
            ..Choice::default()
        })
    }

    /// Whether it goes to the candidate of this index, as far as is known from what was `said`, or else by asking it: a read if that shows
    /// the object, a write unless it is not there.
    async fn takes(
        &self,
        holder: &Holder,
        (candidates, index): (&[Candidate], usize),
        said: &[Said],
        pending: Pending<'_>,
    ) -> bool {
        let asked = match said.get(index) {
            Some(_) => None,
            None => Some(self.said(holder, &candidates[index], pending).await),
        };
        match asked.as_ref().or_else(|| said.get(index)).map(|said| &said.finding) {
            Some(Finding::HasNot) | None => false,
            Some(Finding::Has) => true,
            Some(_) => holder.writes,
        }
    }

    /// Which candidate has the object, or is to say that it is nowhere; and whether all say that they have none.
    async fn holder(
        &self,
        holder: &Holder,
        candidates: &[Candidate],
        pending: Pending<'_>,
    ) -> Result<(usize, bool), Fault> {
        let Some((first, others)) = candidates.split_first() else {
            return Err(Fault::Internal("no member to look in".to_owned()));
        };
        let look = async |candidate| self.look(holder, candidate, pending).await.0;
        let mut findings = Vec::new();
        if holder.asks_all() {
            findings = join_all(candidates.iter().map(look)).await;
            holder.is_one(candidates, &findings)?;
        } else {
            findings.push(look(first).await);
            if findings != [Finding::Has] {
                findings.extend(join_all(others.iter().map(look)).await);
            }
        }
        let is_nowhere = findings.iter().all(|finding| *finding == Finding::HasNot);
        Ok((holder.choose(&findings)?, is_nowhere))
    }

    /// Which candidate is to have a Lease of the callers' namespace.
    async fn lease(
        &self,
        lease: &OtherLease,
        candidates: &[Candidate],
        pending: Pending<'_>,
        body: &mut Body,
    ) -> Result<usize, Fault> {
        const BEFORE: usize = 1;
        let name = if let Some(name) = &lease.name {
            name.clone()
        } else {
            // Nobody may make us read the body before they may do all.
            for candidate in candidates {
                self.access(pending.caller, &candidate.forward).await?;
            }
            let bytes = pending.gather(body).await?;
            object::name(pending.content_type(), &bytes)?
        };
        if name == lease.names.client {
            return Ok(candidates.len() - 1);
        }
        if lease.former.as_ref() == Some(&name) {
            return Ok(candidates.len().saturating_sub(2));
        }
        let (primary, Some(before)) = (candidates.first(), candidates.get(BEFORE).filter(|_| lease.moved)) else {
            return Ok(0);
        };
        let Some(path) = lease.path(&name) else { return Ok(0) };
        match self.is_alive(&path, before, pending).await {
            Ok(alive) => Ok(if alive { BEFORE } else { 0 }),
            // Nobody can hold both: who holds the primary's goes on.
            Err(fault) => match primary {
                Some(primary) if self.is_alive(&path, primary, pending).await == Ok(true) => Ok(0),
                _ => Err(fault),
            },
        }
    }

    /// Whether a member has a Lease that somebody holds, as far as the caller may know.
    async fn is_alive(&self, path: &str, candidate: &Candidate, pending: Pending<'_>) -> Result<bool, Fault> {
        let forward = &candidate.forward;
        if let Some(held) = &candidate.held {
            return Err(forward.unavailable(held.clone()));
        }
        match self.access(pending.caller, forward).await {
            Err(Fault::Forbidden(_)) => return Ok(false),
            other => other?,
        }
        let unknown = |why: &str| {
            forward.unavailable(format!(
                "whether {path} is alive in member cluster {} is not known: {why}",
                forward.target.cluster
            ))
        };
        let answer = self.read(forward, (path, None), JSON, pending).await;
        let answer = answer.map_err(|fault| unknown(&fault.to_string()))?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND | StatusCode::FORBIDDEN => return Ok(false),
            other => return Err(unknown(&format!("it answered {}", other.as_u16()))),
        }
        let bytes = gather(answer.into_body(), MAX_METADATA_BYTES).await;
        let bytes = bytes.map_err(|error| unknown(&error.to_string()))?;
        lease::is_alive(&bytes, Timestamp::now()).map_err(|error| unknown(&error.to_string()))
    }

    /// Whether a member has the object, as far as the caller may know; with its metadata if it has.
    pub(crate) async fn look(&self, holder: &Holder, candidate: &Candidate, pending: Pending<'_>) -> (Finding, Body) {
        match self.ask(holder, candidate, pending).await {
            Ok(found) => found,
            Err(fault) => (Finding::Unknown(fault), Body::Empty),
        }
    }

    async fn ask(
        &self,
        holder: &Holder,
        candidate: &Candidate,
        pending: Pending<'_>,
    ) -> Result<(Finding, Body), Fault> {
        let forward = &candidate.forward;
        if let Some(held) = &candidate.held {
            return Err(forward.unavailable(held.clone()));
        }
        // As the user that the caller wants to act as, so it must be allowed to, there.
        match self.access(pending.caller, forward).await {
            Err(Fault::Forbidden(_)) => return Ok((Finding::Forbidden, Body::Empty)),
            other => other?,
        }
        let answer = self.metadata(forward, (&holder.path, None), pending).await;
        // Only the question was sent: whatever became of it, the request itself was not.
        let answer = answer.map_err(|fault| holder.unknown(forward, &fault.to_string()))?;
        let finding = match answer.status() {
            StatusCode::OK => return Ok((Finding::Has, answer.into_body())),
            // Of a kind of which nobody gets an object nobody has one.
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Finding::HasNot,
            StatusCode::FORBIDDEN => Finding::Forbidden,
            other => return Err(holder.unknown(forward, &format!("it answered {}", other.as_u16()))),
        };
        Ok((finding, Body::Empty))
    }
}

impl Holder {
    pub(super) fn unknown(&self, forward: &Forward, why: &str) -> Fault {
        forward.unavailable(format!(
            "whether {} is in member cluster {} is not known: {why}",
            self.object, forward.target.cluster
        ))
    }
}
