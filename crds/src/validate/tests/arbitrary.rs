//! Specs that no user would write: any text, any number, in any field.

use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use proptest::prelude::*;

use crate::cluster::{Access, Breaker, Endpoint, Identity, IdentityMode, MemberClusterSpec};
use crate::sharding::{
    Auto, Canary, ClusterEntry, ControllerConfig, ObjectLimiter, ResourceGroup, Root, ShardingConfigSpec, Unavailable,
    WebhookConfig,
};

pub(super) fn text() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "[a-z*./:0-9-]{0,12}", Just("east".to_owned())]
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(text(), 0..4)
}

fn label_selector() -> impl Strategy<Value = LabelSelector> {
    let operator = prop_oneof![
        prop::sample::select(vec!["In", "NotIn", "Exists", "DoesNotExist"]).prop_map(str::to_owned),
        text()
    ];
    let expression = (text(), operator, prop::option::of(texts()))
        .prop_map(|(key, operator, values)| LabelSelectorRequirement { key, operator, values });
    let labels = prop::collection::btree_map(text(), text(), 0..3);
    (
        prop::option::of(labels),
        prop::option::of(prop::collection::vec(expression, 0..3)),
    )
        .prop_map(|(match_labels, match_expressions)| LabelSelector {
            match_labels,
            match_expressions,
        })
}

fn limits() -> impl Strategy<Value = Vec<ObjectLimiter>> {
    let group = (texts(), texts()).prop_map(|(api_groups, resources)| ResourceGroup { api_groups, resources });
    let limit = (prop::collection::vec(group, 0..3), prop::option::of(label_selector())).prop_map(
        |(relate_resources, selector)| ObjectLimiter {
            relate_resources,
            selector,
        },
    );
    prop::collection::vec(limit, 0..3)
}

fn root() -> impl Strategy<Value = Root> {
    let canary = (any::<Option<i32>>(), texts(), texts(), any::<Option<i32>>()).prop_map(
        |(replicas, in_namespaces, in_shard_hash, percent)| Canary {
            replicas,
            in_namespaces,
            in_shard_hash,
            percent,
        },
    );
    let auto = (any::<i32>(), any::<i32>()).prop_map(|(sharding_size, every_shard_replicas)| Auto {
        sharding_size,
        every_shard_replicas,
        ..Auto::default()
    });
    (text(), prop::option::of(canary), prop::option::of(auto), limits()).prop_map(
        |(prefix, canary, auto, resource_selector)| Root {
            target_stateful_set: prefix.clone(),
            prefix,
            canary,
            auto,
            resource_selector,
            disable: None,
        },
    )
}

fn bucket() -> impl Strategy<Value = IntOrString> {
    prop_oneof![
        any::<i32>().prop_map(IntOrString::Int),
        text().prop_map(IntOrString::String),
        "[0-9]{1,4}(-[0-9]{1,4})?".prop_map(IntOrString::String),
    ]
}

fn entries() -> impl Strategy<Value = Vec<ClusterEntry>> {
    let entry = (
        prop::option::of(text()),
        prop::option::of(label_selector()),
        texts(),
        prop::option::of(label_selector()),
        prop::option::of(prop::collection::vec(bucket(), 0..3)),
        any::<bool>(),
    )
        .prop_map(
            |(name, selector, namespaces, namespace_selector, buckets, default)| ClusterEntry {
                name,
                selector,
                namespaces,
                namespace_selector,
                buckets,
                default,
            },
        );
    prop::collection::vec(entry, 0..3)
}

pub(super) fn any_sharding() -> impl Strategy<Value = ShardingConfigSpec> {
    let original = (
        prop::option::of(label_selector()),
        prop::option::of(text()),
        any::<Option<i32>>(),
        limits(),
        prop::option::of(root()),
    );
    let federation = (texts(), entries(), prop::option::of(text()), any::<bool>());
    (original, federation).prop_map(
        |((selector, lease, port, limits, root), (caller_clusters, clusters, primary_cluster, partial))| {
            ShardingConfigSpec {
                selector,
                controller: lease.map(|leader_election_name| ControllerConfig {
                    leader_election_name: Some(leader_election_name),
                    ..ControllerConfig::default()
                }),
                webhook: port.map(|port| WebhookConfig {
                    cert_dir: String::new(),
                    port,
                }),
                limits,
                root,
                caller_clusters,
                clusters,
                primary_cluster,
                unavailable: if partial {
                    Unavailable::PartialStart
                } else {
                    Unavailable::Hold
                },
                ..ShardingConfigSpec::default()
            }
        },
    )
}

pub(super) fn any_member() -> impl Strategy<Value = MemberClusterSpec> {
    let endpoint = (
        prop_oneof![text(), text().prop_map(|host| format!("https://{host}"))],
        prop::option::of(text()),
    )
        .prop_map(|(url, tls_server_name)| Endpoint { url, tls_server_name });
    let breaker = (
        any::<Option<i32>>(),
        any::<Option<f64>>(),
        prop::option::of("[0-9smh]{0,6}"),
        prop::option::of(text()),
    );
    let bundle = prop_oneof![
        any::<Vec<u8>>(),
        "-----BEGIN CERTIFICATE-----\n[A-Za-z0-9=\n]{0,40}(-----END CERTIFICATE-----)?".prop_map(String::into_bytes)
    ];
    (
        prop::collection::vec(endpoint, 0..3),
        prop::option::of(breaker),
        prop::option::of(bundle),
        any::<bool>(),
    )
        .prop_map(|(endpoints, breaker, bundle, served)| MemberClusterSpec {
            endpoints,
            ca_bundle: bundle.map(ByteString),
            access: if served { Access::Direct } else { Access::Tunnel },
            identity: Identity {
                mode: if served {
                    IdentityMode::Impersonate
                } else {
                    IdentityMode::ServiceAccount
                },
            },
            breaker: breaker.map(|(number, ratio, window, time)| Breaker {
                consecutive_failures: number,
                failure_ratio: ratio,
                min_requests: number,
                window: window.clone().map(Into::into),
                open_for: window.map(Into::into),
                max_open_for: time.clone().map(Into::into),
                slow_unary: time.clone().map(Into::into),
                slow_list: time.map(Into::into),
                by_hand: Vec::new(),
            }),
            ..MemberClusterSpec::default()
        })
}
