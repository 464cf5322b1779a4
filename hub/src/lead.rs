//! Which of the hub's replicas leads: the one that holds the Lease and renews it each second.
//!
//! All others look at the Lease, tell by [`Role`] who leads, and take it when it has run out by their own clock, or was given back.
//! The Lease is what replicas go by to find out soon; that two never act as one hub is by the ledger's term. A replica that led and
//! does not any more ends: what it knows is of before. Callers: `app`, which leads or follows; `splice` and `stream`, by what they are
//! told.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, PostParams};
use kube::{Client, Error as KubeError};
use portolan_crds::labels::LEASE_HUB;
use portolan_runtime::Chain;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::acks::Acks;
use crate::index::Index;

mod announce;
mod lease;
mod pulse;
mod rollout;

pub(crate) use announce::announce;
pub(crate) use lease::Leader;
use lease::{Observer, RUNS_OUT_AFTER, given_back, known_for};
pub(crate) use pulse::Pulse;
use rollout::Rollout;

/// Between two renewals.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// Between two looks of who does not lead: one small read.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A request that takes longer has failed: the next one may still be in time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether a replica leads, or whom it follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Role {
    /// Nobody is known to lead; why, if a look failed.
    Unknown(String),
    /// Another one leads.
    Follows(Leader),
    /// The replica leads.
    Leads,
}

/// What a replica that leads says to others, and by what right.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mandate {
    /// Goes with every transaction and order.
    pub(crate) term: u64,
    pub(crate) pulse: Pulse,
}

/// One replica's part in the election.
pub(crate) struct Election {
    api: Api<Lease>,
    client: Client,
    /// Of this replica, if it runs in one.
    pod: Option<String>,
    this: Leader,
    role: watch::Sender<Role>,
    pulse: Pulse,
    acks: Arc<Acks>,
    index: Arc<Index>,
}

/// What a replica that follows goes by, from look to look.
struct Sight {
    observer: Observer,
    rollout: Rollout,
}

/// What came of a try to hold the Lease.
enum Held {
    Ours(Box<Lease>),
    Theirs(Leader),
    /// It is nobody's, or was changed meanwhile: another try may tell.
    Unclear,
}

impl Election {
    /// `this`: what the Lease is to say once this one leads.
    pub(crate) fn new(client: Client, namespace: &str, this: Leader, (acks, index): (Arc<Acks>, Arc<Index>)) -> Self {
        Self {
            api: Api::namespaced(client.clone(), namespace),
            client,
            pod: None,
            this,
            role: watch::Sender::new(Role::Unknown(String::new())),
            pulse: Pulse::stopped(),
            acks,
            index,
        }
    }

    /// Of a replica that runs in this Pod: it leads in place of one of an earlier template of its Deployment that has other settings.
    pub(crate) fn in_pod(mut self, pod: Option<String>) -> Self {
        self.pod = pod;
        self
    }

    /// The role of this replica, from now on.
    pub(crate) fn role(&self) -> watch::Receiver<Role> {
        self.role.subscribe()
    }

