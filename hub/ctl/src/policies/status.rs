//! `portolanctl policies status`: how each rule stands for each caller, from the status of its object, once or for as long as
//! one looks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Write as _};

use anyhow::{Context as _, bail};
use futures::stream::{Stream, StreamExt as _, TryStreamExt as _, select};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, ListParams};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use kube::{Client, Resource, ResourceExt as _};
use portolan_crds::circuit_breaker::{LimitingSnapshot, TargetStatus};
use portolan_crds::fault_injection::InjectedStatus;
use portolan_crds::{CircuitBreaker, ConditionType, FaultInjection};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cli::{Output, PolicyName, StatusArgs};
use crate::hub;
use crate::table::{Table, age};

pub(super) async fn run(args: &StatusArgs) -> anyhow::Result<()> {
    let hub = hub::of(&args.hub).await?;
    let which = args.policy.as_ref();
    if !args.watch {
        let mut all = list::<CircuitBreaker>(&hub, which).await?;
        all.extend(list::<FaultInjection>(&hub, which).await?);
        if let (true, Some(name)) = (all.is_empty(), which) {
            bail!("there is no CircuitBreaker and no FaultInjection {name}: see portolanctl get policies");
        }
        return args.output.print(&all, |all| report(all, Timestamp::now()));
    }
    let events = select(
        events::<CircuitBreaker>(&hub, which),
        events::<FaultInjection>(&hub, which),
    );
    let mut events = std::pin::pin!(events);
    let (mut picture, mut last) = (Picture::default(), None);
    while let Some((kind, event)) = events.try_next().await? {
        let Some(all) = picture.after(kind, event) else {
            continue;
        };
        if last.as_ref() == Some(&all) {
            continue;
        }
        if args.output.output != Output::Json {
            println!("{:.0}", Timestamp::now());
        }
        args.output.print(&all, |all| report(all, Timestamp::now()))?;
        last = Some(all);
    }
    Ok(())
}

/// How one policy stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Standing {
    kind: String,
    /// `<namespace>/<name>`.
    policy: String,
    callers: Option<i64>,
    /// The first of them, as `<cluster>/<namespace>/<Pod>`.
    caller_names: Vec<String>,
    /// Which router withholds a share of limits that routers have together, and why; absent: none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    withheld: Option<String>,
    rules: Vec<RuleStanding>,
}

/// How one rule stands for one caller in one router.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct RuleStanding {
    rule: String,
    caller: String,
    router: String,
    state: String,
    since: Option<Time>,
    reason: String,
    last_minute: i64,
    total: i64,
    tokens: Option<i64>,
}

/// A kind of policy, as far as its status is concerned.
trait Policy:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static
{
    fn callers(&self) -> Option<i64>;
    /// The first of them, in order.
    fn caller_names(&self) -> Vec<String>;
    /// What condition Divided says, while it does not hold.
    fn withheld(&self) -> Option<String> {
        None
    }
    /// The worst first, as the hub has it.
    fn rules(&self) -> Vec<RuleStanding>;

    fn standing(&self) -> Standing {
        Standing {
            kind: Self::kind(&()).into_owned(),
            policy: format!("{}/{}", self.namespace().unwrap_or_default(), self.name_any()),
            callers: self.callers(),
            caller_names: self.caller_names(),
            withheld: self.withheld(),
            rules: self.rules(),
        }
    }
}

impl Policy for CircuitBreaker {
    fn withheld(&self) -> Option<String> {
        let type_ = ConditionType::Divided.to_string();
        let mut conditions = self.status.as_ref()?.conditions.iter();
        let divided = conditions.find(|condition| condition.type_ == type_ && condition.status != "True")?;
        Some(format!(
            "Divided={} {}: {}",
            divided.status, divided.reason, divided.message
        ))
    }

    fn callers(&self) -> Option<i64> {
        self.status.as_ref().and_then(|status| status.callers)
    }

