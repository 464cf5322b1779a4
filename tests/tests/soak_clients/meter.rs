//! Counters of the routers, added up over restarts: read every second, and what fell was begun anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use portolan_tests::programs::admin_get;
use tokio::task::JoinSet;

const PERIOD: Duration = Duration::from_secs(1);
/// Families that are kept, with the label that tells their lines apart.
const FAMILIES: [(&str, &str); 3] = [
    ("portolan_router_fanout_watch_starts_total", "outcome"),
    ("portolan_router_fanout_watches_expired_total", "reason"),
    ("portolan_router_fanout_leg_restarts_total", "reason"),
];

/// Reading until it is dropped.
pub(crate) struct Meter {
    totals: Arc<Mutex<Totals>>,
    _reading: JoinSet<()>,
}

/// By family and label.
pub(crate) type Counts = BTreeMap<(&'static str, String), u64>;

#[derive(Default)]
struct Totals {
    sum: Counts,
    last: BTreeMap<String, Counts>,
}

impl Meter {
    pub(crate) fn start(admins: Vec<String>) -> Self {
        let totals = Arc::new(Mutex::new(Totals::default()));
        let mut reading = JoinSet::new();
        let told = totals.clone();
        reading.spawn(async move {
            loop {
                for admin in &admins {
                    if let Ok(page) = admin_get(admin, "/metrics").await {
                        told.lock().take(admin, counts(&page));
                    }
                }
                tokio::time::sleep(PERIOD).await;
            }
        });
        Self {
            totals,
            _reading: reading,
        }
    }

    /// Of one family, by its label.
    pub(crate) fn of(&self, family: &str) -> BTreeMap<String, u64> {
        let totals = self.totals.lock();
        let of = totals.sum.iter().filter(|((name, _), _)| name.contains(family));
        of.map(|((_, label), count)| (label.clone(), *count)).collect()
    }
}

impl Totals {
    fn take(&mut self, admin: &str, now: Counts) {
        let last = self.last.entry(admin.to_owned()).or_default();
        for (of, count) in &now {
            let before = last.get(of).copied().unwrap_or(0);
            let more = count.checked_sub(before).unwrap_or(*count);
            *self.sum.entry(of.clone()).or_default() += more;
        }
        *last = now;
    }
}

fn counts(page: &str) -> Counts {
    let mut counts = Counts::new();
    for line in page.lines() {
        let Some((family, label)) = FAMILIES.into_iter().find(|(family, _)| line.starts_with(family)) else {
            continue;
        };
        let value = line
            .rsplit(' ')
            .next()
            .and_then(|value| value.parse::<u64>().ok())
            .unwrap_or(0);
        let labelled = line
            .split_once(&format!("{label}=\""))
            .and_then(|(_, rest)| rest.split('"').next());
        *counts
            .entry((family, labelled.unwrap_or_default().to_owned()))
            .or_default() += value;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_are_added_up() {
        let page = |count: u32| {
            format!("# TYPE x counter\nportolan_router_fanout_watches_expired_total{{reason=\"position\"}} {count}\n")
        };
        let mut totals = Totals::default();
        for count in [3, 5, 1] {
            totals.take("a", counts(&page(count)));
        }
        assert_eq!(totals.sum.values().copied().collect::<Vec<_>>(), [6]);
    }
}
