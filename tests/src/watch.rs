//! A watch in JSON, read event by event as a client would take it in: what was told, and what a client would hold by it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bytes::BytesMut;
use http::{Method, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use portolan_testbed::patience;
use serde_json::Value;
use tokio::time::Instant;

use crate::door::{Door, Line, request};

/// How a watch that begins with what there is asks for it.
pub const WATCH_LIST: &str = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=";

/// For how long [`Watch::holds`] waits for one truth.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// As client-go names itself: what has left is told by its metadata alone.
pub const AGENT: &str = "portolan-tests/v0 kubernetes/none";

/// `namespace/name`, or the name, → uid and resourceVersion.
pub type Held = BTreeMap<String, (String, String)>;

/// An open watch with bookmarks.
#[derive(Debug)]
pub struct Watch {
    _line: Line,
    answer: Response<Incoming>,
    rest: BytesMut,
    /// Everything that was read, as `TYPE key`, or `TYPE` of what has no name.
    pub seen: Vec<String>,
    /// What a client holds that begins with nothing.
    pub held: Held,
}

/// The key of an object in [`Held`].
pub fn key(object: &Value) -> String {
    let text = |key: &str| object["metadata"][key].as_str();
    let name = text("name").unwrap_or_default();
    text("namespace").map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
}

/// What a list has.
pub fn held(list: &Value) -> anyhow::Result<Held> {
    let items = list["items"].as_array().with_context(|| format!("no list: {list}"))?;
    let held: Held = items.iter().map(|item| (key(item), version(item))).collect();
    ensure!(held.len() == items.len(), "an object twice");
    Ok(held)
}

/// The uid and resourceVersion of an object.
pub fn version(object: &Value) -> (String, String) {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    (text("uid"), text("resourceVersion"))
}

impl Watch {
    /// Over HTTP/2; `path` has its query already, but for `watch`.
    pub async fn open(door: &Door, path: &str) -> anyhow::Result<Self> {
        Self::over(door.open().await?, path).await
    }

    /// Over this connection.
    pub async fn over(line: Line, path: &str) -> anyhow::Result<Self> {
        let joint = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{joint}watch=true&allowWatchBookmarks=true");
        let headers = [("accept", "application/json"), ("user-agent", AGENT)];
        let asked = line.send(request(Method::GET, &path, &headers, &[])?);
        let answer = tokio::time::timeout(patience(), asked).await??;
        ensure!(answer.status() == 200, "{path}: {}", answer.status());
        Ok(Self {
            _line: line,
            answer,
            rest: BytesMut::new(),
            seen: Vec::new(),
            held: Held::new(),
        })
    }

    /// The next event; `None` at a clean end.
    pub async fn next(&mut self) -> anyhow::Result<Option<Value>> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line = self.rest.split_to(end + 1);
                let event = serde_json::from_slice(&line)?;
                self.note(&event);
                return Ok(Some(event));
            }
            match tokio::time::timeout(patience(), self.answer.frame()).await {
                Err(_) => bail!("nothing more comes; seen: {:?}", self.seen),
                Ok(Some(Err(error))) => bail!("the watch broke: {error}; seen: {:?}", self.seen),
                Ok(Some(Ok(frame))) => self.rest.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Ok(None) if self.rest.is_empty() => return Ok(None),
                Ok(None) => bail!("the watch ended within an event; seen: {:?}", self.seen),
            }
        }
    }

    fn note(&mut self, event: &Value) {
        let (kind, object) = (event["type"].as_str().unwrap_or_default(), &event["object"]);
        let key = key(object);
        match kind {
            "ADDED" | "MODIFIED" => {
                self.held.insert(key.clone(), version(object));
            }
            "DELETED" => {
                self.held.remove(&key);
            }
            _ => {}
        }
        self.seen.push(match object["message"].as_str() {
            Some(message) if kind == "ERROR" => format!("{kind} {message}"),
            _ if key.is_empty() => kind.to_owned(),
            _ => format!("{kind} {key}"),
        });
    }

    /// Reads until an event that is wanted; `what` names it.
    pub async fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        loop {
            let Some(event) = self.next().await.with_context(|| format!("before {what}"))? else {
                bail!("it ended before {what}; seen: {:?}", self.seen);
            };
            if wanted(&event) {
                return Ok(event);
            }
        }
    }

    /// Reads until an event of this object; returns its type.
    pub async fn sees(&mut self, wanted: &str) -> anyhow::Result<String> {
        let event = self.until(wanted, |event| key(&event["object"]) == wanted).await?;
        Ok(event["type"].as_str().unwrap_or_default().to_owned())
    }

    /// Reads until all is told that there was at the start of a watch-list.
    pub async fn begun(&mut self) -> anyhow::Result<()> {
        let marker = |event: &Value| {
            let annotations = &event["object"]["metadata"]["annotations"];
            event["type"] == "BOOKMARK" && annotations["k8s.io/initial-events-end"] == "true"
        };
        self.until("the end of the initial events", marker).await.map(drop)
    }

    /// Reads until a client of it holds what is true, which is asked again and again: agents write labels meanwhile.
    pub async fn holds(&mut self, truth: impl AsyncFn() -> Held) -> anyhow::Result<()> {
        let deadline = Instant::now() + patience();
        loop {
            let wanted = truth().await;
            if let Ok(read) = tokio::time::timeout(ASK_AGAIN, self.reach(&wanted)).await {
                return read;
            }
            let differs = |one: &Held, other: &Held| -> Vec<String> {
                let odd = one.iter().filter(|(key, version)| other.get(*key) != Some(*version));
                odd.map(|(key, version)| format!("{key} {version:?}")).collect()
            };
            ensure!(
                Instant::now() < deadline,
                "lacks {:?}, has {:?}; seen: {:?}",
                differs(&wanted, &self.held),
                differs(&self.held, &wanted),
                self.seen
            );
        }
    }

    async fn reach(&mut self, wanted: &Held) -> anyhow::Result<()> {
        while self.held != *wanted {
            if self.next().await?.is_none() {
                bail!("it ended before it holds {wanted:?}; seen: {:?}", self.seen);
            }
        }
        Ok(())
    }

    /// How often this was read: a type, or a type and a key.
    pub fn count(&self, what: &str) -> usize {
        let is = |event: &&String| *event == what || event.split(' ').next() == Some(what);
        self.seen.iter().filter(is).count()
    }
}
