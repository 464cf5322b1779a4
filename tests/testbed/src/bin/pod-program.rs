//! What runs in the Pods of the Node's own tests: a server that tells what it sees of its container, and does there what it
//! is asked for, one request after the other. Not for anything else.
//!
//! `pod-program PORT [ADDRESS]`; each path is a command and its arguments: `/read/etc/hostname`, `/env/HOME`,
//! `/write/tmp/down`, `/remove/tmp/down`, `/dial/10.65.0.2:80`, `/lookup/web.default.svc.cluster.local:80`, `/exit/3`, `/status/503`, and `/unless/tmp/down`, which is
//! 200 as long as there is no such file.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

/// How long a connection that nobody answers is waited for.
const DIAL: Duration = Duration::from_secs(2);

fn main() -> std::io::Result<()> {
    let mut words = std::env::args().skip(1);
    let port = words.next().and_then(|port| port.parse().ok()).unwrap_or(8080);
    let address = words.next().unwrap_or_else(|| "0.0.0.0".to_owned());
    let listener = TcpListener::bind((address.as_str(), port))?;
    writeln!(std::io::stdout(), "listening on {address}:{port}")?;
    for stream in listener.incoming() {
        let _ = stream.and_then(answer);
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let head = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let path = head.split(' ').nth(1).unwrap_or("/");
    let path = path.strip_prefix('/').unwrap_or(path);
    let (command, argument) = path.split_once('/').unwrap_or((path, ""));
    let file = format!("/{argument}");
    let (code, text) = match command {
        "read" => told(std::fs::read_to_string(file)),
        "env" => told(
            std::env::var_os(argument)
                .ok_or("not set")
                .map(|value| value.to_string_lossy().into_owned()),
        ),
        "write" => told(std::fs::write(file, "").map(|()| String::new())),
        "remove" => told(std::fs::remove_file(file).map(|()| String::new())),
        "dial" => told(dial(argument).map(|()| "connected".to_owned())),
        "lookup" => told(
            argument
                .to_socket_addrs()
                .map(|mut found| found.next().map_or_else(String::new, |first| first.ip().to_string())),
        ),
        "status" => (argument.parse().unwrap_or(400), String::new()),
        "unless" => (if Path::new(&file).exists() { 503 } else { 200 }, String::new()),
        "exit" => std::process::exit(argument.parse().unwrap_or(1)),
        _ => (404, format!("unknown: {command}\n")),
    };
    write!(
        stream,
        "HTTP/1.1 {code} -\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    )
}

fn told<E: ToString>(outcome: Result<String, E>) -> (u16, String) {
    match outcome {
        Ok(text) => (200, text),
        Err(error) => (500, error.to_string()),
    }
}

fn dial(address: &str) -> Result<(), String> {
    let address: SocketAddr = address.parse().map_err(|_| "no address".to_owned())?;
    let stream = TcpStream::connect_timeout(&address, DIAL);
    stream.map(drop).map_err(|error| error.to_string())
}
