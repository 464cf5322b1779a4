//! What probes and hooks do: run a command in the container, ask it by HTTP, connect to it, or just wait.

use std::net::Ipv4Addr;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join;
use k8s_openapi::api::core::v1::{Container, ExecAction, HTTPGetAction, LifecycleHandler, Probe, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;

use crate::get::{self, Get};
use crate::machine::{Inside, Machine};
use crate::process::Process;

/// Of what a command says when it fails.
const MAX_OUTPUT_BYTES: u64 = 1024;

/// Something done to a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Exec(Vec<String>),
    Get(Get),
    Connect(String, u16),
    Sleep(Duration),
}

impl Action {
    /// What a probe does. The error says what this node does not know, or the Pod does not say.
    pub(crate) fn of_probe(probe: &Probe, container: &Container, pod_ip: Ipv4Addr) -> Result<Self, String> {
        if let Some(exec) = &probe.exec {
            Ok(exec_of(exec))
        } else if let Some(get) = &probe.http_get {
            get_of(get, container, pod_ip)
        } else if let Some(socket) = &probe.tcp_socket {
            connect_of(socket, container, pod_ip)
        } else {
            Err("a probe is of a kind that this node does not have".to_owned())
        }
    }

    /// What a hook does; see [`Self::of_probe`].
    pub(crate) fn of_hook(hook: &LifecycleHandler, container: &Container, pod_ip: Ipv4Addr) -> Result<Self, String> {
        if let Some(exec) = &hook.exec {
            Ok(exec_of(exec))
        } else if let Some(get) = &hook.http_get {
            get_of(get, container, pod_ip)
        } else if let Some(sleep) = &hook.sleep {
            Ok(Self::Sleep(Duration::from_secs(
                sleep.seconds.try_into().unwrap_or_default(),
            )))
        } else {
            Err("a hook is of a kind that this node does not have".to_owned())
        }
    }

    /// Does it, for as long as it takes; the error says how it failed. Dropping this ends it.
    pub(crate) async fn run(&self, machine: &Machine, inside: &Inside) -> Result<(), String> {
        match self {
            Self::Exec(command) => exec(machine, inside, command).await,
            Self::Get(get) => get::get(get).await,
            Self::Connect(host, port) => {
                let connected = TcpStream::connect((host.as_str(), *port)).await;
                connected.map(drop).map_err(|error| format!("{host}:{port}: {error}"))
            }
            Self::Sleep(time) => {
                tokio::time::sleep(*time).await;
                Ok(())
            }
        }
    }

    /// [`Self::run`] that fails if it is not over in time.
    pub(crate) async fn run_within(&self, limit: Duration, machine: &Machine, inside: &Inside) -> Result<(), String> {
        let outcome = tokio::time::timeout(limit, self.run(machine, inside)).await;
        outcome.unwrap_or_else(|_| Err(format!("not within {limit:?}")))
    }
}

async fn exec(machine: &Machine, inside: &Inside, command: &[String]) -> Result<(), String> {
    let line = machine.beside(inside, command);
    let spawned = Process::spawn(&machine.tools.sh, &line);
    let (mut process, output) = spawned.map_err(|error| format!("{error:#}"))?;
    let mut reading = std::pin::pin!(join(read(output.stdout), read(output.stderr)).fuse());
    let mut said = None;
    let code = loop {
        tokio::select! {
            code = process.wait() => break code,
            all = &mut reading => said = Some(all),
        }
    };
    // Whoever it left behind must not be waited for.
    drop(process);
    let (out, err) = match said {
        Some(said) => said,
        None => reading.await,
    };
    if code == 0 {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&[out, err].concat()).trim().to_owned();
    Err(format!("exit code {code}: {said}"))
}

/// The beginning of what a stream has. The rest is read all the same: a program must not wait for its reader.
async fn read(mut stream: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut said = Vec::new();
    // An error is an end.
    let _ = (&mut stream).take(MAX_OUTPUT_BYTES).read_to_end(&mut said).await;
    let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    said
}

fn exec_of(exec: &ExecAction) -> Action {
    Action::Exec(exec.command.clone().unwrap_or_default())
}

fn get_of(get: &HTTPGetAction, container: &Container, pod_ip: Ipv4Addr) -> Result<Action, String> {
    let headers = get.http_headers.iter().flatten();
    Ok(Action::Get(Get {
        tls: get.scheme.as_deref() == Some("HTTPS"),
        host: host(get.host.as_ref(), pod_ip),
        port: port(&get.port, container)?,
        path: get.path.clone().unwrap_or_else(|| "/".to_owned()),
        headers: headers
            .map(|header| (header.name.clone(), header.value.clone()))
            .collect(),
    }))
}

fn connect_of(socket: &TCPSocketAction, container: &Container, pod_ip: Ipv4Addr) -> Result<Action, String> {
    let host = host(socket.host.as_ref(), pod_ip);
    Ok(Action::Connect(host, port(&socket.port, container)?))
}

fn host(given: Option<&String>, pod_ip: Ipv4Addr) -> String {
    let given = given.filter(|host| !host.is_empty()).cloned();
    given.unwrap_or_else(|| pod_ip.to_string())
}

fn port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            let named = ports.find(|port| port.name.as_ref() == Some(name));
            named.map(|port| port.container_port)
        }
    };
    let number = number.and_then(|number| u16::try_from(number).ok());
    number.ok_or_else(|| format!("container {:?} has no port {port:?}", container.name))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const IP: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 7);

    fn probe(probe: Value) -> Result<Action, String> {
        let container = json!({"name": "main", "ports": [{"name": "web", "containerPort": 8080}]});
        let container = serde_json::from_value(container).unwrap();
        Action::of_probe(&serde_json::from_value(probe).unwrap(), &container, IP)
    }

    #[test]
    fn ports_have_names_and_hosts_are_the_pod() {
        let Ok(Action::Get(get)) = probe(json!({"httpGet": {"port": "web", "path": "/healthz", "scheme": "HTTPS"}}))
        else {
            panic!("no request");
        };
        assert_eq!(
            (get.tls, get.host.as_str(), get.port, get.path.as_str()),
            (true, "10.244.1.7", 8080, "/healthz")
        );
        let connect = Action::Connect("10.244.1.7".to_owned(), 9);
        assert_eq!(probe(json!({"tcpSocket": {"port": 9}})), Ok(connect));
        assert!(
            probe(json!({"tcpSocket": {"port": "none"}}))
                .unwrap_err()
                .contains("none")
        );
        assert!(probe(json!({"tcpSocket": {"port": 70000}})).is_err());
        assert_eq!(
            probe(json!({"exec": {"command": ["true"]}})),
            Ok(Action::Exec(vec!["true".to_owned()]))
        );
        assert!(probe(json!({"grpc": {"port": 9}})).is_err());
    }
}
