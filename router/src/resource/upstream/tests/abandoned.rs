//! Requests that are abandoned by the thousand, at a member that answers them none the less.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;

use super::super::scripted::{acceptor, spawn, target};
use super::*;

/// More than a connection of this library may reset by itself, unless it is told otherwise.
const MANY: usize = 1_500;
const AT_A_TIME: usize = 50;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// As RFC 9113 numbers it.
const CANCEL: [u8; 4] = [0, 0, 0, 8];
/// `:status: 200`, as RFC 7541 lists it.
const OK: [u8; 1] = [0x88];

/// A member that reads frames, and answers a request when it is abandoned, or at once when it is told to.
#[derive(Default)]
struct Late {
    prompt: AtomicBool,
    asked: AtomicUsize,
    abandoned: AtomicUsize,
    connections: AtomicUsize,
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

impl Late {
    async fn serve(&self, mut connection: TlsStream<TcpStream>) -> std::io::Result<()> {
        self.connections.fetch_add(1, Ordering::SeqCst);
        let mut preface = [0; 24];
        connection.read_exact(&mut preface).await?;
        connection.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
        loop {
            let mut head = [0; 9];
            connection.read_exact(&mut head).await?;
            let [a, b, c, kind, flags, s0, s1, s2, s3] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            connection.read_exact(&mut payload).await?;
            let stream = u32::from_be_bytes([s0, s1, s2, s3]);
            let answers = match kind {
                SETTINGS if flags & ACK == 0 => frame(SETTINGS, ACK, 0, &[]),
                PING if flags & ACK == 0 => frame(PING, ACK, 0, &payload),
                HEADERS => {
                    self.asked.fetch_add(1, Ordering::SeqCst);
                    let prompt = self.prompt.load(Ordering::SeqCst);
                    if prompt {
                        frame(HEADERS, END_HEADERS | END_STREAM, stream, &OK)
                    } else {
                        Vec::new()
                    }
                }
                RST_STREAM if payload == CANCEL => {
                    self.abandoned.fetch_add(1, Ordering::SeqCst);
                    let mut late = frame(HEADERS, END_HEADERS, stream, &OK);
                    late.extend(frame(DATA, END_STREAM, stream, b"{}"));
                    late
                }
                _ => Vec::new(),
            };
            connection.write_all(&answers).await?;
            connection.flush().await?;
        }
    }
}

#[tokio::test]
async fn late_answers_to_abandoned_requests_end_no_connection() {
    let (acceptor, ca_pem) = acceptor(portolan_runtime::tls::ALPN_GRPC);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let late = Arc::new(Late::default());
    let member = late.clone();
    let _serving = spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, member) = (acceptor.clone(), member.clone());
            spawn(async move {
                let _ = member.serve(acceptor.accept(stream).await.unwrap()).await;
            });
        }
    });
    let all = upstreams([target("east", &[address], &ca_pem)]);
    let east = all.get("east").unwrap();
    for round in 1..=MANY / AT_A_TIME {
        let mut asked = Box::pin(join_all((0..AT_A_TIME).map(|_| east.send(false, false, get("/api")))));
        let sent = async {
            while late.asked.load(Ordering::SeqCst) < round * AT_A_TIME {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            answers = &mut asked => panic!("an answer before it was abandoned: {:?}", answers.first()),
            () = sent => {}
        }
        drop(asked);
        eventually("the member is told", || {
            late.abandoned.load(Ordering::SeqCst) == round * AT_A_TIME
        })
        .await;
    }
    late.prompt.store(true, Ordering::SeqCst);
    let answer = east.send(false, false, get("/api")).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(late.connections.load(Ordering::SeqCst), 1, "the same connection");
}
