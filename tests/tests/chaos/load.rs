//! Callers of the sick member that go on asking for one object and for all, ten times a second each, as patient as a client is.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use parking_lot::Mutex;
use portolan_tests::door::{Door, Line, request};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::ground::WEST;

const PAUSE: Duration = Duration::from_millis(100);
/// What is waited for at a time: as many as a member's retry budget has in hand, should all break at once.
const WAITING: usize = 20;
const PATIENT: Duration = Duration::from_secs(20);

/// What they were told since they were asked last.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Told {
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    /// The first of those.
    pub(crate) such_as: Option<String>,
}

/// Asking until dropped.
pub(crate) struct Callers {
    /// A mutex: counted by one task at a time, for no longer than that.
    told: Arc<Mutex<Told>>,
    _task: JoinSet<()>,
}

impl Callers {
    pub(crate) fn start(door: Door) -> Self {
        let (mut task, told) = (JoinSet::new(), Arc::default());
        task.spawn(go_on(door, Arc::clone(&told)));
        Self { told, _task: task }
    }

    pub(crate) fn told(&self) -> Told {
        std::mem::take(&mut *self.told.lock())
    }
}

async fn go_on(door: Door, told: Arc<Mutex<Told>>) {
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
                waiting.spawn(ask(line, path, told.clone()));
            }
        }
    }
}

/// Whether the connection is of use still: a plain proxy never gives up one that is dead.
async fn ask(line: Arc<Line>, path: String, told: Arc<Mutex<Told>>) -> bool {
    let asked = async { line.ask(request(Method::GET, &path, &[], &[])?).await };
    let answer = tokio::time::timeout(PATIENT, asked).await;
    let of_use = matches!(answer, Ok(Ok(_)));
    let failed = match answer {
        Ok(Ok(answer)) if answer.status == 200 => None,
        Ok(Ok(answer)) => Some(format!("{} {}", answer.status, answer.message())),
        Ok(Err(error)) => Some(format!("{error:#}")),
        Err(_) => Some(format!("nothing within {PATIENT:?}")),
    };
    let mut told = told.lock();
    match failed {
        None => told.answered += 1,
        Some(failed) => {
            told.failed += 1;
            told.such_as.get_or_insert(failed);
        }
    }
    of_use
}
