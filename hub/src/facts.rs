//! What the hub knows, as plain data: members, shards, policies, pins and agents' reports.
//!
//! No rules and no IO. `index` writes it (one lock), `compile` and `status` read it. Everything optional in
//! [`AgentReport`] is *unknown* while `None`, which is not the same as empty: after a restart of the hub nothing may be
//! taken from routers because an agent has not spoken yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use portolan_crds::labels::{FENCE_EPOCH, FENCE_SHARD};
use portolan_crds::names::RESTORED;
use portolan_crds::{
    ConditionReason, GroupResource, MemberClusterSpec, MemberClusterStatus, Problem, RouterStatus, ShardName,
};
use portolan_runtime::Secret;
use portolan_wire::subscription::Subscription;
use portolan_wire::v1;

mod gone;
mod objects;
mod policies;
mod shards;
mod stamped;

pub(crate) use gone::GoneCallers;
pub(crate) use objects::{Counts, counted};
pub(crate) use policies::{
    FaultsStopped, PolicyInForce, PolicyKind, PolicyName, PolicyObject, PolicySpec, PolicyStatus, RuleNames, Selection,
};
pub(crate) use shards::ShardObject;
pub(crate) use stamped::Stamped;

/// A router that has been away this long is gone for good, or its operators' clients are.
pub(crate) const FORGOTTEN_AFTER: Duration = Duration::from_mins(10);

/// All facts. Keys of members, agents and pins are names of member clusters, those of routers the routers' names.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Facts {
    pub(crate) members: BTreeMap<String, MemberObject>,
    pub(crate) shards: BTreeMap<ShardName, ShardObject>,
    pub(crate) policies: BTreeMap<PolicyName, PolicyObject>,
    /// Kinds of policies of which this process has seen all that there were.
    pub(crate) listed: BTreeSet<PolicyKind>,
    /// All faults are stopped.
    pub(crate) faults_stopped: Option<FaultsStopped>,
    pub(crate) routers: BTreeMap<String, RouterObject>,
    /// When a router was last found gone, or replaced by another of its name, or may have come and gone unseen. None: never.
    pub(crate) router_gone: Option<tokio::time::Instant>,
    /// Uids of those that enrolled under this process.
    pub(crate) enrolled_here: BTreeSet<String>,
    pub(crate) pins: Stamped<BTreeMap<String, Pin>>,
    pub(crate) agents: BTreeMap<String, AgentReport>,
    /// Members of whose labels their agents have not spoken for so long that what they said last does not count.
    pub(crate) silent: BTreeSet<String>,
    /// When members that were among these spoke again, as far as this process knows.
    pub(crate) spoke_again: BTreeMap<String, Timestamp>,
    /// The hub has not listened for long enough to know which are silent.
    pub(crate) listening: bool,
    /// Why the last attempt of a cluster to join or to connect was refused.
    pub(crate) join_refusals: BTreeMap<String, (ConditionReason, String)>,
    /// By name of a router: why its last Hello was refused.
    pub(crate) router_refusals: BTreeMap<String, String>,
}

/// A MemberCluster object.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct MemberObject {
    pub(crate) uid: String,
    pub(crate) generation: i64,
    pub(crate) labels: BTreeMap<String, String>,
    /// Read from the raw object, so that a withdrawn opt-in counts even if the rest of the spec is bad.
    pub(crate) accept: bool,
    /// What is wrong with the present spec.
    pub(crate) problems: Vec<Problem>,
    /// The last spec without problems.
    pub(crate) in_force: Option<Arc<MemberClusterSpec>>,
    pub(crate) status: MemberClusterStatus,
}

/// A Router object: a router that enrolled and was not forgotten.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RouterObject {
    pub(crate) uid: String,
    pub(crate) generation: i64,
    /// Hashes of the keys that are its own, the one that was certified last first.
    pub(crate) key_hashes: Vec<String>,
    /// What it may be told; `None` if nobody can read that, and then it is nothing.
    pub(crate) subscription: Option<Subscription>,
    pub(crate) status: RouterStatus,
}

/// The status of a Router names this in place of a process, once the hub has seen the router end for good, in order.
pub(crate) const PROCESS_ENDED: &str = "ended";

