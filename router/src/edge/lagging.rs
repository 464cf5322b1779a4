//! Copies of replicated kinds that could not be brought to a member that was away: they are when a caller of the shard with the same
//! account asks for anything, with what the primary has by then (`docs/semantics.md#replicated-kinds`).
//!
//! One router's memory: of two routers the one that told the client of it mends it. Callers: `replicated` remembers, `call` asks.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Method, Request};
use opentelemetry::Context;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Edge;
use crate::decision::plan::{self, Forward, Plan, Replicas};
use crate::resource::routing::Routing;
use crate::stage::fanout::replicate::Behind;
use crate::stage::preflight::Pending;
use crate::value::classify::{ApiRequest, Query, ResourceRequest, Verb};
use crate::value::snapshot::{Binding, Caller};

/// After the first attempt, and twice as long after each more.
const PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// For one attempt.
const WITHIN: Duration = Duration::from_secs(15);
/// Of all shards, and an eighth of it of each account: beyond, the next write of the object mends it.
const MOST: usize = 256;
const MOST_OF_ONE: usize = MOST / 8;

/// Of all callers. A mutex: taken where there is something to mend, which the number beside it says to all others.
#[derive(Debug, Default)]
pub(super) struct Lagging {
    objects: Mutex<HashMap<Key, Lag>>,
    count: AtomicUsize,
}

/// Whose object it is, by what may mend it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    account: Account,
    path: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Account {
    /// `namespace/name` of the ShardingConfig.
    shard: Arc<str>,
    /// As members know it.
    user: Arc<str>,
}

#[derive(Debug, Clone)]
struct Lag {
    /// What would be planned as the write was.
    asked: ApiRequest,
    due: Instant,
    pause: Duration,
}

impl Account {
    fn of(caller: &Caller) -> Option<Self> {
        let Caller::Pod(view) = caller else { return None };
        let Binding::One(shard) = &view.binding else {
            return None;
        };
        Some(Self {
            shard: shard.name.clone(),
            user: view.user.to_string().into(),
        })
    }
}

impl Lagging {
    /// Notes what became of an object, after a write of this caller or an attempt to mend it. `asked`: a patch of it.
    pub(super) fn note(&self, caller: &Caller, asked: ApiRequest, behind: &[Behind], now: Instant) {
        let Some(account) = Account::of(caller) else { return };
        let key = Key {
            account,
            path: asked.path.clone(),
        };
        let mut objects = self.objects.lock();
        if behind.iter().any(Behind::may_pass) {
            let known = objects.get(&key).map(|lag| lag.pause);
            let of_one = objects.keys().filter(|other| other.account == key.account).count();
            if known.is_some() || (objects.len() < MOST && of_one < MOST_OF_ONE) {
                let pause = known.map_or(PAUSE, |pause| (pause * 2).min(LONGEST_PAUSE));
                let due = now + pause;
                objects.insert(key, Lag { asked, due, pause });
            }
        } else {
            objects.remove(&key);
        }
        self.count.store(objects.len(), Ordering::Relaxed);
    }

    /// What this caller may mend now; for a while nobody else tries it.
    fn due(&self, caller: &Caller, now: Instant) -> Vec<ApiRequest> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let Some(account) = Account::of(caller) else {
            return Vec::new();
        };
        let mut objects = self.objects.lock();
        let of_it = objects
            .iter_mut()
            .filter(|(key, lag)| key.account == account && lag.due <= now);
        of_it
            .map(|(_, lag)| {
                lag.due = now + WITHIN + lag.pause;
                lag.asked.clone()
            })
            .collect()
    }

    fn forget(&self, caller: &Caller, path: String) {
        let Some(account) = Account::of(caller) else { return };
        let mut objects = self.objects.lock();
        objects.remove(&Key { account, path });
        self.count.store(objects.len(), Ordering::Relaxed);
    }
}

/// Mends beside the request what its caller may mend.
pub(super) fn mend(edge: &Arc<Edge>, caller: &Caller, routing: &Arc<Routing>) {
    for asked in edge.lagging.due(caller, Instant::now()) {
        let (edge, caller, routing) = (edge.clone(), caller.clone(), routing.clone());
        let tasks = edge.parts.tasks.clone();
        tasks.spawn("replicate", async move {
            again(&edge, &caller, asked, &routing).await;
        });
    }
}

