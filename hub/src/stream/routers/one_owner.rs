//! Routers of a release that knows one owner of a namespace. Where a namespace has an owner of each operator such a router would take
//! one of them for the only one, so it is told nothing. Pure.

use portolan_wire::protocol::OPERATORS;
use tonic::Status;

use crate::compile::World;

/// Why this router cannot be told whose a namespace is; `None`: it can.
pub(super) fn refusal(router: &str, knows_operators: bool, world: &World) -> Option<Status> {
    let have_one = world.state.ledger.contention().is_fleet();
    if have_one || knows_operators {
        return None;
    }
    // By this code a router also says that it is not ready, and clients go to others.
    Some(Status::permission_denied(format!(
        "router {router} is of a release that knows one owner of a namespace (it does not say capability {OPERATORS}), and here a \
         namespace has an owner of each operator: upgrade this router to the hub's release, or end it and run portolanctl router \
         forget {router}; handovers wait for it for 10 minutes"
    )))
}
