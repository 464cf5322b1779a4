//! Replicas of the operators: each has nothing but a kubeconfig, and is started again when it ends.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::ground::{Caller, Ground};
use crate::operators::Operator;
use crate::places::HOME;

/// As a kubelet does it, sooner.
const STARTED_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Of the tokens of replicas, which are good for an hour.
const RENEWED_AFTER: Duration = Duration::from_mins(20);
/// Runs a program that ends when our end of the pipe closes, however that comes.
const LEASH: &str = r#"
exec 3<&0 </dev/null
"$@" 3<&- &
child=$!
{ read -r line <&3; kill -9 $child; } 2>/dev/null &
reader=$!
wait $child
code=$?
kill $reader 2>/dev/null
exit $code
"#;

/// All replicas of all operators, until it is dropped.
pub(crate) struct Replicas {
    /// How often one was started again.
    pub(crate) restarts: Arc<AtomicUsize>,
    _running: JoinSet<()>,
}

impl Replicas {
    pub(crate) async fn start(ground: &'static Ground, operators: &[Operator]) -> anyhow::Result<Self> {
        let (restarts, mut running) = (Arc::<AtomicUsize>::default(), JoinSet::new());
        for operator in operators {
            for ordinal in 0..2 * operator.replicas {
                let caller = ground.caller(operator, ordinal).await?;
                let command = operator.command(&caller.file("kubeconfig"))?;
                let restarts = restarts.clone();
                running.spawn(async move {
                    tokio::join!(runs(command, &caller, &restarts), renews(&caller));
                });
            }
        }
        Ok(Self {
            restarts,
            _running: running,
        })
    }
}

async fn renews(caller: &Caller) {
    loop {
        sleep(RENEWED_AFTER).await;
        caller.renew().await.unwrap();
    }
}

async fn runs((program, arguments): (PathBuf, Vec<String>), caller: &Caller, restarts: &AtomicUsize) {
    loop {
        let output = std::fs::File::options()
            .create(true)
            .append(true)
            .open(caller.file("log"))
            .unwrap();
        let mut child = Command::new("sh")
            .args(["-c", LEASH, "sh"])
            .arg(&program)
            .args(&arguments)
            .env("KUBECONFIG", caller.file("kubeconfig"))
            .env("POD_NAMESPACE", HOME)
            .stdin(Stdio::piped())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        // Else `wait` would close it.
        let leash = child.stdin.take();
        let _ = child.wait().await;
        drop(leash);
        restarts.fetch_add(1, Ordering::Relaxed);
        sleep(STARTED_AGAIN_AFTER).await;
    }
}
