//! Sessions of routers: worlds out, acknowledgements, breaker reports and access questions in.
//!
//! One transaction is under way at a time; while it is, newer worlds wait, and the next transaction skips what was
//! missed. A router is told what its certificate says, or the part of it that it asks for, and nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use portolan_runtime::Tasks;
use portolan_wire::identity::Identity;
use portolan_wire::protocol::{CURSOR_FORMAT_2, FENCE, HELD_LOCKS, LOCKS, OPERATORS, OWNERSHIP_CHANGES, POLICIES};
use portolan_wire::subscription::Subscription;
use portolan_wire::v1;
use portolan_wire::v1::router_control_server::RouterControl;
use portolan_wire::v1::router_update::Kind as Told;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use super::offers::Offers;
use super::transaction::{Holding, Transaction};
use super::{Mouth, OUTBOUND, Outbound, end, next_epoch, send, welcome};
use crate::access::AccessReviewer;
use crate::acks::{Acks, Held, LedgerPosition, Renewals, RouterState};
use crate::ca::{Authorities, Holder};
use crate::compile::{Ref, World};
use crate::distribute::{Published, Worlds};
use crate::index::{Change, Index};
use crate::lead::Mandate;
use crate::metrics::{Metrics, Program};
use crate::peer::Peer;
use crate::routers::{Enrolled, Routers};
use crate::shares::Arbiter;

mod hear;
mod introduction;
mod one_owner;
mod tell;

use introduction::introduction;

/// A router that does not answer a transaction by then is not following; its stream is ended, and it comes back.
const ACK_TIMEOUT: Duration = Duration::from_mins(1);
/// A router that opens a stream anew has left the one before, and the hub is about to notice.
const EARLIER_ENDS_WITHIN: Duration = Duration::from_secs(3);
/// A hub that starts finds out in this time what to tell; a router that waits for longer may try another.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);
/// Until it is looked again whether a router is alone.
const ALONE_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Questions of one router under way; more are refused, so that one router cannot use up the memory or all of the bound
/// that routers share.
const MAX_REVIEWS: usize = 32;

/// The service. Clones share everything.
#[derive(Clone)]
pub(crate) struct RouterService {
    pub(crate) worlds: Worlds,
    pub(crate) index: Arc<Index>,
    pub(crate) acks: Arc<Acks>,
    pub(crate) offers: Arc<Offers>,
    pub(crate) shares: Arc<Arbiter>,
    pub(crate) access: AccessReviewer,
    pub(crate) routers: Routers,
    pub(crate) ca: Arc<Authorities>,
    /// For longer no leader lock counts without a renewal.
    pub(crate) longest_lease: Duration,
    pub(crate) mandate: Mandate,
    pub(crate) metrics: Metrics,
    pub(crate) tasks: Tasks,
}

#[tonic::async_trait]
impl RouterControl for RouterService {
    type ConnectStream = Mouth<v1::RouterUpdate>;

