//! Ordered faults of requests: a wait, then perhaps an error, before anything else is asked of a request.
//!
//! Who waits holds no permit, only a place among those who wait, of its caller and of all: its body stays unread in the
//! client's connection like theirs. A client that goes drops the future, and with it the wait. Caller: `edge`, which knows
//! whether they are still ordered.

use tokio::time::{Instant, sleep_until};

use super::bounds::Bound;
use super::{Admission, Admit};
use crate::decision::injection::{Injection, ordered};
use crate::resource::injected::Kind;
use crate::value::fault::Fault;
use crate::value::injection::FaultName;
use crate::value::snapshot::Caller;

impl Admit {
    /// Waits as long as is ordered, to the request's deadline at most, which then is over. Safe to drop: the wait is over then.
    pub(crate) async fn put_off(&self, injection: &Injection, admission: &Admission<'_>) -> Result<(), Fault> {
        let Some(last) = injection.delayed_by.last() else {
            return Ok(());
        };
        for name in &injection.delayed_by {
            self.tell(Kind::Delay, name, admission);
        }
        let caller = self.bounds_of(admission);
        let place = self
            .shared
            .queue(&admission.caller.tenant(), &caller, admission.waiting());
        let _place = place.map_err(|_| self.refused(Bound::Delayed))?;
        let until = Instant::now()
            .checked_add(injection.delay)
            .unwrap_or(admission.deadline);
        sleep_until(until.min(admission.deadline)).await;
        if until < admission.deadline {
            return Ok(());
        }
        Err(ordered(http::StatusCode::GATEWAY_TIMEOUT, last, admission.asked))
    }

    /// The error that is ordered, if one is.
    pub(crate) fn abort(&self, injection: &Injection, admission: &Admission<'_>) -> Result<(), Fault> {
        let Some((code, name)) = &injection.abort else {
            return Ok(());
        };
        self.tell(Kind::Abort, name, admission);
        Err(ordered(*code, name, admission.asked))
    }

    fn tell(&self, kind: Kind, name: &FaultName, admission: &Admission<'_>) {
        // People are held by no policy.
        if let Caller::Pod(view) = admission.caller {
            self.metrics.injected.injected(kind, name, &view.key);
        }
    }
}
