//! One list of many members' lists.

use std::sync::Arc;

use http::Response;

use super::leg::{Overrides, start};
use super::{Fan, FanOuts};
use crate::fault::Fault;
use crate::upstream::Body;

/// Not merged yet: the first leg's.
pub(super) async fn list(fanouts: &Arc<FanOuts>, fan: Fan) -> Result<Response<Body>, Fault> {
    let Some(leg) = fan.plan.legs.first() else {
        return Err(Fault::Internal("a plan over no members".to_owned()));
    };
    start(fanouts, &fan.asking, leg, &Overrides::default(), fan.snapshot.clone()).await
}
