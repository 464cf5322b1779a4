//! Merged watches in figures, read at each scrape of the metrics.

use std::fmt;
use std::sync::Arc;

use portolan_runtime::metrics::{Labels, count, gauges, seconds};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::{Legs, OpenWatches};

/// The merged watches of each scrape.
pub(crate) struct OpenCollector(pub(crate) Arc<OpenWatches>);

impl fmt::Debug for OpenCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenCollector").finish_non_exhaustive()
    }
}

impl Collector for OpenCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let counted = self.0.count();
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
