//! The rules of a ShardingConfig.

use std::collections::BTreeMap;

use super::cluster_scoped::check_cluster_scoped;
use super::root::check_root;
use super::selectors::{check_asked, check_limits, check_selector};
use super::{Problem, Problems, Reason};
use crate::names::{ShardName, is_dns_label, is_dns_subdomain, lease_name};
use crate::shard::{BucketSet, BucketSetError};
use crate::sharding::{ClusterEntry, ControllerConfig, LeaderElection, ShardingConfigSpec};

/// Kinds in `replicated`, as the CRD says too: each write of one goes to every member.
const MOST_REPLICATED: usize = 16;

/// Everything wrong with the ShardingConfig `name` in `namespace`; empty if it can be served.
///
/// ```
/// use portolan_crds::{ShardingConfigSpec, validate_sharding};
///
/// let spec: ShardingConfigSpec = serde_yaml_ng::from_str(
///     "
///     selector: {matchLabels: {app: greeter}}
///     callerClusters: [east]
///     clusters:
///     - name: east
///     - name: east
///     ",
/// )?;
/// let problems = validate_sharding("demo-0", "operators", &spec);
/// assert_eq!(problems[0].field, "spec.clusters[1].name");
/// # Ok::<(), serde_yaml_ng::Error>(())
/// ```
pub fn validate_sharding(name: &str, namespace: &str, spec: &ShardingConfigSpec) -> Vec<Problem> {
    let mut problems = Problems::default();
    check_callers(&mut problems, spec);
    check_lease(&mut problems, name, namespace, spec);
    check_limits(&mut problems, "spec.limits", &spec.limits);
    check_clusters(&mut problems, &spec.clusters);
    check_primary(&mut problems, spec);
    check_replicated(&mut problems, spec);
    check_cluster_scoped(&mut problems, spec.single_kinds());
    if let Some(root) = &spec.root {
        check_root(&mut problems, root);
    }
    check_unserved(&mut problems, spec);
    problems.0
}

fn check_callers(problems: &mut Problems, spec: &ShardingConfigSpec) {
    match &spec.selector {
        Some(selector) => check_asked(problems, "spec.selector", selector),
        None if spec.root.is_some() => {}
        None => problems.required(
            "spec.selector",
            "say by their labels which Pods are this shard's callers",
        ),
    }
    for (index, account) in spec.service_accounts.iter().enumerate() {
        if !is_dns_subdomain(account) {
            problems.invalid(
                format!("spec.serviceAccounts[{index}]"),
                format!("{account:?} is no name of a ServiceAccount: a name alone, without its namespace"),
            );
        }
    }
    problems.duplicates("spec.serviceAccounts", &spec.service_accounts);
    if !spec.clusters.is_empty() && spec.caller_clusters.is_empty() {
        let message = "required with clusters: name the member cluster where this shard's operator runs";
        problems.required("spec.callerClusters", message);
    }
    for (index, cluster) in spec.caller_clusters.iter().enumerate() {
        problems.dns_label(&format!("spec.callerClusters[{index}]"), cluster);
    }
    problems.duplicates("spec.callerClusters", &spec.caller_clusters);
}

fn check_lease(problems: &mut Problems, name: &str, namespace: &str, spec: &ShardingConfigSpec) {
    const FIELD: &str = "spec.controller.leaderElectionName";
    let elects = |controller: &ControllerConfig| controller.leader_election == LeaderElection::Enabled;
    match (&spec.controller, spec.leader_election_name()) {
        (None, _) if spec.caller_clusters.len() < 2 => {}
        (Some(controller), None) if !elects(controller) => {}
        (Some(controller), Some(_)) if !elects(controller) => {
            let message = "controller.leaderElection is Disabled: remove the name, or leaderElection";
            problems.invalid(FIELD, message);
        }
        (_, Some(_)) => {}
        (controller, None) => {
            let when = if controller.is_none() {
                "required with more than one callerCluster, or each elects a leader of its own"
            } else {
                "required"
            };
            let fix = "name the operator's Lease, or set controller.leaderElection: Disabled if it elects none";
            problems.required(FIELD, format!("{when}: {fix}"));
        }
    }
    let lock = spec
        .controller
        .as_ref()
        .and_then(|one| one.leader_election_resource_lock);
    if lock.is_some() && spec.leader_election_name().is_none() {
        let message = "it says what leaderElectionName names: set that too, or remove it";
        problems.invalid("spec.controller.leaderElectionResourceLock", message);
    }
    let shard = match ShardName::new(namespace, name) {
        Ok(shard) => shard,
        Err(error) => return problems.invalid("metadata.name", error),
    };
    if let Some(Err(error)) = spec.leader_election_name().map(|lease| lease_name(lease, &shard)) {
        problems.invalid(FIELD, error);
    }
}

fn check_clusters(problems: &mut Problems, clusters: &[ClusterEntry]) {
    let mut named = BTreeMap::<&str, Vec<Named>>::new();
    for (index, entry) in clusters.iter().enumerate() {
        let field = format!("spec.clusters[{index}]");
        check_entry(problems, &field, entry);
        if entry.default && clusters[..index].iter().any(|earlier| earlier.default) {
            let message = "another entry is the default already: keep one";
            problems.add(format!("{field}.default"), Reason::Duplicate, message.to_owned());
        }
        let Some(name) = entry.name.as_deref() else { continue };
        let earlier = named.entry(name).or_default();
        let this = Named {
            index,
            has_buckets: entry.buckets.is_some(),
            buckets: entry.bucket_set().ok().flatten().unwrap_or_default(),
        };
        check_named_again(problems, name, earlier, &this);
        earlier.push(this);
    }
}

