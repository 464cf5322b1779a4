//! Members → the way to each, who its callers are, how far its objects are labelled, and each router's token for it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use portolan_crds::labels::system_namespace;
use portolan_crds::{GroupResource, HandState, HeldBreaker, MemberClusterSpec, TrafficClass};
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;

use super::ledger::Pairs;
use super::reference::Earlier;
use super::{Compiled, Credentials, Ref, World};
use crate::facts::{AgentReport, Facts, MemberObject, Namespace, Pin, coverage_for_routers};
use crate::jwks;
use crate::settings::Settings;

/// Most namespaces that are told to be unconfirmed. Of a member with more nothing is told to be labelled.
const MOST_UNCONFIRMED: usize = 100;

/// What is worked out of one member's facts and pairs, so that the next world need not do it again where these are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unconfirmed {
    inventory: Option<u64>,
    /// Of each operator.
    pairs: Vec<Arc<Pairs>>,
    namespaces: Vec<String>,
}

/// Thumbprints of the keys by which each member signs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Thumbprints {
    /// The stamp of what they are made of.
    pins: u64,
    by_member: BTreeMap<String, Vec<Option<String>>>,
}

impl Thumbprints {
    fn of(facts: &Facts) -> Self {
        let of_pin = |pin: &Pin| pin.signing_keys.iter().map(|key| jwks::thumbprint_of(key)).collect();
        let by_member = facts.pins.iter().map(|(cluster, pin)| (cluster.clone(), of_pin(pin)));
        Self {
            pins: facts.pins.stamp(),
            by_member: by_member.collect(),
        }
    }

    /// Keys of the pin, each with its thumbprint.
    fn of_keys<'a>(&'a self, cluster: &str, pin: &'a Pin) -> impl Iterator<Item = (&'a String, Option<&'a String>)> {
        let prints = self.by_member.get(cluster).into_iter().flatten();
        pin.signing_keys.iter().zip(prints.map(Option::as_ref))
    }
}

/// Adds what routers must know of each joined member, and says what of which members is not known yet.
pub(super) fn render(world: &mut World, facts: &Facts, settings: &Settings, earlier: Earlier<'_>) {
    let known = earlier.0.map(|last| &last.thumbprints);
    let known = known.filter(|known| known.pins == facts.pins.stamp()).cloned();
    world.thumbprints = known.unwrap_or_else(|| Thumbprints::of(facts).into());
    let prints = world.thumbprints.clone();
    let shared = shared_keys(facts, &prints);
    for cluster in facts.members.keys() {
        let Some((member, pin)) = facts.joined(cluster) else {
            if let Some(pin) = facts.withdrawn(cluster) {
                world.targets.insert(cluster.clone());
                world
                    .resources
                    .insert(Ref::Target(cluster.clone()), withdrawn(cluster, pin));
            }
            continue;
        };
        world.targets.insert(cluster.clone());
        let agent = facts.agents.get(cluster);
        let unshared = prints.of_keys(cluster, pin);
        let unshared = unshared.filter(|(_, print)| print.is_some_and(|print| !shared.contains(print)));
        let keys = unshared.map(|(key, _)| key.clone()).collect();
        let silent = facts.silent.contains(cluster);
        let (body, provisional) = identity(cluster, member, keys, agent.map(|agent| (agent, silent)));
        let name = Ref::Identity(cluster.clone());
        let identity = earlier.compiled(&name, body).provisional(provisional);
        world.resources.insert(name, identity);
        let unconfirmed = unconfirmed(world, cluster, (facts, settings), earlier);
        for (name, body) in [
            (Ref::Target(cluster.clone()), target(cluster, member, pin, agent)),
            (
                Ref::Coverage(cluster.clone()),
                coverage(cluster, agent, silent, unconfirmed),
            ),
            (Ref::Nodes(cluster.clone()), nodes(cluster, agent)),
        ] {
            if let Some(body) = body {
                let compiled = earlier.compiled(&name, body);
                world.resources.insert(name, compiled);
            } else {
                world.unknown.insert((name.kind(), cluster.clone()));
            }
        }
        world.unknown.insert((v1::ResourceKind::Credential, cluster.clone()));
    }
    world.credentials = Credentials::of(facts, earlier.0.map(|last| &last.credentials));
}

/// Thumbprints that more than one member publishes: such a key identifies nobody.
fn shared_keys<'a>(facts: &'a Facts, prints: &'a Thumbprints) -> BTreeSet<&'a String> {
    let mut owners = HashMap::<&String, &str>::new();
    let mut shared = BTreeSet::new();
    for cluster in facts.members.keys() {
        let Some((_, pin)) = facts.joined(cluster) else {
            continue;
        };
        for print in prints.of_keys(cluster, pin).filter_map(|(_, print)| print) {
            if *owners.entry(print).or_insert(cluster) != cluster.as_str() {
                shared.insert(print);
            }
        }
    }
    shared
}

