//! The client of a merged watch.

use super::*;

/// What a client reads.
pub(super) struct Watch {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Body,
    /// What is no whole event yet.
    pub(super) rest: Vec<u8>,
}

impl Watch {
    /// The next event; `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let Some(frame) = tokio::time::timeout(PATIENCE, self.body.frame()).await.unwrap() else {
                assert_eq!(self.rest, b"", "the stream ended within an event");
                return None;
            };
            self.rest.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
    }

    pub(super) async fn expect(&mut self, kind: &str, name: &str) {
        let event = self.next().await.unwrap();
        assert_eq!(
            (event["type"].as_str(), event["object"]["metadata"]["name"].as_str()),
            (Some(kind), Some(name)),
            "{event}"
        );
    }

    /// The next event, which is a bookmark; its version.
    pub(super) async fn bookmark(&mut self) -> String {
        let event = self.next().await.unwrap();
        assert_eq!(event["type"], "BOOKMARK", "{event}");
        event["object"]["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    pub(super) async fn whole(self) -> Value {
        let bytes = self.body.collect().await.unwrap().to_bytes();
        serde_json::from_slice(&bytes).unwrap()
    }
}
