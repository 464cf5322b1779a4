//! The life of an identity: asked for until there is one, renewed at half of its life, asked for anew when it has expired.
//!
//! Never gives up: what is missing a person can mend without a restart. Callers: the agent's `join`, the router's `enroll`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use portolan_runtime::backoff::jittered;
use portolan_runtime::tls::Identity;
use portolan_runtime::{Backoff, Chain};

use crate::v1::Trust;

/// Waits between two failed renewals: half of a life is left for many.
const RENEW_RETRY_MIN: Duration = Duration::from_secs(1);
const RENEW_RETRY_MAX: Duration = Duration::from_mins(1);
/// Shortest time between two renewals, however short-lived the hub's certificates are.
const SHORTEST_RENEWAL: Duration = Duration::from_secs(1);
/// Timers stand still while a machine sleeps, and clocks are set: look again at least this often.
const LOOK_AGAIN: Duration = Duration::from_hours(1);

/// What one try has come to.
#[derive(Debug)]
pub enum Applied {
    /// There is an identity, kept and in use.
    Enrolled,
    /// The hub knows us and waits for a person.
    Pending {
        /// What is missing, in the hub's words.
        reason: String,
        /// How long to wait before the next try.
        wait: Duration,
    },
}

/// A program with a certificate of the hub: where it keeps that, and what it proves itself by.
pub trait Applicant: Sync {
    /// Why a try failed.
    type Error: std::error::Error + Send + 'static;

    /// The identity in use, which may have expired.
    fn identity(&self) -> Option<Arc<Identity>>;

    /// One try to have a good identity. Reads proof and key anew; whatever is issued is kept before it is used. Must not
    /// ask the hub if what is kept is good.
    fn apply(&self) -> impl Future<Output = Result<Applied, Self::Error>> + Send;

    /// One try to replace the identity by its own authority, kept before it is used.
    fn renew(&self) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Completes when the hub has said something of its CAs.
    fn told(&self) -> impl Future<Output = Trust> + Send {
        std::future::pending()
    }

    /// One try to trust these CAs (PEM) and no others, kept before it is used.
    fn trust(&self, _ca_pem: &str) -> impl Future<Output = Result<(), Self::Error>> + Send {
        std::future::ready(Ok(()))
    }

    /// Is told what a missing identity waits for.
    fn waits_for(&self, _what: String) {}

