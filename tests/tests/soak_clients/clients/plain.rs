//! A hand-written informer, for what no client library asks: Tables, and JSON without bookmarks, whose only position is the
//! version of the last object. It lists, watches from there, and lists again when it is told 410, and only then.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::BytesMut;
use http::Method;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use portolan_tests::door::{Door, request};
use portolan_tests::watch::{AGENT, key, version};
use serde_json::Value;
use tokio::task::JoinSet;

use super::{Report, Seen, WATCH_SECONDS};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
/// Before it asks again what it was refused or cut off from.
const PAUSE: Duration = Duration::from_millis(500);
/// A stream that says nothing for longer than it may last is dead.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);

/// Running until dropped.
pub(super) struct Plain {
    asks: Asks,
    seen: Arc<Mutex<Seen>>,
    _task: JoinSet<()>,
}

/// What it asks for, and how.
#[derive(Clone)]
pub(super) struct Asks {
    pub(super) root: &'static str,
    pub(super) resource: &'static str,
    pub(super) table: bool,
    pub(super) bookmarks: bool,
}

impl Plain {
    pub(super) fn start(door: Door, asks: Asks) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let informer = Informer {
            door,
            asks: asks.clone(),
            seen: seen.clone(),
            position: None,
        };
        let mut task = JoinSet::new();
        task.spawn(informer.run());
        Self {
            asks,
            seen,
            _task: task,
        }
    }

    pub(super) fn report(&self) -> Report {
        let mut seen = self.seen.lock();
        let how = if self.asks.table { "table" } else { "json" };
        let marks = if self.asks.bookmarks { "" } else { " without bookmarks" };
        let name = format!("plain {how} {}{marks}", self.asks.resource);
        seen.report(name, self.asks.resource, "")
    }
}

struct Informer {
    door: Door,
    asks: Asks,
    seen: Arc<Mutex<Seen>>,
    /// None: to list.
    position: Option<String>,
}

impl Informer {
    async fn run(mut self) {
        loop {
            let done = match self.position.clone() {
                None => self.list().await,
                Some(position) => self.watch(&position).await,
            };
            if let Err(error) = done {
                self.seen.lock().note(format!("{error:#}"));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    fn request(&self, query: &str) -> anyhow::Result<http::Request<Vec<u8>>> {
        let accept = if self.asks.table { TABLE } else { "application/json" };
        let Asks { root, resource, .. } = self.asks;
        request(
            Method::GET,
            &format!("{root}/{resource}{query}"),
            &[("accept", accept), ("user-agent", AGENT)],
            &[],
        )
    }

    async fn list(&mut self) -> anyhow::Result<()> {
        let answer = tokio::time::timeout(SILENCE, self.door.ask(self.request("")?)).await??;
        let list = answer.json();
        if answer.status != 200 {
            bail!("{}", answer.message());
        }
        let objects = objects_of(&list).context("no list")?;
        let mut seen = self.seen.lock();
        seen.coming = objects.iter().map(|object| (key(object), version(object))).collect();
        seen.listed();
        self.position = Some(version_of(&list));
        seen.note(format!("LIST at {:?}", self.position));
        Ok(())
    }

    /// To its end, which is an error if it was no clean one.
    async fn watch(&mut self, position: &str) -> anyhow::Result<()> {
        let marks = if self.asks.bookmarks {
            "&allowWatchBookmarks=true"
        } else {
            ""
        };
        let query = format!("?watch=true&resourceVersion={position}&timeoutSeconds={WATCH_SECONDS}{marks}");
        let line = tokio::time::timeout(SILENCE, self.door.open()).await??;
        self.seen.lock().note(format!("WATCH from {position}"));
        let mut answer = tokio::time::timeout(SILENCE, line.send(self.request(&query)?)).await??;
        if answer.status() != 200 {
            let gone = answer.status() == 410;
            let body = tokio::time::timeout(SILENCE, answer.body_mut().collect())
                .await??
                .to_bytes();
            let status: Value = serde_json::from_slice(&body).unwrap_or_default();
            if gone {
                self.expired(&status);
            }
            bail!("{status}");
        }
        let mut rest = BytesMut::new();
        while let Some(frame) = tokio::time::timeout(SILENCE, answer.frame()).await? {
            rest.extend_from_slice(&frame?.into_data().unwrap_or_default());
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                self.told(&serde_json::from_slice(&rest.split_to(end + 1))?);
            }
        }
        Ok(())
    }

    fn told(&mut self, event: &Value) {
        let object = &event["object"];
        match event["type"].as_str() {
            Some("ERROR") => return self.expired(object),
            Some("BOOKMARK") => self.seen.lock().note(format!("BOOKMARK {}", version_of(object))),
            kind => {
                let mut seen = self.seen.lock();
                seen.note(format!("{kind:?} {}", version_of(object)));
                for object in objects_of(object).unwrap_or_else(|| vec![object]) {
                    if kind == Some("DELETED") {
                        seen.delete(key(object));
                    } else {
                        seen.apply(key(object), version(object));
                    }
                }
            }
        }
        self.position = Some(version_of(object));
    }

    fn expired(&mut self, status: &Value) {
        if status["code"] == 410 {
            self.seen
                .lock()
                .note(format!("410 from {:?}: {}", self.position, status["message"]));
            self.seen.lock().expire(status["message"].as_str().unwrap_or_default());
            self.position = None;
        }
    }
}

/// The objects of a list or of a Table, whose rows have their metadata; `None` of what is one object.
fn objects_of(list: &Value) -> Option<Vec<&Value>> {
    let rows = list["rows"]
        .as_array()
        .map(|rows| rows.iter().map(|row| &row["object"]).collect());
    rows.or_else(|| list["items"].as_array().map(|items| items.iter().collect()))
}

/// Of a list, an object, or a Table, in an event of which the row alone may have it.
fn version_of(told: &Value) -> String {
    let own = told["metadata"]["resourceVersion"]
        .as_str()
        .filter(|own| !own.is_empty());
    let rows = told["rows"][0]["object"]["metadata"]["resourceVersion"].as_str();
    own.or(rows).unwrap_or_default().to_owned()
}
