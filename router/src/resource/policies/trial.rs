//! A policy tried before it is applied: the requests of the last minutes are judged by it again, each at its own time, by the
//! rules that live ones are judged by (`decision::policy`).
//!
//! It begins with full buckets at the first record, sees the requests of this router alone, and knows nothing of how clients
//! would have gone on after a refusal. Nothing is taken of any live bucket.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::{Value, json};

use super::Policies;
use super::found::unix_milliseconds;
use super::recorder::Record;
use super::report::name_of;
use crate::decision::policy::{Met, RuleState, Tick, Why, judge};
use crate::value::policy::{CallerPolicies, Limit, Policy};
use crate::value::snapshot::{CallerKey, CallerView};

/// Callers that are named, those that were refused most first.
const MOST_CALLERS: usize = 200;

/// State of the rules that are tried.
struct Trial {
    policies: CallerPolicies,
    /// By id: of limits that are shared. This router has all of each.
    shared: Vec<RuleState>,
    callers: HashMap<CallerKey, Tried>,
    rules: Vec<Counts>,
    from: Option<Tick>,
    requests: u64,
    met: u64,
    refused: u64,
}

/// One caller, as it would have fared.
struct Tried {
    view: Arc<CallerView>,
    own: Vec<RuleState>,
    requests: u64,
    refused: u64,
    by_rule: BTreeMap<usize, u64>,
}

/// One rule, as it would have said.
#[derive(Debug, Clone, Default)]
struct Counts {
    met: u64,
    limited: u64,
    opened: u64,
    forced: u64,
    opened_first: Option<Tick>,
}

/// The rules that one request meets.
struct Open<'a> {
    policies: &'a CallerPolicies,
    own: &'a mut [RuleState],
    shared: &'a mut [RuleState],
}

impl Met for Open<'_> {
    fn rule(&mut self, id: usize) -> (&Limit, &mut RuleState) {
        let (_, limit) = self.policies.limit(id).expect("ids are of these rules");
        let states = if limit.shared {
            &mut *self.shared
        } else {
            &mut *self.own
        };
        (limit, &mut states[id])
    }
}

impl Policies {
    /// What the policy would have refused of what these callers asked of late.
    pub(crate) fn try_policy(&self, policy: Policy, callers: &[Arc<CallerView>]) -> Value {
        let now = self.clock.now();
        let late = self.recorder.of_late(now);
        let known: HashMap<&CallerKey, &Arc<CallerView>> = callers.iter().map(|view| (&view.key, view)).collect();
        let mut trial = Trial::new(policy);
        late.each(now, |caller, record| {
            if let Some(view) = known.get(caller) {
                trial.judge(view, record);
            }
        });
        trial.outcome(|at| unix_milliseconds(self.clock.system_time(at)), now)
    }
}

impl Trial {
    fn new(policy: Policy) -> Self {
        let policies = CallerPolicies::new(vec![Arc::new(policy)]);
        let rules = policies.limits().map(|_| Counts::default()).collect();
        Self {
            policies,
            shared: Vec::new(),
            callers: HashMap::new(),
            rules,
            from: None,
            requests: 0,
            met: 0,
            refused: 0,
        }
    }

    fn judge(&mut self, view: &Arc<CallerView>, record: &Record<'_>) {
        let states = || {
            let limits = self.policies.limits();
            // Of one that routers share this one has all.
            limits
                .map(|(_, limit)| RuleState::own(limit, None, record.at))
                .collect::<Vec<_>>()
        };
        if self.from.is_none() {
            self.from = Some(record.at);
            self.shared = states();
        }
        self.requests += 1;
        let asked = record.asked();
        let ids = self.policies.limits_met(&asked);
        let tried = self.callers.entry(view.key.clone()).or_insert_with(|| Tried {
            view: view.clone(),
            own: states(),
            requests: 0,
            refused: 0,
            by_rule: BTreeMap::new(),
        });
        tried.requests += 1;
        if ids.is_empty() {
            return;
        }
        self.met += 1;
        let mut open = Open {
            policies: &self.policies,
            own: &mut tried.own,
            shared: &mut self.shared,
        };
        let judged = judge(&mut open, &ids, asked.verb, record.at);
        for id in &ids {
            self.rules[*id].met += 1;
        }
        let Some(denied) = judged.denied else { return };
        self.refused += 1;
        tried.refused += 1;
        *tried.by_rule.entry(denied.id).or_default() += 1;
        let rule = &mut self.rules[denied.id];
        let count = match denied.why {
            Why::Limited => &mut rule.limited,
            Why::Opened => &mut rule.opened,
            Why::Forced => &mut rule.forced,
        };
        *count += 1;
        if judged.opened {
            rule.opened_first.get_or_insert(record.at);
        }
    }

    fn outcome(mut self, unix_milliseconds: impl Fn(Tick) -> i64, now: Tick) -> Value {
        let name = |id: usize| self.policies.limit(id).map(|(_, limit)| limit.name.to_string());
        let rules = self.rules.iter().enumerate().map(|(id, rule)| {
            json!({
                "rule": name(id),
                "met": rule.met,
                "refused": rule.limited + rule.opened + rule.forced,
                "limited": rule.limited,
                "opened": rule.opened,
                "forced": rule.forced,
                "openedFirstUnixMilliseconds": rule.opened_first.map(&unix_milliseconds),
            })
        });
        let rules: Vec<_> = rules.collect();
        let mut callers: Vec<_> = std::mem::take(&mut self.callers).into_values().collect();
        callers.sort_by(|one, other| (other.refused, &one.view.key).cmp(&(one.refused, &other.view.key)));
        let count = callers.len();
        let callers = callers.iter().take(MOST_CALLERS).map(|tried| {
            let by_rule = tried
                .by_rule
                .iter()
                .filter_map(|(id, refused)| Some((name(*id)?, json!(refused))));
            json!({
                "caller": name_of(&tried.view.key),
                "pod": format!("{}/{}", tried.view.namespace, tried.view.pod),
                "requests": tried.requests,
                "refused": tried.refused,
                "byRule": by_rule.collect::<serde_json::Map<_, _>>(),
            })
        });
        json!({
            "fromUnixMilliseconds": self.from.map(&unix_milliseconds),
            "toUnixMilliseconds": unix_milliseconds(now),
            "requests": self.requests,
            "met": self.met,
            "refused": self.refused,
            "callerCount": count,
            "rules": rules,
            "callers": callers.collect::<Vec<_>>(),
        })
    }
}
