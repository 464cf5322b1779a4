//! Which ordered faults hit a request, and what they do to a stream. Pure: time and draws are arguments.
//!
//! What a fault says of resources is matched before, with all rules at once (`value::policy`). Callers: `edge` for each
//! request of a caller that a FaultInjection holds, `inject` for streams.

pub(crate) mod stream;
#[cfg(test)]
mod tests;

use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;

use crate::value::classify::{ApiRequest, Verb};
use crate::value::fault::{Fault, InjectedFault};
use crate::value::injection::{Condition, FaultName, Head, RequestFault, WatchFault, Who};

/// What is ordered for one request.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Injection {
    /// It waits so long first.
    pub(crate) delay: Duration,
    /// By whose order.
    pub(crate) delayed_by: Vec<FaultName>,
    /// Then it is answered with this error, and reaches no member.
    pub(crate) abort: Option<(StatusCode, FaultName)>,
    /// What happens to it once it runs, if it is a watch; in order.
    pub(crate) watch: Vec<WatchFault>,
}

/// Who asks, how, and when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Circumstances<'a> {
    pub(crate) head: Head<'a>,
    pub(crate) who: Who<'a>,
    pub(crate) now: Timestamp,
}

impl Circumstances<'_> {
    fn concern(&self, when: &Condition) -> bool {
        when.concerns(self.head, self.who)
    }
}

impl Injection {
    /// Of the faults whose resources match, those that hit: what their heads, callers and times say, and the draw of each,
    /// from 0 up to 100. Every draw is made once, whatever another one decided.
    pub(crate) fn draw<'a>(
        requests: impl IntoIterator<Item = &'a RequestFault>,
        watches: impl IntoIterator<Item = &'a WatchFault>,
        circumstances: Circumstances<'_>,
        mut draw: impl FnMut() -> f64,
    ) -> Self {
        let mut injection = Self::default();
        for fault in requests {
            if !circumstances.concern(&fault.when) || !fault.when.is_in_force(circumstances.now) {
                continue;
            }
            if let Some(delay) = fault.delay.filter(|delay| delay.percent.hits(draw())) {
                injection.delay = injection.delay.saturating_add(delay.time);
                injection.delayed_by.push(fault.name.clone());
            }
            if let Some(abort) = fault.abort.filter(|abort| abort.percent.hits(draw())) {
                injection.abort.get_or_insert_with(|| (abort.code, fault.name.clone()));
            }
        }
        // Whether one is in force is seen when it is due: the watch may last for hours.
        let watches = watches.into_iter().filter(|fault| circumstances.concern(&fault.when));
        injection.watch = watches.filter(|fault| fault.percent.hits(draw())).cloned().collect();
        injection
    }

    /// Whose orders these are: each once, in order.
    pub(crate) fn names(&self) -> Vec<&FaultName> {
        let mut names: Vec<&FaultName> = Vec::new();
        let watches = self.watch.iter().map(|fault| &fault.name);
        let aborted = self.abort.iter().map(|(_, name)| name);
        for name in self.delayed_by.iter().chain(aborted).chain(watches) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

/// The error that a fault orders for a request.
pub(crate) fn ordered(code: StatusCode, name: &FaultName, asked: &ApiRequest) -> Fault {
    Fault::Injected(Box::new(InjectedFault {
        code,
        name: name.to_string(),
        creates: asked.verb == Verb::Create,
        streams: asked.verb == Verb::Watch && asked.upgrade.is_none(),
        about: asked.about(),
    }))
}
