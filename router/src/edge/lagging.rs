//! Objects of replicated kinds whose copies are not known to be what the primary has: while a write is under way, and after it where
//! its outcome is not known or a member could not be brought to it. Whoever of the shard has the same account mends them, by
//! asking for anything, with what the primary has by then (`docs/semantics.md#replicated-kinds`).
//!
//! One router's memory: of two routers the one that sent the write mends it. Callers: `replicated` notes, `call` has mended.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Method, Request};
use opentelemetry::Context;
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::Edge;
use crate::decision::plan::{self, Forward, Plan, Replicas};
use crate::resource::routing::Routing;
use crate::stage::fanout::replicate::stored::StoredVersions;
use crate::stage::fanout::replicate::{Behind, WITHIN};
use crate::stage::preflight::Pending;
use crate::value::classify::{ApiRequest, Impersonation, Query, ResourceRequest, Verb};
use crate::value::snapshot::{Binding, Caller};

/// After the first attempt, and twice as long after each more.
const PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Beyond, the next write of the object mends it: who does not ask for an hour does not care.
const KEPT: Duration = Duration::from_hours(1);
/// Between two looks whether what is written is over.
const REST_PAUSE: Duration = Duration::from_millis(50);
/// Of all shards, and an eighth of it of each account: beyond, the eldest of who has most gives way.
const MOST: usize = 256;
const MOST_OF_ONE: usize = MOST / 8;
/// Tasks that bring copies to members. Each may hold an object of 2 MiB.
const MOST_AT_ONCE: usize = 64;

/// Of all callers. A mutex: taken where there is a write or something to mend, which the number beside it says to all others.
#[derive(Debug)]
pub(super) struct Lagging {
    objects: Mutex<HashMap<Key, Lag>>,
    behind: AtomicUsize,
    /// The same, shown.
    shown: Gauge,
    /// Who has one may run a task.
    pub(super) running: Arc<Semaphore>,
}

/// Whose object it is, by what may mend it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    account: Account,
    /// As whom the account wrote it.
    impersonate: Option<Impersonation>,
    /// Of the object, or of its status.
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
    /// Of a write of the status: what was stored at the primary before it.
    stored: StoredVersions,
    since: Instant,
    due: Instant,
    pause: Duration,
    /// Writes and attempts to mend that will say what became of it.
    under_way: usize,
    /// Some copy is not known to be what the primary has.
    is_behind: bool,
    /// How often that was said. Who saw less does not know that all is well.
    said: u64,
}

/// A write of an object that is under way, or an attempt to mend it. Dropped without a word it leaves the copies behind: its client
/// has gone, or what became of it is not known.
#[derive(Debug)]
pub(super) struct Writing {
    lagging: Arc<Lagging>,
    key: Key,
    /// What was said when it began.
    said: u64,
    is_over: bool,
}

/// What became of the copies of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// They are what the primary has, or never will be by themselves.
    Settled,
    /// Some are not, and may be.
    Behind,
    /// The object was not written at all.
    Untouched,
}

impl Outcome {
    pub(super) fn of(behind: &[Behind]) -> Self {
        if behind.iter().any(Behind::may_pass) {
            Self::Behind
        } else {
            Self::Settled
        }
    }
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
    pub(super) fn new(shown: Gauge) -> Arc<Self> {
        Arc::new(Self {
            objects: Mutex::default(),
            behind: AtomicUsize::new(0),
            shown,
            running: Arc::new(Semaphore::new(MOST_AT_ONCE)),
        })
    }

    /// Notes a write before it leaves. `asked`: a patch of the object, or of its status with what is `stored` before. `None` where
    /// so many are under way that none gives way.
    pub(super) fn begins(
        self: &Arc<Self>,
        caller: &Caller,
        (asked, stored): (ApiRequest, StoredVersions),
        now: Instant,
    ) -> Option<Writing> {
        let key = Key {
            account: Account::of(caller)?,
            impersonate: asked.impersonate.clone(),
            path: asked.path.clone(),
        };
        let mut objects = self.objects.lock();
        objects.retain(|_, lag| lag.under_way > 0 || now < lag.since + KEPT);
        if !objects.contains_key(&key) && !has_room(&mut objects, &key.account) {
            return None;
        }
        let lag = objects.entry(key.clone()).or_insert_with(|| Lag {
            asked,
            stored: StoredVersions::new(),
            since: now,
            due: now,
            pause: PAUSE,
            under_way: 0,
            is_behind: false,
            said: 0,
        });
        // The last write counts: it is looked after as if there had been none before.
        (lag.since, lag.due, lag.pause) = (now, now, PAUSE);
        lag.under_way += 1;
        lag.stored.extend(stored);
        let said = lag.said;
        self.count(&objects);
        Some(self.writing(key, said))
    }

