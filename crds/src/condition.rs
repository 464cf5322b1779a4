//! Condition types and reasons, their only home, and how one is set.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// What a condition of ours is about. A variant's name is the `type` of the `metav1.Condition`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConditionType {
    /// The spec is valid and in force (all kinds); of a MemberCluster also: the hub has opted in.
    Accepted,
    /// ShardingConfig: every caller runs the current version; of a policy: every router that serves its callers has it.
    Distributed,
    /// ShardingConfig: it has every (cluster, namespace) pair that it asks for.
    Complete,
    /// ShardingConfig: it shares no (cluster, namespace) pair with another shard.
    Disjoint,
    /// ShardingConfig: every namespace it names exists, and in one of its clusters only.
    NamespacesResolved,
    /// ShardingConfig: routers get through to all of its members, so that nothing of it is held back.
    MembersReachable,
    /// ShardingConfig: its callers, of all clusters, elect one leader.
    OneLeader,
    /// ShardingConfig that is a root: each of its children has something to own and Pods that own it, and each of its Pods is
    /// some child's.
    ChildrenServed,
    /// ShardingConfig: members refuse writes of its callers that arrive after a namespace has gone to another shard.
    HandoverFenced,
    /// ShardingConfig: every member has the objects of replicated kinds as the primary has them.
    Replicated,
    /// ShardingConfig with `operator`, while the hub's ledger is one of before: it contends with shards of its operator alone.
    OperatorSeparate,
    /// ShardingConfig with `webhook`: API servers reach its operator's webhooks by shard.
    WebhookServed,
    /// ShardingConfig with `clusterScoped`: it has the kinds that it names, alone of its operator, and somebody works on them.
    ClusterScopedServed,
    /// ShardingConfig with callers that ask by label to be pointed at a gateway: each of them is.
    CallersInjected,
    /// CircuitBreaker with rules about traffic to other servers than API servers: they are in force.
    RulesServed,
    /// MemberCluster: its agent has the hub's certificate and its cluster UID is pinned.
    Joined,
    /// MemberCluster: its agent reports a ready API server.
    Available,
    /// MemberCluster: each router has its token, and none has expired.
    CredentialsReady,
    /// MemberCluster: every object has its labels.
    LabelsSynced,
    /// MemberCluster: its agent tells all, and labels all, that shards ask for there.
    NothingLeftOut,
    /// CircuitBreaker and FaultInjection: something comes of it now; nobody has withdrawn or stopped it, nor is it over.
    Active,
    /// CircuitBreaker and FaultInjection: there are callers that it holds.
    CallersFound,
    /// CircuitBreaker with limits of scope `Shared`: each router's share of them goes where it is asked for.
    Divided,
    /// Router: its stream to the hub is open.
    Connected,
}

