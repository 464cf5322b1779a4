//! The API types against a real API server: it takes the schemas and the examples, keeps every field, refuses what CEL
//! must refuse and says the fix, and reads label selectors exactly as `portolan_crds::Selector` does.
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

mod applying;
mod columns;
mod policies;
mod selectors;

use std::path::{Path, PathBuf};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use portolan_crds::{MemberCluster, Router, ShardingConfig, ShardingConfigSpec, validate_sharding};
use portolan_testbed::{Cluster, Testbed, eventually, kubectl};
use serde_json::{Value, json};

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

async fn run(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = kubectl(cluster.kubeconfig_path())
        .args(arguments)
        .output()
        .await
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "kubectl {arguments:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

async fn apply(cluster: &Cluster, path: &str) -> String {
    run(cluster, &["apply", "-f", repository(path).to_str().unwrap()]).await
}

#[tokio::test]
async fn a_real_api_server_agrees() {
    let testbed = Testbed::start(&["hub"]).await.unwrap();
    let hub = testbed.cluster("hub");
    let client = hub.client().await.unwrap();

    definitions_are_structural(hub, &client).await;
    examples_apply_unchanged(hub, &client).await;
    bad_sharding_configs_are_refused(&client).await;
    bad_member_clusters_are_refused(&client).await;
    good_specs_are_taken(&client).await;
    every_field_is_kept(&client).await;
    policies::manifests_apply_unchanged(hub, &client).await;
    policies::bad_ones_are_refused(&client).await;
    policies::good_ones_are_taken(&client).await;
    policies::every_field_is_kept(&client).await;
    policies::people_see_the_columns(hub).await;
    applying::judges_before_it_sends(hub, &client).await;
    columns::people_see_the_columns(hub).await;
    selectors::mean_the_same(&client).await;
}

/// Applies the definitions and waits until the API server serves them; it says so when a schema is not structural.
async fn definitions_are_structural(hub: &Cluster, client: &Client) {
    apply(hub, "crds/manifests").await;
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    for name in [
        "memberclusters.ctrlmesh.kusionstack.io",
        "shardingconfigs.ctrlmesh.kusionstack.io",
        "circuitbreakers.ctrlmesh.kusionstack.io",
        "faultinjections.ctrlmesh.kusionstack.io",
    ] {
        eventually("the definition is established", || async {
            let status = definitions.get(name).await.ok()?.status?;
            let conditions = status.conditions.unwrap_or_default();
            assert!(
                !conditions
                    .iter()
                    .any(|condition| condition.type_ == "NonStructuralSchema"),
                "{conditions:?}"
            );
            let established = |kind: &str| conditions.iter().any(|it| it.type_ == kind && it.status == "True");
            (established("Established") && established("NamesAccepted")).then_some(())
        })
        .await;
    }
}

/// Applies the examples twice: the second time changes nothing, so nothing of them was dropped or rewritten.
async fn examples_apply_unchanged(hub: &Cluster, client: &Client) {
    let configs = Api::<ShardingConfig>::namespaced(client.clone(), "operator-demo");
    for (file, name) in [
        ("examples/federated-shardingconfig.yaml", "operator-demo-0"),
        ("examples/original-shardingconfig.yaml", "sharding-demo"),
        ("examples/root-shardingconfig.yaml", "sharding-root"),
    ] {
        eventually("the kind is served", || async {
            configs.list(&ListParams::default()).await
        })
        .await;
        assert!(apply(hub, file).await.contains(&format!("{name} created")));
        let again = apply(hub, file).await;
        assert!(again.contains(&format!("{name} unchanged")), "{again}");
        assert!(configs.get(name).await.unwrap().spec.selector.is_some());
    }
    let original = configs.get("sharding-demo").await.unwrap().spec;
    assert_eq!(original.webhook.as_ref().map(|webhook| webhook.port), Some(9443));
    let limit = original.limits[0].selector.as_ref().unwrap();
    let limit = portolan_crds::Selector::from_label_selector(limit).unwrap();
    assert_eq!(
        limit.to_string(),
        "app=foo,ctrlmesh.kusionstack.io/namespace in (ns-a,ns-b)"
    );
}

fn dynamic(client: &Client, kind: &str, namespaced: bool) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("ctrlmesh.kusionstack.io", "v1alpha1", kind));
    if namespaced {
        Api::namespaced_with(client.clone(), "operator-demo", &resource)
    } else {
        Api::all_with(client.clone(), &resource)
    }
}

