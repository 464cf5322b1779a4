//! Events on CircuitBreakers: that a rule opened or closed. Pure; called by `policy_events`.

use kube::runtime::events::{Event, EventType};
use portolan_crds::circuit_breaker::{LimitingState, TargetStatus};

use super::super::events::event;
use super::super::policies::Opened;
use super::bounded;

/// What a status says that is opened.
pub(super) fn written(targets: &[TargetStatus]) -> Opened {
    let mut opened = Opened::new();
    for target in targets {
        let is_opened = target
            .limiting_snapshots
            .iter()
            .filter(|rule| rule.state == LimitingState::Opened);
        for rule in is_opened {
            let caller = match target.pod_name.as_str() {
                "" => String::new(),
                pod => format!("{pod} in {}", target.cluster),
            };
            opened.insert((target.router.clone(), caller, rule.name.clone()), rule.reason.clone());
        }
    }
    opened
}

/// Which opened and which closed.
pub(super) fn changes(before: &Opened, now: &Opened) -> Vec<Event> {
    let whom = |caller: &str| match caller {
        "" => "all its callers".to_owned(),
        caller => format!("caller {caller}"),
    };
    let opened = now.iter().filter(|(key, _)| !before.contains_key(*key));
    let opened = opened.map(|((router, caller, rule), why)| {
        let note = format!("rule {rule} refuses all of {} in router {router}: {why}", whom(caller));
        let action = format!("{rule} {router} {caller}");
        event(EventType::Warning, "RuleOpened", &action, note)
    });
    let closed = before.keys().filter(|key| !now.contains_key(*key));
    let closed = closed.map(|(router, caller, rule)| {
        let note = format!(
            "rule {rule} lets {} through again in router {router}, or one of them is gone",
            whom(caller)
        );
        let action = format!("{rule} {router} {caller}");
        event(EventType::Normal, "RuleClosed", &action, note)
    });
    let mut events = bounded(opened.collect(), EventType::Warning, "RuleOpened");
    events.extend(bounded(closed.collect(), EventType::Normal, "RuleClosed"));
    events
}

#[cfg(test)]
mod tests {
    use super::super::MAX_AT_ONCE;
    use super::*;

    fn all(rules: &[(&str, &str, &str)]) -> Opened {
        let rules = rules.iter().map(|(router, caller, rule)| {
            let key = ((*router).to_owned(), (*caller).to_owned(), (*rule).to_owned());
            (key, "LimitExceeded".to_owned())
        });
        rules.collect()
    }

    fn told(before: &Opened, now: &Opened) -> Vec<(String, String)> {
        let events = changes(before, now).into_iter();
        events.map(|event| (event.reason, event.action)).collect()
    }

    #[test]
    fn what_opened_and_what_closed_is_told_once() {
        let slow = all(&[("r", "p in east", "slow")]);
        let both = all(&[("r", "p in east", "slow"), ("r", "", "all")]);
        let opened = |action: &str| ("RuleOpened".to_owned(), action.to_owned());
        assert_eq!(told(&Opened::new(), &slow), [opened("slow r p in east")]);
        assert_eq!(told(&slow, &both), [opened("all r")]);
        assert_eq!(told(&both, &both), []);
        let closed = ("RuleClosed".to_owned(), "slow r p in east".to_owned());
        assert_eq!(told(&slow, &Opened::new()), [closed]);
    }

    #[test]
    fn a_storm_is_a_few_events() {
        let names: Vec<_> = (0..500).map(|number| format!("rule-{number}")).collect();
        let storm: Vec<_> = names.iter().map(|rule| ("r", "p in east", rule.as_str())).collect();
        let events = changes(&Opened::new(), &all(&storm));
        assert_eq!(events.len(), MAX_AT_ONCE + 1);
        let note = events[MAX_AT_ONCE].note.clone().unwrap();
        assert!(note.contains("490 more"), "{note}");
    }

    #[test]
    fn what_an_earlier_process_wrote_is_known() {
        let status = serde_json::json!({"targetStatus": [
            {"podName": "p", "cluster": "east", "router": "r", "limitingSnapshots": [
                {"name": "slow", "state": "Opened", "reason": "LimitExceeded"},
                {"name": "fast", "state": "Closed"},
            ]},
            {"router": "r", "limitingSnapshots": [{"name": "all", "state": "Opened"}]},
        ]});
        let status: portolan_crds::CircuitBreakerStatus = serde_json::from_value(status).unwrap();
        let found = written(&status.target_status);
        assert!(
            found
                .keys()
                .eq(all(&[("r", "", "all"), ("r", "p in east", "slow")]).keys())
        );
    }
}
