//! A request as it would have been planned in an older view of the shard: what a client holds that goes on from then.

use std::sync::Arc;

use super::{Planned, plan};
use crate::value::classify::ApiRequest;
use crate::value::kinds::Kinds;
use crate::value::snapshot::{Binding, Caller, CallerView, Snapshot};

/// `None`: what was whose at that view revision is not known any more.
pub(crate) fn plan_as_of(
    caller: &Caller,
    request: &ApiRequest,
    snapshot: &Snapshot,
    kinds: &Kinds,
    revision: u64,
) -> Option<Planned> {
    let Caller::Pod(view) = caller else { return None };
    let Binding::One(shard) = &view.binding else {
        return None;
    };
    let shard = shard.as_of(&view.key.home_cluster, revision)?;
    let view = CallerView {
        binding: Binding::One(Arc::new(shard)),
        ..CallerView::clone(view)
    };
    Some(plan(&Caller::Pod(Arc::new(view)), request, snapshot, kinds))
}
