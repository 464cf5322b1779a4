//! What the router knows: one immutable value, compiled from what the hub sent, swapped as a whole.
//!
//! Every request loads it once and is ruled by it to its end. Here are its types; [`build`] makes it from the wire's
//! resources, `resource::routing` keeps it. No rule of routing lives here, see `plan`.
//! Readers: `identify`, `plan`, `upstream`, `/configz`; writer: `subscribe`.

pub(crate) mod build;
mod caller;
mod configz;
pub(crate) mod keys;
mod lock;
mod reach;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod told;

use std::collections::BTreeSet;
use std::sync::Arc;

use http::HeaderValue;
use portolan_crds::labels::LabelKeys;
use portolan_crds::names::{RESTORED, ShardName, name_digest};
use portolan_crds::selector::Selector;
use portolan_crds::shard::Bucketing;
use portolan_merge::cursor::Format;
use portolan_wire::v1;

pub(crate) use self::caller::{Binding, Caller, CallerId, CallerKey, CallerView, HeldElsewhere};
use self::keys::KeyIndex;
pub(crate) use self::lock::{Lock, LockPlace, LockState};
pub(crate) use self::reach::{Reach, Unlabelled};
use crate::value::hashed::{HashMap, HashSet};
use crate::value::policy::{CallerPolicies, Policy};

/// Routing state of one moment. Cheap to clone: everything large is behind an `Arc`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    /// Counts the swaps of this process; 0 is the empty snapshot before the hub (or the state file) has spoken.
    pub(crate) generation: u64,
    /// Who may ask, by home cluster and Pod uid.
    pub(crate) callers: Map<CallerKey, CallerView>,
    /// Member clusters by name.
    pub(crate) targets: Map<Arc<str>, Target>,
    /// Members that were accepted once and are no more: known not to be there, in no other list of these.
    pub(crate) withdrawn: Arc<HashSet<Arc<str>>>,
    /// Other where any of them is another incarnation than before, has come or has gone.
    pub(crate) incarnations: u64,
    /// Who the callers of each member are, and as whom it lets the router act.
    pub(crate) identities: Map<Arc<str>, MemberIdentity>,
    /// How far each member's objects are labelled.
    pub(crate) coverage: Map<Arc<str>, Kinds>,
    /// Which Nodes each member has, as far as it has told.
    pub(crate) nodes: Map<Arc<str>, NodeNames>,
    /// The tokens by which the router acts for callers, by member.
    pub(crate) credentials: Map<Arc<str>, Credential>,
    /// CircuitBreakers and FaultInjections by name.
    pub(crate) policies: Map<Arc<str>, Policy>,
    /// Keys that sign callers' tokens, over all members.
    pub(crate) keys: Arc<KeyIndex>,
    /// Shards that callers are joined with.
    shards: Map<ShardKey, Shard>,
    /// What callers are held by, by the names of the policies: one for all who have the same.
    held: Map<Arc<[Arc<str>]>, CallerPolicies>,
    /// The rules of shards as they came, checked.
    rules: Map<ShardName, v1::Shard>,
    /// What shards own, by member.
    ownership: Arc<HashMap<Arc<str>, Map<ShardName, Ownership>>>,
    /// The same by member and namespace: it is asked for each request that leaves its shard, also by who floods with them.
    owners: HashMap<Arc<str>, Arc<Owners>>,
}

/// Who owns each namespace of one member: a shard of each operator.
type Owners = HashMap<Arc<str>, Vec<Arc<Ownership>>>;

/// Shared between snapshots until something of its kind changes; values that did not change stay the same then too.
pub(crate) type Map<K, V> = Arc<HashMap<K, Arc<V>>>;

/// Coverage by API group and resource.
pub(crate) type Kinds = HashMap<String, HashMap<String, Coverage>>;

impl Snapshot {
    /// The token by which the router acts for callers in a member.
    pub(crate) fn gateway_credential(&self, cluster: &str) -> Option<&Arc<Credential>> {
        self.credentials.get(cluster)
    }

    /// The shards that own a namespace of a member, as far as this router is told of others' shards. Of one that is gone nobody
    /// does: whoever has it may make it anew, and so may others.
    pub(crate) fn owners(&self, cluster: &str, namespace: &str) -> impl Iterator<Item = &ShardName> {
        self.owned_by(cluster, namespace).map(|owned| &owned.shard)
    }

    /// The one among them that is of this operator, and contends for namespaces with all of its shards.
    pub(crate) fn contender(&self, operator: &str, cluster: &str, namespace: &str) -> Option<&ShardName> {
        let mut owned = self.owned_by(cluster, namespace);
        let contender = owned.find(|owned| *owned.operator == *operator);
        contender.map(|owned| &owned.shard)
    }

