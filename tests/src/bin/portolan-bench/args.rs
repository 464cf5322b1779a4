//! What may be asked of a run. Called by `main` and `run`.

use std::path::PathBuf;

/// What to measure, and how much of it.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RunArgs {
    /// Small counts: whether it works, not how fast it is
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the figures to this file too
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Only this place
    #[arg(long, value_name = "PLACE")]
    pub(crate) only: Option<Place>,
    /// Of the table of peers only these rows, for example --only peers --rows gets,events
    #[arg(long, value_name = "ROWS", value_delimiter = ',', requires = "only")]
    pub(crate) rows: Vec<PeerRows>,
    /// Rounds in which the subjects take turns
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// GETs of one subject in one round at the backend; the API server gets a tenth
    #[arg(long, default_value_t = 40_000)]
    pub(crate) requests: usize,
    /// GETs a second of the latency rows
    #[arg(long, default_value_t = 1_000)]
    pub(crate) rate: u32,
    /// Seconds of one subject in one round of the latency rows, and of events beside peers
    #[arg(long, default_value_t = 6)]
    pub(crate) latency_seconds: u32,
    /// Idle watches at the backend
    #[arg(long, default_value_t = 10_000)]
    pub(crate) watches: usize,
    /// Idle watches at the API server
    #[arg(long, default_value_t = 1_000)]
    pub(crate) apiserver_watches: usize,
    /// Member clusters of the merged rows
    #[arg(long, default_value_t = 5)]
    pub(crate) members: usize,
    /// Pods of 3 KB in each of them
    #[arg(long, default_value_t = 10_000)]
    pub(crate) pods: usize,
    /// Idle merged watches, each over all members
    #[arg(long, default_value_t = 1_000)]
    pub(crate) merged_watches: usize,
    /// Events of each member in a burst
    #[arg(long, default_value_t = 20_000)]
    pub(crate) events: u64,
    /// Events a second of the paced burst, over all members
    #[arg(long, default_value_t = 10_000)]
    pub(crate) event_rate: u64,
    /// ConfigMaps of 3 KB in each of several real API servers
    #[arg(long, default_value_t = 2_000)]
    pub(crate) apiserver_objects: usize,
    /// Idle merged watches over them
    #[arg(long, default_value_t = 200)]
    pub(crate) apiserver_merged_watches: usize,
    /// Events of each of them
    #[arg(long, default_value_t = 500)]
    pub(crate) apiserver_events: u64,
    /// Events a second over all of them
    #[arg(long, default_value_t = 250)]
    pub(crate) apiserver_event_rate: u64,
    /// Namespaces of the shard of the control plane, over two members
    #[arg(long, default_value_t = 10_000)]
    pub(crate) namespaces: usize,
    /// Callers of that shard
    #[arg(long, default_value_t = 5_000)]
    pub(crate) callers: usize,
    /// Routers that are told of it
    #[arg(long, default_value_t = 10)]
    pub(crate) routers: usize,
    /// How often each change of it is made
    #[arg(long, default_value_t = 100)]
    pub(crate) changes: usize,
    /// Members of the fleet; its changes are made as often as those of the control plane
    #[arg(long, default_value_t = 1_000)]
    pub(crate) fleet_members: usize,
    /// Namespaces in all of them
    #[arg(long, default_value_t = 100_000)]
    pub(crate) fleet_namespaces: usize,
    /// Shards of the fleet
    #[arg(long, default_value_t = 1_000)]
    pub(crate) fleet_shards: usize,
    /// Routers of the fleet, each of which is told everything
    #[arg(long, default_value_t = 1_000)]
    pub(crate) fleet_routers: usize,
    /// Shards of the root that gets one more
    #[arg(long, default_value_t = 64)]
    pub(crate) fleet_root_size: usize,
    /// Namespaces of the fleet that move, one after the other
    #[arg(long, default_value_t = 10)]
    pub(crate) fleet_moves: usize,
    /// How often the fleet's hub is killed beside a replica that takes over
    #[arg(long, default_value_t = 5)]
    pub(crate) fleet_kills: usize,
    /// Operators that own the same namespaces, beside one operator in as many times as many
    #[arg(long, default_value_t = 50)]
    pub(crate) operators: usize,
    /// Namespaces of each of them
    #[arg(long, default_value_t = 2_000)]
    pub(crate) operator_namespaces: usize,
    /// Bytes of the token that each member's agent mints for each router; 0 for none
    #[arg(long, default_value_t = 900)]
    pub(crate) fleet_token_bytes: usize,
    /// GETs of each figure that is counted in instructions
    #[arg(long, default_value_t = 2_000)]
    pub(crate) counted_requests: usize,
    /// Instructions: fail if the router needs more than so many times those of a plain forwarder for a GET
    #[arg(long, value_name = "TIMES")]
    pub(crate) max_ratio: Option<f64>,
    /// Watches that a client opens on one connection
    #[arg(long, default_value_t = 100)]
    pub(crate) watches_per_connection: usize,
    /// End programs by SIGTERM and wait for it: those that count what runs write it down then
    #[arg(long)]
    pub(crate) end_gently: bool,
    /// Flags for the router at the backend, for example --router-flag=--log-level=warn
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    pub(crate) router_flag: Vec<String>,
}

/// Where to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Place {
    Backend,
    Federated,
    Apiserver,
    Apiservers,
    Control,
    /// The hub and a large fleet; only if it is named
    Fleet,
    /// The hub and many operators in the same namespaces; only if it is named
    Operators,
    /// The table of the router beside HAProxy, plain hyper and Envoy
    Peers,
    /// Instructions of a GET under many limits, by perf or valgrind; only if it is named
    Policies,
    /// Instructions of a GET beside a plain forwarder's; only if it is named
    Instructions,
    /// What grows with members, callers and rules; only if it is named
    Growth,
}

/// Rows of the table of peers that are measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PeerRows {
    /// GETs as fast as they are answered, and at a fixed pace
    Gets,
    /// The same by client-go
    Go,
    /// Events of many watches of one member
    Events,
    /// Events of watches that are merged of several
    Merged,
    Lists,
    /// Memory of idle watches, and how long they take to open
    Watches,
    Reconnects,
    Starts,
}
