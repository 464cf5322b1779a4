//! Whether the state file is written: check `state-file` of `/readyz?verbose`, and a metric. Told by `hub_state`.

use portolan_runtime::ReadyHandle;

use super::HubMetrics;

/// What completes "it waits for" in the check. Without the path: anybody may ask.
const WAITS_FOR: &str =
    "a disk that takes its state: what the hub takes away is in force and not acknowledged, see the log";

/// The way to those who are told.
#[derive(Debug, Clone, Default)]
pub(crate) struct StateFileHealth {
    told: Option<(HubMetrics, ReadyHandle)>,
}

impl StateFileHealth {
    /// A router serves on without its state file, so it is ready all the same.
    pub(crate) fn new(metrics: HubMetrics, check: ReadyHandle) -> Self {
        check.ready();
        Self {
            told: Some((metrics, check)),
        }
    }

    /// Whether the last write went well.
    pub(super) fn written(&self, well: bool) {
        let Some((metrics, check)) = &self.told else { return };
        metrics.state_file(well);
        if well {
            check.ready();
        } else {
            check.degraded(WAITS_FOR);
        }
    }
}