/// What the API server says about creating an object with `spec`; nothing is stored.
async fn create(client: &Client, kind: &str, name: &str, spec: &Value) -> Result<(), String> {
    stored(client, kind, name, spec).await.map(drop)
}

/// The spec that it would store.
async fn stored(client: &Client, kind: &str, name: &str, spec: &Value) -> Result<Value, String> {
    let object = json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
    });
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let api = dynamic(client, kind, kind != "MemberCluster");
    let created = api.create(&dry, &object).await.map_err(|error| error.to_string())?;
    Ok(created.data["spec"].clone())
}

async fn refusal(client: &Client, kind: &str, spec: &Value, fix: &str) {
    let answer = create(client, kind, "candidate", spec).await;
    assert!(
        answer.as_ref().is_err_and(|message| message.contains(fix)),
        "{spec}: expected {fix:?}, got {answer:?}"
    );
}

/// What is added to a good spec (a `selector` alone), and what the refusal must say.
const BAD_SHARDING: &[(&str, &str)] = &[
    ("selector: null", "selector is required: say by their labels"),
    ("clusters: [{name: east}]", "callerClusters is required with clusters"),
    (
        "callerClusters: [a, b]",
        "primaryCluster is required with more than one callerCluster",
    ),
    (
        "{callerClusters: [a, b], primaryCluster: a}",
        "controller.leaderElectionName is required with more than one callerCluster",
    ),
    (
        "controller: {}",
        "set leaderElectionName to the name of the operator's Lease",
    ),
    (
        "controller: {leaderElectionName: l, leaderElection: Disabled}",
        "not both",
    ),
    (
        "controller: {leaderElection: Disabled, leaderElectionResourceLock: configmaps}",
        "leaderElectionResourceLock says what leaderElectionName names",
    ),
    (
        "controller: {leaderElectionName: l, leaderElectionResourceLock: secrets}",
        "supported values: \"leases\", \"configmaps\"",
    ),
    (
        "controller: {leaderElection: Maybe}",
        "supported values: \"Enabled\", \"Disabled\"",
    ),
    ("callerClusters: [a, a]", "Duplicate value"),
    ("callerClusters: [A]", "spec.callerClusters[0]"),
    ("callerClusters: []", "at least 1 items"),
    (
        "{callerClusters: [a], primaryCluster: b}",
        "must be one of clusters[].name or callerClusters",
    ),
    ("primaryCluster: b", "must be one of clusters[].name or callerClusters"),
    (
        "{callerClusters: [a], clusters: [{}]}",
        "set exactly one of name and selector",
    ),
    (
        "{callerClusters: [a], clusters: [{name: a, selector: {}}]}",
        "set exactly one of name and selector",
    ),
    (
        "{callerClusters: [a], clusters: [{name: a, default: true}, {name: b, default: true}]}",
        "default may be true on one entry",
    ),
    (
        "{callerClusters: [a], clusters: [{name: a}, {name: b}, {name: a}]}",
        "by one entry of clusters only",
    ),
    (
        "{callerClusters: [a], clusters: [{name: a, buckets: [0-3]}, {name: a}]}",
        "or by several that all have buckets of their own",
    ),
    (
        "{callerClusters: [a], clusters: [{name: a, buckets: [1024]}]}",
        "clusters[0].buckets[0]",
    ),
    (
        "{callerClusters: [a], clusters: [{name: a, buckets: [0, 3-]}]}",
        "clusters[0].buckets[1]",
    ),
    (
        "{callerClusters: [a], clusters: [{name: a, namespaces: [x, x]}]}",
        "Duplicate value",
    ),
    (
        "{callerClusters: [a], clusters: [{name: a, namespaces: [X]}]}",
        "clusters[0].namespaces[0]",
    ),
    ("explicitView: Maybe", "supported values: \"Deny\", \"Allow\""),
    ("unavailable: Partial", "supported values: \"Hold\", \"PartialStart\""),
    ("enforcement: Warn", "supported values: \"Enforce\", \"Audit\""),
    (
        "selector: {matchExpressions: [{key: a, operator: In}]}",
        "need at least one value",
    ),
    (
        "selector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}",
        "take none",
    ),
    (
        "selector: {matchExpressions: [{key: a, operator: Near}]}",
        "supported values",
    ),
    ("selector: {matchLabels: {a: b c}}", "selector.matchLabels.a"),
    ("controller: {leaderElectionName: L}", "leaderElectionName"),
    ("webhook: {certDir: /tmp, port: 70000}", "webhook.port"),
    ("limits: [{relateResources: [{apiGroups: [Apps]}]}]", "apiGroups[0]"),
    (
        "root: {prefix: a, targetStatefulSet: a, auto: {shardingSize: 0, everyShardReplicas: 1}}",
        "shardingSize",
    ),
    (
        "root: {prefix: a, targetStatefulSet: a, canary: {replicas: 1, percent: 101}}",
        "percent",
    ),
    (
        "root: {prefix: a, targetStatefulSet: a, auto: {shardingSize: 1, everyShardReplicas: 1, balance: Bytes}}",
        "supported values: \"Pairs\", \"Objects\"",
    ),
    (
        "root: {prefix: a, targetStatefulSet: a, canary: {replicas: 1, inShardHash: [x]}}",
        "inShardHash",
    ),
];

