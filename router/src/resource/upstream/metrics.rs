//! `portolan_router_breaker_…` and `portolan_router_upstream_…`: state of breakers and connections, read at each scrape, so
//! that it is never stale and a cluster that is gone leaves no series behind.

use std::fmt;
use std::sync::Arc;

use portolan_runtime::metrics::{Labels, count, gauges};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use super::Upstreams;
use crate::resource::breaker;

/// All members of each scrape.
#[derive(Debug)]
pub(crate) struct UpstreamCollector(pub(crate) Arc<Upstreams>);

impl Collector for UpstreamCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.breakers(&mut encoder)?;
        self.pools(&mut encoder)
    }
}

impl UpstreamCollector {
    fn breakers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = self.0.breakers();
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
        let all = self.0.pools();
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
