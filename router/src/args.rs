//! What a user types (`Args`) and what it means (`Config`). Checks everything and reports all faults at once; reads no
//! file and binds nothing. Callers: `main`, and `app::build` takes the `Config`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use portolan_crds::duration::parse_duration;
use portolan_crds::labels;
use portolan_crds::names::is_dns_label;
use portolan_runtime::TelemetryArgs;
use portolan_runtime::admin::AdminArgs;
use portolan_runtime::tls::IdentityFiles;
use portolan_wire::client::host_of;
use portolan_wire::v1::RouterPod;
use thiserror::Error;

use crate::edge::TailSettings;
use crate::resource::enroll::Proof;
use crate::resource::load;
use crate::stage::identify::IdentityConfig;

/// Loopback: what the admin server tells of callers and plans is for this machine.
const DEFAULT_ADMIN_BIND: &str = "127.0.0.1:8444";

/// Of errors and slow requests, spans a second: a budget, not a way to record everything.
const MAX_TAIL_RATE: f64 = 1000.0;

/// Of a client connection that is told to go: below it, handshakes would take more than requests.
const MIN_CONNECTION_AGE: Duration = Duration::from_secs(1);

/// Memory of requests that wait: with less a burst of some hundred clients would be refused.
pub(crate) const MIN_WAITING: usize = 16 << 20;

