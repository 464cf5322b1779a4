//! Callers that may hold a lock which is not their present shard's: whose writes are closed for that
//! (`docs/semantics.md#leader-election`). Pure.
//!
//! Whoever leads by another lock may be a second leader in its new shard. What each caller renewed so lately that it may count is
//! told by routers; where one of them cannot be asked, nobody knows what a caller that changes its shard had renewed by it, and then
//! the longest time counts. Callers: `callers` for views, `new_locks` for locks that nobody has held yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use portolan_crds::sharding::LeaderElection;
use portolan_crds::{Election, HeldLock, ShardName, ShardingConfigSpec, lease_name};
use portolan_wire::subscription::{CallerPod, Subscription};
use portolan_wire::v1;

use super::{Accepted, World};

/// Home cluster and uid of a caller's Pod.
pub(crate) type CallerKey = (String, String);

/// Most shards of one caller that are known beside its present one: names of these are its author's choice.
const MOST_EARLIER: usize = 16;
/// Routers open closed writes by themselves at the time that they were told. So many seconds before it they are told a later one, if
/// the lock still counts: a run, its transaction and the clocks of two machines take less.
const TOLD_AGAIN_SECONDS: i64 = 5;

/// The callers of whose locks a router may tell: those that it may have served, whatever shard they are of by now.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Teller {
    /// A gateway tells of all callers.
    Everyone,
    /// A router of shards tells of callers in the namespaces of those: no Pod leaves its own.
    Namespaces(Arc<BTreeSet<String>>),
    /// A router of one caller tells of that.
    Pod(Arc<CallerPod>),
}

impl Teller {
    pub(crate) fn of(subscription: &Subscription) -> Self {
        match subscription {
            Subscription::Everything => Self::Everyone,
            Subscription::Shards(shards) => {
                let namespaces = shards.iter().map(|shard| shard.namespace().to_owned());
                Self::Namespaces(Arc::new(namespaces.collect()))
            }
            Subscription::Caller(pod) => Self::Pod(Arc::new(pod.clone())),
        }
    }

    /// Whether its word counts for a Pod of this home cluster, namespace and name.
    pub(crate) fn knows(&self, (home, namespace, name): (&str, &str, &str)) -> bool {
        match self {
            Self::Everyone => true,
            Self::Namespaces(namespaces) => namespaces.contains(namespace),
            Self::Pod(pod) => pod.cluster == home && pod.namespace == namespace && pod.pod == name,
        }
    }
}

/// Callers that may have renewed what nobody knows of: some router that may have served them cannot say it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Untold {
    all: bool,
    /// All that were callers of one of these.
    shards: BTreeSet<ShardName>,
    pods: BTreeSet<CallerPod>,
}

impl Untold {
    pub(crate) fn everyone() -> Self {
        Self {
            all: true,
            ..Self::default()
        }
    }

    /// Those that a router of this subscription may have served.
    pub(crate) fn add(&mut self, subscription: &Subscription) {
        match subscription {
            Subscription::Everything => self.all = true,
            Subscription::Shards(shards) => self.shards.extend(shards.iter().cloned()),
            Subscription::Caller(pod) => {
                self.pods.insert(pod.clone());
            }
        }
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.all |= other.all;
        self.shards.extend(other.shards);
        self.pods.extend(other.pods);
    }

    pub(crate) fn is_nobody(&self) -> bool {
        !self.all && self.shards.is_empty() && self.pods.is_empty()
    }

    /// Whether the Pod is among them, which was a caller of this shard.
    fn has(&self, (home, fact): (&str, &v1::CallerFact), shard: &ShardName) -> bool {
        let pod = || CallerPod {
            cluster: home.to_owned(),
            namespace: fact.namespace.clone(),
            pod: fact.pod.clone(),
        };
        self.all || self.shards.contains(shard) || !self.pods.is_empty() && self.pods.contains(&pod())
    }
}

/// One lock that a caller may hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hold {
    pub(crate) lock: HeldLock,
    /// UID of the shard whose caller it was when it renewed.
    pub(crate) shard_uid: String,
    /// For how long it counts after a renewal at most.
    pub(crate) lasts_seconds: u32,
    /// The router that told of the lock.
    pub(crate) teller: Teller,
}

