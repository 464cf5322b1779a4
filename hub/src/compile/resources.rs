//! Members → targets and credentials, and the content hash that is every resource's version.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use portolan_crds::MemberClusterSpec;
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;
use prost::Message;
use sha2::{Digest, Sha256};

use super::{Compiled, Ref, World};
use crate::facts::{AgentReport, Facts, Member, Pin};
use crate::jwks;

/// Bytes of a version, printed in hex: enough that no two contents of a fleet's life collide.
const VERSION_BYTES: usize = 16;

/// Adds a target and a credential for each joined member, and says of which members there cannot be one yet.
pub(super) fn print(world: &mut World, facts: &Facts) {
    let shared = shared_keys(facts);
    for cluster in facts.members.keys() {
        let Some((member, pin)) = facts.joined(cluster) else {
            continue;
        };
        let agent = facts.agents.get(cluster);
        match target(world, (cluster, member, pin), agent, &shared) {
            Some(compiled) => {
                world.resources.insert(Ref::Target(cluster.clone()), compiled);
            }
            None => {
                world.unknown.targets.insert(cluster.clone());
            }
        }
        match agent.and_then(|agent| agent.token.as_ref()) {
            Some(token) => {
                let body = Body::Credential(v1::Credential {
                    cluster: cluster.clone(),
                    token: token.token.expose().clone(),
                    expires_unix_seconds: token.expires_unix_seconds,
                });
                let resource = versioned(body);
                world.resources.insert(
                    Ref::Credential(cluster.clone()),
                    Compiled {
                        resource,
                        provisional: false,
                    },
                );
            }
            None => {
                world.unknown.credentials.insert(cluster.clone());
            }
        }
    }
}

/// Thumbprints that more than one member publishes: such a key identifies nobody.
fn shared_keys(facts: &Facts) -> BTreeSet<String> {
    let mut owners = BTreeMap::<String, &str>::new();
    let mut shared = BTreeSet::new();
    for cluster in facts.members.keys() {
        let Some((_, pin)) = facts.joined(cluster) else {
            continue;
        };
        for print in pin.signing_keys.iter().filter_map(|key| jwks::thumbprint_of(key)) {
            if *owners.entry(print.clone()).or_insert(cluster) != cluster.as_str() {
                shared.insert(print);
            }
        }
    }
    shared
}

fn target(
    world: &World,
    (cluster, member, pin): (&str, &Member, &Pin),
    agent: Option<&AgentReport>,
    shared: &BTreeSet<String>,
) -> Option<Compiled> {
    let spec = member.in_force.as_ref().filter(|spec| !spec.endpoints.is_empty())?;
    let allowed = agent.and_then(|agent| agent.allowed.clone());
    let coverage = agent.and_then(|agent| agent.coverage.as_ref());
    // A spec that changed since this process started is worth sending although the agent has not spoken.
    let provisional = (allowed.is_none() || coverage.is_none()) && member.generation == member.first_generation;
    let allowed = allowed.unwrap_or_else(|| v1::Allowed {
        service_accounts: member.status.allowed_service_accounts.clone(),
        users: member.status.allowed_users.clone(),
    });
    let unshared = |key: &&String| jwks::thumbprint_of(key).is_some_and(|print| !shared.contains(&print));
    let body = v1::Target {
        cluster: cluster.to_owned(),
        cluster_uid: pin.cluster_uid.clone(),
        endpoints: endpoints(spec),
        ca_pem: spec
            .ca_bundle
            .as_ref()
            .map(|bundle| String::from_utf8_lossy(&bundle.0).into_owned())
            .unwrap_or_default(),
        cordoned: spec.cordoned,
        breaker: spec.breaker.as_ref().map(breaker),
        signing_keys: pin.signing_keys.iter().filter(unshared).cloned().collect(),
        allowed_service_accounts: allowed.service_accounts,
        allowed_users: allowed.users,
        coverage: coverage.into_iter().flatten().map(kind_coverage).collect(),
        namespace_owners: namespace_owners(world, cluster),
    };
    Some(Compiled {
        resource: versioned(Body::Target(body)),
        provisional,
    })
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
    }
}

fn kind_coverage((kind, coverage): (&crate::facts::Kind, &crate::facts::Coverage)) -> v1::KindCoverage {
    let coverage = coverage.told();
    v1::KindCoverage {
        group: kind.group.clone(),
        resource: kind.resource.clone(),
        complete: coverage.complete,
        labelled: coverage.labelled,
        total: coverage.total,
        rule: coverage.rule,
        at_admission: coverage.at_admission,
    }
}

fn namespace_owners(world: &World, cluster: &str) -> std::collections::HashMap<String, String> {
    let owned = world.state.ledger.in_cluster(cluster);
    owned
        .filter_map(|(namespace, entry)| Some((namespace.to_owned(), entry.owner.as_ref()?.to_string())))
        .collect()
}

/// A resource under the hash of its content.
pub(super) fn versioned(body: Body) -> v1::Resource {
    v1::Resource {
        version: version(&body),
        body: Some(body),
    }
}

fn version(body: &Body) -> String {
    let mut hash = Sha256::new();
    match body {
        Body::Target(target) => {
            // A map has no order on the wire: hash it sorted, after the rest.
            let owners: BTreeMap<_, _> = target.namespace_owners.iter().collect();
            let mut rest = target.clone();
            rest.namespace_owners.clear();
            hash.update(b"target");
            hash.update(rest.encode_to_vec());
            for (namespace, owner) in owners {
                hash.update(format!("\0{namespace}\0{owner}"));
            }
        }
        Body::CallerView(view) => {
            hash.update(b"view");
            hash.update(view.encode_to_vec());
        }
        Body::Credential(credential) => {
            hash.update(b"credential");
            hash.update(credential.encode_to_vec());
        }
    }
    let digest = hash.finalize();
    digest[..VERSION_BYTES]
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}
