//! What a router says on its stream.

use portolan_crds::ShardName;
use portolan_wire::subscription::Subscription;
use portolan_wire::v1;
use portolan_wire::v1::router_message::Kind as Said;
use std::sync::Arc;
use tonic::Status;

use super::{InFlight, RouterSession, UnsavedRun};
use crate::acks::{LockStanding, Reported};
use crate::compile::{Ref, Scope, Teller, World};
use crate::distribute::Published;
use crate::facts::PolicyName;
use crate::metrics::Answer;
use crate::stream::breakers::{answers, bounded, other_leases};
use crate::stream::policies::Known;
use crate::stream::replicas;
use crate::stream::transaction::{Holding, Transaction};

/// Pairs of all members that are on their way to other shards.
const MAX_ANSWERED: usize = 1_000_000;

impl RouterSession {
    pub(super) async fn hear(&mut self, message: v1::RouterMessage) -> Result<(), Status> {
        match message.kind {
            // Of what it could not write before. Another transaction may be under way.
            Some(Said::Ack(ack)) if self.unsaved.is_some_and(|unsaved| unsaved.nonce == ack.nonce) => self.saved(),
            Some(Said::Ack(ack)) => {
                let in_flight = self.answered(ack.nonce, Answer::Ack)?;
                self.unsaved = None;
                self.holding.acked(&in_flight.transaction);
                self.settled(&in_flight.transaction);
            }
            Some(Said::Nack(nack)) => {
                let in_flight = self.answered(nack.nonce, Answer::Nack)?;
                let taken = self.refused(in_flight, &nack)?;
                self.unsaved = None;
                self.settled(&taken);
            }
            Some(Said::Unsaved(unsaved)) => self.hear_unsaved(unsaved)?,
            Some(Said::Breakers(report)) => {
                self.hear_breakers(report);
            }
            Some(Said::AccessReview(review)) => self.review(review),
            Some(Said::CatchUp(question)) => self.catches_up = Some(question.id),
            Some(Said::LastAnswersQuery(query)) => self.tell_last_answers(query).await?,
            Some(Said::NamespaceQuery(query)) => self.tell_namespace(query).await?,
            Some(Said::Hello(_) | Said::Known(_)) => return Err(Status::invalid_argument("a second hello")),
            Some(Said::Policies(report)) => self.hear_policies(report),
            Some(Said::WritesAnswered(answered)) => self.hear_answered(answered)?,
            Some(Said::Locks(report)) => self.hear_locks(report),
            Some(Said::HeldLocks(report)) => self.hear_held(report)?,
            Some(Said::Replicas(report)) => self.hear_replicas(report),
            Some(Said::Ended(ended)) => self.hear_end(ended),
            // Of a later release of this protocol.
            None => {}
        }
        Ok(())
    }

    /// What of a transaction it has taken that refused some of it.
    fn refused(&mut self, in_flight: InFlight, nack: &v1::Nack) -> Result<Transaction, Status> {
        for rejected in &nack.rejected {
            let name = rejected
                .r#ref
                .as_ref()
                .map(|name| name.name.as_str())
                .unwrap_or_default();
            tracing::warn!(
                router = self.router,
                entry = name,
                reason = rejected.reason,
                "a router refused an entry"
            );
        }
        if !self.holding.nacked(&in_flight.transaction, nack) {
            // It comes back with a pause and says what it holds.
            return Err(Status::aborted(
                "what was refused is not what was sent: what this router holds is unclear",
            ));
        }
        Ok(in_flight.transaction.refused(nack))
    }

    /// What was sent is in force there, so that more can be; it is not acknowledged, so that nothing is granted to others for it.
    fn hear_unsaved(&mut self, unsaved: v1::Unsaved) -> Result<(), Status> {
        let v1::Unsaved { nonce, rejected } = unsaved;
        let in_flight = self.answered(nonce, Answer::Unsaved)?;
        let taken = if rejected.is_empty() {
            self.holding.acked(&in_flight.transaction);
            in_flight.transaction
        } else {
            self.refused(in_flight, &v1::Nack { nonce, rejected })?
        };
        if self.unsaved.is_none() {
            tracing::warn!(
                router = self.router,
                "a router cannot write its state file: what it is told is in force there, and not acknowledged"
            );
        }
        let before = self.unsaved.and_then(|unsaved| unsaved.run);
        self.unsaved = Some(UnsavedRun { nonce, run: before });
        self.settled(&taken);
        Ok(())
    }

