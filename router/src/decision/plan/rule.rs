//! The names of the planning rules, and the explanation of a plan for people.

use std::fmt;

use super::choose::{By, OtherLease};
use super::{Absent, Change, Choose, Forward, LocalAnswer, Need, Plan, Planned};
use crate::value::check::Check;

/// The rule that made a plan. A closed set: span attribute, metric label and first line of the explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// Health of the router itself.
    Health,
    /// `/clusters/<name>`.
    ExplicitView,
    /// Namespace owned by one member of the shard.
    OwnedNamespace,
    /// The caller's own namespace.
    OwnNamespace,
    /// Namespace outside the shard, let through by `Audit`.
    OutsideAudited,
    /// Namespace outside the shard, or an object outside its limits.
    OutsideRefused,
    /// Collection of a namespace that has left the shard.
    HandedOver,
    /// Collection over all namespaces: each member's share of the shard.
    AllNamespaces,
    /// What has no namespace.
    ClusterScoped,
    /// The leader-election Lease.
    LeaderElection,
    /// The leader-election lock is on its way to another place.
    LockClosed,
    /// Another Lease of the callers' namespace, where the shard elects a leader.
    OtherLease,
    /// SubjectAccessReview, TokenReview and their kin.
    Review,
    /// Events of cluster-scoped objects.
    ClusterScopedEvent,
    /// An object by which programs know the cluster that they run in.
    WellKnown,
    /// Discovery and OpenAPI.
    Discovery,
    /// Version and other paths that are no resource.
    NonResource,
    /// One answer would have to be merged from several members.
    SeveralMembers,
    /// Members serve the kind, but not all of them in this version.
    VersionConflict,
    /// Collection of a kind of which no member has said yet whether its objects have namespaces.
    KindUntold,
    /// Members disagree on whether objects of the kind have namespaces.
    ScopeConflict,
    /// A collection can only be read by GET.
    CollectionMethod,
    /// The namespace is on its way to another shard.
    Releasing,
    /// The caller has changed its shard, and may lead the one before.
    ShardChanged,
    /// The caller is in no shard.
    NoShard,
    /// The hub has not told the caller's shard whole.
    ShardNotTold,
    /// The caller is in several shards.
    SeveralShards,
    /// People have no merged view.
    NoMergedView,
    /// No grant for the explicit view.
    NoExplicitView,
    /// No such member cluster.
    UnknownCluster,
    /// The router has no such target, or the shard no member.
    NoTarget,
    /// The member is accepted no more.
    Withdrawn,
    /// The member is cordoned.
    Cordoned,
    /// The member does not let the router act as this user.
    NotAllowed,
    /// A Namespace is created.
    NewNamespace,
    /// In a namespace that no shard is known to own, or that itself.
    UnownedNamespace,
    /// Several members have a Node of the name that the request is about.
    SeveralNodes,
}

