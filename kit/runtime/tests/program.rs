//! A whole program in miniature, ended by real signals. One test: signals are the process's, not a test's.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};
use portolan_runtime::admin::{AdminPages, AdminServer};
use portolan_runtime::metrics::Registry;
use portolan_runtime::tasks::StopCause;
use portolan_runtime::telemetry::{self, TelemetryError};
use portolan_runtime::{Readiness, Tasks, TelemetryArgs, tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(20);

async fn fetch(addr: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(addr).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_starts_serves_is_told_to_stop_and_drains() {
    tls::install_crypto_provider();
    tls::install_crypto_provider();
    let telemetry = telemetry::init("portolan-test", &TelemetryArgs::default()).unwrap();
    let again = telemetry::init("portolan-test", &TelemetryArgs::default());
    assert!(matches!(again, Err(TelemetryError::Twice)));
    let (tasks, readiness) = (Tasks::new(), Readiness::new());
    let admin = AdminServer::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let addr = admin.addr;
    let pages = AdminPages::new(readiness.clone(), Registry::new("test"), telemetry.clone());
    admin.serve(&tasks, pages);

    let part = readiness.task("listener");
    let serving = tasks.child();
    let inside = serving.clone();
    serving.spawn_critical("listener", async move {
        inside.cancelled().await;
        Ok(())
    });
    assert!(fetch(addr, "/readyz").await.unwrap().starts_with("HTTP/1.1 503"));
    part.ready();
    assert!(fetch(addr, "/readyz").await.unwrap().starts_with("HTTP/1.1 200"));

    let stopped = tasks.until_stopped();
    tokio::pin!(stopped);
    // Polled once, so that the handler is there before the signal.
    assert!(futures::poll!(&mut stopped).is_pending());
    raise(Signal::SIGTERM).unwrap();
    assert_eq!(stopped.await, StopCause::Terminate);

    readiness.begin_shutdown();
    assert!(serving.shutdown(PATIENCE).await.is_clean());
    let text = fetch(addr, "/readyz").await.unwrap();
    assert!(
        text.starts_with("HTTP/1.1 503") && text.contains("[-]shutdown waiting for"),
        "{text}"
    );

    // A second signal while a deaf task is waited for.
    tasks.spawn("deaf", std::future::pending());
    let started = Instant::now();
    let last = tasks.shutdown(PATIENCE);
    tokio::pin!(last);
    assert!(futures::poll!(&mut last).is_pending());
    raise(Signal::SIGINT).unwrap();
    let report = last.await;
    assert!(started.elapsed() < PATIENCE / 2);
    // Others may have been about to end at that moment, and are reported too.
    assert_eq!(report.cut.get("deaf"), Some(&1));
    telemetry.shutdown().await;
}
