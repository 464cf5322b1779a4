//! Enrolment: a proof in, a certificate out.
//!
//! The subject follows from the proof and never from the CSR. Agents prove themselves by a bootstrap token and are pinned
//! here; routers by a bootstrap token, or by a bound token of a cluster's router ServiceAccount that the member's agent
//! reviews, or the hub's own API server, and get an object each (`routers`). Renewal needs the certificate it replaces with a key that is pinned, and the
//! standing it was given for. Texts of refusals name the
//! field and the fix; logs never show a token. Served by `server`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use portolan_crds::RouterPod;
use portolan_crds::labels::{HUB_CLUSTER, ROUTERS_NAMESPACE, SERVICE_ACCOUNT_ROUTER};
use portolan_crds::names::service_account_user;
use portolan_runtime::Secret;
use portolan_runtime::pki::{LeafSpec, PkiError, Usage, subject_of};
use portolan_wire::identity::Identity;
use portolan_wire::subscription::Subscription;
use portolan_wire::v1;
use portolan_wire::v1::enroll_request::Proof as WireProof;
use portolan_wire::v1::enroll_response::Outcome;
use portolan_wire::v1::enrollment_server::Enrollment;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::bootstrap::{Proof, Subject, TokenError, Tokens};
use crate::ca::Authorities;
use crate::facts::{MemberHistory, MemberObject, Pin};
use crate::index::Index;
use crate::jwks;
use crate::metrics::{EnrollOutcome, Metrics};
use crate::own_tokens::OwnTokens;
use crate::peer::Peer;
use crate::pins::{AgentKey, Pins};
use crate::routers::{Enrolling, Routers};
use crate::standing::{accepted, for_log, not_pinned, pin_or_note, standing};
use crate::stream::AgentSessions;
use crate::vouched::Vouched;

mod csr;
#[cfg(test)]
mod tests;

use csr::Csr;

/// Life of an agent's or router's certificate; they renew at half of it, so a hub may be away for days.
const IDENTITY_TTL: Duration = Duration::from_hours(7 * 24);
/// How long an agent waits before it asks again whether it has been accepted.
const PENDING_RETRY_SECONDS: u32 = 2;
/// How long an answer is held back for the acceptance to come; well below what callers wait for an answer.
const ACCEPT_WAIT: Duration = Duration::from_secs(5);

/// The service.
pub(crate) struct Enroller {
    pub(crate) ca: Arc<Authorities>,
    pub(crate) index: Arc<Index>,
    pub(crate) tokens: Tokens,
    pub(crate) pins: Pins,
    pub(crate) agents: Arc<AgentSessions>,
    pub(crate) own_tokens: OwnTokens,
    pub(crate) vouched: Vouched,
    /// Names of the certificates of routers that clusters vouch for.
    pub(crate) router_hosts: Vec<String>,
    /// Audience of the tokens that routers in Pods enrol with.
    pub(crate) audience: String,
    pub(crate) routers: Routers,
    pub(crate) metrics: Metrics,
    /// A semaphore: whoever can reach the port can ask, and each question costs the API server a read.
    pub(crate) permits: Arc<Semaphore>,
}

/// Enrolments under way; more are told to come again.
pub(crate) const MAX_ENROLMENTS: usize = 128;

