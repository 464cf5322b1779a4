//! The rules of a FaultInjection.

use std::ops::RangeInclusive;
use std::time::Duration as StdDuration;

use super::policies::{ResourceRules, RuleNames, SOME_TIME, check_callers, check_time};
use super::{Problem, Problems};
use crate::circuit_breaker::ResourceRule;
use crate::fault_injection::{
    Abort, CallerMatch, Delay, EffectiveTime, FAULTS_MAX, FaultInjectionSpec, HttpFault, HttpMatch, MATCHES_MAX, Match,
    Percent, REGEXES_TOTAL_MAX, Schedule, TextMatch, UNNAMED, WatchAction, WatchFault, WatchPart, parse_until,
};
use crate::names::{WILDCARD, is_dns_label, is_dns_subdomain};

/// Longest that one fault puts off a request or an event: clients wait for minutes at most.
const DELAY_MAX: StdDuration = StdDuration::from_mins(5);
/// From nothing, which is no delay, to [`DELAY_MAX`].
const DELAY: RangeInclusive<StdDuration> = StdDuration::ZERO..=DELAY_MAX;
/// The status that means no abort.
const NO_ABORT: i64 = 200;
const ABORTS: RangeInclusive<i64> = 400..=599;
/// Most events and most bytes after which a fault comes.
const EVENTS_MAX: i64 = 1_000_000_000;
const BYTES_MAX: i64 = 1_000_000_000_000;
/// Longest method of HTTP, and longest text of a header.
const METHOD_MAX: usize = 32;
const HEADER_NAME_MAX: usize = 256;
const HEADER_VALUE_MAX: usize = 4096;

/// Everything wrong with a FaultInjection; empty if it can be served.
///
/// ```
/// use portolan_crds::{FaultInjectionSpec, validate_fault_injection};
///
/// let spec: FaultInjectionSpec = serde_yaml_ng::from_str(
///     "
///     selector: {matchLabels: {app: greeter}}
///     httpFault:
///     - name: slow
///       delay: {fixedDelay: 500ms, percent: '150'}
///     ",
/// )?;
/// let problems = validate_fault_injection(&spec);
/// assert_eq!(problems[0].field, "spec.httpFault[0].delay.percent");
/// # Ok::<(), serde_yaml_ng::Error>(())
/// ```
pub fn validate_fault_injection(spec: &FaultInjectionSpec) -> Vec<Problem> {
    let mut problems = Problems::default();
    check_callers(&mut problems, spec.selector.as_ref(), &spec.caller_clusters);
    if let Some(Err(error)) = spec.until.as_deref().map(parse_until) {
        problems.invalid("spec.until", error);
    }
    let (mut names, mut parts) = (FaultNames::of(spec), Parts::default());
    problems.at_most("spec.httpFault", spec.http_fault.len(), FAULTS_MAX);
    for (index, fault) in spec.http_fault.iter().enumerate() {
        let field = format!("spec.httpFault[{index}]");
        names.check(&mut problems, &field, &fault.name, &fault.name_at(index));
        check_http_fault(&mut problems, &mut parts, &field, fault);
    }
    problems.at_most("spec.watchFault", spec.watch_fault.len(), FAULTS_MAX);
    for (index, fault) in spec.watch_fault.iter().enumerate() {
        let field = format!("spec.watchFault[{index}]");
        names.check(&mut problems, &field, &fault.name, &fault.name);
        check_watch_fault(&mut problems, &mut parts, &field, fault);
    }
    parts.rules.check_total(&mut problems);
    if parts.regexes > REGEXES_TOTAL_MAX {
        let message = format!(
            "has {} regular expressions, at most {REGEXES_TOTAL_MAX}: split the object",
            parts.regexes
        );
        problems.invalid("spec", message);
    }
    problems.0
}

/// Names of faults. Those that have none are known by their place, and no other may have such a name beside them: with the next
/// fault that is put before them it would be somebody else's.
struct FaultNames {
    names: RuleNames,
    some_have_none: bool,
}

impl FaultNames {
    fn of(spec: &FaultInjectionSpec) -> Self {
        Self {
            names: RuleNames::default(),
            some_have_none: spec.http_fault.iter().any(|fault| fault.name.is_empty()),
        }
    }

