//! `portolanctl explain`: asks a router for the plan of a request, because the router is who decides it.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::cli::ExplainArgs;
use crate::dev::fleet::Fleet;

const TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_MAX: usize = 1 << 20;

pub(crate) async fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let admin = match &args.dir {
        Some(dir) => Fleet::read(dir)?.router_admin,
        None => args.router_admin.clone(),
    };
    let query = format!(
        "/explain?verb={}&path={}&as={}",
        encode(&args.verb),
        encode(&args.path),
        encode(&args.caller)
    );
    let (code, body) = get(&admin, &query)
        .await
        .with_context(|| format!("cannot ask the router's admin port at {admin}"))?;
    let answer: Value = serde_json::from_slice(&body)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).trim().to_owned()));
    if code != 200 {
        bail!(
            "the router answered {code}: {}",
            answer["error"].as_str().or(answer.as_str()).unwrap_or("no reason")
        );
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&answer)?);
    } else {
        print_plan(&answer);
    }
    Ok(())
}

/// One GET of an admin server: plain HTTP, bounded in time and size.
pub(crate) async fn get(address: &str, path_and_query: &str) -> anyhow::Result<(u16, Bytes)> {
    let exchange = async {
        let stream = TcpStream::connect(address).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let request = http::Request::get(path_and_query)
            .header(http::header::HOST, address)
            .body(Empty::<Bytes>::new())?;
        let answer = async move {
            let response = sender.send_request(request).await?;
            let code = response.status().as_u16();
            let body = Limited::new(response.into_body(), ANSWER_MAX)
                .collect()
                .await
                .map_err(|error| anyhow::anyhow!(error))?;
            anyhow::Ok((code, body.to_bytes()))
        };
        let (_, answer) = tokio::join!(connection, answer);
        answer
    };
    tokio::time::timeout(TIMEOUT, exchange)
        .await
        .context("no answer in time")?
}

fn print_plan(answer: &Value) {
    let (caller, request) = (&answer["caller"], &answer["request"]);
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    if caller["pod"].is_string() {
        let pod = [&caller["homeCluster"], &caller["namespace"], &caller["pod"]]
            .map(text)
            .join("/");
        println!(
            "caller   {pod}, ServiceAccount {}, shard {}",
            text(&caller["serviceAccount"]),
            text(&caller["binding"])
        );
    } else {
        println!("caller   {}", compact(caller));
    }
    println!(
        "request  {} {} ({} view)",
        text(&request["verb"]),
        text(&request["path"]),
        text(&request["view"])
    );
    println!("plan     {}", plan_line(&answer["plan"]));
    println!("why");
    for reason in answer["why"].as_array().into_iter().flatten() {
        println!("  - {}", text(reason));
    }
}

fn plan_line(plan: &Value) -> String {
    let forward = &plan["forward"];
    match (forward["cluster"].as_str(), forward["actAs"].as_str()) {
        (Some(cluster), Some(user)) => {
            let selector = forward["selector"]
                .as_str()
                .map(|selector| format!(", only {selector}"));
            format!("forward to {cluster} as {user}{}", selector.unwrap_or_default())
        }
        _ => compact(plan),
    }
}

/// JSON on one line, without what is absent or empty.
fn compact(value: &Value) -> String {
    fn strip(value: &Value) -> Value {
        match value {
            Value::Object(entries) => {
                let empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
                let kept = entries.iter().filter(|(_, value)| !empty(value));
                Value::Object(kept.map(|(key, value)| (key.clone(), strip(value))).collect())
            }
            other => other.clone(),
        }
    }
    strip(value).to_string()
}

/// Percent-encodes a query value (RFC 3986 unreserved stay).
fn encode(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}