async fn bad_sharding_configs_are_refused(client: &Client) {
    for (yaml, fix) in BAD_SHARDING {
        let mut spec = json!({"selector": {"matchLabels": {"app": "demo"}}});
        let more: Value = serde_yaml_ng::from_str(yaml).unwrap();
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        refusal(client, "ShardingConfig", &spec, fix).await;
        // Where the types can read it at all, the one function of webhook, index and router refuses it as well;
        // but for an empty list, which the types cannot tell from an absent one.
        if let Ok(read) = serde_json::from_value::<ShardingConfigSpec>(spec) {
            let problems = validate_sharding("candidate", "operator-demo", &read);
            assert!(!problems.is_empty() || *yaml == "callerClusters: []", "{yaml}");
        }
    }
}

/// As for sharding: a whole spec, and what the refusal must say.
const BAD_MEMBER: &[(&str, &str)] = &[
    (
        "endpoints: [{url: 'http://east:6443'}]",
        "url must be https://host or https://host:port",
    ),
    (
        "endpoints: [{url: 'https://:6443'}]",
        "url must be https://host or https://host:port",
    ),
    (
        "endpoints: [{url: 'https://user@east'}]",
        "url must have no path, query, fragment or user",
    ),
    (
        "endpoints: [{url: 'https://east/api'}]",
        "url must have no path, query, fragment or user",
    ),
    (
        "endpoints: [{url: 'https://east?a=b'}]",
        "url must have no path, query, fragment or user",
    ),
    ("endpoints: [{url: 'https://east/#a'}]", "url must"),
    (
        "endpoints: [{url: 'https://east', tlsServerName: '*'}]",
        "tlsServerName",
    ),
    ("caBundle: not base64", "caBundle"),
    ("access: Direkt", "supported values: \"Direct\", \"Tunnel\""),
    (
        "identity: {mode: None}",
        "supported values: \"Impersonate\", \"ServiceAccount\"",
    ),
    ("breaker: {failureRatio: 1.5}", "failureRatio"),
    ("breaker: {window: '30'}", "breaker.window"),
    ("breaker: {slowUnary: 0s}", "slowUnary must be longer than nothing"),
    ("breaker: {slowList: 25h}", "slowList must be longer than nothing"),
    (
        "breaker: {openFor: 3m, maxOpenFor: 30s}",
        "maxOpenFor must not be shorter than openFor",
    ),
    (
        "breaker: {byHand: [{state: Open, reason: x, until: '2026-01-02T03:04:05Z'}]}",
        "since must say when it was said",
    ),
    (
        "breaker: {byHand: [{state: Closed, reason: x, since: '2026-01-02T03:04:05Z'}]}",
        "until must say when it ends",
    ),
    (
        "breaker: {byHand: [{state: Open, reason: x, since: '2026-01-02T00:00:00Z', until: '2026-02-01T00:00:01Z'}]}",
        "by 720h at most",
    ),
];