    /// Whether it may speak as the hub.
    pub(crate) fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// Follows until it can lead, then leads. Gives the Lease back when `stop` ends it.
    ///
    /// # Errors
    /// Another replica leads in place of this one.
    pub(crate) async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let Some(mut lease) = stop.run_until_cancelled(self.win()).await else {
            return Ok(());
        };
        tracing::info!(identity = self.this.identity, "this replica leads");
        self.role.send_replace(Role::Leads);
        if let Some(lost) = stop.run_until_cancelled(self.keep(&mut lease)).await {
            anyhow::bail!(
                "another replica leads: {}, at {}",
                lost.identity,
                lost.address.unwrap_or_default()
            );
        }
        let (params, lease) = (PostParams::default(), given_back(&lease));
        let given_back = tokio::time::timeout(REQUEST_TIMEOUT, self.api.replace(LEASE_HUB, &params, &lease)).await;
        if !matches!(given_back, Ok(Ok(_))) {
            tracing::warn!("the Lease is not given back: others wait until it has run out");
        }
        Ok(())
    }

    /// Looks until the Lease is this one's.
    async fn win(&self) -> Lease {
        let namespace = self.api.namespace().unwrap_or_default();
        let mut sight = Sight {
            observer: Observer::default(),
            rollout: Rollout::new(self.client.clone(), namespace, self.pod.clone()),
        };
        let mut ticks = ticks(LOOK_EVERY);
        let mut failing = false;
        loop {
            ticks.tick().await;
            let outcome = self.look(&mut sight).await;
            if let Err(error) = &outcome {
                sight.observer.failed();
                self.note(&Chain(error).to_string());
                if !failing {
                    tracing::warn!(error = %Chain(error), "cannot look who leads");
                }
            }
            failing = outcome.is_err();
            match outcome {
                Ok(Held::Ours(lease)) => return *lease,
                Ok(Held::Theirs(leader)) if leader.address.is_some() && leader.address == self.this.address => {
                    self.note("once the Lease of the process that was at this address before has run out");
                }
                Ok(Held::Theirs(leader)) => self.follow(leader),
                Ok(Held::Unclear) | Err(_) => {}
            }
        }
    }

    /// Nobody is found who can be followed. Who was seen to lead before is followed on.
    fn note(&self, error: &str) {
        self.role.send_if_modified(|role| {
            let is_news = matches!(role, Role::Unknown(why) if why != error);
            if is_news {
                *role = Role::Unknown(error.to_owned());
            }
            is_news
        });
    }

    fn follow(&self, leader: Leader) {
        self.role.send_if_modified(|role| {
            let next = Role::Follows(leader);
            let is_news = *role != next;
            if is_news {
                tracing::info!(role = ?next, "another replica leads");
                *role = next;
            }
            is_news
        });
    }

    /// Takes the Lease if it can be taken.
    async fn look(&self, sight: &mut Sight) -> Result<Held, LookError> {
        let asked = Instant::now();
        let Some(lease) = within(self.api.get_opt(LEASE_HUB)).await? else {
            return self.hold(None, asked).await;
        };
        let Some(holder) = Leader::of(&lease) else {
            return self.hold(Some(&lease), asked).await;
        };
        if holder.identity == self.this.identity {
            // A write that was given up was carried out.
            return self.hold(Some(&lease), asked).await;
        }
        if sight.observer.is_renewed(&lease) {
            self.acks.inherit_known_for(known_for(&lease));
        }
        // Those that agree with the one before come first.
        let differs = holder.differs(&self.this.settings);
        let patience = differs.as_ref().map_or(Duration::ZERO, |_| RUNS_OUT_AFTER);
        if sight.observer.looked(&lease, Instant::now(), patience) {
            tracing::info!(holder = holder.identity, "the Lease has run out");
            return self.hold(Some(&lease), asked).await;
        }
        if let Some(differs) = differs
            && sight.rollout.is_present().await
        {
            tracing::info!(
                holder = holder.identity,
                differs,
                "the one that leads is of earlier settings: this one takes its place"
            );
            return self.hold(Some(&lease), Instant::now()).await;
        }
        Ok(Held::Theirs(holder))
    }

    /// Writes this one into the Lease, in place of what was seen.
    async fn hold(&self, seen: Option<&Lease>, asked: Instant) -> Result<Held, LookError> {
        let known_for = self.acks.known_for(self.index.read(|facts| facts.router_gone));
        let (params, lease) = (PostParams::default(), self.this.lease(seen, known_for));
        let written = match seen {
            Some(_) => within(self.api.replace(LEASE_HUB, &params, &lease)).await,
            None => within(self.api.create(&params, &lease)).await,
        };
        match written {
            Ok(lease) => {
                self.pulse.beat(asked);
                Ok(Held::Ours(Box::new(lease)))
            }
            Err(LookError::Kube(KubeError::Api(status))) if [404, 409].contains(&status.code) => Ok(Held::Unclear),
            Err(error) => Err(error),
        }
    }

    /// Renews the Lease until it is another one's.
    async fn keep(&self, lease: &mut Lease) -> Leader {
        let mut ticks = ticks(RENEW_EVERY);
        loop {
            ticks.tick().await;
            let renewed = match self.hold(Some(lease), Instant::now()).await {
                Ok(Held::Unclear) => self.look_again().await,
                renewed => renewed,
            };
            match renewed {
                Ok(Held::Ours(next)) => *lease = *next,
                Ok(Held::Theirs(leader)) => return leader,
                Ok(Held::Unclear) => {}
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "the Lease is not renewed");
                    self.pulse.goes_on();
                }
            }
        }
    }

    /// Whose it is by now. One that is nobody's is this one's again.
    async fn look_again(&self) -> Result<Held, LookError> {
        let asked = Instant::now();
        let lease = within(self.api.get_opt(LEASE_HUB)).await?;
        match lease.as_ref().and_then(Leader::of) {
            Some(holder) if holder.identity != self.this.identity => Ok(Held::Theirs(holder)),
            _ => self.hold(lease.as_ref(), asked).await,
        }
    }
}

/// Why it is not known who leads.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error("cannot read or write Lease {LEASE_HUB}")]
    Kube(#[from] KubeError),
    #[error("Lease {LEASE_HUB} was not read or written in time")]
    Late,
}

async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, LookError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(outcome) => Ok(outcome?),
        Err(_) => Err(LookError::Late),
    }
}

fn ticks(period: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

#[cfg(test)]
mod tests;