    /// `given`: the name as it is written. `name`: by which the fault is known.
    fn check(&mut self, problems: &mut Problems, fault: &str, given: &str, name: &str) {
        if self.some_have_none && given.starts_with(UNNAMED) {
            let message = format!(
                "names that begin with {UNNAMED} are of faults that have none: give each of httpFault a name, or this one another"
            );
            return problems.invalid(format!("{fault}.name"), message);
        }
        self.names.check(problems, fault, name);
    }
}

/// What is counted over all faults.
#[derive(Default)]
struct Parts {
    rules: ResourceRules,
    regexes: usize,
}

fn check_http_fault(problems: &mut Problems, parts: &mut Parts, field: &str, fault: &HttpFault) {
    if fault.delay.is_none() && fault.abort.is_none() {
        problems.required(field, "has neither delay nor abort: say what happens to the requests");
    }
    if let Some(delay) = &fault.delay {
        check_delay(problems, &format!("{field}.delay"), delay);
    }
    if let Some(abort) = &fault.abort {
        check_abort(problems, &format!("{field}.abort"), abort);
    }
    check_when_and_what(
        problems,
        parts,
        field,
        fault.r#match.as_ref(),
        fault.effective_time.as_ref(),
    );
}

fn check_delay(problems: &mut Problems, field: &str, delay: &Delay) {
    check_percent(problems, field, delay.percent.as_deref());
    let field = format!("{field}.fixedDelay");
    if delay.fixed_delay.is_empty() {
        problems.required(&field, "say for how long requests wait, such as 500ms");
    } else {
        check_time(problems, &field, &delay.fixed_delay, DELAY);
    }
}

fn check_abort(problems: &mut Problems, field: &str, abort: &Abort) {
    check_percent(problems, field, abort.percent.as_deref());
    let status = abort.http_status;
    if status != NO_ABORT && !ABORTS.contains(&status) {
        let message = format!(
            "{status} must be from {} to {}, such as 503: requests are aborted by errors; {NO_ABORT} means no abort",
            ABORTS.start(),
            ABORTS.end()
        );
        problems.invalid(format!("{field}.httpStatus"), message);
    }
}

fn check_percent(problems: &mut Problems, field: &str, percent: Option<&str>) {
    if let Err(error) = Percent::of(percent) {
        problems.invalid(format!("{field}.percent"), error);
    }
}

fn check_watch_fault(problems: &mut Problems, parts: &mut Parts, field: &str, fault: &WatchFault) {
    check_percent(problems, field, fault.percent.as_deref());
    let duration = format!("{field}.duration");
    match (fault.action, &fault.duration) {
        (WatchAction::Delay, Some(time)) => {
            check_time(problems, &duration, time, StdDuration::from_nanos(1)..=DELAY_MAX);
        }
        (WatchAction::Delay, None) => {
            problems.required(&duration, "say by how much each event comes later, such as 500ms");
        }
        (WatchAction::Stall, Some(time)) => check_time(problems, &duration, time, SOME_TIME),
        (_, None) => {}
        (_, Some(_)) => problems.invalid(&duration, "is for Delay and Stall alone: remove it"),
    }
    if let Some(after) = &fault.after {
        let field = format!("{field}.after");
        if let Some(events) = after.events {
            problems.within(&format!("{field}.events"), events, 0..=EVENTS_MAX);
        }
        if let Some(bytes) = after.bytes {
            problems.within(&format!("{field}.bytes"), bytes, 0..=BYTES_MAX);
        }
        if let Some(time) = &after.time {
            check_time(
                problems,
                &format!("{field}.time"),
                time,
                StdDuration::ZERO..=*SOME_TIME.end(),
            );
        }
    }
    if fault.part == WatchPart::Leg && fault.action == WatchAction::RepeatBookmark {
        let message = "bookmarks are the merged watch's, so RepeatBookmark has no legs: say Whole";
        problems.invalid(format!("{field}.part"), message);
    }
    let rules = fault.r#match.iter().flat_map(|matched| &matched.resources);
    for (index, rule) in rules.enumerate().filter(|(_, rule)| !may_watch(rule)) {
        let message = format!("{:?} has no watches: name watch or leave verbs out", rule.verbs);
        problems.invalid(format!("{field}.match.resources[{index}].verbs"), message);
    }
    check_when_and_what(
        problems,
        parts,
        field,
        fault.r#match.as_ref(),
        fault.effective_time.as_ref(),
    );
}

fn may_watch(rule: &ResourceRule) -> bool {
    rule.verbs.is_empty() || rule.verbs.iter().any(|verb| verb == WILDCARD || verb == "watch")
}

