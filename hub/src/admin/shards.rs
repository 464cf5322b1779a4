//! Pages about shards: `/shards` (how each stands), `/shards/who` (whose a namespace is, and why), `/shards/plan` (what an
//! edit would move), `/shards/routers` (what routers hold) and `/shards/separate` (what owners of each operator would come to). They tell, and change nothing.
//!
//! What an edit would come to is found out by the compiler itself, over a copy of the facts. Callers: `app`, which serves
//! them on the admin port; `portolanctl shards` reads them.

mod held;
mod kinds;
mod moves;
mod owner;
mod plan;
mod progress;
mod roots;
mod separate;
#[cfg(test)]
mod testing;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::Timestamp;
use kube::api::DynamicObject;
use portolan_crds::ShardName;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::acks::Acks;
use crate::compile::World;
use crate::distribute::Worlds;
use crate::facts::Facts;
use crate::index::Index;
use crate::separation;
use crate::settings::Settings;

/// All documents of one plan; etcd takes 1.5 MiB of each.
const MOST_BYTES: usize = 4 << 20;
/// Plans at a time: of a large fleet one takes a core for seconds, and a copy of all facts.
const MAX_PLANS: usize = 1;

/// What the pages read.
#[derive(Clone)]
pub(crate) struct Pages {
    index: Arc<Index>,
    acks: Arc<Acks>,
    worlds: Worlds,
    settings: Settings,
    // A semaphore: whoever asks meanwhile waits, streams do not.
    plans: Arc<Semaphore>,
}

type Answer = Result<Json<Value>, (StatusCode, Json<Value>)>;

/// Which namespace is asked about.
#[derive(Debug, Deserialize)]
struct Which {
    namespace: String,
    /// Absent: in all members.
    cluster: Option<String>,
    /// What its operator's shards have of it. Absent: what those of all have.
    shard: Option<ShardName>,
}

/// What would be applied.
#[derive(Debug, Deserialize)]
struct Question {
    /// ShardingConfigs, each as it would be.
    objects: Vec<DynamicObject>,
}

impl Pages {
    pub(crate) fn new(index: Arc<Index>, acks: Arc<Acks>, worlds: Worlds, settings: Settings) -> Self {
        Self {
            index,
            acks,
            worlds,
            settings,
            plans: Arc::new(Semaphore::new(MAX_PLANS)),
        }
    }

    pub(crate) fn routes(self) -> Router {
        Router::new()
            .route("/shards", get(shards))
            .route("/shards/who", get(who))
            .route("/shards/routers", get(routers))
            .route("/shards/separate", get(separate))
            .route("/shards/plan", post(plan).layer(DefaultBodyLimit::max(MOST_BYTES)))
            .with_state(self)
    }

    fn world(&self) -> Result<Arc<World>, (StatusCode, Json<Value>)> {
        let world = self.worlds.borrow().as_ref().map(|published| published.world.clone());
        world.ok_or_else(|| {
            let reason = "the hub does not know yet who has what: see its /readyz; of several replicas ask the one that leads, as Lease \
                          portolan-hub says";
            refused(StatusCode::SERVICE_UNAVAILABLE, reason)
        })
    }
}

fn refused(code: StatusCode, reason: impl std::fmt::Display) -> (StatusCode, Json<Value>) {
    (code, Json(json!({"error": reason.to_string()})))
}

async fn shards(State(pages): State<Pages>) -> Answer {
    let world = pages.world()?;
    let told = pages.index.read(|facts| {
        let told = |routers: &_| progress::of_all(facts, &world, routers);
        pages.acks.read(told)
    });
    Ok(Json(
        json!({"viewRevision": world.state.ledger.view_revision(), "shards": told}),
    ))
}

