//! Every label, annotation, finalizer, field manager and well-known object name, once.
//!
//! Other crates take these words from here and never spell them again: agents write what routers select by, and a
//! typo between them would lose objects without an error.

use thiserror::Error;

use crate::names::is_dns_subdomain;

/// API group of all kinds.
pub const GROUP: &str = "ctrlmesh.kusionstack.io";
/// Annotation of an object of a replicated kind: the member cluster that decides about it for the shards of all operators.
pub const DECIDES: &str = "ctrlmesh.kusionstack.io/decides";
/// API version of all kinds.
pub const VERSION: &str = "v1alpha1";
/// Prefix of label and annotation keys unless the hub is configured otherwise.
pub const DEFAULT_PREFIX: &str = "ctrlmesh.kusionstack.io/";

/// Namespace of Portolan's own objects, on the hub and on members.
pub const SYSTEM_NAMESPACE: &str = "portolan-system";
/// Namespace on members of the ServiceAccount that routers act from, and of the Secrets that their tokens are bound to: the
/// only one where agents make and delete Secrets of others.
pub const ROUTERS_NAMESPACE: &str = "portolan-routers";
/// Namespaces that agents never label and that a shard owns only where `clusters[].namespaces` names them exactly.
///
/// A namespace selector, or an entry without namespaces, never takes them: a hash over all namespaces must not
/// hand the control plane of a member to an operator that nobody gave it to.
pub const SYSTEM_NAMESPACES: [&str; 5] = [
    "kube-system",
    "kube-public",
    "kube-node-lease",
    SYSTEM_NAMESPACE,
    ROUTERS_NAMESPACE,
];

/// Whether `namespace` is one that agents leave alone and shards own only by exact name; see
/// [`SYSTEM_NAMESPACES`].
pub fn system_namespace(namespace: &str) -> bool {
    SYSTEM_NAMESPACES.contains(&namespace)
}

