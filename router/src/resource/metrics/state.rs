//! What is state and not event: snapshot, credentials, breakers, connections. Read when somebody scrapes, so that it is
//! never stale and a cluster that is gone leaves no series behind.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::{MetricType, TypedMetric};

use crate::resource::breaker;
use crate::resource::upstream::Upstreams;
use crate::stage::fanout::open::{Legs, OpenWatches};
use crate::value::snapshot::SnapshotStore;

#[derive(Clone)]
pub(super) struct State {
    pub(super) store: Arc<SnapshotStore>,
    pub(super) upstreams: Arc<Upstreams>,
    pub(super) open: Arc<OpenWatches>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

/// Pairs of name and value; names are words of this file, values come from bounded sets.
type Labels<'a> = Vec<(&'static str, &'a str)>;

impl Collector for State {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.snapshot(&mut encoder)?;
        self.breakers(&mut encoder)?;
        self.pools(&mut encoder)?;
        self.watches(&mut encoder)
    }
}

impl State {
    fn snapshot(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = self.store.load();
        let generation = i64::try_from(snapshot.generation).unwrap_or(i64::MAX);
        gauges(
            encoder,
            "snapshot_generation",
            "Swaps of the snapshot",
            [(Labels::new(), generation)],
        )?;
        gauges(
            encoder,
            "snapshot_callers",
            "Callers in the snapshot",
            [(Labels::new(), count(snapshot.callers.len()))],
        )?;
        gauges(
            encoder,
            "snapshot_targets",
            "Members in the snapshot",
            [(Labels::new(), count(snapshot.targets.len()))],
        )?;
        let conflicts = count(snapshot.keys.conflicts().count());
        let help = "Signing keys that several members publish: their tokens are refused";
        gauges(encoder, "snapshot_conflicting_keys", help, [(Labels::new(), conflicts)])?;
        let expiries = snapshot
            .credentials
            .values()
            .map(|credential| (vec![("cluster", &*credential.cluster)], credential.expires_unix_seconds));
        let help = "End of the router's token in each member since the Unix epoch, in seconds";
        gauges(encoder, "credential_not_after_seconds", help, expiries)
    }

    fn breakers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = self.upstreams.breakers();
        let states = all.iter().map(|status| {
            let state = match status.report.state {
                breaker::State::Closed => 0,
                breaker::State::HalfOpen => 1,
                breaker::State::Open => 2,
            };
            (
                vec![("cluster", &*status.cluster), ("class", status.class.as_str())],
                state,
            )
        });
        gauges(
            encoder,
            "breaker_state",
            "State of the breaker: 0 closed, 1 half-open, 2 open",
            states,
        )?;
        let help = "Changes of the breaker's state";
        let family = encoder.encode_descriptor("breaker_transitions", help, None, MetricType::Counter);
        let mut family = family?;
        for status in &all {
            let labels: Labels<'_> = vec![("cluster", &*status.cluster), ("class", status.class.as_str())];
            let value = ConstCounter::new(status.report.transitions);
            value.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn pools(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = self.upstreams.pools();
        let sizes = || {
            all.iter()
                .flat_map(|(cluster, unary, watch)| [(cluster, "unary", unary), (cluster, "watch", watch)])
        };
        let connections = sizes()
            .map(|(cluster, pool, size)| (vec![("cluster", &**cluster), ("pool", pool)], count(size.connections)));
        gauges(
            encoder,
            "upstream_connections",
            "HTTP/2 connections to members",
            connections,
        )?;
        let streams =
            sizes().map(|(cluster, pool, size)| (vec![("cluster", &**cluster), ("pool", pool)], count(size.streams)));
        gauges(
            encoder,
            "upstream_streams",
            "Streams on the HTTP/2 connections to members",
            streams,
        )
    }
}

impl State {
    fn watches(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counted = self.open.count();
        let open = count(counted.watches);
        gauges(
            encoder,
            "watches_open",
            "Merged watches that are open",
            [(Labels::new(), open)],
        )?;
        let help = "Age of the merged watch that has been open longest, in seconds";
        gauges(
            encoder,
            "watch_age_seconds",
            help,
            [(Labels::new(), seconds(counted.oldest))],
        )?;
        let by_state = |figure: fn(&Legs) -> i64| {
            let legs = counted.legs.iter();
            legs.map(move |((cluster, state), legs)| {
                (vec![("cluster", &**cluster), ("state", state.as_str())], figure(legs))
            })
        };
        let help = "Legs of open merged watches; held: the member is away and its slot is kept";
        gauges(encoder, "watch_legs", help, by_state(|legs| count(legs.count)))?;
        let help = "Longest time since a member said anything on a leg, in seconds; a live one is told of a bookmark every minute";
        gauges(
            encoder,
            "watch_leg_lag_seconds",
            help,
            by_state(|legs| seconds(legs.lag)),
        )
    }
}

fn gauges<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (Labels<'a>, i64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, <ConstGauge<i64> as TypedMetric>::TYPE)?;
    for (labels, value) in values {
        let value = ConstGauge::new(value);
        value.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