/// One API server endpoint for an operator, many member clusters behind it.
#[derive(Debug, Clone, Parser)]
#[command(name = "portolan-router", version, mut_arg("admin_bind", |arg| arg.default_value(DEFAULT_ADMIN_BIND)))]
pub struct Args {
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    hub: HubArgs,
    #[command(flatten)]
    identity: IdentityArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    tail: TailArgs,
    #[command(flatten)]
    admin: AdminArgs,
    /// Logs and traces.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

#[derive(Debug, Clone, clap::Args)]
struct ListenArgs {
    /// Where operators and people connect (TLS).
    #[arg(long, env = "PORTOLAN_BIND", default_value = "0.0.0.0:8443")]
    bind: SocketAddr,
    /// Write the bound addresses to this file as JSON: {"bind": "…", "admin": "…"}.
    #[arg(long, env = "PORTOLAN_ADDRESSES_FILE", value_name = "FILE")]
    addresses_file: Option<PathBuf>,
    /// Serving certificate chain, PEM; followed when it changes. Default: the identity that the hub issued.
    #[arg(long, env = "PORTOLAN_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Key of --tls-cert, PEM.
    #[arg(long, env = "PORTOLAN_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Serve the explicit view of member M at host M.SUFFIX too, for tools that drop the path of a server address; the
    /// serving certificate needs the name *.SUFFIX (portolanctl router-token --san).
    #[arg(long, env = "PORTOLAN_EXPLICIT_HOST", value_name = "SUFFIX")]
    explicit_host: Option<String>,
}

#[derive(Debug, Clone, clap::Args)]
struct HubArgs {
    /// The hub's gRPC endpoint, host:port.
    #[arg(long, env = "PORTOLAN_HUB", value_name = "HOST:PORT")]
    hub: String,
    /// The hub's CA certificate, PEM: the only one trusted for the hub, and for the client certificates of people.
    #[arg(long, env = "PORTOLAN_HUB_CA", value_name = "FILE")]
    hub_ca: PathBuf,
    /// Bootstrap token of this router; needed until it has its identity.
    #[arg(long, env = "PORTOLAN_BOOTSTRAP_TOKEN_FILE", value_name = "FILE")]
    bootstrap_token_file: Option<PathBuf>,
    /// Bound ServiceAccount token to enrol with instead, for a router in a Pod of --cluster.
    #[arg(long, env = "PORTOLAN_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The member cluster that issued --token-file; portolan-hub: the cluster that the hub runs in.
    #[arg(long, env = "PORTOLAN_CLUSTER", value_name = "NAME")]
    cluster: Option<String>,
    /// Name of the Pod that this router runs in, if that is one in the hub's own namespace: with the Pod the hub forgets the
    /// router. By the downward API: metadata.name.
    #[arg(long, env = "POD_NAME", value_name = "NAME", requires = "pod_uid")]
    pod_name: Option<String>,
    /// Uid of that Pod. By the downward API: metadata.uid.
    #[arg(long, env = "POD_UID", value_name = "UID", requires = "pod_name")]
    pod_uid: Option<String>,
    /// Folder for the identity and the last good state, both with their secrets (mode 0600).
    #[arg(long, env = "PORTOLAN_STATE_DIR", value_name = "DIR")]
    state_dir: PathBuf,
    /// At SIGTERM, once all is answered, the hub forgets this router and nothing to serve by is left in --state-dir: for one whose
    /// folder ends with its Pod. Started again in the same Pod it enrols anew, with --token-file.
    #[arg(long, env = "PORTOLAN_FORGET_AT_END", requires = "token_file")]
    forget_at_end: bool,
    /// For tests of upgrades: read and write cursors as routers did before format 2.
    #[arg(long, env = "PORTOLAN_CURSOR_FORMAT_1", hide = true)]
    cursor_format_1: bool,
}

#[derive(Debug, Clone, clap::Args)]
struct IdentityArgs {
    /// Audience that callers' tokens must be for: the one that the hub has (--audience).
    #[arg(long, env = "PORTOLAN_AUDIENCE", default_value = labels::DEFAULT_AUDIENCE)]
    audience: String,
    /// Take tokens for the API server's own audience too: such a token works at the member directly as well.
    #[arg(long, env = "PORTOLAN_ACCEPT_API_AUDIENCE")]
    accept_api_audience: bool,
}

#[derive(Debug, Clone, clap::Args)]
struct LimitArgs {
    /// Client connections held at a time.
    #[arg(long, env = "PORTOLAN_MAX_CONNECTIONS", default_value_t = 20_000)]
    max_connections: usize,
    /// Age at which a client connection is told to go, such as 30m, a tenth more or less: its client connects anew, so that
    /// routers that were started later are found. What runs on it goes on to its own end, watches too. 0: never.
    #[arg(long, env = "PORTOLAN_MAX_CONNECTION_AGE", default_value = "0", value_parser = parse_duration)]
    max_connection_age: Duration,
    /// Requests served at a time, watches and upgrades apart.
    #[arg(long, env = "PORTOLAN_MAX_REQUESTS", default_value_t = 4_000)]
    max_requests: usize,
    /// Watches and upgrades served at a time.
    #[arg(long, env = "PORTOLAN_MAX_STREAMS", default_value_t = 50_000)]
    max_streams: usize,
    /// Memory of requests that wait for their turn: with more they are answered 429. Some 22 KiB each: a router that starts
    /// again has a request of each client waiting. At least 16Mi; what is used is an eighth of the memory limit at most, if
    /// there is one. Half of it is for callers that are known, of which one shard has seven eighths and one caller three
    /// quarters; half for the others, and half of that for those whose token one member is to review.
    #[arg(long, env = "PORTOLAN_MAX_WAITING", value_name = "BYTES", default_value = "512Mi", value_parser = parse_bytes)]
    max_waiting: u64,
    /// Memory that this process may use, such as 512Mi; besides the limit of its cgroup, which it finds by itself.
    #[arg(long, env = "PORTOLAN_MEMORY_LIMIT", value_name = "BYTES", value_parser = parse_bytes)]
    memory_limit: Option<u64>,
    /// Part of the memory limit in use from which on lists are answered 429; a third and two thirds of the rest more, starts
    /// of watches and single requests too; never Leases, nor what watches that run ask. 1: never.
    #[arg(long, env = "PORTOLAN_SHED_MEMORY", value_name = "PART", default_value_t = 0.8)]
    shed_memory: f64,
    /// The same by how late timers of this router wake up, smoothed over about a second: lists from this on, starts of
    /// watches from twice, single requests from three times as much. 0: never.
    #[arg(long, env = "PORTOLAN_SHED_DELAY", default_value = "500ms", value_parser = parse_duration)]
    shed_delay: Duration,
    /// Time for a client's TLS handshake.
    #[arg(long, env = "PORTOLAN_HANDSHAKE_TIMEOUT", default_value = "10s", value_parser = parse_duration)]
    handshake_timeout: Duration,
    /// Time for a request's head to arrive.
    #[arg(long, env = "PORTOLAN_HEAD_TIMEOUT", default_value = "20s", value_parser = parse_duration)]
    head_timeout: Duration,
    /// Time for a member's answer to a request that is no watch and no upgrade.
    #[arg(long, env = "PORTOLAN_REQUEST_TIMEOUT", default_value = "60s", value_parser = parse_duration)]
    request_timeout: Duration,
    /// Time to connect to a member.
    #[arg(long, env = "PORTOLAN_CONNECT_TIMEOUT", default_value = "5s", value_parser = parse_duration)]
    connect_timeout: Duration,
    /// Time that running requests get to end at shutdown.
    #[arg(long, env = "PORTOLAN_DRAIN_TIMEOUT", default_value = "20s", value_parser = parse_duration)]
    drain_timeout: Duration,
}

#[derive(Debug, Clone, clap::Args)]
struct TailArgs {
    /// Errors and slow requests that --trace-sample-ratio left out are kept as one span each: at most so many a second on
    /// average, ten seconds' worth at once, and of one shard no more than half of it. 0: none.
    #[arg(
        long,
        env = "PORTOLAN_TRACE_TAIL_RATE",
        value_name = "SPANS",
        default_value_t = 5.0,
        allow_negative_numbers = true
    )]
    trace_tail_rate: f64,
    /// A request that takes so long is slow; of a watch or an upgrade, to the head of its answer. 0: none is.
    #[arg(long, env = "PORTOLAN_TRACE_SLOW", default_value = "2s", value_parser = parse_duration)]
    trace_slow: Duration,
}

