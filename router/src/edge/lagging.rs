//! Objects of replicated kinds whose copies are not known to be what the primary has: while a write is under way, and after it where
//! its outcome is not known or a member could not be brought to it. Whoever of the shard has the same account mends them, by
//! asking for anything, with what the primary has by then (`docs/semantics.md#replicated-kinds`).
//!
//! Who asks for a kind whose definition is being written waits for that. What is known of copies that are behind is told to the hub.
//!
//! One router's memory: of two routers the one that sent the write mends it. Callers: `replicated` notes, `call` has mended,
//! `namespace` waits.

mod mend;

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Method;
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout_at};

pub(super) use self::mend::mend;
use crate::resource::replicas::{MAX_MESSAGE_CHARS, ReplicaFault};
use crate::resource::routing::RoutingStore;
use crate::stage::fanout::replicate::Behind;
use crate::stage::fanout::replicate::stored::StoredVersions;
use crate::value::classify::{ApiRequest, Impersonation, Query, ResourceRequest, Verb, View};
use crate::value::snapshot::{Binding, Caller};

/// After the first attempt, and twice as long after each more.
const PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// After the last attempt. Beyond, the next write of the object mends it: who does not ask for an hour does not care.
const KEPT: Duration = Duration::from_hours(1);
/// Of all shards, and an eighth of it of each account: beyond, the eldest of who has most gives way.
const MOST: usize = 256;
const MOST_OF_ONE: usize = MOST / 8;
/// Tasks that bring copies to members. Each may hold an object of 2 MiB.
const MOST_AT_ONCE: usize = 64;
/// Requests that wait for a definition, of all callers. They have taken nothing yet; what is beyond goes on at once.
const MOST_WAITING: usize = 1024;

/// Of all callers. A mutex: taken where there is a write or something to mend, which the numbers beside it say to all others.
#[derive(Debug)]
pub(super) struct Lagging {
    objects: Mutex<HashMap<Key, Lag>>,
    behind: AtomicUsize,
    /// Definitions that are on their way.
    defining: AtomicUsize,
    /// Something that was under way is over: all wait who wait for any of it, and look.
    over: Notify,
    waiting: Semaphore,
    /// Tells the hub.
    routing: Arc<RoutingStore>,
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
    /// Of the last attempt.
    tried: Instant,
    due: Instant,
    pause: Duration,
    /// Writes, deletions and attempts to mend that will say what became of it.
    under_way: usize,
    /// Those of them that may make it.
    makes: usize,
    /// Some copy is not known to be what the primary has.
    is_behind: bool,
    /// How often that was said. Who saw less does not know that all is well.
    said: u64,
    /// Why, of each copy that is known not to be.
    faults: Vec<Behind>,
}

/// What is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// A write that makes the object, if it is not there.
    Make,
    /// A write of one that is there.
    Write,
    Deletion,
    /// An attempt to bring copies to what the primary has.
    Mending,
}

/// A write of an object that is under way, or an attempt to mend it. Dropped without a word it leaves the copies behind: its client
/// has gone, or what became of it is not known.
#[derive(Debug)]
pub(super) struct Writing {
    lagging: Arc<Lagging>,
    key: Key,
    doing: Doing,
    /// What was said when it began.
    said: u64,
    is_over: bool,
}

/// What became of the copies of an object.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    /// They are what the primary has, or never will be by themselves.
    Settled,
    /// Some are not, and may be: these. None: which is not known.
    Behind(Vec<Behind>),
    /// The object was not written at all.
    Untouched,
}

impl Outcome {
    pub(super) fn of(behind: Vec<Behind>) -> Self {
        let mut may_pass: Vec<_> = behind.into_iter().filter(Behind::may_pass).collect();
        if may_pass.is_empty() {
            return Self::Settled;
        }
        // They are kept, and a member may say as much as it likes.
        for one in &mut may_pass {
            one.message = one.message.chars().take(MAX_MESSAGE_CHARS).collect();
        }
        Self::Behind(may_pass)
    }
}

impl Lag {
    fn is_kept(&self, now: Instant) -> bool {
        self.under_way > 0 || now < self.tried + KEPT
    }