/// What this hub has seen of one caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Past {
    /// The shard that it was of last, and its UID.
    shard: ShardName,
    shard_uid: String,
    /// Those that it was of before, the last one last.
    earlier: Vec<Earlier>,
    /// Until when routers were told last that its writes are closed.
    closed_until: Option<i64>,
}

/// A shard that a caller came from.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Earlier {
    shard: ShardName,
    shard_uid: String,
    /// When it was known to be of another one.
    until: Instant,
}

/// A caller as a world tells it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Present<'a> {
    pub(crate) shard: &'a ShardName,
    pub(crate) shard_uid: &'a str,
    /// Until when its writes are closed.
    pub(crate) closed_until: Option<i64>,
}

impl Past {
    /// Of a caller that is seen for the first time.
    pub(crate) fn new(present: Present<'_>) -> Self {
        Self {
            shard: present.shard.clone(),
            shard_uid: present.shard_uid.to_owned(),
            earlier: Vec::new(),
            closed_until: present.closed_until,
        }
    }

    /// Goes on to what routers are told now. `longest`: after that nothing counts of a shard that it was of.
    pub(crate) fn move_on(&mut self, present: Present<'_>, (now, longest): (Instant, Duration)) {
        self.closed_until = present.closed_until;
        self.earlier.retain(|earlier| now < earlier.until + longest);
        if self.shard_uid == present.shard_uid {
            return;
        }
        let left = Earlier {
            shard: std::mem::replace(&mut self.shard, present.shard.clone()),
            shard_uid: std::mem::replace(&mut self.shard_uid, present.shard_uid.to_owned()),
            until: now,
        };
        self.earlier.retain(|earlier| earlier.shard_uid != left.shard_uid);
        self.earlier.push(left);
        let excess = self.earlier.len().saturating_sub(MOST_EARLIER);
        self.earlier.drain(..excess);
    }
}

/// What callers may hold, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holders {
    /// By this time.
    pub(crate) at: Instant,
    /// As routers tell it, each of whatever callers it likes.
    pub(crate) held: BTreeMap<CallerKey, Vec<Hold>>,
    /// Whoever may hold more.
    pub(crate) untold: Untold,
    /// An earlier hub may have closed what this one knows nothing of.
    pub(crate) young: bool,
    pub(crate) past: BTreeMap<CallerKey, Past>,
}

impl Default for Holders {
    /// Nobody holds anything.
    fn default() -> Self {
        Self {
            at: Instant::now(),
            held: BTreeMap::new(),
            untold: Untold::default(),
            young: false,
            past: BTreeMap::new(),
        }
    }
}

impl Holders {
    /// What the caller may hold, by the words of routers that may know.
    pub(super) fn holds<'a>(
        &'a self,
        key: &CallerKey,
        fact: &'a v1::CallerFact,
    ) -> impl Iterator<Item = &'a Hold> + use<'a> {
        let home = self.held.get_key_value(key);
        home.into_iter().flat_map(|((home, _), holds)| {
            let pod = (home.as_str(), fact.namespace.as_str(), fact.pod.as_str());
            holds.iter().filter(move |hold| hold.teller.knows(pod))
        })
    }

    /// For how long nobody knows yet what a caller that came to the shard of this UID may hold.
    pub(super) fn unknown_for(
        &self,
        (key, fact): (&CallerKey, &v1::CallerFact),
        shard_uid: &str,
        longest: Duration,
    ) -> Option<Duration> {
        let past = self.past.get(key).filter(|_| !self.untold.is_nobody())?;
        let last = (&past.shard, &past.shard_uid, self.at);
        let earlier = past.earlier.iter();
        let earlier = earlier.map(|earlier| (&earlier.shard, &earlier.shard_uid, earlier.until));
        let others = earlier.chain([last]).filter(|(_, uid, _)| *uid != shard_uid);
        let untold = others.filter(|(shard, _, _)| self.untold.has((&key.0, fact), shard));
        let left = untold.map(|(_, _, until)| longest.saturating_sub(self.at.saturating_duration_since(until)));
        left.max().filter(|left| !left.is_zero())
    }

    /// Whether, and until when, the writes of a caller of this shard are closed: until both what is known to count and what nobody
    /// knows are over.
    pub(super) fn closed(
        &self,
        (key, fact): (&CallerKey, &v1::CallerFact),
        (name, accepted): (&ShardName, &Accepted),
        (longest, now): (Duration, Timestamp),
    ) -> Option<v1::WritesClosed> {
        if !elects(&accepted.spec) {
            return None;
        }
        let election = ElectionOf::of(name, &accepted.spec, &key.0);
        let holds = self.holds(key, fact);
        let elsewhere = holds.filter(|hold| hold.shard_uid != accepted.uid && !election.has(&hold.lock));
        let known = elsewhere.max_by_key(|hold| hold.lasts_seconds);
        let past = self.past.get(key).filter(|past| past.shard_uid == accepted.uid);
        let told = Told {
            until: past.and_then(|past| past.closed_until),
            now: now.as_second(),
        };
        let known = known.map(|hold| {
            let lasts = Duration::from_secs(hold.lasts_seconds.into()).min(longest);
            (told.while_held(seconds(lasts)), reason(&hold.lock))
        });
        let unknown = self.unknown_for((key, fact), &accepted.uid, longest).map(|left| {
            let reason = "some router cannot say what it renewed there".to_owned();
            (told.while_unknown(seconds(left)), reason)
        });
        let closed = known.into_iter().chain(unknown);
        let (until_unix_seconds, reason) = closed.max_by_key(|(until, _)| *until)?;
        Some(v1::WritesClosed {
            until_unix_seconds,
            reason,
        })
    }
}