    async fn connect(
        &self,
        request: Request<Streaming<v1::RouterMessage>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let peer = Peer::of(&request)?;
        let Identity::Router(router) = peer.identity()? else {
            return Err(Status::permission_denied(
                "only a router's certificate opens this stream",
            ));
        };
        let enrolled = self.routers.check(&router, &peer.key_hash()?)?;
        let mut inbound = request.into_inner();
        let hello = introduction(&mut inbound).await?;
        let welcome = v1::Welcome {
            longest_lease_seconds: u32::try_from(self.longest_lease.as_secs()).unwrap_or(u32::MAX),
            ..welcome((hello.protocol, hello.oldest_protocol), self.mandate.term)?
        };
        let subscription = subscribed(&enrolled.subscription(&peer.subscription()?)?, &hello)?;
        let refusal = one_owner::refusal(&router, says(&hello, OPERATORS), &*self.world().await?);
        let is_new = self.note(&router, refusal.as_ref());
        // Once alone does it count as one that has just left: it tries for as long as it runs.
        if let Some(refusal) = refusal.as_ref().filter(|_| !is_new || hello.known.is_empty()) {
            return Err(refusal.clone());
        }
        let (outbound, stream) = mpsc::channel(OUTBOUND);
        // The channel is empty, and its other end is here.
        let _ = outbound.try_send(Ok(v1::RouterUpdate {
            kind: Some(Told::Welcome(welcome)),
        }));
        let (trusts, identity) = (hello.trusts.clone(), Identity::Router(router));
        let session = RouterSession::begin(self, enrolled, hello, subscription, outbound).await?;
        // From here on: whoever waits no longer, and drops this, must not leave a stream behind that nobody has.
        let left = DisconnectGuard {
            acks: self.acks.clone(),
            shares: self.shares.clone(),
            router: session.router.clone(),
            epoch: session.epoch,
        };
        if let Some(refusal) = refusal {
            // It goes on serving what it holds: handovers wait for it as for one that has just left.
            return Err(refusal);
        }
        let holder = self.ca.holder(&identity, session.epoch, peer.chain, trusts);
        self.routers.seen(&session.enrolled).await;
        tracing::info!(router = session.router, remote = %peer.remote, holds = session.holding.held.len(), "router connected");
        let token = self.tasks.token();
        self.tasks.spawn("router-session", async move {
            let stream = session.service.metrics.stream(Program::Router);
            // A box: the future is some kilobytes, and moved.
            let ended = token.run_until_cancelled(Box::pin(session.run(inbound, holder))).await;
            if let Some(Err(error)) = ended {
                tracing::info!(router = left.router, %error, "router disconnected");
            }
            drop((left, stream));
        });
        Ok(Response::new(Mouth::new(stream, self.mandate.pulse.clone())))
    }
}

impl RouterService {
    /// What is to be told, once it is known.
    async fn world(&self) -> Result<Arc<World>, Status> {
        let mut worlds = self.worlds.clone();
        let known = tokio::time::timeout(KNOWN_WITHIN, worlds.wait_for(Option::is_some)).await;
        let known = known.ok().and_then(Result::ok);
        let world = known.and_then(|known| known.as_ref().map(|published| published.world.clone()));
        world.ok_or_else(not_the_hub)
    }

    /// Keeps or forgets why the router is told nothing, for its status; whether that is another answer than its last Hello had.
    fn note(&self, router: &str, refusal: Option<&Status>) -> bool {
        let message = refusal.map(|refusal| refusal.message().to_owned());
        let mut noted = Change::Nothing;
        self.index.write(|facts| {
            noted = facts.note_router_refusal(router, message);
            noted
        });
        let is_new = noted != Change::Nothing;
        if let Some(refusal) = refusal.filter(|_| is_new) {
            tracing::warn!(router, reason = refusal.message(), "a router is refused");
        }
        is_new
    }
}

fn not_the_hub() -> Status {
    Status::unavailable("this hub does not know yet, or not any more, whether it is the hub: try again, or another one")
}

fn one_of_a_name(router: &str) -> Status {
    Status::already_exists(format!(
        "another router is connected as {router}: each needs a name of its own, from portolanctl router-token NAME; if it \
         was this one, the connection that broke is noticed within a minute"
    ))
}

/// What a router is told: what its certificate says, or the part of it that its Hello asks for.
fn subscribed(granted: &Subscription, hello: &v1::RouterHello) -> Result<Subscription, Status> {
    if hello.subscription.is_empty() {
        return Ok(granted.clone());
    }
    let asked = Subscription::from_scopes(hello.subscription.iter().map(String::as_str));
    let asked = asked.map_err(|error| Status::invalid_argument(format!("subscription: {error}")))?;
    if granted.covers(&asked) {
        return Ok(asked);
    }
    Err(Status::permission_denied(format!(
        "subscription: this router's certificate says {}, and it asks for {}: enrol it anew with a token for that, from \
         portolanctl router-token",
        granted.scopes().join(","),
        asked.scopes().join(",")
    )))
}

/// Says that a router's stream has ended, however it did: one that seems open keeps the router from coming back, and holds
/// all handovers up.
struct DisconnectGuard {
    acks: Arc<Acks>,
    shares: Arc<Arbiter>,
    router: String,
    epoch: u64,
}

impl Drop for DisconnectGuard {
    fn drop(&mut self) {
        self.acks
            .update(&self.router, self.epoch, |state| state.left = Some(Instant::now()));
        self.shares.left(&self.router, self.epoch);
    }
}

