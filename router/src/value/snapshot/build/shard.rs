//! A shard of the wire → a [`Shard`]. What this router does not know must neither open anything nor leave anything out.

use std::collections::HashMap;
use std::sync::Arc;

use portolan_crds::labels::LabelKeys;
use portolan_crds::names::{ShardName, is_dns_label, lease_name, system_namespace};
use portolan_crds::selector::Selector;
use portolan_crds::shard::{BucketAlgorithm, Bucketing};
use portolan_wire::v1;

use super::{BuildError, bad, cluster};
use crate::value::snapshot::{Enforcement, Grant, GrantState, LeaseName, Limit, Member, Shard, Unavailable, reach};

pub(super) fn shard(config: &str, wire: &v1::Shard) -> Result<Shard, BuildError> {
    let config: ShardName = config.parse().map_err(|error| bad("shards", error))?;
    if config.name() != wire.name {
        return Err(bad(
            "shard.name",
            format!("{:?} is not the name of {config}", wire.name),
        ));
    }
    let label_keys = LabelKeys::new(&wire.label_prefix).map_err(|error| bad("shard.label_prefix", error))?;
    let (members, namespaces) = members(&wire.members)?;
    let reaches = reach::reaches(&members, &namespaces, &label_keys);
    Ok(Shard {
        config_generation: wire.config_generation,
        primary_cluster: cluster("shard.primary_cluster", &wire.primary_cluster)?,
        lease: lease(&wire.leader_election_name, &config)?,
        explicit_view: wire.explicit_view,
        enforcement: match v1::Enforcement::try_from(wire.enforcement) {
            Ok(v1::Enforcement::Audit) => Enforcement::Audit,
            // What this router does not know must not open anything.
            Ok(v1::Enforcement::Enforce | v1::Enforcement::Unspecified) | Err(_) => Enforcement::Enforce,
        },
        members,
        limits: wire.limits.iter().map(limit).collect::<Result<_, _>>()?,
        bucketing: bucketing(wire.bucketing)?,
        unavailable: match v1::Unavailable::try_from(wire.unavailable) {
            Ok(v1::Unavailable::PartialStart) => Unavailable::PartialStart,
            // What this router does not know must not leave anything out.
            Ok(v1::Unavailable::Hold | v1::Unavailable::Unspecified) | Err(_) => Unavailable::Hold,
        },
        write_fence: v1::WriteFence::try_from(wire.write_fence) != Ok(v1::WriteFence::Disabled),
        config,
        label_keys,
        namespaces,
        reaches,
    })
}

/// A hub that does not say uses the default. A rule this router does not know would filter wrongly, so it is refused.
/// `None` for one that no shard of this version can have.
pub(super) fn label_rule(wire: &v1::LabelRule) -> Option<(String, Bucketing)> {
    Some((wire.prefix.clone(), bucketing(wire.bucketing).ok()?))
}

fn bucketing(wire: Option<v1::Bucketing>) -> Result<Bucketing, BuildError> {
    const FIELD: &str = "shard.bucketing";
    let Some(wire) = wire else {
        return Ok(Bucketing::default());
    };
    let algorithm = match v1::BucketAlgorithm::try_from(wire.algorithm) {
        Ok(v1::BucketAlgorithm::Xxh3) => BucketAlgorithm::Xxh3,
        Ok(v1::BucketAlgorithm::Legacy) => BucketAlgorithm::Legacy,
        Ok(v1::BucketAlgorithm::Unspecified) | Err(_) => {
            let problem = format!(
                "algorithm {} is unknown: this router is older than its hub",
                wire.algorithm
            );
            return Err(bad(FIELD, problem));
        }
    };
    let buckets = u16::try_from(wire.buckets).unwrap_or(u16::MAX);
    Bucketing::new(algorithm, buckets).map_err(|error| bad(FIELD, error))
}

fn lease(leader_election_name: &str, config: &ShardName) -> Result<Option<LeaseName>, BuildError> {
    if leader_election_name.is_empty() {
        return Ok(None);
    }
    let member = lease_name(leader_election_name, config).map_err(|error| bad("shard.leader_election_name", error))?;
    Ok(Some(LeaseName {
        client: leader_election_name.to_owned(),
        member,
    }))
}

type Namespaces = HashMap<Arc<str>, Grant>;

fn members(wire: &[v1::MemberGrant]) -> Result<(Vec<Member>, Namespaces), BuildError> {
    let mut members: Vec<Member> = Vec::with_capacity(wire.len());
    let mut namespaces = Namespaces::new();
    for (index, grant) in wire.iter().enumerate() {
        let cluster = cluster("shard.members[].cluster", &grant.cluster)?;
        if members.iter().any(|member| member.cluster == cluster) {
            return Err(bad("shard.members[].cluster", format!("{cluster} is listed twice")));
        }
        let (mut owned, mut unlabelled) = (0, None);
        for pair in &grant.namespaces {
            if !is_dns_label(&pair.namespace) {
                let problem = format!("{:?} is not a namespace", pair.namespace);
                return Err(bad("shard.members[].namespaces", problem));
            }
            let state = grant_state(pair.state);
            let name: Arc<str> = pair.namespace.as_str().into();
            namespaces.entry(name.clone()).or_insert_with(|| {
                owned += 1;
                unlabelled = unlabelled.take().or_else(|| system_namespace(&name).then_some(name));
                Grant {
                    member: index,
                    generation: pair.generation,
                    state,
                    exact: true,
                }
            });
        }
        members.push(Member {
            cluster,
            all_namespaces: grant.all_namespaces,
            namespaces: owned,
            unlabelled,
        });
    }
    Ok((members, namespaces))
}

fn grant_state(wire: i32) -> GrantState {
    match v1::GrantState::try_from(wire) {
        Ok(v1::GrantState::Granted) => GrantState::Granted,
        // An unknown state must not let a write through.
        Ok(v1::GrantState::Releasing | v1::GrantState::Unspecified) | Err(_) => GrantState::Releasing,
    }
}

fn limit(wire: &v1::Limit) -> Result<Limit, BuildError> {
    let selector = Selector::parse(&wire.selector).map_err(|error| bad("shard.limits[].selector", error))?;
    let resources = wire
        .resources
        .iter()
        .map(|rule| (rule.api_groups.clone(), rule.resources.clone()));
    Ok(Limit {
        resources: resources.collect(),
        selector,
    })
}