/// `None` until a spec without problems says the way.
fn target(cluster: &str, member: &MemberObject, pin: &Pin, agent: Option<&AgentReport>) -> Option<Body> {
    let spec = member.in_force.as_ref().filter(|spec| !spec.endpoints.is_empty())?;
    let ca_bundle = spec.ca_bundle.as_ref();
    Some(Body::Target(v1::Target {
        cluster: cluster.to_owned(),
        cluster_uid: pin.incarnation(),
        endpoints: endpoints(spec),
        ca_pem: ca_bundle
            .map(|bundle| String::from_utf8_lossy(&bundle.0).into_owned())
            .unwrap_or_default(),
        cordoned: spec.cordoned,
        withdrawn: false,
        breaker: Some(v1::Breaker {
            suspicious: agent.is_some_and(AgentReport::is_unready),
            ..spec.breaker.as_ref().map(breaker).unwrap_or_default()
        })
        .filter(|told| *told != v1::Breaker::default()),
    }))
}

/// Told apart from a member of which nothing is known yet: routers go on without it, and say so.
fn withdrawn(cluster: &str, pin: &Pin) -> Compiled {
    Compiled::new(Body::Target(v1::Target {
        cluster: cluster.to_owned(),
        cluster_uid: pin.incarnation(),
        withdrawn: true,
        ..v1::Target::default()
    }))
}

/// While the agent has not told whom it allows, what the status says it allowed last is for routers that know nothing.
fn identity(
    cluster: &str,
    member: &MemberObject,
    signing_keys: Vec<String>,
    agent: Option<(&AgentReport, bool)>,
) -> (Body, bool) {
    let told = agent.and_then(|(agent, _)| agent.allowed.clone());
    let provisional = told.is_none();
    let allowed = told.unwrap_or_else(|| v1::Allowed {
        service_accounts: member.status.allowed_service_accounts.clone(),
        users: member.status.allowed_users.clone(),
        ..v1::Allowed::default()
    });
    let body = Body::MemberIdentity(v1::MemberIdentity {
        cluster: cluster.to_owned(),
        signing_keys,
        allowed_service_accounts: allowed.service_accounts,
        allowed_users: allowed.users,
        // Of one that does not speak nobody knows.
        clock_agrees: agent.is_some_and(|(agent, silent)| agent.clock_agrees && !silent),
    });
    (body, provisional)
}

/// `None` until the agent has told. While it is silent, does not see namespaces, or has too many of them to confirm, nothing is
/// known to be labelled: routers that go by labels then read anew what they might miss.
fn coverage(cluster: &str, agent: Option<&AgentReport>, silent: bool, unconfirmed: Vec<String>) -> Option<Body> {
    let told = agent.and_then(|agent| agent.namespaces.as_ref().and(agent.coverage.as_ref()));
    let namespaces = told.and_then(|told| told.get(&GroupResource::new("", "namespaces")));
    let blind = namespaces.is_some_and(|kind| kind.at_admission == Some(false));
    let kinds = match told {
        _ if silent || blind || unconfirmed.len() > MOST_UNCONFIRMED => Vec::new(),
        told => told?.values().map(coverage_for_routers).collect(),
    };
    Some(Body::Coverage(v1::Coverage {
        cluster: cluster.to_owned(),
        kinds,
        unconfirmed: unconfirmed.into_iter().take(MOST_UNCONFIRMED).collect(),
    }))
}

/// `None` until the agent has told; what it told last stays, also while it is away.
fn nodes(cluster: &str, agent: Option<&AgentReport>) -> Option<Body> {
    Some(Body::Nodes(v1::Nodes {
        cluster: cluster.to_owned(),
        names: Some(agent?.nodes.clone()?),
    }))
}

