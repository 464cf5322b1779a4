//! Flags → checked [`Config`]. Binds nothing, reads no file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use portolan_crds::{BucketAlgorithm, Bucketing, LabelKeys, labels};
use portolan_runtime::TelemetryArgs;
use portolan_runtime::admin::AdminArgs;
use rustls_pki_types::DnsName;

use crate::settings::{DEFAULT_LABEL_KINDS, DEFAULT_LONGEST_LEASE_SECONDS, Settings, parse_kinds};

/// Address of the admin server unless told otherwise.
const DEFAULT_ADMIN_BIND: &str = "127.0.0.1:7444";
/// Where the API server asks unless told otherwise.
const DEFAULT_WEBHOOK_PORT: u16 = 7445;

/// The control plane of Portolan: registers member clusters, compiles ShardingConfigs, feeds routers and agents
#[derive(Debug, Clone, Parser)]
#[command(name = "portolan-hub", version, mut_arg("admin_bind", |arg| arg.default_value(DEFAULT_ADMIN_BIND)))]
pub struct Args {
    /// Kubeconfig of the hub cluster; default: the Pod's own ServiceAccount
    #[arg(long, env = "PORTOLAN_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Address for agents and routers (gRPC over TLS)
    #[arg(long, env = "PORTOLAN_BIND", value_name = "IP:PORT", default_value = "0.0.0.0:7443")]
    pub bind: SocketAddr,

    /// Address where the hub cluster's API server asks about writes of ShardingConfigs (HTTPS; see portolanctl install)
    /// [default: port 7445 of --bind's address; any port where that has any]
    #[arg(long, env = "PORTOLAN_WEBHOOK_BIND", value_name = "IP:PORT")]
    pub webhook_bind: Option<SocketAddr>,

    /// host or host:port that agents and routers reach the hub at; repeat for several. Names of its serving certificate
    #[arg(long, env = "PORTOLAN_ADVERTISE", value_name = "HOST:PORT", value_delimiter = ',')]
    pub advertise: Vec<String>,

    /// host:port at which the hub's other replicas reach this one: they pass on to it what agents and routers open while it leads
    /// [default: what --bind binds, if that is an address of one machine]
    #[arg(long, env = "PORTOLAN_REPLICA_ADDRESS", value_name = "HOST:PORT")]
    pub replica_address: Option<String>,

    /// Name of the Pod that this replica runs in, by the downward API: metadata.name. Where its Deployment was given other settings, it
    /// leads in place of a replica of before
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub pod_name: Option<String>,

    /// Namespace of the hub's own Secrets and ConfigMaps
    #[arg(long, env = "PORTOLAN_NAMESPACE", default_value = labels::SYSTEM_NAMESPACE)]
    pub namespace: String,

    /// Kinds that agents label, as kubectl writes them (resource or resource.group, * for all), comma-separated.
    /// Those that accepted limits name are added
    #[arg(long, env = "PORTOLAN_LABEL_KINDS", default_value = DEFAULT_LABEL_KINDS)]
    pub label_kinds: String,

    /// How a namespace's name becomes a bucket
    #[arg(long, env = "PORTOLAN_BUCKET_ALGORITHM", value_enum, default_value = "xxh3")]
    pub bucket_algorithm: Algorithm,

    /// Number of buckets, 1 to 1024; the legacy algorithm has 32
    #[arg(long, env = "PORTOLAN_BUCKETS", default_value_t = portolan_crds::shard::DEFAULT_BUCKETS)]
    pub buckets: u16,

    /// What the keys of shard labels begin with
    #[arg(long, env = "PORTOLAN_LABEL_PREFIX", default_value = portolan_crds::labels::DEFAULT_PREFIX)]
    pub label_prefix: String,

    /// Member clusters whose agents may vouch for routers that run there (a router acts in all members), and portolan-hub for the
    /// hub's own cluster, which needs no agent for it; repeat for several. Others enrol with the token of portolanctl router-token
    #[arg(long, env = "PORTOLAN_ROUTERS_OF", value_name = "CLUSTER", value_delimiter = ',')]
    pub routers_of: Vec<String>,

    /// Host names and addresses that the certificates of these routers are for, as operators call them; repeat for several.
    /// Others have those of their token (portolanctl router-token --san)
    #[arg(long, env = "PORTOLAN_ROUTER_HOSTS", value_name = "HOST", value_delimiter = ',')]
    pub router_hosts: Vec<String>,

    /// Audience of the tokens that routers in Pods enrol with. Of hubs that have members in common each needs one of
    /// its own, and its routers the same (--audience): a token for one is good for nothing at the other
    #[arg(long, env = "PORTOLAN_AUDIENCE", default_value = labels::DEFAULT_AUDIENCE)]
    pub audience: String,