#[tonic::async_trait]
impl Enrollment for Enroller {
    async fn enroll(&self, request: Request<v1::EnrollRequest>) -> Result<Response<v1::EnrollResponse>, Status> {
        let remote = Peer::of(&request)?.remote;
        let permit = self.permits.try_acquire();
        let _permit = permit.map_err(|_| Status::resource_exhausted("too many enrolments under way: ask again"))?;
        let outcome = self.try_enroll(request.into_inner()).await;
        match &outcome {
            Ok(Outcome::Issued(_)) => self.metrics.enrolled(EnrollOutcome::Issued),
            Ok(Outcome::Pending(pending)) => {
                self.metrics.enrolled(EnrollOutcome::Pending);
                tracing::info!(%remote, reason = for_log(&pending.reason), "enrolment is pending");
            }
            Err(status) => {
                self.metrics.enrolled(EnrollOutcome::Refused);
                tracing::warn!(%remote, code = ?status.code(), reason = for_log(status.message()), "enrolment refused");
            }
        }
        outcome.map(|outcome| Response::new(v1::EnrollResponse { outcome: Some(outcome) }))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::EnrollResponse>, Status> {
        let peer = Peer::of(&request)?;
        let identity = peer.identity()?;
        let csr = Csr::read(&request.get_ref().csr)?;
        let (usage, subscription) = match &identity {
            Identity::Agent(cluster) => {
                standing(&self.index, cluster)?;
                let moved = self.pins.renew(cluster, &peer.key_hash()?, &csr.key_hash).await;
                moved.map_err(|error| not_pinned(cluster, &error))?;
                (Usage::Client, None)
            }
            Identity::Router(name) => {
                let enrolled = self.routers.check(name, &peer.key_hash()?)?;
                let subscription = enrolled.subscription(&peer.subscription()?)?;
                self.routers.renew(&enrolled, &csr.key_hash).await?;
                (Usage::Both, Some(subscription))
            }
            Identity::Person { .. } => {
                return Err(Status::permission_denied(
                    "people's certificates are made by portolanctl kubeconfig, not renewed",
                ));
            }
        };
        let hosts = match &identity {
            // As at the first time: those that the hub gives all of them by now.
            Identity::Router(name) if Vouched::is_name(name) => csr.hosts_within(&self.router_hosts),
            // The names were vouched for when the certificate was issued, and it chains to our CA.
            _ => peer.subject.map(|subject| subject.hosts).unwrap_or_default(),
        };
        let names = Names {
            identity: &identity,
            hosts,
            subscription: subscription.as_ref(),
        };
        let issued = self.issue(&csr, names, usage)?;
        tracing::info!(%identity, "certificate renewed");
        self.metrics.enrolled(EnrollOutcome::Renewed);
        Ok(Response::new(v1::EnrollResponse {
            outcome: Some(Outcome::Issued(issued)),
        }))
    }
}

impl Enroller {
    async fn try_enroll(&self, request: v1::EnrollRequest) -> Result<Outcome, Status> {
        let csr = Csr::read(&request.csr)?;
        match request.proof {
            Some(WireProof::BootstrapToken(token)) => {
                let mut proof = self
                    .tokens
                    .check(&Secret::new(token), Timestamp::now())
                    .await
                    .map_err(token_refused)?;
                match proof.subject.clone() {
                    Subject::Agent { cluster } => self.enroll_agent(&mut proof, &cluster, &csr, request.member).await,
                    Subject::Router {
                        name,
                        sans,
                        subscription,
                    } => {
                        let made = proof.router_uid.clone();
                        let router = Enrolling {
                            name: &name,
                            key_hash: &csr.key_hash,
                            subscription: &subscription,
                            vouched_pod: None,
                            said_pod: request.pod,
                            made: made.as_deref(),
                        };
                        self.spend_on_router(&mut proof, router).await?;
                        let names = Names {
                            identity: &Identity::Router(name),
                            hosts: csr.hosts_within(&sans),
                            subscription: Some(&subscription),
                        };
                        self.issue(&csr, names, Usage::Both).map(Outcome::Issued)
                    }
                }
            }
            Some(WireProof::BoundToken(bound)) => self.enroll_bound(bound, &csr).await.map(Outcome::Issued),
            None => Err(Status::invalid_argument("proof: send bootstrapToken or boundToken")),
        }
    }

    /// Makes the object of the router that a bootstrap token names; of one that was forgotten the token makes no other.
    async fn spend_on_router(&self, proof: &mut Proof, router: Enrolling<'_>) -> Result<(), Status> {
        self.tokens.spend(proof, router.key_hash).await.map_err(token_refused)?;
        let uid = self.routers.enrol(router).await?;
        self.tokens.note_router(proof, &uid).await.map_err(token_refused)
    }

    async fn enroll_agent(
        &self,
        proof: &mut Proof,
        cluster: &str,
        csr: &Csr,
        facts: Option<v1::MemberFacts>,
    ) -> Result<Outcome, Status> {
        let facts =
            facts.ok_or_else(|| Status::invalid_argument("member: agents must tell their cluster's UID and keys"))?;
        if facts.cluster_uid.is_empty() {
            return Err(Status::invalid_argument(
                "member.clusterUID: is empty: send the UID of namespace kube-system",
            ));
        }
        let signing_keys =
            jwks::parse(&facts.jwks).map_err(|error| Status::invalid_argument(format!("member.{error}")))?;
        // Before anything that can keep the agent waiting: from here on no other key is served.
        self.tokens.spend(proof, &csr.key_hash).await.map_err(token_refused)?;
        let member = match self.accepted(cluster).await {
            Ok(member) => member,
            Err(reason) => return Ok(pending(reason)),
        };
        let pin = Pin {
            member_uid: member.uid,
            cluster_uid: facts.cluster_uid,
            // Those that it has proven before stay; others are proven on its stream.
            signing_keys,
            agent_keys: Vec::new(),
            history: MemberHistory::default(),
        };
        pin_or_note(
            &self.pins,
            &self.index,
            cluster,
            &pin,
            AgentKey::Enrolled(&csr.key_hash),
        )
        .await?;
        let identity = Identity::Agent(cluster.to_owned());
        let names = Names {
            identity: &identity,
            hosts: Vec::new(),
            subscription: None,
        };
        let issued = self.issue(csr, names, Usage::Client)?;
        tracing::info!(cluster, "agent enrolled");
        Ok(Outcome::Issued(issued))
    }

    /// The MemberCluster once it is accepted; waits a little, as it is often made in the same breath. Else why not.
    async fn accepted(&self, cluster: &str) -> Result<MemberObject, String> {
        let mut changes = self.index.compile_changes();
        let deadline = Instant::now() + ACCEPT_WAIT;
        loop {
            let reason = match self.index.read(|facts| accepted(facts, cluster).cloned()) {
                Ok(member) => return Ok(member),
                Err(reason) => reason,
            };
            if !matches!(tokio::time::timeout_at(deadline, changes.changed()).await, Ok(Ok(()))) {
                return Err(reason);
            }
        }
    }

