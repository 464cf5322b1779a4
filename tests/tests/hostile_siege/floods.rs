//! What anybody can do who reaches the port: silence, noise, and HTTP/2 by the letter and against its spirit.
//!
//! Frames are written by hand (RFC 9113, RFC 7541), because no client library would.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use portolan_tests::door::Door;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::tenant::Attacks;
use crate::usage::Usage;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longest that one connection goes on: who is not cut off begins anew.
const ONE: Duration = Duration::from_secs(2);

/// Of memory, that one flood may cost: eight connections have 800 requests under way, of some 40 KiB in a build for tests, and what the
/// allocator keeps beside. A flood that is not bounded sends a hundred thousand.
const FLOOD_MIB: f64 = 64.0;

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// What is sent at a time on one connection, by number.
type Wave = fn(u32) -> Vec<u8>;

/// Each flood by name, and its waves, one after the other.
const FLOODS: [(&str, Wave); 5] = [
    ("pings", |_| frame(PING, 0, 0, &[7; 8]).repeat(100)),
    ("settings", |_| frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]).repeat(100)),
    ("rapid resets", |wave| {
        let stream = |at| 2 * (wave * 50 + at) + 1;
        let reset = |at| {
            [
                frame(HEADERS, END_HEADERS | END_STREAM, stream(at), &head()),
                frame(RST_STREAM, 0, stream(at), &[0, 0, 0, 8]),
            ]
        };
        (0..50).flat_map(reset).flatten().collect()
    }),
    ("continuations", |wave| {
        let more = frame(CONTINUATION, 0, 1, &literal("x-more", &"m".repeat(100)).repeat(100));
        if wave == 0 {
            [frame(HEADERS, END_STREAM, 1, &head()), more].concat()
        } else {
            more
        }
    }),
    ("heads that unfold", |wave| {
        let stream = 2 * wave + 1;
        // One long header into the table of the connection, then a thousand references of one byte to it.
        let block = [head(), indexed("x-bomb", &"b".repeat(3000)), vec![0xbe; 1000]].concat();
        frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)
    }),
];

pub(crate) fn attacks(all: &mut Attacks, door: &Door, stop: &Arc<AtomicBool>) {
    for (what, wave) in FLOODS {
        all.spawn(flooded(what, door.clone(), stop.clone(), wave));
    }
    all.spawn(silent(door.clone(), stop.clone()));
}

/// Each flood by itself on eight connections: what the router took for it.
pub(crate) async fn one_by_one(door: &Door, router: i32) {
    for (what, wave) in FLOODS {
        let (stop, mut all) = (Arc::new(AtomicBool::new(false)), Attacks::new());
        let before = Usage::of(router).unwrap();
        for _ in 0..8 {
            all.spawn(flooded(what, door.clone(), stop.clone(), wave));
        }
        tokio::time::sleep(ONE).await;
        let used = Usage::of(router).unwrap().since(&before);
        stop.store(true, Ordering::Relaxed);
        let waves: usize = all.join_all().await.iter().map(|(_, times)| times).sum();
        println!("  {what}, 8 connections, {} s: {waves} waves; {used}", ONE.as_secs());
        assert!(waves > 0, "{what} was never tried");
        assert!(used.resident_mib < FLOOD_MIB, "{what}: {used}");
    }
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// GET https / of nobody, all from the static table but for the authority.
fn head() -> Vec<u8> {
    vec![0x82, 0x87, 0x84, 0x41, 1, b'a']
}

/// A header that is not put into the table.
fn literal(name: &str, value: &str) -> Vec<u8> {
    [&[0][..], &text(name), &text(value)].concat()
}

/// A header that is put into the table.
fn indexed(name: &str, value: &str) -> Vec<u8> {
    [&[0x40][..], &text(name), &text(value)].concat()
}

/// A string without Huffman coding, its length in HPACK's integers of seven bits and more.
fn text(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text.len();
    if rest < 127 {
        out.push(u8::try_from(rest).unwrap());
    } else {
        out.push(127);
        rest -= 127;
        while rest >= 128 {
            out.push(u8::try_from(rest % 128).unwrap() | 128);
            rest /= 128;
        }
        out.push(u8::try_from(rest).unwrap());
    }
    out.extend_from_slice(text.as_bytes());
    out
}

/// Waves of frames, and nothing that comes back is read, until the server ends the connection.
async fn flooded(what: &'static str, door: Door, stop: Arc<AtomicBool>, wave: Wave) -> (&'static str, usize) {
    let mut times = 0;
    while !stop.load(Ordering::Relaxed) {
        let one = async {
            let mut stream = door.connect("h2").await?;
            stream
                .write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat())
                .await?;
            for number in 0.. {
                stream.write_all(&wave(number)).await?;
                times += 1;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            anyhow::Ok(())
        };
        // However it ends: the next one begins.
        drop(tokio::time::timeout(ONE, one).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    (what, times)
}

/// Connections that say nothing, held until there are many.
async fn silent(door: Door, stop: Arc<AtomicBool>) -> (&'static str, usize) {
    let (mut times, mut held) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        if held.len() >= 300 {
            held.clear();
        }
        if let Ok(Ok(mut stream)) = tokio::time::timeout(ONE, door.connect("h2")).await {
            let mut begun = [0];
            drop(tokio::time::timeout(Duration::from_millis(5), stream.read(&mut begun)).await);
            held.push(stream);
            times += 1;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    ("silent connections", times)
}
