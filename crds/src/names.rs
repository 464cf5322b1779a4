//! Names that other programs rely on: of shards, of kinds, of leases, and what Kubernetes takes for a name.
//!
//! Everything here is pure. A `ShardName` that exists is valid; text from a user or from the wire goes through `FromStr` or
//! serde, which refuse what Kubernetes would refuse.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What authors and callers of a hub namespace are told instead of the name of a ShardingConfig of another one.
pub const STRANGERS_SHARD: &str = "a shard of another hub namespace";

/// Groups of Kubernetes itself whose kinds all had namespaces so far.
pub const NAMESPACED_GROUPS: [&str; 7] = [
    "apps",
    "autoscaling",
    "batch",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "policy",
];

/// Longest DNS-1123 label, in bytes (RFC 1123; Kubernetes namespaces).
pub const DNS_LABEL_MAX: usize = 63;
/// Longest DNS-1123 subdomain, in bytes (names of most Kubernetes objects, Leases among them).
pub const DNS_SUBDOMAIN_MAX: usize = 253;
/// What stands between the operator's own lease name and the shard's name in the lease that is really held.
pub const LEASE_SEPARATOR: &str = "---";
/// Between the UID of a member cluster and how often it was restored from a backup, in the name of its incarnation.
pub const RESTORED: char = '#';

/// A name that Kubernetes would refuse, and why.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    /// Not a DNS-1123 label.
    #[error(
        "{0:?} is not a DNS label: at most 63 characters of a-z, 0-9 and '-', beginning and ending with a letter or digit"
    )]
    Label(String),
    /// Not a DNS-1123 subdomain.
    #[error(
        "{0:?} is not a DNS subdomain: at most 253 characters, labels of a-z, 0-9 and '-' joined by '.', each beginning and ending with a letter or digit"
    )]
    Subdomain(String),
    /// A shard's name is written `namespace/name`.
    #[error("{0:?} is not namespace/name")]
    Shard(String),
    /// An operator's name is written `namespace/operator`.
    #[error("{0:?} is not namespace/operator")]
    Operator(String),
    /// The lease of this shard would have a name longer than 253 characters.
    #[error("lease name {0:?} is longer than 253 characters: shorten leaderElectionName or the ShardingConfig's name")]
    LeaseTooLong(String),
}

/// A name as a number, for sets of many names that are only compared: xxh3-64 (seed 0) of its bytes. Never changed: programs of
/// several releases compare theirs.
#[must_use]
pub fn name_digest(name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name.as_bytes())
}

/// Whether `text` is a DNS-1123 label (a namespace, a MemberCluster).
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= DNS_LABEL_MAX && is_label_body(text)
}

/// Whether `text` is a DNS-1123 subdomain (most object names).
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= DNS_SUBDOMAIN_MAX && text.split('.').all(is_label_body)
}

fn is_label_body(text: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|b| alphanumeric(*b))
        && bytes.last().is_some_and(|b| alphanumeric(*b))
        && bytes.iter().all(|b| alphanumeric(*b) || *b == b'-')
}

/// What API servers put before the namespace and the name of a ServiceAccount to name its user.
const SERVICE_ACCOUNT_USER: &str = "system:serviceaccount:";

/// The user that a ServiceAccount is.
pub fn service_account_user(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT_USER}{namespace}:{name}")
}

/// Name and uid of the Pod that a ServiceAccount's token is bound to, by the extra of a TokenReview's user; each is empty where the
/// extra has none, or several.
pub fn bound_pod(extra: Option<&BTreeMap<String, Vec<String>>>) -> (String, String) {
    let only = |key: &str| match extra.and_then(|extra| extra.get(key)).map(Vec::as_slice) {
        Some([value]) => value.clone(),
        _ => String::new(),
    };
    (
        only("authentication.kubernetes.io/pod-name"),
        only("authentication.kubernetes.io/pod-uid"),
    )
}

/// Namespace and name of the ServiceAccount that a user is; `None` for any other user.
pub fn service_account_of(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT_USER)?.split_once(':')?;
    (is_dns_label(namespace) && is_dns_subdomain(name)).then_some((namespace, name))
}

/// Refuses a name that is no DNS-1123 label. Names of MemberClusters are: one is a segment of `/clusters/<name>/…` and part
/// of names of other objects.
pub fn check_dns_label(text: &str) -> Result<(), NameError> {
    if is_dns_label(text) {
        return Ok(());
    }
    Err(NameError::Label(text.to_owned()))
}

/// Which shard: namespace and name of its ShardingConfig. Written `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ShardName {
    namespace: String,
    name: String,
}

impl ShardName {
    /// Checks both parts: a DNS label and a DNS subdomain.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Result<Self, NameError> {
        let (namespace, name) = (namespace.into(), name.into());
        check_dns_label(&namespace)?;
        if !is_dns_subdomain(&name) {
            return Err(NameError::Subdomain(name));
        }
        Ok(Self { namespace, name })
    }

    /// Namespace of the ShardingConfig, which is also where its callers' Pods run.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Name of the ShardingConfig.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// As authors and callers of `namespace` may read it: whose ShardingConfigs others' are is not told.
    pub fn told_in(&self, namespace: &str) -> String {
        if self.namespace() == namespace {
            format!("shard {self}")
        } else {
            STRANGERS_SHARD.to_owned()
        }
    }
}

impl FromStr for ShardName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (namespace, name) = text.split_once('/').ok_or_else(|| NameError::Shard(text.to_owned()))?;
        Self::new(namespace, name)
    }
}

impl TryFrom<String> for ShardName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<ShardName> for String {
    fn from(shard: ShardName) -> Self {
        shard.to_string()
    }
}