    fn caller_names(&self) -> Vec<String> {
        let status = self.status.as_ref();
        status.map(|status| status.caller_names.clone()).unwrap_or_default()
    }

    fn rules(&self) -> Vec<RuleStanding> {
        let targets = self.status.iter().flat_map(|status| &status.target_status);
        let each = |target: &TargetStatus| -> Vec<RuleStanding> {
            let rules = target.limiting_snapshots.iter();
            rules.map(|rule| limited(target, rule)).collect()
        };
        targets.flat_map(each).collect()
    }
}

impl Policy for FaultInjection {
    fn callers(&self) -> Option<i64> {
        self.status.as_ref().and_then(|status| status.callers)
    }

    fn caller_names(&self) -> Vec<String> {
        let status = self.status.as_ref();
        status.map(|status| status.caller_names.clone()).unwrap_or_default()
    }

    fn rules(&self) -> Vec<RuleStanding> {
        let targets = self.status.iter().flat_map(|status| &status.target_status);
        targets.map(injected).collect()
    }
}

fn limited(target: &TargetStatus, rule: &LimitingSnapshot) -> RuleStanding {
    RuleStanding {
        rule: rule.name.clone(),
        caller: caller(&target.cluster, &target.pod_name),
        router: target.router.clone(),
        state: format!("{:?}", rule.state),
        since: rule.last_transition_time.clone(),
        reason: rule.reason.clone(),
        last_minute: rule.refused_last_minute,
        total: rule.refused_total,
        tokens: rule.tokens,
    }
}

fn injected(target: &InjectedStatus) -> RuleStanding {
    RuleStanding {
        rule: target.name.clone(),
        caller: caller(&target.cluster, &target.pod_name),
        router: target.router.clone(),
        state: "Injected".to_owned(),
        last_minute: target.injected_last_minute,
        total: target.injected_total,
        ..RuleStanding::default()
    }
}

/// A Shared limit is of all callers together.
fn caller(cluster: &str, pod: &str) -> String {
    if pod.is_empty() {
        "all".to_owned()
    } else {
        format!("{cluster}/{pod}")
    }
}

fn api<K: Policy>(hub: &Client, which: Option<&PolicyName>) -> Api<K> {
    which.map_or_else(
        || Api::all(hub.clone()),
        |which| Api::namespaced(hub.clone(), &which.namespace),
    )
}

fn fields(which: Option<&PolicyName>) -> Option<String> {
    which.map(|which| format!("metadata.name={}", which.name))
}

async fn list<K: Policy>(hub: &Client, which: Option<&PolicyName>) -> anyhow::Result<Vec<Standing>> {
    let params = ListParams {
        field_selector: fields(which),
        ..ListParams::default()
    };
    let listed = api::<K>(hub, which).list(&params).await;
    let listed = listed.with_context(|| format!("cannot list {}s", K::kind(&())))?;
    Ok(listed.items.iter().map(K::standing).collect())
}

type Told = Result<(String, Event<Standing>), watcher::Error>;

/// What becomes of one kind, as long as one looks.
fn events<K: Policy>(hub: &Client, which: Option<&PolicyName>) -> impl Stream<Item = Told> + use<K> {
    let config = watcher::Config {
        field_selector: fields(which),
        ..watcher::Config::default()
    };
    let told = |event: Event<K>| match event {
        Event::Apply(object) => Event::Apply(object.standing()),
        Event::Delete(object) => Event::Delete(object.standing()),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(object.standing()),
        Event::InitDone => Event::InitDone,
    };
    let kind = K::kind(&()).into_owned();
    watch(api::<K>(hub, which), config)
        .default_backoff()
        .map(move |event| Ok((kind.clone(), told(event?))))
}

/// All policies by kind and name, while both kinds are watched.
#[derive(Debug, Default)]
struct Picture {
    known: BTreeMap<(String, String), Standing>,
    /// Kinds of which the whole list has come: before that nothing is whole.
    listed: BTreeSet<String>,
}

