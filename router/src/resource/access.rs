//! May they? The questions of a plan that only somebody else can answer: the hub for people who use the explicit view,
//! a member for callers who act as another user.
//!
//! Answers are kept for seconds, in bounded number. While the hub is away its last answer stands for an hour: people who
//! were at work go on, also over a restart (`remember`), nobody new comes in. A member's answer never outlives ten
//! seconds. Callers: between plan and dispatch `edge`, and `fanout` before it asks a member.

mod hub;
mod kept;
mod member;
mod remember;

use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use portolan_crds::names::is_dns_label;
use portolan_runtime::telemetry;
use tracing::{Instrument as _, Span};

pub(crate) use self::hub::{Asked, Carrier, Decision, HubReviews, ProxyQuestion};
use self::kept::Kept;
pub(crate) use self::member::{MemberAnswer, MemberApi, ask};
use crate::resource::queues::{Flow, Turn};
use crate::value::check::{Attributes, Check};
use crate::value::classify::Impersonation;
use crate::value::classify::impersonate::ImpersonationAttribute;
use crate::value::fault::Fault;
use crate::value::snapshot::Caller;

/// For one answer of the hub; a person waits for it.
const HUB_ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// A yes of the hub.
const HUB_YES: Duration = Duration::from_secs(30);
/// How old a yes may be for what runs already: with the time until the next look less than a minute.
const HUB_YES_RUNNING: Duration = Duration::from_secs(20);
/// How often the right to what runs is looked at again. A jitter of a quarter keeps streams of one moment apart.
const LOOK_AGAIN: Duration = Duration::from_secs(24);
/// A no of the hub: a grant that was just made should not take a minute.
const HUB_NO: Duration = Duration::from_secs(10);
/// The last answer of a hub that is away.
const HUB_AWAY: Duration = Duration::from_hours(1);
/// An answer of a member, either way.
const MEMBER: Duration = Duration::from_secs(10);
/// Questions of one request at one member at a time.
const AT_ONCE: usize = 8;
/// Answers kept of each kind.
const MAX_KEPT: u64 = 8_192;
const SUBJECT_ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// Who wants to do what, where.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RightQuestion {
    cluster: String,
    user: String,
    groups: Vec<String>,
    uid: Option<String>,
    extras: Vec<(String, Vec<String>)>,
    wanted: Attributes,
}

/// Cheap to clone: clones share what is kept.
#[derive(Clone)]
pub(crate) struct Access {
    hub: HubReviews,
    members: Arc<dyn MemberApi>,
    people: Arc<Kept<ProxyQuestion>>,
    rights: Arc<Kept<RightQuestion>>,
}

impl Access {
    pub(crate) fn new(hub: HubReviews, members: Arc<dyn MemberApi>) -> Self {
        Self {
            hub,
            members,
            people: Arc::new(Kept::new(MAX_KEPT, HUB_AWAY)),
            rights: Arc::new(Kept::new(MAX_KEPT, MEMBER)),
        }
    }

    /// Asks all of a plan's questions, members' in the caller's own turn. 403 for a no, 503 if nobody can be asked. Safe to drop.
    pub(crate) async fn check(&self, caller: &Caller, checks: impl IntoIterator<Item = &Check>) -> Result<(), Fault> {
        for check in checks {
            match check {
                Check::HubProxy { user, groups, cluster } => {
                    let question = ProxyQuestion {
                        user: user.clone(),
                        groups: groups.clone(),
                        cluster: cluster.clone(),
                    };
                    self.may_proxy(question, fresh_of_hub).await?;
                }
                Check::Impersonate {
                    cluster,
                    user,
                    groups,
                    wanted,
                } => {
                    // The user alone first: a no to it asks for no more. Then some side by side: kubectl sends many groups, and
                    // each answer is a round trip.
                    let wanted = wanted.attributes();
                    let (user_first, others) = wanted.split_at(1);
                    for some in std::iter::once(user_first).chain(others.chunks(AT_ONCE)) {
                        let questions = some
                            .iter()
                            .map(|right| self.may_act(caller, cluster, (user, groups), right));
                        try_join_all(questions).await?;
                    }
                }
                Check::Resource { cluster, user, wanted } => self.may_do(caller, cluster, user, wanted).await?,
            }
        }
        Ok(())
    }

    /// Ends when a right that a running answer rests on is taken away, or when nobody could be asked about it for too long;
    /// says which. Costs one question for each person and member, however many of their answers run.
    pub(crate) async fn revoked(&self, question: ProxyQuestion) -> Fault {
        loop {
            let jitter = rand::random_range(0.75..1.0);
            tokio::time::sleep(LOOK_AGAIN.mul_f64(jitter)).await;
            if let Err(fault) = self.may_proxy(question.clone(), |_| HUB_YES_RUNNING).await {
                return fault;
            }
        }
    }

    /// Whether a person might use a member of this name if there were one. Not kept: the name is the client's invention, and
    /// answers about members must not make room for it.
    pub(crate) async fn may_know(&self, (user, groups): (&str, &[String]), cluster: &str) -> Result<(), Fault> {
        let question = ProxyQuestion {
            user: user.to_owned(),
            groups: groups.to_vec(),
            cluster: cluster.to_owned(),
        };
        let asked = if is_dns_label(cluster) {
            let asked = self.hub.ask(question.clone(), HUB_ANSWERS_WITHIN);
            asked.instrument(asked_at("hub")).await
        } else {
            Ok(Decision {
                allowed: false,
                reason: String::new(),
            })
        };
        match asked {
            Ok(decision) => proxy_outcome(&question, &decision),
            Err(_) => Err(hub_is_away(&question)),
        }
    }