/// A transaction that was sent and not answered.
struct InFlight {
    nonce: u64,
    transaction: Transaction,
    sent: Instant,
}

/// What is in force in a router that cannot write its state file.
#[derive(Debug, Clone, Copy)]
struct UnsavedRun {
    /// Of the last transaction: acknowledged, all are.
    nonce: u64,
    /// The last run of which all is in force; none: no later one than was acknowledged.
    run: Option<u64>,
}

struct RouterSession {
    service: RouterService,
    router: String,
    enrolled: Enrolled,
    epoch: u64,
    outbound: Outbound<v1::RouterUpdate>,
    subscription: Subscription,
    /// Whether it hands leader locks over.
    hands_locks_over: bool,
    /// Whether it knows that a namespace has an owner of each operator.
    knows_operators: bool,
    holding: Holding,
    in_flight: Option<InFlight>,
    /// What it has taken and not acknowledged.
    unsaved: Option<UnsavedRun>,
    nonce: u64,
    reviews: Arc<Semaphore>,
    /// The last question whether it was told all, until it was.
    catches_up: Option<u64>,
    /// Whether it was told that it is alone.
    alone: Option<bool>,
    /// Its shares of limits that routers have together.
    shares: watch::Receiver<v1::Shares>,
    /// It has said that it ends.
    ended: bool,
}

/// What a router says of itself when it comes.
fn introduced(epoch: u64, hello: v1::RouterHello) -> RouterState {
    RouterState {
        reads_views: says(&hello, CURSOR_FORMAT_2),
        says_epochs: says(&hello, FENCE),
        hands_locks_over: says(&hello, LOCKS),
        renewals: Renewals::of(says(&hello, HELD_LOCKS)),
        serves_policies: says(&hello, POLICIES),
        knows_operators: says(&hello, OPERATORS),
        earlier_answered: hello.earlier_answered,
        seen: LedgerPosition {
            incarnation: hello.seen_incarnation,
            view_revision: hello.seen_view_revision,
        },
        version: hello.version,
        process: hello.process,
        ..RouterState::new(epoch, BTreeMap::new())
    }
}

/// Whether a router has said that it can do this.
fn says(hello: &v1::RouterHello, capability: &str) -> bool {
    hello.capabilities.iter().any(|word| word == capability)
}

