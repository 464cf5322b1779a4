//! Facts under construction for the tests of these pages, compiled by the real compiler.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use kube::api::DynamicObject;
use portolan_crds::labels::GROUP;
use portolan_crds::{MemberClusterSpec, MemberClusterStatus, ShardName};
use serde_json::{Value, json};

use crate::compile::{Given, Memo, Released, State, World, decide, render};
use crate::facts::{AgentReport, Facts, MemberObject, Namespace};
use crate::index::shard_from;
use crate::settings::Settings;

/// Members east and west, and shards of namespace ops.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    pub(super) facts: Facts,
    pub(super) state: State,
    edits: i64,
}

pub(super) fn shard(name: &str) -> ShardName {
    ShardName::new("ops", name).unwrap()
}

/// A ShardingConfig of these `clusters`.
pub(super) fn object(name: &str, clusters: &Value) -> DynamicObject {
    with_spec(
        name,
        &json!({"selector": {"matchLabels": {"app": "op"}}, "callerClusters": ["east"], "clusters": clusters}),
    )
}

pub(super) fn with_spec(name: &str, spec: &Value) -> DynamicObject {
    let object = json!({
        "apiVersion": format!("{GROUP}/v1alpha1"),
        "kind": "ShardingConfig",
        "metadata": {"name": name, "namespace": "ops", "uid": format!("object-{name}")},
        "spec": spec,
    });
    serde_json::from_value(object).unwrap()
}

impl Fleet {
    /// Both members have these namespaces.
    pub(super) fn new(namespaces: &[&str]) -> Self {
        let mut fleet = Self::default();
        for cluster in ["east", "west"] {
            let member = MemberObject {
                uid: format!("object-{cluster}"),
                generation: 1,
                labels: BTreeMap::from([("region".to_owned(), cluster.to_owned())]),
                accept: true,
                problems: Vec::new(),
                in_force: Some(Arc::new(MemberClusterSpec::default())),
                status: MemberClusterStatus::default(),
            };
            fleet.facts.members.insert(cluster.to_owned(), member);
            let agent = AgentReport {
                connected: true,
                namespaces: Some(namespaces.iter().map(|name| namespace(name)).collect()).into(),
                callers: Some(BTreeMap::new()),
                ..AgentReport::default()
            };
            fleet.facts.agents.insert(cluster.to_owned(), agent);
        }
        fleet
    }

    /// A member has this one no more.
    pub(super) fn gone(&mut self, cluster: &str, namespace: &str) {
        let agent = self.facts.agents.get_mut(cluster).unwrap();
        agent.namespaces.as_mut().unwrap().remove(namespace);
    }

    pub(super) fn apply(&mut self, name: &str, clusters: &Value) {
        self.apply_object(&object(name, clusters));
    }

    pub(super) fn apply_spec(&mut self, name: &str, spec: &Value) {
        self.apply_object(&with_spec(name, spec));
    }

    pub(super) fn apply_object(&mut self, object: &DynamicObject) {
        self.edits += 1;
        let (name, mut shard) = shard_from(object, None).unwrap();
        shard.generation = self.edits;
        let before = self.facts.shards.get(&name);
        shard.created = before.map_or(Timestamp::from_second(self.edits).unwrap(), |before| before.created);
        self.facts.shards.insert(name, shard);
    }

    /// One run, of which routers have seen all before.
    pub(super) fn compile(&mut self) -> World {
        self.compile_seen(self.state.run)
    }

    /// One run, of which routers have seen nothing after run `seen`.
    pub(super) fn compile_seen(&mut self, seen: u64) -> World {
        let released = Released {
            by_all: seen,
            ..Released::default()
        };
        let given = Given {
            facts: &self.facts,
            settings: &Settings::default(),
            before: &self.state,
            released: &released,
            now: Timestamp::UNIX_EPOCH,
        };
        let decided = decide(given, &mut Memo::default());
        self.state = decided.state.clone();
        render(&self.facts, &Settings::default(), decided, None, Timestamp::UNIX_EPOCH)
    }
}

fn namespace(name: &str) -> (String, Namespace) {
    let labels = [("kubernetes.io/metadata.name".to_owned(), name.to_owned())];
    let namespace = Namespace {
        labels: labels.into(),
        ..Namespace::default()
    };
    (name.to_owned(), namespace)
}
