//! Callers → views: which Pods are callers of which shards.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use portolan_crds::{Selector, ShardName};
use portolan_wire::v1;

use super::policies::Holders;
use super::wanted::allows;
use super::{Accepted, Ref, World, held};
use crate::facts::{Facts, GoneCallers, MemberObject};

/// Which locks callers may hold, and when.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeldBy<'a> {
    pub(super) holders: &'a held::Holders,
    /// For longer nothing counts without a renewal.
    pub(super) longest: Duration,
    pub(super) now: Timestamp,
}

impl HeldBy<'_> {
    fn closed(
        &self,
        accepted: &BTreeMap<ShardName, Accepted>,
        (cluster, caller): (&str, &v1::CallerFact),
        shards: &[ShardName],
    ) -> Option<v1::WritesClosed> {
        // Of several it is served by none.
        let [shard] = shards else { return None };
        let key = (cluster.to_owned(), caller.uid.clone());
        let shard = (shard, accepted.get(shard)?);
        self.holders.closed((&key, caller), shard, (self.longest, self.now))
    }
}

/// Callers of one member, of which not all are known, that agents have told this process: whether there is a view of each it knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SeenCallers {
    there: BTreeSet<String>,
    gone: GoneCallers,
}

impl SeenCallers {
    fn of(callers: &BTreeMap<String, v1::CallerFact>, gone: &GoneCallers) -> Self {
        Self {
            there: callers.keys().cloned().collect(),
            gone: gone.clone(),
        }
    }

    pub(super) fn has(&self, uid: &str) -> bool {
        self.there.contains(uid) || self.gone.contains(uid)
    }
}

/// Pods in these phases run nothing any more.
const ENDED: [&str; 2] = ["Succeeded", "Failed"];

/// Adds a view for each caller that agents have reported, and says of which members none have been.
pub(super) fn render(world: &mut World, facts: &Facts, holders: &mut Holders<'_>, held: HeldBy<'_>) {
    for (cluster, member) in facts.members.iter().filter(|(_, member)| member.accept) {
        let agent = facts.agents.get(cluster);
        // Views do not say which namespace they are of: one of which not all is known keeps all of those that were never seen.
        if agent.is_none_or(|agent| agent.callers.is_none() || !agent.unknown_callers.is_empty()) {
            world.unknown.insert((v1::ResourceKind::CallerView, cluster.clone()));
        }
        let Some((agent, callers)) = agent.and_then(|agent| Some((agent, agent.callers.as_ref()?))) else {
            continue;
        };
        if !agent.unknown_callers.is_empty() {
            world
                .seen_callers
                .insert(cluster.clone(), SeenCallers::of(callers, &agent.gone_callers));
        }
        if facts.joined(cluster).is_none() {
            continue;
        }
        for caller in callers
            .values()
            .filter(|caller| !ENDED.contains(&caller.phase.as_str()))
        {
            add_view(world, (cluster, member), caller, (holders, held));
        }
    }
}

/// A caller that a shard has by the spec in force, or may have: of a member that an agent has not told about since this
/// process started, nobody knows.
pub(super) fn running(facts: &Facts, name: &ShardName, accepted: &Accepted) -> Option<String> {
    let selector = match &accepted.spec.selector {
        Some(selector) => Selector::from_label_selector(selector).ok()?,
        // Whatever the children of a root choose.
        None if accepted.spec.root.is_some() => Selector::everything(),
        None => return None,
    };
    let mut untold = None;
    for cluster in facts.members.keys().filter(|cluster| runs_in(accepted, cluster)) {
        if facts.joined(cluster).is_none() {
            continue;
        }
        if !facts.knows_callers(cluster, name.namespace()) {
            untold.get_or_insert_with(|| format!("those in {cluster} are not known yet"));
        }
        let callers = facts.agents.get(cluster).and_then(|agent| agent.callers.as_ref());
        let found = callers.into_iter().flat_map(BTreeMap::values).find(|caller| {
            caller.namespace == name.namespace()
                && !ENDED.contains(&caller.phase.as_str())
                && selects(&selector, caller)
                && accepted.spec.admits_account(&caller.service_account)
        });
        if let Some(caller) = found {
            return Some(format!("{cluster}/{}/{}", caller.namespace, caller.pod));
        }
    }
    untold
}

