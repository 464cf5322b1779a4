//! What the two members' agents report: how many there are of everything, and one more of each.

use portolan_crds::Bucketing;
use portolan_crds::labels::LabelKeys;
use portolan_tests::hub_cluster::NAMESPACE;
use portolan_wire::v1;
use portolan_wire::v1::agent_message::Kind;
use portolan_wire::v1::resource::Body;
use serde_json::{Value, json};

/// Half of everything is in each.
pub(super) const MEMBERS: [&str; 2] = ["east", "west"];
/// The label of callers.
const APP: (&str, &str) = ("app", "operator");
/// Kinds of a cluster with a few hundred CustomResourceDefinitions.
const KINDS: usize = 200;
/// Of each kind.
const OBJECTS: u64 = 1000;
/// Numbers from here on are nobody's at first.
const NEW: usize = 1_000_000;

/// The shard of all namespaces of both members.
pub(super) fn shard() -> Value {
    json!({
        "selector": {"matchLabels": {APP.0: APP.1}},
        "callerClusters": MEMBERS,
        "primaryCluster": MEMBERS[0],
        "controller": {"leaderElection": "Disabled"},
        "clusters": MEMBERS.map(|member| json!({"name": member})),
    })
}

/// The first reports of one member.
pub(super) fn everything(member: &str, namespaces: usize, callers: usize) -> Vec<Kind> {
    let service_account = format!("{NAMESPACE}/operator");
    vec![
        Kind::Namespaces(v1::NamespaceDelta {
            reset: true,
            upserted: (0..namespaces).map(|number| namespace(member, number)).collect(),
            removed: Vec::new(),
            ..v1::NamespaceDelta::default()
        }),
        Kind::Callers(v1::CallerDelta {
            reset: true,
            upserted: (0..callers).map(caller).collect(),
            removed: Vec::new(),
            ..v1::CallerDelta::default()
        }),
        Kind::Coverage(v1::CoverageDelta {
            reset: true,
            upserted: (0..KINDS).map(|kind| coverage(kind, true)).collect(),
            removed: Vec::new(),
            ..v1::CoverageDelta::default()
        }),
        Kind::Allowed(v1::Allowed {
            service_accounts: vec![service_account],
            users: Vec::new(),
            ..v1::Allowed::default()
        }),
    ]
}

/// What is reported of the first member once all routers know everything.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    Namespace,
    Caller,
    Coverage,
}

impl Change {
    pub(super) const ALL: [Self; 3] = [Self::Namespace, Self::Caller, Self::Coverage];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Namespace => "one namespace more",
            Self::Caller => "one caller more",
            Self::Coverage => "one kind's coverage",
        }
    }

    /// The report that makes the change for the `number`th time.
    pub(super) fn report(self, number: usize) -> Kind {
        let new = NEW + number;
        match self {
            Self::Namespace => Kind::Namespaces(v1::NamespaceDelta {
                upserted: vec![namespace(MEMBERS[0], new)],
                ..v1::NamespaceDelta::default()
            }),
            Self::Caller => Kind::Callers(v1::CallerDelta {
                upserted: vec![caller(new)],
                ..v1::CallerDelta::default()
            }),
            Self::Coverage => Kind::Coverage(v1::CoverageDelta {
                upserted: vec![coverage(0, number % 2 == 1)],
                ..v1::CoverageDelta::default()
            }),
        }
    }

    /// Whether a router that was told `resource` knows of the change.
    pub(super) fn is_in(self, resource: &v1::Resource) -> bool {
        matches!(
            (self, &resource.body),
            (Self::Namespace, Some(Body::Ownership(_)))
                | (Self::Caller, Some(Body::CallerView(_)))
                | (Self::Coverage, Some(Body::Coverage(_)))
        )
    }
}

fn namespace(member: &str, number: usize) -> v1::NamespaceFact {
    let name = format!("team-{member}-{number:05}");
    let (keys, bucketing) = (LabelKeys::default(), Bucketing::default());
    let labels = [
        ("kubernetes.io/metadata.name", name.clone()),
        (keys.namespace(), name.clone()),
        (keys.sharding_hash(), bucketing.bucket_of(&name).to_string()),
    ];
    v1::NamespaceFact {
        name,
        uid: uid(number),
        labels: labels.map(|(key, value)| (key.to_owned(), value)).into(),
        terminating: false,
        epoch: None,
        ..v1::NamespaceFact::default()
    }
}

fn caller(number: usize) -> v1::CallerFact {
    let labels = [APP, ("pod-template-hash", "5d5b8f7c9d")];
    v1::CallerFact {
        namespace: NAMESPACE.to_owned(),
        pod: format!("operator-5d5b8f7c9d-{number:05}"),
        uid: uid(number),
        service_account: "operator".to_owned(),
        labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        phase: "Running".to_owned(),
        created_unix_seconds: Some(1_700_000_000),
        ..v1::CallerFact::default()
    }
}

fn coverage(kind: usize, complete: bool) -> v1::CoverageFact {
    v1::CoverageFact {
        kind: Some(v1::KindRef {
            group: "example.com".to_owned(),
            resource: format!("kinds-{kind:03}"),
        }),
        labelled: OBJECTS - u64::from(!complete),
        total: OBJECTS,
        complete,
        rule: None,
        at_admission: Some(true),
        by_bucket: Vec::new(),
    }
}

fn uid(number: usize) -> String {
    format!("0b1c2d3e-4f50-4617-8283-{number:012}")
}
