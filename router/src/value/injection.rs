//! Faults that a FaultInjection orders, as requests are judged by them: times parsed, expressions compiled, once when a
//! snapshot is made.
//!
//! Values only. Which of them hit a request is `decision::injection`'s, what then happens `stage::inject`'s. What a rule says
//! of resources is matched with all other rules' at once, see `value::policy`. Made by `value::snapshot::build`.

mod head;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use portolan_crds::circuit_breaker::ResourceRule;
use portolan_crds::duration::parse_duration;
pub(crate) use portolan_crds::fault_injection::WatchPart;
use portolan_crds::fault_injection::{self as spec, FaultInjectionSpec, Percent, Schedule, WatchAction, parse_until};

pub(crate) use self::head::Head;
use self::head::HeadMatch;

/// Kind of the object in the name of a policy.
const KIND: &str = "FaultInjection/";
/// Of an abort that is none, as the original has it.
const NO_ABORT: i64 = 200;

/// A fault's name, which everything is marked with that it does.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FaultName {
    /// `FaultInjection/<namespace>/<name>`.
    pub(crate) policy: Arc<str>,
    /// The rule in it.
    pub(crate) rule: Arc<str>,
}

impl fmt::Display for FaultName {
    /// `<namespace>/<name>/<rule>`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let object = self.policy.strip_prefix(KIND).unwrap_or(&self.policy);
        write!(f, "{object}/{}", self.rule)
    }
}

/// All faults of one FaultInjection. None, if it is disabled.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Faults {
    pub(crate) requests: Vec<RequestFault>,
    pub(crate) watches: Vec<WatchFault>,
}

/// What happens to requests.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RequestFault {
    pub(crate) name: FaultName,
    pub(crate) when: Condition,
    pub(crate) delay: Option<Delay>,
    pub(crate) abort: Option<Abort>,
}

/// A request waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Delay {
    pub(crate) time: Duration,
    pub(crate) percent: Percent,
}

/// A request is answered with an error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Abort {
    pub(crate) code: http::StatusCode,
    pub(crate) percent: Percent,
}

/// What happens to a watch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WatchFault {
    pub(crate) name: FaultName,
    /// Of the policy's object: one that is made anew under the same name is another one.
    pub(crate) uid: Arc<str>,
    pub(crate) when: Condition,
    pub(crate) percent: Percent,
    pub(crate) part: WatchPart,
    pub(crate) fault: StreamFault,
}
/// One fault of a stream, as it was ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamFault {
    pub(crate) action: Action,
    pub(crate) after: After,
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// It is cut, as a connection that breaks.
    Drop,
    /// Nothing comes for so long; `None`: to its end.
    Stall(Option<Duration>),
    /// 410 within the stream, and its end.
    Expire,
    /// Everything comes later by so much.
    Delay(Duration),
    /// The last bookmark comes again.
    RepeatBookmark,
}

/// Where in the life of the stream: when all of these are behind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct After {
    /// Events that were handed on, bookmarks not counted.
    pub(crate) events: u64,
    /// Bytes that were handed on.
    pub(crate) bytes: u64,
    /// Time since it began.
    pub(crate) time: Duration,
}

/// For which requests, and when, beside what is said of resources.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Condition {
    /// Of a fault of legs: which it hits.
    pub(crate) resources: Vec<ResourceRule>,
    heads: Vec<HeadMatch>,
    callers: Vec<spec::CallerMatch>,
    schedule: Option<Schedule>,
    until: Option<Timestamp>,
}

/// Who asks, in the words of rules.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Who<'a> {
    pub(crate) cluster: &'a str,
    pub(crate) pod: &'a str,
    pub(crate) service_account: &'a str,
}

impl Faults {
    /// Of an accepted spec, whose object is called `policy` and has this uid. What is wrong with it, by its field: what
    /// validation lets through compiles, so this names a defect of it.
    pub(crate) fn compile(policy: &Arc<str>, uid: &Arc<str>, of: &FaultInjectionSpec) -> Result<Self, String> {
        if of.disabled {
            return Ok(Self::default());
        }
        let until = of.until.as_deref().map(parse_until).transpose();
        let until = until.map_err(|error| format!("until: {error}"))?;
        let name = |rule: &str| FaultName {
            policy: policy.clone(),
            rule: rule.into(),
        };
        let request = |(index, fault): (usize, &spec::HttpFault)| {
            let rule = fault.name_at(index);
            request_fault(name(&rule), fault, until).map_err(|problem| format!("httpFault {rule}: {problem}"))
        };
        let watch = |fault: &spec::WatchFault| {
            let rule = &fault.name;
            watch_fault(name(rule), uid, fault, until).map_err(|problem| format!("watchFault {rule}: {problem}"))
        };
        Ok(Self {
            requests: of
                .http_fault
                .iter()
                .enumerate()
                .map(request)
                .collect::<Result<_, _>>()?,
            watches: of.watch_fault.iter().map(watch).collect::<Result<_, _>>()?,
        })
    }
}

