//! Who asks? A bound ServiceAccount token of exactly one member, or a person's client certificate of the hub CA.
//!
//! The signing key decides which member a token comes from; signature, times, audience and Pod binding are judged here,
//! then that member alone is asked by TokenReview (kept for seconds, by hash; the token too, where a connection sends it again). What the caller may do is in its
//! `CallerView`, looked up in the request's own snapshot each time. No token reaches a log, a span or an error. Caller:
//! `edge`; `accept` makes the [`PeerIdentity`].

mod cache;
pub(crate) mod metrics;
mod review;
mod token;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use portolan_runtime::{pki, telemetry};
use portolan_wire::identity::Identity;
use rustls_pki_types::CertificateDer;
use tokio::sync::Notify;
use tracing::{Instrument as _, Span};

pub(crate) use self::cache::LastToken;
use self::cache::{TokenCache, TokenHash};
use self::metrics::{Identified, IdentifyMetrics};
pub(crate) use self::token::signer;
use self::token::{Audiences, MAX_TOKEN_BYTES, Named, Reviewed, TokenError};
use crate::resource::access::MemberApi;
use crate::stage::admit::{Admit, Arrival, head_bytes};
use crate::value::classify::ApiRequest;
use crate::value::fault::Fault;
use crate::value::media::elements;
use crate::value::snapshot::keys::{KeyOwner, SigningKey};
use crate::value::snapshot::{Binding, Caller, CallerView, Snapshot};

/// Before a token in base64url, in `Sec-WebSocket-Protocol`.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Who a client certificate belongs to. The handshake verified its chain against the hub CA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerIdentity {
    identity: Identity,
    /// Connections outlive certificates; requests on them do not.
    not_after: SystemTime,
}

impl PeerIdentity {
    /// From the chain that a client presented, leaf first. `None` if its subject is nobody.
    pub(crate) fn from_certificates(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let subject = pki::subject_of(chain.first()?).ok()?;
        let identity = Identity::of_certificate(&subject.issuer, &subject.common_name, &subject.organizations)?;
        Some(Self {
            identity,
            not_after: subject.not_after,
        })
    }
}

/// Whose tokens are taken.
#[derive(Debug, Clone)]
pub(crate) struct IdentityConfig {
    /// Audience of callers' tokens.
    pub(crate) audience: String,
    /// The API server's own audience too.
    pub(crate) accept_api_audience: bool,
}

/// What is known of who sent a request before it is known who that is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sender<'a> {
    pub(crate) head: &'a Parts,
    /// Of the client certificate.
    pub(crate) peer: Option<&'a PeerIdentity>,
    /// The caller of the connection, as far as it is known already.
    pub(crate) last: &'a LastToken,
    /// What it sent.
    pub(crate) asked: &'a ApiRequest,
}

/// What can be said of a sender without asking anybody.
enum Known {
    Person {
        user: String,
        groups: Vec<String>,
    },
    /// Its token was reviewed a moment ago.
    Pod(Arc<Reviewed>),
    /// A key of a member signed its token, which is to be reviewed there.
    Signed(Box<Signed>),
}

/// A token that a member's key signed.
struct Signed {
    token: String,
    hash: TokenHash,
    /// What is left of the token's own.
    life: Duration,
    claimed: Reviewed,
}

/// The stage. One per process, shared by all requests.
pub(crate) struct Identifier {
    config: IdentityConfig,
    members: Arc<dyn MemberApi>,
    /// Bounds reviews.
    admit: Arc<Admit>,
    cache: TokenCache,
    metrics: IdentifyMetrics,
}

impl Identifier {
    pub(crate) fn new(
        config: IdentityConfig,
        members: Arc<dyn MemberApi>,
        admit: Arc<Admit>,
        metrics: IdentifyMetrics,
    ) -> Self {
        let cache = TokenCache::default();
        Self {
            config,
            members,
            admit,
            cache,
            metrics,
        }
    }