impl RouterObject {
    /// Whether it has been away for so long, as its status tells, that nobody waits for it.
    pub(crate) fn is_forgotten(&self, now: Timestamp) -> bool {
        let is_away = |condition: &Condition| condition.type_ == "Connected" && condition.status == "False";
        let seen = self.status.last_seen.as_ref();
        let is_long_ago = seen.is_some_and(|seen| {
            now.duration_since(seen.0) > SignedDuration::try_from(FORGOTTEN_AFTER).unwrap_or(SignedDuration::MAX)
        });
        is_long_ago && self.status.conditions.iter().any(is_away)
    }
}

/// What was learnt of a member when it joined; kept by the hub in a ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pin {
    /// UID of the MemberCluster object: a new object of the same name has to join anew.
    pub(crate) member_uid: String,
    /// UID of the member's kube-system namespace.
    pub(crate) cluster_uid: String,
    /// The member's token-signing keys, one JSON Web Key each.
    pub(crate) signing_keys: Vec<String>,
    /// Hashes of the agent's own keys: the one that was certified last, and the one before, which it still has while the
    /// answer to a renewal is on its way. Empty in pins of an earlier release, until the agent is next seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) agent_keys: Vec<String>,
    /// How the member's versions went on.
    #[serde(default)]
    pub(crate) history: MemberHistory,
}

impl Pin {
    /// Whose resourceVersions the member's are: another incarnation's after each restore.
    pub(crate) fn incarnation(&self) -> String {
        match self.history.restores {
            0 => self.cluster_uid.clone(),
            restores => format!("{}{RESTORED}{restores}", self.cluster_uid),
        }
    }
}

/// What the hub remembers of a member's resourceVersions, to tell that its etcd was restored from a backup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MemberHistory {
    /// How often the member went back.
    pub(crate) restores: u64,
    /// The highest resourceVersion of it that was written down; what the agent read last is a minute newer.
    pub(crate) version: u64,
    /// When it was written down last that its agent was not heard, in seconds of Unix time; 0: never.
    #[serde(default)]
    pub(crate) silent_at: i64,
}

/// Cluster, namespace, and the epoch of its owner.
pub(crate) type PairEpoch = (String, String, u64);

/// What the agent of a member has reported to this process. Kept when it disconnects.
#[derive(Debug, Clone, Default, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is said, or not, whatever the others are"
)]
pub(crate) struct AgentReport {
    /// Which stream it is; a later one replaces an earlier one.
    pub(crate) epoch: u64,
    pub(crate) connected: bool,
    /// When its last stream ended; `None` while one is open.
    pub(crate) left: Option<Instant>,
    pub(crate) version: String,
    pub(crate) kubernetes_version: String,
    pub(crate) namespaces: Stamped<Option<BTreeMap<String, Namespace>>>,
    /// When namespaces were heard of that were made of late, or anew: whether what was made in them before they had their
    /// labels has its own shows in the next words on coverage.
    pub(crate) settling: BTreeMap<String, Instant>,
    pub(crate) coverage: Option<BTreeMap<GroupResource, v1::KindCoverage>>,
    /// Of kinds in `coverage`; absent: the agent has not counted it.
    pub(crate) counts: Counts,
    /// The stream that is open has told it.
    pub(crate) told_coverage: bool,
    /// When the agent said anything last on a stream that had told its coverage.
    pub(crate) vouched: Option<Instant>,
    /// Callers by the UID of their Pod.
    pub(crate) callers: Option<BTreeMap<String, v1::CallerFact>>,
    /// Namespaces of which the agent has never told this process all callers.
    pub(crate) unknown_callers: BTreeSet<String>,
    /// UIDs of callers that this process knew and that are gone, while there are any of those. Bounded.
    pub(crate) gone_callers: GoneCallers,
    /// UIDs of callers that were known before the agent's stream began, of namespaces of which it has not told all on it.
    pub(crate) kept_callers: BTreeSet<String>,
    /// Shared with worlds, which go by whether it is the very same.
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) allowed: Option<v1::Allowed>,
    pub(crate) heartbeat: Option<Heartbeat>,
    /// The clock of the member's API server agreed with the hub's when its agent spoke last.
    pub(crate) clock_agrees: bool,
    /// When that clock was read last.
    pub(crate) clock_read: Option<Timestamp>,
    /// The member's resourceVersion as it was read last; 0: not yet.
    pub(crate) version_read: u64,
    /// When it went back last, as far as this process knows.
    pub(crate) restored: Option<Instant>,
    /// It went back, and that is not counted yet.
    pub(crate) owes_restore: bool,
    /// Names of its Nodes; `None`: the agent has not told, or may not list them.
    pub(crate) nodes: Option<v1::NodeNames>,
    /// Selectors of which not all Pods are told, by their digests.
    pub(crate) excess: Vec<v1::ExcessSelector>,
    /// What is wrong with the member's admission policies; empty: nothing.
    pub(crate) policies: String,
    /// How far the orders to fence namespaces are, by namespace.
    pub(crate) fences: Stamped<BTreeMap<String, v1::FenceState>>,
    /// What was doubtful about the last fence that was told to be closed, although there was a Namespace.
    pub(crate) fence_doubt: Option<String>,
    /// Why a signing key of it that was proven is not taken.
    pub(crate) refused_key: Option<String>,
}

