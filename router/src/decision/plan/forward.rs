//! From "this member" to a complete [`Forward`]: what every plan must pass, whichever rule chose the member.
//!
//! A cordon stops callers like an open breaker. It does not stop the leader-election Lease, whose loss would stop the
//! operator on every other member too, nor people's explicit view, because an administrator repairs through it.

use std::cell::Cell;

use portolan_crds::labels::system_namespace;

use super::{Forward, Need, Rewrite, Rule, WriteGrant, owners};
use crate::value::check::Check;
use crate::value::classify::{ApiRequest, Impersonation, View};
use crate::value::fault::Fault;
use crate::value::kinds::Kinds;
use crate::value::snapshot::{Binding, Caller, GrantState, MemberIdentity, Snapshot};
use crate::value::traffic::{Effect, Traffic};

/// Groups every ServiceAccount has.
const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
const AUTHENTICATED: &str = "system:authenticated";
/// Who is nobody, and the group of those.
const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// Why nothing leaves.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) rule: Rule,
    pub(super) fault: Fault,
}

impl Refusal {
    pub(super) fn forbidden(rule: Rule, message: String) -> Self {
        Self {
            rule,
            fault: Fault::Forbidden(message),
        }
    }
}

/// What planning reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route<'a> {
    pub(super) caller: &'a Caller,
    pub(super) request: &'a ApiRequest,
    pub(super) snapshot: &'a Snapshot,
    pub(super) kinds: &'a Kinds,
    /// Set where planning needed a kind that no member is known to serve.
    pub(super) unknown_kind: &'a Cell<bool>,
    /// Set where the namespace is refused because it is not the shard's, as far as this router was told.
    pub(super) lacks_grant: &'a Cell<bool>,
}

/// A member that cannot be asked now: 429 keeps informers from relisting, 503 is the truth for everything else.
pub(super) fn unavailable(traffic: Traffic, message: String, cluster: Option<&str>) -> Fault {
    let cluster = cluster.map(str::to_owned);
    if traffic.effect == Effect::Collection {
        Fault::TooManyRequests {
            message,
            retry_after_seconds: 1,
            cluster,
        }
    } else {
        Fault::Unavailable {
            message,
            cluster,
            sent: false,
        }
    }
}

