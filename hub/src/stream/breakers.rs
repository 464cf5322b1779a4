//! What a router reports of its breakers and of members' answers, as far as it is kept. Caller: `routers`.

use std::collections::BTreeMap;

use portolan_wire::v1;

/// Longest reason of a breaker that is kept, in bytes: it stands in the status of its member, beside those of all routers.
const MAX_REASON_BYTES: usize = 1024;

/// What of a report is kept: one breaker per class of traffic of each member that is `known` to the router, if it is not
/// closed, with a reason of bounded length.
pub(super) fn bounded(report: Vec<v1::BreakerState>, known: impl Fn(&str) -> bool) -> Vec<v1::BreakerState> {
    let mut kept = BTreeMap::new();
    for mut breaker in report {
        let class = ["watch", "upgrade"]
            .into_iter()
            .find(|class| breaker.traffic_class == *class);
        let state = ["open", "half-open"].into_iter().find(|state| breaker.state == *state);
        let key = (breaker.cluster.clone(), class);
        if state.is_some() && !kept.contains_key(&key) && known(&breaker.cluster) {
            class.unwrap_or("unary").clone_into(&mut breaker.traffic_class);
            breaker
                .reason
                .truncate(breaker.reason.floor_char_boundary(MAX_REASON_BYTES));
            kept.insert(key, breaker);
        }
    }
    kept.into_values().collect()
}

/// When members answered it, of those that are `known` to the router.
pub(super) fn answers(report: Vec<v1::MemberAnswered>, known: impl Fn(&str) -> bool) -> BTreeMap<String, i64> {
    let known = report.into_iter().filter(|answered| known(&answered.cluster));
    known
        .map(|answered| (answered.cluster, answered.until_unix_seconds))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_breaker_is_kept_once_and_cut() {
        let breaker = |cluster: &str, class: &str, reason: &str| v1::BreakerState {
            cluster: cluster.to_owned(),
            traffic_class: class.to_owned(),
            state: "open".to_owned(),
            reason: reason.to_owned(),
            since_unix_seconds: 0,
        };
        let long = "ä".repeat(1 << 20);
        let mut report = vec![breaker("east", "unary", &long), breaker("mars", "unary", "")];
        report.extend((0..9).map(|class| breaker("east", &format!("class-{class}"), "")));
        report.extend([breaker("east", "watch", "w"), breaker("east", "watch", "later")]);
        report.push(v1::BreakerState {
            state: "closed".to_owned(),
            ..breaker("east", "upgrade", "")
        });
        let kept = bounded(report, |cluster| cluster == "east");
        let kept: Vec<_> = kept
            .iter()
            .map(|one| (one.traffic_class.as_str(), one.reason.len()))
            .collect();
        assert_eq!(kept, [("unary", MAX_REASON_BYTES), ("watch", 1)]);
    }
}
