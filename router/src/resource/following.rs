//! A file that follows what a part of the router was told, so that its next process need not be told again. Who owns the
//! words writes them; here is only when. Callers: `access` for the hub's decisions, `routing` for what members serve.

use std::time::Duration;

use portolan_runtime::Tasks;

/// Between two looks whether there is something to write. What is lost by a crash in between is asked for again.
const INTERVAL: Duration = Duration::from_secs(2);
/// Between two tries to write, after some that failed.
const LONGEST_INTERVAL: Duration = Duration::from_mins(1);

/// Writes whenever `version`, which begins at 0, has changed, until cancelled, and a last time then. `write` is blocking and
/// says whether it succeeded.
pub(crate) async fn follow<W>(version: impl Fn() -> u64, write: W, tasks: Tasks)
where
    W: Fn() -> bool + Clone + Send + 'static,
{
    let stop = tasks.token();
    let (mut written, mut pause) = (0, INTERVAL);
    loop {
        let stopped = stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none();
        let now = version();
        if now != written {
            // Blocking: the file is synced. It ends by itself, also when this task is cut.
            if let Ok(true) = tokio::task::spawn_blocking(write.clone()).await {
                (written, pause) = (now, INTERVAL);
            } else {
                pause = (pause * 2).min(LONGEST_INTERVAL);
            }
        }
        if stopped {
            return;
        }
    }
}