    /// Completes when the hub did not take the identity: [`Self::apply`] is tried once then.
    fn refused(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// Tries until there is an identity. Safe to cancel at any point.
pub async fn enroll_until_done(applicant: &impl Applicant) {
    let mut backoff = Backoff::default();
    loop {
        match applicant.apply().await {
            Ok(Applied::Enrolled) => return,
            Ok(Applied::Pending { reason, wait }) => {
                tracing::info!(
                    reason,
                    ?wait,
                    "not accepted yet: set spec.accept to true on this cluster's MemberCluster on the hub"
                );
                applicant.waits_for(format!("the hub's acceptance: {reason}"));
                tokio::time::sleep(jittered(wait)).await;
            }
            Err(error) => {
                // Also what looks final, an unknown token for example: it may be created a moment later.
                tracing::warn!(error = %Chain(&error), attempt = backoff.attempt(), "enrolment failed, trying again");
                applicant.waits_for(format!("an identity: {error}"));
                backoff.sleep().await;
            }
        }
    }
}

/// Enrols if need be, then renews until cancelled. A failed renewal leaves the old identity in force.
pub async fn keep_enrolled(applicant: &impl Applicant) {
    let mut backoff = Backoff::new(RENEW_RETRY_MIN, RENEW_RETRY_MAX);
    loop {
        let now = SystemTime::now();
        let Some(identity) = applicant.identity().filter(|identity| identity.not_after() > now) else {
            enroll_until_done(applicant).await;
            if applicant
                .identity()
                .is_none_or(|identity| identity.not_after() <= SystemTime::now())
            {
                tracing::warn!("the certificate has expired as it came: is the clock right here, and the hub's?");
                backoff.sleep().await;
            }
            continue;
        };
        let wait = until_half_life(&identity, now);
        if !wait.is_zero() {
            tokio::select! {
                () = tokio::time::sleep(jittered(wait.min(LOOK_AGAIN))) => {}
                () = applicant.refused() => apply_once(applicant).await,
                told = applicant.told() => obey(applicant, told).await,
            }
            continue;
        }
        match applicant.renew().await {
            Ok(()) => {
                tracing::info!("certificate renewed");
                backoff.reset();
                tokio::time::sleep(SHORTEST_RENEWAL).await;
            }
            Err(error) => {
                let left = identity.not_after().duration_since(now).unwrap_or_default();
                tracing::warn!(?left, error = %Chain(&error), "the certificate could not be renewed, trying again");
                backoff.sleep().await;
            }
        }
    }
}

/// The hub did not take the identity.
async fn apply_once(applicant: &impl Applicant) {
    match applicant.apply().await {
        Ok(Applied::Enrolled) => {}
        Ok(Applied::Pending { reason, .. }) => tracing::warn!(reason, "cannot enrol again yet"),
        Err(error) => tracing::warn!(error = %Chain(&error), "cannot enrol again yet"),
    }
}

/// Trusts what the hub says, then renews if it says so. Tries until it is done, the hub says something else, or there is no
/// identity any more that the hub takes.
async fn obey(applicant: &impl Applicant, mut told: Trust) {
    let mut backoff = Backoff::new(RENEW_RETRY_MIN, RENEW_RETRY_MAX);
    let is_good = |identity: Arc<Identity>| identity.not_after() > SystemTime::now();
    while applicant.identity().is_some_and(is_good) {
        let Err(error) = take_over(applicant, &told).await else {
            tracing::info!(renewed = told.renew, "the hub's CAs are taken over as it says");
            return;
        };
        tracing::warn!(error = %Chain(&error), "cannot take over the hub's CAs yet");
        // The identity goes on meanwhile.
        let due = applicant
            .identity()
            .is_some_and(|own| until_half_life(&own, SystemTime::now()).is_zero());
        if due && let Err(error) = applicant.renew().await {
            tracing::warn!(error = %Chain(&error), "the certificate could not be renewed, trying again");
        }
        tokio::select! {
            () = backoff.sleep() => {}
            newer = applicant.told() => told = newer,
            () = applicant.refused() => return apply_once(applicant).await,
        }
    }
}

async fn take_over<A: Applicant>(applicant: &A, told: &Trust) -> Result<(), A::Error> {
    applicant.trust(&told.ca_pem).await?;
    if told.renew {
        applicant.renew().await?;
    }
    Ok(())
}

/// How long from `now` until half of its life is over; zero if it is.
fn until_half_life(identity: &Identity, now: SystemTime) -> Duration {
    let subject = identity.subject();
    let life = subject.not_after.duration_since(subject.not_before).unwrap_or_default();
    let due = subject.not_before + life / 2;
    due.duration_since(now).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use portolan_runtime::pki::CertificateAuthority;

    use super::*;

    /// Is issued nothing but certificates that have expired already.
    struct Ahead {
        identity: Arc<Identity>,
        tries: AtomicU32,
    }

    impl Applicant for Ahead {
        type Error = std::io::Error;

        fn identity(&self) -> Option<Arc<Identity>> {
            Some(self.identity.clone())
        }

        async fn apply(&self) -> Result<Applied, Self::Error> {
            self.tries.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok(Applied::Enrolled)
        }

        async fn renew(&self) -> Result<(), Self::Error> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_ahead_does_not_make_enrolments_spin() {
        let ca = CertificateAuthority::generate("test").unwrap();
        let issued = ca.issue_client("ada", None, Duration::ZERO).unwrap();
        let ahead = Ahead {
            identity: Arc::new(Identity::from_pem(&issued.cert_pem, &issued.key_pem).unwrap()),
            tries: AtomicU32::new(0),
        };
        let minutes = Duration::from_mins(30);
        assert!(tokio::time::timeout(minutes, keep_enrolled(&ahead)).await.is_err());
        let tries = ahead.tries.load(Ordering::Relaxed);
        assert!((2..200).contains(&tries), "{tries}");
    }

    /// Is told what to trust, and to renew; the first tries of either fail.
    struct Obedient {
        identity: Arc<Identity>,
        news: crate::client::CaNews,
        /// In order.
        done: tokio::sync::watch::Sender<Vec<String>>,
    }

    impl Obedient {
        /// The first time it fails.
        fn does(&self, what: &str) -> Result<(), std::io::Error> {
            let before = self.done.borrow().iter().any(|done| done == what);
            self.done.send_modify(|done| done.push(what.to_owned()));
            before.then_some(()).ok_or_else(|| std::io::Error::other("not yet"))
        }
    }

    impl Applicant for Obedient {
        type Error = std::io::Error;

        fn identity(&self) -> Option<Arc<Identity>> {
            Some(self.identity.clone())
        }

        async fn apply(&self) -> Result<Applied, Self::Error> {
            Ok(Applied::Enrolled)
        }

        async fn renew(&self) -> Result<(), Self::Error> {
            self.does("renew")
        }

        async fn told(&self) -> Trust {
            self.news.take().await
        }

        async fn trust(&self, ca_pem: &str) -> Result<(), Self::Error> {
            self.does(ca_pem)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_hub_says_of_its_cas_is_done_in_order_and_tried_again() {
        let ca = CertificateAuthority::generate("test").unwrap();
        let issued = ca.issue_client("ada", None, Duration::from_hours(100)).unwrap();
        let obedient = Obedient {
            identity: Arc::new(Identity::from_pem(&issued.cert_pem, &issued.key_pem).unwrap()),
            news: crate::client::CaNews::default(),
            done: tokio::sync::watch::Sender::default(),
        };
        for (ca_pem, renew) in [("not taken", true), ("both", false)] {
            let ca_pem = ca_pem.to_owned();
            obedient.news.put(Trust { ca_pem, renew });
        }
        let both = tokio::time::timeout(Duration::from_mins(5), keep_enrolled(&obedient)).await;
        assert!(both.is_err());
        assert_eq!(*obedient.done.borrow(), ["both", "both"], "the last word counts");
        obedient.news.put(Trust {
            ca_pem: "new".to_owned(),
            renew: true,
        });
        let new = tokio::time::timeout(Duration::from_mins(5), keep_enrolled(&obedient)).await;
        assert!(new.is_err());
        assert_eq!(obedient.done.borrow()[2..], ["new", "new", "renew", "new", "renew"]);
    }

    #[test]
    fn renewed_at_half_of_its_life() {
        let ca = CertificateAuthority::generate("test").unwrap();
        let issued = ca.issue_client("ada", None, Duration::from_hours(1)).unwrap();
        let identity = Identity::from_pem(&issued.cert_pem, &issued.key_pem).unwrap();
        let now = SystemTime::now();
        let half = until_half_life(&identity, now);
        assert!(
            half > Duration::from_mins(25) && half < Duration::from_mins(30),
            "backdated: {half:?}"
        );
        assert_eq!(
            until_half_life(&identity, now + Duration::from_mins(50)),
            Duration::ZERO
        );
    }
}