    /// All that it holds is on its disk.
    fn saved(&mut self) {
        let Some(UnsavedRun { run, .. }) = self.unsaved.take() else {
            return;
        };
        tracing::info!(router = self.router, "a router can write its state file again");
        let Holding { held, rejected, .. } = self.holding.clone();
        let idle = self.in_flight.is_none();
        self.service.acks.update(&self.router, self.epoch, move |state| {
            state.held = held;
            state.rejected = rejected;
            state.unsaved = false;
            state.acked_run = run.unwrap_or(state.acked_run);
            if idle {
                state.offered.clear();
            }
        });
    }

    /// Of members and shards that it is told of. Of a large fleet some hundred routers tell of a thousand members in a second.
    fn hear_breakers(&self, report: v1::BreakerReport) {
        let Some((scope, world)) = self.scope() else { return };
        let member = |cluster: &str| world.targets.contains(cluster) && scope.sees_member(cluster);
        let shard = |shard: &ShardName| {
            let name = Ref::Shard(shard.clone());
            !world.is_gone(&name) && scope.sees(&name)
        };
        let reported = Reported {
            answered: answers(report.answered, member),
            breakers: bounded(report.breakers, member),
            other_leases: other_leases(report.other_leases, shard),
        };
        self.service.acks.reported(&self.router, self.epoch, reported);
    }

    fn hear_answered(&self, answered: v1::WritesAnswered) -> Result<(), Status> {
        // Of a caller's router nobody knows which shard an earlier one of its name served.
        if matches!(self.subscription, Subscription::Caller(_)) {
            return Ok(());
        }
        if answered.pairs.len() > MAX_ANSWERED {
            return Err(Status::resource_exhausted("more pairs are answered than there are"));
        }
        let pairs = answered.pairs.into_iter();
        let pairs = pairs.map(|pair| (pair.cluster, pair.namespace, pair.epoch)).collect();
        self.service
            .acks
            .update(&self.router, self.epoch, |state| state.answered = pairs);
        Ok(())
    }

    /// Of shards that it is told of: bounded by those.
    fn hear_locks(&self, report: v1::LockReport) {
        let told_of = self.told_of();
        let standing = report.locks.into_iter().filter_map(|lock| {
            let shard: ShardName = lock.shard.parse().ok()?;
            let closed = match lock.state() {
                v1::LockState::Closed => true,
                v1::LockState::Bringing => false,
                v1::LockState::Unspecified | v1::LockState::Open => return None,
            };
            let standing = LockStanding {
                generation: lock.generation,
                closed,
                others: lock.other_leases,
            };
            told_of(&Ref::Shard(shard.clone())).then_some((shard, standing))
        });
        let standing = standing.collect();
        self.service
            .acks
            .update(&self.router, self.epoch, |state| state.locks = standing);
    }

    /// Also of callers that are in no shard now, or in one that is not this router's: what counts of it is judged where it is used, by
    /// whose word it is. What it takes back it has told itself.
    fn hear_held(&self, report: v1::HeldLocks) -> Result<(), Status> {
        let published = self.service.worlds.borrow().clone();
        let teller = Teller::of(&self.subscription);
        let concerns = |held: &v1::HeldLock| {
            let world = &published.as_ref()?.world;
            let view = world.view_of(&Ref::View {
                home: held.home_cluster.clone(),
                pod_uid: held.pod_uid.clone(),
            })?;
            let [shard] = view.shards.as_slice() else { return None };
            let shard: ShardName = shard.parse().ok()?;
            let is_elsewhere = world.state.accepted.get(&shard)?.uid != held.shard_uid;
            let is_known = teller.knows((&view.home_cluster, &view.namespace, &view.pod));
            Some(is_known && (view.writes_closed.is_some() || is_elsewhere && !held.gone))
        };
        let is_urgent = report.held.iter().any(|held| concerns(held) == Some(true));
        let router = (self.router.as_str(), self.epoch);
        if self
            .service
            .acks
            .renewed(router, report, is_urgent, self.service.longest_lease)
        {
            return Ok(());
        }
        Err(Status::resource_exhausted(
            "more locks are held than the callers of this router can hold, or by longer names than there are",
        ))
    }