/// Whether a Pod that runs in one of the shard's caller clusters is a caller of it.
pub(crate) fn is_caller(name: &ShardName, accepted: &Accepted, caller: &v1::CallerFact) -> bool {
    name.namespace() == caller.namespace
        && !ENDED.contains(&caller.phase.as_str())
        && caller_selector(accepted).is_some_and(|selector| selects(&selector, caller))
        && accepted.spec.admits_account(&caller.service_account)
}

/// Whether the selector chooses the Pod. One whose labels are too many to be known is chosen by none, whatever they may be.
pub(crate) fn selects(selector: &Selector, pod: &v1::CallerFact) -> bool {
    pod.labels_cut == 0 && selector.matches(&labels_of(pod))
}

fn labels_of(caller: &v1::CallerFact) -> BTreeMap<String, String> {
    let labels = caller.labels.iter();
    labels.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn add_view(
    world: &mut World,
    (cluster, member): (&str, &MemberObject),
    caller: &v1::CallerFact,
    (holders, held): (&mut Holders<'_>, HeldBy<'_>),
) {
    if caller.labels_cut > 0 {
        let pod = format!("{} in {cluster} ({} bytes)", caller.pod, caller.labels_cut);
        world
            .unread_pods
            .entry(caller.namespace.clone())
            .or_default()
            .insert(pod);
        return;
    }
    let mut shards: Vec<ShardName> = shards_of(world, cluster, caller);
    shards.retain(|shard| allows(member, shard));
    // Routers compare a token's ServiceAccount with the view's: an agent that names another helps nobody.
    shards.retain(|shard| {
        let accepted = world.state.accepted.get(shard);
        let admits = accepted.is_some_and(|accepted| accepted.spec.admits_account(&caller.service_account));
        if !admits {
            let pod = format!("{} in {cluster} ({})", caller.pod, caller.service_account);
            world.not_admitted.entry(shard.clone()).or_default().insert(pod);
        }
        admits
    });
    if shards.is_empty() {
        return;
    }
    let view = Ref::View {
        home: cluster.to_owned(),
        pod_uid: caller.uid.clone(),
    };
    let body = v1::CallerView {
        home_cluster: cluster.to_owned(),
        pod_uid: caller.uid.clone(),
        namespace: caller.namespace.clone(),
        pod: caller.pod.clone(),
        service_account: caller.service_account.clone(),
        shards: shards.iter().map(ToString::to_string).collect(),
        created_unix_seconds: caller.created_unix_seconds,
        policies: holders.hold(&mut world.policies, cluster, caller),
        writes_closed: held.closed(&world.state.accepted, (cluster, caller), &shards),
    };
    for name in shards {
        world.callers.entry(name).or_default().insert(view.clone());
    }
    world.add_view(view, body);
}

/// Shards in force whose selector matches the Pod, in the namespace of the same name, in their caller clusters.
fn shards_of(world: &World, cluster: &str, caller: &v1::CallerFact) -> Vec<ShardName> {
    let labels = labels_of(caller);
    let matches = |name: &ShardName, accepted: &Accepted| {
        name.namespace() == caller.namespace
            && runs_in(accepted, cluster)
            && caller_selector(accepted).is_some_and(|selector| selector.matches(&labels))
    };
    let shards = world
        .state
        .accepted
        .iter()
        .filter(|(name, accepted)| matches(name, accepted));
    shards.map(|(name, _)| name.clone()).collect()
}

/// Whether the shard's operator may run in `cluster`.
pub(crate) fn runs_in(accepted: &Accepted, cluster: &str) -> bool {
    homes(accepted).is_none_or(|homes| homes.iter().any(|name| name == cluster))
}

/// Where the shard's operator may run. `None`: an original manifest does not say where.
pub(super) fn homes(accepted: &Accepted) -> Option<&[String]> {
    let clusters = &accepted.spec.caller_clusters;
    (!clusters.is_empty()).then_some(clusters)
}

/// Which Pods are callers; `None` for a spec without selector, which has none, and for a root: its children have them.
pub(crate) fn caller_selector(accepted: &Accepted) -> Option<Selector> {
    if accepted.spec.root.is_some() {
        return None;
    }
    Selector::from_label_selector(accepted.spec.selector.as_ref()?).ok()
}
