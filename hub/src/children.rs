//! Makes, updates and deletes the children of roots, as `compile` says.
//!
//! A child is updated in place, by server-side apply; it is made anew only after somebody has deleted it. Deleted, it stays
//! like any other ShardingConfig until routers have let go of what it has (`finalize`). One replica writes; with several, only
//! the leader would.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use portolan_crds::labels::{LABEL_ROOT, MANAGER_HUB};
use portolan_crds::partition::Child;
use portolan_crds::selector::LABEL_MAX;
use portolan_crds::{ShardName, ShardingConfig, ShardingConfigSpec, ShardingConfigStatus};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::compile::{Decided, Generated, State, Verdict};
use crate::distribute::{Worlds, news};
use crate::facts::{Facts, ShardObject};
use crate::index::Index;
use crate::metrics::Metrics;
use crate::writer::{REST, Writer, in_turns};

/// Changes come in bursts; one pass for all of them.
const SETTLE: Duration = Duration::from_millis(50);

/// Writes the children of roots.
pub(crate) struct ChildWriter {
    client: Client,
    index: Arc<Index>,
    /// By what is written too: a second change of a child does not wait for the first to be forgotten.
    writer: Writer<(ShardName, u64)>,
}

/// What is to be done with a child's object.
#[derive(Debug, Clone, PartialEq)]
enum Change {
    Apply(Box<Wanted>),
    /// The object of this UID.
    Delete(String),
}

/// A child as it is to be.
#[derive(Debug, Clone, PartialEq)]
struct Wanted {
    root: ShardName,
    root_uid: String,
    /// UID of the object that is updated; `None`: it is made.
    uid: Option<String>,
    spec: ShardingConfigSpec,
}

impl ChildWriter {
    pub(crate) fn new(client: Client, index: Arc<Index>) -> Self {
        Self {
            client,
            index,
            writer: Writer::new("child"),
        }
    }

    /// Runs until cancelled.
    pub(crate) async fn run(mut self, mut worlds: Worlds, metrics: Metrics) {
        let mut facts = self.index.status_changes();
        let mut is_more = false;
        loop {
            let at_most = if is_more { Duration::ZERO } else { REST };
            let world = news(&mut facts, &mut worlds, (SETTLE, at_most)).await;
            let due = self.index.read(|facts| due(facts, &world.state, &world.shards));
            let due = due.into_iter().map(|(name, change)| ((name, digest(&change)), change));
            // What is there and waits for its turn may be just that.
            let written = due.filter(|(key, _)| !self.writer.rests(key) && !self.index.is_waiting(&key.0));
            let due;
            (due, is_more) = in_turns(written.collect(), |(name, _)| Some(name.namespace()));
            let client = &self.client;
            let write = |(name, _), change| write(client, name, change);
            for (done, _) in self.writer.write(due, write, &metrics.children).await {
                self.writer.rest(done);
            }
        }
    }
}

fn digest(change: &Change) -> u64 {
    let mut hasher = DefaultHasher::new();
    match change {
        Change::Apply(wanted) => (&wanted.uid, json!(wanted.spec).to_string()).hash(&mut hasher),
        Change::Delete(uid) => uid.hash(&mut hasher),
    }
    hasher.finish()
}

/// Makes `facts` what they are once all that is due is written, and what was deleted is gone; false if nothing was due. For
/// plans.
pub(crate) fn write_into(facts: &mut Facts, decided: &Decided, now: Timestamp) -> bool {
    let due = due(facts, &decided.state, &decided.verdicts);
    let known = facts.shards.len();
    facts
        .shards
        .retain(|name, object| !object.deleting || decided.state.ledger.is_owner(name));
    let any = !due.is_empty() || facts.shards.len() < known;
    for (name, change) in due {
        let present = facts.shards.get_mut(&name);
        match (change, present) {
            (Change::Delete(_), Some(object)) => object.deleting = true,
            (Change::Delete(_), None) => {}
            (Change::Apply(wanted), Some(object)) => {
                object.take_spec(&name, Ok(Arc::new(wanted.spec)));
                object.generation += 1;
            }
            (Change::Apply(wanted), None) => {
                let mut object = ShardObject {
                    uid: format!("planned-{name}"),
                    generation: 1,
                    created: now,
                    deleting: false,
                    has_finalizer: true,
                    root: Some(wanted.root_uid),
                    spec: Err(String::new()),
                    flaw: None,
                    bytes: 0,
                    forced: None,
                    status: ShardingConfigStatus::default(),
                };
                object.take_spec(&name, Ok(Arc::new(wanted.spec)));
                facts.shards.insert(name, object);
            }
        }
    }
    any
}