/// What routers were told last of a caller: until when its writes are closed, in seconds of Unix time.
struct Told {
    until: Option<i64>,
    now: i64,
}

impl Told {
    /// Until when a lock counts that is held now, and for `lasts` seconds at most. What was told stays, unless it is later, or so near
    /// that routers would open before they hear that the lock counts still.
    fn while_held(&self, lasts: i64) -> i64 {
        let until = self.now.saturating_add(lasts);
        let near = self.now + TOLD_AGAIN_SECONDS.min(lasts / 2);
        self.until
            .filter(|told| *told > near)
            .map_or(until, |told| told.min(until))
    }

    /// Until `left` seconds from now. What was told stays where two clocks that are read one after the other make the difference.
    fn while_unknown(&self, left: i64) -> i64 {
        let until = self.now.saturating_add(left);
        self.until.filter(|told| told.abs_diff(until) <= 1).unwrap_or(until)
    }
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

/// A lock as an author names it in its spec, for whom it is closed.
fn reason(lock: &HeldLock) -> String {
    format!(
        "it renewed {}/{} in member cluster {}",
        lock.resource, lock.name, lock.cluster
    )
}

/// Whether callers of such a shard may have a leader.
pub(super) fn elects(spec: &ShardingConfigSpec) -> bool {
    let controller = spec.controller.as_ref();
    spec.root.is_none() && controller.is_none_or(|controller| controller.leader_election != LeaderElection::Disabled)
}

/// An [`Election`], with its words.
pub(super) struct ElectionOf<'a> {
    home: &'a str,
    primary: &'a str,
    lock: Option<String>,
}

impl<'a> ElectionOf<'a> {
    pub(super) fn of(name: &ShardName, spec: &'a ShardingConfigSpec, home: &'a str) -> Self {
        Self {
            home,
            primary: spec.primary_cluster().unwrap_or(home),
            lock: spec.leader_election_name().and_then(|lock| lease_name(lock, name).ok()),
        }
    }

    pub(super) fn has(&self, lock: &HeldLock) -> bool {
        lock.is_of(&Election {
            home: self.home,
            primary: self.primary,
            lock: self.lock.as_deref(),
        })
    }
}

/// What a world says of its callers, for the next.
pub(crate) fn callers_of(world: &World) -> impl Iterator<Item = (CallerKey, Present<'_>)> {
    let views = world.views.values().flatten().filter_map(|name| world.view_of(name));
    views.filter_map(|view| {
        let [shard] = view.shards.as_slice() else { return None };
        let accepted = &world.state.accepted;
        let (shard, accepted) = accepted.get_key_value(&shard.parse::<ShardName>().ok()?)?;
        let closed = view.writes_closed.as_ref().map(|closed| closed.until_unix_seconds);
        let present = Present {
            shard,
            shard_uid: &accepted.uid,
            closed_until: closed,
        };
        Some(((view.home_cluster.clone(), view.pod_uid.clone()), present))
    })
}
