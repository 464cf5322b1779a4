//! Which members a first list may go without (`PartialStart`): those of which its caller can never have been shown anything.
//!
//! What a list without a version does not have, clients drop, and many list so each time, not only at their start. So it is
//! the caller's Pod that counts: it is younger than the last answer that any router had from the member, which the hub is
//! asked for. Callers: `list` and `watch`, once a member cannot be had.

use std::sync::Arc;
use std::time::Duration;

use super::FanOuts;
use crate::decision::plan::FanOut;
use crate::value::snapshot::{Caller, Unavailable};

/// By how much the clocks of members and routers may differ: of a member whose clock is further from the hub's, or is not known, the
/// hub says so, and nobody is younger than anything then.
const CLOCKS_SECONDS: i64 = 5;
/// For the hub's word; a client waits for its list.
const HUB_ANSWERS_WITHIN: Duration = Duration::from_secs(1);

impl FanOuts {
    /// The members among `clusters` that a first list of `caller` may go without. None that is not known of, nor any while the
    /// hub cannot be asked.
    pub(super) async fn never_shown(&self, plan: &FanOut, caller: &Caller, clusters: Vec<Arc<str>>) -> Vec<Arc<str>> {
        let (Unavailable::PartialStart, Caller::Pod(view)) = (plan.unavailable, caller) else {
            return Vec::new();
        };
        let Some(created) = view.created_unix_seconds else {
            return Vec::new();
        };
        let routing = self.routing.load();
        // When its Pod was made is said by its home's clock, and compared with others.
        let home = routing.snapshot.identities.get(&view.key.home_cluster);
        if !home.is_some_and(|home| home.clock_agrees) {
            return Vec::new();
        }
        let upstreams = routing.upstreams.clone();
        let here = |cluster: &Arc<str>| Some(upstreams.get(cluster)?.last_answer());
        let clusters = clusters.into_iter();
        let asked: Vec<_> = clusters
            .filter(|cluster| here(cluster).is_some_and(|until| is_younger(created, until)))
            .collect();
        if asked.is_empty() {
            return asked;
        }
        let names = asked.iter().map(ToString::to_string).collect();
        let answered = self.routing.last_answers.ask(names, HUB_ANSWERS_WITHIN).await;
        let answered = answered.unwrap_or_default();
        let everywhere = |cluster: &Arc<str>| {
            answered
                .get(&**cluster)
                .is_some_and(|until| is_younger(created, *until))
        };
        asked.into_iter().filter(everywhere).collect()
    }
}

/// Whether a Pod was surely created after the last answer.
fn is_younger(created: i64, answered_until: i64) -> bool {
    created > answered_until.saturating_add(CLOCKS_SECONDS)
}

#[cfg(test)]
pub(super) mod tests {
    use super::is_younger;
    use crate::resource::routing::RoutingStore;
    use crate::stage::fanout::tests::born;
    use crate::value::snapshot::Caller;

    /// In seconds of Unix time.
    pub(in crate::stage::fanout) const LONG_AGO: i64 = 1_700_000_000;

    /// A replica that is younger than any answer of a member, and a hub that says so.
    pub(in crate::stage::fanout) fn young(routing: &RoutingStore) -> Caller {
        let mut carrier = routing.last_answers.carry();
        #[allow(clippy::disallowed_methods)]
        tokio::spawn(async move {
            while let Some(asked) = carrier.questions.recv().await {
                let clusters = asked.question.into_iter();
                let _ = asked.answer.send(clusters.map(|cluster| (cluster, LONG_AGO)).collect());
            }
        });
        born(Some(i64::MAX))
    }

    #[test]
    fn clocks_may_differ() {
        for (created, answered_until, younger) in [(106, 100, true), (105, 100, false), (0, i64::MAX, false)] {
            assert_eq!(
                is_younger(created, answered_until),
                younger,
                "{created} {answered_until}"
            );
        }
    }
}
