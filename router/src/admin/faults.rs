//! What `/explain` says of ordered faults: which of them a request of this caller meets, and what each would do to it.

use jiff::Timestamp;
use portolan_crds::duration::format_duration;
use serde_json::{Value, json};

use crate::value::injection::{Action, Condition, RequestFault, WatchFault, WatchPart, Who};
use crate::value::policy::Asked;
use crate::value::snapshot::CallerView;

/// The faults that match what is asked, in their order. What they say of a request's head is told and not asked: there is
/// none.
pub(super) fn explain(view: &CallerView, asked: &Asked<'_>, watches: bool, now: Timestamp) -> Vec<Value> {
    let Some(policies) = &view.policies else {
        return Vec::new();
    };
    let who = Who {
        cluster: &view.key.home_cluster,
        pod: &view.pod,
        service_account: &view.service_account,
    };
    let requests = policies.http_faults(asked).into_iter();
    let requests = requests.map(|fault| (&fault.name, &fault.when, of_request(fault)));
    let running = policies.watch_faults(asked).into_iter().filter(|_| watches);
    let running = running.map(|fault| (&fault.name, &fault.when, of_watch(fault)));
    let met = requests.chain(running).filter(|(_, when, _)| when.is_for(who));
    let told = met
        .map(|(name, when, does)| json!({"policy": &*name.policy, "rule": &*name.rule, "says": says(when, does, now)}));
    told.collect()
}

fn says(when: &Condition, mut does: String, now: Timestamp) -> String {
    if when.is_for_some_heads() {
        does.push_str(", of requests with a head as it says");
    }
    if !when.is_in_force(now) {
        does.push_str("; not in force now");
    }
    does
}

fn of_request(fault: &RequestFault) -> String {
    let delay = fault.delay.map(|delay| {
        format!(
            "delays {} of a hundred by {}",
            delay.percent,
            format_duration(delay.time)
        )
    });
    let abort = fault
        .abort
        .map(|abort| format!("answers {} of a hundred with {}", abort.percent, abort.code.as_u16()));
    delay.into_iter().chain(abort).collect::<Vec<_>>().join(", ")
}

fn of_watch(fault: &WatchFault) -> String {
    let does = match fault.fault.action {
        Action::Drop => "cuts".to_owned(),
        Action::Stall(Some(lasts)) => format!("stalls for {}", format_duration(lasts)),
        Action::Stall(None) => "stalls to its end".to_owned(),
        Action::Expire => "expires".to_owned(),
        Action::Delay(by) => format!("delays by {}", format_duration(by)),
        Action::RepeatBookmark => "repeats a bookmark of".to_owned(),
    };
    let part = match fault.part {
        WatchPart::Whole => "the watch",
        WatchPart::Leg => "one member's leg of the watch",
    };
    format!("{does}: {part}, {} of a hundred", fault.percent)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_crds::FaultInjectionSpec;

    use super::*;
    use crate::value::injection::Faults;

    #[test]
    fn each_fault_says_what_it_does_and_to_whom() {
        let spec: FaultInjectionSpec = serde_json::from_value(json!({
            "until": "1970-01-01T00:01:00Z",
            "httpFault": [
                {"name": "both", "delay": {"fixedDelay": "1.5s", "percent": "12.5"}, "abort": {"httpStatus": 503}},
                {"name": "head", "abort": {"httpStatus": 409, "percent": "50"}, "match": {"httpMatch": [{"method": "PUT"}]}},
            ],
            "watchFault": [
                {"name": "still", "action": "Stall", "part": "Leg"},
                {"name": "late", "action": "Delay", "duration": "2s", "percent": "10"},
            ],
        }))
        .unwrap();
        let faults = Faults::compile(&Arc::from("FaultInjection/ops/f"), &Arc::from("1"), &spec).unwrap();
        let at = |second| Timestamp::from_second(second).unwrap();
        let told = |fault: &RequestFault, second| says(&fault.when, of_request(fault), at(second));
        assert_eq!(
            told(&faults.requests[0], 0),
            "delays 12.5 of a hundred by 1s500ms, answers 100 of a hundred with 503"
        );
        assert_eq!(
            told(&faults.requests[1], 60),
            "answers 50 of a hundred with 409, of requests with a head as it says; not in force now"
        );
        let watches = faults.watches.iter().map(of_watch);
        assert_eq!(
            watches.collect::<Vec<_>>(),
            [
                "stalls to its end: one member's leg of the watch, 100 of a hundred",
                "delays by 2s: the watch, 10 of a hundred"
            ]
        );
    }
}
