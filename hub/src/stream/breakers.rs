//! What a router reports of its breakers, of members' answers and of callers' Leases, as far as it is kept. Caller: `routers`.

use std::collections::BTreeMap;

use portolan_crds::ShardName;
use portolan_crds::names::is_dns_subdomain;
use portolan_wire::v1;

use crate::acks::{Answered, OtherLeases};

/// Longest reason of a breaker that is kept, in bytes: it stands in the status of its member, beside those of all routers.
const MAX_REASON_BYTES: usize = 1024;

/// Most Leases of one shard that are kept of one router: a condition names some of them.
const MAX_OTHER_LEASES: usize = 16;

/// What of a report is kept: one breaker per class of traffic of each member that is `known` to the router, if it is not
/// closed, with a reason of bounded length.
pub(super) fn bounded(report: Vec<v1::BreakerState>, known: impl Fn(&str) -> bool) -> Vec<v1::BreakerState> {
    let mut kept = BTreeMap::new();
    for mut breaker in report {
        let class = ["list", "watch", "upgrade", "token-review"]
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
pub(super) fn answers(mut report: Vec<v1::MemberAnswered>, known: impl Fn(&str) -> bool) -> Answered {
    report.retain(|answered| known(&answered.cluster));
    Answered::of(report)
}

/// Leases that callers renew beside their election, of shards that are `known` to the router.
pub(super) fn other_leases(report: Vec<v1::OtherLease>, known: impl Fn(&ShardName) -> bool) -> OtherLeases {
    let named = |lease: v1::OtherLease| {
        let shard: ShardName = lease.shard.parse().ok().filter(&known)?;
        is_dns_subdomain(&lease.lease).then_some(((shard, lease.lease), lease.renewed_unix_seconds))
    };
    let mut of_shard = BTreeMap::<ShardName, usize>::new();
    let few = |((shard, _), _): &((ShardName, String), i64)| {
        let count = of_shard.entry(shard.clone()).or_default();
        *count += 1;
        *count <= MAX_OTHER_LEASES
    };
    report.into_iter().filter_map(named).filter(few).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_of_known_shards_and_bounded() {
        let lease = |shard: &str, lease: &str| v1::OtherLease {
            shard: shard.to_owned(),
            lease: lease.to_owned(),
            renewed_unix_seconds: 7,
        };
        let mut report = vec![
            lease("ops/blue", "a"),
            lease("ops/green", "b"),
            lease("blue", "c"),
            lease("ops/blue", "D"),
        ];
        let known = |shard: &ShardName| shard.name() == "blue";
        let kept = other_leases(report.clone(), known);
        let kept: Vec<_> = kept
            .iter()
            .map(|((shard, lease), at)| (shard.to_string(), lease.as_str(), *at))
            .collect();
        assert_eq!(kept, [("ops/blue".to_owned(), "a", 7)]);
        report.extend((0..1_000).map(|number| lease("ops/blue", &number.to_string())));
        report.push(lease("dev/blue", "of-another"));
        let kept = other_leases(report, known);
        assert_eq!(kept.len(), MAX_OTHER_LEASES + 1);
        assert!(kept.keys().any(|(_, lease)| lease == "of-another"));
    }

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
