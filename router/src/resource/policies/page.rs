//! `/policies`, and what `/explain` says of policies: how rules stand, and what they would say to a request.

use portolan_wire::v1;
use serde_json::{Value, json};

use super::{Judging, Policies};
use crate::decision::policy::{Look, Met, would_deny};
use crate::value::policy::{Limit, Policy};
use crate::value::snapshot::Snapshot;

/// Rules that are shown.
const MOST_RULES: usize = 1_000;

impl Policies {
    /// All policies, how rules stand that somebody has met, and this router's shares.
    pub(crate) fn page(&self, snapshot: &Snapshot) -> Value {
        let mut policies: Vec<_> = snapshot.policies.values().collect();
        policies.sort_by(|one, other| one.name.cmp(&other.name));
        let kept = self.kept_shares();
        let mut shares: Vec<_> = kept.shares.iter().collect();
        shares.sort();
        let shares = shares.into_iter().map(|((uid, rule), millionths)| {
            let policy = snapshot.policies.values().find(|policy| *policy.uid == **uid);
            json!({
                "policy": policy.map(|policy| &*policy.name),
                "uid": &**uid,
                "rule": &**rule,
                "millionths": millionths,
            })
        });
        let (records, bytes) = self.recorder.size(self.clock.now());
        json!({
            "policies": policies.into_iter().map(|policy| describe(policy, snapshot)).collect::<Vec<_>>(),
            "rules": self.worst_rules(MOST_RULES).iter().map(rule).collect::<Vec<_>>(),
            "shares": {"revision": kept.revision, "shares": shares.collect::<Vec<_>>()},
            "records": {"count": records, "bytes": bytes},
        })
    }

    /// The limits and breakers that a request meets, and what they would say to it now. Nothing is taken, opened or counted.
    pub(crate) fn explain(&self, request: &Judging<'_>) -> Value {
        let Some(policies) = &request.view.policies else {
            return json!({"limits": [], "breakers": []});
        };
        let now = self.clock.now();
        let caller = self.rules_of(request, policies);
        let mut rules = caller.lock();
        let shared = self.shared.lock();
        let closed = rules.keep_up(&request.view.key, &shared, now);
        if closed {
            self.changes.send_modify(|count| *count += 1);
        }
        let of = rules.of.clone();
        let ids = of.limits_met(&request.asked);
        let mut open = rules.open(shared, now);
        let verb = request.asked.verb;
        let denied = would_deny(&mut open, &ids, verb, now);
        let limits = ids.iter().filter_map(|id| {
            let (policy, limit) = of.limit(*id)?;
            let (_, state) = open.rule(*id);
            let cost = limit.cost(verb);
            let look = state.look(limit, cost, now);
            Some(json!({
                "policy": &*policy.name,
                "rule": &*limit.name,
                "triggerPolicy": format!("{:?}", limit.trigger),
                "shared": limit.shared,
                "cost": cost,
                "tokens": state.stands(limit, now).tokens,
                "says": says(look),
            }))
        });
        let limits: Vec<_> = limits.collect();
        json!({
            "limits": limits,
            "breakers": self.explain_breakers(request),
            "refusedBy": denied.and_then(|denied| of.limit(denied.id)).map(|(policy, limit)| name(policy, limit)),
        })
    }

    fn explain_breakers(&self, request: &Judging<'_>) -> Vec<Value> {
        let mut all = Vec::new();
        self.breakers.each(|key, entry| {
            if key.caller == request.view.key && request.asked.clusters.contains(&&*key.cluster) {
                let refuses = entry.breaker.would_refuse();
                all.push(json!({
                    "policy": &*entry.policy,
                    "rule": entry.name(key),
                    "state": entry.breaker.report().state.as_str(),
                    "says": refuses.map_or("passes".to_owned(), |left| format!("refused for {left:.1?} more")),
                }));
            }
        });
        all.sort_by_key(|one| one["rule"].as_str().map(str::to_owned));
        all
    }
}

fn name(policy: &Policy, limit: &Limit) -> String {
    format!("{}/{}", policy.name, limit.name)
}

fn says(look: Look) -> String {
    match look {
        Look::Passes => "passes".to_owned(),
        Look::Limited(Some(wait)) => format!("over the limit: enough tokens in {wait:.1?}"),
        Look::Limited(None) => "over the limit: tokens never come".to_owned(),
        Look::Opened(Some(left)) => format!("opened for {left:.1?} more"),
        Look::Opened(None) => "opened until it is closed by hand".to_owned(),
        Look::Forced => "ForceOpened".to_owned(),
    }
}

fn describe(policy: &Policy, snapshot: &Snapshot) -> Value {
    let holds = snapshot
        .callers
        .values()
        .filter(|view| view.policy_names.contains(&policy.name));
    json!({
        "name": &*policy.name,
        "uid": &*policy.uid,
        "generation": policy.generation,
        "callers": holds.count(),
        "limits": policy.limits().iter().map(|limit| &*limit.name).collect::<Vec<_>>(),
        "breakers": policy.breakers().iter().map(|breaker| &*breaker.name).collect::<Vec<_>>(),
    })
}

fn rule(rule: &v1::RuleState) -> Value {
    json!({
        "policy": rule.policy,
        "rule": rule.rule,
        "caller": (!rule.caller.is_empty()).then_some(&rule.caller),
        "state": if rule.opened { "Opened" } else { "Closed" },
        "reason": (!rule.reason.is_empty()).then_some(&rule.reason),
        "sinceUnixMilliseconds": (rule.since_unix_milliseconds > 0).then_some(rule.since_unix_milliseconds),
        "refusedLastMinute": rule.last_minute,
        "refusedTotal": rule.total,
        "tokens": rule.tokens,
    })
}