    /// Longest time in seconds that an operator's leader lock is held without a renewal (leaseDuration), 1 to 3600. A lock whose
    /// record cannot be brought to its new place is nobody's for so long
    #[arg(long, env = "PORTOLAN_LONGEST_LEASE_SECONDS", default_value_t = DEFAULT_LONGEST_LEASE_SECONDS,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub longest_lease_seconds: u64,

    /// File to write the bound addresses to, as JSON, once they are bound
    #[arg(long, env = "PORTOLAN_ADDRESSES_FILE", value_name = "FILE")]
    pub addresses_file: Option<PathBuf>,

    #[command(flatten)]
    pub admin: AdminArgs,

    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

/// The bucket algorithms by their names on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Algorithm {
    /// xxh3-64 of the name
    Xxh3,
    /// Sum of code points modulo 32, for fleets labelled by the original
    Legacy,
}

/// Checked flags. Holds no secrets.
#[derive(Debug, Clone)]
pub struct Config {
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) bind: SocketAddr,
    pub(crate) webhook_bind: SocketAddr,
    pub(crate) admin_bind: SocketAddr,
    pub(crate) admin_remote: bool,
    pub(crate) advertise: Vec<String>,
    pub(crate) replica_address: Option<String>,
    pub(crate) pod_name: Option<String>,
    /// Values of the flags that all replicas must have alike, by flag.
    pub(crate) agreed: BTreeMap<String, String>,
    pub(crate) namespace: String,
    pub(crate) routers_of: Vec<String>,
    pub(crate) router_hosts: Vec<String>,
    pub(crate) audience: String,
    pub(crate) settings: Settings,
    pub(crate) addresses_file: Option<PathBuf>,
}

impl TryFrom<Args> for Config {
    type Error = anyhow::Error;

    /// Reports everything wrong at once.
    fn try_from(args: Args) -> anyhow::Result<Self> {
        let (mut faults, agreed) = (Vec::new(), agreed(&args));
        let algorithm = match args.bucket_algorithm {
            Algorithm::Xxh3 => BucketAlgorithm::Xxh3,
            Algorithm::Legacy => BucketAlgorithm::Legacy,
        };
        let bucketing =
            Bucketing::new(algorithm, args.buckets).map_err(|error| faults.push(format!("--buckets: {error}")));
        let keys = LabelKeys::new(&args.label_prefix).map_err(|error| faults.push(format!("--label-prefix: {error}")));
        let kinds = parse_kinds(&args.label_kinds).map_err(|error| faults.push(format!("--label-kinds: {error}")));
        if !portolan_crds::names::is_dns_label(&args.namespace) {
            faults.push(format!("--namespace: {:?} is no namespace", args.namespace));
        }
        let replica_address = args.replica_address.as_deref();
        if replica_address.is_some_and(|address| !address.contains(':') || host_of(address).is_empty()) {
            faults.push("--replica-address is no host:port".to_owned());
        }
        let router_hosts = router_hosts(&args.router_hosts, &mut faults);
        if args.audience.is_empty() {
            faults.push("--audience is empty".to_owned());
        }
        let (Ok(bucketing), Ok(keys), Ok(label_kinds), true) = (bucketing, keys, kinds, faults.is_empty()) else {
            anyhow::bail!("{}", faults.join("; "));
        };
        let admin_default = || DEFAULT_ADMIN_BIND.parse().expect("the default is an address");
        Ok(Self {
            kubeconfig: args.kubeconfig,
            bind: args.bind,
            webhook_bind: args.webhook_bind.unwrap_or_else(|| webhook_beside(args.bind)),
            admin_bind: args.admin.admin_bind.unwrap_or_else(admin_default),
            admin_remote: args.admin.admin_remote,
            advertise: args
                .advertise
                .iter()
                .map(|address| host_of(address).to_owned())
                .collect(),
            replica_address: args.replica_address,
            pod_name: args.pod_name,
            agreed,
            namespace: args.namespace,
            routers_of: args.routers_of,
            router_hosts,
            audience: args.audience,
            settings: Settings {
                keys,
                bucketing,
                label_kinds,
                longest_lease: Duration::from_secs(args.longest_lease_seconds),
            },
            addresses_file: args.addresses_file,
        })
    }
}