    fn owned_by(&self, cluster: &str, namespace: &str) -> impl Iterator<Item = &Arc<Ownership>> {
        let owned = self.owners.get(cluster).and_then(|owners| owners.get(namespace));
        let is_there = move |owned: &&Arc<Ownership>| owned.namespaces.get(namespace).is_some_and(|pair| !pair.vacant);
        owned.into_iter().flatten().filter(is_there)
    }

    /// What this router has seen of the hub's ledger: of which life of it, and up to which view revision. Of several lives
    /// at once, in the middle of a change, the later revision speaks.
    pub(crate) fn seen(&self) -> (Arc<str>, u64) {
        let owned = self.ownership.values().flat_map(|shards| shards.values());
        let seen = owned.map(|owned| (owned.last_revision(), &owned.incarnation)).max();
        seen.map_or_else(
            || ("".into(), 0),
            |(revision, incarnation)| (incarnation.clone(), revision),
        )
    }

    /// Each pair that a shard has: its member, its namespace and the shard, with what is known of it.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = ((&Arc<str>, &str, &ShardName), &Pair)> {
        self.ownership.iter().flat_map(|(cluster, shards)| {
            shards.iter().flat_map(move |(shard, owned)| {
                let pairs = owned.namespaces.iter();
                pairs.map(move |(namespace, pair)| ((cluster, &**namespace, shard), pair))
            })
        })
    }

    /// Whether a member is known to have a Node of this name.
    pub(crate) fn has_node(&self, cluster: &str, name: &str) -> bool {
        let names = self.nodes.get(cluster);
        names.is_some_and(|names| names.digests.contains(&name_digest(name)))
    }

    /// How far the objects of a kind are labelled in a member.
    pub(crate) fn coverage(&self, cluster: &str, group: &str, resource: &str) -> Option<&Coverage> {
        self.coverage.get(cluster)?.get(group)?.get(resource)
    }
}

/// A shard; whose rules name "the home cluster" is another one for each of those.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct ShardKey {
    config: ShardName,
    home: Option<Arc<str>>,
}

/// What one group of callers owns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shard {
    /// Its ShardingConfig.
    pub(crate) config: ShardName,
    /// The same as one text, `namespace/name`: each request tells it.
    pub(crate) name: Arc<str>,
    /// `metadata.generation` of the spec this was compiled from.
    pub(crate) config_generation: i64,
    /// The member cluster of its leases and of what belongs to no member in particular.
    pub(crate) primary_cluster: Arc<str>,
    /// The leader-election Lease as the operator names it, and as it lies in the primary cluster.
    pub(crate) lease: Option<LeaseName>,
    /// The resource of the core group that carries the lock under the same two names.
    pub(crate) lock_resource: Option<&'static str>,
    /// How that lock came to be where it is; `None`: it never moved.
    pub(crate) lock: Option<Lock>,
    /// Whether callers may use `/clusters/<member>`.
    pub(crate) explicit_view: bool,
    /// What happens to single-object requests outside the shard.
    pub(crate) enforcement: Enforcement,
    /// The members, in `clusters[]` order.
    pub(crate) members: Vec<Member>,
    /// Narrower rules within the namespaces.
    pub(crate) limits: Vec<Limit>,
    /// Keys of the labels that agents write.
    pub(crate) label_keys: LabelKeys,
    /// What agents write into the label `sharding-hash`; evaluated from a namespace's name where labels are not trusted yet.
    pub(crate) bucketing: Bucketing,
    /// What a merged list does while a member is unreachable.
    pub(crate) unavailable: Unavailable,
    /// Whether the answer to a write waits for the caller's own watch: `docs/semantics.md#write-fence`.
    pub(crate) write_fence: bool,
    /// Group and resource of the kinds without namespace that mean the same in every member.
    pub(crate) replicated: Vec<(String, String)>,
    /// Who owns which namespace: the first member in order that has it.
    namespaces: HashMap<Arc<str>, Grant>,
    /// Per member: which namespaces are the shard's.
    reaches: Vec<Reach>,
    /// What its cursors say of it; `None`: the hub has not told, and cursors of format 2 are not read.
    pub(crate) identity: Option<CursorIdentity>,
    made_of: MadeOf,
}

/// What cursors say of a shard beside its members, see `portolan_merge::cursor::Universe::identified`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CursorIdentity {
    /// Its UID, its members, and what narrows its objects within their namespaces: view revisions say nothing of that.
    pub(crate) shard: String,
    /// Which of its members has a name that several have.
    pub(crate) ranks: String,
    /// Names the life of the hub's ledger.
    pub(crate) hub_incarnation: Arc<str>,
    /// The highest of all changes of its pairs.
    pub(crate) view_revision: u64,
    /// The format of the cursors that are written.
    pub(crate) writes: Format,
}

