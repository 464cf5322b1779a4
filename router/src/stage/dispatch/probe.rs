//! Looks at members that may not be there, and at those that may be back: once a second each, with the router's own token.
//!
//! One task for all members, apart from clients' traffic. A look that hangs does not keep the next from starting: a member that
//! is back is noticed within a second or two, however long the time-out for connections is. Not here: what a look finds
//! (`upstream::readyz`). Caller: `app`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::credential;
use crate::resource::breaker::Readyz;
use crate::resource::routing::{Routing, RoutingStore};
use crate::resource::upstream::Upstream;

/// Between two looks at one member, 80 to 120 % of it.
const EVERY: Duration = Duration::from_secs(1);
/// After a connection that was refused, where it is not known yet whether the member is there.
const SURE_AFTER: Duration = Duration::from_millis(250);
/// Of one member at a time, where each takes its full time-out.
const MOST_AT_ONCE: u32 = 8;

/// The looks under way.
pub(crate) struct Prober {
    routing: Arc<RoutingStore>,
    /// When each member that is looked at is due next.
    due: HashMap<Arc<str>, Due>,
    under_way: FuturesUnordered<BoxFuture<'static, (Arc<str>, Readyz)>>,
}

#[derive(Debug)]
struct Due {
    at: Instant,
    under_way: u32,
}

impl Prober {
    pub(crate) fn new(routing: Arc<RoutingStore>) -> Self {
        Self {
            routing,
            due: HashMap::new(),
            under_way: FuturesUnordered::new(),
        }
    }

    /// Forever.
    pub(crate) async fn run(mut self) {
        let mut reasons = self.routing.looks();
        loop {
            let next = self.begin_due(Instant::now());
            tokio::select! {
                // The store outlives this task.
                _ = reasons.changed() => {}
                Some((cluster, found)) = self.under_way.next() => self.ended(&cluster, found),
                () = sleep_until(next) => {}
            }
        }
    }

    /// Begins the looks that are due; returns when the next one is.
    fn begin_due(&mut self, now: Instant) -> Option<Instant> {
        let routing = self.routing.load();
        let wanted: Vec<_> = routing.upstreams.to_look_at().cloned().collect();
        self.due.retain(|cluster, due| {
            due.under_way > 0 || due.at > now || wanted.iter().any(|upstream| upstream.cluster == *cluster)
        });
        for upstream in &wanted {
            let first = || Due { at: now, under_way: 0 };
            let due = self.due.entry(upstream.cluster.clone()).or_insert_with(first);
            if due.at > now || due.under_way >= MOST_AT_ONCE {
                continue;
            }
            due.at = now + EVERY.mul_f64(0.8 + 0.4 * rand::random::<f64>());
            due.under_way += 1;
            self.under_way.push(look(&routing, upstream.clone()));
        }
        let of_wanted = wanted.iter().filter_map(|upstream| self.due.get(&upstream.cluster));
        let waiting = of_wanted.filter(|due| due.under_way < MOST_AT_ONCE);
        waiting.map(|due| due.at).min()
    }

    fn ended(&mut self, cluster: &Arc<str>, found: Readyz) {
        let Some(due) = self.due.get_mut(cluster) else { return };
        due.under_way = due.under_way.saturating_sub(1);
        let routing = self.routing.load();
        let doubted = routing
            .upstreams
            .get(cluster)
            .is_some_and(|upstream| upstream.is_doubted());
        if found == Readyz::Unreachable && doubted {
            due.at = due.at.min(Instant::now() + SURE_AFTER);
        }
    }
}

fn look(routing: &Routing, upstream: Arc<Upstream>) -> BoxFuture<'static, (Arc<str>, Readyz)> {
    let cluster = upstream.cluster.clone();
    // Without a token it may be allowed all the same.
    let bearer = credential(routing, &cluster).ok();
    let span = tracing::info_span!("look", otel.kind = "client", cluster = &*cluster);
    Box::pin(
        async move {
            let found = upstream.look(bearer).await;
            tracing::debug!(?found, "looked at a member");
            (cluster, found)
        }
        .instrument(span),
    )
}

async fn sleep_until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}
