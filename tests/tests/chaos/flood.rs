//! Callers that ask too much of the sick member: answers that nobody reads, and more requests than anybody needs.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use portolan_tests::door::{Door, Line, request};
use serde_json::json;
use tokio::task::JoinSet;

use crate::ground::{Ground, WEST};

/// Nobody watches these, so only who asks for them gets them.
const LARGE: &str = "/api/v1/namespaces/team-b/secrets";
const LINES: usize = 8;
/// On each of them at a time.
const EACH: usize = 12;
const OPENING: Duration = Duration::from_secs(5);

fn get(path: &str) -> anyhow::Result<Request<Vec<u8>>> {
    request(Method::GET, path, &[], &[])
}

/// Fills the namespace with more than any window holds.
pub(crate) async fn fill(ground: &Ground) -> anyhow::Result<()> {
    let door = ground.world.direct_door("west").await?;
    for at in 0..6 {
        let object = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": format!("large-{at}")},
            "stringData": {"text": "x".repeat(600 << 10)},
        });
        let made = door.post(LARGE, &object).await?;
        // Of the pass before.
        anyhow::ensure!(matches!(made.status, 201 | 409), "{}", made.message());
    }
    Ok(())
}

/// By the router as a caller of west, and by the proxy.
async fn doors(ground: &Ground) -> anyhow::Result<Vec<Door>> {
    let mut doors = vec![ground.sick_door().await?];
    doors.extend(ground.by_proxy.get().cloned());
    Ok(doors)
}

/// Lists and watches that are opened and not read until it ends.
pub(crate) async fn unread(tasks: &mut JoinSet<()>, ground: &Ground) -> anyhow::Result<()> {
    for door in doors(ground).await? {
        for number in 0..LINES {
            let door = door.clone();
            let path = if number % 2 == 0 {
                LARGE.to_owned()
            } else {
                format!("{LARGE}?watch=true")
            };
            tasks.spawn(async move {
                let Ok(line) = door.open().await else { return };
                let mut held = Vec::new();
                for _ in 0..EACH {
                    let Ok(get) = get(&path) else { return };
                    held.push(tokio::time::timeout(OPENING, line.send(get)).await);
                }
                std::future::pending::<()>().await;
            });
        }
    }
    Ok(())
}

/// Lists as fast as they are answered.
pub(crate) async fn flood(tasks: &mut JoinSet<()>, ground: &Ground) -> anyhow::Result<()> {
    for door in doors(ground).await? {
        for _ in 0..LINES {
            let line = Arc::new(door.open().await?);
            for _ in 0..EACH {
                tasks.spawn(again(line.clone()));
            }
        }
    }
    Ok(())
}

async fn again(line: Arc<Line>) {
    loop {
        let Ok(get) = get(WEST) else { return };
        if line.ask(get).await.is_err() {
            return;
        }
    }
}