impl Route<'_> {
    /// A plan for `cluster`, or why it cannot be asked.
    pub(super) fn to(&self, cluster: &str, rewrite: Rewrite) -> Result<Forward, Refusal> {
        let forward = self.whatever_state(cluster, rewrite)?;
        match self.cordon_of(&forward) {
            Some(message) => Err(self.cordoned(message, cluster)),
            None => Ok(forward),
        }
    }

    /// Why a member that is known must not be asked now.
    pub(super) fn cordon_of(&self, forward: &Forward) -> Option<String> {
        let stops = forward.target.cordoned && !forward.is_priority() && matches!(self.caller, Caller::Pod(_));
        stops.then(|| format!("member cluster {} is cordoned", forward.target.cluster))
    }

    pub(super) fn cordoned(&self, message: String, cluster: &str) -> Refusal {
        Refusal {
            rule: Rule::Cordoned,
            fault: self.unavailable(message, cluster),
        }
    }

    /// A plan for `cluster`, also if it is [`Self::held`].
    pub(super) fn whatever_state(&self, cluster: &str, rewrite: Rewrite) -> Result<Forward, Refusal> {
        if self.snapshot.withdrawn.contains(cluster) {
            let message = format!("member cluster {cluster} was withdrawn (spec.accept of its MemberCluster is false)");
            return Err(Refusal::forbidden(Rule::Withdrawn, message));
        }
        let Some(target) = self.snapshot.targets.get(cluster) else {
            let message = format!("member cluster {cluster} is not known to this router (yet)");
            return Err(Refusal {
                rule: Rule::NoTarget,
                fault: self.unavailable(message, cluster),
            });
        };
        let identity = self.snapshot.identities.get(cluster).ok_or_else(|| Refusal {
            rule: Rule::NoTarget,
            fault: self.unavailable(
                format!("whom member cluster {cluster} allows is not known (yet)"),
                cluster,
            ),
        })?;
        let allowed = |wanted: &Impersonation| allowed(cluster, identity, wanted);
        let own = Impersonation::user(self.user());
        allowed(&own)?;
        let mut needs = Vec::new();
        let act_as = match &self.request.impersonate {
            None => own,
            Some(wanted) => {
                allowed(wanted)?;
                let groups = self.groups();
                needs.push(Need::Access(Check::Impersonate {
                    cluster: cluster.to_owned(),
                    user: own.user,
                    groups,
                    wanted: wanted.clone(),
                }));
                wanted.clone()
            }
        };
        // Also of the leader-election lock: it is the primary's, and its holder's Pod may be another member's. One that names no
        // owner is not held up.
        if owners::may_cross(self.request, self.caller) {
            needs.push(Need::Owners);
        }
        // The leader-election Lease belongs to no owner of its namespace.
        let grant = self.grant(cluster).filter(|_| rewrite.lease.is_none());
        Ok(Forward {
            target: target.clone(),
            traffic: Traffic::of(self.request),
            rewrite,
            act_as,
            needs,
            warning: None,
            grant,
            replicas: None,
        })
    }

    /// By which grant it is the caller's, if it is a write of the merged view to what the shard has by name in `cluster`.
    fn grant(&self, cluster: &str) -> Option<WriteGrant> {
        let Caller::Pod(view) = self.caller else { return None };
        let Binding::One(shard) = &view.binding else {
            return None;
        };
        if self.request.view != View::Merged || Traffic::of(self.request).is_read() {
            return None;
        }
        let namespace = self.request.resource.as_ref()?.namespace.as_ref()?;
        let (member, grant) = shard.owner(namespace)?;
        let is_its = grant.exact && *member.cluster == *cluster && grant.pair.state == GrantState::Granted;
        is_its.then(|| WriteGrant {
            namespace: namespace.clone(),
            shard: shard.config.to_string(),
            epoch: grant.pair.owner_count,
            fenced: grant.pair.fenced,
        })
    }

    fn unavailable(&self, message: String, cluster: &str) -> Fault {
        unavailable(Traffic::of(self.request), message, Some(cluster))
    }

    /// Who asks, as members know it.
    fn user(&self) -> String {
        match self.caller {
            Caller::Pod(view) => view.user.to_string(),
            Caller::Person { user, .. } => user.clone(),
        }
    }

    /// Whom a member sees in `act_as`: with the groups that it gives.
    pub(super) fn seen_as(&self, act_as: &Impersonation) -> Impersonation {
        let mut seen = act_as.clone();
        if self.request.impersonate.is_none() {
            seen.groups = self.groups();
            return seen;
        }
        if let Some((namespace, _)) = act_as.service_account().filter(|_| act_as.groups.is_empty()) {
            let own = format!("{SERVICE_ACCOUNTS}:{namespace}");
            seen.groups = vec![SERVICE_ACCOUNTS.to_owned(), own];
        }
        let says = |group: &String| [AUTHENTICATED, UNAUTHENTICATED].contains(&group.as_str());
        if !seen.groups.iter().any(says) && seen.user != ANONYMOUS {
            seen.groups.push(AUTHENTICATED.to_owned());
        }
        seen
    }

    /// The groups a member gives to who asks. A person's groups are of the hub's CA and mean nothing in a member.
    fn groups(&self) -> Vec<String> {
        match self.caller {
            Caller::Pod(view) => {
                let own = format!("{SERVICE_ACCOUNTS}:{}", view.namespace);
                vec![SERVICE_ACCOUNTS.to_owned(), own, AUTHENTICATED.to_owned()]
            }
            Caller::Person { .. } => vec![AUTHENTICATED.to_owned()],
        }
    }
}

/// Whether the member lets the router act as this user at all. The member's own RBAC says the same; asked here, the
/// refusal can say what to do.
fn allowed(cluster: &str, identity: &MemberIdentity, wanted: &Impersonation) -> Result<(), Refusal> {
    let refuse = |message: String| Err(Refusal::forbidden(Rule::NotAllowed, message));
    if let Some(name) = std::iter::once(&wanted.user)
        .chain(&wanted.groups)
        .find(|name| reserved(name))
    {
        return refuse(format!(
            "nobody acts as {name} in member cluster {cluster} through Portolan"
        ));
    }
    let user = &wanted.user;
    if identity.allowed.contains(user) {
        return Ok(());
    }
    refuse(match wanted.service_account() {
        Some((namespace, _)) if system_namespace(namespace) => {
            format!("nobody acts as a ServiceAccount of {namespace} through Portolan")
        }
        Some((namespace, name)) => {
            let account = format!("{namespace}/{name}");
            format!(
                "member cluster {cluster} does not let the router act as ServiceAccount {account}: run `portolanctl allow --member-kubeconfig FILE {account}` there"
            )
        }
        None => format!(
            "member cluster {cluster} does not let the router act as user {user}: run `portolanctl allow --member-kubeconfig FILE --user {user}` there"
        ),
    })
}

/// Identities of the control plane itself.
fn reserved(name: &str) -> bool {
    name == "system:masters" || name.starts_with("system:node") || name == "system:serviceaccounts:kube-system"
}
