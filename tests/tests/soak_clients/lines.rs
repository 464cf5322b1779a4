//! A connection to each member as administrator, past its stage, kept open: for what is written and for the truth.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use http::{Method, Request};
use parking_lot::Mutex;
use portolan_tests::door::{Answer, Door, Line, request};
use portolan_tests::world::World;
use serde_json::Value;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);
/// A member that is away is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct Lines {
    doors: BTreeMap<&'static str, Door>,
    /// A mutex: taken out and put back, never held while anything is asked.
    open: Mutex<BTreeMap<&'static str, Arc<Line>>>,
}

impl Lines {
    pub(crate) async fn new(world: &World, members: &[&'static str]) -> anyhow::Result<Self> {
        let mut doors = BTreeMap::new();
        for member in members {
            doors.insert(*member, world.direct_door(member).await?);
        }
        let open = Mutex::default();
        Ok(Self { doors, open })
    }

    /// One request, which may be sent twice; the connection is opened anew when it broke. An API server closes one that was
    /// idle for long.
    pub(crate) async fn ask(&self, member: &str, request: Request<Vec<u8>>) -> anyhow::Result<Answer> {
        let (name, door) = self.doors.get_key_value(member).context("a member")?;
        let kept = self.open.lock().get(name).cloned();
        let answer = tokio::time::timeout(PATIENCE, async {
            if let Some(line) = kept
                && let Ok(answer) = line.ask(request.clone()).await
            {
                self.open.lock().insert(*name, line);
                return Ok(answer);
            }
            let line = Arc::new(door.open().await?);
            let answer = line.ask(request).await?;
            self.open.lock().insert(*name, line);
            anyhow::Ok(answer)
        });
        answer.await.context("no answer in time").flatten()
    }

    /// The same of a member that is there, however slow the machine is: asked again until it answers.
    pub(crate) async fn ask_until_answered(&self, member: &str, request: Request<Vec<u8>>) -> anyhow::Result<Answer> {
        let begun = Instant::now();
        loop {
            let answer = self.ask(member, request.clone()).await;
            if answer.is_ok() || begun.elapsed() >= portolan_testbed::patience() {
                return answer;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// What a GET of this path answers.
    pub(crate) async fn get(&self, member: &str, path: &str) -> anyhow::Result<Value> {
        let answer = self.ask(member, request(Method::GET, path, &[], &[])?).await?;
        ensure!(answer.status == 200, "{member}{path}: {}", answer.message());
        Ok(answer.json())
    }
}