    /// A router in a Pod: the member's agent says whose token it is, of the hub's own cluster its API server.
    async fn enroll_bound(&self, bound: v1::BoundToken, csr: &Csr) -> Result<v1::Issued, Status> {
        self.vouched.check_member(&bound.cluster)?;
        let is_own = bound.cluster == HUB_CLUSTER;
        let (token, audience) = (Secret::new(bound.token), self.audience.clone());
        let review = if is_own {
            self.own_tokens.review(&token, audience).await
        } else {
            let review = self.agents.review(&bound.cluster, token, vec![audience]).await;
            review.map_err(|error| error.to_string())
        };
        let review = review.map_err(|error| Status::unavailable(format!("boundToken: {error}")))?;
        if !review.authenticated {
            return Err(Status::unauthenticated(format!(
                "boundToken.token: cluster {} does not know this token (audience {}): {}",
                bound.cluster, self.audience, review.error
            )));
        }
        let wanted = service_account_user(ROUTERS_NAMESPACE, SERVICE_ACCOUNT_ROUTER);
        if review.username != wanted {
            return Err(Status::permission_denied(format!(
                "boundToken.token: is of {}, and only {wanted} may enrol as a router",
                review.username
            )));
        }
        let Some(name) = Vouched::name(&bound.cluster, &review.pod) else {
            return Err(Status::permission_denied(format!(
                "boundToken.token: is bound to no Pod: project it into the router's Pod with audience {}",
                self.audience
            )));
        };
        let pod = RouterPod {
            cluster: Some(bound.cluster),
            name: review.pod,
            uid: review.pod_uid,
        };
        let router = Enrolling {
            name: &name,
            key_hash: &csr.key_hash,
            subscription: &Subscription::Everything,
            vouched_pod: Some(pod),
            said_pod: None,
            made: None,
        };
        self.routers.enrol(router).await?;
        let identity = Identity::Router(name);
        // A Pod proves no host of its own: it has those that the hub gives all of them. Members that may vouch do so for gateways.
        let names = Names {
            identity: &identity,
            hosts: csr.hosts_within(&self.router_hosts),
            subscription: Some(&Subscription::Everything),
        };
        let issued = self.issue(csr, names, Usage::Both)?;
        tracing::info!(%identity, "router enrolled by its bound token");
        Ok(issued)
    }

    fn issue(&self, csr: &Csr, names: Names<'_>, usage: Usage) -> Result<v1::Issued, Status> {
        let leaf = LeafSpec {
            common_name: names.identity.common_name(),
            organization: names.identity.organizations().into_iter().next(),
            hosts: names.hosts,
            uris: names.subscription.map(Subscription::to_uris).unwrap_or_default(),
            ttl: IDENTITY_TTL,
            usage,
        };
        let ca = self.ca.current();
        let certificate_pem = ca
            .of(names.identity)
            .sign_csr(&csr.der, &leaf)
            .map_err(|error| match error {
                PkiError::Csr(_) | PkiError::CsrTooLarge(_) | PkiError::Name { .. } => {
                    Status::invalid_argument(format!("csr: {error}"))
                }
                error => {
                    tracing::error!(%error, "cannot issue a certificate");
                    Status::internal("the hub cannot issue certificates, see its log")
                }
            })?;
        let not_after = not_after(&certificate_pem).unwrap_or_default();
        Ok(v1::Issued {
            certificate_pem,
            ca_pem: ca.bundle().to_owned(),
            not_after_unix_seconds: not_after,
        })
    }
}

/// What a certificate says of its owner.
struct Names<'a> {
    identity: &'a Identity,
    hosts: Vec<String>,
    /// What a router may be told; `None` for an agent.
    subscription: Option<&'a Subscription>,
}

fn pending(reason: String) -> Outcome {
    Outcome::Pending(v1::Pending {
        reason,
        retry_after_seconds: PENDING_RETRY_SECONDS,
    })
}

fn token_refused(error: TokenError) -> Status {
    match &error {
        TokenError::Unknown | TokenError::Expired(_) => Status::unauthenticated(error.to_string()),
        TokenError::Spent => Status::permission_denied(error.to_string()),
        TokenError::Malformed { .. } => Status::failed_precondition(error.to_string()),
        TokenError::Kube { secret, source } => {
            tracing::error!(secret, error = %source, "cannot check a bootstrap token");
            Status::unavailable("the hub cannot check bootstrap tokens now: try again")
        }
    }
}

fn not_after(certificate_pem: &str) -> Option<i64> {
    let der = CertificateDer::from_pem_slice(certificate_pem.as_bytes()).ok()?;
    let since: SystemTime = subject_of(&der).ok()?.not_after;
    i64::try_from(since.duration_since(UNIX_EPOCH).ok()?.as_secs()).ok()
}