/// Callers that are named in a line; of more it is told how many they are, and the object's status names some.
const NAMED: usize = 5;
/// Kinds that must have been listed.
const KINDS: usize = 2;

impl Picture {
    /// The whole picture after the event, if there is one.
    fn after(&mut self, kind: String, event: Event<Standing>) -> Option<Vec<Standing>> {
        let key = |standing: &Standing| (standing.kind.clone(), standing.policy.clone());
        match event {
            Event::Init => {
                self.known.retain(|(known, _), _| *known != kind);
                self.listed.remove(&kind);
            }
            Event::InitDone => drop(self.listed.insert(kind)),
            Event::Apply(standing) | Event::InitApply(standing) => {
                self.known.insert(key(&standing), standing);
            }
            Event::Delete(standing) => drop(self.known.remove(&key(&standing))),
        }
        (self.listed.len() == KINDS).then(|| self.known.values().cloned().collect())
    }
}

fn report(all: &Vec<Standing>, now: Timestamp) -> String {
    let mut table = Table::new(&[
        "POLICY",
        "RULE",
        "CALLER",
        "ROUTER",
        "STATE",
        "SINCE",
        "REASON",
        "LAST MINUTE",
        "TOTAL",
        "TOKENS",
    ]);
    let (mut met, mut notes) = (false, String::new());
    for standing in all {
        let policy = format!("{}/{}", standing.kind, standing.policy);
        for rule in &standing.rules {
            met = true;
            table.row(row(&policy, rule, now));
        }
        let _ = writeln!(notes, "{policy}: {}", reach(standing));
        if let Some(withheld) = &standing.withheld {
            let _ = writeln!(notes, "{policy}: {withheld}");
        }
    }
    match (met, notes.is_empty()) {
        (false, true) => "there is no CircuitBreaker and no FaultInjection\n".to_owned(),
        (false, false) => notes,
        (true, _) => format!("{table}{notes}"),
    }
}

/// Whom a policy reaches, and whether anything came of it.
fn reach(standing: &Standing) -> String {
    let quiet = if standing.rules.is_empty() {
        "; none of its rules is known to have acted (news takes up to a minute)"
    } else {
        ""
    };
    let Some(count) = standing.callers else {
        return format!("the hub has not told whom it reaches{quiet}");
    };
    let callers = match count {
        0 => return "it reaches no caller".to_owned(),
        1 => "1 caller".to_owned(),
        many => format!("{many} callers"),
    };
    let names: Vec<_> = standing.caller_names.iter().take(NAMED).map(String::as_str).collect();
    let rest = usize::try_from(count).unwrap_or_default().saturating_sub(names.len());
    let names = match (names.is_empty(), rest) {
        (true, _) => String::new(),
        (false, 0) => format!(" ({})", names.join(", ")),
        (false, rest) => format!(" ({} and {rest} more)", names.join(", ")),
    };
    format!("it reaches {callers}{names}{quiet}")
}