    /// Whether it is a definition, of whatever kind, that may be on its way. One that is edited is served meanwhile.
    fn is_defining(&self) -> bool {
        let of_object = |resource: &ResourceRequest| resource.is_definition() && resource.subresource.is_none();
        self.makes > 0 && self.asked.resource.as_ref().is_some_and(of_object)
    }

    /// Whether the definition of this kind may be on its way.
    fn defines(&self, kind: &ResourceRequest) -> bool {
        let resource = self.asked.resource.as_ref();
        let name = resource
            .and_then(|resource| resource.name.as_deref())
            .unwrap_or_default();
        let group = name
            .strip_prefix(&*kind.resource)
            .and_then(|rest| rest.strip_prefix('.'));
        group == Some(&*kind.group) && self.is_defining()
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
    pub(super) fn new(shown: Gauge, routing: Arc<RoutingStore>) -> Arc<Self> {
        Arc::new(Self {
            objects: Mutex::default(),
            behind: AtomicUsize::new(0),
            defining: AtomicUsize::new(0),
            over: Notify::new(),
            waiting: Semaphore::new(MOST_WAITING),
            routing,
            shown,
            running: Arc::new(Semaphore::new(MOST_AT_ONCE)),
        })
    }

    /// Notes a write or a deletion before it leaves. `asked`: a patch of the object, or of its status with what is `stored` before.
    /// `None` where so many are under way that none gives way.
    pub(super) fn begins(
        self: &Arc<Self>,
        caller: &Caller,
        doing: Doing,
        (asked, stored): (ApiRequest, StoredVersions),
        now: Instant,
    ) -> Option<Writing> {
        let key = Key {
            account: Account::of(caller)?,
            impersonate: asked.impersonate.clone(),
            path: asked.path.clone(),
        };
        let mut objects = self.objects.lock();
        objects.retain(|_, lag| lag.is_kept(now));
        if !objects.contains_key(&key) && !has_room(&mut objects, &key.account) {
            return None;
        }
        let lag = objects.entry(key.clone()).or_insert_with(|| Lag {
            asked,
            stored: StoredVersions::new(),
            since: now,
            tried: now,
            due: now,
            pause: PAUSE,
            under_way: 0,
            makes: 0,
            is_behind: false,
            said: 0,
            faults: Vec::new(),
        });
        // The last write counts: it is looked after as if there had been none before.
        (lag.since, lag.tried, lag.due, lag.pause) = (now, now, now, PAUSE);
        lag.under_way += 1;
        lag.makes += usize::from(doing == Doing::Make);
        lag.stored.extend(stored);
        let said = lag.said;
        self.count(&objects);
        Some(self.writing(key, doing, said))
    }

    fn writing(self: &Arc<Self>, key: Key, doing: Doing, said: u64) -> Writing {
        Writing {
            lagging: self.clone(),
            key,
            doing,
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
        let before = objects.len();
        objects.retain(|_, lag| lag.is_kept(now));
        if objects.len() < before {
            self.count(&objects);
        }
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
            self.writing(key.clone(), Doing::Mending, lag.said),
            lag.asked.clone(),
            lag.stored.clone(),
        ))
    }

    /// Whether nothing that is written to this object is under way any more, by then.
    pub(super) async fn rests(&self, asked: &ApiRequest, until: Instant) -> bool {
        self.is_over(|key, lag| lag.under_way > 0 && key.path == asked.path, until)
            .await
    }

    /// Whether the kind that is asked for is on its way: somebody of the same shard is writing its definition.
    pub(super) fn defines(&self, caller: &Caller, asked: &ApiRequest) -> bool {
        if self.defining.load(Ordering::Relaxed) == 0 || asked.view != View::Merged {
            return false;
        }
        let (Some(account), Some(kind)) = (Account::of(caller), &asked.resource) else {
            return false;
        };
        let objects = self.objects.lock();
        let mut objects = objects.iter();
        objects.any(|(key, lag)| key.account.shard == account.shard && lag.defines(kind))
    }

