//! Metrics that change while nothing happens: how long ago each member's agent was heard, what waits for its turn, and when the CA ends. Read at each
//! scrape, so that a member that is gone leaves no series behind. Caller: `app`.

use std::fmt;
use std::sync::Arc;
use std::time::{Instant, UNIX_EPOCH};

use portolan_runtime::metrics::{Labels, gauges, seconds};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::ca::Authorities;
use crate::facts::Facts;
use crate::index::Index;

/// Of members that have joined.
pub(crate) struct MemberAges {
    index: Arc<Index>,
    /// No agent could be heard before.
    since: Instant,
}

/// What is known of one member's agent.
#[derive(Debug, PartialEq, Eq)]
struct Heard<'a> {
    cluster: &'a str,
    connected: bool,
    /// Since it last vouched for its labels.
    coverage_seconds: i64,
}

impl MemberAges {
    pub(crate) fn new(index: Arc<Index>) -> Self {
        Self {
            index,
            since: Instant::now(),
        }
    }
}

fn heard(facts: &Facts, since: Instant, now: Instant) -> Vec<Heard<'_>> {
    let joined = facts.members.keys().filter(|cluster| facts.joined(cluster).is_some());
    joined
        .map(|cluster| {
            let agent = facts.agents.get(cluster);
            let vouched = agent.and_then(|agent| agent.vouched).unwrap_or(since);
            Heard {
                cluster,
                connected: agent.is_some_and(|agent| agent.connected),
                coverage_seconds: seconds(now.saturating_duration_since(vouched)),
            }
        })
        .collect()
}

impl fmt::Debug for MemberAges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberAges").finish_non_exhaustive()
    }
}

impl Collector for MemberAges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let now = Instant::now();
        // Before the facts are held: who writes them holds the turns first.
        let waiting = i64::try_from(self.index.waiting()).unwrap_or(i64::MAX);
        self.index.read(|facts| {
            let heard = heard(facts, self.since, now);
            let of = |value: fn(&Heard<'_>) -> i64| {
                let series = heard.iter();
                series.map(move |heard| (vec![("cluster", heard.cluster)], value(heard)))
            };
            let help = "1 while the agent's stream is up, for each member that has joined";
            let encoder = &mut encoder;
            gauges(encoder, "agent_connected", help, of(|heard| heard.connected.into()))?;
            let help =
                "Seconds since the member's agent last vouched for its labels; beyond 30 routers filter by namespace";
            gauges(
                encoder,
                "coverage_age_seconds",
                help,
                of(|heard| heard.coverage_seconds),
            )?;
            let help = "ShardingConfigs with a spec that waits for its author's turn";
            gauges(encoder, "specs_waiting", help, [(Labels::new(), waiting)])
        })
    }
}

/// Of the CA that issues.
pub(crate) struct CaEnd(pub(crate) Arc<Authorities>);

impl fmt::Debug for CaEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaEnd").finish_non_exhaustive()
    }
}

impl Collector for CaEnd {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let current = self.0.current();
        let end = current.root().subject().not_after.duration_since(UNIX_EPOCH);
        let help = "End of the CA that issues, since the Unix epoch, in seconds";
        let value = seconds(end.unwrap_or_default());
        gauges(&mut encoder, "ca_not_after_seconds", help, [(Labels::new(), value)])
    }
}