impl Config {
    /// Names of the serving certificate: what is advertised, and this machine.
    pub(crate) fn serving_hosts(&self) -> Vec<String> {
        let local = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let bound = Some(self.bind.ip())
            .filter(|ip| !ip.is_unspecified())
            .map(|ip| ip.to_string());
        // As the API server of the hub cluster calls its Services.
        let service = format!("{}.{}.svc", labels::SERVICE_HUB, self.namespace);
        let others = [service].into_iter().chain(local).chain(bound);
        let mut hosts: Vec<_> = self.advertise.iter().cloned().chain(others).collect();
        hosts.sort();
        hosts.dedup();
        hosts
    }
}

/// The hosts of `--router-hosts`, each a name or an address; what is empty is none.
fn router_hosts(hosts: &[String], faults: &mut Vec<String>) -> Vec<String> {
    let hosts = hosts.iter().map(|host| host.trim().to_owned());
    let hosts: Vec<_> = hosts.filter(|host| !host.is_empty()).collect();
    for host in &hosts {
        let name = host.strip_prefix("*.").unwrap_or(host);
        let is_name = DnsName::try_from(name).is_ok() && !name.ends_with('.');
        if !is_name && host.parse::<IpAddr>().is_err() {
            faults.push(format!("--router-hosts: {host:?} is no host name and no IP address"));
        }
    }
    hosts
}

/// What routers, agents and the ledger go by: another value in one replica would be another hub.
fn agreed(args: &Args) -> BTreeMap<String, String> {
    let algorithm = match args.bucket_algorithm {
        Algorithm::Xxh3 => "xxh3",
        Algorithm::Legacy => "legacy",
    };
    let sorted = |words: Vec<&str>| {
        let words: BTreeSet<_> = words
            .into_iter()
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .collect();
        words.into_iter().collect::<Vec<_>>().join(",")
    };
    let values = [
        ("--label-kinds", sorted(args.label_kinds.split(',').collect())),
        ("--bucket-algorithm", algorithm.to_owned()),
        ("--buckets", args.buckets.to_string()),
        ("--label-prefix", args.label_prefix.clone()),
        (
            "--routers-of",
            sorted(args.routers_of.iter().map(String::as_str).collect()),
        ),
        (
            "--router-hosts",
            sorted(args.router_hosts.iter().map(String::as_str).collect()),
        ),
        ("--audience", args.audience.clone()),
        ("--longest-lease-seconds", args.longest_lease_seconds.to_string()),
    ];
    values.map(|(flag, value)| (flag.to_owned(), value)).into()
}

fn webhook_beside(bind: SocketAddr) -> SocketAddr {
    let port = if bind.port() == 0 { 0 } else { DEFAULT_WEBHOOK_PORT };
    SocketAddr::new(bind.ip(), port)
}

/// The host of `host`, `host:port`, `[v6]:port` or a bare IPv6 address.
fn host_of(address: &str) -> &str {
    if address.parse::<IpAddr>().is_ok() {
        return address;
    }
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_tells_the_default_of_the_admin_server() {
        let help = <Args as clap::CommandFactory>::command().render_long_help().to_string();
        assert!(help.contains("[default: 127.0.0.1:7444]"), "{help}");
    }

    #[test]
    fn hosts_of_addresses() {
        for (address, host) in [
            ("hub.example:7443", "hub.example"),
            ("hub.example", "hub.example"),
            ("10.0.0.1:7443", "10.0.0.1"),
            ("10.0.0.1", "10.0.0.1"),
            ("[::1]:7443", "::1"),
            ("::1", "::1"),
        ] {
            assert_eq!(host_of(address), host, "{address}");
        }
    }

    #[test]
    fn all_faults_are_told_at_once() {
        let flags = ["hub", "--buckets", "0", "--label-prefix", "x", "--label-kinds", "Pods"];
        let hosts = ["--router-hosts", "gw.example,10.0.0.1,https://gw,"];
        let error = Config::try_from(Args::parse_from(flags.into_iter().chain(hosts))).unwrap_err();
        let error = error.to_string();
        for flag in ["--buckets", "--label-prefix", "--label-kinds"] {
            assert!(error.contains(flag), "{error}");
        }
        assert!(error.contains(r#"--router-hosts: "https://gw" is no host"#), "{error}");
        assert!(!error.contains("gw.example") && !error.contains("10.0.0.1"), "{error}");
        let good = [
            "hub",
            "--router-hosts",
            "gw.example, *.gw.example,localhost,,10.0.0.1,::1",
        ];
        let config = Config::try_from(Args::parse_from(good)).unwrap();
        assert_eq!(
            config.router_hosts,
            ["gw.example", "*.gw.example", "localhost", "10.0.0.1", "::1"]
        );
        assert!(Config::try_from(Args::parse_from(["hub"])).is_ok());
    }
}
