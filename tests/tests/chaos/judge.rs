//! What must hold under each fault. Figures beside those of another proxy are told, never judged.

use std::time::Duration;

use crate::fault::{Case, Kind, Opens};
use crate::measure::{BACK_WITHIN, SLACK};
use crate::table::Row;

/// Probes by `/readyz` once a second, each a connection and a request, those of half-open breakers, and first looks.
const AT_MOST_A_SECOND: f64 = 6.0;
/// A breaker that opened by slowness is closed by a request after its open time, which no `/readyz` ends, and which grows.
const NO_LONGER_SLOW_WITHIN: Duration = Duration::from_secs(70);
/// A state file that could not be written is tried again later and later, up to a minute.
const SAVED_WITHIN: Duration = Duration::from_secs(64);

/// Notes what ought not to be.
pub(crate) fn judge(case: &Case, row: &mut Row) {
    let mut wrong = Vec::new();
    for (who, felt, least) in [("others", &row.others, 10), ("the operator", &row.reconcile, 1)] {
        if let Some(first) = felt.errors.first() {
            wrong.push(format!("{who}: {} errors, such as {first}", felt.errors.len()));
        }
        if felt.answered < least {
            wrong.push(format!("{who}: {} done", felt.answered));
        }
    }
    match (case.opens, row.opened_milliseconds) {
        (Opens::Within(time), None) => wrong.push(format!("not open within {:?}", time * SLACK)),
        (Opens::Never, Some(after)) => wrong.push(format!("open after {after} ms")),
        _ => {}
    }
    let back_within = match case.kind {
        Kind::Disk => SAVED_WITHIN,
        Kind::TenTimes | Kind::Slow => NO_LONGER_SLOW_WITHIN,
        _ => BACK_WITHIN * SLACK,
    };
    match row.back_milliseconds.map(Duration::from_millis) {
        Some(after) if after <= back_within => {}
        after => wrong.push(format!("back after {after:?}")),
    }
    // By another endpoint all goes on; who is slow is served in part.
    let open = row.open;
    if !matches!(case.kind, Kind::Half | Kind::TenTimes | Kind::Slow)
        && open.all() as f64 > AT_MOST_A_SECOND * (open.seconds + 1.0)
    {
        wrong.push(format!("asked too often while open: {open:?}"));
    }
    if case.kind == Kind::Half && row.callers.failed > 0 {
        wrong.push(format!("with one endpoint left: {:?}", row.callers));
    }
    let relists = row.relists.iter().filter(|(_, times)| **times > 1);
    wrong.extend(relists.map(|(client, times)| format!("{client} listed {times} times")));
    row.wrong.extend(wrong);
}