/// What a shard was made of: with the same it need not be made again.
#[derive(Debug, Clone, PartialEq)]
struct MadeOf {
    rules: Arc<v1::Shard>,
    /// Per member; `None` for one that is the shard's as a whole.
    owned: Vec<Option<Arc<Ownership>>>,
    /// What it had in clusters that are no members of it any more, by cluster.
    elsewhere: Vec<Arc<Ownership>>,
}

impl MadeOf {
    fn all_owned(&self) -> impl Iterator<Item = &Arc<Ownership>> {
        self.owned.iter().flatten().chain(&self.elsewhere)
    }

    fn is_same(&self, other: &Self) -> bool {
        let owned = |(one, other): (&Option<Arc<Ownership>>, &Option<Arc<Ownership>>)| match (one, other) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let elsewhere = self.elsewhere.iter().map(Arc::as_ptr);
        Arc::ptr_eq(&self.rules, &other.rules)
            && self.owned.iter().zip(&other.owned).all(owned)
            && elsewhere.eq(other.elsewhere.iter().map(Arc::as_ptr))
    }
}

/// What a shard owns in one member.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ownership {
    /// The member.
    pub(crate) cluster: Arc<str>,
    /// The ShardingConfig.
    pub(crate) shard: ShardName,
    /// With whose shards it contends for them, as in [`Shard::operator`].
    pub(crate) operator: Arc<str>,
    /// Pairs that it has.
    pub(crate) namespaces: HashMap<Arc<str>, Pair>,
    /// Pairs that left it in the last 24 hours, also those that have come back.
    pub(crate) departed: Vec<Departed>,
    /// Highest view revision of what is in `departed` no more.
    pub(crate) departed_dropped_up_to: u64,
    /// Names the life of the hub's ledger: view revisions of another one say nothing about this one's.
    pub(crate) incarnation: Arc<str>,
}

impl Ownership {
    /// The highest view revision in it.
    fn last_revision(&self) -> u64 {
        self.view_revision().max(self.departed_dropped_up_to)
    }

    /// The highest view revision of what it names. What was dropped may have been other shards': it does not count.
    fn view_revision(&self) -> u64 {
        let entered = self.namespaces.values().map(|pair| pair.view_revision);
        let left = self.departed.iter().map(|departed| departed.view_revision);
        entered.chain(left).max().unwrap_or_default()
    }
}

/// One (cluster, namespace) pair of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pair {
    /// Epoch of its owner: grows with each, and no two of a namespace have the same.
    pub(crate) owner_count: u64,
    /// The hub's count of changes of ownership when it entered the shard.
    pub(crate) view_revision: u64,
    /// Whether writes are still allowed.
    pub(crate) state: GrantState,
    /// Whether the member refuses writes that say another epoch than this one's `owner_count`, and this one's must say it.
    pub(crate) fenced: bool,
    /// Whether the member has no such namespace any more.
    pub(crate) vacant: bool,
}

/// A pair that left its shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Departed {
    /// The namespace.
    pub(crate) namespace: Arc<str>,
    /// The hub's count of changes of ownership when it left.
    pub(crate) view_revision: u64,
    /// When that was.
    pub(crate) left_unix_seconds: i64,
}

impl Shard {
    /// `metadata.uid` of its ShardingConfig: one that is made anew under the same name is another shard.
    pub(crate) fn uid(&self) -> &str {
        &self.made_of.rules.uid
    }

    /// With whose shards it contends for namespaces: `namespace/operator`; empty: with all.
    pub(crate) fn operator(&self) -> &str {
        &self.made_of.rules.operator
    }

    /// The member that owns `namespace`, and in what state; an exact grant before a whole cluster.
    pub(crate) fn owner(&self, namespace: &str) -> Option<(&Member, Grant)> {
        if let Some(grant) = self.namespaces.get(namespace) {
            return self.members.get(grant.member).map(|member| (member, *grant));
        }
        let (index, member) = self
            .members
            .iter()
            .enumerate()
            .find(|(_, member)| member.all_namespaces)?;
        Some((
            member,
            Grant {
                member: index,
                pair: Pair {
                    owner_count: 0,
                    view_revision: 0,
                    state: GrantState::Granted,
                    fenced: false,
                    vacant: false,
                },
                exact: false,
            },
        ))
    }

    /// The member of this name.
    pub(crate) fn member(&self, cluster: &str) -> Option<&Member> {
        self.members.iter().find(|member| &*member.cluster == cluster)
    }

    /// Which new Namespaces of a member become the shard's; `None`: the hub does not say.
    pub(crate) fn namespace_rules(&self, cluster: &str) -> Option<&v1::NamespaceRules> {
        let index = self.members.iter().position(|member| *member.cluster == *cluster)?;
        self.made_of.rules.members.get(index)?.namespace_rules.as_ref()
    }

    /// Which namespaces of the member of this index are the shard's.
    pub(crate) fn reach(&self, member: usize) -> Option<&Reach> {
        self.reaches.get(member)
    }
}