    /// 401 for nobody, 403 for a Pod of no shard or several, 503 while its member cannot be asked. Safe to drop.
    pub(crate) async fn identify(&self, sender: &Sender<'_>, snapshot: &Snapshot) -> Result<Caller, Fault> {
        let outcome = self.identify_at(sender, snapshot, SystemTime::now()).await;
        self.metrics.outcome(match &outcome {
            Ok(Caller::Pod(_)) => Identified::Pod,
            Ok(Caller::Person { .. }) => Identified::Person,
            Err(Fault::Unauthenticated(_)) => Identified::Unauthenticated,
            Err(Fault::Forbidden(_)) => Identified::Forbidden,
            Err(_) => Identified::Unavailable,
        });
        outcome
    }

    async fn identify_at(&self, sender: &Sender<'_>, snapshot: &Snapshot, now: SystemTime) -> Result<Caller, Fault> {
        let reviewed = match self.known(sender, snapshot, now)? {
            Known::Person { user, groups } => return Ok(Caller::Person { user, groups }),
            Known::Pod(reviewed) => reviewed,
            Known::Signed(signed) => {
                let span = reviewed_at(&signed.claimed.key.home_cluster);
                let tenant = tenant_of(&signed.claimed, snapshot);
                self.review(*signed, tenant, sender).instrument(span).await?
            }
        };
        caller_of(&reviewed, snapshot).map(Caller::Pod)
    }

    /// Waits for nothing: whoever is known, or known to be nobody, does not stand behind those whom a member must be asked
    /// about.
    fn known(&self, sender: &Sender<'_>, snapshot: &Snapshot, now: SystemTime) -> Result<Known, Fault> {
        // As an API server does: a certificate that is somebody comes first.
        if let Some(PeerIdentity {
            identity: Identity::Person { user, groups },
            not_after,
        }) = sender.peer
            && now < *not_after
        {
            let (user, groups) = (user.clone(), groups.clone());
            return Ok(Known::Person { user, groups });
        }
        let Some(token) = bearer(&sender.head.headers)? else {
            return Err(no_identity(sender.peer, &self.config.audience));
        };
        if snapshot.generation == 0 {
            return Err(Fault::Unavailable {
                message: "the router has no routing state yet: neither from its hub nor from its state file".to_owned(),
                cluster: None,
                sent: false,
            });
        }
        if token.len() > MAX_TOKEN_BYTES {
            return Err(unauthenticated(&TokenError::NotAToken));
        }
        if let Some(reviewed) = sender.last.is(&token) {
            self.metrics.source(cache::AnswerSource::Kept);
            return Ok(Known::Pod(reviewed));
        }
        let hash = TokenHash::of(&token);
        if let Some(outcome) = self.cache.kept_over(sender.last, &token, hash) {
            self.metrics.source(cache::AnswerSource::Kept);
            return outcome.map(Known::Pod);
        }
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let claimed = self.verify(&token, snapshot, now)?;
        Ok(Known::Signed(Box::new(Signed {
            token: token.into_owned(),
            hash,
            life: Duration::from_secs(claimed.expires.saturating_sub(now)),
            claimed,
        })))
    }

    fn kept(&self, hash: TokenHash) -> Option<cache::Outcome> {
        let outcome = self.cache.kept(hash);
        outcome.inspect(|_| self.metrics.source(cache::AnswerSource::Kept))
    }

