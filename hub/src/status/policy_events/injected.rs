//! Events on FaultInjections: that a fault was injected for the first time. Pure; called by `policy_events`.

use std::collections::BTreeSet;

use kube::runtime::events::{Event, EventType};
use portolan_crds::fault_injection::InjectedStatus;

use super::super::events::event;
use super::super::policies::Injected;
use super::bounded;

const REASON: &str = "FaultInjected";

/// Faults that a status says were injected.
pub(super) fn written(targets: &[InjectedStatus]) -> BTreeSet<String> {
    let injected = targets.iter().filter(|target| target.injected_total > 0);
    injected.map(|target| target.name.clone()).collect()
}

/// Those of which nothing was told `before`. How often, and into whom else, is in the status.
pub(super) fn first(before: &BTreeSet<String>, now: &Injected) -> Vec<Event> {
    let new = now.iter().filter(|(fault, _)| !before.contains(*fault));
    let events = new.map(|(fault, whom)| {
        let note = format!("fault {fault} is injected into requests of {whom}: see status.targetStatus for all");
        event(EventType::Normal, REASON, fault, note)
    });
    bounded(events.collect(), EventType::Normal, REASON)
}

#[cfg(test)]
mod tests {
    use super::super::MAX_AT_ONCE;
    use super::*;

    #[test]
    fn each_fault_is_told_of_once_and_a_storm_is_a_few_events() {
        let now: Injected = (0..50)
            .map(|number| (format!("fault-{number:02}"), "caller p in east".to_owned()))
            .collect();
        let mut before = BTreeSet::new();
        let told = first(&before, &now);
        assert_eq!(told.len(), MAX_AT_ONCE + 1);
        assert_eq!(told[0].action, "fault-00");
        before.extend(now.keys().skip(1).cloned());
        assert_eq!(first(&before, &now).len(), 1);
        before.insert("fault-00".to_owned());
        assert!(first(&before, &now).is_empty());
    }

    #[test]
    fn what_an_earlier_process_wrote_is_known() {
        let hit = |name: &str, injected_total| InjectedStatus {
            name: name.to_owned(),
            injected_total,
            ..InjectedStatus::default()
        };
        let found = written(&[hit("late", 3), hit("never", 0)]);
        assert_eq!(found, BTreeSet::from(["late".to_owned()]));
    }
}
