//! What goes on in east for the shard that uses the sick member as well: Greetings, each made when the example operator has applied
//! the one before, and what a person asks by kubectl meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use portolan_tests::door::Door;
use portolan_tests::kubectl::Kubectl;
use serde_json::json;
use tokio::task::JoinSet;

use crate::table::Felt;

const GREETINGS: &str = "/apis/example.com/v1/namespaces/team-a/greetings";
/// A reconcile takes some requests, on a machine that is busy.
const APPLIED_WITHIN: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_millis(200);

/// Going on until it is ended.
pub(crate) struct Work {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<(Vec<Duration>, Vec<String>)>,
}

impl Work {
    pub(crate) fn start(door: Door, kubectl: Kubectl, name: String) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        tasks.spawn(greetings(door, name, stop.clone()));
        tasks.spawn(person(kubectl, stop.clone()));
        Self { stop, tasks }
    }

    /// How long Greetings took; errors of both.
    pub(crate) async fn end(mut self) -> Felt {
        self.stop.store(true, Ordering::Relaxed);
        let (mut took, mut errors) = (Vec::new(), Vec::new());
        while let Some(ended) = self.tasks.join_next().await {
            let (more_took, more_errors) = ended.unwrap();
            took.extend(more_took);
            errors.extend(more_errors);
        }
        Felt::new(took, errors)
    }
}

async fn greetings(door: Door, name: String, stop: Arc<AtomicBool>) -> (Vec<Duration>, Vec<String>) {
    let (mut took, mut errors) = (Vec::new(), Vec::new());
    while !stop.load(Ordering::Relaxed) {
        match greeting(&door, &format!("{name}-{}", took.len() + errors.len())).await {
            Ok(applied) => took.push(applied),
            Err(error) => errors.push(format!("Greeting: {error:#}")),
        }
        tokio::time::sleep(PAUSE).await;
    }
    (took, errors)
}

/// How long until it is applied.
async fn greeting(door: &Door, name: &str) -> anyhow::Result<Duration> {
    let greeting = json!({
        "apiVersion": "example.com/v1",
        "kind": "Greeting",
        "metadata": {"name": name},
        "spec": {"message": "hello", "replicas": 0},
    });
    let begun = Instant::now();
    let line = door.open().await?;
    let made = line
        .ask(portolan_tests::door::json(http::Method::POST, GREETINGS, &greeting)?)
        .await?;
    anyhow::ensure!(made.status == 201, "{} {}", made.status, made.message());
    let path = format!("{GREETINGS}/{name}");
    let get = || portolan_tests::door::request(http::Method::GET, &path, &[], &[]);
    loop {
        let answer = line.ask(get()?).await?;
        anyhow::ensure!(answer.status == 200, "{} {}", answer.status, answer.message());
        let answer = answer.json();
        let mut conditions = answer["status"]["conditions"].as_array().into_iter().flatten();
        if conditions.any(|condition| condition["type"] == "Applied" && condition["status"] == "True") {
            return Ok(begun.elapsed());
        }
        anyhow::ensure!(begun.elapsed() < APPLIED_WITHIN, "{name} is not applied");
        tokio::time::sleep(LOOK).await;
    }
}

async fn person(kubectl: Kubectl, stop: Arc<AtomicBool>) -> (Vec<Duration>, Vec<String>) {
    let mut errors = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let asked = kubectl
            .ok(&["get", "configmaps", "-n", "team-a"])
            .await
            .context("kubectl");
        errors.extend(asked.err().map(|error| format!("{error:#}")));
        for _ in 0..20 {
            if !stop.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    (Vec::new(), errors)
}