    fn writing(self: &Arc<Self>, key: Key, said: u64) -> Writing {
        Writing {
            lagging: self.clone(),
            key,
            said,
            is_over: false,
        }
    }

    /// What this caller may mend now; nobody else tries it meanwhile. Not what is written or deleted at this moment, by whomever, nor
    /// what is at `but`: it may be about to go.
    fn due(
        self: &Arc<Self>,
        caller: &Caller,
        but: &str,
        now: Instant,
    ) -> Option<(Writing, ApiRequest, StoredVersions)> {
        if self.behind.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let account = Account::of(caller)?;
        let mut objects = self.objects.lock();
        objects.retain(|_, lag| lag.under_way > 0 || now < lag.since + KEPT);
        self.count(&objects);
        let under_way: HashSet<String> = objects
            .iter()
            .filter(|(_, lag)| lag.under_way > 0)
            .map(|(key, _)| key.path.clone())
            .collect();
        let is_due = |lag: &Lag| lag.is_behind && lag.due <= now;
        let is_free = |key: &Key| key.path != but && !under_way.contains(&key.path);
        let (key, lag) = objects
            .iter_mut()
            .find(|(key, lag)| key.account == account && is_free(key) && is_due(lag))?;
        lag.under_way = 1;
        Some((
            self.writing(key.clone(), lag.said),
            lag.asked.clone(),
            lag.stored.clone(),
        ))
    }

    /// Whether nothing that is written to this object is under way any more, by then.
    pub(super) async fn rests(&self, asked: &ApiRequest, until: Instant) -> bool {
        loop {
            let is_under_way = |(key, lag): (&Key, &Lag)| lag.under_way > 0 && key.path == asked.path;
            if !self.objects.lock().iter().any(is_under_way) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            tokio::time::sleep(REST_PAUSE).await;
        }
    }

    fn over(&self, key: &Key, (said, outcome): (u64, Outcome), now: Instant) {
        let mut objects = self.objects.lock();
        let Some(lag) = objects.get_mut(key) else { return };
        lag.under_way = lag.under_way.saturating_sub(1);
        match outcome {
            Outcome::Settled if lag.said == said => lag.is_behind = false,
            Outcome::Settled | Outcome::Untouched => {}
            Outcome::Behind => {
                lag.pause = if lag.is_behind {
                    (lag.pause * 2).min(LONGEST_PAUSE)
                } else {
                    lag.since = now;
                    PAUSE
                };
                lag.due = now + lag.pause;
                lag.is_behind = true;
                lag.said += 1;
            }
        }
        if lag.under_way == 0 && !lag.is_behind {
            objects.remove(key);
        }
        self.count(&objects);
    }

    fn count(&self, objects: &HashMap<Key, Lag>) {
        let behind = objects.values().filter(|lag| lag.is_behind).count();
        self.behind.store(behind, Ordering::Relaxed);
        self.shown.set(i64::try_from(behind).unwrap_or(i64::MAX));
    }
}

/// Makes room for one more of this account, if need be by what is the eldest of who has most. False if nothing gives way.
fn has_room(objects: &mut HashMap<Key, Lag>, account: &Account) -> bool {
    let mut of_each: HashMap<&Account, usize> = HashMap::new();
    for key in objects.keys() {
        *of_each.entry(&key.account).or_default() += 1;
    }
    let is_full = of_each.get(account).is_some_and(|number| *number >= MOST_OF_ONE);
    if !is_full && objects.len() < MOST {
        return true;
    }
    let idle = objects
        .iter()
        .filter(|(key, lag)| lag.under_way == 0 && (!is_full || key.account == *account));
    let eldest = idle.min_by_key(|(key, lag)| (Reverse(of_each.get(&key.account)), lag.since));
    let eldest = eldest.map(|(key, _)| key.clone());
    eldest.is_some_and(|key| objects.remove(&key).is_some())
}

impl Writing {
    pub(super) fn ends(mut self, outcome: Outcome) {
        self.is_over = true;
        self.lagging.over(&self.key, (self.said, outcome), Instant::now());
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.is_over {
            self.lagging
                .over(&self.key, (self.said, Outcome::Behind), Instant::now());
        }
    }
}

