//! A watch, read event by event.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use portolan_testbed::patience;
use portolan_tests::door::{Door, Line, request};
use portolan_tests::watch::AGENT;
use serde_json::Value;

pub(crate) struct Watch {
    _line: Line,
    pub(crate) headers: HeaderMap,
    answer: Response<Incoming>,
    rest: BytesMut,
    /// Everything that was read, as `TYPE namespace/name`, or `TYPE` of what has no name.
    pub(crate) seen: Vec<String>,
}

impl Watch {
    pub(crate) async fn open(door: &Door, query: &str, accept: &str) -> Self {
        Self::of(door, crate::MAPS, query, accept).await
    }

    pub(crate) async fn of(door: &Door, path: &str, query: &str, accept: &str) -> Self {
        let line = door.open().await.unwrap();
        let path = format!("{path}?watch=true&{query}");
        let headers = [("accept", accept), ("user-agent", AGENT)];
        let asked = line.send(request(Method::GET, &path, &headers, &[]).unwrap());
        let answer = tokio::time::timeout(patience(), asked).await.unwrap().unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        Self {
            _line: line,
            headers: answer.headers().clone(),
            answer,
            rest: BytesMut::new(),
            seen: Vec::new(),
        }
    }

    /// With bookmarks, as JSON.
    pub(crate) async fn json(door: &Door, query: &str) -> Self {
        Self::open(door, &format!("{query}&allowWatchBookmarks=true"), "application/json").await
    }

    async fn read(&mut self) -> bool {
        let frame = tokio::time::timeout(patience(), self.answer.frame()).await;
        let Ok(frame) = frame else {
            panic!("nothing more comes; seen: {:?}", self.seen);
        };
        match frame {
            Some(Ok(frame)) => self.rest.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Some(Err(error)) => panic!("the watch broke: {error}; seen: {:?}", self.seen),
            None => {
                assert!(self.rest.is_empty(), "the watch ended within an event");
                return false;
            }
        }
        true
    }

    /// The next event; `None` at a clean end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line = self.rest.split_to(end + 1);
                let event: Value = serde_json::from_slice(&line).unwrap();
                self.note(&event);
                return Some(event);
            }
            if !self.read().await {
                return None;
            }
        }
    }

    /// The next event of protobuf, without its length.
    pub(crate) async fn frame(&mut self) -> Bytes {
        loop {
            if let Some((length, _)) = self.rest.split_first_chunk::<4>() {
                let length = 4 + usize::try_from(u32::from_be_bytes(*length)).unwrap();
                if self.rest.len() >= length {
                    return self.rest.split_to(length).freeze().slice(4..);
                }
            }
            assert!(self.read().await, "the watch ended");
        }
    }

    fn note(&mut self, event: &Value) {
        let meta = &event["object"]["metadata"];
        let kind = event["type"].as_str().unwrap_or_default();
        self.seen
            .push(match (meta["namespace"].as_str(), meta["name"].as_str()) {
                (Some(namespace), Some(name)) => format!("{kind} {namespace}/{name}"),
                _ => kind.to_owned(),
            });
    }

    /// Reads until the event about this object; returns its type.
    pub(crate) async fn sees(&mut self, name: &str) -> String {
        loop {
            let event = self.next().await.unwrap_or_else(|| panic!("it ended before {name}"));
            if event["object"]["metadata"]["name"] == name {
                return event["type"].as_str().unwrap().to_owned();
            }
        }
    }

    /// Reads until a bookmark; returns its version.
    pub(crate) async fn bookmark(&mut self) -> String {
        loop {
            let event = self.next().await.expect("it ended before a bookmark");
            if event["type"] == "BOOKMARK" {
                let version = &event["object"]["metadata"]["resourceVersion"];
                return version.as_str().unwrap().to_owned();
            }
        }
    }

    /// Whether this event was read, as [`Self::seen`] has it.
    pub(crate) fn has_seen(&self, event: &str) -> bool {
        self.seen.iter().any(|seen| seen == event)
    }

    /// How many events of this type were read.
    pub(crate) fn count(&self, kind: &str) -> usize {
        self.seen
            .iter()
            .filter(|event| event.split(' ').next() == Some(kind))
            .count()
    }
}