/// Why a condition is as it is. A variant's name is the `reason` of the `metav1.Condition`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConditionReason {
    /// Nothing to report: it is as it should be.
    Ok,
    /// The spec is invalid; the message names fields and fixes. The last accepted spec stays in force.
    Invalid,
    /// The spec uses fields that this version does not serve; the message names them.
    NotImplemented,
    /// What the ShardingConfigs of the namespace would weigh together is more than the hub keeps for one; the message says what
    /// weighs how much. The last accepted spec stays in force. Of conditions Distributed and NothingLeftOut: what they ask of an agent
    /// is more than it is asked for one, or an object has too many labels.
    TooMuch,
    /// `spec.accept` is false.
    NotAccepted,
    /// A MemberCluster that the spec names does not exist.
    UnknownCluster,
    /// A MemberCluster that the spec names takes no ShardingConfigs of its namespace: `spec.allowedNamespaces`.
    NotAllowed,
    /// A MemberCluster that the spec names has not joined.
    ClusterNotJoined,
    /// A MemberCluster that the spec names is cordoned.
    Cordoned,
    /// The hub's ledger is one of before there were operators: each namespace has one owner, whatever they are.
    NotSeparated,
    /// Waiting for callers to take over the current version.
    Progressing,
    /// A caller's router refused the current version.
    Rejected,
    /// No caller is there.
    NoCallers,
    /// The selector matches more Pods than agents tell: the oldest are served, the others are not known.
    TooManyCallers,
    /// An agent cannot list the Pods that the selector matches: new ones are not known.
    CallersUnknown,
    /// Pods ask by label to be pointed at a gateway, and were created before anything did that.
    NotInjected,
    /// Other shards select some of the same Pods: routers refuse the requests of those.
    CallersInSeveralShards,
    /// More shards than there is to share out: some children have nothing.
    NothingToOwn,
    /// Pods that the root selects are no child's.
    PodsInNoShard,
    /// Another shard owns some of the same pairs.
    Overlap,
    /// The spec names no clusters: whether another shard has some of the same is not looked into.
    NotArbitrated,
    /// A write that arrives late may be carried out after the next owner of its namespace has begun.
    NotFenced,
    /// More operators have a namespace of a member than it fences handovers off for: those of the newer ones are not.
    TooManyOperators,
    /// Another shard is letting go of pairs that this one is to have: they are granted once every router has let go.
    HandoverPending,
    /// Namespaces exist in several clusters of the shard; the first in order owns them.
    Shadowed,
    /// Namespaces that the spec names do not exist; or the callers' own not where their Lease is kept.
    NamespaceMissing,
    /// Callers renew a Lease that is not the one by which they are to elect their leader.
    OtherLease,
    /// The agent has not been heard for too long.
    HeartbeatLost,
    /// The agent says that its API server is not ready.
    ApiServerNotReady,
    /// No router gets through to it, whatever its agent says.
    Unreachable,
    /// The agent has not joined yet.
    WaitingForAgent,
    /// No router is connected to the hub that could tell.
    WaitingForRouter,
    /// A cluster with another UID calls itself by this name.
    ClusterUidChanged,
    /// Another member has the same cluster UID, or publishes one of the same token-signing keys.
    DuplicateCluster,
    /// The routers' token has expired, or will before it can be renewed.
    TokenExpired,
    /// The member does not let the router act as any ServiceAccount.
    NothingAllowed,
    /// Objects are still being labelled.
    Labelling,
    /// The member's API server does not label new objects, whatever the agent does: routers choose by namespace.
    NotAtAdmission,
    /// The router's stream to the hub has ended.
    StreamEnded,
    /// The hub tells the router nothing: the message says what is wrong with it.
    Refused,
    /// Nobody is held: the spec has no selector.
    NoSelector,
    /// The object says itself, by a field or a label, that nothing is to come of it.
    Disabled,
    /// All faults are stopped in this hub, by hand.
    Stopped,
    /// `spec.until` has passed.
    Expired,
    /// None of its `effectiveTime`s is now.
    NotNow,
    /// The namespace has more policies than are served: the oldest are in force.
    TooManyPolicies,
    /// A router keeps a share of a limit that others are to have: it is cut off, or has not been heard, or does not say that it
    /// has let go.
    SharesWithheld,
    /// Another field manager owns a field of a copy in a member, which differs from what the primary has.
    Conflict,
    /// Copies in members are not what the primary has yet; it is tried again.
    Behind,
    /// The admission policies of the member are not as `portolanctl join` writes them.
    PoliciesChanged,
}

impl fmt::Display for ConditionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl fmt::Display for ConditionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A condition as it was found, to be set by [`set_condition`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What the condition is about.
    pub type_: ConditionType,
    /// Whether it holds; `None` is `Unknown`.
    pub status: Option<bool>,
    /// Why it holds or does not, in one CamelCase word.
    pub reason: ConditionReason,
    /// Why, for people. Longer than the API server takes (32 KiB) is cut.
    pub message: String,
}

impl Finding {
    /// The condition holds, and all is well.
    pub fn holds(type_: ConditionType, message: impl Into<String>) -> Self {
        Self {
            type_,
            status: Some(true),
            reason: ConditionReason::Ok,
            message: message.into(),
        }
    }

