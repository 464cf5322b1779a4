//! What a router is told on its stream.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_wire::subscription::Subscription;
use portolan_wire::v1;
use portolan_wire::v1::router_update::Kind as Told;
use tokio::time::Instant;
use tonic::Status;

use super::{InFlight, RouterSession};
use crate::compile::{Ref, Scope, World};
use crate::distribute::continue_trace;
use crate::facts::Presence;
use crate::stream::send;

impl RouterSession {
    /// Sends the difference, if there is one.
    pub(super) async fn offer(&mut self, world: &Arc<World>, traceparent: &str) -> Result<(), Status> {
        let scope = Scope::of(&self.subscription, world);
        let mut transaction = self.service.offers.next(&mut self.holding, world, &scope);
        if !self.hands_locks_over {
            // It would let its callers use the new place at once. Where it is, or nowhere, the handover waits for it.
            transaction.withhold(|name| world.state.is_lock_moving(name));
        }
        // The first commit of a stream is sent in any case: it tells the router that what it holds is up to date.
        if transaction.is_empty() && self.nonce > 0 {
            self.holding.acked(&transaction);
            self.settled(&transaction);
            return Ok(());
        }
        self.nonce += 1;
        let span = tracing::info_span!(
            "push",
            upserted = transaction.upserted(),
            removed = transaction.removals.len()
        );
        let traceparent = continue_trace(&span, traceparent);
        // Before the first message: from then on the router may serve it.
        let shards = transaction.upserts.iter().filter_map(|(name, _)| name.shard());
        let offered: BTreeSet<_> = shards.cloned().collect();
        self.service.acks.update(&self.router, self.epoch, |state| {
            // What it has taken and cannot write down stays offered.
            if !state.unsaved {
                state.offered.clear();
            }
            state.offered.extend(offered);
        });
        let commit = v1::Commit {
            nonce: self.nonce,
            traceparent,
            term: self.service.mandate.term,
        };
        for message in transaction.messages(commit, self.holding.takes_changes) {
            send(&self.outbound, "router", message).await?;
        }
        self.in_flight = Some(InFlight {
            nonce: self.nonce,
            transaction,
            sent: Instant::now(),
        });
        Ok(())
    }

    /// All that was published before it asked is sent: the router reads this after it.
    pub(super) async fn caught_up(&mut self) -> Result<(), Status> {
        let Some(id) = self.catches_up.take() else {
            return Ok(());
        };
        let kind = Some(Told::CaughtUp(v1::CaughtUp { id }));
        send(&self.outbound, "router", v1::RouterUpdate { kind }).await
    }

    /// Tells whether another router may have served its callers, if that is news.
    pub(super) async fn tell_alone(&mut self) -> Result<(), Status> {
        let for_seconds = self.service.acks.alone_for(&self.router).as_secs();
        let alone = Some(for_seconds > 0);
        if std::mem::replace(&mut self.alone, alone) == alone {
            return Ok(());
        }
        let kind = Some(Told::Alone(v1::Alone { for_seconds }));
        send(&self.outbound, "router", v1::RouterUpdate { kind }).await
    }

    /// Tells until when members may have answered any router.
    pub(super) async fn tell_last_answers(&self, query: v1::LastAnswersQuery) -> Result<(), Status> {
        let told_of = self.told_of();
        let clusters = query.clusters.into_iter().collect::<BTreeSet<_>>().into_iter();
        let known = clusters.filter(|cluster| told_of(&Ref::Target(cluster.clone())));
        let now = jiff::Timestamp::now().as_second();
        let answered = known.filter_map(|cluster| {
            let until_unix_seconds = self.service.acks.answered_until(&self.router, &cluster, now)?;
            Some(v1::MemberAnswered {
                cluster,
                until_unix_seconds,
            })
        });
        let last = v1::LastAnswers {
            id: query.id,
            answered: answered.collect(),
        };
        let kind = Some(Told::LastAnswers(last));
        send(&self.outbound, "router", v1::RouterUpdate { kind }).await
    }

    /// Tells which members have a namespace. Of those that the router is not told of nothing is said.
    pub(super) async fn tell_namespace(&self, query: v1::NamespaceQuery) -> Result<(), Status> {
        let told_of = self.told_of();
        let mut found = v1::NamespaceFound {
            id: query.id,
            ..v1::NamespaceFound::default()
        };
        self.service.index.read(|facts| {
            for cluster in query.clusters.into_iter().collect::<BTreeSet<_>>() {
                let presence = if told_of(&Ref::Target(cluster.clone())) {
                    facts.presence(&cluster, &query.namespace)
                } else {
                    Presence::Unknown
                };
                match presence {
                    Presence::There => found.there.push(cluster),
                    Presence::Absent => {}
                    Presence::AbsentWhenHeard => found.away.push(cluster),
                    Presence::Unknown => found.unknown.push(cluster),
                }
            }
        });
        let kind = Some(Told::NamespaceFound(found));
        send(&self.outbound, "router", v1::RouterUpdate { kind }).await
    }

    /// Tells its shares of limits that routers have together.
    pub(super) async fn tell_shares(&mut self) -> Result<(), Status> {
        let shares = self.shares.borrow_and_update().clone();
        let kind = Some(Told::Shares(shares));
        send(&self.outbound, "router", v1::RouterUpdate { kind }).await
    }

    /// Asks the hub's API server, beside the session. A gateway asks about every name, so that who may not use a member is
    /// not told whether it is there; others about members where they could act upon the answer.
    pub(super) fn review(&self, review: v1::AccessReview) {
        let refused = |reason: &str| {
            Told::AccessDecision(v1::AccessDecision {
                id: review.id,
                allowed: false,
                reason: reason.to_owned(),
            })
        };
        let everywhere = self.subscription == Subscription::Everything;
        if !everywhere && !self.told_of()(&Ref::gateway_credential(&review.cluster)) {
            return self.answer(refused("this router is not told of that member"));
        }
        let Ok(permit) = self.reviews.clone().try_acquire_owned() else {
            return self.answer(refused("this router has too many reviews under way"));
        };
        let (access, outbound) = (self.service.access.clone(), self.outbound.clone());
        self.service.tasks.spawn("access-review", async move {
            let kind = Some(Told::AccessDecision(access.review(review).await));
            let _ = send(&outbound, "router", v1::RouterUpdate { kind }).await;
            drop(permit);
        });
    }

    /// At once or never: a router that asks and does not read gets no more memory.
    pub(super) fn answer(&self, kind: Told) {
        let _ = self.outbound.try_send(Ok(v1::RouterUpdate { kind: Some(kind) }));
    }
}
