//! A merged watch over a WebSocket, as fabric8 opens every watch: the router answers 101 itself, members stream as ever.
//!
//! Each event is one message: text for JSON, binary for protobuf without its length. Such a watch ends with a close frame,
//! unless a fault that was ordered cuts it. Frames that clients send mean nothing but for ping and close. Callers: `edge` answers and runs.

use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use futures::{SinkExt as _, StreamExt as _};
use http::header::{CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use http::request::Parts;
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::MissedTickBehavior;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};

use crate::resource::upstream::{Body, BodyError};
use crate::value::fault::Fault;
use crate::value::media::Media;

/// For the client's side to follow: it has only to read our answer's head.
const SWITCH_TIMEOUT: Duration = Duration::from_secs(30);
/// Between pings; two without an answer, and the client is gone.
const PING_EVERY: Duration = Duration::from_secs(30);
/// For one write: as long as a silent client gets. While a write waits, neither the watch's end nor a drain is seen.
const WRITE_TIMEOUT: Duration = Duration::from_mins(1);
/// What a client may send: it has nothing to say.
const LARGEST_MESSAGE: usize = 64 << 10;
/// Written in one go.
const WRITE_BUFFER: usize = 128 << 10;

/// A client that asked for a WebSocket.
pub(crate) struct Switch {
    client: OnUpgrade,
    accept: HeaderValue,
}

/// A watch on its way into a WebSocket, to be run once the client has been answered.
pub(crate) struct Socket {
    client: OnUpgrade,
    body: Body,
    format: Media,
}

impl Switch {
    /// What of the request asks for it. 400 if it asks in a way that cannot be followed.
    pub(crate) fn of(head: &mut Parts) -> Result<Self, Fault> {
        let refuse = |what: &str| Err(Fault::BadRequest(format!("a watch by WebSocket {what}")));
        if head.headers.get(SEC_WEBSOCKET_VERSION).map(HeaderValue::as_bytes) != Some(b"13") {
            return refuse("needs Sec-WebSocket-Version 13");
        }
        let Some(key) = head.headers.get(SEC_WEBSOCKET_KEY) else {
            return refuse("needs a Sec-WebSocket-Key");
        };
        let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes()));
        let client = head.extensions.remove::<OnUpgrade>();
        match (accept, client) {
            (Ok(accept), Some(client)) => Ok(Self { client, accept }),
            _ => refuse("is an upgrade of HTTP/1.1: connect with it"),
        }
    }

    /// A watch that has begun goes into the socket; any other answer is an answer.
    pub(crate) fn switch(self, response: Response<Body>) -> (Response<Body>, Option<Socket>) {
        if response.status() != StatusCode::OK {
            return (response, None);
        }
        let (mut head, body) = response.into_parts();
        let format = Media::of_content(&head.headers).unwrap_or_default();
        head.headers.remove(http::header::CONTENT_TYPE);
        head.status = StatusCode::SWITCHING_PROTOCOLS;
        head.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        head.headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        head.headers.insert(SEC_WEBSOCKET_ACCEPT, self.accept);
        let socket = Socket {
            client: self.client,
            body,
            format,
        };
        (Response::from_parts(head, Body::Empty), Some(socket))
    }
}

impl Socket {
    /// Carries events until one side ends; returns how many bytes of them. The body is left where it ended.
    pub(crate) async fn run(mut self) -> (std::io::Result<u64>, Body) {
        let switched = tokio::time::timeout(SWITCH_TIMEOUT, self.client).await;
        let upgraded = match switched {
            Ok(Ok(upgraded)) => upgraded,
            Ok(Err(error)) => return (Err(std::io::Error::other(error)), self.body),
            Err(error) => return (Err(error.into()), self.body),
        };
        let config = WebSocketConfig::default()
            .max_message_size(Some(LARGEST_MESSAGE))
            .max_frame_size(Some(LARGEST_MESSAGE))
            .write_buffer_size(WRITE_BUFFER);
        let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
        let carried = carry(socket, &mut self.body, self.format).await;
        (carried.map_err(std::io::Error::other), self.body)
    }
}

async fn carry<S>(mut socket: WebSocketStream<S>, body: &mut Body, format: Media) -> Result<u64, Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut events = Events::new(format);
    let mut pings = tokio::time::interval(PING_EVERY);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut silent, mut sent) = (0_u32, 0);
    loop {
        tokio::select! {
            frame = body.frame() => {
                let frame = match frame {
                    Some(Ok(frame)) => frame,
                    // A connection that breaks says no more.
                    Some(Err(error @ BodyError::Injected(_))) => return Err(Error::Io(std::io::Error::other(error))),
                    None | Some(Err(_)) => {
                        close(&mut socket).await;
                        return Ok(sent);
                    }
                };
                let Ok(data) = frame.into_data() else { continue };
                sent += data.len() as u64;
                events.push(data);
                in_time(async {
                    while let Some(message) = events.next() {
                        socket.feed(message).await?;
                    }
                    socket.flush().await
                })
                .await?;
            }
            message = socket.next() => match message {
                None | Some(Ok(Message::Close(_)) | Err(Error::ConnectionClosed)) => return Ok(sent),
                Some(Ok(_)) => silent = 0,
                Some(Err(error)) => return Err(error),
            },
            _ = pings.tick() => {
                if silent >= 2 {
                    return Err(gone());
                }
                silent += 1;
                in_time(socket.send(Message::Ping(Bytes::new()))).await?;
            }
        }
    }
}