    /// Waits until that is over, whatever came of it, or until then.
    pub(super) async fn defined(&self, caller: &Caller, asked: &ApiRequest, until: Instant) {
        let (Some(account), Some(kind)) = (Account::of(caller), &asked.resource) else {
            return;
        };
        let Ok(_place) = self.waiting.try_acquire() else { return };
        self.is_over(
            |key, lag| key.account.shard == account.shard && lag.defines(kind),
            until,
        )
        .await;
    }

    /// Whether nothing of this is under way any more, by then.
    async fn is_over(&self, is_meant: impl Fn(&Key, &Lag) -> bool, until: Instant) -> bool {
        loop {
            let mut over = pin!(self.over.notified());
            // Before the look: what is over from here on wakes.
            over.as_mut().enable();
            if !self.objects.lock().iter().any(|(key, lag)| is_meant(key, lag)) {
                return true;
            }
            if timeout_at(until, over).await.is_err() {
                return false;
            }
        }
    }

    fn over(&self, writing: &Writing, outcome: Outcome, now: Instant) {
        let mut objects = self.objects.lock();
        let Some(lag) = objects.get_mut(&writing.key) else {
            return;
        };
        lag.tried = now;
        lag.under_way = lag.under_way.saturating_sub(1);
        lag.makes = lag.makes.saturating_sub(usize::from(writing.doing == Doing::Make));
        match outcome {
            Outcome::Settled if lag.said == writing.said => lag.is_behind = false,
            Outcome::Settled | Outcome::Untouched => {}
            Outcome::Behind(faults) => {
                lag.pause = if lag.is_behind {
                    (lag.pause * 2).min(LONGEST_PAUSE)
                } else {
                    lag.since = now;
                    PAUSE
                };
                lag.due = now + lag.pause;
                lag.is_behind = true;
                lag.said += 1;
                if !faults.is_empty() {
                    lag.faults = faults;
                }
            }
        }
        if !lag.is_behind {
            lag.faults.clear();
        }
        if lag.under_way == 0 && !lag.is_behind {
            objects.remove(&writing.key);
        }
        self.count(&objects);
        drop(objects);
        self.over.notify_waiters();
    }

    fn made_nothing(&self, key: &Key) {
        let mut objects = self.objects.lock();
        if let Some(lag) = objects.get_mut(key) {
            lag.makes = lag.makes.saturating_sub(1);
        }
        self.count(&objects);
        drop(objects);
        self.over.notify_waiters();
    }

    fn count(&self, objects: &HashMap<Key, Lag>) {
        let behind = objects.values().filter(|lag| lag.is_behind).count();
        self.behind.store(behind, Ordering::Relaxed);
        self.shown.set(i64::try_from(behind).unwrap_or(i64::MAX));
        let defining = objects.values().filter(|lag| lag.is_defining()).count();
        self.defining.store(defining, Ordering::Relaxed);
        let kinds = objects.iter().map(|(key, lag)| {
            let kind = lag.asked.resource.as_ref().map(ResourceRequest::kind);
            (key, lag, kind.unwrap_or_default())
        });
        let kinds: Vec<_> = kinds.filter(|(_, lag, _)| !lag.faults.is_empty()).collect();
        let faults = kinds.iter().flat_map(|(key, lag, kind)| {
            let resource = lag.asked.resource.as_ref();
            let name = resource
                .and_then(|resource| resource.name.as_deref())
                .unwrap_or_default();
            let shard = &*key.account.shard;
            lag.faults.iter().map(move |fault| ReplicaFault {
                shard,
                is_conflict: fault.is_conflict(),
                name,
                kind,
                cluster: &fault.cluster,
                reason: fault.reason,
                message: &fault.message,
            })
        });
        self.routing.replicas.are_behind(faults);
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
    /// The object was there: what it defines is served meanwhile, and nobody waits for what follows.
    pub(super) fn made_nothing(&mut self) {
        if std::mem::replace(&mut self.doing, Doing::Write) == Doing::Make {
            self.lagging.made_nothing(&self.key);
        }
    }

    pub(super) fn ends(mut self, outcome: Outcome) {
        self.is_over = true;
        self.lagging.over(&self, outcome, Instant::now());
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.is_over {
            self.lagging.over(self, Outcome::Behind(Vec::new()), Instant::now());
        }
    }
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

#[cfg(test)]
mod tests;