    async fn may_proxy(&self, question: ProxyQuestion, fresh: impl Fn(&Decision) -> Duration) -> Result<(), Fault> {
        if let Some(decision) = self.people.get(&question, fresh) {
            return proxy_outcome(&question, &decision);
        }
        let asked = self.hub.ask(question.clone(), HUB_ANSWERS_WITHIN);
        if let Ok(decision) = asked.instrument(asked_at("hub")).await {
            self.people.put(question.clone(), decision.clone(), Duration::ZERO);
            return proxy_outcome(&question, &decision);
        }
        match self.people.get(&question, |_| HUB_AWAY) {
            Some(decision) => proxy_outcome(&question, &decision),
            None => Err(hub_is_away(&question)),
        }
    }

    async fn may_act(
        &self,
        caller: &Caller,
        cluster: &str,
        (user, groups): (&str, &[String]),
        right: &ImpersonationAttribute,
    ) -> Result<(), Fault> {
        let question = RightQuestion {
            cluster: cluster.to_owned(),
            user: user.to_owned(),
            groups: groups.to_vec(),
            uid: None,
            extras: Vec::new(),
            wanted: Attributes {
                verb: "impersonate".to_owned(),
                group: right.group.to_owned(),
                version: "v1".to_owned(),
                resource: right.resource.to_owned(),
                subresource: right.subresource.clone().unwrap_or_default(),
                namespace: right.namespace.clone().unwrap_or_default(),
                name: right.name.clone(),
            },
        };
        let decision = self.decision(caller, question).await?;
        if decision.allowed {
            return Ok(());
        }
        let scope = right
            .namespace
            .as_ref()
            .map(|namespace| format!(" in namespace {namespace:?}"))
            .unwrap_or_default();
        Err(Fault::Forbidden(format!(
            "{user:?} cannot impersonate {} {:?} in API group {:?}{scope} on member {cluster}",
            right.resource, right.name, right.group
        )))
    }

    /// Whether the member's RBAC lets the user do it.
    async fn may_do(
        &self,
        caller: &Caller,
        cluster: &str,
        user: &Impersonation,
        wanted: &Attributes,
    ) -> Result<(), Fault> {
        let question = RightQuestion {
            cluster: cluster.to_owned(),
            user: user.user.clone(),
            groups: user.groups.clone(),
            uid: user.uid.clone(),
            extras: user.extras.clone(),
            wanted: wanted.clone(),
        };
        let decision = self.decision(caller, question).await?;
        if decision.allowed {
            return Ok(());
        }
        Err(Fault::Forbidden(wanted.forbidden(&user.user, &decision.reason)))
    }

    /// The member's word, at most ten seconds old.
    async fn decision(&self, caller: &Caller, question: RightQuestion) -> Result<Decision, Fault> {
        if let Some(decision) = self.rights.get(&question, |_| MEMBER) {
            return Ok(decision);
        }
        let asked = self.ask_member(caller, &question);
        let decision = asked.instrument(asked_at(&question.cluster)).await?;
        self.rights.put(question, decision.clone(), Duration::ZERO);
        Ok(decision)
    }

    async fn ask_member(&self, caller: &Caller, question: &RightQuestion) -> Result<Decision, Fault> {
        let Attributes {
            verb,
            group,
            version,
            resource,
            subresource,
            namespace,
            name,
        } = question.wanted.clone();
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(question.user.clone()),
                groups: Some(question.groups.clone()),
                uid: question.uid.clone(),
                extra: (!question.extras.is_empty()).then(|| question.extras.iter().cloned().collect()),
                resource_attributes: Some(ResourceAttributes {
                    verb: given(verb),
                    group: given(group),
                    version: given(version),
                    resource: given(resource),
                    subresource: given(subresource),
                    namespace: given(namespace),
                    name: given(name),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        // In order, whatever the request: one of them asks many. Of the caller's own share, so that it delays no others'.
        let (members, path, turn) = (&*self.members, SUBJECT_ACCESS_REVIEWS, Turn::InOrder(Flow::of(caller)));
        let answer = ask(members, &question.cluster, path, turn, &review).await?;
        let status = answer.status.unwrap_or_default();
        Ok(Decision {
            allowed: status.allowed,
            reason: status.reason.unwrap_or_default(),
        })
    }
}

/// The span of who waits for an answer of the hub or of a member.
fn asked_at(peer: &str) -> Span {
    telemetry::child(|| {
        let name = format!("access review of {peer}");
        tracing::info_span!(
            "access review",
            otel.name = name,
            otel.kind = "client",
            peer.service = peer
        )
    })
}

fn hub_is_away(question: &ProxyQuestion) -> Fault {
    Fault::HubAway(format!(
        "the hub cannot be asked whether {} may use member {}: it is away, and has said nothing of that within the last hour",
        question.user, question.cluster
    ))
}

fn fresh_of_hub(decision: &Decision) -> Duration {
    if decision.allowed { HUB_YES } else { HUB_NO }
}

fn proxy_outcome(question: &ProxyQuestion, decision: &Decision) -> Result<(), Fault> {
    if decision.allowed {
        return Ok(());
    }
    let ProxyQuestion { user, cluster, .. } = question;
    let reason = if decision.reason.is_empty() {
        String::new()
    } else {
        format!(" ({})", decision.reason)
    };
    Err(Fault::Forbidden(format!(
        "user {user:?} may not use member {cluster}: it needs the verb proxy on memberclusters/{cluster} of the hub{reason}"
    )))
}

#[cfg(test)]
pub(crate) mod tests;