async fn who(State(pages): State<Pages>, Query(which): Query<Which>) -> Answer {
    let world = pages.world()?;
    let (namespace, cluster) = (which.namespace, which.cluster);
    let operator = match which.shard {
        Some(shard) => match world.shards.get(&shard) {
            Some(verdict) => Some(verdict.wanted.operator.clone()),
            None => {
                return Err(refused(
                    StatusCode::NOT_FOUND,
                    format!("no ShardingConfig is named {shard}"),
                ));
            }
        },
        None => None,
    };
    let known = pages.index.read(|facts| {
        if let Some(cluster) = cluster.as_ref().filter(|cluster| !facts.members.contains_key(*cluster)) {
            return Err(format!("no MemberCluster is named {cluster:?}"));
        }
        let told = |routers: &_| {
            let known = owner::Known {
                facts,
                world: &world,
                routers,
                bucketing: pages.settings.bucketing,
            };
            owner::of(&known, (cluster.as_deref(), &namespace), operator.as_ref())
        };
        Ok(pages.acks.read(told))
    });
    let pairs = known.map_err(|reason| refused(StatusCode::NOT_FOUND, reason))?;
    Ok(Json(json!({"namespace": namespace, "pairs": pairs})))
}

async fn routers(State(pages): State<Pages>) -> Answer {
    let world = pages.world()?;
    let routers = pages.acks.read(|routers| held::of_all(&world, routers));
    Ok(Json(json!({"run": world.state.run, "routers": routers})))
}

async fn plan(State(pages): State<Pages>, Json(question): Json<Question>) -> Answer {
    let world = pages.world()?;
    let edits = plan::Edits::read(&question.objects);
    let edits = edits.map_err(|reason| refused(StatusCode::BAD_REQUEST, reason))?;
    let undecided = |_| refused(StatusCode::SERVICE_UNAVAILABLE, "the hub could not make the plan");
    let permit = pages.plans.clone().acquire_owned().await;
    let permit = permit.map_err(|_| refused(StatusCode::SERVICE_UNAVAILABLE, "the hub stops"))?;
    let (facts, settings) = (pages.index.read(Facts::clone), pages.settings.clone());
    let planned = tokio::task::spawn_blocking(move || {
        let plan = plan::plan(&facts, &world.state, &settings, edits, Timestamp::now());
        // Also when nobody waits for it any more, it counts until it is over.
        drop(permit);
        plan
    });
    let plan = planned.await.map_err(undecided)?;
    let away = pages.acks.read(held::away);
    Ok(Json(json!({"plan": plan, "routersAway": away})))
}