/// Secret on the hub: the CA that signs agents' and routers' identities.
pub const SECRET_CA: &str = "portolan-ca";
/// ConfigMap on the hub: the certificate of that CA (`ca.crt`), for who must verify the hub and may not sign.
pub const CONFIG_MAP_CA: &str = "portolan-ca";
/// ConfigMap on the hub: how far a rotation of that CA is ([`crate::rotation`]).
pub const CONFIG_MAP_CA_ROTATION: &str = "portolan-ca-rotation";
/// ConfigMap on the hub: that a ledger of before is to have an owner of each operator ([`crate::separation`]).
pub const CONFIG_MAP_SEPARATION: &str = "portolan-separation";
/// Lease on the hub: which of its replicas leads.
pub const LEASE_HUB: &str = "portolan-hub";
/// Annotation of that Lease: `host:port` at which the other replicas reach the one that leads.
pub const ANNOTATION_HUB_ADDRESS: &str = "ctrlmesh.kusionstack.io/address";
/// Annotation of that Lease: the settings of the one that leads that all must have, as JSON by flag.
pub const ANNOTATION_HUB_SETTINGS: &str = "ctrlmesh.kusionstack.io/settings";
/// Annotation of that Lease: name of the Pod of the one that leads.
pub const ANNOTATION_HUB_POD: &str = "ctrlmesh.kusionstack.io/pod";
/// Annotation of that Lease: in so many of the last seconds no router acted, as far as the one that leads knows, that has no Router
/// object any more.
pub const ANNOTATION_ROUTERS_KNOWN: &str = "ctrlmesh.kusionstack.io/routers-known-seconds";
/// Lease in a member: which of the agent's replicas works.
pub const LEASE_AGENT: &str = "portolan-agent";
/// Service of the hub cluster that leads to the hub's program.
pub const SERVICE_HUB: &str = "portolan-hub";
/// ValidatingWebhookConfiguration on the hub: who may write which ShardingConfigs.
pub const WEBHOOK_AUTHORS: &str = "portolan-authors";
/// Signer of the CertificateSigningRequests on the hub by which people get certificates for routers.
pub const SIGNER_PERSON: &str = "ctrlmesh.kusionstack.io/person";
/// Secrets on the hub: one bootstrap token each, named by this prefix and the token's id.
pub const SECRET_BOOTSTRAP_PREFIX: &str = "portolan-bootstrap-";
/// Type of those Secrets; others of a fitting name are no tokens.
pub const SECRET_TYPE_BOOTSTRAP: &str = "ctrlmesh.kusionstack.io/bootstrap-token";
/// ConfigMap on the hub: the root of the ledger. Names of its other ConfigMaps begin with it.
pub const CONFIG_MAP_LEDGER: &str = "portolan-ledger";
/// Secret on a member: the agent's key and certificate for the hub.
pub const SECRET_AGENT_IDENTITY: &str = "portolan-agent-identity";
/// Secret on a member: hub address, hub CA and bootstrap token, until the agent has joined with them.
pub const SECRET_AGENT_BOOTSTRAP: &str = "portolan-agent-bootstrap";
/// ServiceAccount of the agent on a member.
pub const SERVICE_ACCOUNT_AGENT: &str = "portolan-agent";
/// Audience of tokens for a hub's routers, of callers and of routers that enrol, unless its `--audience` is another.
pub const DEFAULT_AUDIENCE: &str = "portolan";
/// ServiceAccount on a member, without any right, whose tokens prove to the hub which key the member signs by.
pub const SERVICE_ACCOUNT_PROOF: &str = "portolan-proof";
/// Audience of such a token: no API server has it, so the token is good for nothing else.
pub fn proof_audience(nonce: &str) -> String {
    format!("portolan-proof:{nonce}")
}
/// ServiceAccount that gateway routers act from on a member, in [`ROUTERS_NAMESPACE`].
pub const SERVICE_ACCOUNT_ROUTER: &str = "portolan-router";
/// In place of a member's name: the cluster that the hub itself runs in, whose tokens of routers the hub reviews itself. A member
/// that is called so vouches for no router.
pub const HUB_CLUSTER: &str = "portolan-hub";
/// `namespace/name` of the ServiceAccount whose token gateways hold, by which they act as others.
pub const GATEWAY_ACCOUNT: &str = "portolan-routers/portolan-router";
/// MutatingAdmissionPolicy (and its binding) on a member that labels objects at admission.
pub const POLICY_LABELS: &str = "portolan-labels";
/// ValidatingAdmissionPolicy (and its binding) on a member that reserves the label keys for the agent.
pub const POLICY_RESERVED: &str = "portolan-reserved-labels";
/// ValidatingAdmissionPolicy (and its binding) on a member that holds the agent's writes to the reserved labels.
pub const POLICY_AGENT_WRITES: &str = "portolan-agent-writes";
/// ValidatingAdmissionPolicy (and its binding) on a member that refuses writes of former owners of a namespace.
pub const POLICY_FENCE: &str = "portolan-fence";
/// ClusterRole on a member that lets the router say, with each write, for which owner of a namespace it is.
pub const ROLE_FENCE: &str = "portolan-router-fence";
/// Extra of a user, by which a write says of which epoch of its (cluster, namespace) pair it is; and the annotation of the
/// Namespace that it is compared with, which the agent alone sets (`policy::epochs_annotation`).
pub const FENCE_EPOCH: &str = "ctrlmesh.kusionstack.io/epoch";
/// Extra of a user, by which a write says of which shard it is, for the member's audit log.
pub const FENCE_SHARD: &str = "ctrlmesh.kusionstack.io/shard";
/// Annotation of a leader lock where it is not any more: by which handover it was brought away, `UID/GENERATION` of the shard.
pub const LOCK_MOVED: &str = "ctrlmesh.kusionstack.io/lock-moved";
/// Annotation of a ShardingConfig: releases that nobody waits for any more, and why (`sharding::ForcedRelease`).
pub const FORCE_RELEASE: &str = "ctrlmesh.kusionstack.io/force-release";
/// Role on a member that names the ServiceAccounts the router may act as.
pub const ROLE_IMPERSONATE: &str = "portolan-router-impersonate";
/// ClusterRole on a member that names the users the router may act as.
pub const ROLE_IMPERSONATE_USERS: &str = "portolan-router-impersonate-users";