/// An entry that names a member.
struct Named {
    index: usize,
    has_buckets: bool,
    /// None, where they cannot be read.
    buckets: BucketSet,
}

/// Two entries may name the same member if no bucket is in both; by `earlier` ones, `entry` is named already.
fn check_named_again(problems: &mut Problems, name: &str, earlier: &[Named], entry: &Named) {
    let field = format!("spec.clusters[{}]", entry.index);
    for other in earlier {
        let index = other.index;
        if !entry.has_buckets || !other.has_buckets {
            let fix = "merge their namespaces, or give both buckets of their own";
            let message = format!("{name:?} is named by spec.clusters[{index}] already: {fix}");
            return problems.add(format!("{field}.name"), Reason::Duplicate, message);
        }
        let both = entry.buckets.and(&other.buckets);
        if !both.is_empty() {
            let message = format!("spec.clusters[{index}] has {both} of {name:?} too: leave them to one entry");
            problems.add(format!("{field}.buckets"), Reason::Duplicate, message);
        }
    }
}

fn check_entry(problems: &mut Problems, field: &str, entry: &ClusterEntry) {
    match (&entry.name, &entry.selector) {
        (Some(_), Some(_)) => problems.invalid(field, "has both name and selector: keep one"),
        (None, None) => problems.required(field, "set name, or selector to choose MemberClusters by their labels"),
        (Some(name), None) => problems.dns_label(&format!("{field}.name"), name),
        (None, Some(selector)) => check_selector(problems, &format!("{field}.selector"), selector),
    }
    if let Some(selector) = &entry.namespace_selector {
        check_selector(problems, &format!("{field}.namespaceSelector"), selector);
    }
    match entry.bucket_set() {
        Ok(_) => {}
        Err(error @ BucketSetError::Twice { .. }) => {
            problems.add(format!("{field}.buckets"), Reason::Duplicate, error.to_string());
        }
        Err(error) => problems.invalid(format!("{field}.buckets"), error),
    }
    let namespaces = format!("{field}.namespaces");
    for (index, namespace) in entry.namespaces.iter().enumerate() {
        problems.dns_label(&format!("{namespaces}[{index}]"), namespace);
    }
    problems.duplicates(&namespaces, &entry.namespaces);
}

fn check_primary(problems: &mut Problems, spec: &ShardingConfigSpec) {
    const FIELD: &str = "spec.primaryCluster";
    let Some(primary) = &spec.primary_cluster else {
        if spec.caller_clusters.len() > 1 {
            let message = "required with more than one callerCluster: name the member cluster that holds the leases";
            problems.required(FIELD, message);
        }
        return;
    };
    problems.dns_label(FIELD, primary);
    // A selector may match it; the index knows.
    let chosen = |entry: &ClusterEntry| entry.selector.is_some() || entry.name.as_ref() == Some(primary);
    if !spec.caller_clusters.contains(primary) && !spec.clusters.iter().any(chosen) {
        problems.invalid(
            FIELD,
            format!("{primary:?} must be one of clusters[].name or callerClusters: add it there"),
        );
    }
}

fn check_replicated(problems: &mut Problems, spec: &ShardingConfigSpec) {
    let kinds = spec.replicated.as_deref().unwrap_or_default();
    if kinds.len() > MOST_REPLICATED {
        let message = format!("{} kinds are more than {MOST_REPLICATED}: name fewer", kinds.len());
        problems.invalid("spec.replicated", message);
    }
    for (index, kind) in kinds.iter().enumerate() {
        let field = format!("spec.replicated[{index}]");
        let named = format!("{} of group {:?}", kind.resource, kind.group);
        if let Some(why) = kind.refused() {
            problems.invalid(field, format!("{named} cannot be replicated: {why}; remove the entry"));
        } else if !is_dns_subdomain(&kind.group) {
            let message = format!(
                "{:?} is no API group: write one, such as apiextensions.k8s.io",
                kind.group
            );
            problems.invalid(format!("{field}.group"), message);
        } else if !is_dns_label(&kind.resource) {
            let message = format!(
                "{:?} is no plural name of a resource, which has no subresource or *",
                kind.resource
            );
            problems.invalid(format!("{field}.resource"), message);
        } else if kinds[..index].contains(kind) {
            problems.add(
                field,
                Reason::Duplicate,
                format!("{named} is there already: remove one"),
            );
        }
    }
}

/// What this version understands and does not serve: said here, never ignored.
fn check_unserved(problems: &mut Problems, spec: &ShardingConfigSpec) {
    if let Some(webhook) = &spec.webhook {
        problems.within("spec.webhook.port", webhook.port, 1..=65_535);
        let message = "sharded webhooks are not served yet: every API server reaches the operator's webhook server unsharded; all else of the object is served";
        problems.add("spec.webhook", Reason::NotServed, message);
    }
}
