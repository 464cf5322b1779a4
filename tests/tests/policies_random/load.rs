//! Clients that go on while policies are written: those that a promise is kept to, and one that anything may happen to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Method;
use portolan_tests::door::{Answer, Door, request};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::promise::Promise;

/// Clients of each sort.
const CLIENTS: usize = 2;
/// Ordered faults may hold up a request of the storm for minutes: its client goes before.
const PATIENCE: Duration = Duration::from_millis(300);
/// Between two requests of a client. They are to meet edits, not to find out how fast a router is.
const PAUSE: Duration = Duration::from_millis(2);

/// What the clients of the storm ask for, all that policies tell apart.
const ASKED: [(Method, &str); 9] = [
    (Method::GET, "/api/v1/namespaces/s-0/configmaps/nothing"),
    (Method::GET, "/api/v1/configmaps"),
    (Method::GET, "/api/v1/configmaps?watch=true&timeoutSeconds=1"),
    (Method::POST, "/api/v1/namespaces/s-0/configmaps"),
    (Method::DELETE, "/api/v1/namespaces/s-0/pods/nobody"),
    (Method::GET, "/apis"),
    (
        Method::GET,
        "/apis/coordination.k8s.io/v1/namespaces/storm/leases/greeting-operator",
    ),
    (Method::DELETE, "/api/v1/namespaces/s-0/configmaps"),
    (Method::GET, "/clusters/east/api/v1/namespaces/s-0/configmaps"),
];

/// Running clients. Each tells how many of its requests were answered.
pub(crate) struct Load {
    over: Arc<AtomicBool>,
    clients: JoinSet<usize>,
}

impl Load {
    pub(crate) fn start(kept: &Door, promises: &Arc<[Promise]>, storm: &Door) -> Self {
        let over = Arc::<AtomicBool>::default();
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            clients.spawn(held_to(kept.clone(), promises.clone(), over.clone()));
            clients.spawn(stormed(storm.clone(), over.clone()));
        }
        Self { over, clients }
    }

    /// Whether a client has given up: it says why when it is ended.
    pub(crate) fn failed(&mut self) -> bool {
        self.clients.len() < 2 * CLIENTS || self.clients.try_join_next().is_some()
    }

    /// Ends them, and returns how many requests were answered.
    pub(crate) async fn end(self) -> usize {
        self.over.store(true, Ordering::Relaxed);
        let answered = self.clients.join_all().await;
        assert!(answered.iter().all(|answered| *answered > 10), "{answered:?}");
        answered.into_iter().sum()
    }
}

/// Each request is judged by one version, never by one that is older than the one before.
async fn held_to(door: Door, promises: Arc<[Promise]>, over: Arc<AtomicBool>) -> usize {
    let line = door.open().await.unwrap();
    let mut seen = vec![0; promises.len()];
    let mut answered = 0;
    while !over.load(Ordering::Relaxed) {
        for (promise, seen) in promises.iter().zip(&mut seen) {
            let version = promise.asked(&line).await.unwrap().unwrap();
            assert!(
                (*seen..=promise.good()).contains(&version),
                "{}: {version} after {seen}, of {}",
                promise.namespace,
                promise.good()
            );
            *seen = version;
            answered += 1;
        }
        tokio::time::sleep(PAUSE).await;
    }
    answered
}

/// Whatever comes is what an API server could have said, and the router goes on to answer.
async fn stormed(door: Door, over: Arc<AtomicBool>) -> usize {
    let made = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "x-"}}).to_string();
    let headers = [("content-type", "application/json"), ("x-storm", "b")];
    let mut answered = 0;
    while !over.load(Ordering::Relaxed) {
        // A fault may have ended the connection before; the router itself must go on to take new ones.
        let line = door.open().await.unwrap();
        for (method, path) in ASKED {
            let body = if method == Method::POST { made.as_bytes() } else { &[] };
            let asked = request(method.clone(), path, &headers, body).unwrap();
            if let Ok(Ok(answer)) = timeout(PATIENCE, line.ask(asked)).await {
                assert_plausible(&format!("{method} {path}"), &answer);
                answered += 1;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
    answered
}

/// No refusal is anything but a Status, and a router that has met a case that it was not made for says 500.
fn assert_plausible(asked: &str, answer: &Answer) {
    if answer.status >= 400 {
        answer.expect_status(answer.status, &[]).unwrap();
        let ordered = !answer.header("portolan-fault").is_empty();
        assert!(ordered || answer.status != 500, "{asked}: {}", answer.message());
    }
}