/// Label key of a Pod, or of a Namespace for all Pods in it: `true` asks for in-cluster clients to be pointed at a gateway.
pub const LABEL_ENABLE_PROXY: &str = "ctrlmesh.kusionstack.io/enable-proxy";
/// Annotation of a Pod that was pointed at a gateway: the CA certificates (PEM) that clients in it know the gateway by.
pub const ANNOTATION_GATEWAY_CA: &str = "ctrlmesh.kusionstack.io/gateway-ca";
/// Annotation of a Pod that asks for it: names of containers, joined by commas, that keep the token of their ServiceAccount and are
/// left as they are.
pub const ANNOTATION_KEEP_TOKEN: &str = "ctrlmesh.kusionstack.io/keep-account-token";
/// Volume of such a Pod, in place of the one with the token of its ServiceAccount.
pub const VOLUME_ACCOUNT: &str = "portolan-account";
/// ConfigMap on a member: `host` and `port` of the gateway for its Pods, and `ca.crt` that it is known by.
pub const CONFIG_MAP_INJECTION: &str = "portolan-injection";

/// Label key of every ConfigMap of the ledger.
pub const LABEL_LEDGER: &str = "ctrlmesh.kusionstack.io/ledger";

/// Label key of every ConfigMap of the hub that says what identifies members.
pub const LABEL_PINS: &str = "ctrlmesh.kusionstack.io/pins";

/// Label key of a ShardingConfig that a root generated: the name of the root, as far as a label's value has room for it.
pub const LABEL_ROOT: &str = "ctrlmesh.kusionstack.io/auto-sharding-root";

/// Label key of the Secrets on a member that routers' tokens are bound to: the uid of the Router on the hub.
pub const LABEL_ROUTER_UID: &str = "ctrlmesh.kusionstack.io/router-uid";
/// Annotation key of those Secrets: the name of the Router.
pub const ANNOTATION_ROUTER: &str = "ctrlmesh.kusionstack.io/router";

/// Label key of a CircuitBreaker that is withdrawn, whatever its value.
pub const LABEL_CIRCUIT_BREAKER_DISABLE: &str = "circuitbreaker.ctrlmesh.kusionstack.io/disable";
/// Label key of a FaultInjection of which nothing happens, whatever its value.
pub const LABEL_FAULT_INJECTION_DISABLE: &str = "faultinjection.ctrlmesh.kusionstack.io/disable";
/// Annotation key of a CircuitBreaker: rules that people close, `<rule>=<RFC 3339 time>` joined by commas.
pub const ANNOTATION_CLOSE: &str = "ctrlmesh.kusionstack.io/close";
/// Annotation key of a CircuitBreaker: which rule was closed last, by whom and why. For people.
pub const ANNOTATION_CLOSE_REASON: &str = "ctrlmesh.kusionstack.io/close-reason";
/// ConfigMap of the hub's namespace by which all faults are stopped.
pub const CONFIG_MAP_FAULTS: &str = "portolan-faults";
/// Key of that ConfigMap: faults are stopped, unless it is `false` or empty.
pub const FAULTS_STOPPED: &str = "stopped";
/// Key of that ConfigMap: who stopped them.
pub const FAULTS_BY: &str = "by";
/// Key of that ConfigMap: why.
pub const FAULTS_REASON: &str = "reason";
/// Key of that ConfigMap: since when, RFC 3339.
pub const FAULTS_SINCE: &str = "since";

