//! Reading ahead on members whose bodies the test hands out chunk by chunk.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BytesMut;
use http_body::Frame;
use portolan_merge::list::{ListFormat, ListLeg, ListMerge, ListOptions, MergedMeta};
use serde_json::Value;
use tokio::sync::mpsc;

use super::*;
use crate::resource::upstream::Merged;
use crate::stage::fanout::list::body::{Broken, ListBody};

const PATIENCE: Duration = Duration::from_secs(10);
/// Enough.
const AHEAD: usize = 128 << 20;

/// A member's body as the router reads it.
struct Scripted {
    chunks: mpsc::UnboundedReceiver<Bytes>,
    taken: Arc<AtomicUsize>,
}

impl http_body::Body for Scripted {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let chunk = ready!(self.chunks.poll_recv(cx));
        self.taken
            .fetch_add(chunk.as_ref().map_or(0, Bytes::len), Ordering::Relaxed);
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

/// The other end of it.
struct Member {
    chunks: mpsc::UnboundedSender<Bytes>,
    taken: Arc<AtomicUsize>,
}

impl Member {
    fn send(&self, text: impl Into<Bytes>) {
        self.chunks.send(text.into()).unwrap();
    }

    fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

/// A list over east and west, and the bytes that all lists may keep.
fn list(all: usize) -> ([Member; 2], ListBody, Arc<Semaphore>) {
    let all = Arc::new(Semaphore::new(all));
    let names = ["east", "west"];
    let both = names.map(|name| {
        let (chunks, receiver) = mpsc::unbounded_channel();
        let taken = Arc::new(AtomicUsize::new(0));
        let scripted = Scripted {
            chunks: receiver,
            taken: taken.clone(),
        };
        let body = Body::Merged(Merged::new(scripted));
        let member = MemberBody::new(&name.into(), body, PATIENCE);
        (Member { chunks, taken }, member)
    });
    let [(east, east_body), (west, west_body)] = both;
    let legs = names.map(|name| ListLeg {
        cluster: name.into(),
        filter: None,
    });
    let options = ListOptions {
        unique: false,
        cluster_column: true,
        hide_objects: false,
        max_item_bytes: 64 << 20,
    };
    let merge = ListMerge::new(ListFormat::Json, legs.into(), options);
    let meta = |_: &[_]| {
        Ok(MergedMeta {
            remaining: None,
            shard_selector: None,
            resource_version: "7".to_owned(),
            continue_: None,
        })
    };
    let ahead = ReadAhead::new(all.clone());
    let body = ListBody::new(merge, vec![east_body, west_body], ahead, Box::new(meta));
    ([east, west], body, all)
}

fn pods(name: &str) -> String {
    let item = format!(r#"{{"metadata":{{"name":"{name}"}}}}"#);
    format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"5"}},"items":[{item}]}}"#)
}

async fn next(body: &mut ListBody) -> Option<Result<Bytes, Broken>> {
    std::future::poll_fn(|cx| body.poll_chunk(cx)).await
}

/// Whether nothing comes before the members say more.
fn is_silent(body: &mut ListBody) -> bool {
    let mut cx = Context::from_waker(std::task::Waker::noop());
    body.poll_chunk(&mut cx).is_pending()
}

async fn names(mut body: ListBody) -> Vec<String> {
    let mut whole = BytesMut::new();
    while let Some(chunk) = next(&mut body).await {
        whole.extend_from_slice(&chunk.unwrap());
    }
    let list: Value = serde_json::from_slice(&whole).unwrap();
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn later_members_are_read_while_the_first_is_silent() {
    let ([east, west], mut body, all) = list(AHEAD);
    let text = pods("b");
    let (begin, end) = text.split_at(20);
    west.send(begin.to_owned());
    west.send(end.to_owned());
    assert!(is_silent(&mut body));
    assert_eq!(west.taken(), text.len());
    assert_eq!(
        all.available_permits(),
        AHEAD - text.len() - 2 * CHUNK_BYTES,
        "what is kept is counted"
    );
    east.send(pods("a"));
    drop((east, west));
    assert_eq!(names(body).await, ["a", "b"]);
    assert_eq!(all.available_permits(), AHEAD);
}

#[tokio::test]
async fn what_one_list_and_what_all_keep_is_bounded() {
    let frame = Bytes::from(vec![b' '; 256 << 10]);
    for (all, bound) in [(AHEAD, LIST_BYTES), (4 << 20, 1 << 20), (0, 0)] {
        let ([_east, west], mut body, _all) = list(all);
        for _ in 0..200 {
            west.send(frame.clone());
        }
        assert!(is_silent(&mut body) && is_silent(&mut body));
        // Without what the chunks take beside their bytes, which is less than one more.
        assert_eq!(west.taken(), bound.saturating_sub(frame.len()), "of {all}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_has_its_own_time_and_no_other() {
    let ([east, west], body, _all) = list(AHEAD);
    let slow = async {
        tokio::time::sleep(PATIENCE * 9 / 10).await;
        east.send(pods("a"));
        drop(east);
        tokio::time::sleep(PATIENCE * 9 / 10).await;
        west.send(pods("b"));
        drop(west);
    };
    let (listed, ()) = tokio::join!(names(body), slow);
    assert_eq!(listed, ["a", "b"], "a slow neighbour takes nothing of it");

    let ([east, west], mut body, _all) = list(AHEAD);
    east.send(pods("a"));
    next(&mut body).await.unwrap().unwrap();
    tokio::time::sleep(PATIENCE * 2).await;
    drop(east);
    west.send(pods("b"));
    let silent = async {
        while let Some(chunk) = next(&mut body).await {
            chunk?;
        }
        Ok(())
    };
    let Err(Broken::Body(1, BodyError::Deadline { cluster })) = silent.await else {
        panic!("west never ends, and its client has read slowly");
    };
    assert_eq!(&*cluster, "west");
}
