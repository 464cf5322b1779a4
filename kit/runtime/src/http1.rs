//! One HTTP/1.1 connection with pages on it, until it ends or the program does. Callers: `admin`, the hub's webhook.

use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::middleware::map_response;
use axum::response::Response;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// A client that has not sent its headers by then is cut off, idle kept-alive connections included.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// After `stop` a connection without a request is kept as long: one that is on its way meanwhile would fail, and nobody repeats a write.
const LAST_REQUEST_WITHIN: Duration = Duration::from_secs(2);

/// Answers what comes over `stream` until it ends; after `stop` the next answer is its last, and says so. A client that has said all
/// still hears its answer.
pub async fn serve<S>(stream: S, router: Router, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stopped = stop.clone();
    let router = router.layer(map_response(move |mut response: Response| {
        if stopped.is_cancelled() {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        std::future::ready(response)
    }));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let outcome = tokio::select! {
        outcome = &mut connection => outcome,
        () = stop.cancelled() => {
            if let Ok(outcome) = timeout(LAST_REQUEST_WITHIN, &mut connection).await {
                outcome
            } else {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "a connection ended");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_on_its_way_when_it_stops_is_answered_and_is_the_last() {
        let (mut client, stream) = duplex(4096);
        let (stop, mut serving) = (CancellationToken::new(), JoinSet::new());
        serving.spawn(serve(stream, Router::new().route("/", get("said")), stop.clone()));
        for stopped in [false, true] {
            if stopped {
                stop.cancel();
                tokio::time::sleep(LAST_REQUEST_WITHIN / 2).await;
            }
            client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            let mut answer = vec![0; 4096];
            let read = client.read(&mut answer).await.unwrap();
            let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
            assert!(answer.ends_with("said"), "{answer}");
            assert_eq!(answer.contains("connection: close"), stopped, "{answer}");
        }
        serving.join_next().await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_ends_soon_after_it_stops() {
        let (mut client, stream) = duplex(4096);
        let stop = CancellationToken::new();
        let mut serving = JoinSet::new();
        serving.spawn(serve(stream, Router::new(), stop.clone()));
        tokio::time::sleep(LAST_REQUEST_WITHIN).await;
        stop.cancel();
        let begun = tokio::time::Instant::now();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        assert!(begun.elapsed() >= LAST_REQUEST_WITHIN, "{:?}", begun.elapsed());
        serving.join_next().await.unwrap().unwrap();
    }
}