/// The two names of the leader-election Lease; see `portolan_crds::names::lease_name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaseName {
    /// `leaderElectionName`: what the operator asks for.
    pub(crate) client: String,
    /// `<leaderElectionName>---<shard>`: what lies in the primary cluster.
    pub(crate) member: String,
}

/// See `spec.enforcement`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Enforcement {
    /// Refuse.
    Enforce,
    /// Let through, count and warn.
    Audit,
}

/// `spec.unavailable`: what a merged list does without a member, see `docs/semantics.md#unreachable-is-not-deleted`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Unavailable {
    /// A list is whole or answers 429.
    #[default]
    Hold,
    /// A first list goes without the member, and says so.
    PartialStart,
}

/// One member cluster of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// Its name.
    pub(crate) cluster: Arc<str>,
    /// Unfiltered by namespace: a ShardingConfig without `clusters`.
    pub(crate) all_namespaces: bool,
    /// How many namespaces of it the shard owns.
    pub(crate) namespaces: usize,
    /// A system namespace among them: agents leave those alone, so labels cannot select their objects.
    pub(crate) unlabelled: Option<Arc<str>>,
}

/// The right to one (cluster, namespace) pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Index into [`Shard::members`].
    pub(crate) member: usize,
    /// The pair itself.
    pub(crate) pair: Pair,
    /// Granted by name, not as part of a whole cluster.
    pub(crate) exact: bool,
}

/// Where a grant is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrantState {
    /// Reads and writes.
    Granted,
    /// On its way to another shard: reads go on, writes are refused.
    Releasing,
}

/// One rule of `spec.limits`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limit {
    /// Groups and resources it is about; empty means every resource. `*` matches all.
    pub(crate) resources: Vec<(Vec<String>, Vec<String>)>,
    /// Which of their objects belong to the shard.
    pub(crate) selector: Selector,
}

/// One member cluster, as every request to it needs it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Target {
    /// Its name.
    pub(crate) cluster: Arc<str>,
    /// Version of the resource it was built from: equal versions are equal targets.
    pub(crate) version: String,
    /// UID of its kube-system Namespace.
    pub(crate) cluster_uid: String,
    /// API-server endpoints in order of preference, at least one.
    pub(crate) endpoints: Vec<Endpoint>,
    /// PEM bundle that the API server's certificate must chain to.
    pub(crate) ca_pem: String,
    /// Taken out of service by an administrator.
    pub(crate) cordoned: bool,
    /// Breaker settings; zero fields mean the router's defaults.
    pub(crate) breaker: v1::Breaker,
}

impl Target {
    /// Whether the member has lived on from an earlier state of its own: versions of before are in its numbers, too.
    pub(crate) fn was_restored(&self) -> bool {
        self.cluster_uid.contains(RESTORED)
    }
}

/// Who the callers of a member are, and as whom it lets the router act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberIdentity {
    /// Public JSON Web Keys, as sent.
    pub(crate) signing_keys: Vec<String>,
    /// Users that this member lets the router act as: people, and ServiceAccounts but for those of system namespaces.
    pub(crate) allowed: HashSet<String>,
    /// Its clock is known to agree with those that times of other machines are told by.
    pub(crate) clock_agrees: bool,
}

/// One address of a member's API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// `https://host:port`, no path.
    pub(crate) url: http::Uri,
    /// Name to verify the certificate by, when it is not the URL's host.
    pub(crate) tls_server_name: Option<String>,
}

/// Names of a member's Nodes, as digests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeNames {
    pub(crate) digests: HashSet<u64>,
    /// There are others, of which nothing is known.
    pub(crate) more: bool,
}

/// How far the agent has labelled one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Coverage {
    /// Selectors may be trusted.
    pub(crate) complete: bool,
    /// Objects that have their labels.
    pub(crate) labelled: u64,
    /// Objects there are.
    pub(crate) total: u64,
    /// Prefix and buckets that the agent labelled by; `None` if it did not say, or not in words of this version.
    pub(crate) rule: Option<(String, Bucketing)>,
    /// Whether new objects get their labels at admission, and keep them in updates that leave them out; `None`: the agent has
    /// not looked yet.
    pub(crate) at_admission: Option<bool>,
    /// Namespaces of the member in which objects may lack their labels whatever is said here; of all kinds the same.
    pub(crate) unconfirmed: Arc<BTreeSet<String>>,
}

/// A token for one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Credential {
    /// The member.
    pub(crate) cluster: Arc<str>,
    /// `namespace/name` of the ServiceAccount whose token it is.
    pub(crate) identity: Arc<str>,
    /// The bearer token, as the header that it is sent in.
    pub(crate) bearer: HeaderValue,
    /// Unix seconds.
    pub(crate) expires_unix_seconds: i64,
}