impl Rule {
    /// Span attribute and metric label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::ExplicitView => "explicit-view",
            Self::OwnedNamespace => "owned-namespace",
            Self::OwnNamespace => "own-namespace",
            Self::OutsideAudited => "outside-audited",
            Self::OutsideRefused => "outside-refused",
            Self::HandedOver => "handed-over",
            Self::AllNamespaces => "all-namespaces",
            Self::ClusterScoped => "cluster-scoped",
            Self::LeaderElection => "leader-election",
            Self::LockClosed => "lock-closed",
            Self::OtherLease => "other-lease",
            Self::Review => "review",
            Self::ClusterScopedEvent => "cluster-scoped-event",
            Self::WellKnown => "well-known",
            Self::Discovery => "discovery",
            Self::NonResource => "non-resource",
            Self::SeveralMembers => "several-members",
            Self::VersionConflict => "version-conflict",
            Self::KindUntold => "kind-untold",
            Self::ScopeConflict => "scope-conflict",
            Self::CollectionMethod => "collection-method",
            Self::Releasing => "releasing",
            Self::ShardChanged => "shard-changed",
            Self::NoShard => "no-shard",
            Self::ShardNotTold => "shard-not-told",
            Self::SeveralShards => "several-shards",
            Self::NoMergedView => "no-merged-view",
            Self::NoExplicitView => "no-explicit-view",
            Self::UnknownCluster => "unknown-cluster",
            Self::NoTarget => "no-target",
            Self::Withdrawn => "withdrawn",
            Self::Cordoned => "cordoned",
            Self::NotAllowed => "not-allowed",
            Self::NewNamespace => "new-namespace",
            Self::UnownedNamespace => "unowned-namespace",
            Self::SeveralNodes => "several-nodes",
        }
    }

    /// What the rule says, in a sentence.
    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Self::Health => "health is the router's own",
            Self::ExplicitView => "the explicit view goes to the member it names, unfiltered",
            Self::OwnedNamespace => "the namespace is owned by one member of the shard",
            Self::OwnNamespace => "the caller's own namespace is served by its home cluster, unfiltered",
            Self::OutsideAudited => "the namespace is outside the shard; enforcement Audit lets it through and warns",
            Self::OutsideRefused => "outside the shard; enforcement Enforce refuses it",
            Self::HandedOver => "the namespace has left the shard: who had it is told so once, then refused",
            Self::AllNamespaces => {
                "a collection over all namespaces is each member's share of the shard, merged; kube-system and the other system namespaces are in it where clusters[].namespaces names them"
            }
            Self::ClusterScoped => "what has no namespace is the union of the members, the primary's first",
            Self::LeaderElection => "the leader-election lock lies in the primary cluster under the shard's own name",
            Self::LockClosed => {
                "the leader-election lock is on its way to another place: until it is there nobody becomes leader"
            }
            Self::OtherLease => {
                "where a leader is elected, all Leases of the callers' namespace lie in the primary cluster; one of another name that is alive where it was kept before stays there until it expires"
            }
            Self::Review => {
                "a review is answered by the member of the namespace, the object, the user or the token that it asks about, else by all"
            }
            Self::ClusterScopedEvent => {
                "events of cluster-scoped objects lie in namespace default: the primary's, and of one object those of every member"
            }
            Self::WellKnown => {
                "what programs know their cluster by is the home cluster's where the shard does not own it; Namespace kube-system, whose UID is the cluster's, the primary's"
            }
            Self::Discovery => "what the members of the shard serve, united; the primary's order",
            Self::NonResource => "other paths that are no resource are served by the primary cluster",
            Self::SeveralMembers => "several members would have to do it together",
            Self::KindUntold => {
                "until members have told how they serve the kind nobody knows what of it is the shard's"
            }
            Self::ScopeConflict => "the objects of the kind have namespaces in some members and none in others",
            Self::VersionConflict => "the members that serve the kind do not all serve this version of it",
            Self::CollectionMethod => "a collection is read by GET",
            Self::Releasing => "the namespace is on its way to another shard: reads only",
            Self::ShardChanged => {
                "the caller has changed its shard, and may take itself for the leader of the one before until what it renewed there has run out: reads only"
            }
            Self::NoShard => "the caller is in no shard",
            Self::ShardNotTold => "the hub has not told the caller's shard whole (yet)",
            Self::SeveralShards => "the caller is in several shards",
            Self::NoMergedView => "people have no merged view",
            Self::NoExplicitView => "the caller has no grant for the explicit view of this member",
            Self::UnknownCluster => "there is no such member cluster",
            Self::NoTarget => "the member is not known to this router (yet)",
            Self::Withdrawn => "the member was withdrawn: spec.accept of its MemberCluster is false",
            Self::Cordoned => "the member is cordoned",
            Self::NotAllowed => "the member does not let the router act as this user",
            Self::NewNamespace => "a new Namespace goes where its annotation says, else where the shard takes it",
            Self::UnownedNamespace => {
                "what is in a namespace that no shard owns is absent where no member of the shard has the namespace, else refused"
            }
            Self::SeveralNodes => {
                "members have Nodes of one name, and clients join Pods and volumes to them by it: reads by the explicit view"
            }
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Planned {
    /// The explanation for people, line by line. Costs allocations: for `/explain`, not for every request.
    pub(crate) fn why(&self) -> Vec<String> {
        let mut lines = vec![format!("{}: {}", self.rule, self.rule.sentence())];
        match &self.plan {
            Plan::Forward(forward) => forward.explain(&mut lines),
            Plan::FanOut(fan) => fan.explain(&mut lines),
            Plan::Choose(choose) => choose.explain(&mut lines),
            Plan::DeleteEach(parts) => {
                lines.push("in each of these members, or 503 while one of them cannot be reached".into());
                for part in parts {
                    part.forward.explain(&mut lines);
                    lines.extend(part.held.iter().map(|held| format!("not asked now: {held}")));
                }
            }
            Plan::Review(clusters) => lines.push(format!(
                "to the one of {} that the body asks about, or to all: a yes is one of all",
                clusters.join(", ")
            )),
            Plan::Discovery(wanted) => {
                let members: Vec<_> = wanted.members.iter().map(|one| &*one.cluster).collect();
                lines.push(format!("what {} serve", members.join(", ")));
            }
            Plan::Local(LocalAnswer::Live) => lines.push("the router is alive".into()),
            Plan::Local(LocalAnswer::Ready) => lines.push("the router's readiness".into()),
            Plan::Refuse(fault) => lines.push(format!("refused with {}: {fault}", fault.status_code().as_u16())),
        }
        lines
    }
}

