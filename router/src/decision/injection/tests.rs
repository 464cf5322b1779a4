//! Which faults hit, by their draws and their order.

use http::Request;
use portolan_crds::FaultInjectionSpec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::value::injection::Faults;

fn compile(spec: Value) -> Faults {
    let spec: FaultInjectionSpec = serde_json::from_value(spec).unwrap();
    Faults::compile(&"FaultInjection/ops/fj".into(), &"uid".into(), &spec).unwrap()
}

fn draw(faults: &Faults, mut draws: impl FnMut() -> f64) -> Injection {
    let (head, ()) = Request::new(()).into_parts();
    let circumstances = Circumstances {
        head: Head(&head),
        who: Who {
            cluster: "east",
            pod: "operator-0",
            service_account: "operator",
        },
        now: Timestamp::UNIX_EPOCH,
    };
    Injection::draw(&faults.requests, &faults.watches, circumstances, &mut draws)
}

fn names(injection: &Injection) -> Vec<String> {
    injection.names().into_iter().map(ToString::to_string).collect()
}

#[test]
fn delays_add_up_and_the_first_abort_that_hits_counts() {
    let faults = compile(json!({
        "httpFault": [
            {"name": "a", "delay": {"fixedDelay": "1s"}},
            {"name": "b", "abort": {"httpStatus": 500, "percent": "50"}},
            {"name": "c", "delay": {"fixedDelay": "2s"}, "abort": {"httpStatus": 503}},
        ],
        "watchFault": [{"name": "d", "action": "Drop", "percent": "50"}],
    }));
    let all = draw(&faults, || 0.0);
    assert_eq!(all.delay, Duration::from_secs(3));
    assert_eq!(all.abort.as_ref().unwrap().0, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(names(&all), ["ops/fj/a", "ops/fj/c", "ops/fj/b", "ops/fj/d"]);
    let some = draw(&faults, || 50.0);
    assert_eq!(some.abort.as_ref().unwrap().0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(names(&some), ["ops/fj/a", "ops/fj/c"]);
    assert!(some.watch.is_empty());
}

/// A watch may outlast the window in which it begins, or begin before it.
#[test]
fn faults_of_watches_are_drawn_whatever_the_time_is() {
    let times = json!({"startTime": "12:00:00", "endTime": "13:00:00"});
    let faults = compile(json!({
        "httpFault": [{"name": "a", "abort": {"httpStatus": 500}, "effectiveTime": times}],
        "watchFault": [{"name": "b", "action": "Drop", "effectiveTime": times}],
    }));
    assert_eq!(names(&draw(&faults, || 0.0)), ["ops/fj/b"]);
}

proptest! {
    #[test]
    fn zero_percent_is_never_and_a_hundred_always(draws in proptest::collection::vec(0.0_f64..100.0, 1..50)) {
        for (percent, hits) in [("0", false), ("100", true)] {
            let faults = compile(json!({
                "httpFault": [{"delay": {"fixedDelay": "1s", "percent": percent}, "abort": {"httpStatus": 500, "percent": percent}}],
                "watchFault": [{"name": "w", "action": "Drop", "percent": percent}],
            }));
            for one in &draws {
                let injection = draw(&faults, || *one);
                prop_assert_eq!(injection.abort.is_some(), hits);
                prop_assert_eq!(injection.delay.is_zero(), !hits);
                prop_assert_eq!(injection.watch.is_empty(), !hits);
            }
        }
    }
}
