//! What must hold in every state.

use stateright::Property;

use crate::protocol::Handover;
use crate::state::{Another, State};

/// All routers that let somebody write let the same shard write.
pub const ONE_OWNER: &str = "routers let one owner write";
/// The promise of the fence.
pub const ADMITTED: &str = "no write of a former owner is admitted after the grant";
/// What the wait before the grant is for.
pub const COMMITTED: &str = "no write of a former owner is committed after the grant";
/// The fence is for former owners.
pub const REFUSED: &str = "no write of the owner is refused";
/// Whatever happened before, once nothing fails any more.
pub const ENDS: &str = "a move stops at its end and nowhere else";
/// With the above: every move ends.
pub const PROGRESS: &str = "each step is one ahead";

pub(crate) fn properties() -> Vec<Property<Handover>> {
    vec![
        Property::always(ONE_OWNER, |_, state: &State| {
            let live = state.routers().iter().filter(|router| !router.ended);
            let mut writing = live
                .filter(|router| !router.view.releasing)
                .map(|router| router.view.owner);
            let first = writing.next();
            writing.all(|owner| Some(owner) == first)
        }),
        Property::always(ADMITTED, |_, state: &State| !state.admitted_late),
        Property::always(COMMITTED, |_, state: &State| !state.committed_late),
        Property::always(REFUSED, |_, state: &State| !state.refused),
        Property::always(ENDS, |model: &Handover, state: &State| {
            let mut steps = Vec::new();
            model.steps(state, &mut steps);
            !steps.is_empty() || has_ended(state)
        }),
        Property::always(PROGRESS, |_, state: &State| !state.stood_still),
    ]
}

/// The last grant is stored, all routers serve by it, no write is open.
fn has_ended(state: &State) -> bool {
    let mut live = state.routers().iter().filter(|router| !router.ended);
    state.moves_left == 0
        && !state.ledger.releasing
        && live.all(|router| router.view == state.ledger && router.file == state.ledger)
        && state.open_writes().next().is_none()
        && state.another.is_none_or(Another::has_ended)
}