fn row(policy: &str, rule: &RuleStanding, now: Timestamp) -> Vec<String> {
    vec![
        policy.to_owned(),
        rule.rule.clone(),
        rule.caller.clone(),
        rule.router.clone(),
        rule.state.clone(),
        rule.since.as_ref().map(|since| age(now, since.0)).unwrap_or_default(),
        rule.reason.clone(),
        rule.last_minute.to_string(),
        rule.total.to_string(),
        rule.tokens.map(|tokens| tokens.to_string()).unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn breaker() -> CircuitBreaker {
        let opened = json!({
            "name": "deletes", "state": "Opened", "reason": "LimitExceeded", "lastTransitionTime": "1970-01-01T00:01:00Z",
            "refusedLastMinute": 40, "refusedTotal": 41, "tokens": 0,
        });
        let shared =
            json!({"name": "reads", "state": "Closed", "refusedLastMinute": 0, "refusedTotal": 2, "tokens": 7});
        serde_json::from_value(json!({
            "metadata": {"name": "calm", "namespace": "ops"},
            "spec": {},
            "status": {"callers": 2, "callerNames": ["east/ops/op-0", "east/ops/op-1"], "targetStatus": [
                {"podName": "op-0", "cluster": "east", "router": "gateway", "limitingSnapshots": [opened]},
                {"router": "gateway", "limitingSnapshots": [shared]},
            ]},
        }))
        .unwrap()
    }

    fn faults(callers: i64) -> FaultInjection {
        let status = json!({"callers": callers});
        let metadata = json!({"name": "rehearsal", "namespace": "ops"});
        serde_json::from_value(json!({"metadata": metadata, "spec": {}, "status": status})).unwrap()
    }

    #[test]
    fn each_rule_and_caller_has_a_line() {
        let now = Timestamp::from_second(72).unwrap();
        let lines = [
            "POLICY                    RULE      CALLER      ROUTER    STATE    SINCE   REASON          LAST MINUTE   TOTAL   TOKENS",
            "CircuitBreaker/ops/calm   deletes   east/op-0   gateway   Opened   12s     LimitExceeded   40            41      0",
            "CircuitBreaker/ops/calm   reads     all         gateway   Closed   -       -               0             2       7",
            "CircuitBreaker/ops/calm: it reaches 2 callers (east/ops/op-0, east/ops/op-1)",
            "FaultInjection/ops/rehearsal: it reaches no caller",
        ];
        let all = vec![breaker().standing(), faults(0).standing()];
        assert_eq!(report(&all, now), lines.join("\n") + "\n");
        let mut withheld = breaker();
        let divided = json!([{
            "type": "Divided", "status": "False", "reason": "SharesWithheld", "message": "router far keeps 26 %",
            "lastTransitionTime": "1970-01-01T00:00:20Z",
        }]);
        withheld.status.as_mut().unwrap().conditions = serde_json::from_value(divided).unwrap();
        let told = report(&vec![withheld.standing()], now);
        let line = "CircuitBreaker/ops/calm: Divided=False SharesWithheld: router far keeps 26 %\n";
        assert!(told.ends_with(line), "{told}");
        let mut quiet = faults(7).standing();
        quiet.caller_names = (0..7).map(|number| format!("east/ops/op-{number}")).collect();
        assert_eq!(
            report(&vec![quiet], now),
            "FaultInjection/ops/rehearsal: it reaches 7 callers (east/ops/op-0, east/ops/op-1, east/ops/op-2, east/ops/op-3, \
             east/ops/op-4 and 2 more); none of its rules is known to have acted (news takes up to a minute)\n"
        );
        assert!(report(&Vec::new(), now).starts_with("there is no"));
    }

    #[test]
    fn a_picture_is_whole_when_both_kinds_have_been_listed() {
        let [breakers, injections] = ["CircuitBreaker", "FaultInjection"].map(str::to_owned);
        let mut picture = Picture::default();
        let (calm, rehearsal) = (breaker().standing(), faults(1).standing());
        assert_eq!(picture.after(breakers.clone(), Event::Init), None);
        assert_eq!(picture.after(breakers.clone(), Event::InitApply(calm.clone())), None);
        assert_eq!(picture.after(breakers.clone(), Event::InitDone), None);
        assert_eq!(picture.after(injections.clone(), Event::Init), None);
        assert_eq!(
            picture.after(injections.clone(), Event::InitDone),
            Some(vec![calm.clone()])
        );
        let both = picture.after(injections.clone(), Event::Apply(rehearsal.clone()));
        assert_eq!(both, Some(vec![calm, rehearsal.clone()]));
        // One kind is listed anew: what is left of the other is no picture.
        assert_eq!(picture.after(breakers.clone(), Event::Init), None);
        assert_eq!(picture.after(breakers, Event::InitDone), Some(vec![rehearsal.clone()]));
        assert_eq!(picture.after(injections, Event::Delete(rehearsal)), Some(vec![]));
    }
}
