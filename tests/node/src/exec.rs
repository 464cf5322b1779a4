//! `kubectl exec`: a program beside a container's, with its streams on a WebSocket (`v5.channel.k8s.io`). No terminals.

use std::process::Stdio;

use anyhow::{Context, Result, bail};
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};

use crate::process::Line;

/// The protocol of the streams, the only one that clients of today prefer.
const PROTOCOL: &str = "v5.channel.k8s.io";
/// Channels, the first byte of each message.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
/// Says that a channel, the next byte, has ended.
const CLOSE: u8 = 255;
/// Of a stream in one message.
const CHUNK: usize = 16 * 1024;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// What a client wants to be run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) command: Vec<String>,
    stdin: bool,
    tty: bool,
}

impl Wanted {
    /// As the API server puts it.
    pub(crate) fn parse(query: &[(String, String)]) -> Self {
        let is = |name: &str| {
            query
                .iter()
                .any(|(key, value)| key == name && ["1", "true"].contains(&value.as_str()))
        };
        let command = query.iter().filter(|(key, _)| key == "command");
        Self {
            command: command.map(|(_, value)| value.clone()).collect(),
            stdin: is("input"),
            tty: is("tty"),
        }
    }
}

/// The answer to an upgrade, and what shall run once it is sent.
pub(crate) fn accept(
    mut request: Request,
    wanted: &Wanted,
    line: &Line,
) -> Result<(Response, impl Future<Output = Result<()>> + use<>)> {
    let key = header(request.headers(), SEC_WEBSOCKET_KEY.as_str())
        .context("not a WebSocket")?
        .to_owned();
    let offered = header(request.headers(), SEC_WEBSOCKET_PROTOCOL.as_str()).unwrap_or_default();
    if !offered.split(',').any(|one| one.trim() == PROTOCOL) {
        bail!("this node speaks {PROTOCOL} only");
    }
    if wanted.tty {
        bail!("this node has no terminals");
    }
    let child = spawn(line, wanted.stdin)?;
    let upgrade = hyper::upgrade::on(&mut request);
    let response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_ACCEPT, derive_accept_key(key.as_bytes()))
        .header(SEC_WEBSOCKET_PROTOCOL, PROTOCOL)
        .body(Body::empty())?;
    Ok((response, attach(upgrade, child)))
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// It ends with the container at the latest, whose processes it is among.
fn spawn(line: &Line, stdin: bool) -> Result<Child> {
    let (program, args) = line.argv.split_first().context("nothing to run")?;
    let mut command = Command::new(program);
    command
        .args(args)
        .env_clear()
        .envs(&line.env)
        .stdin(if stdin { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    command.spawn().with_context(|| format!("starting {program}"))
}

async fn attach(upgrade: OnUpgrade, mut child: Child) -> Result<()> {
    let stream = TokioIo::new(upgrade.await?);
    let socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
    let (mut to, from) = socket.split();
    let stdin = child.stdin.take();
    tokio::select! {
        outcome = forward(&mut child, &mut to) => outcome,
        // The client is gone; what it has started goes too.
        () = feed(from, stdin) => Ok(()),
    }
}

/// All that the program writes, and how it ended.
async fn forward(child: &mut Child, to: &mut SplitSink<Socket, Message>) -> Result<()> {
    let mut stdout = child.stdout.take().context("no stdout")?;
    let mut stderr = child.stderr.take().context("no stderr")?;
    let (mut out, mut err) = (vec![0; CHUNK], vec![0; CHUNK]);
    let (mut more_out, mut more_err) = (true, true);
    while more_out || more_err {
        let (channel, bytes) = tokio::select! {
            read = stdout.read(&mut out), if more_out => (STDOUT, &out[..read?]),
            read = stderr.read(&mut err), if more_err => (STDERR, &err[..read?]),
        };
        if bytes.is_empty() {
            *(if channel == STDOUT {
                &mut more_out
            } else {
                &mut more_err
            }) = false;
        } else {
            to.send(message(channel, bytes)).await?;
        }
    }
    let code = child.wait().await?.code().unwrap_or(255);
    to.send(message(STATUS, status(code).to_string().as_bytes())).await?;
    // Clients take a close without a code for a broken stream.
    let normal = CloseFrame {
        code: CloseCode::Normal,
        reason: "".into(),
    };
    to.send(Message::Close(Some(normal))).await?;
    Ok(())
}

/// Gives the program what the client sends, until the client is gone.
async fn feed(mut from: SplitStream<Socket>, mut stdin: Option<ChildStdin>) {
    while let Some(Ok(message)) = from.next().await {
        match message.into_data().as_ref() {
            [STDIN, bytes @ ..] => {
                if let Some(pipe) = &mut stdin
                    && pipe.write_all(bytes).await.is_err()
                {
                    stdin = None;
                }
            }
            [CLOSE, STDIN, ..] => stdin = None,
            _ => {}
        }
    }
}

fn message(channel: u8, bytes: &[u8]) -> Message {
    Message::binary([&[channel], bytes].concat())
}

/// How a program ended, in the words of the API.
fn status(code: i32) -> serde_json::Value {
    if code == 0 {
        return json!({"metadata": {}, "status": "Success"});
    }
    json!({
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": format!("command terminated with non-zero exit code {code}"),
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    })
}
