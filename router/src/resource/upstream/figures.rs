//! How all members stand, for the hub, for metrics and for people. Nothing is decided by it.

use std::sync::Arc;

use super::{EndpointStatus, PoolSize, Upstream, Upstreams};
use crate::resource::breaker;
use crate::resource::queues::Crowd;
use crate::value::snapshot::CallerId;
use crate::value::traffic::TrafficClass;

/// State of one breaker, as the hub and metrics are told.
#[derive(Debug, Clone)]
pub(crate) struct BreakerStatus {
    pub(crate) cluster: Arc<str>,
    pub(crate) class: TrafficClass,
    pub(crate) report: breaker::Report,
    /// Callers that are refused by a breaker of their own.
    pub(crate) callers: Vec<(CallerId, breaker::State)>,
}

impl Upstreams {
    /// All breakers there are.
    pub(crate) fn breakers(&self) -> Vec<BreakerStatus> {
        let mut all: Vec<_> = self.0.values().flat_map(|upstream| upstream.breaker_states()).collect();
        all.sort_by(|a, b| (&a.cluster, a.class).cmp(&(&b.cluster, b.class)));
        all
    }

    /// All endpoints of all members.
    pub(crate) fn endpoints(&self) -> Vec<EndpointStatus> {
        let transports = self.0.values().filter_map(|upstream| upstream.transport.as_ref().ok());
        let mut all: Vec<_> = transports.flat_map(|transport| transport.dialer.report()).collect();
        all.sort_by(|a, b| (&a.cluster, a.endpoint).cmp(&(&b.cluster, b.endpoint)));
        all
    }

    /// Until when each member may have answered callers, as the hub is told.
    pub(crate) fn answered_until(&self) -> Vec<(Arc<str>, i64)> {
        let until = |(cluster, upstream): (&Arc<str>, &Arc<Upstream>)| (cluster.clone(), upstream.last_answer.until());
        let mut all: Vec<_> = self.0.iter().map(until).collect();
        all.sort();
        all
    }

    /// How many each member serves and keeps waiting, by class.
    pub(crate) fn crowds(&self) -> Vec<(Arc<str>, [Crowd; 4])> {
        let crowds = |(cluster, upstream): (&Arc<str>, &Arc<Upstream>)| (cluster.clone(), upstream.queues.crowds());
        let mut all: Vec<_> = self.0.iter().map(crowds).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// Sizes of the unary and the watch pool of each member.
    pub(crate) fn pools(&self) -> Vec<(Arc<str>, PoolSize, PoolSize)> {
        let size = |(cluster, upstream): (&Arc<str>, &Arc<Upstream>)| {
            let transport = upstream.transport.as_ref().ok()?;
            Some((cluster.clone(), transport.unary.size(), transport.watch.size()))
        };
        let mut all: Vec<_> = self.0.iter().filter_map(size).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}
