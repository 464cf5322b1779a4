//! Lists and watches in each format that clients ask for, read for what every format tells: of what kind an event is, and the
//! name and version of its object.

use bytes::{Buf as _, BytesMut};
use http::{Method, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use portolan_testbed::patience;
use portolan_tests::door::{Door, Line, request};
use portolan_tests::watch::{AGENT, Held, key, version};
use prost::Message as _;
use serde_json::Value;
use tokio::time::{Instant, timeout, timeout_at};

/// How a client wants to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Protobuf,
    Table,
}

pub(crate) const FORMATS: [Format; 3] = [Format::Json, Format::Protobuf, Format::Table];

impl Format {
    /// In names of objects.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Protobuf => "protobuf",
            Self::Table => "table",
        }
    }

    fn accept(self, watch: bool) -> &'static str {
        match (self, watch) {
            (Self::Json, _) => "application/json",
            (Self::Protobuf, false) => "application/vnd.kubernetes.protobuf",
            (Self::Protobuf, true) => "application/vnd.kubernetes.protobuf;stream=watch",
            (Self::Table, _) => "application/json;as=Table;v=v1;g=meta.k8s.io",
        }
    }

    /// The version of a list.
    pub(crate) async fn position(self, door: &Door, path: &str) -> String {
        let answer = door.get(path, &[("accept", self.accept(false))]).await.unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.message());
        if self == Self::Protobuf {
            return protobuf::<List>(&answer.body).metadata.resource_version;
        }
        answer.json()["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .to_owned()
    }
}

/// One event.
#[derive(Debug)]
pub(crate) struct Event {
    /// `ADDED` …
    pub(crate) kind: String,
    /// `namespace/name`.
    pub(crate) key: String,
    /// Uid and resourceVersion.
    version: (String, String),
    /// Of a `Status`, else 0.
    pub(crate) code: i64,
}

/// An open watch with bookmarks.
pub(crate) struct Events {
    _line: Line,
    format: Format,
    answer: Response<Incoming>,
    rest: BytesMut,
    /// What was read but bookmarks, as `TYPE key`.
    pub(crate) seen: Vec<String>,
    /// What a client of it holds.
    pub(crate) held: Held,
}

impl Events {
    /// `path` has no query.
    pub(crate) async fn open(door: &Door, format: Format, path: &str, from: &str) -> Self {
        let line = door.open().await.unwrap();
        let path = format!("{path}?watch=true&allowWatchBookmarks=true&resourceVersion={from}");
        let headers = [("accept", format.accept(true)), ("user-agent", AGENT)];
        let asked = line.send(request(Method::GET, &path, &headers, &[]).unwrap());
        let answer = timeout(patience(), asked).await.unwrap().unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        Self {
            _line: line,
            format,
            answer,
            rest: BytesMut::new(),
            seen: Vec::new(),
            held: Held::new(),
        }
    }

    /// The next event that is no bookmark; `None` at a clean end.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            while let Some(event) = self.take() {
                if event.kind != "BOOKMARK" {
                    self.note(&event);
                    return Some(event);
                }
            }
            let Ok(frame) = timeout(patience(), self.answer.frame()).await else {
                panic!("nothing more comes; seen: {:?}", self.seen);
            };
            let Some(frame) = frame else {
                assert!(self.rest.is_empty(), "it ended within an event");
                return None;
            };
            self.rest.extend(frame.unwrap().into_data().unwrap_or_default());
        }
    }

    fn take(&mut self) -> Option<Event> {
        if self.format != Format::Protobuf {
            let end = self.rest.iter().position(|byte| *byte == b'\n')?;
            let line = self.rest.split_to(end + 1);
            return Some(Event::of_json(&serde_json::from_slice(&line).unwrap()));
        }
        let head = *self.rest.first_chunk::<4>()?;
        let length = usize::try_from(u32::from_be_bytes(head)).unwrap();
        if self.rest.len() < 4 + length {
            return None;
        }
        self.rest.advance(4);
        Some(Event::of_protobuf(&self.rest.split_to(length)))
    }

    fn note(&mut self, event: &Event) {
        self.seen.push(format!("{} {}", event.kind, event.key));
        match event.kind.as_str() {
            "ADDED" | "MODIFIED" => drop(self.held.insert(event.key.clone(), event.version.clone())),
            _ => drop(self.held.remove(&event.key)),
        }
    }

    /// Reads until all of these were told.
    pub(crate) async fn until(&mut self, told: &[String]) {
        while !told.iter().all(|event| self.seen.contains(event)) {
            let event = self.next().await;
            let error = event.is_none_or(|event| event.kind == "ERROR");
            assert!(!error, "it ended before {told:?}; seen: {:?}", self.seen);
        }
    }

    /// Reads until a client of it holds this.
    pub(crate) async fn holds(&mut self, wanted: &Held) {
        let deadline = Instant::now() + patience();
        while self.held != *wanted {
            let event = timeout_at(deadline, self.next()).await.ok().flatten();
            let goes_on = event.is_some_and(|event| event.kind != "ERROR");
            assert!(goes_on, "{:?} is not {wanted:?}; seen: {:?}", self.held, self.seen);
        }
    }

    /// It says that the position is over, and ends.
    pub(crate) async fn is_expired(&mut self) {
        let event = self.next().await.unwrap();
        assert_eq!((event.kind.as_str(), event.code), ("ERROR", 410), "{event:?}");
        assert!(self.next().await.is_none());
    }
}

impl Event {
    fn of_json(event: &Value) -> Self {
        // A row of a Table has the object in it; a Status comes as itself.
        let object = event.pointer("/object/rows/0/object").unwrap_or(&event["object"]);
        Self {
            kind: event["type"].as_str().unwrap().to_owned(),
            key: key(object),
            version: version(object),
            code: object["code"].as_i64().unwrap_or_default(),
        }
    }

    fn of_protobuf(event: &[u8]) -> Self {
        let event = Frame::decode(event).unwrap();
        let object = &event.object.raw;
        let (meta, mut code) = (protobuf::<Object>(object).metadata, 0);
        if event.kind == "ERROR" {
            code = protobuf::<Status>(object).code.into();
        }
        Self {
            kind: event.kind,
            key: format!("{}/{}", meta.namespace, meta.name),
            version: (meta.uid, meta.resource_version),
            code,
        }
    }
}

/// What is in the envelope of an API server: `k8s`, a NUL, and an `Unknown`.
fn protobuf<M: prost::Message + Default>(bytes: &[u8]) -> M {
    let inner = Unknown::decode(bytes.strip_prefix(b"k8s\0").unwrap()).unwrap();
    M::decode(&*inner.raw).unwrap()
}

#[derive(prost::Message)]
struct Frame {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(message, required, tag = "2")]
    object: Raw,
}

#[derive(prost::Message)]
struct Raw {
    #[prost(bytes = "vec", tag = "1")]
    raw: Vec<u8>,
}

#[derive(prost::Message)]
struct Unknown {
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(prost::Message)]
struct Object {
    #[prost(message, required, tag = "1")]
    metadata: ObjectMeta,
}

#[derive(prost::Message)]
struct ObjectMeta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
    #[prost(string, tag = "6")]
    resource_version: String,
}

#[derive(prost::Message)]
struct List {
    #[prost(message, required, tag = "1")]
    metadata: ListMeta,
}

#[derive(prost::Message)]
struct ListMeta {
    #[prost(string, tag = "2")]
    resource_version: String,
}

#[derive(prost::Message)]
struct Status {
    #[prost(int32, tag = "6")]
    code: i32,
}