/// Namespaces that shards own and that are new, or without the labels of the present rule, in order; one more than are told
/// if there are too many. One that is named and not there has nothing that could lack its labels.
fn unconfirmed(
    world: &mut World,
    cluster: &str,
    (facts, settings): (&Facts, &Settings),
    earlier: Earlier<'_>,
) -> Vec<String> {
    let Some((agent, there)) = facts.agents.get(cluster).zip(facts.inventory(cluster)) else {
        return Vec::new();
    };
    let ledger = &world.state.ledger;
    let inventory = facts.inventory_stamp(cluster);
    let pairs: Vec<_> = ledger.shared_in(cluster).map(|(_, pairs)| pairs.clone()).collect();
    let known = earlier.0.and_then(|last| last.unconfirmed.get(cluster));
    let known = known.filter(|known| {
        known.inventory == inventory && known.pairs.iter().map(Arc::as_ptr).eq(pairs.iter().map(Arc::as_ptr))
    });
    let unlabelled = known.cloned().unwrap_or_else(|| {
        let owned = ledger.in_cluster(cluster).filter(|(_, entry)| entry.owner.is_some());
        let lacks = owned.filter(|(name, _)| {
            let there = there.get(*name);
            !system_namespace(name) && there.is_some_and(|namespace| !is_labelled(name, namespace, settings))
        });
        let lacks: BTreeSet<_> = lacks.map(|(name, _)| name.to_owned()).collect();
        Unconfirmed {
            inventory,
            pairs,
            namespaces: lacks.into_iter().take(MOST_UNCONFIRMED + 1).collect(),
        }
    });
    let is_settling = |name: &&String| {
        let has_owner = ledger.all_of(cluster, name).any(|(_, entry)| entry.owner.is_some());
        has_owner && !system_namespace(name) && there.contains_key(*name)
    };
    let settling = agent.settling.keys().filter(is_settling).cloned();
    let all: BTreeSet<_> = unlabelled.namespaces.iter().cloned().chain(settling).collect();
    world.unconfirmed.insert(cluster.to_owned(), unlabelled);
    all.into_iter().take(MOST_UNCONFIRMED + 1).collect()
}

/// Whether it has the labels from which those of the objects in it follow.
fn is_labelled(name: &str, namespace: &Namespace, settings: &Settings) -> bool {
    let is = |key: &str, value: &str| namespace.labels.get(key).is_some_and(|label| label == value);
    let bucket = settings.bucketing.bucket_of(name).to_string();
    is(settings.keys.namespace(), name) && is(settings.keys.sharding_hash(), &bucket)
}

fn endpoints(spec: &MemberClusterSpec) -> Vec<v1::Endpoint> {
    let endpoint = |endpoint: &portolan_crds::Endpoint| v1::Endpoint {
        url: endpoint.url.clone(),
        tls_server_name: endpoint.tls_server_name.clone().unwrap_or_default(),
    };
    spec.endpoints.iter().map(endpoint).collect()
}

fn breaker(breaker: &portolan_crds::Breaker) -> v1::Breaker {
    let count = |value: Option<i32>| value.and_then(|value| u32::try_from(value).ok()).unwrap_or_default();
    let milliseconds = |value: &Option<portolan_crds::Duration>| {
        let length = value
            .as_ref()
            .and_then(|value| value.parse().ok())
            .unwrap_or(Duration::ZERO);
        u32::try_from(length.as_millis()).unwrap_or(u32::MAX)
    };
    v1::Breaker {
        consecutive_failures: count(breaker.consecutive_failures),
        failure_ratio: breaker.failure_ratio.unwrap_or_default(),
        min_requests: count(breaker.min_requests),
        window_milliseconds: milliseconds(&breaker.window),
        open_for_milliseconds: milliseconds(&breaker.open_for),
        max_open_for_milliseconds: milliseconds(&breaker.max_open_for),
        by_hand: breaker.by_hand.iter().map(held).collect(),
        suspicious: false,
        slow_unary_milliseconds: milliseconds(&breaker.slow_unary),
        slow_list_milliseconds: milliseconds(&breaker.slow_list),
    }
}

fn held(held: &HeldBreaker) -> v1::HeldBreaker {
    let seconds = |time: &Option<Time>| time.as_ref().map_or(0, |time| time.0.as_second());
    let class = held.traffic_class.map_or("", |class| match class {
        TrafficClass::Unary => "unary",
        TrafficClass::List => "list",
        TrafficClass::WatchStart => "watch",
        TrafficClass::Upgrade => "upgrade",
        TrafficClass::TokenReview => "token-review",
    });
    let (state, done) = match held.state {
        HandState::Open => ("open", "opened"),
        HandState::Closed => ("closed", "closed"),
        HandState::Reset => ("reset", "reset"),
    };
    let by = if held.by.is_empty() {
        String::new()
    } else {
        format!(", by {}", held.by)
    };
    v1::HeldBreaker {
        traffic_class: class.to_owned(),
        state: state.to_owned(),
        reason: format!("{done} by hand{by}: {}", held.reason),
        since_unix_seconds: seconds(&held.since),
        until_unix_seconds: seconds(&held.until),
    }
}