async fn in_time(write: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    tokio::time::timeout(WRITE_TIMEOUT, write)
        .await
        .unwrap_or_else(|_| Err(gone()))
}

/// A client that does not read, or answers no ping.
fn gone() -> Error {
    Error::Io(std::io::ErrorKind::TimedOut.into())
}

async fn close<S>(socket: &mut WebSocketStream<S>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let frame = CloseFrame {
        code: CloseCode::Normal,
        reason: Utf8Bytes::from_static(""),
    };
    // Whoever does not take it is gone.
    let _ = tokio::time::timeout(SWITCH_TIMEOUT, socket.close(Some(frame))).await;
}

/// Events out of chunks of any cut.
struct Events {
    format: Media,
    /// Not ended yet.
    rest: BytesMut,
    /// The chunk that is taken apart; whole events of it are not copied.
    chunk: Bytes,
}

impl Events {
    fn new(format: Media) -> Self {
        Self {
            format,
            rest: BytesMut::new(),
            chunk: Bytes::new(),
        }
    }

    fn push(&mut self, chunk: Bytes) {
        if self.rest.is_empty() {
            self.chunk = chunk;
        } else {
            self.rest.extend_from_slice(&chunk);
            self.chunk = self.rest.split().freeze();
        }
    }

    fn next(&mut self) -> Option<Message> {
        loop {
            let length = match self.format {
                Media::Json => memchr::memchr(b'\n', &self.chunk).map(|at| at + 1),
                Media::Protobuf => frame_length(&self.chunk),
            };
            let Some(length) = length.filter(|length| *length <= self.chunk.len()) else {
                self.rest.extend_from_slice(&self.chunk);
                self.chunk.clear();
                return None;
            };
            let mut event = self.chunk.split_to(length);
            match self.format {
                // Members send JSON, which is UTF-8; what is not cannot be sent as text.
                Media::Json => match Utf8Bytes::try_from(event) {
                    Ok(text) => return Some(Message::Text(text)),
                    Err(error) => tracing::warn!(%error, "an event is no text"),
                },
                Media::Protobuf => {
                    event.advance(LENGTH);
                    return Some(Message::Binary(event));
                }
            }
        }
    }
}

/// Before each event.
const LENGTH: usize = 4;

fn frame_length(bytes: &[u8]) -> Option<usize> {
    let (length, _) = bytes.split_first_chunk::<LENGTH>()?;
    Some(LENGTH + usize::try_from(u32::from_be_bytes(*length)).ok()?)
}

#[cfg(test)]
mod tests {
    use http_body::Frame;
    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::resource::upstream::Merged;

    fn messages(format: Media, whole: &[u8], cut: usize) -> Vec<Message> {
        let mut events = Events::new(format);
        let mut all = Vec::new();
        for chunk in whole.chunks(cut) {
            events.push(Bytes::copy_from_slice(chunk));
            all.extend(std::iter::from_fn(|| events.next()));
        }
        all
    }

    #[test]
    fn one_event_is_one_message_however_they_are_cut() {
        let json = b"{\"a\":1}\n{\"b\":2}\n";
        let protobuf = b"\0\0\0\x02ab\0\0\0\0\0\0\0\x01c";
        for cut in 1..=17 {
            let texts = messages(Media::Json, json, cut);
            assert_eq!(
                texts,
                [Message::text("{\"a\":1}\n"), Message::text("{\"b\":2}\n")],
                "{cut}"
            );
            let binaries = messages(Media::Protobuf, protobuf, cut);
            let expected = ["ab", "", "c"].map(|text| Message::binary(text.as_bytes().to_vec()));
            assert_eq!(binaries, expected, "{cut}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_given_up() {
        let (near, _far) = tokio::io::duplex(1 << 10);
        let socket = WebSocketStream::from_raw_socket(near, Role::Server, None).await;
        let event = format!("{}\n", "x".repeat(1 << 20));
        let mut body = Body::from(Bytes::from(event));
        let carried = tokio::time::timeout(2 * WRITE_TIMEOUT, carry(socket, &mut body, Media::Json)).await;
        let error = carried.expect("in time").unwrap_err();
        assert!(
            matches!(&error, Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut),
            "{error:?}"
        );
    }

    /// The bytes that a client reads of a watch that ends so.
    async fn read(end: Option<BodyError>) -> Vec<u8> {
        let (near, mut far) = tokio::io::duplex(1 << 16);
        let socket = WebSocketStream::from_raw_socket(near, Role::Server, None).await;
        let frames = std::iter::once(Ok(Frame::data(Bytes::from_static(b"{}\n")))).chain(end.map(Err));
        let frames = http_body_util::StreamBody::new(futures::stream::iter(frames));
        let mut body = Body::Merged(Merged::new(frames));
        let _ = carry(socket, &mut body, Media::Json).await;
        let mut read = Vec::new();
        far.read_to_end(&mut read).await.unwrap();
        read
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_was_ordered_to_break_says_no_more() {
        const CLOSE: [u8; 4] = [0x88, 2, 3, 0xe8];
        assert!(read(None).await.ends_with(&CLOSE));
        let cut = read(Some(BodyError::Injected("ops/fj/cut".to_owned()))).await;
        assert!(cut.windows(3).any(|event| event == b"{}\n"), "{cut:?}");
        assert!(!cut.windows(4).any(|event| event == CLOSE), "{cut:?}");
    }
}