    /// Asks the member that signed it, or waits for the answer that another request with it waits for.
    async fn review(&self, signed: Signed, tenant: Arc<str>, sender: &Sender<'_>) -> Result<Arc<Reviewed>, Fault> {
        let Signed {
            token,
            hash,
            life,
            claimed,
        } = signed;
        // Another request's answer may have come while its signature was verified.
        if let Some(outcome) = self.kept(hash) {
            return outcome;
        }
        let member = claimed.key.home_cluster.clone();
        let _arrived = self.admit.arrive(&Arrival {
            member: &member,
            tenant: &tenant,
            head: head_bytes(sender.head),
            asked: sender.asked,
        })?;
        let (members, admit) = (self.members.clone(), self.admit.clone());
        let permit = |lease: Arc<Notify>| async move { admit.review(&member, &tenant, lease.notified()).await };
        let review = review::review(members, token, claimed);
        let (running, source) = self.cache.review(hash, life, permit, review);
        if sender.asked.is_lease() {
            running.hurry();
        }
        let outcome = running.outcome().await;
        self.metrics.source(source);
        self.metrics.kept(self.cache.len());
        outcome
    }

    /// Lets go of answers that are over, and of their tokens, while nobody asks. Runs for ever.
    pub(crate) fn forget(&self) -> impl Future<Output = ()> + use<> {
        let metrics = self.metrics.clone();
        self.cache.forget(move |kept| metrics.kept(kept))
    }

    /// By the pinned keys alone; nobody is asked about a token that no member signed.
    fn verify(&self, token: &str, snapshot: &Snapshot, now: u64) -> Result<Reviewed, Fault> {
        let named = token::parse_header(token).map_err(|error| unauthenticated(&error))?;
        let candidates = snapshot.keys.candidates(Some(&named.kid));
        let audiences = Audiences {
            wanted: &self.config.audience,
            api_server: self.config.accept_api_audience,
        };
        let mut refusal = None;
        for SigningKey { owner, jwk } in candidates {
            let cluster = match owner {
                KeyOwner::Cluster(cluster) => cluster,
                // Its token may be of a Pod of any of them.
                KeyOwner::Conflict(clusters) if token::is_signed_by(token, &named, jwk) => {
                    return Err(shared_key(clusters));
                }
                // A kid is only a name: whoever publishes another key under it must not shut others out.
                KeyOwner::Conflict(_) => continue,
            };
            match token::verify(token, &named, (cluster, jwk), &audiences, now) {
                Ok(claimed) => return Ok(claimed),
                // Perhaps of another key of this name. Any other error is of a token that did verify.
                Err(error @ TokenError::Signature(_)) => _ = refusal.get_or_insert(error),
                Err(error) => refusal = Some(error),
            }
        }
        Err(refusal.map_or_else(|| unknown_key(&named), |error| unauthenticated(&error)))
    }
}

/// The span of who waits for its token's review, also for one that another request began.
fn reviewed_at(cluster: &str) -> Span {
    telemetry::child(|| {
        let name = format!("token review of {cluster}");
        tracing::info_span!(
            "token review",
            otel.name = name,
            otel.kind = "client",
            peer.service = cluster,
            cluster
        )
    })
}

/// The token of `Authorization: Bearer`, else the one that browsers put among the protocols of a WebSocket. Two
/// Authorization headers, or another scheme, are refused: guessing is worse.
fn bearer(headers: &HeaderMap) -> Result<Option<Cow<'_, str>>, Fault> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else {
        return Ok(websocket_token(headers).map(Cow::Owned));
    };
    if values.next().is_some() {
        return Err(Fault::Unauthenticated(
            "several Authorization headers: send one".to_owned(),
        ));
    }
    let token = bearer_value(value)
        .ok_or_else(|| Fault::Unauthenticated("the Authorization header carries no bearer token".to_owned()))?;
    Ok(Some(Cow::Borrowed(token)))
}