impl fmt::Display for ShardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Most member clusters of one shard, those of its primary and its callers among them: what a cursor has room for.
pub const SHARD_MEMBERS_MAX: usize = 180;

/// Longest text of a length of time in a field that the original read as Go does, in characters.
pub(crate) const GO_DURATION_MAX: usize = 64;
/// Most labels, and most expressions, of a selector in an object.
pub(crate) const REQUIREMENTS_MAX: usize = 64;
/// Most values of one expression there.
pub(crate) const VALUES_MAX: usize = 4096;

/// Most bytes in a URL of a selector that members are asked by: a client takes 65,534 of a URL, and path, version and the place
/// in a list that is read in pages have to fit beside it.
pub const SELECTOR_URL_MAX: usize = 60 * 1024;

/// Longest name of a rule of a policy, in characters.
pub const RULE_NAME_MAX: usize = 253;
/// Most tokens of a bucket, and of a cost: what the original could hold.
pub const TOKENS_MAX: i64 = u32::MAX as i64;

/// Verbs that a request to an API server may have, as rules of policies name them.
pub const VERBS: [&str; 9] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "proxy",
];

/// What in place of an API group or a resource means all of them.
pub const WILDCARD: &str = "*";

/// A kind of objects by API group ("" is the core group) and plural name. Written as kubectl does: `pods`,
/// `deployments.apps`. In a rule either may be `*`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupResource {
    /// API group.
    pub group: String,
    /// Plural name.
    pub resource: String,
}

impl GroupResource {
    /// The kind `resource` of `group`.
    pub fn new(group: impl Into<String>, resource: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            resource: resource.into(),
        }
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource)?;
        if self.group.is_empty() {
            return Ok(());
        }
        write!(f, ".{}", self.group)
    }
}

/// The Lease that a caller of `shard` really holds when it asks for `leader_election_name`.
///
/// ```
/// use portolan_crds::{ShardName, leader_election_name, lease_name};
///
/// let shard = ShardName::new("operator-demo", "demo-0")?;
/// let lease = lease_name("operator-leader", &shard)?;
/// assert_eq!(lease, "operator-leader---demo-0");
/// assert_eq!(leader_election_name(&lease, &shard), Some("operator-leader"));
/// # Ok::<(), portolan_crds::NameError>(())
/// ```
///
/// The Lease lies in the caller's namespace, which is the shard's, so the shard's namespace is not part of it. Refused when the
/// result would not be a valid object name; `validate_sharding` reports that before anything is routed.
pub fn lease_name(leader_election_name: &str, shard: &ShardName) -> Result<String, NameError> {
    if !is_dns_subdomain(leader_election_name) {
        return Err(NameError::Subdomain(leader_election_name.to_owned()));
    }
    let lease = format!("{leader_election_name}{LEASE_SEPARATOR}{}", shard.name());
    if lease.len() > DNS_SUBDOMAIN_MAX {
        Err(NameError::LeaseTooLong(lease))
    } else {
        Ok(lease)
    }
}

/// The inverse of [`lease_name`]: the name that the caller of `shard` knows `lease` by, if it is a lease of that shard.
pub fn leader_election_name<'a>(lease: &'a str, shard: &ShardName) -> Option<&'a str> {
    let name = lease.strip_suffix(shard.name())?.strip_suffix(LEASE_SEPARATOR)?;
    is_dns_subdomain(name).then_some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn labels_are_what_kubernetes_takes() {
        let long = "a".repeat(63);
        for good in ["east", "e", "1", "eu-west-1", &long] {
            assert_eq!(check_dns_label(good), Ok(()));
        }
        let too_long = "a".repeat(64);
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", "a/b", "ä", "a b", "..", &too_long] {
            assert_eq!(check_dns_label(bad), Err(NameError::Label(bad.to_owned())));
        }
    }

    #[test]
    fn shards_are_written_with_their_namespace() {
        let shard: ShardName = "operator-demo/demo.0".parse().unwrap();
        assert_eq!((shard.namespace(), shard.name()), ("operator-demo", "demo.0"));
        assert_eq!(serde_json::to_string(&shard).unwrap(), r#""operator-demo/demo.0""#);
        for bad in ["", "demo", "/demo", "ns/", "ns/a/b", "n.s/a", "ns/A"] {
            assert!(bad.parse::<ShardName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn leases_carry_the_shard() {
        let shard = ShardName::new("operator-demo", "demo-0").unwrap();
        assert_eq!(
            lease_name("operator-leader", &shard).unwrap(),
            "operator-leader---demo-0"
        );
        assert_eq!(
            leader_election_name("operator-leader---demo-0", &shard),
            Some("operator-leader")
        );
        for foreign in [
            "operator-leader",
            "operator-leader---demo-1",
            "---demo-0",
            "operator-leader--demo-0",
            "demo-0",
            "A---demo-0",
        ] {
            assert_eq!(leader_election_name(foreign, &shard), None, "{foreign}");
        }
        let refused = [
            lease_name("", &shard),
            lease_name("a/b", &shard),
            lease_name(&"l".repeat(245), &shard),
        ];
        assert!(refused.iter().all(Result::is_err), "{refused:?}");
    }

    proptest! {
        #[test]
        fn lease_names_come_back(leader in "[a-z0-9](-{0,4}[a-z0-9]){0,6}", name in "[a-z0-9](-{0,4}[a-z0-9]){0,6}") {
            let shard = ShardName::new("ns", name).unwrap();
            let lease = lease_name(&leader, &shard).unwrap();
            prop_assert_eq!(leader_election_name(&lease, &shard), Some(leader.as_str()));
        }
    }
}