async fn bad_member_clusters_are_refused(client: &Client) {
    for (yaml, fix) in BAD_MEMBER {
        let spec: Value = serde_yaml_ng::from_str(yaml).unwrap();
        refusal(client, "MemberCluster", &spec, fix).await;
    }
    let refusal = create(client, "MemberCluster", "east.eu", &json!({})).await;
    assert!(
        refusal
            .as_ref()
            .is_err_and(|message| message.contains("must be a DNS label")),
        "{refusal:?}"
    );
}

/// Specs that validation has nothing against.
const GOOD_SHARDING: &[&str] = &[
    "selector: {}",
    "{selector: {}, callerClusters: [a], clusters: [{name: a, namespaces: [kube-system]}, {selector: {}}]}",
    "{selector: {}, callerClusters: [a, b], primaryCluster: c, controller: {leaderElectionName: l}, clusters: [{selector: {matchLabels: {x: ''}}}]}",
    "{selector: {}, callerClusters: [a, b], primaryCluster: a, controller: {leaderElection: Disabled}}",
    "{selector: {}, limits: [{}, {selector: {matchExpressions: [{key: a.b/c, operator: DoesNotExist}]}}]}",
    "{selector: {}, limits: [{relateResources: [{apiGroups: ['', apps, '*'], resources: [pods, '*']}]}]}",
];

/// What validation has nothing against, the schema takes too: no user is told two different things.
async fn good_specs_are_taken(client: &Client) {
    for yaml in GOOD_SHARDING {
        let read: ShardingConfigSpec = serde_yaml_ng::from_str(yaml).unwrap();
        assert_eq!(validate_sharding("candidate", "operator-demo", &read), vec![], "{yaml}");
        let spec = serde_yaml_ng::from_str(yaml).unwrap();
        assert_eq!(
            create(client, "ShardingConfig", "candidate", &spec).await,
            Ok(()),
            "{yaml}"
        );
    }
    for url in [
        "https://10.0.0.1:6443",
        "https://[fd00::1]:6443/",
        "https://east.example",
    ] {
        let spec = json!({"endpoints": [{"url": url}]});
        assert_eq!(
            create(client, "MemberCluster", "candidate", &spec).await,
            Ok(()),
            "{url}"
        );
    }
}

/// Every field of both kinds, with a value that is not its default.
const WHOLE_SHARDING: &str = r"
spec:
  selector: &selector {matchLabels: {a: b}, matchExpressions: [{key: a, operator: In, values: [b]}]}
  serviceAccounts: [greeter]
  controller: {leaderElectionName: l, leaderElection: Enabled}
  webhook: {certDir: /c, port: 1}
  limits: &limits [{relateResources: [{apiGroups: [''], resources: [pods]}], selector: *selector}]
  root:
    {disable: true, prefix: p, targetStatefulSet: s, resourceSelector: *limits,
    canary: {replicas: 1, inNamespaces: [n], inShardHash: ['0'], percent: 5}, auto: {shardingSize: 2, everyShardReplicas: 3, balance: Objects}}
  callerClusters: [east]
  primaryCluster: east
  clusters:
  - {name: east, namespaces: [n], buckets: [0-15, 17]}
  - {name: east, buckets: []}
  - {selector: *selector, namespaceSelector: *selector}
  explicitView: Allow
  unavailable: PartialStart
  enforcement: Audit
  writeFence: Disabled
  replicated: [{group: apiextensions.k8s.io, resource: customresourcedefinitions}]