/// What objects have to become what was decided about them.
fn due(facts: &Facts, state: &State, verdicts: &BTreeMap<ShardName, Verdict>) -> BTreeMap<ShardName, Change> {
    let mut due = BTreeMap::new();
    for (root, children) in &state.roots {
        let Some(object) = facts.shards.get(root).filter(|object| !object.deleting) else {
            continue;
        };
        let of_root = |generated: &&Arc<Generated>| generated.uid == object.uid;
        let in_force = children.in_force.iter().filter(of_root);
        for child in in_force.flat_map(|generated| &generated.expansion.children) {
            due.extend(change(facts, (root, object), child, false));
        }
        let coming = children.coming.iter().filter(of_root);
        for child in coming.flat_map(|generated| &generated.expansion.children) {
            // What is to be made by both is made by the spec in force.
            if let Some((name, change)) = change(facts, (root, object), child, true) {
                due.entry(name).or_insert(change);
            }
        }
    }
    due.extend(discarded(facts, verdicts));
    due
}

/// `only_made`: what is there stays as it is.
fn change(
    facts: &Facts,
    (root, root_object): (&ShardName, &ShardObject),
    child: &Child,
    only_made: bool,
) -> Option<(ShardName, Change)> {
    let name = ShardName::new(root.namespace(), child.name.as_str()).ok()?;
    let uid = match facts.shards.get(&name) {
        None => None,
        Some(object) => {
            let is_mine = object.root.as_ref() == Some(&root_object.uid);
            let differs = !object.spec.as_ref().is_ok_and(|spec| **spec == child.spec);
            let is_due = is_mine && differs && !object.deleting && !only_made;
            Some(object.uid.clone()).filter(|_| is_due)?.into()
        }
    };
    let wanted = Wanted {
        root: root.clone(),
        root_uid: root_object.uid.clone(),
        uid,
        spec: child.spec.clone(),
    };
    Some((name, Change::Apply(Box::new(wanted))))
}

fn discarded(facts: &Facts, verdicts: &BTreeMap<ShardName, Verdict>) -> Vec<(ShardName, Change)> {
    let verdicts = verdicts.iter().filter(|(_, verdict)| verdict.discarded);
    let objects = verdicts.filter_map(|(name, verdict)| {
        let object = facts.shards.get(name)?;
        // Another object has come into its place.
        let is_judged = object.root.is_some() && object.generation == verdict.generation;
        let change = || (name.clone(), Change::Delete(object.uid.clone()));
        (is_judged && !object.deleting).then(change)
    });
    objects.collect()
}

async fn write(client: &Client, name: ShardName, change: Change) -> kube::Result<()> {
    let resource = ApiResource::erase::<ShardingConfig>(&());
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), name.namespace(), &resource);
    match change {
        Change::Delete(uid) => {
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: Some(uid),
                    ..Preconditions::default()
                }),
                ..DeleteParams::default()
            };
            api.delete(name.name(), &params).await.map(drop)
        }
        Change::Apply(wanted) => {
            let params = PatchParams::apply(MANAGER_HUB).force();
            let patch = Patch::Apply(object(&resource, &name, &wanted));
            let mut applied = api.patch(name.name(), &params, &patch).await?;
            let spec = ShardingConfigSpec::deserialize(&applied.data["spec"]);
            if spec.is_ok_and(|spec| spec == wanted.spec) {
                return Ok(());
            }
            // Others have fields of their own in it, which an apply leaves to them.
            applied.data["spec"] = json!(wanted.spec);
            let params = PostParams {
                field_manager: Some(MANAGER_HUB.to_owned()),
                ..PostParams::default()
            };
            api.replace(name.name(), &params, &applied).await.map(drop)
        }
    }
}

/// The object as it is applied. By its UID, so that one which was deleted meanwhile is not made anew.
fn object(resource: &ApiResource, name: &ShardName, wanted: &Wanted) -> Value {
    let owner = json!({
        "apiVersion": resource.api_version, "kind": resource.kind, "name": wanted.root.name(), "uid": wanted.root_uid,
        "controller": true,
    });
    let mut object = json!({
        "apiVersion": resource.api_version, "kind": resource.kind,
        "metadata": {
            "name": name.name(), "namespace": name.namespace(), "ownerReferences": [owner],
            "labels": {LABEL_ROOT: label_of(&wanted.root)},
        },
        "spec": wanted.spec,
    });
    if let Some(uid) = &wanted.uid {
        object["metadata"]["uid"] = json!(uid);
    }
    object
}

/// The root's name, as far as a label has room for it.
fn label_of(root: &ShardName) -> &str {
    let name = root.name();
    let cut = &name[..name.len().min(LABEL_MAX)];
    cut.trim_end_matches(|c: char| !c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests;
