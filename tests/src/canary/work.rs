//! What the operator is given to do all the while, and what is seen of it: Greetings that change without end in all
//! namespaces, each again as soon as the operator has done the change before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::world::{Place, World};
use crate::programs::admin_get;

/// Who has each place, and since which view revision.
pub type Owners = BTreeMap<Place, (String, u64)>;

/// Name of each place's Greeting and of what is made of it.
const NAME: &str = "hello";
/// Between two changes of a Greeting: thirteen of them are work enough for two processors.
const PACE: Duration = Duration::from_millis(500);

/// The changes of one Greeting.
#[derive(Clone, Copy, Debug)]
struct Changes {
    done: u32,
    /// The longest that one took.
    longest: Duration,
    /// When the present one was made.
    since: Option<Instant>,
}

/// Changes Greetings until it is dropped.
pub struct Work {
    changes: Arc<Mutex<BTreeMap<Place, Changes>>>,
    _tasks: JoinSet<()>,
}

fn greetings(client: Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("example.com", "v1", "Greeting");
    Api::namespaced_with(client, namespace, &ApiResource::from_gvk(&kind))
}

/// Whether the operator has done what the spec says.
fn is_done(object: Option<&DynamicObject>) -> bool {
    object.is_some_and(|greeting| {
        greeting.metadata.generation.is_some()
            && greeting.data["status"]["observedGeneration"].as_i64() == greeting.metadata.generation
    })
}

impl Work {
    /// Makes a Greeting in each of the world's places, and begins.
    pub async fn start(world: &World) -> anyhow::Result<Self> {
        let (changes, mut tasks) = (Arc::<Mutex<BTreeMap<Place, Changes>>>::default(), JoinSet::new());
        for place in &world.places {
            let client = world.cluster(&place.0).client().await?;
            let api = greetings(client, &place.1);
            let greeting = json!({
                "apiVersion": "example.com/v1", "kind": "Greeting",
                "metadata": {"name": NAME}, "spec": {"message": "0", "replicas": 0},
            });
            let greeting = serde_json::from_value(greeting)?;
            api.create(&PostParams::default(), &greeting).await?;
            tasks.spawn(change(api, place.clone(), changes.clone()));
        }
        Ok(Self { changes, _tasks: tasks })
    }

    /// Forgets how long changes took before.
    pub fn begin(&self) {
        for changes in self.changes.lock().values_mut() {
            (changes.done, changes.longest) = (0, Duration::ZERO);
        }
    }

    /// The longest that any change took or is taking by now, and how many were done since, of each place.
    pub fn seen(&self) -> BTreeMap<Place, (Duration, u32)> {
        let changes = self.changes.lock();
        let all = changes.iter().map(|(place, changes)| {
            let now = changes.since.map_or(Duration::ZERO, |since| since.elapsed());
            (place.clone(), (changes.longest.max(now), changes.done))
        });
        all.collect()
    }
}

async fn change(api: Api<DynamicObject>, place: Place, all: Arc<Mutex<BTreeMap<Place, Changes>>>) {
    let mut pace = tokio::time::interval(PACE);
    for number in 1_u64.. {
        pace.tick().await;
        let begun = Instant::now();
        let none = Changes {
            done: 0,
            longest: Duration::ZERO,
            since: None,
        };
        all.lock().entry(place.clone()).or_insert(none).since = Some(begun);
        let patch = Patch::Merge(json!({"spec": {"message": number.to_string()}}));
        if api.patch(NAME, &PatchParams::default(), &patch).await.is_err() {
            // The API server goes away at the end.
            continue;
        }
        // A watch may end before the operator is done.
        while await_condition(api.clone(), NAME, is_done).await.is_err() {}
        if let Some(changes) = all.lock().get_mut(&place) {
            changes.done += 1;
            changes.longest = changes.longest.max(begun.elapsed());
            changes.since = None;
        }
    }
}

impl World {
    /// By the hub.
    pub async fn owners(&self) -> anyhow::Result<Owners> {
        let mut owners = Owners::new();
        for place in &self.places {
            let told = self
                .shards(&["who", &place.1, "--cluster", &place.0, "-o", "json"])
                .await?;
            let told: Value = serde_json::from_str(&told)?;
            let pair = &told["pairs"][0];
            anyhow::ensure!(pair["state"] == "Granted", "{pair}");
            let owner = pair["owner"].as_str().unwrap_or_default().to_owned();
            owners.insert(
                place.clone(),
                (owner, pair["viewRevision"].as_u64().unwrap_or_default()),
            );
        }
        Ok(owners)
    }

    /// The image of what is made in a place: it tells which version of the operator has been there last.
    pub async fn image(&self, (cluster, namespace): &Place) -> anyhow::Result<String> {
        let client = self.cluster(cluster).client().await?;
        let deployment = Api::<Deployment>::namespaced(client, namespace).get(NAME).await?;
        let pod = deployment.spec.and_then(|spec| spec.template.spec);
        let images = pod.into_iter().flat_map(|pod| pod.containers);
        Ok(images.filter_map(|container| container.image).collect())
    }

    /// Why a Greeting's children could not be made, by its status.
    pub async fn complaint(&self, (cluster, namespace): &Place) -> anyhow::Result<String> {
        let client = self.cluster(cluster).client().await?;
        let greeting = greetings(client, namespace).get(NAME).await?;
        let conditions = greeting.data["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let failed = |one: &&Value| one["type"] == "Applied" && one["status"] == "False";
        let failed = conditions.iter().find(failed);
        Ok(failed.map(|one| one["message"].to_string()).unwrap_or_default())
    }

    /// Who leads each shard, and how often that has changed.
    pub async fn leaders(&self) -> anyhow::Result<BTreeMap<String, (String, i32)>> {
        let leases = Api::<Lease>::namespaced(self.cluster("east").client().await?, "operators");
        let leases = leases.list(&ListParams::default()).await?.items;
        let told = leases.into_iter().filter_map(|lease| {
            let (name, spec) = (lease.name_any(), lease.spec?);
            Some((name, (spec.holder_identity?, spec.lease_transitions.unwrap_or(0))))
        });
        Ok(told.collect())
    }

    /// What the router counts of patches by callers of such a child that were answered by an error.
    pub async fn errors(&self, child: &str) -> anyhow::Result<u64> {
        let text = admin_get(&self.fleet.process("router")?.admin, "/metrics").await?;
        let of_child = format!("child=\"{child}\",verb=\"patch\"");
        let lines = text.lines().filter(|line| {
            let is_told = line.starts_with("portolan_router_requests_by_child_total{") && line.contains(&of_child);
            is_told && !line.contains("code=\"2xx\"")
        });
        let counts = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        Ok(counts.sum())
    }
}
