//! A watch on the merged view, read event by event.

use std::time::Duration;

use bytes::BytesMut;
use http::{Method, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use portolan_testbed::patience;
use portolan_tests::door::{Door, Line, request};
use portolan_tests::world::World;
use serde_json::{Value, json};

pub(crate) struct Watcher {
    _line: Line,
    answer: Response<Incoming>,
    rest: BytesMut,
}

/// How a watch ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// END_STREAM: a client resumes from where it was.
    Cleanly,
    /// Reset, or with its connection.
    Broken(String),
}

impl Watcher {
    /// Watches the ConfigMaps of a namespace from now on.
    pub(crate) async fn start(door: &Door, namespace: &str) -> anyhow::Result<Self> {
        let line = door.open().await?;
        let path =
            format!("/api/v1/namespaces/{namespace}/configmaps?watch=true&resourceVersion=0&allowWatchBookmarks=true");
        let answer = line.send(request(Method::GET, &path, &[], &[])?).await?;
        anyhow::ensure!(answer.status() == 200, "the watch is answered {}", answer.status());
        Ok(Self {
            _line: line,
            answer,
            rest: BytesMut::new(),
        })
    }

    /// Reads until an event about the object of this name.
    pub(crate) async fn sees(&mut self, name: &str) {
        let seeing = async {
            loop {
                match self.next().await {
                    Ok(event) if event["object"]["metadata"]["name"] == name => return,
                    Ok(event) if event["type"] == "ERROR" => panic!("before {name} the watch is told {event}"),
                    Ok(_) => {}
                    Err(ended) => panic!("the watch ended ({ended:?}) before it saw {name}"),
                }
            }
        };
        let seen = tokio::time::timeout(patience(), seeing).await;
        assert!(seen.is_ok(), "the watch does not see {name}");
    }

    /// Reads to its end.
    pub(crate) async fn ended(mut self, within: Duration) -> Ended {
        let ending = async {
            loop {
                if let Err(ended) = self.next().await {
                    return ended;
                }
            }
        };
        tokio::time::timeout(within, ending).await.expect("the watch goes on")
    }

    async fn next(&mut self) -> Result<Value, Ended> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line = self.rest.split_to(end + 1);
                return Ok(serde_json::from_slice(&line).unwrap());
            }
            match self.answer.frame().await {
                None => return Err(Ended::Cleanly),
                Some(Err(error)) => return Err(Ended::Broken(error.to_string())),
                Some(Ok(frame)) => self.rest.extend_from_slice(&frame.into_data().unwrap_or_default()),
            }
        }
    }
}

/// Makes a ConfigMap in a member, past the router.
pub(crate) async fn make(world: &World, member: &str, namespace: &str, name: &str) {
    let door = world.direct_door(member).await.unwrap();
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let answer = door
        .post(&format!("/api/v1/namespaces/{namespace}/configmaps"), &object)
        .await
        .unwrap();
    assert_eq!(answer.status, 201, "{}", answer.message());
}
