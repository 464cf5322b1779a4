//! Waiting for what a step shows. Called by every step.

use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_mins(3);
const POLL: Duration = Duration::from_millis(200);

/// Probes until it goes well.
pub(crate) async fn wait_for<T, F, Fut>(what: &str, mut probe: F) -> anyhow::Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = anyhow::Result<T>>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        match probe().await {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context(format!("waited {} s for {what}", PATIENCE.as_secs())));
            }
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}