status:
  observedGeneration: 1
  conditions: &conditions
  - {type: Accepted, status: 'True', reason: Ok, message: '', observedGeneration: 1, lastTransitionTime: '2026-01-02T03:04:05Z'}
  children: [c]
  clusters: [{name: east, namespaceCount: 1, namespaces: [n], generations: {n: 2}, objects: 2, labelsSynced: true, shadowed: [m]}]
  callers: {total: 1, current: 0, replicas: [{cluster: east, namespace: n, pod: p, uid: u, version: v, nack: because}]}
  viewRevision: 3
  accepted: {generation: 1, spec: {selector: {}, ofAnotherVersion: {kept: [1, null]}}}
";
const WHOLE_MEMBER: &str = r"
spec:
  accept: true
  endpoints: [{url: 'https://east:6443', tlsServerName: kubernetes}]
  caBundle: YQ==
  access: Tunnel
  identity: {mode: ServiceAccount}
  cordoned: true
  allowedNamespaces: [operators]
  breaker: {consecutiveFailures: 1, failureRatio: 0.5, minRequests: 2, window: 1s, openFor: 1s, maxOpenFor: 1m, slowUnary: 1s, slowList: 1m,
    byHand: [{trafficClass: List, state: Open, reason: x, by: y, since: '2026-01-02T03:04:05Z', until: '2026-01-02T03:04:06Z'}]}
status:
  observedGeneration: 1
  conditions:
  - {type: Joined, status: 'True', reason: Ok, message: '', observedGeneration: 1, lastTransitionTime: '2026-01-02T03:04:05Z'}
  kubernetesVersion: v1.36.3
  clusterUID: u
  apiLatencyMilliseconds: 3
  lastHeartbeat: '2026-01-02T03:04:05Z'
  namespaces: 4
  labelledObjects: 5
  totalObjects: 6
  agentVersion: 0.1.0
  tokenExpiry: '2026-01-02T03:04:05Z'
  allowedServiceAccounts: [a/b]
  allowedUsers: [c]
  breakers: [{router: r, trafficClass: List, state: HalfOpen, reason: x, since: '2026-01-02T03:04:05Z'}]
";

const WHOLE_ROUTER: &str = r"
spec:
  keyHashes: ['0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef']
  subscription: ['shard:ops/a', 'shard:ops/b']
  pod: {cluster: east, name: router-0, uid: u}
status:
  observedGeneration: 1
  conditions:
  - {type: Connected, status: 'True', reason: Ok, message: '', observedGeneration: 1, lastTransitionTime: '2026-01-02T03:04:05Z'}
  lastSeen: '2026-01-02T03:04:05Z'
  version: 0.1.0
";

/// Writes every field of spec and status, and reads it back: a field that the schema forgot would be pruned.
async fn every_field_is_kept(client: &Client) {
    let configs = Api::<ShardingConfig>::namespaced(client.clone(), "operator-demo");
    keeps(&configs, "ShardingConfig", WHOLE_SHARDING).await;
    keeps(
        &Api::<MemberCluster>::all(client.clone()),
        "MemberCluster",
        WHOLE_MEMBER,
    )
    .await;
    let routers = Api::<Router>::namespaced(client.clone(), "operator-demo");
    keeps(&routers, "Router", WHOLE_ROUTER).await;
}

async fn keeps<K>(api: &Api<K>, kind: &str, whole: &str)
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let mut wanted: Value = serde_yaml_ng::from_str(whole).unwrap();
    wanted["apiVersion"] = json!("ctrlmesh.kusionstack.io/v1alpha1");
    wanted["kind"] = json!(kind);
    wanted["metadata"] = json!({"name": "whole"});
    let typed: K = serde_json::from_value(wanted.clone()).unwrap();
    let typed = serde_json::to_value(&typed).unwrap();
    let without = |part: &str| {
        let mut object = wanted.clone();
        object.as_object_mut().unwrap().remove(part);
        Patch::Apply(object)
    };
    let params = PatchParams::apply("test");
    api.patch("whole", &params, &without("status")).await.unwrap();
    api.patch_status("whole", &params, &without("spec")).await.unwrap();
    let stored = serde_json::to_value(api.get("whole").await.unwrap()).unwrap();
    for part in ["spec", "status"] {
        assert_eq!(typed[part], wanted[part], "the type lacks a field");
        assert_eq!(stored[part], wanted[part], "the schema lacks a field");
    }
}