fn check_when_and_what(
    problems: &mut Problems,
    parts: &mut Parts,
    field: &str,
    matched: Option<&Match>,
    effective: Option<&EffectiveTime>,
) {
    if let Some(matched) = matched {
        check_match(problems, parts, &format!("{field}.match"), matched);
    }
    if let Some(effective) = effective {
        for (name, list, most) in [
            ("daysOfWeek", &effective.days_of_week, 7),
            ("daysOfMonth", &effective.days_of_month, 31),
            ("months", &effective.months, 12),
        ] {
            problems.at_most(&format!("{field}.effectiveTime.{name}"), list.len(), most);
        }
    }
    let errors = effective.map(Schedule::read).and_then(Result::err);
    for error in errors.into_iter().flatten() {
        problems.invalid(format!("{field}.effectiveTime.{}", error.field), error.message);
    }
}

fn check_match(problems: &mut Problems, parts: &mut Parts, field: &str, matched: &Match) {
    parts
        .rules
        .check(problems, &format!("{field}.resources"), &matched.resources, true);
    problems.at_most(&format!("{field}.httpMatch"), matched.http_match.len(), MATCHES_MAX);
    for (index, head) in matched.http_match.iter().enumerate() {
        let field = format!("{field}.httpMatch[{index}]");
        for (name, text) in [("host", &head.host), ("path", &head.path)] {
            if let Some(text) = text {
                check_text(problems, parts, &format!("{field}.{name}"), text);
            }
        }
        check_head(problems, &field, head);
    }
    problems.at_most(&format!("{field}.callers"), matched.callers.len(), MATCHES_MAX);
    for (index, caller) in matched.callers.iter().enumerate() {
        check_caller(problems, &format!("{field}.callers[{index}]"), caller);
    }
}

fn check_text(problems: &mut Problems, parts: &mut Parts, field: &str, text: &TextMatch) {
    parts.regexes += usize::from(text.regex.as_ref().is_some_and(|regex| !regex.is_empty()));
    // What is too many is refused as a whole, and compiled no more.
    if parts.regexes > REGEXES_TOTAL_MAX {
        return;
    }
    if let Err(error) = text.compile() {
        problems.invalid(field, error);
    }
}

fn check_head(problems: &mut Problems, field: &str, head: &HttpMatch) {
    let method = head.method.as_deref().unwrap_or_default();
    let capitals =
        |method: &str| !method.starts_with('-') && method.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    if method.len() > METHOD_MAX || (method != WILDCARD && !capitals(method)) {
        let message = format!("{method:?} is no method: write it in capitals, such as \"GET\", or \"*\" for any");
        problems.invalid(format!("{field}.method"), message);
    }
    problems.at_most(&format!("{field}.headers"), head.headers.len(), MATCHES_MAX);
    for (index, header) in head.headers.iter().enumerate() {
        let field = format!("{field}.headers[{index}]");
        if !is_token(&header.name) || header.name.len() > HEADER_NAME_MAX {
            let message = format!(
                "{:?} is no name of a header: write one such as \"User-Agent\"",
                header.name
            );
            problems.invalid(format!("{field}.name"), message);
        }
        let carried = header.value.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~'));
        if !carried || header.value.trim() != header.value || header.value.len() > HEADER_VALUE_MAX {
            let message = "no header carries that: printable ASCII, no space at its ends, at most 4096 characters";
            problems.invalid(format!("{field}.value"), message);
        }
    }
}

/// Of RFC 9110.
fn is_token(text: &str) -> bool {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(token)
}

fn check_caller(problems: &mut Problems, field: &str, caller: &CallerMatch) {
    let given = [&caller.cluster, &caller.pod, &caller.service_account];
    if given.iter().all(|text| text.is_none()) {
        let message = "needs cluster, pod or serviceAccount: leave callers out for all that selector matches";
        problems.required(field, message);
    }
    let mut check = |name: &str, text: &Option<String>, good: fn(&str) -> bool| {
        if let Some(text) = text.as_ref().filter(|text| !good(text)) {
            problems.invalid(
                format!("{field}.{name}"),
                format!("{text:?} is no name that it can have"),
            );
        }
    };
    check("cluster", &caller.cluster, is_dns_label);
    check("pod", &caller.pod, is_dns_subdomain);
    check("serviceAccount", &caller.service_account, is_dns_subdomain);
}
