//! Gzip of merged answers, for clients that take it: members are asked for plain bytes, because they are looked into.
//!
//! Like an API server: only what is larger than 128 KiB, at the fastest level. It compresses as it is read.

use std::io::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body::{Body, Frame};

use crate::resource::upstream::BodyError;

/// `defaultGzipThresholdBytes` of an API server.
pub(super) const THRESHOLD: usize = 128 << 10;
/// Compressed bytes of one frame, about.
const FRAME: usize = 16 << 10;
/// Plain bytes compressed between two looks at the client: some milliseconds.
const TURN: usize = 256 << 10;

/// A body, compressed.
pub(super) struct Gzip<B> {
    plain: B,
    /// Until the plain body has ended.
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl<B> Gzip<B> {
    pub(super) fn new(plain: B) -> Self {
        Self {
            plain,
            encoder: Some(GzEncoder::new(Vec::with_capacity(FRAME), Compression::fast())),
        }
    }
}

impl<B: Body<Data = Bytes, Error = BodyError> + Unpin> Body for Gzip<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let mut turn = 0;
        loop {
            let Some(encoder) = &mut this.encoder else {
                return Poll::Ready(None);
            };
            if encoder.get_ref().len() >= FRAME {
                let compressed = std::mem::replace(encoder.get_mut(), Vec::with_capacity(FRAME * 2));
                return Poll::Ready(Some(Ok(Frame::data(compressed.into()))));
            }
            if turn >= TURN {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match ready!(Pin::new(&mut this.plain).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap_or_default();
                    turn += data.len();
                    encoder.write_all(&data).map_err(in_memory)?;
                }
                Some(Err(error)) => {
                    this.encoder = None;
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    let last = this
                        .encoder
                        .take()
                        .map(GzEncoder::finish)
                        .transpose()
                        .map_err(in_memory)?;
                    return Poll::Ready(last.map(|last| Ok(Frame::data(last.into()))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.encoder.is_none()
    }
}

/// Writing to memory does not fail.
fn in_memory(error: std::io::Error) -> BodyError {
    BodyError::Client(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use http_body_util::{BodyExt as _, Full};

    use super::*;

    #[tokio::test]
    async fn what_goes_in_comes_out() {
        for size in [0, 1, 1_000, 700_000] {
            let plain: Vec<u8> = (0..size)
                .map(|at: u32| at.to_le_bytes()[0] ^ (at / 977).to_le_bytes()[0])
                .collect();
            let body = Full::new(Bytes::from(plain.clone())).map_err(|never| match never {});
            let packed = Gzip::new(body).collect().await.unwrap().to_bytes();
            let mut read = Vec::new();
            flate2::read::GzDecoder::new(&*packed).read_to_end(&mut read).unwrap();
            assert!(read == plain, "{size}");
        }
    }
}
