//! What policies are told of a request: once its plan is there, or once its body has told which Lease it makes.

use super::{Call, Identified};
use crate::decision::plan::Forward;
use crate::decision::policy::{self, Reach};
use crate::edge::ordered::{self, PlannedRequest};
use crate::resource::policies::{Judging, Policies, Taken};
use crate::resource::queues::Room;
use crate::stage::admit::{Admission, Life};
use crate::value::classify::Verb;
use crate::value::fault::Fault;
use crate::value::snapshot::Caller;

impl Identified {
    /// The members that it goes to, or may.
    pub(super) fn clusters(&self) -> Vec<&str> {
        self.reach.clusters.iter().map(|cluster| &**cluster).collect()
    }

    /// At the one member that it goes to, for an object of it. Lists have places of their own there.
    pub(super) fn room(&self, life: Life) -> Option<&Room> {
        let [cluster] = self.reach.clusters.as_slice() else {
            return None;
        };
        let single = life == Life::Unary && self.asked.verb != Verb::List && self.asked.resource.is_some();
        let upstream = self.routing.upstreams.get(cluster).filter(|_| single);
        upstream.map(|upstream| &upstream.room)
    }

    /// By what it is judged; `None`: by nothing, or not yet.
    pub(super) fn judging<'a>(&'a self, clusters: &'a [&'a str]) -> Option<(&'a Policies, Judging<'a>)> {
        let (Caller::Pod(view), Some(election)) = (&self.caller, self.reach.election) else {
            return None;
        };
        let judging = Judging {
            view,
            asked: policy::asked(&self.asked, clusters, election),
            generation: self.routing.snapshot.generation,
        };
        Some((&self.routing.policies, judging))
    }
}

impl Call<'_> {
    /// Draws what FaultInjections order for it.
    pub(super) fn draw(&mut self, request: &mut Identified, merged: bool) {
        let planned = PlannedRequest {
            merged,
            reach: &request.reach,
            head: &request.head,
            asked: &request.asked,
            caller: &request.caller,
        };
        request.injection = ordered::draw(&planned, self.completion);
    }

    /// A Lease that is made is the election's, which most rules leave alone, or any other. It holds its place meanwhile: a
    /// caller's own are few.
    pub(super) async fn judge_chosen(&mut self, request: &mut Identified, forward: &Forward) -> Result<(), Fault> {
        request.reach = Reach::of_one(forward);
        self.draw(request, false);
        let clusters = request.clusters();
        let admission = Admission {
            caller: &request.caller,
            asked: &request.asked,
            life: Life::Unary,
            head: &request.head,
            bytes: 0,
            room: None,
            deadline: request.deadline,
            kept: Some(&self.connection.bounds),
            judging: request.judging(&clusters),
        };
        if let Some(injection) = &request.injection {
            Box::pin(ordered::happens(&self.edge.parts, injection, &admission)).await?;
        }
        match &admission.judging {
            Some((policies, judging)) => {
                let judged = policies.admit(judging).map(Taken::keep);
                judged.map_err(|fault| fault.of_request(|| request.asked.about()))
            }
            None => Ok(()),
        }
    }
}