/// Mends beside a request what its caller may mend.
pub(super) fn mend(edge: &Arc<Edge>, caller: &Caller, routing: &Arc<Routing>, beside: &ApiRequest) {
    if edge.lagging.behind.load(Ordering::Relaxed) == 0 {
        return;
    }
    let but = if beside.is_read() { "" } else { &*beside.path };
    // Half of the places are left to what clients wait for.
    let running = &edge.lagging.running;
    while running.available_permits() > MOST_AT_ONCE / 2
        && let Ok(permit) = running.clone().try_acquire_owned()
    {
        let Some((mending, asked, stored)) = edge.lagging.due(caller, but, Instant::now()) else {
            return;
        };
        let (edge, caller, routing) = (edge.clone(), caller.clone(), routing.clone());
        let tasks = edge.parts.tasks.clone();
        tasks.spawn("replicate", async move {
            let outcome = again(&edge, &caller, (&asked, &stored), &routing).await;
            mending.ends(outcome);
            drop(permit);
        });
    }
}

async fn again(
    edge: &Edge,
    caller: &Caller,
    (asked, stored): (&ApiRequest, &StoredVersions),
    routing: &Arc<Routing>,
) -> Outcome {
    let (forward, replicas) = match planned(caller, asked, routing) {
        Now::Follows(forward, replicas) => (forward, replicas),
        Now::Nothing => return Outcome::Settled,
        Now::Unknown => return Outcome::Behind,
    };
    let (head, ()) = Request::new(()).into_parts();
    let received = Context::new();
    let pending = Pending {
        head: &head,
        asked,
        caller,
        routing,
        received: &received,
        deadline: Instant::now() + WITHIN,
    };
    let fanouts = &edge.fanouts;
    // The primary's object is read by the right that there is now.
    if fanouts.may_read(&forward, caller).await.is_err() {
        return Outcome::Behind;
    }
    let behind = if replicas.resource.subresource.is_some() {
        fanouts.forget_versions(&forward, &replicas, stored, pending).await
    } else {
        let name = replicas.resource.name.clone().unwrap_or_default();
        fanouts.replicate(&forward, &replicas, (&name, false), pending).await
    };
    Outcome::of(&behind)
}

/// A patch of the object that a request has written, or of its status.
pub(super) fn patch_of(asked: &ApiRequest, resource: &ResourceRequest, name: &str) -> ApiRequest {
    let resource = ResourceRequest {
        name: Some(name.to_owned()),
        named_by_path: true,
        ..resource.clone()
    };
    let mut path = resource.object_path();
    if let Some(subresource) = &resource.subresource {
        path.push('/');
        path.push_str(subresource);
    }
    ApiRequest {
        view: asked.view.clone(),
        path,
        query: Query::new(None),
        method: Method::PATCH,
        verb: Verb::Patch,
        resource: Some(resource),
        upgrade: None,
        impersonate: asked.impersonate.clone(),
    }
}

/// What would follow a write now.
enum Now {
    Follows(Box<Forward>, Box<Replicas>),
    /// It is nothing that others follow any more.
    Nothing,
    /// The primary cannot be asked, or not by this caller.
    Unknown,
}