/// What the ledger of a member's pairs is moved on by. Where it is the same, it is moved on in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OfPairs {
    is_member: bool,
    can_fence: Option<bool>,
    fences_lists: bool,
    /// Stamps.
    inventory: Option<u64>,
    fences: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Namespace {
    pub(crate) uid: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// How many bytes its labels have, if they are too many to be known; 0: they are known.
    pub(crate) labels_cut: u64,
    pub(crate) terminating: bool,
    /// Its annotation, in order: the member refuses writes that say another epoch. Empty: it has none.
    pub(crate) epochs: Vec<u64>,
}

/// Whether a member has a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    There,
    Absent,
    /// It had none when its agent was heard last; the agent, or its API server, cannot be heard now.
    AbsentWhenHeard,
    /// The agent has not told this process what namespaces there are.
    Unknown,
}

/// What routers are told of a kind's coverage: figures only while something is missing. Objects come and go all the time,
/// and a router has no use for their number.
pub(crate) fn coverage_for_routers(coverage: &v1::KindCoverage) -> v1::KindCoverage {
    let mut coverage = coverage.clone();
    if coverage.complete {
        (coverage.labelled, coverage.total) = (0, 0);
    }
    coverage
}

/// A member's tokens, by the name of the router that each is for.
pub(crate) type Tokens = BTreeMap<Arc<str>, Arc<Token>>;

/// One router's token of the member's router ServiceAccount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// Uid of the Router object that it was minted for.
    pub(crate) router_uid: String,
    pub(crate) token: Secret,
    pub(crate) expires_unix_seconds: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heartbeat {
    pub(crate) at: Timestamp,
    pub(crate) api_ready: bool,
    pub(crate) latency_milliseconds: u32,
    pub(crate) message: String,
}

impl AgentReport {
    /// Whether the agent is there and says that the API server is not ready. Its silence says nothing.
    pub(crate) fn is_unready(&self) -> bool {
        self.connected && self.heartbeat.as_ref().is_some_and(|beat| !beat.api_ready)
    }
}

impl Facts {
    /// Whether there is any child of the root with this UID.
    pub(crate) fn has_children(&self, root: &str) -> bool {
        self.shards.values().any(|shard| shard.root.as_deref() == Some(root))
    }

    /// The pin of `cluster`, if it belongs to the MemberCluster that has this name now and that is accepted.
    pub(crate) fn joined(&self, cluster: &str) -> Option<(&MemberObject, &Pin)> {
        let member = self.members.get(cluster).filter(|member| member.accept)?;
        let pin = self.pins.get(cluster).filter(|pin| pin.member_uid == member.uid)?;
        Some((member, pin))
    }

    /// The pin of `cluster`, if it has joined as the MemberCluster that has this name now, and this is accepted no more.
    pub(crate) fn withdrawn(&self, cluster: &str) -> Option<&Pin> {
        let member = self.members.get(cluster).filter(|member| !member.accept)?;
        self.pins.get(cluster).filter(|pin| pin.member_uid == member.uid)
    }

    /// Whether the member lets routers say the epoch of their writes; `None`: that is not known.
    pub(crate) fn can_fence(&self, cluster: &str) -> Option<bool> {
        if !self.members.get(cluster).is_some_and(|member| member.accept) {
            return Some(false);
        }
        let allowed = self.agents.get(cluster)?.allowed.as_ref()?;
        let has = |key: &str| allowed.extras.iter().any(|known| known == key);
        Some(has(FENCE_SHARD) && has(FENCE_EPOCH))
    }