/// Checked settings. Holds paths of secrets, never a secret: its `Debug` is printed at start.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where operators and people connect.
    pub(crate) bind: SocketAddr,
    /// Where the admin server listens.
    pub(crate) admin_bind: SocketAddr,
    /// Whether `/configz` and `/explain` answer other machines too.
    pub(crate) admin_remote: bool,
    /// Where to tell the bound addresses.
    pub(crate) addresses_file: Option<PathBuf>,
    /// Serving certificate of the user's own; `None`: the enrolment identity.
    pub(crate) serving: Option<IdentityFiles>,
    /// `<member>.<this>` is the explicit view of a member: lower case, no dot at its ends.
    pub(crate) explicit_host: Option<String>,
    /// The part of clients' traces that is recorded; `None`: nothing is.
    pub(crate) sampling: Option<f64>,
    /// What is kept of the others.
    pub(crate) tail: TailSettings,
    /// How to reach the hub and to become known to it.
    pub(crate) hub: HubConfig,
    /// Whose tokens are taken.
    pub(crate) identity: IdentityConfig,
    /// Bounds.
    pub(crate) limits: Limits,
    /// Deadlines.
    pub(crate) timeouts: Timeouts,
}

/// How to reach the hub and to become known to it.
#[derive(Debug, Clone)]
pub(crate) struct HubConfig {
    /// `host:port`.
    pub(crate) endpoint: String,
    /// PEM file of the hub CA.
    pub(crate) ca: PathBuf,
    /// What to enrol with; `None` works once the identity is in the state folder.
    pub(crate) proof: Option<Proof>,
    /// Where it runs.
    pub(crate) pod: Option<RouterPod>,
    /// Identity and last good state.
    pub(crate) state_dir: PathBuf,
    /// It is forgotten when it ends.
    pub(crate) forget_at_end: bool,
    /// Cursors of format 2 are not read, as by routers of before.
    pub(crate) held_to_format_1: bool,
}