/// A ledger of before: who would have which namespace beside its owner, and what stands against it.
async fn separate(State(pages): State<Pages>) -> Answer {
    let world = pages.world()?;
    if !world.state.ledger.contention().is_fleet() {
        return Ok(Json(json!({"separate": true, "seconds": [], "waiting": []})));
    }
    let waiting = pages.index.read(|facts| {
        let against = |routers: &_| separation::against(facts, &world, routers);
        pages.acks.read(against)
    });
    let permit = pages.plans.clone().acquire_owned().await;
    let permit = permit.map_err(|_| refused(StatusCode::SERVICE_UNAVAILABLE, "the hub stops"))?;
    let (facts, settings) = (pages.index.read(Facts::clone), pages.settings.clone());
    let found = tokio::task::spawn_blocking(move || {
        let found = separate::seconds(&facts, &world.state, &settings, Timestamp::now());
        drop(permit);
        found
    });
    let undecided = |_| refused(StatusCode::SERVICE_UNAVAILABLE, "the hub could not find it out");
    let (seconds, rests) = found.await.map_err(undecided)?;
    Ok(Json(
        json!({"separate": false, "seconds": seconds, "waiting": waiting, "endless": !rests}),
    ))
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use tokio::sync::watch;
    use tower::ServiceExt as _;

    use super::testing::{Fleet, object};
    use super::*;
    use crate::distribute::Published;

    async fn ask(pages: &Pages, request: Request<Body>) -> (StatusCode, Value) {
        let response = pages.clone().routes().oneshot(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), MOST_BYTES).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    fn get(path: &str) -> Request<Body> {
        Request::get(path).body(Body::empty()).unwrap()
    }

    fn post(objects: &Value) -> Request<Body> {
        let request = Request::post("/shards/plan").header("content-type", "application/json");
        request.body(json!({"objects": objects}).to_string().into()).unwrap()
    }

    fn pages(fleet: &Fleet, world: Option<World>) -> Pages {
        let index = Index::default();
        index.write(|facts| {
            facts.clone_from(&fleet.facts);
            crate::index::Change::Nothing
        });
        let published = world.map(|world| Published {
            world: Arc::new(world),
            ..Published::default()
        });
        let (_, worlds) = watch::channel(published);
        Pages::new(Arc::new(index), Arc::default(), worlds, Settings::default())
    }

    #[tokio::test]
    async fn each_page_answers() {
        let mut fleet = Fleet::new(&["ns-a", "ns-b"]);
        fleet.apply("a", &json!([{"name": "east", "namespaces": ["ns-a", "ns-b"]}]));
        let world = fleet.compile();
        let pages = pages(&fleet, Some(world));
        let (status, told) = ask(&pages, get("/shards")).await;
        assert_eq!((status, &told["shards"][0]["shard"]), (StatusCode::OK, &json!("ops/a")));
        let (status, told) = ask(&pages, get("/shards/who?namespace=ns-a&cluster=east")).await;
        assert_eq!((status, &told["pairs"][0]["owner"]), (StatusCode::OK, &json!("ops/a")));
        let (status, told) = ask(&pages, get("/shards/who?namespace=ns-a&shard=ops/z")).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        assert!(told["error"].as_str().unwrap().contains("ops/z"), "{told}");
        let (status, told) = ask(&pages, get("/shards/who?namespace=ns-a&cluster=eats")).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        assert!(told["error"].as_str().unwrap().contains("eats"), "{told}");
        let (status, told) = ask(&pages, get("/shards/routers")).await;
        assert_eq!((status, &told["routers"]), (StatusCode::OK, &json!([])));
        let less = object("a", &json!([{"name": "east", "namespaces": ["ns-a"]}]));
        let (status, told) = ask(&pages, post(&json!([less]))).await;
        assert_eq!(
            (status, &told["plan"]["moves"][0]["namespace"]),
            (StatusCode::OK, &json!("ns-b")),
            "{told}"
        );
        let lost = json!([{"name": "east", "namespaces": ["ns-z"]}, {"selector": {"matchLabels": {"region": "mars"}}}]);
        let (_, told) = ask(&pages, post(&json!([object("b", &lost)]))).await;
        let unresolved = &told["plan"]["unresolved"][0];
        assert_eq!(unresolved["shard"], "ops/b", "{told}");
        let message = unresolved["message"].as_str().unwrap();
        assert!(
            message.starts_with("spec.clusters[1].selector: chooses no MemberCluster"),
            "{message}"
        );
        let (status, told) = ask(
            &pages,
            post(&json!([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}])),
        )
        .await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(told["error"].as_str().unwrap().contains("Pod"), "{told}");
    }

    /// Also where nothing changes: a file that was applied before, and was refused then.
    #[tokio::test]
    async fn members_that_are_not_there_are_told_of_what_the_hub_has_already() {
        let mut fleet = Fleet::new(&["ns-a"]);
        fleet.apply("a", &json!([{"name": "east", "namespaces": ["ns-a"]}]));
        let misspelt = json!([{"name": "east", "namespaces": ["ns-z"]}, {"name": "wset"}]);
        fleet.apply("b", &misspelt);
        let world = fleet.compile();
        let pages = pages(&fleet, Some(world));
        let (_, told) = ask(&pages, post(&json!([object("b", &misspelt)]))).await;
        assert_eq!(told["plan"]["unchanged"], json!(["ops/b"]), "{told}");
        let refused = &told["plan"]["refused"][0];
        assert_eq!(
            (&refused["shard"], &refused["reason"]),
            (&json!("ops/b"), &json!("UnknownCluster")),
            "{told}"
        );
        assert!(refused["message"].as_str().unwrap().contains("\"wset\""), "{told}");
    }

    #[tokio::test]
    async fn a_hub_that_knows_nothing_yet_says_so() {
        let pages = pages(&Fleet::new(&[]), None);
        let (status, told) = ask(&pages, get("/shards")).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(told["error"].as_str().unwrap().contains("/readyz"), "{told}");
    }
}