    /// Whether the member refuses what writes to the namespace in another epoch than this one. Also if there is no such
    /// namespace: one that is made has no annotation, and takes no write that says its epoch.
    pub(crate) fn is_fenced(&self, cluster: &str, namespace: &str, epoch: u64) -> bool {
        let Some(agent) = self.agents.get(cluster) else {
            return false;
        };
        let state = agent.fences.get(namespace);
        let is_open = |state: &v1::FenceState| state.epoch == epoch || state.open.contains(&epoch);
        let closed = state.is_some_and(|state| state.closed && is_open(state));
        let known = agent.namespaces.as_ref();
        closed && known.is_some_and(|known| known.get(namespace).is_none_or(|one| one.epochs.contains(&epoch)))
    }

    /// Whether the member refuses what still arrives of this `pair`, and is ready for who comes `next`. An agent may speak of what another process
    /// told it, which had `next` kept for another operator's pair of the namespace: then this one's epoch is open beside it.
    pub(crate) fn is_closed(&self, pair: &PairEpoch, next: u64) -> bool {
        let (cluster, namespace, epoch) = pair;
        let agent = self.agents.get(cluster);
        let state = agent.and_then(|agent| agent.fences.get(namespace));
        let known = self.inventory(cluster).and_then(|all| all.get(namespace));
        let is_open = state.is_some_and(|state| state.epoch == *epoch || state.open.contains(epoch))
            || known.is_some_and(|known| known.epochs.contains(epoch));
        self.is_fenced(cluster, namespace, next) && !is_open
    }

    /// Whether the member takes writes of several epochs of one namespace, as it has an owner of each operator.
    pub(crate) fn fences_lists(&self, cluster: &str) -> bool {
        let allowed = self.agents.get(cluster).and_then(|agent| agent.allowed.as_ref());
        allowed.is_some_and(|allowed| allowed.fence_lists)
    }

    /// Whether all callers in a namespace of a member are known.
    pub(crate) fn knows_callers(&self, cluster: &str, namespace: &str) -> bool {
        let agent = self.agents.get(cluster);
        agent.is_some_and(|agent| agent.callers.is_some() && !agent.unknown_callers.contains(namespace))
    }

    /// Whether a person said that nobody waits for this release of `shard` any more.
    pub(crate) fn is_forced(&self, shard: &ShardName, pair: &PairEpoch) -> bool {
        let object = self.shards.get(shard);
        let forced = object.and_then(|object| object.forced.as_ref()?.as_ref().ok());
        forced.is_some_and(|forced| forced.pairs.contains(pair))
    }

    /// What the ledger of a member's pairs is moved on by.
    pub(crate) fn of_pairs(&self, cluster: &str) -> OfPairs {
        let agent = self.agents.get(cluster);
        OfPairs {
            is_member: self.members.contains_key(cluster),
            can_fence: self.can_fence(cluster),
            fences_lists: self.fences_lists(cluster),
            inventory: self.inventory_stamp(cluster),
            fences: agent.map(|agent| agent.fences.stamp()),
        }
    }

    /// Whether the member has the namespace, by what its agent told last.
    pub(crate) fn presence(&self, cluster: &str, namespace: &str) -> Presence {
        let Some((agent, inventory)) = self.agents.get(cluster).zip(self.inventory(cluster)) else {
            return Presence::Unknown;
        };
        if inventory.contains_key(namespace) {
            Presence::There
        } else if agent.connected && !agent.is_unready() {
            Presence::Absent
        } else {
            Presence::AbsentWhenHeard
        }
    }

    /// The stamp of the last known inventory of a member; `None`: as [`Facts::inventory`].
    pub(crate) fn inventory_stamp(&self, cluster: &str) -> Option<u64> {
        let namespaces = &self.agents.get(cluster)?.namespaces;
        namespaces.is_some().then(|| namespaces.stamp())
    }

    /// The last known inventory of a member; `None` while its agent has not reported one to this process.
    pub(crate) fn inventory(&self, cluster: &str) -> Option<&BTreeMap<String, Namespace>> {
        self.agents.get(cluster)?.namespaces.as_ref()
    }
}