/// Bounds of the data path.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// Client connections.
    pub(crate) connections: usize,
    /// Requests in flight that are neither watch nor upgrade.
    pub(crate) requests: usize,
    /// Watches and upgrades in flight.
    pub(crate) streams: usize,
    /// Memory of requests that wait, in bytes.
    pub(crate) waiting: usize,
    /// Bytes of memory, of this process alone.
    pub(crate) memory: Option<u64>,
    /// When to shed.
    pub(crate) shed: load::Settings,
}

/// Deadlines of the data path.
#[derive(Debug, Clone)]
pub(crate) struct Timeouts {
    /// TLS handshake of a client.
    pub(crate) handshake: Duration,
    /// Head of a request.
    pub(crate) head: Duration,
    /// Answer to a unary request.
    pub(crate) request: Duration,
    /// Connection to a member.
    pub(crate) connect: Duration,
    /// Running requests at shutdown.
    pub(crate) drain: Duration,
    /// Age at which a client connection is told to go; `None`: never.
    pub(crate) connection_age: Option<Duration>,
}

/// Every fault of a command line, together.
#[derive(Debug, Error, PartialEq, Eq)]
pub struct ConfigFaults(Vec<String>);

impl fmt::Display for ConfigFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} in the configuration: ",
            if self.0.len() == 1 { "a fault" } else { "faults" }
        )?;
        f.write_str(&self.0.join("; "))
    }
}

impl TryFrom<Args> for Config {
    type Error = ConfigFaults;

    fn try_from(args: Args) -> Result<Self, ConfigFaults> {
        let mut faults = Vec::new();
        let serving = serving(args.listen.tls_cert, args.listen.tls_key, &mut faults);
        let explicit_host = args.listen.explicit_host.map(|suffix| suffix.to_ascii_lowercase());
        if let Some(suffix) = &explicit_host
            && !suffix.split('.').all(is_dns_label)
        {
            faults.push(format!("--explicit-host {suffix:?} is no host name"));
        }
        let hub = hub(args.hub, &mut faults);
        if args.identity.audience.is_empty() {
            faults.push("--audience is empty".to_owned());
        }
        let (limits, timeouts) = bounds(&args.limits, &mut faults);
        let tail = tail(&args.tail, &mut faults);
        if !faults.is_empty() {
            return Err(ConfigFaults(faults));
        }
        Ok(Self {
            bind: args.listen.bind,
            admin_bind: args
                .admin
                .admin_bind
                .unwrap_or_else(|| DEFAULT_ADMIN_BIND.parse().expect("an address")),
            admin_remote: args.admin.admin_remote,
            addresses_file: args.listen.addresses_file,
            serving,
            explicit_host,
            sampling: args.telemetry.sampling(),
            tail,
            hub,
            identity: IdentityConfig {
                audience: args.identity.audience,
                accept_api_audience: args.identity.accept_api_audience,
            },
            limits,
            timeouts,
        })
    }
}

fn serving(cert: Option<PathBuf>, key: Option<PathBuf>, faults: &mut Vec<String>) -> Option<IdentityFiles> {
    match (cert, key) {
        (Some(cert), Some(key)) => return Some(IdentityFiles { cert, key }),
        (None, None) => {}
        (Some(_), None) => faults.push("--tls-cert needs --tls-key".to_owned()),
        (None, Some(_)) => faults.push("--tls-key needs --tls-cert".to_owned()),
    }
    None
}

