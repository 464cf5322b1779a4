//! Writes that arrive late: after each grant one of the owner before, as its router would have sent it by the epoch before. A network
//! can hold it up for longer than a test can wait.

use std::time::{Duration, Instant};

use http::Request;
use kube::{Client, Error};
use portolan_crds::labels::{FENCE_EPOCH, FENCE_SHARD};
use portolan_tests::world::World;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::ground::{COUNTER, member_of};
use crate::judge::{Answer, Attempt, told};
use crate::operator::Line;

/// Begins the numbers of these writes: beyond those of operators.
const FIRST: u64 = 1_000_000_000;
const GIVES_UP: Duration = Duration::from_secs(5);
/// Grants whose late write is not sent yet.
const WAITING: usize = 1_000;

/// A shard that had a namespace, and its epoch.
#[derive(Debug)]
pub(crate) struct Former {
    pub(crate) namespace: &'static str,
    pub(crate) shard: String,
    pub(crate) epoch: u64,
}

/// Bounded: more than a run has namespaces.
pub(crate) fn channel() -> (mpsc::Sender<Former>, mpsc::Receiver<Former>) {
    mpsc::channel(WAITING)
}

/// Sends them until it is ended.
pub(crate) struct LateWrites {
    task: JoinSet<Vec<Line>>,
    end: oneshot::Sender<()>,
}

impl LateWrites {
    pub(crate) fn start(world: &'static World, formers: mpsc::Receiver<Former>) -> Self {
        let (end, ended) = oneshot::channel();
        let mut task = JoinSet::new();
        task.spawn(run(world, formers, ended));
        Self { task, end }
    }

    /// What became of all that were due.
    pub(crate) async fn end(mut self) -> Vec<Line> {
        drop(self.end);
        self.task.join_next().await.unwrap().unwrap()
    }
}

async fn run(
    world: &'static World,
    mut formers: mpsc::Receiver<Former>,
    mut ended: oneshot::Receiver<()>,
) -> Vec<Line> {
    let mut lines = Vec::new();
    for number in FIRST.. {
        let former = tokio::select! {
            biased;
            former = formers.recv() => former,
            _ = &mut ended => None,
        };
        let Some(former) = former else { break };
        let asked = Instant::now();
        let author = (former.shard.clone(), number);
        let client = world.cluster(member_of(former.namespace)).client().await.unwrap();
        let sent = timeout(GIVES_UP, write(&client, &former, &told(&author))).await;
        let (answer, said) = match sent {
            Ok(Ok(_)) => (Answer::Taken, "late".to_owned()),
            Ok(Err(Error::Api(status))) if status.code == 403 => (Answer::Refused, status.message.clone()),
            Ok(Err(error)) => (Answer::Unknown, error.to_string()),
            Err(_) => (Answer::Unknown, "no answer".to_owned()),
        };
        lines.push(Line {
            author,
            namespace: former.namespace,
            attempt: Attempt {
                answer,
                blind: true,
                asked,
            },
            said,
        });
    }
    lines
}

/// As the router does it for a caller that may write there.
async fn write(client: &Client, former: &Former, writer: &str) -> kube::Result<String> {
    let extra = |key: &str| format!("impersonate-extra-{}", key.replace('/', "%2f"));
    let patch = json!({"data": {"count": "0", "writer": writer}});
    let request = Request::patch(format!("/api/v1/namespaces/{}/configmaps/{COUNTER}", former.namespace))
        .header("content-type", "application/merge-patch+json")
        .header("impersonate-user", "late")
        .header("impersonate-group", "system:masters")
        .header(extra(FENCE_SHARD), format!("operators/{}", former.shard))
        .header(extra(FENCE_EPOCH), former.epoch.to_string())
        .body(patch.to_string().into_bytes())
        .unwrap();
    client.request_text(request).await
}