/// Field manager of labels that the agent applies.
pub const MANAGER_AGENT: &str = "portolan-agent";
/// Field manager of objects that the hub applies (children, finalizers).
pub const MANAGER_HUB: &str = "portolan-hub";
/// Field manager of statuses that the hub applies; its own, so that an apply of one never drops fields of the other.
pub const MANAGER_HUB_STATUS: &str = "portolan-hub-status";

/// Finalizer of a ShardingConfig: its callers release what they own before it goes.
pub const FINALIZER_SHARD: &str = "ctrlmesh.kusionstack.io/shard";

/// A prefix that cannot stand before a label key.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("label prefix {0:?} must be a DNS subdomain followed by one '/', as in {DEFAULT_PREFIX:?}")]
pub struct PrefixError(pub String);

/// Names of the three labels of [`LabelKeys::reserved`], whatever stands before them.
const RESERVED: [&str; 3] = ["sharding-hash", "namespace", "control"];

/// Whether the key is that of a label that agents write, under this installation's prefix or another's.
pub fn is_shard_label(key: &str) -> bool {
    key.split_once('/').is_some_and(|(_, name)| RESERVED.contains(&name))
}

/// The label and annotation keys under one prefix. Hub, agents and routers of one installation share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelKeys {
    prefix: String,
    sharding_hash: String,
    namespace: String,
    control: String,
    cluster: String,
}

impl LabelKeys {
    /// The keys under `prefix`, a DNS subdomain and a slash.
    pub fn new(prefix: &str) -> Result<Self, PrefixError> {
        if !prefix.strip_suffix('/').is_some_and(is_dns_subdomain) {
            return Err(PrefixError(prefix.to_owned()));
        }
        Ok(Self::under(prefix))
    }

    fn under(prefix: &str) -> Self {
        let key = |name: &str| format!("{prefix}{name}");
        Self {
            sharding_hash: key(RESERVED[0]),
            namespace: key(RESERVED[1]),
            control: key(RESERVED[2]),
            cluster: key("cluster"),
            prefix: prefix.to_owned(),
        }
    }

    /// What all keys begin with, the slash included.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Label: bucket of the object's namespace, in decimal.
    pub fn sharding_hash(&self) -> &str {
        &self.sharding_hash
    }

    /// Label: name of the object's namespace; on a Namespace, its own name.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Label: `"true"` on everything that the agent labels.
    pub fn control(&self) -> &str {
        &self.control
    }

    /// The three labels that agents write and that admission on members reserves for them.
    pub fn reserved(&self) -> [&str; 3] {
        [&self.sharding_hash, &self.namespace, &self.control]
    }

    /// Annotation: which member cluster a Namespace (or a cluster-scoped object) is to be created in.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }
}

impl Default for LabelKeys {
    fn default() -> Self {
        Self::under(DEFAULT_PREFIX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_under_the_prefix() {
        assert_eq!(LabelKeys::new(DEFAULT_PREFIX), Ok(LabelKeys::default()));
        assert_eq!(
            LabelKeys::default().sharding_hash(),
            "ctrlmesh.kusionstack.io/sharding-hash"
        );
        let keys = LabelKeys::new("mesh.example/").unwrap();
        assert_eq!(
            keys.reserved(),
            [
                "mesh.example/sharding-hash",
                "mesh.example/namespace",
                "mesh.example/control"
            ]
        );
        assert!(
            keys.reserved()
                .into_iter()
                .chain([keys.cluster()])
                .all(crate::selector::is_label_key)
        );
        assert!(keys.reserved().into_iter().all(is_shard_label) && !is_shard_label("namespace"));
    }

    #[test]
    fn prefixes_that_no_label_can_have_are_refused() {
        for prefix in ["", "/", "mesh.example", "mesh.example//", "Mesh/", "a/b/", " /"] {
            assert_eq!(LabelKeys::new(prefix), Err(PrefixError(prefix.to_owned())));
        }
    }

    #[test]
    fn system_namespaces_are_exact() {
        assert!(system_namespace("kube-system") && system_namespace("portolan-system"));
        assert!(!system_namespace("kube-systems") && !system_namespace("default"));
    }
}