fn hub(args: HubArgs, faults: &mut Vec<String>) -> HubConfig {
    if host_of(&args.hub).is_none() {
        faults.push(format!("--hub {:?} is not host:port", args.hub));
    }
    let proof = match (args.bootstrap_token_file, args.token_file, args.cluster) {
        (Some(file), None, None) => Some(Proof::Bootstrap(file)),
        (None, Some(file), Some(cluster)) => Some(Proof::Bound { cluster, file }),
        (None, None, None) => None,
        (Some(_), _, _) => {
            faults.push("--bootstrap-token-file excludes --token-file and --cluster".to_owned());
            None
        }
        (None, _, _) => {
            faults.push("--token-file and --cluster need each other".to_owned());
            None
        }
    };
    HubConfig {
        endpoint: args.hub,
        ca: args.hub_ca,
        proof,
        pod: args
            .pod_name
            .zip(args.pod_uid)
            .map(|(name, uid)| RouterPod { name, uid }),
        state_dir: args.state_dir,
        forget_at_end: args.forget_at_end,
        held_to_format_1: args.cursor_format_1,
    }
}

fn bounds(args: &LimitArgs, faults: &mut Vec<String>) -> (Limits, Timeouts) {
    let counts = [
        ("--max-connections", args.max_connections),
        ("--max-requests", args.max_requests),
        ("--max-streams", args.max_streams),
    ];
    for (flag, value) in counts {
        if value == 0 {
            faults.push(format!("{flag} is 0: nothing could be served"));
        }
    }
    if args.max_waiting < MIN_WAITING as u64 {
        faults.push(format!(
            "--max-waiting is {} bytes, and the least is 16Mi: clients that come at once would be refused",
            args.max_waiting
        ));
    }
    if !(args.shed_memory > 0.0 && args.shed_memory <= 1.0) {
        faults.push(format!("--shed-memory {} is no part of the whole", args.shed_memory));
    }
    let times = [
        ("--handshake-timeout", args.handshake_timeout),
        ("--head-timeout", args.head_timeout),
        ("--request-timeout", args.request_timeout),
        ("--connect-timeout", args.connect_timeout),
    ];
    for (flag, value) in times {
        if value.is_zero() {
            faults.push(format!("{flag} is 0: every request would fail"));
        }
    }
    if !args.max_connection_age.is_zero() && args.max_connection_age < MIN_CONNECTION_AGE {
        faults.push(format!(
            "--max-connection-age is {:?}, and the least is {MIN_CONNECTION_AGE:?}: clients would do little but connect",
            args.max_connection_age
        ));
    }
    let limits = Limits {
        connections: args.max_connections,
        requests: args.max_requests,
        streams: args.max_streams,
        waiting: usize::try_from(args.max_waiting).unwrap_or(usize::MAX),
        memory: args.memory_limit,
        shed: load::Settings {
            memory: args.shed_memory,
            delay: args.shed_delay,
        },
    };
    let timeouts = Timeouts {
        handshake: args.handshake_timeout,
        head: args.head_timeout,
        request: args.request_timeout,
        connect: args.connect_timeout,
        drain: args.drain_timeout,
        connection_age: (!args.max_connection_age.is_zero()).then_some(args.max_connection_age),
    };
    (limits, timeouts)
}

fn tail(args: &TailArgs, faults: &mut Vec<String>) -> TailSettings {
    let rate = args.trace_tail_rate;
    if !(0.0..=MAX_TAIL_RATE).contains(&rate) {
        faults.push(format!(
            "--trace-tail-rate {rate} is no number of spans a second from 0 to {MAX_TAIL_RATE}"
        ));
    }
    TailSettings {
        rate,
        slow: args.trace_slow,
    }
}

