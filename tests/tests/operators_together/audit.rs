//! What is read when all is over: the audit logs of members, the access lines of routers, and the Leases as etcd has them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use parking_lot::Mutex;
use portolan_crds::labels::{FENCE_EPOCH, FENCE_SHARD};
use portolan_tests::etcd::Changes;
use portolan_tests::world::World;
use serde_json::Value;
use tokio::task::{AbortHandle, JoinSet};

use crate::ground::Ground;
use crate::judge::{Held, Micros, Refusal, Write};
use crate::places::{HOME, MEMBERS, NAMESPACES};

/// All writes of operators in the namespaces, in the order in which they were answered.
pub(crate) fn writes(ground: &Ground) -> anyhow::Result<Vec<Write>> {
    let mut all = Vec::new();
    for member in MEMBERS {
        let text = std::fs::read_to_string(ground.audit(member)).context("no audit log")?;
        for line in text.lines() {
            let event: Value = serde_json::from_str(line).context("an audit log has JSON lines")?;
            all.extend(write_of(&event)?);
        }
    }
    all.sort_by_key(|write| write.answered);
    Ok(all)
}

fn write_of(event: &Value) -> anyhow::Result<Option<Write>> {
    let (object, user) = (&event["objectRef"], &event["impersonatedUser"]);
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let namespace = word(&object["namespace"]);
    // A Namespace is no object of itself.
    if !NAMESPACES.contains(&&*namespace) || object["resource"] == "namespaces" {
        return Ok(None);
    }
    let extra = |key: &str| user["extra"][key][0].as_str();
    let shard = extra(FENCE_SHARD).and_then(|shard| shard.strip_prefix(HOME)?.strip_prefix('/'));
    Ok(Some(Write {
        namespace,
        kind: format!("{}/{}", word(&object["apiGroup"]), word(&object["resource"])),
        name: word(&object["name"]),
        verb: word(&event["verb"]),
        account: word(&user["username"]),
        shard: shard.map(str::to_owned),
        epoch: extra(FENCE_EPOCH).map(str::parse).transpose()?,
        asked: time(&event["requestReceivedTimestamp"])?,
        answered: time(&event["stageTimestamp"])?,
        code: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
        message: word(&event["responseStatus"]["message"]),
    }))
}

fn time(value: &Value) -> anyhow::Result<Micros> {
    let MicroTime(time) = serde_json::from_value(value.clone())?;
    Ok(time.as_microsecond())
}

/// How far the logs of routers are at one time.
pub(crate) struct Mark(Vec<(PathBuf, usize)>);

impl Mark {
    pub(crate) async fn now(ground: &Ground) -> anyhow::Result<Self> {
        let mut marks = Vec::new();
        for router in &ground.routers {
            let file = router.lock().await.log_file();
            let length = std::fs::metadata(&file)?.len();
            marks.push((file, usize::try_from(length)?));
        }
        Ok(Self(marks))
    }

    /// Writes in the namespaces that routers have refused since.
    pub(crate) fn refused(&self) -> anyhow::Result<Vec<Refusal>> {
        let mut refused = Vec::new();
        for (file, begin) in &self.0 {
            let text = std::fs::read(file)?;
            let text = String::from_utf8_lossy(text.get(*begin..).unwrap_or_default());
            refused.extend(text.lines().filter_map(refusal_of));
        }
        Ok(refused)
    }
}

fn refusal_of(line: &str) -> Option<Refusal> {
    let told: Value = serde_json::from_str(line).ok()?;
    let writes = ["POST", "PUT", "PATCH", "DELETE"].contains(&told["method"].as_str()?);
    let (_, rest) = told["path"].as_str()?.split_once("/namespaces/")?;
    let namespace = rest.split('/').next().filter(|name| NAMESPACES.contains(name))?;
    let status = told["status"].as_u64()?;
    if !writes || !(status == 403 || status == 429 || status >= 500) {
        return None;
    }
    let answered = time(&told["timestamp"]).ok()?;
    Some(Refusal {
        shard: told["shard"].as_str()?.rsplit('/').next()?.to_owned(),
        namespace: namespace.to_owned(),
        status,
        asked: answered - told["milliseconds"].as_i64()? * 1_000,
        answered,
        line: line.to_owned(),
    })
}

/// A lock: a follower writes, and it is read in the end.
type Records = Arc<Mutex<BTreeMap<String, Vec<Held>>>>;

/// The Leases of operators, followed until it is dropped.
pub(crate) struct Locks {
    records: Records,
    follower: AbortHandle,
    _ends_with: JoinSet<()>,
}

impl Locks {
    /// Of their primary member.
    pub(crate) async fn follow(world: &World) -> anyhow::Result<Self> {
        let changes = Changes::of(world.cluster("east"), &format!("/registry/leases/{HOME}/")).await?;
        let records = Records::default();
        let mut tasks = JoinSet::new();
        Ok(Self {
            follower: tasks.spawn(follow(changes, records.clone())),
            records,
            _ends_with: tasks,
        })
    }

    /// All that was followed, up to now: a follower that has ended has missed the rest.
    pub(crate) fn all(&self) -> BTreeMap<String, Vec<Held>> {
        assert!(!self.follower.is_finished(), "the Leases are followed no more");
        self.records.lock().clone()
    }
}

async fn follow(mut changes: Changes, records: Records) {
    loop {
        let change = changes.next().await.unwrap();
        let Some(value) = change.value else { continue };
        let lease: Lease = serde_json::from_slice(&value).unwrap();
        let (name, spec) = (lease.metadata.name.unwrap_or_default(), lease.spec.unwrap_or_default());
        let held = Held {
            holder: spec.holder_identity.unwrap_or_default(),
            renewed: spec.renew_time.map_or(0, |MicroTime(at)| at.as_microsecond()),
            lasts: i64::from(spec.lease_duration_seconds.unwrap_or_default()) * 1_000_000,
        };
        records.lock().entry(name).or_default().push(held);
    }
}
