//! What requests are routed by, read at each scrape, so that it is never stale and a cluster that is gone leaves no series
//! behind: `portolan_router_snapshot_…`, `…_breaker_…`, `…_upstream_…`, `…_endpoint_…`, `…_queue_…`, `…_credential_…`.

use std::fmt;
use std::sync::Arc;

use portolan_runtime::metrics::{Labels, count, gauges};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use super::RoutingStore;
use crate::resource::breaker;
use crate::resource::queues::Class;
use crate::resource::upstream::{EndpointState, Upstreams};
use crate::value::snapshot::Snapshot;

/// The routing of each scrape.
#[derive(Debug)]
pub(crate) struct RoutingCollector(pub(crate) Arc<RoutingStore>);

impl Collector for RoutingCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let routing = self.0.load();
        snapshot(&routing.snapshot, &mut encoder)?;
        breakers(&routing.upstreams, &mut encoder)?;
        pools(&routing.upstreams, &mut encoder)?;
        endpoints(&routing.upstreams, &mut encoder)?;
        queues(&routing.upstreams, &mut encoder)
    }
}

fn snapshot(snapshot: &Snapshot, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
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

fn breakers(upstreams: &Upstreams, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = upstreams.breakers();
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
        for (why, count) in &status.report.transitions {
            let (cluster, class) = (&*status.cluster, status.class.as_str());
            let labels: Labels<'_> = vec![("cluster", cluster), ("class", class), ("reason", why)];
            ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn pools(upstreams: &Upstreams, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = upstreams.pools();
    let sizes = || {
        all.iter()
            .flat_map(|(cluster, unary, watch)| [(cluster, "unary", unary), (cluster, "watch", watch)])
    };
    let connections =
        sizes().map(|(cluster, pool, size)| (vec![("cluster", &**cluster), ("pool", pool)], count(size.connections)));
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
    )?;
    let help = "Requests that found as many connections to the member as may be, and no room on them";
    let mut family = encoder.encode_descriptor("upstream_found_full", help, None, MetricType::Counter)?;
    for (cluster, pool, size) in sizes() {
        let labels: Labels<'_> = vec![("cluster", &**cluster), ("pool", pool)];
        ConstCounter::new(size.found_full).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Endpoints by their place in the spec: their names are the user's.
fn endpoints(upstreams: &Upstreams, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all: Vec<_> = upstreams
        .endpoints()
        .into_iter()
        .map(|status| (status.endpoint.to_string(), status))
        .collect();
    let states = all.iter().map(|(place, status)| {
        let state = match status.health.state {
            EndpointState::Usable => 0,
            EndpointState::Returning { .. } => 1,
            EndpointState::Ejected { .. } => 2,
        };
        (vec![("cluster", &*status.cluster), ("endpoint", &**place)], state)
    });
    let help = "State of the member's endpoint: 0 usable, 1 returning, 2 ejected";
    gauges(encoder, "endpoint_state", help, states)?;
    let help = "Times the member's endpoint was ejected";
    let mut family = encoder.encode_descriptor("endpoint_ejections", help, None, MetricType::Counter)?;
    for (place, status) in &all {
        for (why, count) in &status.health.ejections {
            let labels: Labels<'_> = vec![("cluster", &*status.cluster), ("endpoint", &**place), ("reason", why)];
            ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn queues(upstreams: &Upstreams, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = upstreams.crowds();
    let crowds = || {
        let of = all.iter();
        of.flat_map(|(cluster, crowds)| crowds.iter().map(move |crowd| (cluster, crowd)))
    };
    let labels = |cluster, class: Class| vec![("cluster", cluster), ("class", class.as_str())];
    let seated = crowds().map(|(cluster, crowd)| (labels(&**cluster, crowd.class), count(crowd.seated)));
    gauges(encoder, "queue_seated", "Requests that a member is working for", seated)?;
    let waiting = crowds().map(|(cluster, crowd)| (labels(&**cluster, crowd.class), count(crowd.waiting)));
    gauges(encoder, "queue_waiting", "Requests that wait for a member", waiting)
}
