//! Which of several replicas of a program works: the one that holds a Lease and renews it.
//!
//! All others look at the Lease, tell by [`Role`] who leads, and take it when it has run out by their own clock, or was given back.
//! The Lease is what replicas go by to find out soon; where two must never act as one, something else has to say so. A replica that led
//! and does not any more ends: what it knows is of before. Callers: hub and agent.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, PostParams};
use kube::{Client, Error as KubeError};
use portolan_runtime::Chain;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

mod candidate;
mod lease;
mod pulse;

pub use candidate::{Candidate, Leads};
use lease::{Observer, given_back, holder};
pub use pulse::Pulse;

/// A request that takes longer has failed: the next one may still be in time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Which Lease, and how fast.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Name of the Lease.
    pub lease: &'static str,
    /// A Lease that nobody renewed for this long has run out.
    pub runs_out_after: Duration,
    /// Between two renewals.
    pub renew_every: Duration,
    /// Between two looks of who does not lead: one small read.
    pub look_every: Duration,
    /// The replica that leads may say so for this long without having looked.
    pub fresh_for: Duration,
}

/// Whether a replica leads, or whom it follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role<L> {
    /// Nobody is known to lead; why, if a look failed.
    Unknown(String),
    /// Another one leads.
    Follows(L),
    /// The replica leads.
    Leads,
}

/// One replica's part in the election.
pub struct Election<C: Candidate> {
    api: Api<Lease>,
    terms: Terms,
    this: C,
    role: watch::Sender<Role<C::Leader>>,
    pulse: Pulse,
}

/// What came of a try to hold the Lease.
enum Held<L> {
    Ours(Box<Lease>),
    Theirs(L),
    /// It is nobody's, or was changed meanwhile: another try may tell.
    Unclear,
}

impl<C: Candidate> Election<C> {
    /// `this`: what the Lease is to say once this one leads.
    pub fn new(client: Client, namespace: &str, terms: Terms, this: C) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            terms,
            this,
            role: watch::Sender::new(Role::Unknown(String::new())),
            pulse: Pulse::stopped(terms.fresh_for),
        }
    }

    /// The role of this replica, from now on.
    pub fn role(&self) -> watch::Receiver<Role<C::Leader>> {
        self.role.subscribe()
    }

    /// Whether it may speak as the one that leads.
    pub fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// Follows until it can lead, then leads. Gives the Lease back when `stop` ends it.
    ///
    /// # Errors
    /// Another replica leads in place of this one.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let Some(mut lease) = stop.run_until_cancelled(self.win()).await else {
            return Ok(());
        };
        tracing::info!(identity = self.this.identity(), "this replica leads");
        self.role.send_replace(Role::Leads);
        if let Some(lost) = stop.run_until_cancelled(self.keep(&mut lease)).await {
            anyhow::bail!("another replica leads: {}", lost.identity());
        }
        let (params, lease) = (PostParams::default(), given_back(&lease));
        let given_back =
            tokio::time::timeout(REQUEST_TIMEOUT, self.api.replace(self.terms.lease, &params, &lease)).await;
        if !matches!(given_back, Ok(Ok(_))) {
            tracing::warn!("the Lease is not given back: others wait until it has run out");
        }
        Ok(())
    }

    /// Looks until the Lease is this one's.
    async fn win(&self) -> Lease {
        let (mut observer, mut ticks) = (Observer::default(), ticks(self.terms.look_every));
        let mut failing = false;
        loop {
            ticks.tick().await;
            let outcome = self.look(&mut observer).await;
            if let Err(error) = &outcome {
                observer.failed();
                self.note(&Chain(error).to_string());
                if !failing {
                    tracing::warn!(error = %Chain(error), "cannot look who leads");
                }
            }
            failing = outcome.is_err();
            match outcome {
                Ok(Held::Ours(lease)) => return *lease,
                Ok(Held::Theirs(leader)) if self.this.ran_as(&leader) => {
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

    fn follow(&self, leader: C::Leader) {
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
    async fn look(&self, observer: &mut Observer) -> Result<Held<C::Leader>, LookError> {
        let asked = Instant::now();
        let Some(lease) = within(self.api.get_opt(self.terms.lease)).await? else {
            return self.hold(None, asked).await;
        };
        let Some(holder) = holder::<C::Leader>(&lease) else {
            return self.hold(Some(&lease), asked).await;
        };
        if holder.identity() == self.this.identity() {
            // A write that was given up was carried out.
            return self.hold(Some(&lease), asked).await;
        }
        if observer.is_renewed(&lease) {
            self.this.heard(&lease.metadata.annotations.clone().unwrap_or_default());
        }
        let runs_out_after = self.terms.runs_out_after + self.this.patience(&holder);
        if observer.looked(&lease, Instant::now(), runs_out_after) {
            tracing::info!(holder = holder.identity(), "the Lease has run out");
            return self.hold(Some(&lease), asked).await;
        }
        if self.this.supersedes(&holder).await {
            tracing::info!(?holder, "this replica leads in place of one that still does");
            // It may have been renewed meanwhile.
            let (asked, lease) = (Instant::now(), within(self.api.get_opt(self.terms.lease)).await?);
            return self.hold(lease.as_ref(), asked).await;
        }
        Ok(Held::Theirs(holder))
    }

    /// Writes this one into the Lease, in place of what was seen.
    async fn hold(&self, seen: Option<&Lease>, asked: Instant) -> Result<Held<C::Leader>, LookError> {
        let (params, lease) = (
            PostParams::default(),
            lease::held_by(&self.this, self.terms.lease, self.terms.runs_out_after, seen),
        );
        let written = match seen {
            Some(_) => within(self.api.replace(self.terms.lease, &params, &lease)).await,
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
    async fn keep(&self, lease: &mut Lease) -> C::Leader {
        let mut ticks = ticks(self.terms.renew_every);
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
    async fn look_again(&self) -> Result<Held<C::Leader>, LookError> {
        let asked = Instant::now();
        let lease = within(self.api.get_opt(self.terms.lease)).await?;
        match lease.as_ref().and_then(holder::<C::Leader>) {
            Some(holder) if holder.identity() != self.this.identity() => Ok(Held::Theirs(holder)),
            _ => self.hold(lease.as_ref(), asked).await,
        }
    }
}

/// Why it is not known who leads.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error("cannot read or write the Lease")]
    Kube(#[from] KubeError),
    #[error("the Lease was not read or written in time")]
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