async fn again(edge: &Edge, caller: &Caller, asked: ApiRequest, routing: &Arc<Routing>) {
    let Some((forward, replicas)) = planned(caller, &asked, routing) else {
        return edge.lagging.forget(caller, asked.path);
    };
    let (head, ()) = Request::new(()).into_parts();
    let received = Context::new();
    let pending = Pending {
        head: &head,
        asked: &asked,
        caller,
        routing,
        received: &received,
        deadline: Instant::now() + WITHIN,
    };
    let name = replicas.resource.name.clone().unwrap_or_default();
    let behind = edge
        .fanouts
        .replicate(&forward, &replicas, (&name, false), pending)
        .await;
    edge.lagging.note(caller, asked, &behind, Instant::now());
}

/// A patch of the object that a request has written.
pub(super) fn patch_of(asked: &ApiRequest, resource: &ResourceRequest, name: &str) -> ApiRequest {
    let resource = ResourceRequest {
        subresource: None,
        name: Some(name.to_owned()),
        named_by_path: true,
        ..resource.clone()
    };
    ApiRequest {
        view: asked.view.clone(),
        path: resource.object_path(),
        query: Query::new(None),
        method: Method::PATCH,
        verb: Verb::Patch,
        resource: Some(resource),
        upgrade: None,
        impersonate: asked.impersonate.clone(),
    }
}

/// As the write would be planned now; `None` if it is nothing that others follow any more.
fn planned(caller: &Caller, asked: &ApiRequest, routing: &Routing) -> Option<(Forward, Box<Replicas>)> {
    let plan = plan::plan(caller, asked, &routing.snapshot, &routing.kinds).plan;
    let Plan::Choose(choose) = plan else { return None };
    choose.candidates.into_iter().find_map(|one| {
        let mut forward = one.forward;
        let replicas = forward.replicas.take()?;
        Some((forward, replicas))
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use portolan_wire::v1;

    use super::*;
    use crate::value::classify::classify;
    use crate::value::snapshot::{Snapshot, told};

    const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/cs.a.b";

    /// A Pod of this account, of shard `ops/blue`.
    fn caller_of(account: &str) -> Caller {
        let rules = v1::Shard {
            primary_cluster: "east".to_owned(),
            label_prefix: "ctrlmesh.kusionstack.io/".to_owned(),
            ..v1::Shard::default()
        };
        let view = told::CallerView {
            home_cluster: "east".to_owned(),
            pod_uid: "u".to_owned(),
            namespace: "ops".to_owned(),
            pod: "operator-0".to_owned(),
            service_account: account.to_owned(),
            shards: vec!["ops/blue".to_owned()],
            policies: Vec::new(),
            created_unix_seconds: None,
            writes_closed: None,
            shard: Some(told::Shard {
                rules,
                members: Vec::new(),
            }),
        };
        let applied = told::upsert(&Snapshot::default(), "1", view.bodies());
        Caller::Pod(applied.snapshot.callers.values().next().unwrap().clone())
    }

    fn asked(path: &str) -> ApiRequest {
        let asked = classify(&Method::PATCH, &path.parse().unwrap(), &HeaderMap::new()).unwrap();
        let resource = asked.resource.clone().unwrap();
        patch_of(&asked, &resource, resource.name.as_deref().unwrap())
    }

    fn behind(reason: &'static str) -> Vec<Behind> {
        vec![Behind {
            cluster: "west".to_owned(),
            reason,
            message: String::new(),
        }]
    }

    #[test]
    fn what_lags_is_mended_by_its_own_account_and_not_for_ever() {
        let (lagging, now) = (Lagging::default(), Instant::now());
        let [ours, same, other] = ["a", "a", "b"].map(caller_of);
        lagging.note(&ours, asked(PATH), &behind("away"), now);
        let later = now + PAUSE;
        assert_eq!(lagging.due(&same, now), []);
        assert_eq!(lagging.due(&other, later), []);
        assert_eq!(lagging.due(&same, later), [asked(PATH)], "another Pod of the account");
        assert_eq!(lagging.due(&ours, later), [], "it is being tried");
        lagging.note(&same, asked(PATH), &behind("late"), later);
        assert_eq!(lagging.due(&ours, later + PAUSE), [], "the next pause is longer");
        assert_eq!(lagging.due(&ours, later + PAUSE * 2).len(), 1);
        // What another manager holds does not pass by itself, and what is well is well.
        for done in [behind("conflict"), Vec::new()] {
            lagging.note(&ours, asked(PATH), &behind("away"), now);
            lagging.note(&ours, asked(PATH), &done, now);
            assert_eq!(lagging.count.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn no_account_fills_the_memory() {
        let (lagging, now) = (Lagging::default(), Instant::now());
        let caller = caller_of("a");
        for index in 0..MOST {
            lagging.note(&caller, asked(&format!("{PATH}{index}")), &behind("away"), now);
        }
        assert_eq!(lagging.count.load(Ordering::Relaxed), MOST_OF_ONE);
    }
}
