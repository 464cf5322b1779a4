//! Callers of the sick member that go on asking for one object and for all, ten times a second each, as patient as a client is.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use portolan_tests::door::{Door, Line, request};
use tokio::task::JoinSet;

use crate::ground::WEST;

const PAUSE: Duration = Duration::from_millis(100);
/// What is waited for at a time: more would be a flood.
const WAITING: usize = 40;
const PATIENT: Duration = Duration::from_secs(20);

/// Asking until dropped.
pub(crate) struct Callers(#[allow(dead_code, reason = "ends with it")] JoinSet<()>);

impl Callers {
    pub(crate) fn start(door: Door) -> Self {
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut waiting = JoinSet::new();
            let mut line = None::<Arc<Line>>;
            loop {
                tokio::time::sleep(PAUSE).await;
                let mut broken = false;
                while let Some(ended) = waiting.try_join_next() {
                    broken |= matches!(ended, Ok(false));
                }
                if broken {
                    line = None;
                }
                if line.is_none() {
                    let opened = tokio::time::timeout(PATIENT, door.open()).await;
                    line = opened.ok().and_then(Result::ok).map(Arc::new);
                }
                for path in [format!("{WEST}/where"), WEST.to_owned()] {
                    if let Some(line) = line.clone().filter(|_| waiting.len() < WAITING) {
                        waiting.spawn(ask(line, path));
                    }
                }
            }
        });
        Self(task)
    }
}

/// Whether the connection is of use still.
async fn ask(line: Arc<Line>, path: String) -> bool {
    let Ok(get) = request(Method::GET, &path, &[], &[]) else {
        return false;
    };
    // A plain proxy never gives up a connection that is dead.
    tokio::time::timeout(PATIENT, line.ask(get))
        .await
        .is_ok_and(|answer| answer.is_ok())
}
