//! What a router says on its stream.

use portolan_crds::ShardName;
use portolan_wire::subscription::Subscription;
use portolan_wire::v1;
use portolan_wire::v1::router_message::Kind as Said;
use std::sync::Arc;
use tonic::Status;

use super::{InFlight, RouterSession};
use crate::acks::{LockStanding, Reported};
use crate::compile::{Ref, Scope, World};
use crate::distribute::Published;
use crate::facts::PolicyName;
use crate::metrics::Answer;
use crate::stream::breakers::{answers, bounded, other_leases};
use crate::stream::policies::Known;
use crate::stream::transaction::{Holding, Transaction};

/// Pairs of all members that are on their way to other shards.
const MAX_ANSWERED: usize = 1_000_000;

impl RouterSession {
    pub(super) async fn hear(&mut self, message: v1::RouterMessage) -> Result<(), Status> {
        match message.kind {
            Some(Said::Ack(ack)) => {
                let in_flight = self.answered(ack.nonce, Answer::Ack)?;
                self.holding.acked(&in_flight.transaction);
                self.settled(&in_flight.transaction);
            }
            Some(Said::Nack(nack)) => {
                let in_flight = self.answered(nack.nonce, Answer::Nack)?;
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
                if !self.holding.nacked(&in_flight.transaction, &nack) {
                    // It comes back with a pause and says what it holds.
                    return Err(Status::aborted(
                        "what was refused is not what was sent: what this router holds is unclear",
                    ));
                }
                self.settled(&in_flight.transaction.refused(&nack));
            }
            Some(Said::Breakers(report)) => {
                self.hear_breakers(report);
            }
            Some(Said::AccessReview(review)) => self.review(review),
            Some(Said::CatchUp(question)) => self.catches_up = Some(question.id),
            Some(Said::LastAnswersQuery(query)) => self.tell_last_answers(query).await?,
            Some(Said::Hello(_)) => return Err(Status::invalid_argument("a second hello")),
            Some(Said::Policies(report)) => self.hear_policies(report),
            Some(Said::WritesAnswered(answered)) => self.hear_answered(answered)?,
            Some(Said::Locks(report)) => self.hear_locks(report),
            Some(Said::Ended(_)) => self.hear_end(),
            // Of a later release of this protocol.
            None => {}
        }
        Ok(())
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

    fn hear_end(&mut self) {
        self.ended = true;
        self.service
            .acks
            .update(&self.router, self.epoch, |state| state.ended = true);
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

    /// Tells the rest of the hub what this router holds now.
    pub(super) fn settled(&self, transaction: &Transaction) {
        let Holding { held, rejected, .. } = self.holding.clone();
        let run = transaction.whole.then_some(transaction.run);
        self.service.acks.update(&self.router, self.epoch, move |state| {
            state.held = held;
            state.offered.clear();
            state.rejected = rejected;
            state.acked_run = run.unwrap_or(state.acked_run);
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