    /// The condition does not hold.
    pub fn fails(type_: ConditionType, reason: ConditionReason, message: impl Into<String>) -> Self {
        Self {
            status: Some(false),
            reason,
            ..Self::holds(type_, message)
        }
    }

    /// Whether the condition holds is not known.
    pub fn unknown(type_: ConditionType, reason: ConditionReason, message: impl Into<String>) -> Self {
        Self {
            status: None,
            reason,
            ..Self::holds(type_, message)
        }
    }
}

/// Longest message of a `metav1.Condition`, in bytes (API conventions).
pub const MESSAGE_MAX: usize = 32_768;

/// Sets `finding`, made of the object's `generation`, in `conditions`.
///
/// `lastTransitionTime` becomes `now` only when the status changes (API conventions). Conditions of other types stay.
pub fn set_condition(conditions: &mut Vec<Condition>, mut finding: Finding, generation: i64, now: &Time) {
    let (type_, message) = (finding.type_.to_string(), &mut finding.message);
    message.truncate(message.floor_char_boundary(MESSAGE_MAX));
    let status = match finding.status {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    let existing = conditions.iter_mut().find(|condition| condition.type_ == type_);
    let last_transition_time = match &existing {
        Some(condition) if condition.status == status => condition.last_transition_time.clone(),
        _ => now.clone(),
    };
    let wanted = Condition {
        type_,
        status: status.to_owned(),
        reason: finding.reason.to_string(),
        message: finding.message,
        observed_generation: Some(generation),
        last_transition_time,
    };
    match existing {
        Some(condition) => *condition = wanted,
        None => conditions.push(wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Time {
        Time(k8s_openapi::jiff::Timestamp::from_second(second).unwrap())
    }

    fn accepted(status: Option<bool>, message: &str) -> Finding {
        let reason = if status == Some(true) {
            ConditionReason::Ok
        } else {
            ConditionReason::Invalid
        };
        Finding {
            type_: ConditionType::Accepted,
            status,
            reason,
            message: message.to_owned(),
        }
    }

    #[test]
    fn only_a_change_of_status_is_a_transition() {
        let mut conditions = Vec::new();
        set_condition(&mut conditions, accepted(Some(false), "a"), 1, &at(1));
        let before = conditions.clone();
        set_condition(&mut conditions, accepted(Some(false), "a"), 1, &at(2));
        assert_eq!(conditions, before, "nothing changed");
        set_condition(&mut conditions, accepted(Some(false), "b"), 1, &at(3));
        assert_eq!(
            (
                conditions[0].last_transition_time.clone(),
                conditions[0].message.as_str()
            ),
            (at(1), "b")
        );
        assert_eq!(conditions[0].status, "False");
        set_condition(&mut conditions, accepted(Some(true), ""), 1, &at(4));
        assert_eq!(
            (
                conditions[0].last_transition_time.clone(),
                conditions[0].reason.as_str()
            ),
            (at(4), "Ok")
        );
        assert_eq!(conditions[0].status, "True");
        set_condition(&mut conditions, accepted(None, ""), 1, &at(5));
        assert_eq!((conditions.len(), conditions[0].status.as_str()), (1, "Unknown"));
    }

    #[test]
    fn conditions_of_others_stay() {
        let mut conditions = Vec::new();
        set_condition(&mut conditions, accepted(Some(true), ""), 1, &at(1));
        conditions[0].type_ = "Theirs".to_owned();
        set_condition(&mut conditions, accepted(Some(true), ""), 1, &at(2));
        assert_eq!(
            conditions
                .iter()
                .map(|condition| condition.type_.as_str())
                .collect::<Vec<_>>(),
            ["Theirs", "Accepted"]
        );
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let mut conditions = Vec::new();
        set_condition(
            &mut conditions,
            accepted(Some(false), &"ä€".repeat(MESSAGE_MAX)),
            1,
            &at(1),
        );
        assert!(conditions[0].message.len() <= MESSAGE_MAX && conditions[0].message.len() > MESSAGE_MAX - 4);
    }
}