/// As in Pods: bytes, or as many Ki, Mi or Gi.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("", 0)];
    let of_unit = |(unit, shift): (&str, u32)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
    };
    let bytes = units.into_iter().find_map(of_unit);
    bytes.ok_or_else(|| "write bytes, or a number with Ki, Mi or Gi, such as 512Mi".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDED: [&str; 7] = [
        "portolan-router",
        "--hub",
        "hub.example:7443",
        "--hub-ca",
        "ca.crt",
        "--state-dir",
        "state",
    ];

    fn config(more: &[&str]) -> Result<Config, ConfigFaults> {
        let args = Args::try_parse_from(NEEDED.iter().chain(more)).expect("clap accepts the flags");
        Config::try_from(args)
    }

    #[test]
    fn the_least_is_enough() {
        let config = config(&[]).expect("valid");
        assert_eq!(config.bind.port(), 8443);
        assert_eq!(config.hub.proof, None);
        assert_eq!(config.identity.audience, "portolan");
        assert!(config.serving.is_none());
        assert_eq!(config.limits.waiting, 512 << 20);
        assert!(self::config(&["--max-waiting", "16Mi"]).is_ok());
        assert_eq!(config.timeouts.connection_age, None);
        let old = self::config(&["--max-connection-age", "30m"]).expect("valid");
        assert_eq!(old.timeouts.connection_age, Some(Duration::from_mins(30)));
    }

    #[test]
    fn bytes_are_written_as_in_pods() {
        for (text, bytes) in [("512Mi", Some(512 << 20)), ("7", Some(7)), ("1Gi", Some(1 << 30))] {
            assert_eq!(parse_bytes(text).ok(), bytes, "{text}");
        }
        for text in ["", "0", "Mi", "-1", "1.5Gi", "99999999999Gi"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_budget_of_late_spans_is_a_rate() {
        let tail = config(&[]).expect("valid").tail;
        assert_eq!((tail.rate.to_string().as_str(), tail.slow.as_secs()), ("5", 2));
        let none = config(&["--trace-tail-rate", "0", "--trace-slow", "0"])
            .expect("valid")
            .tail;
        assert_eq!((none.rate.to_string().as_str(), none.slow), ("0", Duration::ZERO));
        for bad in ["NaN", "inf", "-0.1", "1001"] {
            let refused = config(&[&format!("--trace-tail-rate={bad}")]).unwrap_err().to_string();
            assert!(refused.contains("--trace-tail-rate"), "{bad}: {refused}");
        }
        let unread = ["--trace-slow=soon", "--trace-tail-rate=many"];
        for bad in unread {
            let args = Args::try_parse_from(NEEDED.iter().chain(&[bad]));
            assert!(args.is_err(), "{bad}");
        }
    }

    #[test]
    fn a_proof_is_one_of_two() {
        let bound = config(&["--token-file", "t", "--cluster", "east"]).expect("valid");
        assert_eq!(
            bound.hub.proof,
            Some(Proof::Bound {
                cluster: "east".into(),
                file: "t".into()
            })
        );
        let bootstrap = config(&["--bootstrap-token-file", "b"]).expect("valid");
        assert_eq!(bootstrap.hub.proof, Some(Proof::Bootstrap("b".into())));
    }

    #[test]
    fn all_faults_are_told_at_once() {
        let all = [
            "--hub",
            "https://hub:7443/",
            "--tls-cert",
            "c",
            "--cluster",
            "east",
            "--audience",
            "",
            "--max-requests",
            "0",
            "--max-connection-age",
            "999ms",
            "--max-waiting",
            "16383Ki",
            "--head-timeout",
            "0",
            "--explicit-host",
            "*.example",
            "--shed-memory",
            "1.5",
            "--trace-tail-rate",
            "-1",
        ];
        let args = Args::try_parse_from(
            ["portolan-router", "--hub-ca", "ca", "--state-dir", "s"]
                .iter()
                .chain(&all),
        );
        let text = Config::try_from(args.expect("clap accepts the flags"))
            .unwrap_err()
            .to_string();
        for fault in [
            "--hub ",
            "--tls-key",
            "--token-file",
            "--audience",
            "--max-requests",
            "--max-connection-age",
            "--max-waiting",
            "--head-timeout",
            "--explicit-host",
            "--shed-memory",
            "--trace-tail-rate",
        ] {
            assert!(text.contains(fault), "{fault}: {text}");
        }
    }
}