fn request_fault(name: FaultName, fault: &spec::HttpFault, until: Option<Timestamp>) -> Result<RequestFault, String> {
    // One of no time is none.
    let delay = fault.delay.as_ref().map(|delay| {
        Ok::<_, String>(Delay {
            time: time(&delay.fixed_delay)?,
            percent: percent(delay.percent.as_deref())?,
        })
    });
    let abort = fault.abort.as_ref().filter(|abort| abort.http_status != NO_ABORT);
    let abort = abort.map(|abort| {
        let code = u16::try_from(abort.http_status).ok();
        let code = code.and_then(|code| http::StatusCode::from_u16(code).ok());
        Ok::<_, String>(Abort {
            code: code.ok_or_else(|| format!("{} is no HTTP status", abort.http_status))?,
            percent: percent(abort.percent.as_deref())?,
        })
    });
    Ok(RequestFault {
        name,
        when: Condition::compile(fault.r#match.as_ref(), fault.effective_time.as_ref(), until)?,
        delay: delay.transpose()?.filter(|delay| !delay.time.is_zero()),
        abort: abort.transpose()?,
    })
}

fn watch_fault(
    name: FaultName,
    uid: &Arc<str>,
    fault: &spec::WatchFault,
    until: Option<Timestamp>,
) -> Result<WatchFault, String> {
    let duration = fault.duration.as_deref().map(time).transpose()?;
    let action = match fault.action {
        WatchAction::Drop => Action::Drop,
        WatchAction::Stall => Action::Stall(duration),
        WatchAction::Expire => Action::Expire,
        WatchAction::Delay => Action::Delay(duration.ok_or("a Delay needs a duration")?),
        WatchAction::RepeatBookmark => Action::RepeatBookmark,
    };
    let count = |number: Option<i64>| u64::try_from(number.unwrap_or_default()).map_err(|error| error.to_string());
    let after = fault.after.clone().unwrap_or_default();
    Ok(WatchFault {
        name,
        uid: uid.clone(),
        when: Condition::compile(fault.r#match.as_ref(), fault.effective_time.as_ref(), until)?,
        percent: percent(fault.percent.as_deref())?,
        part: fault.part,
        fault: StreamFault {
            action,
            after: After {
                events: count(after.events)?,
                bytes: count(after.bytes)?,
                time: after.time.as_deref().map(time).transpose()?.unwrap_or_default(),
            },
        },
    })
}

fn percent(text: Option<&str>) -> Result<Percent, String> {
    Percent::of(text).map_err(|error| error.to_string())
}

fn time(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

impl Condition {
    fn compile(
        of: Option<&spec::Match>,
        effective: Option<&spec::EffectiveTime>,
        until: Option<Timestamp>,
    ) -> Result<Self, String> {
        let of = of.cloned().unwrap_or_default();
        Ok(Self {
            resources: of.resources,
            heads: of.http_match.iter().map(HeadMatch::compile).collect::<Result<_, _>>()?,
            callers: of.callers,
            schedule: effective
                .map(Schedule::new)
                .transpose()
                .map_err(|error| format!("effectiveTime.{}: {error}", error.field))?,
            until,
        })
    }

    /// Whether it is about such a request of this caller. What it says of resources is not asked here.
    pub(crate) fn concerns(&self, head: Head<'_>, who: Who<'_>) -> bool {
        let heads = self.heads.is_empty() || self.heads.iter().any(|one| one.matches(head));
        heads && self.is_for(who)
    }

    /// Whether it is about this caller.
    pub(crate) fn is_for(&self, who: Who<'_>) -> bool {
        self.callers.is_empty() || self.callers.iter().any(|one| who.is(one))
    }

    /// Whether it asks for something of a request's head.
    pub(crate) fn is_for_some_heads(&self) -> bool {
        !self.heads.is_empty()
    }

    /// Whether it is in force at this time.
    pub(crate) fn is_in_force(&self, now: Timestamp) -> bool {
        let scheduled = |schedule: &Schedule| schedule.is_active(now);
        self.until.is_none_or(|until| now < until) && self.schedule.as_ref().is_none_or(scheduled)
    }

    /// Whether that changes with the time.
    pub(crate) fn is_timed(&self) -> bool {
        self.until.is_some() || self.schedule.is_some()
    }
}

impl Who<'_> {
    fn is(&self, one: &spec::CallerMatch) -> bool {
        let is = |wanted: &Option<String>, own: &str| wanted.as_ref().is_none_or(|wanted| wanted == own);
        is(&one.cluster, self.cluster) && is(&one.pod, self.pod) && is(&one.service_account, self.service_account)
    }
}