/// As the API server reads it. `rewrite` takes it away before the member sees it.
fn websocket_token(headers: &HeaderMap) -> Option<String> {
    let mut protocols = elements(headers, &SEC_WEBSOCKET_PROTOCOL);
    let encoded = protocols.find_map(|protocol| protocol.strip_prefix(TOKEN_PROTOCOL))?;
    String::from_utf8(URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()
}

fn bearer_value(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn no_identity(peer: Option<&PeerIdentity>, audience: &str) -> Fault {
    let what = match peer {
        None => "no identity",
        Some(PeerIdentity {
            identity: Identity::Person { .. },
            ..
        }) => "the client certificate has expired",
        Some(_) => "the certificate of an agent or router is no caller's",
    };
    Fault::Unauthenticated(format!(
        "{what}: send the bearer token of a Pod's ServiceAccount with audience {audience:?}, or a client certificate of \
         the hub CA (portolanctl kubeconfig)"
    ))
}

fn unauthenticated(error: &TokenError) -> Fault {
    Fault::Unauthenticated(error.to_string())
}

fn unknown_key(_named: &Named) -> Fault {
    // The kid is not repeated: until a key verifies it, it is whatever the client wrote.
    Fault::Unauthenticated(
        "no member cluster published the key that signed the token: it is not of a joined member, or the member has \
         rotated its keys and its agent has not reported them yet"
            .to_owned(),
    )
}

fn shared_key(clusters: &[Arc<str>]) -> Fault {
    Fault::Unauthenticated(format!(
        "the token's signing key is published by several members ({}), so it cannot tell whose Pod this is: give each \
         cluster its own ServiceAccount signing key",
        clusters.join(", ")
    ))
}

/// The view of a reviewed Pod in this snapshot.
fn caller_of(reviewed: &Reviewed, snapshot: &Snapshot) -> Result<Arc<CallerView>, Fault> {
    let pod = Pod(reviewed);
    let Some(view) = snapshot.callers.get(&reviewed.key) else {
        return Err(Fault::Forbidden(if namesake(reviewed, snapshot) {
            format!(
                "{pod} has the name of a caller but another uid: it was replaced and the hub has not heard of it yet"
            )
        } else {
            format!(
                "{pod} belongs to no shard: no ShardingConfig in its namespace selects it, or the hub has not heard of the Pod \
                 from the agent of its cluster (portolanctl get callers)"
            )
        }));
    };
    if *view.namespace != *reviewed.namespace || view.service_account != reviewed.service_account {
        return Err(Fault::Forbidden(format!(
            "{pod} is known to the hub as Pod {}/{} of ServiceAccount {}",
            view.namespace, view.pod, view.service_account
        )));
    }
    match &view.binding {
        // Planning says what is missing of a shard.
        Binding::One(_) | Binding::Unknown { .. } => Ok(view.clone()),
        Binding::None => Err(Fault::Forbidden(format!("{pod} belongs to no shard"))),
        Binding::Several(configs) => Err(Fault::Forbidden(format!(
            "{pod} belongs to {} shards, which must be one: {}; narrow their selectors",
            configs.len(),
            configs.join(", ")
        ))),
    }
}

/// With whom those share who wait for the token's review: what it says is true, but perhaps no more.
fn tenant_of(claimed: &Reviewed, snapshot: &Snapshot) -> Arc<str> {
    match snapshot.callers.get(&claimed.key) {
        Some(view) => Caller::Pod(view.clone()).tenant(),
        None => Caller::NO_SHARD.into(),
    }
}

/// Whether a caller of the same name is known. Walks all callers, in a refusal only.
fn namesake(reviewed: &Reviewed, snapshot: &Snapshot) -> bool {
    snapshot.callers.values().any(|view| {
        view.key.home_cluster == reviewed.key.home_cluster
            && *view.namespace == *reviewed.namespace
            && view.pod == reviewed.pod
    })
}

struct Pod<'a>(&'a Reviewed);

impl std::fmt::Display for Pod<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Reviewed {
            key,
            namespace,
            pod,
            service_account,
            ..
        } = self.0;
        write!(
            f,
            "Pod {namespace}/{pod} (ServiceAccount {service_account}) of member {}",
            key.home_cluster
        )
    }
}

#[cfg(test)]
pub(crate) mod signer;
#[cfg(test)]
mod tests;