/// As the write would be planned now.
fn planned(caller: &Caller, asked: &ApiRequest, routing: &Routing) -> Now {
    let plan = plan::plan(caller, asked, &routing.snapshot, &routing.kinds).plan;
    let mut forward = match plan {
        Plan::Forward(forward) => forward,
        Plan::Choose(mut choose) if !choose.candidates.is_empty() => Box::new(choose.candidates.swap_remove(0).forward),
        Plan::Refuse(_) => return Now::Unknown,
        _ => return Now::Nothing,
    };
    match forward.replicas.take() {
        Some(replicas) => Now::Follows(forward, replicas),
        None => Now::Nothing,
    }
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

    fn lagging() -> Arc<Lagging> {
        Lagging::new(Gauge::default())
    }

    fn begins(lagging: &Arc<Lagging>, caller: &Caller, path: &str, now: Instant) -> Option<Writing> {
        lagging.begins(caller, (asked(path), StoredVersions::new()), now)
    }

    /// Of a write that ended so.
    fn noted(lagging: &Arc<Lagging>, caller: &Caller, path: &str, outcome: Outcome) {
        begins(lagging, caller, path, Instant::now()).unwrap().ends(outcome);
    }

    /// What is due, by path.
    fn due(lagging: &Arc<Lagging>, caller: &Caller, now: Instant) -> Option<(Writing, String)> {
        let (mending, asked, _) = lagging.due(caller, "", now)?;
        Some((mending, asked.path))
    }

    #[tokio::test(start_paused = true)]
    async fn what_lags_is_mended_by_its_own_account_and_not_for_ever() {
        let (lagging, now) = (lagging(), Instant::now());
        let [ours, same, other] = ["a", "a", "b"].map(caller_of);
        noted(&lagging, &ours, PATH, Outcome::Behind);
        let later = now + PAUSE;
        assert!(due(&lagging, &same, now).is_none());
        assert!(due(&lagging, &other, later).is_none());
        let (mending, path) = due(&lagging, &same, later).expect("another Pod of the account");
        assert_eq!(path, PATH);
        assert!(due(&lagging, &ours, later).is_none(), "it is being tried");
        mending.ends(Outcome::Behind);
        assert!(due(&lagging, &ours, later).is_none(), "the next pause is longer");
        let (mending, _) = due(&lagging, &ours, now + PAUSE * 2).unwrap();
        mending.ends(Outcome::Settled);
        assert_eq!(lagging.behind.load(Ordering::Relaxed), 0);
        assert_eq!(lagging.objects.lock().len(), 0);
        noted(&lagging, &ours, PATH, Outcome::Behind);
        tokio::time::advance(KEPT).await;
        assert!(
            due(&lagging, &ours, Instant::now()).is_none(),
            "nobody asked for an hour"
        );
        assert_eq!(lagging.shown.get(), 0);
    }

    #[test]
    fn a_write_is_noted_until_it_is_known_that_all_are_alike() {
        let (lagging, now) = (lagging(), Instant::now());
        let caller = caller_of("a");
        let later = now + Duration::from_mins(1);
        // Refused, so nothing follows.
        noted(&lagging, &caller, PATH, Outcome::Untouched);
        assert_eq!(lagging.objects.lock().len(), 0);
        // Its client went away, or its answer was lost.
        drop(begins(&lagging, &caller, PATH, now));
        let (mending, _) = due(&lagging, &caller, later).unwrap();
        // One that is refused meanwhile says nothing of the other.
        noted(&lagging, &caller, PATH, Outcome::Untouched);
        // Of two at once the one that is lost may be the later one.
        let first = begins(&lagging, &caller, PATH, now).unwrap();
        drop(begins(&lagging, &caller, PATH, now));
        mending.ends(Outcome::Settled);
        first.ends(Outcome::Settled);
        assert_eq!(lagging.behind.load(Ordering::Relaxed), 1);
        let (mending, _) = due(&lagging, &caller, later).unwrap();
        mending.ends(Outcome::Settled);
        assert_eq!(lagging.objects.lock().len(), 0);
    }

    #[test]
    fn who_wrote_as_another_is_mended_as_that() {
        let (lagging, now) = (lagging(), Instant::now());
        let caller = caller_of("a");
        let mut as_bob = asked(PATH);
        as_bob.impersonate = Some(Impersonation::user("bob".to_owned()));
        noted(&lagging, &caller, PATH, Outcome::Behind);
        drop(lagging.begins(&caller, (as_bob.clone(), StoredVersions::new()), now));
        let later = now + PAUSE * 2;
        assert!(lagging.due(&caller, PATH, later).is_none(), "it may be about to go");
        let (mending, first, _) = lagging.due(&caller, "", later).unwrap();
        assert!(lagging.due(&caller, "", later).is_none(), "it is the same object");
        mending.ends(Outcome::Settled);
        let (_mending, second, _) = lagging.due(&caller, "", later).unwrap();
        let both = [first, second];
        assert!(both.contains(&as_bob) && both.contains(&asked(PATH)), "{both:?}");
    }

    #[test]
    fn no_account_fills_the_memory() {
        let (lagging, now) = (lagging(), Instant::now());
        let callers: Vec<Caller> = (0..=MOST / MOST_OF_ONE)
            .map(|index| caller_of(&format!("a{index}")))
            .collect();
        let (last, others) = callers.split_last().unwrap();
        for caller in others {
            for index in 0..=MOST_OF_ONE {
                noted(&lagging, caller, &format!("{PATH}{index}"), Outcome::Behind);
            }
        }
        assert_eq!(lagging.behind.load(Ordering::Relaxed), MOST);
        // The eldest of who has most gives way.
        noted(&lagging, last, PATH, Outcome::Behind);
        assert!(due(&lagging, last, now + LONGEST_PAUSE).is_some());
        assert_eq!(lagging.objects.lock().len(), MOST);
        // What is under way stays.
        let under_way: Vec<_> = (0..=MOST_OF_ONE)
            .map(|index| begins(&lagging, last, &format!("{PATH}-{index}"), now))
            .collect();
        assert!(under_way[MOST_OF_ONE].is_none());
        assert!(under_way[..MOST_OF_ONE].iter().all(Option::is_some));
    }
}