impl RouterSession {
    async fn begin(
        service: &RouterService,
        enrolled: Enrolled,
        hello: v1::RouterHello,
        subscription: Subscription,
        outbound: Outbound<v1::RouterUpdate>,
    ) -> Result<Self, Status> {
        let known = hello
            .known
            .iter()
            .filter_map(|known| Some((Ref::from_wire(known.r#ref.as_ref()?)?, known.version.clone())));
        let held: Held = known.collect();
        let router = enrolled.name.clone();
        let epoch = next_epoch();
        let mut changes = service.acks.changes();
        let (serves, takes_changes) = (says(&hello, POLICIES), says(&hello, OWNERSHIP_CHANGES));
        let (is_noted, is_new) = service.index.read(|facts| {
            let noted = facts
                .routers
                .get(&router)
                .and_then(|known| known.status.process.as_ref());
            (
                noted == Some(&hello.process),
                facts.enrolled_here.contains(enrolled.uid()),
            )
        });
        let state = RouterState {
            subscription: subscription.clone(),
            held: held.clone(),
            is_noted,
            is_new,
            ..introduced(epoch, hello)
        };
        let (hands_locks_over, knows_operators) = (state.hands_locks_over, state.knows_operators);
        let connected = async {
            while !service.acks.connected(&router, state.clone()) {
                // The sender lives in `acks`, so this cannot fail.
                let _ = changes.changed().await;
            }
        };
        let connected = tokio::time::timeout(EARLIER_ENDS_WITHIN, connected).await;
        connected.map_err(|_| one_of_a_name(&router))?;
        Ok(Self {
            service: service.clone(),
            shares: service.shares.connected(&router, enrolled.uid(), epoch, serves),
            holding: Holding {
                router: router.clone(),
                held,
                rejected: BTreeMap::new(),
                takes_changes,
            },
            router,
            enrolled,
            epoch,
            outbound,
            subscription,
            hands_locks_over,
            knows_operators,
            in_flight: None,
            unsaved: None,
            nonce: 0,
            reviews: Arc::new(Semaphore::new(MAX_REVIEWS)),
            catches_up: None,
            alone: None,
            ended: false,
        })
    }

    async fn run(mut self, mut inbound: Streaming<v1::RouterMessage>, mut holder: Holder) -> Result<(), Status> {
        let mut worlds = self.service.worlds.clone();
        worlds.mark_changed();
        let mut none = self.service.worlds.clone();
        let mut others = self.service.acks.comings_and_goings();
        others.mark_changed();
        // Whatever it is about to answer or to be told: who was forgotten gets nothing more.
        let mut forgotten = std::pin::pin!(self.service.routers.clone().until_gone(self.enrolled.clone()));
        loop {
            let answer_by = self
                .in_flight
                .as_ref()
                .map_or_else(Instant::now, |in_flight| in_flight.sent + ACK_TIMEOUT);
            let idle = self.in_flight.is_none();
            tokio::select! {
                message = inbound.next() => match message {
                    Some(message) => {
                        self.hear(message?).await?;
                        if self.ended {
                            return Ok(());
                        }
                        if idle != self.in_flight.is_none() {
                            // What was missed meanwhile, and what a refusal left undone.
                            worlds.mark_changed();
                        } else if idle && worlds.has_changed().is_ok_and(|changed| !changed) {
                            self.caught_up().await?;
                        }
                    }
                    None => return Err(Status::cancelled("the router closed the stream")),
                },
                changed = worlds.changed(), if idle => {
                    changed.map_err(|_| Status::unavailable("the hub is stopping"))?;
                    let published = worlds.borrow_and_update().clone();
                    if let Some(published) = published {
                        self.tell(&published).await?;
                    }
                }
                trust = holder.next() => match trust {
                    Ok(trust) => {
                        let kind = Some(Told::Trust(trust));
                        send(&self.outbound, "router", v1::RouterUpdate { kind }).await?;
                    }
                    Err(status) => return Err(end(&self.outbound, status).await),
                },
                () = changed_or_later(&mut others) => self.tell_alone().await?,
                // Without a sender there is nothing to be told: another stream of the router has begun, and this one ends.
                Ok(()) = self.shares.changed() => self.tell_shares().await?,
                status = &mut forgotten => return Err(end(&self.outbound, status).await),
                () = async { drop(none.wait_for(Option::is_none).await) } => {
                    return Err(end(&self.outbound, not_the_hub()).await);
                }
                () = tokio::time::sleep_until(answer_by), if !idle => {
                    let status = Status::deadline_exceeded("a transaction was not answered in time");
                    return Err(end(&self.outbound, status).await);
                }
            }
        }
    }

    /// Tells the router what was published, unless namespaces have an owner of each operator since then and it knows of one alone.
    async fn tell(&mut self, published: &Published) -> Result<(), Status> {
        if let Some(refusal) = one_owner::refusal(&self.router, self.knows_operators, &published.world) {
            self.service.note(&self.router, Some(&refusal));
            return Err(end(&self.outbound, refusal).await);
        }
        self.offer(&published.world, &published.traceparent).await?;
        self.caught_up().await
    }
}

/// When a router came or left, or some seconds later: what is forgotten of one that left makes no noise.
async fn changed_or_later(others: &mut watch::Receiver<u64>) {
    // The sender lives in `acks`, so this cannot fail.
    let _ = tokio::time::timeout(ALONE_AGAIN_AFTER, others.changed()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_panics_has_left_too() {
        let acks = Arc::<Acks>::default();
        assert!(acks.connected("a", RouterState::new(1, BTreeMap::new())));
        let left = DisconnectGuard {
            acks: acks.clone(),
            shares: Arc::default(),
            router: "a".to_owned(),
            epoch: 1,
        };
        let session = std::panic::AssertUnwindSafe(move || {
            let _left = left;
            panic!("a session")
        });
        assert!(std::panic::catch_unwind(session).is_err());
        assert!(
            acks.connected("a", RouterState::new(2, BTreeMap::new())),
            "it may come back"
        );
    }
}