impl Choose {
    fn explain(&self, lines: &mut Vec<String>) {
        let clusters = self.clusters();
        lines.push(match &self.by {
            By::Holder(holder) if holder.placing.is_some() => format!(
                "to the one of {clusters} that has {}; if none has, as a create, if it makes one; 503 while one that might cannot be asked",
                holder.object
            ),
            By::Holder(holder) if holder.writes => format!(
                "to the one of {clusters} that has {}, the first if none has; 503 while one that might cannot be asked",
                holder.object
            ),
            By::Holder(holder) => format!("to the first of {clusters} that has {}", holder.object),
            By::NewNamespace(shard) => format!(
                "to the one of {clusters} that annotation {} or the shard's rules say",
                shard.label_keys.cluster()
            ),
            By::NewObject(new) => {
                let told = format!(
                    "to the one of {clusters} that has the owners which the body names, else to the one that its annotation {} names, else \
                     to the first",
                    new.placing.annotation
                );
                let twins = if new.unique { "; 409 if another one has an object of the name in the body" } else { "" };
                format!("{told}{twins}")
            }
            By::Unowned(unowned) => {
                let absent = match &unowned.absent {
                    Absent::Made(_) => "a server-side apply makes it where the shard's rules say",
                    Absent::Nothing => "nothing is deleted",
                    Absent::Object(..) | Absent::Namespace => "404",
                };
                let clusters: Vec<&str> = unowned.clusters.iter().map(|cluster| &**cluster).collect();
                let clusters = clusters.join(", ");
                format!("{absent} if none of {clusters} has {}, else 403", unowned.holder.object)
            }
            By::Lease(lease) => lease.explain(&clusters),
        });
        for candidate in &self.candidates {
            candidate.forward.explain(lines);
            lines.extend(candidate.held.iter().map(|held| format!("not asked now: {held}")));
        }
    }
}

impl OtherLease {
    fn explain(&self, clusters: &str) -> String {
        let alive = if self.moved {
            ", unless the Lease is alive in the second"
        } else {
            ""
        };
        let election = match &self.name {
            None => format!("; to the last if the body names the election's {}", self.names.client),
            Some(_) => String::new(),
        };
        format!("to the first of {clusters}{alive}{election}")
    }
}

impl Forward {
    pub(super) fn explain(&self, lines: &mut Vec<String>) {
        let cluster = &self.target.cluster;
        lines.push(format!(
            "forward to member cluster {cluster} ({}) as {}",
            self.traffic.class.as_str(),
            self.act_as.user
        ));
        if let Some(selector) = &self.rewrite.selector {
            lines.push(format!("labelSelector is narrowed by {selector}"));
        }
        if let Some(fields) = self.rewrite.fields {
            lines.push(format!("fieldSelector is narrowed by {fields}"));
        }
        if let Some(lease) = &self.rewrite.lease {
            lines.push(format!("lock {} is {} in the member", lease.client, lease.member));
        }
        if let Some(lease) = &self.rewrite.shown {
            lines.push(format!("{} is shown as {}", lease.member, lease.client));
        }
        lines.extend(self.needs.iter().map(|need| need.explain(cluster)));
        lines.extend(self.replicas.iter().map(|replicas| replicas.explain()));
        if let Some(warning) = &self.warning {
            lines.push(format!("warning: {warning}"));
        }
    }
}

impl Need {
    fn explain(&self, cluster: &str) -> String {
        match self {
            Self::Access(Check::HubProxy { user, cluster, .. }) => {
                format!("first ask the hub whether {user} may use the explicit view of {cluster}")
            }
            Self::Access(Check::Impersonate {
                user, wanted, cluster, ..
            }) => format!("first ask {cluster} whether {user} may act as {}", wanted.user),
            Self::Access(Check::Resource { cluster, user, wanted }) => format!(
                "first ask {cluster} whether {} may {} {} in {}",
                user.user, wanted.verb, wanted.resource, wanted.namespace
            ),
            Self::Owners => format!("owners that the body names must be in {cluster}"),
            Self::Copies(copies) => {
                let clusters = copies.others.iter().map(|one| &*one.forward.target.cluster);
                let clusters: Vec<&str> = clusters.collect();
                format!("409 while a copy in one of {} is being deleted", clusters.join(", "))
            }
            Self::Labels(check) => format!("the labels of {} must match {}", check.object, check.selector),
            Self::Body(rule) => {
                let what = match rule.change {
                    Change::Whole | Change::Status => "the labels in the body",
                    Change::Over | Change::Patch => "the labels after the patch",
                };
                format!("{what} must match {}", rule.selector)
            }
            Self::Lock(moved) => {
                format!(
                    "what is recorded of the lock in {} is brought to {cluster} first, once",
                    moved.from.0
                )
            }
        }
    }
}