    /// Of shards and members that it is told of.
    fn hear_replicas(&self, report: v1::ReplicaReport) {
        let Some((scope, world)) = self.scope() else { return };
        let shard = |shard: &ShardName| {
            let name = Ref::Shard(shard.clone());
            !world.is_gone(&name) && scope.sees(&name)
        };
        let copies = replicas::bounded(report, shard, |cluster| scope.sees_member(cluster));
        self.service.acks.copies_reported(&self.router, self.epoch, copies);
    }

    fn hear_end(&mut self, said: v1::Ended) {
        let v1::Ended {
            gave_back_shares,
            forget,
        } = said;
        self.ended = true;
        let mut is_gone = false;
        self.service
            .acks
            .update(&self.router, self.epoch, |state| is_gone = state.end(forget));
        if gave_back_shares {
            self.service.shares.gave_back(&self.router, self.epoch);
        }
        if is_gone {
            // Not here: the router waits no longer than for a second.
            let forgotten = self.service.routers.clone().forget(self.enrolled.clone());
            self.service.tasks.spawn("forget-router", forgotten);
        }
    }

    fn hear_policies(&self, report: v1::PolicyReport) {
        let published = self.service.worlds.borrow().clone();
        let known = Known {
            told_of: self.may_hold(),
            rules_of: |policy: &PolicyName| {
                let world = &published.as_ref()?.world;
                world.policies.get(policy)?.rules.clone()
            },
        };
        let demands = known.demands(report.demands);
        let left_out = known.left_out(report.left_out, report.more_left_out);
        let rules = known.rules(report.rules, left_out);
        self.service.acks.policies_reported(&self.router, self.epoch, rules);
        self.service
            .shares
            .reported(&self.router, self.epoch, &demands, report.shares_revision);
    }

    fn answered(&mut self, nonce: u64, answer: Answer) -> Result<InFlight, Status> {
        let in_flight = self.in_flight.take().filter(|in_flight| in_flight.nonce == nonce);
        let in_flight = in_flight
            .ok_or_else(|| Status::invalid_argument(format!("answer to transaction {nonce}, which is not open")))?;
        self.service
            .metrics
            .answered(answer, in_flight.sent.elapsed().as_secs_f64());
        Ok(in_flight)
    }

    /// Tells the rest of the hub what this router holds now; of one that cannot write that down, that it may hold both.
    pub(super) fn settled(&mut self, transaction: &Transaction) {
        let run = transaction.whole.then_some(transaction.run);
        let Holding { held, rejected, .. } = self.holding.clone();
        let in_doubt = self.unsaved.is_some();
        if let Some(unsaved) = &mut self.unsaved {
            unsaved.run = run.or(unsaved.run);
        }
        self.service.acks.update(&self.router, self.epoch, move |state| {
            state.rejected = rejected;
            state.unsaved = in_doubt;
            if !in_doubt {
                state.held = held;
                state.offered.clear();
                state.acked_run = run.unwrap_or(state.acked_run);
            }
        });
    }

    /// Whether this router may be told of what the hub knows by a name.
    pub(super) fn told_of(&self) -> impl Fn(&Ref) -> bool + use<> {
        self.scoped(Scope::sees)
    }

    /// Whether this router may have been told of it, if by an earlier hub: that of its callers not all are heard yet takes nothing
    /// of what it holds.
    fn may_hold(&self) -> impl Fn(&Ref) -> bool + use<> {
        self.scoped(|scope, name| scope.sees(name) || scope.is_uncertain(name))
    }

    /// What it may see, and of what; none: nobody knows.
    fn scope(&self) -> Option<(Scope, Arc<World>)> {
        let published = self.service.worlds.borrow().clone();
        published.map(|Published { world, .. }| (Scope::of(&self.subscription, &world), world))
    }

    fn scoped<I: Fn(&Scope, &Ref) -> bool>(&self, is_in: I) -> impl Fn(&Ref) -> bool + use<I> {
        let scoped = self.scope();
        move |name| {
            let told = |(scope, world): &(Scope, Arc<World>)| !world.is_gone(name) && is_in(scope, name);
            scoped.as_ref().is_some_and(told)
        }
    }
}
