//! The daemon behind `up`: a testbed and a Unix socket. It needs no signal handling, for its end is the end of
//! everything it runs, even by SIGKILL.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use portolan_testbed::{Cluster, Image, Options, Pods, Testbed};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::UpFlags;
use super::control::{Answer, ClusterReport, Request, socket};

/// Runs until it is told to end, or until the `up` that started it ends before all is ready.
pub(super) async fn serve(dir: &Path, flags: UpFlags) -> Result<()> {
    // The kernel lets go of the lock when we end, however that comes.
    let lock = File::create(dir.join("daemon.lock"))?;
    if lock.try_lock().is_err() {
        bail!("another testbed is starting or running in {}", dir.display());
    }
    tokio::select! {
        ended = run(dir, flags) => ended,
        Ok(()) = watch_stdin() => bail!("`up` was interrupted"),
    }
}

async fn run(dir: &Path, flags: UpFlags) -> Result<()> {
    let UpFlags {
        names: clusters,
        pods,
        nodes,
        images,
        address,
        apiserver_args,
    } = flags;
    let pods = if pods { Pods::Pretended } else { Pods::None };
    let images: Vec<_> = images.iter().map(|(name, program)| Image::new(name, program)).collect();
    let nodes = clusters.iter().filter(|_| nodes);
    let options = Options {
        nodes: nodes.map(|name| (name.clone(), images.clone())).collect(),
        clusters,
        pods,
        address,
        dir: Some(dir.to_owned()),
        apiserver_args,
        ..Options::default()
    };
    let testbed = Arc::new(Testbed::start_with(options).await?);
    let path = socket(dir);
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).with_context(|| format!("listening on {}", path.display()))?;
    let mut asker = answer_all(listener, &testbed).await;
    let _ = fs::remove_file(&path);
    drop(testbed);
    reply(&mut asker, Ok(Vec::new())).await
}

/// Completes when stdin ends before a line was read from it, and never otherwise.
fn watch_stdin() -> oneshot::Receiver<()> {
    let (abandoned, told) = oneshot::channel();
    std::thread::spawn(move || {
        let read = io::stdin().read_line(&mut String::new());
        if matches!(read, Ok(0) | Err(_)) {
            let _ = abandoned.send(());
        }
    });
    told
}

/// Carries out requests until one says `Down`; returns who said it.
async fn answer_all(listener: UnixListener, testbed: &Arc<Testbed>) -> UnixStream {
    let mut sessions = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    sessions.spawn(session(stream, testbed.clone()));
                }
            }
            Some(ended) = sessions.join_next() => {
                if let Ok(Ok(Some(stream))) = ended {
                    sessions.shutdown().await;
                    return stream;
                }
            }
        }
    }
}

/// One request; gives the connection back if it said `Down`, which is answered when all is gone.
async fn session(mut stream: UnixStream, testbed: Arc<Testbed>) -> Result<Option<UnixStream>> {
    let mut line = String::new();
    BufReader::new(&mut stream).read_line(&mut line).await?;
    let request = serde_json::from_str(&line)?;
    if let Request::Down = request {
        return Ok(Some(stream));
    }
    let done = carry_out(request, &testbed).await;
    let answer = done.map(|()| testbed.clusters().iter().map(report).collect());
    reply(&mut stream, answer.map_err(|error| format!("{error:#}"))).await?;
    Ok(None)
}

async fn carry_out(request: Request, testbed: &Testbed) -> Result<()> {
    let find = |name: &str| {
        testbed
            .find(name)
            .with_context(|| format!("there is no cluster called {name}"))
    };
    match request {
        Request::Status | Request::Down => Ok(()),
        Request::Kill(name) => find(&name)?.kill().await,
        Request::Restart(name) => find(&name)?.restart().await,
        Request::Freeze(name) => find(&name)?.freeze().await,
        Request::Thaw(name) => find(&name)?.thaw().await,
        Request::Fault(name, fault) => find(&name)?.fault(fault).await,
    }
}

fn report(cluster: &Cluster) -> ClusterReport {
    ClusterReport {
        name: cluster.name().to_owned(),
        url: cluster.url(),
        direct_url: cluster.direct_url(),
        kubeconfig: cluster.kubeconfig_path().to_owned(),
        direct_kubeconfig: cluster.direct_kubeconfig_path().to_owned(),
        running: cluster.apiserver_pid().is_some(),
        fault: cluster.current_fault(),
    }
}

async fn reply(stream: &mut UnixStream, answer: Answer) -> Result<()> {
    let line = serde_json::to_string(&answer)? + "\n";
    Ok(stream.write_all(line.as_bytes()).await?)
}
